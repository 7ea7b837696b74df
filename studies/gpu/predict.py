"""Compares the estimates with what layers and whole models took on a GPU.

    python -m studies.gpu.predict h200 MEASURED.json ... --store studies/results/gpu.json

The files are those of `studies.gpu.measure`; of rows that several have, the last counts. Estimated times of kernels are compared
with the sum of the kernels' times, or with their number times a launch where that is longer: on the measured machine the host
needed 13 us per operator, which no estimate can know, so that small steps took longer than their kernels. Peaks are compared with
those of PyTorch's allocator. Constants of `profilers` that say "measured on an H200" come from these layers. Two come from
models: windows of wav2vec 2.0 (`LONG_WINDOW_SHARE`), and groups of RegNet-Y in inference (`GROUPS_FP32_SHARE`).
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

import baechi_lab as bl
from baechi_lab.graph.hardware import Hardware
from baechi_lab.profilers.kernel_model import estimated_us
from baechi_lab.profilers.torch.layer_estimate import estimate_layers
from baechi_lab.profilers.work import work_of
from studies.gpu.cases import layers, models
from studies.gpu.measure import PRECISIONS
from studies.results import store

LAYER_KEYS, MODEL_KEYS = ("kind", "sizes", "precision", "phase"), ("model", "precision", "phase")
Rows = dict[tuple[str, ...], dict[str, Any]]


def read_rows(paths: Sequence[Path], section: str, keys: Sequence[str]) -> Rows:
    """Returns the measured rows by their keys."""
    rows: Rows = {}
    for path in paths:
        for row in json.loads(path.read_text("utf-8"))[section]:
            rows[tuple(row[key] for key in keys)] = {key: value for key, value in row.items() if key != "longest"}
    return rows


def error_of(predicted_us: float, row: dict[str, Any], hardware: Hardware) -> float:
    """Returns the relative error of estimated kernels, which take a launch each at least."""
    return predicted_us / max(min(row["kernel_us"], row["us"]), hardware.launch_us * row["kernels"]) - 1


def layer_rows(measured_rows: Rows, hardware: Hardware) -> Iterator[dict[str, Any]]:
    """Estimates every measured layer, without the start of the first kernel."""
    for layer in layers():
        with torch.device("meta"):
            module, inputs = layer.build()
        for precision in PRECISIONS:
            for mode in ("inference", "training"):
                row = measured_rows.get((layer.kind, layer.sizes, precision, mode))
                if row is not None:
                    kernels = [k for _, k in estimate_layers(module, inputs, mode=mode, precision=precision).kernels]
                    work = work_of(len(kernels), enumerate(kernels))
                    predicted_us = float(estimated_us(work, hardware, follows=True).sum())
                    error = error_of(predicted_us, row, hardware)
                    yield {**row, "predicted_us": round(predicted_us, 1), "error": round(error, 3)}


def model_rows(measured_rows: Rows, hardware: Hardware) -> Iterator[dict[str, Any]]:
    """Estimates every measured model: its kernels, and the peak of its memory on one device."""
    cluster = bl.Cluster.uniform(1, kind=hardware.name)
    for case in models():
        model, inputs = bl.torch.hugging_face(dict(case.fields), batch_size=case.batch, sequence_length=case.sequence)
        for precision, mode in product(PRECISIONS, ("inference", "training")):
            of_mode = ("inference",) if mode == "inference" else ("training", "step")
            phases = [phase for phase in of_mode if (case.name, precision, phase) in measured_rows]
            if not phases:
                continue
            estimate = estimate_layers(model, inputs, mode=mode, precision=precision)
            for phase in phases:
                row = measured_rows[case.name, precision, phase]
                graph = estimate.graph({hardware.name: hardware}, optimizer="adamw" if phase == "step" else None)
                timeline = bl.simulate(graph, cluster, bl.place(graph, cluster, "single"))
                predicted_us, predicted_bytes = float(timeline.makespan_us), int(timeline.peak_bytes[0])
                error = error_of(predicted_us, row, hardware)
                peak_error = predicted_bytes / row["peak_bytes"] - 1
                numbers = {"predicted_us": round(predicted_us, 1), "predicted_bytes": predicted_bytes}
                yield {**row, **numbers, "error": round(error, 3), "peak_error": round(peak_error, 3)}


def mean_errors(rows: Sequence[dict[str, Any]], keys: Sequence[str], error: str = "error") -> dict[str, float]:
    """Returns the mean absolute error by the values of `keys`."""
    groups = defaultdict(list)
    for row in rows:
        groups[" ".join(row[key] for key in keys)].append(abs(row[error]))
    return {key: round(sum(errors) / len(errors), 3) for key, errors in groups.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Estimates, prints and stores every row."""
    parser = argparse.ArgumentParser(prog="python -m studies.gpu.predict", description=__doc__)
    parser.add_argument("hardware", help="its name in the catalog")
    parser.add_argument("measured", type=Path, nargs="+", help="files of studies.gpu.measure")
    parser.add_argument("--store", type=Path, required=True, help="the file to write")
    options = parser.parse_args(arguments)
    hardware = Hardware.named(options.hardware)
    layers_measured = read_rows(options.measured, "layers", LAYER_KEYS)
    models_measured = read_rows(options.measured, "models", MODEL_KEYS)
    layer_table, model_table = list(layer_rows(layers_measured, hardware)), list(model_rows(models_measured, hardware))
    contents = [json.loads(path.read_text("utf-8")) for path in options.measured]
    products = [row for content in contents for row in content.get("products", [])]
    summary = {
        "layers": mean_errors(layer_table, ("kind", "precision", "phase")),
        "models": mean_errors(model_table, ("precision", "phase")),
        "peaks": mean_errors(model_table, ("precision", "phase"), "peak_error"),
    }
    print(json.dumps(summary, indent=1))
    store(
        options.store,
        f"python -m studies.gpu.predict {options.hardware} MEASURED.json --store FILE",
        gpu=contents[0]["gpu"],
        torch=contents[0]["torch"],
        measured=contents[0]["date"],
        mean_errors=summary,
        products=products,
        copies=contents[0].get("copies", []),
        layers=layer_table,
        models=model_table,
    )


if __name__ == "__main__":
    main()
