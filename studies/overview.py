"""Draw the README's picture: python -m studies.overview notebooks/images/overview.svg

Needs TensorFlow, kaleido and a Chrome or Chromium.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from baechi_lab import models, viz
from baechi_lab.graph import Cluster, Link
from baechi_lab.graph.formats.files import write_atomically
from baechi_lab.passes import optimize
from baechi_lab.placers import place
from baechi_lab.profilers import profile
from baechi_lab.simulator import simulate
from baechi_lab.simulator.bounds import bounds


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the picture and print its title."""
    parser = argparse.ArgumentParser(prog="python -m studies.overview", description=__doc__)
    parser.add_argument("picture", type=Path, help="SVG file to write")
    options = parser.parse_args(arguments)
    step = models.build("inception_v3", batch_size=32)
    cluster = Cluster.uniform(4, memory_bytes="2GB", link=Link(10.0, 0.00004))
    graph = profile(step, mode="estimated", hardware="rtx2080")
    coarse = optimize(graph, cluster, passes=("colocation", "fusion"), forward_only=True)
    timeline = simulate(graph, cluster, place(coarse, cluster, "m-etf"))
    title = (
        f"Inception-V3, batch 32, needs more than one 2 GB device. On four, m-ETF: "
        f"{timeline.makespan_us / 1e3:.0f} ms simulated; "
        f"no placement takes less than {bounds(graph, cluster).best / 1e3:.0f} ms"
    )
    figure = viz.gantt(timeline, max_bars=600, title=title)
    figure.update_layout(width=1000, title_font_size=14)
    write_atomically(options.picture, figure.to_image("svg"))
    print(title, timeline, timeline.peak_bytes)


if __name__ == "__main__":
    main()
