"""Predict 313 measured iterations of GPT training on A100s from a roofline fitted to 12 of them.

    python -m studies.vtrain.study DATA.csv --store RESULT.json

DATA is `data/vtrain/a100_single_node_even.csv` (vTrain, MICRO 2024, MIT licence): Megatron-DeepSpeed, 1F1B, activation
checkpointing, mixed precision, Adam. Rows with tensor parallelism 1 are predicted: the graph of a micro-batch,
estimated for an A100, unrolled and simulated under 1F1B. Fitted are the shares of the peaks that products, attention's
products and memory reach, and the microseconds that launching a kernel takes (`bl.calibrate`). The 12 rows are as far
from each other as can be: each further one is the farthest from those before, in the logarithms of its settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from baechi_lab.errors import FormatError
from baechi_lab.graph.hardware import Hardware
from baechi_lab.profilers.calibration import Calibration, calibrate
from baechi_lab.simulator import simulate
from studies.csv_records import read_rows
from studies.results import store
from studies.vtrain.gpt import GPT, pipeline

ROWS = 12
COLUMNS = {
    "global_batch": "global batch",
    "micro_batch": "micro batch",
    "hidden": "hidden size",
    "heads": "attention heads",
    "layers": "# layers",
    "sequence_length": "sequence length",
    "tensor": "tensor parallelism",
    "data": "data parallelism",
    "stages": "pipeline parallelism",
}


class Iteration(NamedTuple):
    """One measured row: what was trained how, and the milliseconds that an iteration took."""

    global_batch: int
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    sequence_length: int
    tensor: int
    data: int
    stages: int
    measured_ms: float

    @property
    def micro_batches(self) -> int:
        return self.global_batch // (self.micro_batch * self.data)


def read(path: str | Path) -> list[Iteration]:
    """The rows without tensor parallelism, in the order of the file."""
    iterations = []
    for number, row in enumerate(read_rows(path), 2):
        try:
            settings = {key: int(row[column]) for key, column in COLUMNS.items()}
            iterations.append(Iteration(**settings, measured_ms=float(row["iteration time (ms)"])))
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{path}, line {number}: {error} is missing or no number") from error
    return [row for row in iterations if row.tensor == 1]


def predicted_ms(row: Iteration, hardware: Hardware) -> float:
    """Milliseconds of an iteration, simulated.

    >>> row = Iteration(16, 2, 1024, 16, 24, 1024, 1, 1, 2, 0.0)
    >>> 100 < predicted_ms(row, Hardware.named("a100")) < 1000
    True
    """
    gpt = GPT(row.layers, row.hidden, row.heads, row.sequence_length)
    graph, cluster, placement = pipeline(gpt, row.micro_batch, row.stages, row.data, hardware)
    timeline = simulate(graph, cluster, placement, micro_batches=row.micro_batches, schedule="1f1b")
    return timeline.makespan_us / 1000


def spread_rows(rows: Sequence[Iteration], count: int = ROWS) -> list[int]:
    """Indices of rows that lie far from each other, beginning with the one nearest to the middle."""
    columns = np.array([[r.hidden, r.layers, r.micro_batch, r.data, r.stages, r.micro_batches] for r in rows])
    place = np.log2(columns)
    place = (place - place.mean(axis=0)) / np.maximum(place.std(axis=0), 1e-9)
    chosen_rows = [int((place**2).sum(axis=1).argmin())]
    while len(chosen_rows) < min(count, len(rows)):
        away = ((place[:, None] - place[chosen_rows]) ** 2).sum(axis=2).min(axis=1)
        chosen_rows.append(int(away.argmax()))
    return chosen_rows


def fitted(rows: Sequence[Iteration], fit: Sequence[int]) -> Calibration:
    """The A100 calibrated on the rows `fit`, and the errors of all."""

    def step(row: Iteration) -> Callable[[Hardware], float]:
        return lambda hardware: 1000 * predicted_ms(row, hardware)

    measurements = [(step(row), 1000 * row.measured_ms) for row in rows]
    return calibrate(replace(Hardware.named("a100").as_roofline(), launches_hidden=True), measurements, fit=fit)


def summary(rows: Sequence[Iteration], calibration: Calibration) -> dict[str, Any]:
    """What is stored: how it was made, what was fitted to which rows, and the errors of the others."""
    held_out_errors, hardware = np.abs(calibration.held_out), calibration.hardware
    return {
        "seed": None,
        "rows": len(rows),
        "fitted_rows": [
            {**rows[k]._asdict(), "error": round(float(calibration.errors[k]), 4)} for k in calibration.fitted
        ],
        "hardware": {
            key: round(float(getattr(hardware, key)), 6)
            for key in ("matmul_share", "batched_share", "bandwidth_share", "launch_us")
        },
        "mean_absolute_error_of_others": round(float(held_out_errors.mean()), 5),
        "percentiles_of_others": {p: round(float(np.percentile(held_out_errors, p)), 4) for p in (50, 90, 100)},
        "errors": [round(float(e), 4) for e in calibration.errors],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m studies.vtrain.study", description=__doc__)
    parser.add_argument("data", help="the measured rows")
    parser.add_argument("--store", help="where to write the result as JSON")
    options = parser.parse_args(arguments)
    rows = read(options.data)
    calibration = fitted(rows, spread_rows(rows))
    print(calibration)
    if options.store:
        command = "python -m studies.vtrain.study data/vtrain/a100_single_node_even.csv --store FILE"
        store(options.store, command, **summary(rows, calibration))


if __name__ == "__main__":
    main()
