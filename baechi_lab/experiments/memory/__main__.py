"""`python -m baechi_lab.experiments.memory -o memory.json`: simulated against measured peaks of TensorFlow steps."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from ...graph.formats.files import write_atomically
from ..fidelity.storing import provenance
from ..fidelity.study import MODELS
from .report import Row, summarize_rows
from .study import study


def main() -> None:
    """Study, print, and store after every model."""
    parser = argparse.ArgumentParser(prog="python -m baechi_lab.experiments.memory", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
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

    rows = study({name: MODELS[name] for name in given.models}, seed=given.seed, on_model=keep)
    print(summarize_rows(rows))


def document(rows: Sequence[Row], seed: int) -> dict[str, object]:
    """Everything, ready for JSON."""
    found = summarize_rows(rows)
    made = provenance(seed=seed)
    made["command"] = made["command"].replace("__main__.py", "python -m baechi_lab.experiments.memory")
    return {
        **made,
        "summary": {**asdict(found), "met": found.met},
        "rows": [{**asdict(r), "error": r.error} for r in rows],
    }


if __name__ == "__main__":
    main()
