"""`python -m studies.model_sizes`: traces the benchmark models (a few minutes) and rewrites what `bl.models.list` reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from baechi_lab.models import statistics

LISTED: tuple[tuple[str, dict[str, object]], ...] = (
    ("gnmt", {}),
    ("gnmt", {"sequence_length": 50}),
    ("inception_v3", {}),
    ("mlp", {}),
    ("nmt", {"layers": 2}),
    ("nmt", {"layers": 4}),
    ("nmt", {"layers": 8}),
    ("resnet", {"depth": 50}),
    ("resnet", {"depth": 152}),
    ("rnnlm", {}),
    ("transformer", {}),
)
"""The models of `bl.models.list()`: every one with its defaults, and the variants that the papers use."""


def store(path: Path, models: Iterable[tuple[str, dict[str, object]]] = LISTED) -> None:
    """Traces the listed models and writes their records."""
    from tqdm.auto import tqdm

    rows = [statistics.describe(name, **params) for name, params in tqdm(list(models), desc="trace")]
    text = "[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    store(Path(statistics.__file__).with_name("sizes.json"))
