"""`OpGraph.info["estimate"]`: the hardware and constants of an estimate, and its possible error."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..graph.hardware import Hardware
from ..graph.units import format_us
from .generations import generation_named
from .precision import Precision
from .work import Floats, Kernel

_CPU_ERRORS = {"step": 0.50}
"""Mean relative error of steps on one processor core, see docs/estimate-errors.md."""

HOST_OPERATOR_US = 23.0
"""Microseconds in which a host runs one operator of a PyTorch step that is not compiled, views among them: the model's Python,
dispatch and autograd. Median of ten passes of `transformers` models that waited for the host of an H200 (13 to 32 us)."""


def estimate_record(
    kinds: Mapping[str, Hardware], precision: Precision, kernels: Iterable[Kernel]
) -> dict[str, object]:
    """Returns the entry of `OpGraph.info` under "estimate", as JSON has it.

    Its field `hardware` maps device kinds to names of hardware. `precision` is the chosen one; if none is chosen, that of most
    FLOPs of matrix products. `constants` maps names of hardware to the constants of their generation, and to the devices that
    these were fitted on. `expected_error` maps names of hardware to mean relative errors by kind of kernel, and of whole
    models, on measured rows of the generation that were not fitted; it is empty for generations that were never measured.

    >>> rows = [Kernel(flops=8.0, matrix=True)]
    >>> estimate_record({"gpu": Hardware.named("v100")}, Precision(), rows)["precision"]
    'fp32'
    """
    return {
        "hardware": {kind: hardware.name for kind, hardware in kinds.items()},
        "precision": precision.name or main_precision(kernels),
        **({"gradients": precision.gradients} if precision.gradients else {}),
        "constants": {hardware.name: constants_of(hardware) for hardware in kinds.values()},
        "expected_error": {hardware.name: expected_error(hardware) for hardware in kinds.values()},
    }


def host_record(
    operators: int, kinds: Mapping[str, Hardware], duration_by_kind: Mapping[str, Floats]
) -> dict[str, dict[str, Any]]:
    """Returns the entry "host" of the record: the time of a host that runs a PyTorch step operator by operator; none on a CPU.

    The durations of a graph are those of kernels. If `us` is more than `kernels_us`, a step takes about `us`, unless it is
    compiled or replayed as a CUDA graph. Kernels of updates are among those of the graph, their operators are not counted.

    Args:
        operators: number of operators, views among them.
        kinds, duration_by_kind: device kind -> hardware, and float64[ops] the microseconds of the graph's ops there.

    >>> import numpy as np
    >>> host_record(100, {"gpu": Hardware.named("h100")}, {"gpu": np.array([300.0, 400.0])})
    {'host': {'operators': 100, 'us': 2300.0, 'kernels_us': {'h100': 700.0}}}
    """
    kernels_us = {
        hardware.name: round(float(duration_by_kind[kind].sum()), 1)
        for kind, hardware in kinds.items()
        if hardware.launches_hidden
    }
    if not kernels_us:
        return {}
    return {"host": {"operators": operators, "us": operators * HOST_OPERATOR_US, "kernels_us": kernels_us}}


def constants_of(hardware: Hardware) -> dict[str, float | str]:
    """Returns the constants of the hardware's generation, and the devices that they were fitted on; none for a roofline."""
    if not hardware.generation:
        return {}
    generation = generation_named(hardware.generation)
    return {"generation": generation.name, "fitted_on": generation.fitted_on, **generation.constants}


def expected_error(hardware: Hardware) -> dict[str, float]:
    """Returns the mean relative error of estimates for the hardware, by kind of kernel, and of whole models.

    >>> expected_error(Hardware.named("t4"))["linear"], expected_error(Hardware.named("mi300x"))
    (0.09, {})
    """
    if hardware.kind == "cpu":
        return dict(_CPU_ERRORS)
    return dict(_ERRORS.get(hardware.generation, {}))


_ERRORS = {
    row.pop("generation"): {kind: float(error) for kind, error in row.items() if error}
    for row in csv.DictReader(Path(__file__).with_name("expected_errors.csv").read_text(encoding="utf-8").splitlines())
}
"""Generation -> mean relative error by kind of kernel, of rows that were not fitted (`studies/results/kernels.json`, "half"; for
Blackwell largest products, `kernel_products.json`), and of whole models: the largest of the means of three studies
(`kernel_models.json`, `kernel_training.json`, and training in the worst precision on Hopper, `gpu.json`)."""


def describe_estimate(record: Mapping[str, Any]) -> dict[str, str]:
    """Returns an estimate's record in words.

    >>> describe_estimate({"precision": "tf32", "expected_error": {"v100": {"linear": 0.24, "bmm": 0.6}}})
    {'precision': 'tf32', 'expected error': 'v100: linear 24%, bmm 60%'}
    >>> host = {"operators": 100, "us": 2300.0, "kernels_us": {"h100": 700.0}}
    >>> describe_estimate({"precision": "fp32", "expected_error": {}, "host": host})["host"]
    '2.30 ms for 100 operators, unless compiled; h100 waits for it: its kernels take 700.00 us'
    """
    errors = [
        f"{name}: " + (", ".join(f"{kernel} {share:.0%}" for kernel, share in error_by_kernel.items()) or "unknown")
        for name, error_by_kernel in record["expected_error"].items()
    ]
    description = {"precision": str(record["precision"]), "expected error": "; ".join(errors)}
    if host := record.get("host"):
        waiting_hardware = [
            f"{name} waits for it: its kernels take {format_us(us)}"
            for name, us in host["kernels_us"].items()
            if us < host["us"]
        ]
        host_time = f"{format_us(host['us'])} for {host['operators']} operators, unless compiled"
        description["host"] = "; ".join((host_time, *waiting_hardware))
    return description


def main_error_in_words(error_by_kind: Mapping[str, float]) -> str:
    """Returns the expected error of whole models in words, else that of steps or of the first kind of kernel.

    >>> main_error_in_words({"linear": 0.09, "model": 0.16}), main_error_in_words({"linear": 0.13}), main_error_in_words({})
    ('mean error 16%', 'mean error of linear 13%', 'error unknown')
    """
    if not error_by_kind:
        return "error unknown"
    kind = next((kind for kind in ("model", "step") if kind in error_by_kind), next(iter(error_by_kind)))
    of_kind = "" if kind in ("model", "step") else f" of {kind}"
    return f"mean error{of_kind} {error_by_kind[kind]:.0%}"


def main_precision(kernels: Iterable[Kernel]) -> str:
    """Returns the precision of most FLOPs of matrix products."""
    flops: dict[str, float] = {}
    for kernel in kernels:
        if kernel.matrix:
            flops[kernel.precision] = flops.get(kernel.precision, 0.0) + kernel.flops
    return max(flops, key=lambda name: flops[name], default="fp32")
