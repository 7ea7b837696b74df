"""Shared parts of the readers of `torch.export` programs: a builder of programs, and open dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import InvalidInput
from ...torch_runtime.tree import Args, Kwargs, map_tensors, tensors
from ...torch_steps.tracing import output_shapes
from ..programs.records import Program, ProgramOp
from ..work import Kernel
from .fake_tensors import use_fused_kernels
from .kernels import kernel_of
from .recurrent import KINDS

if TYPE_CHECKING:
    from torch._ops import OpOverload


class _KernelRecorder(TorchDispatchMode):
    """Records the kernel of every operator that runs under it."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        self.kernels.append(kernel_of(func, args, kwargs or {}, out))
        return out


def _kernels(
    func: OpOverload, args: Args, kwargs: Kwargs, outputs: Sequence[torch.Tensor]
) -> tuple[tuple[Kernel, ...], str]:
    """Returns the kernels of a call, and why they are a guess (empty if they are none).

    The call runs on fake tensors of the CPU, as a model does in an estimate, so that both count the same kernels.
    """
    if func is not None:
        counting, mode = _KernelRecorder(), FakeTensorMode(allow_non_fake_inputs=True)
        with suppress(RuntimeError, TypeError, ValueError, IndexError, AssertionError), torch.no_grad(), mode:
            args, kwargs = map_tensors(
                (args, kwargs), lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu")
            )
            with use_fused_kernels(), counting:
                run = getattr(*_FUNCTIONS[func]) if func in _FUNCTIONS else func
                run(*args, **kwargs)
            return tuple(k for k in counting.kernels if not k.metadata) or (Kernel(metadata=True),), ""
    moved_bytes = sum(t.numel() * t.element_size() for t in (*tensors((args, kwargs)), *outputs))
    return (Kernel(moved_bytes=float(moved_bytes)),), "an operator that does not run on meta tensors"


_FUNCTIONS = {
    torch.ops.aten.scaled_dot_product_attention.default: (functional, "scaled_dot_product_attention"),
    torch.ops.aten.dropout.default: (functional, "dropout"),
    torch.ops.aten.rms_norm.default: (functional, "rms_norm"),
    **{getattr(torch.ops.aten, kind).input: (torch._VF, kind) for kind in KINDS},
}
"""Operators that GPUs run as one kernel, and the functions that `use_fused_kernels` replaces: module and name."""


class ProgramBuilder:
    """Builds a program op by op."""

    def __init__(self, name: str):
        self.name = name
        self.ops: list[ProgramOp] = []
        self.size: dict[str, int] = {}
        self.guessed: dict[int, str] = {}
        self.label_counts: dict[str, int] = {}

    def add(
        self,
        name: str,
        module: str,
        target: str,
        call: tuple[Any, Any, Any],
        reads: Sequence[str],
        outputs: Mapping[str, Any],
        detached: bool = False,
    ) -> None:
        """Adds a call.

        `call` is (function or None, arguments, keywords), `outputs` maps values to meta tensors; see `ProgramOp`.
        """
        if not outputs:  # a check of shapes or types
            return
        kernels, why = _kernels(*call, list(outputs.values()))
        if why:
            self.guessed[len(self.ops)] = why
        label = f"{module}/{name}" if module else name
        self.label_counts[label] = self.label_counts.get(label, 0) + 1
        label = label if self.label_counts[label] == 1 else f"{label}#{self.label_counts[label]}"
        op_type = target.removeprefix("torch.ops.")
        shapes = output_shapes(outputs.values())
        self.ops.append(
            ProgramOp(label, op_type, kernels, tuple(reads), tuple(outputs), output_shapes=shapes, detached=detached)
        )
        self.size.update({v: t.numel() * t.element_size() for v, t in outputs.items()})

    def program(self, parameters: Mapping[str, bool], outputs: Sequence[str]) -> Program:
        return Program(self.name, tuple(self.ops), self.size, parameters, tuple(outputs), guessed=self.guessed)


WRAPPERS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
"""Operators that run a graph of their own: the first graph among their arguments, on all arguments after it."""


def without_gradients(target: str, arguments: Sequence[object]) -> bool:
    """Whether a wrapper disables gradients, as `torch.no_grad` does."""
    return target.endswith(WRAPPERS[0]) and arguments[0] is False


class OpenSizes:
    """Open dimensions and the sizes that replace them, and the type that replaces floating-point types (None: as they are)."""

    def __init__(self, batch_size: int | None, sizes: Mapping[str, int], float_type: torch.dtype | None = None):
        self.batch_size, self.sizes, self.float_type = batch_size, dict(sizes), float_type
        self.size_of_symbol: dict[str, int] = {}

    def meta(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns a tensor without data."""
        if self.float_type is not None and dtype.is_floating_point and dtype.itemsize > 1:
            dtype = self.float_type
        return torch.empty(tuple(shape), dtype=dtype, device="meta")

    def of(self, size: object, value: str, position: int) -> int:
        """Returns a whole number for a size that may be a symbol or an expression of several."""
        if isinstance(size, int):
            return size
        import sympy

        expression = sympy.sympify(size.node.expr if hasattr(size, "node") else size)
        return int(expression.subs({s: self.symbol(str(s), value, position) for s in expression.free_symbols}))

    def symbol(self, label: str, value: str, position: int) -> int:
        """Returns the size of a symbol: by name, else the batch size if its first occurrence is a first dimension."""
        if label not in self.size_of_symbol:
            if label in self.sizes:
                self.size_of_symbol[label] = self.sizes[label]
            elif position == 0 and self.batch_size is not None:
                self.size_of_symbol[label] = self.batch_size
            else:
                how = (
                    "give batch_size (--batch-size)"
                    if position == 0
                    else f"give sizes={{{label!r}: ...}} (-p {label}=...)"
                )
                raise InvalidInput(
                    f"value {value!r:.80} has the open dimension {label!r:.80} at position {position}; {how}"
                )
        return self.size_of_symbol[label]


def innermost(stack: object) -> str:
    """Returns the innermost module of a call, by its path in the model."""
    if isinstance(stack, Mapping) and stack:
        return str(list(stack.values())[-1][0])
    if isinstance(stack, str) and stack:
        last = stack.split(";")[-1].split(",")
        return last[1] if len(last) > 1 else ""
    return ""
