"""Draw the README's picture: python notebooks/images/overview.py (needs kaleido and a Chrome or Chromium)."""

from pathlib import Path

import baechi_lab as bl
from baechi_lab import viz

HERE = Path(__file__).parent

step = bl.models.build("inception_v3", batch_size=32)
cluster = bl.Cluster.uniform(4, memory_bytes="2GB", link=bl.Link(10.0, 0.00004))
pipe = (
    bl.Profile(mode="estimated", hardware="rtx2080")
    | bl.Optimize(passes=("colocation", "fusion"), forward_only=True)
    | bl.Place("m-etf")
    | bl.Simulate()
)
result = pipe.run(step, cluster)
title = (
    f"Inception-V3, batch 32, needs more than one 2 GB device. On four, m-ETF: "
    f"{result.timeline.makespan_us / 1e3:.0f} ms simulated; "
    f"no placement takes less than {result.bounds.best / 1e3:.0f} ms"
)
figure = viz.gantt(result.timeline, max_bars=600, title=title)
figure.update_layout(width=1000, title_font_size=14)
(HERE / "overview.svg").write_bytes(figure.to_image("svg"))
print(title, result.timeline, result.timeline.peak_bytes)
