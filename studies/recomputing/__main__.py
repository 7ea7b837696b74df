"""`python -m studies.recomputing -o recomputing.json`: steps with and without recomputation, simulated and run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from baechi_lab.fidelity.stored_results import provenance
from baechi_lab.graph.formats.files import write_atomically
from studies.recomputing.report import Row, plain_of, saving_error
from studies.recomputing.study import CASES, study


def main() -> None:
    """Study, print, and store after every model."""
    parser = argparse.ArgumentParser(prog="python -m studies.recomputing", description=__doc__)
    parser.add_argument("--frameworks", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--models", nargs="+", help="names of models (default: all)")
    parser.add_argument("--steps", type=int, default=5, help="measured steps per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", help="a .json file to write")
    options = parser.parse_args()
    cases = {f: {m: s for m, s in CASES[f].items() if m in (options.models or CASES[f])} for f in options.frameworks}

    def keep(rows: list[Row]) -> None:
        for row in (r for r in rows if (r.framework, r.model) == (rows[-1].framework, rows[-1].model)):
            print(line(rows, row), flush=True)
        if options.output:
            write_atomically(options.output, (json.dumps(document(rows), indent=1) + "\n").encode())

    study(cases, steps=options.steps, rounds=options.rounds, on_row=keep)


def line(rows: Sequence[Row], row: Row) -> str:
    """A row as text."""
    return (
        f"{row.framework} {row.model} {row.choice}: {row.copies} ops again, peak {row.simulated_bytes} simulated, "
        f"{row.measured_bytes} measured (saving {saving_error(plain_of(rows, row), row):+.1%}), step {row.simulated_us:.0f} us "
        f"simulated, {row.measured_us:.0f} us measured, {'same' if row.same_losses else 'OTHER'} losses"
    )


def document(rows: Sequence[Row]) -> dict[str, object]:
    """Everything, ready for JSON."""
    origin = provenance(seed=0, machine="2 cores")
    origin["command"] = origin["command"].replace("__main__.py", "python -m studies.recomputing")
    return {**origin, "rows": [{**asdict(r), "saving_error": saving_error(plain_of(rows, r), r)} for r in rows]}


if __name__ == "__main__":
    main()
