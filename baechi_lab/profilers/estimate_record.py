"""`OpGraph.info["estimate"]`: what an estimate was made for, and how far off it may be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..graph.hardware import Hardware
from .precision import Precision
from .work import Kernel

_GPU_ERRORS = {"linear": 0.24, "bmm": 0.60, "softmax": 0.38, "layer norm": 0.46, "element-wise": 0.17}
"""Mean relative error by kind of kernel; the larger one of V100 and A100, nearly always too fast."""
_CPU_ERRORS = {"step": 0.50}
"""Mean relative error of steps on one processor core, see docs/estimates.md."""

HALF = "bf16 or fp16"
"""The name of a 16-bit type where a reader does not know which one it is."""


def estimate_record(
    kinds: Mapping[str, Hardware], precision: Precision, kernels: Iterable[Kernel], half: str = HALF
) -> dict[str, object]:
    """Returns the entry of `OpGraph.info` under "estimate", as JSON has it.

    `hardware` maps device kinds to names of hardware. `precision` is the chosen one; where none is chosen, that of most
    FLOPs of matrix products, with `half` as the name of 16-bit types. `expected_error` maps names of hardware to mean relative
    errors by kind of kernel; it is empty for hardware that was never compared with a measurement.

    >>> rows = [Kernel(flops=8.0, matrix=True)]
    >>> estimate_record({"gpu": Hardware.named("v100")}, Precision(), rows)["precision"]
    'fp32'
    """
    return {
        "hardware": {kind: hardware.name for kind, hardware in kinds.items()},
        "precision": precision.name or main_precision(kernels, half),
        **({"gradients": precision.gradients} if precision.gradients else {}),
        "expected_error": {hardware.name: expected_error(hardware) for hardware in kinds.values()},
    }


def expected_error(hardware: Hardware) -> dict[str, float]:
    """Returns the mean relative error of estimates for the hardware, by kind of kernel."""
    return dict({"gpu": _GPU_ERRORS, "cpu": _CPU_ERRORS}.get(hardware.kind, {}))


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
