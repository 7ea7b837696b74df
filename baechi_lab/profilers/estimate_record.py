"""`OpGraph.info["estimate"]`: the hardware and constants of an estimate, and its possible error."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..graph.hardware import Hardware
from .generations import generation_named
from .precision import Precision
from .work import Kernel

_CPU_ERRORS = {"step": 0.50}
"""Mean relative error of steps on one processor core, see docs/estimates.md."""

HALF = "bf16 or fp16"
"""The name of a 16-bit type where a reader does not know which one it is."""


def estimate_record(
    kinds: Mapping[str, Hardware], precision: Precision, kernels: Iterable[Kernel], half: str = HALF
) -> dict[str, object]:
    """Returns the entry of `OpGraph.info` under "estimate", as JSON has it.

    `hardware` maps device kinds to names of hardware. `precision` is the chosen one; where none is chosen, that of most
    FLOPs of matrix products, with `half` as the name of 16-bit types. `constants` maps names of hardware to the constants of
    their generation, and to the devices that these were fitted on. `expected_error` maps names of hardware to mean relative
    errors by kind of kernel, and of whole models, on measured rows of the generation that were not fitted; it is empty for
    generations that were never measured.

    >>> rows = [Kernel(flops=8.0, matrix=True)]
    >>> estimate_record({"gpu": Hardware.named("v100")}, Precision(), rows)["precision"]
    'fp32'
    """
    return {
        "hardware": {kind: hardware.name for kind, hardware in kinds.items()},
        "precision": precision.name or main_precision(kernels, half),
        **({"gradients": precision.gradients} if precision.gradients else {}),
        "constants": {hardware.name: constants_of(hardware) for hardware in kinds.values()},
        "expected_error": {hardware.name: expected_error(hardware) for hardware in kinds.values()},
    }


def constants_of(hardware: Hardware) -> dict[str, float | str]:
    """Returns the constants of the hardware's generation and what they were fitted on; none for a plain roofline."""
    if not hardware.generation:
        return {}
    generation = generation_named(hardware.generation)
    return {"generation": generation.name, "fitted_on": generation.fitted_on, **generation.constants}


def expected_error(hardware: Hardware) -> dict[str, float]:
    """Returns the mean relative error of estimates for the hardware, by kind of kernel, and of whole models.

    >>> expected_error(Hardware.named("t4"))["linear"], expected_error(Hardware.named("b200"))
    (0.09, {})
    """
    if hardware.kind == "cpu":
        return dict(_CPU_ERRORS)
    return dict(_ERRORS.get(hardware.generation, {}))


_ERRORS = {
    row.pop("generation"): {kind: float(error) for kind, error in row.items() if error}
    for row in csv.DictReader(Path(__file__).with_name("expected_errors.csv").read_text(encoding="utf-8").splitlines())
}
"""Generation -> mean relative error by kind, of rows that were not fitted (`studies/results/kernels.json`, "half")."""


def describe_estimate(record: Mapping[str, Any]) -> dict[str, str]:
    """Returns an estimate's record in words.

    >>> describe_estimate({"precision": "tf32", "expected_error": {"v100": {"linear": 0.24, "bmm": 0.6}}})
    {'precision': 'tf32', 'expected error': 'v100: linear 24 %, bmm 60 %'}
    """
    errors = [
        f"{name}: "
        + (", ".join(f"{kernel} {share:.0%}".replace("%", " %") for kernel, share in each.items()) or "unknown")
        for name, each in record["expected_error"].items()
    ]
    return {"precision": str(record["precision"]), "expected error": "; ".join(errors)}


def main_precision(kernels: Iterable[Kernel], half: str = HALF) -> str:
    """Returns the precision of most FLOPs of matrix products; `half` is the name of 16-bit ones."""
    flops: dict[str, float] = {}
    for kernel in kernels:
        if kernel.matrix:
            flops[kernel.precision] = flops.get(kernel.precision, 0.0) + kernel.flops
    main = max(flops, key=lambda name: flops[name], default="fp32")
    return half if main == "fp16" else main
