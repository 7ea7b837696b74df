"""`python -m baechi_lab.experiments.memory -o memory.json`: simulated against measured peaks of memory."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict

from ...graph.formats.files import write_atomically
from ..fidelity.storing import provenance
from ..fidelity.study import MODELS
from .report import Row, summarize_rows
from .study import study

NAMES = (
    "inception_v3", "resnet50", "gnmt", "transformer", "bert", "gpt2", "llama", "t5", "vit", "convnext",
)  # fmt: skip
"""Of `torch_steps`, which loads PyTorch."""


def main() -> None:
    """Study, print, and store after every model."""
    parser = argparse.ArgumentParser(prog="python -m baechi_lab.experiments.memory", description=__doc__)
    parser.add_argument("--torch", action="store_true", help="ten PyTorch models instead of TensorFlow's")
    parser.add_argument("--models", nargs="+", choices=(*MODELS, *(n for n in NAMES if n not in MODELS)))
    parser.add_argument("--seed", type=int, default=0, help="of the random placement")
    parser.add_argument("-o", "--output", help="a .json file to write")
    given = parser.parse_args()

    def keep(rows: Sequence[Row]) -> None:
        for row in (row for row in rows if row.model == rows[-1].model):
            print(
                f"{row.model} {row.placement} {row.device}: {row.simulated} simulated, {row.measured} measured, {row.error:+.1%}"
            )
        if given.output:
            write_atomically(given.output, (json.dumps(document(rows, given.seed), indent=1) + "\n").encode())

    if given.torch:
        from .torch_study import torch_study

        rows = torch_study(given.models or NAMES, seed=given.seed, on_model=keep)
    else:
        rows = study({name: MODELS[name] for name in given.models or MODELS}, seed=given.seed, on_model=keep)
    print(summarize_rows(rows))


def document(rows: Sequence[Row], seed: int) -> dict[str, object]:
    """Everything, ready for JSON."""
    found = summarize_rows(rows)
    made = provenance(seed=seed)
    made["command"] = made["command"].replace("__main__.py", "python -m baechi_lab.experiments.memory")
    made["machine"] = f"{os.cpu_count()} cores"
    return {
        **made,
        "summary": {**asdict(found), "met": found.met},
        "rows": [{**asdict(r), "error": r.error} for r in rows],
    }


if __name__ == "__main__":
    main()
