"""Deferred tensors: stand-ins for the outputs of a layer that waits for its turn.

Idea: a tensor subclass has the shape, dtype and device of the output and no data. Layers and functions that are deferred
themselves pass it on. All other code that reads it makes the host wait for the layer (see `Session`). The paper returns
`None` here (its limitation 2). With a stand-in, Python code between layers runs unchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from ..errors import ExecutionError
from .tree import Args, Function, Kwargs, T, map_tensors, tensors

_PROPERTIES = "shape dtype device ndim is_cuda"
_METHODS = "size dim numel __len__ ndimension nelement is_floating_point is_complex element_size"
METADATA_FUNCTIONS = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in _PROPERTIES.split()]
    + [getattr(torch.Tensor, name) for name in _METHODS.split()]
    + [torch.is_floating_point, torch.is_complex, torch.numel, torch.is_tensor]
)
"""What a stand-in can tell without data."""


class Future:
    """The outputs of one deferred call, set once by its thread. `ops` are all waiting calls that they depend on."""

    __slots__ = ("done", "error", "gate", "leaves", "lock", "op", "ops", "pull")

    def __init__(self, gate: Any, op: int, arguments: object, pull: Callable[[], object] | None = None):
        self.gate, self.op, self.pull = gate, op, pull
        own_op = frozenset() if op < 0 else frozenset([op])
        self.ops: frozenset[int] = own_op.union(*(t.future.ops for t in deferred_tensors(arguments)))
        self.leaves: list[torch.Tensor] = []
        self.error: BaseException | None = None
        self.done = threading.Event()
        self.lock = threading.Lock()

    def set(self, outputs: object) -> None:
        """Stores the outputs of the call."""
        self.leaves = list(tensors(outputs))
        self.done.set()

    def fail(self, error: BaseException) -> None:
        """Stores the error of the call. Whoever asks for the outputs gets this error."""
        self.error = error
        self.done.set()

    @property
    def coming(self) -> bool:
        """Whether the outputs will be there without further action of the host."""
        return self.done.is_set() or self.gate.free or all(self.gate.settled_ops[op] for op in self.ops)

    def get(self) -> list[torch.Tensor]:
        """Waits for the outputs and returns them. A view of deferred data is computed by the first thread that asks."""
        if self.pull is not None:
            with self.lock:
                if not self.done.is_set():
                    self.set(self.pull())
        self.done.wait()
        if self.error is not None:
            raise self.error
        return self.leaves


class Deferred(torch.Tensor):
    """Stands for output `position` of `future`. `on_function` handles functions of it."""

    future: Future
    position: int
    on_function: Function

    @staticmethod
    def make(spec: Spec, future: Future, position: int, on_function: Function) -> Deferred:
        """Creates a stand-in with the shape, dtype and device of `spec`."""
        stand_in: Deferred = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            Deferred, spec.shape, dtype=spec.dtype, device=spec.device
        )
        stand_in.future, stand_in.position, stand_in.on_function = future, position, on_function
        return stand_in

    @property
    def value(self) -> torch.Tensor:
        """The tensor itself; waits until it is there."""
        return self.future.get()[self.position]

    @classmethod
    def __torch_function__(cls, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> object:
        stand_in = next(t for t in tensors((args, kwargs)) if isinstance(t, Deferred))
        return stand_in.on_function(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(
        cls, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        """Handles code that bypasses `__torch_function__`. Such code runs below autograd, which has not seen it."""
        arguments = resolve((args, kwargs or {}))
        if any(t.requires_grad for t in tensors(arguments)):
            raise ExecutionError(
                f"{func} was called, by code that torch's Python functions do not see, on the outputs of a layer that waits "
                "for its turn, so gradients would be lost; distribute the model with reorder='none'"
            )
        return func(*arguments[0], **arguments[1])


def resolve(value: T) -> T:
    """Replaces every deferred tensor of a structure by the tensor itself, waiting where needed."""
    return map_tensors(value, lambda t: t.value if isinstance(t, Deferred) else t)


def deferred_tensors(value: object) -> list[Deferred]:
    """Returns the deferred tensors in `value`."""
    return [t for t in tensors(value) if isinstance(t, Deferred)]


def defer(outputs: object, future: Future, on_function: Callable[..., object]) -> object:
    """Replaces every `Spec` of a structure by a stand-in."""
    position = -1

    def fill(value: object) -> object:
        nonlocal position
        if type(value) is Spec:
            position += 1
            return Deferred.make(value, future, position, on_function)
        if isinstance(value, tuple):
            entries = [fill(v) for v in value]
            return tuple.__new__(type(value), entries) if hasattr(value, "_fields") else type(value)(entries)
        if isinstance(value, list):
            return [fill(v) for v in value]
        return {k: fill(v) for k, v in value.items()} if isinstance(value, dict) else value

    return fill(outputs)


class Spec:
    """Shape, dtype and device of a tensor before it is computed."""

    __slots__ = ("device", "dtype", "shape")

    def __init__(self, tensor: torch.Tensor):
        self.shape, self.dtype, self.device = tuple(tensor.shape), tensor.dtype, tensor.device

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` has this shape and dtype."""
        return tuple(tensor.shape) == self.shape and tensor.dtype == self.dtype


def spec_of(outputs: object) -> object:
    """Replaces every tensor of `outputs` by its `Spec`. Returns None if something in it is known only after computing it."""
    return map_tensors(outputs, Spec) if _deferrable(outputs) else None


def _deferrable(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_deferrable(v) for v in value)
    if isinstance(value, dict):
        return type(value) is dict and all(_deferrable(v) for v in value.values())
    return value is None or (isinstance(value, torch.Tensor) and not value.is_nested)
