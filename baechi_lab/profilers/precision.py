"""Precision: how an estimate stores and multiplies floating-point numbers; one rule and one option for all readers.

Every number has the type that the model, graph or file gives it. Products of float32 numbers, convolutions among them, run
in full float32. Frameworks differ here (TensorFlow and ONNX Runtime use TF32 by default, PyTorch for convolutions only), so
that an estimate follows none of their switches. The option `precision` chooses otherwise:

| name | weights and activations | products of float32 | kept beside weights, for training |
|---|---|---|---|
| `fp32` | float32 | full float32 | |
| `tf32` | float32 | TF32 | |
| `bf16`, `fp16` | all in it | | |
| `mixed-bf16`, `mixed-fp16` | all in it | | float32 master weights, optimizer states in float32 |

Gradients of parameters have the type of the weights. In mixed precision they have the type that the option `gradients`
names: by default float32 for `mixed-bf16`, which Megatron-LM accumulates in (18 bytes per parameter with Adam), and float16
for `mixed-fp16` (16 bytes: S. Rajbhandari et al., "ZeRO", 2020, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..errors import InvalidInput, UnknownNameError, in_short
from ..graph.hardware import PRECISIONS
from .work import Kernel, Work

NAMES = ("fp32", "tf32", "bf16", "fp16", "mixed-bf16", "mixed-fp16")
"""What the option `precision` may be."""

MODES = ("measured", "estimated")
MIXED = "mixed-"
_ALIASES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
_HALF = ("bf16", "fp16")


@dataclass(frozen=True)
class Precision:
    """A choice of precision: `name` is one of `NAMES`, or empty for the types that the model has.

    `gradients` is the type of parameters' gradients in mixed precision, and empty otherwise.

    >>> Precision.of("mixed-bf16"), Precision.of("BFloat16").dtype
    (Precision(name='mixed-bf16', gradients='fp32'), 'bf16')
    """

    name: str = ""
    gradients: str = ""

    @classmethod
    def of(cls, precision: object = None, gradients: object = None) -> Precision:
        """Returns the choice that two options name, in any case; None leaves the types as they are.

        Raises:
            UnknownNameError: no precision of that name.
            InvalidInput: `gradients` without mixed precision, or another type than float32 and that of the weights.
        """
        if isinstance(precision, Precision):
            return cls.of(precision.name or None, precision.gradients or gradients)
        name = "" if precision is None else _plain(precision)
        if gradients is not None and not isinstance(gradients, str):
            raise InvalidInput(f"gradients is {in_short(gradients)}; it must name a type, such as 'fp32', or be None")
        if name and name not in NAMES:
            raise UnknownNameError.of("precision", precision, NAMES)
        if not name.startswith(MIXED):
            if gradients:
                raise InvalidInput(
                    f"gradients is {in_short(gradients)} and precision {name or None!r}; gradients have the type of the weights "
                    "unless precision is mixed-bf16 or mixed-fp16"
                )
            return cls(name)
        half = name.removeprefix(MIXED)
        type_name = ("fp32" if half == "bf16" else half) if gradients is None else _plain(gradients)
        if type_name not in ("fp32", half):
            raise InvalidInput(f"gradients is {in_short(gradients)}; with precision {name!r} it must be fp32 or {half}")
        return cls(name, type_name)

    @property
    def is_mixed(self) -> bool:
        """Whether float32 master weights are kept beside the weights."""
        return self.name.startswith(MIXED)

    @property
    def dtype(self) -> str | None:
        """The type of all weights and activations: "fp32", "bf16" or "fp16"; None leaves them as they are."""
        name = self.name.removeprefix(MIXED)
        return name if name in _HALF else "fp32" if name else None

    @property
    def gradient_share(self) -> int:
        """Bytes of a parameter's gradient per byte of the parameter: 2 for float32 gradients of 16-bit weights."""
        return 2 if self.is_mixed and self.gradients == "fp32" else 1

    def state_share(self, states: int) -> int:
        """Bytes that the optimizer keeps per byte of a parameter, master weights among them.

        Args:
            states: tensors of a parameter's size that the optimizer keeps (SGD 0, momentum 1, Adam 2).

        >>> [2 * (1 + p.gradient_share + p.state_share(2)) for p in (Precision.of("mixed-bf16"), Precision.of("mixed-fp16"))]
        [18, 16]
        """
        return 2 * (1 + states) if self.is_mixed else states

    def update_share(self, states: int) -> int:
        """Bytes that an update moves per byte of a parameter: it reads gradients, reads and writes states and weights.

        In mixed precision it reads and writes master weights, and writes the weights.

        >>> Precision().update_share(2), Precision.of("mixed-bf16").update_share(2)    # 28 of 4 bytes, 30 of 2 bytes
        (7, 15)
        """
        return 1 + self.gradient_share + 2 * self.state_share(states) if self.is_mixed else 3 + 2 * states

    def kernel(self, kernel: Kernel) -> Kernel:
        """Returns the kernel with products of float32 numbers in TF32, if that is chosen.

        Fused attention and depthwise convolutions of float32 numbers have no such kernels.
        """
        if self.name != "tf32":
            return kernel
        is_float32_product = kernel.matrix and kernel.precision == "fp32" and not kernel.vector_flops
        precision = "tf32" if is_float32_product else kernel.precision
        followed_by = None if kernel.followed_by is None else self.kernel(kernel.followed_by)
        return replace(kernel, precision=precision, followed_by=followed_by)

    def work(self, work: Work) -> Work:
        """Returns the work with products of float32 numbers in TF32, if that is chosen."""
        if self.name != "tf32":
            return work
        is_float32_product = work.matrix & (work.precision == PRECISIONS.index("fp32")) & (work.vector_flops == 0)
        return replace(work, precision=np.where(is_float32_product, PRECISIONS.index("tf32"), work.precision))


def _plain(name: object) -> str:
    text = str(name).lower().removeprefix("torch.").replace("_", "-")
    half = text.removeprefix(MIXED)
    return text.removesuffix(half) + _ALIASES.get(half, half)


def profile_mode(mode: str | None, hardware: object, precision: object = None, is_program: bool = False) -> str:
    """Returns "measured" or "estimated"; with a mode of None, named hardware, a precision and a program are estimated.

    Raises:
        UnknownNameError: another mode.
        InvalidInput: hardware or a precision with "measured".

    >>> profile_mode(None, None), profile_mode(None, "h100")
    ('measured', 'estimated')
    """
    if mode is None:
        return "measured" if hardware is None and precision is None and not is_program else "estimated"
    if not isinstance(mode, str) or mode not in MODES:
        raise UnknownNameError.of("profile mode", mode, MODES)
    for field, value in (("hardware", hardware), ("precision", precision)):
        if mode == "measured" and value is not None:
            raise InvalidInput(
                f"mode is 'measured' and {field} is {in_short(value)}; a measurement is of this machine: leave {field} out, or "
                "let mode be 'estimated'"
            )
    return mode
