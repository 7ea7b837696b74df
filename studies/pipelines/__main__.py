"""`python -m studies.pipelines --framework tensorflow --processes 2 --store pipelines.json`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from studies.pipelines.report import Row, keep, summarize_rows, to_pandas

if TYPE_CHECKING:
    from baechi_lab.executors.tensorflow.calibration import Calibration


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(prog="python -m studies.pipelines", description=__doc__)
    parser.add_argument("--framework", choices=("tensorflow",), default="tensorflow", help="whose half (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="workers, one device each (%(default)s)")
    parser.add_argument("--models", default="mlp,gnmt,transformer,gpt", help="names, by comma (%(default)s)")
    parser.add_argument("--micro-batches", type=int, default=8, help="of a step (%(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="measured per round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="through all schedules (%(default)s)")
    parser.add_argument("--store", help="a file that keeps the rows; other parts in it stay")
    options = parser.parse_args()
    from studies.pipelines.tensorflow import settings_of, study

    def told(rows: Sequence[Row], costs: Calibration) -> None:
        print(to_pandas(rows).to_string(index=False, float_format=lambda x: f"{x:.3g}"), flush=True)
        print(summarize_rows(rows), flush=True)
        if options.store:
            about = settings_of(
                costs, micro_batches=options.micro_batches, steps=options.steps, rounds=options.rounds, seed=0
            )
            command = (
                f"python -m studies.pipelines --framework {options.framework} --processes {options.processes} "
                f"--models {options.models} --micro-batches {options.micro_batches} --steps {options.steps} "
                f"--rounds {options.rounds} --store pipelines.json"
            )
            keep(options.store, f"{options.framework}, {options.processes} processes", rows, command=command, **about)

    study(
        options.models.split(","),
        options.processes,
        micro_batches=options.micro_batches,
        steps=options.steps,
        rounds=options.rounds,
        on_model=told,
    )


if __name__ == "__main__":
    main()
