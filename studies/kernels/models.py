"""Predicts the time of whole models that were measured on GPUs.

    python -m studies.kernels.models data/neusight --store studies/results/kernel_models.json

DATA is `data/neusight`: a forward pass, or a forward and a backward pass, of Hugging Face models in float32, not compiled.
Attention ran as single operators there, so that the models are built with `attn_implementation="eager"`. No constant of the
kernel model was fitted to these rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from baechi_lab.graph.hardware import Hardware, kind_named
from baechi_lab.profilers.torch.hugging_face import hugging_face
from baechi_lab.profilers.torch.layer_estimate import LayerEstimate, estimate_layers
from studies.csv_records import read_rows
from studies.results import store


class ModelRun(NamedTuple):
    """A measured run of a model."""

    device: str
    model: str
    phase: str
    sequence: int
    batch: int
    measured_ms: float


def read_runs(folder: Path) -> list[ModelRun]:
    """Returns the runs that were not compiled."""
    return [
        ModelRun(
            kind_named(row["device"]),
            row["model"],
            row["phase"],
            int(row["sequence"]),
            int(row["batch"]),
            float(row["total_ms"]),
        )
        for row in read_rows(folder / "models.csv")
        if not row["variant"]
    ]


def estimate_of(run: ModelRun, folder: Path) -> LayerEstimate:
    """Returns the work of a run, whatever its device."""
    fields = json.loads((folder / "configs" / f"{run.model}.json").read_text("utf-8"))
    fields = {key: value for key, value in fields.items() if key != "torch_dtype"} | {"attn_implementation": "eager"}
    model, inputs = hugging_face(
        fields, batch_size=run.batch, sequence_length=run.sequence, labels=run.phase == "train"
    )
    return estimate_layers(model, inputs, mode="training" if run.phase == "train" else "inference")


def predicted_ms(estimate: LayerEstimate, device: str) -> float:
    """Returns the milliseconds of all kernels, one after another."""
    forward, backward = estimate.microseconds(Hardware.named(device))
    return float(forward.sum() + backward.sum()) / 1000


def right_orders(rows: Sequence[tuple[ModelRun, float]]) -> tuple[int, int]:
    """Returns in how many pairs of devices the faster one is predicted, and the number of pairs.

    Pairs ran the same model, and differ by more than 10 %.
    """
    right = pairs = 0
    for i, (a, a_ms) in enumerate(rows):
        for b, b_ms in rows[i + 1 :]:
            if a[1:5] == b[1:5] and max(a.measured_ms, b.measured_ms) > 1.1 * min(a.measured_ms, b.measured_ms):
                pairs += 1
                right += (a.measured_ms < b.measured_ms) == (a_ms < b_ms)
    return right, pairs


def main(arguments: Sequence[str] | None = None) -> None:
    """Predicts, prints and stores every run."""
    parser = argparse.ArgumentParser(prog="python -m studies.kernels.models", description=__doc__)
    parser.add_argument("data", type=Path, help="folder of the measurements")
    parser.add_argument("--store", type=Path, required=True, help="the file to write")
    options = parser.parse_args(arguments)
    estimates: dict[tuple[str, str, int, int], LayerEstimate] = {}
    rows = []
    for run in read_runs(options.data):
        key = (run.model, run.phase, run.sequence, run.batch)
        if key not in estimates:
            estimates[key] = estimate_of(run, options.data)
        rows.append((run, predicted_ms(estimates[key], run.device)))
        print(*run, f"{rows[-1][1]:.1f}", f"{rows[-1][1] / run.measured_ms - 1:+.1%}", flush=True)
    right, pairs = right_orders(rows)
    errors = [abs(ms / run.measured_ms - 1) for run, ms in rows]
    store(
        options.store,
        "python -m studies.kernels.models data/neusight --store FILE",
        mean_error=round(sum(errors) / len(errors), 4),
        worst_error=round(max(errors), 4),
        right_orders=right,
        pairs=pairs,
        rows=[{**run._asdict(), "predicted_ms": round(ms, 2)} for run, ms in rows],
    )


if __name__ == "__main__":
    main()
