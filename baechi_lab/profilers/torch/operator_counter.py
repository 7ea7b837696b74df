"""Counts the work and the allocations of each call of a trace, operator by operator, on fake tensors.

One forward and backward pass runs under the same interception as a measured profile. A dispatch mode sees every ATen operator
and assigns it to the running call; in the backward pass to the call whose autograd node is running. Operators between calls
belong to the preceding call. As in a measured profile, temporary memory is what a call's operators allocate beyond what
remains at its end. Of the scratch memory within kernels, only that of forward convolutions on matrix units counts: copies of
their tensors in another order.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...torch_runtime.intercept import Frame
from ...torch_runtime.storage import storage_key, storages, tensor_bytes
from ...torch_runtime.tree import Args, Function, Kwargs, tensors
from ...torch_steps.records import Trace
from ..precision import Precision
from ..work import Kernel
from .fake_tensors import OperatorObserver
from .kernels import kernel_bytes, kernel_of
from .layers import find_loss_outputs
from .memory import LOSS_KEY, MemoryWatch, temporary_peak
from .quantization import stored_bytes

if TYPE_CHECKING:
    from torch._ops import OpOverload

_CONVOLUTION = torch.ops.aten.convolution.default
_NOT_RUN = frozenset({"detach", "alias"})
"""Operators that autograd and the interception apply to retained tensors."""

PhaseCall = tuple[str, int]
"""Phase ("f" or "b") and index of a call."""


class Counter(OperatorObserver):
    """Kernels by owner, and allocated (positive) and freed (negative) bytes in order."""

    def __init__(self, precision: Precision | None = None, on_cpu: bool = False) -> None:
        super().__init__()
        self.precision, self.on_cpu = precision or Precision(), on_cpu
        self.owner: PhaseCall | None = None
        self.is_ended = False  # True after the forward pass
        self.rows: list[tuple[PhaseCall, Kernel]] = []
        self.changes: list[int] = []
        self.alive: dict[int, weakref.finalize] = {}
        # memory of quantized parameters -> stored bytes by bytes of their type
        self.stored_share: dict[int, float] = {}

    def observe(self, func: OpOverload, args: Args, kwargs: Kwargs, out: object) -> None:
        if self.owner is not None and is_model_operator(func):
            kernel = self.precision.kernel(self.kernel_of(func, args, kwargs, out))
            self.rows.append((self.owner, kernel))
            input_storages = {storage_key(t) for t in tensors((args, kwargs))}
            for storage in (storage for tensor in tensors(out) for storage in storages(tensor)):
                key = storage._cdata
                if key not in input_storages and key not in self.alive:
                    self.changes.append(storage.nbytes())
                    self.alive[key] = weakref.finalize(storage, self._record_release, key, storage.nbytes())
            is_copied = kernel.layout_bytes >= 2 * kernel.moved_bytes and not kernel.vector_flops
            if func is _CONVOLUTION and is_copied and kernel.precision != "fp32" and not self.on_cpu:
                self.changes += [int(kernel.moved_bytes), -int(kernel.moved_bytes)]

    def know_quantized(self, model: nn.Module) -> None:
        """Registers parameters that are stored in fewer bytes than their type has."""
        for p in (p for p in model.parameters() if hasattr(p, "stored_bytes")):
            self.stored_share[storage_key(p)] = stored_bytes(p) / tensor_bytes(p)

    def kernel_of(self, func: OpOverload, args: Args, kwargs: Kwargs, out: object) -> Kernel:
        """Returns the kernel of a call, which reads quantized parameters as they are stored."""
        return kernel_of(func, args, kwargs, out, self._stored_bytes if self.stored_share else kernel_bytes)

    def _stored_bytes(self, tensor: torch.Tensor) -> int:
        return int(kernel_bytes(tensor) * self.stored_share.get(storage_key(tensor), 1.0))

    def _record_release(self, key: int, size: int) -> None:
        del self.alive[key]
        self.changes.append(-size)


def is_model_operator(func: OpOverload) -> bool:
    """Whether an operator counts as one that the model runs."""
    return func.namespace != "prim" and func.overloadpacket.__name__ not in _NOT_RUN


class WorkWatch(MemoryWatch):
    """The handler that passes the running call to the counter, and measures its allocations."""

    def __init__(self, model: nn.Module, trace: Trace, training: bool, counter: Counter):
        super().__init__(model, trace, training, cuda=False)
        self.counter = counter
        self.loss_of: tuple[int, ...] | None = None

    def call(self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module) -> object:
        outputs = super().call(frame, key, run, args, kwargs, module)
        if key == LOSS_KEY:
            self.loss_of = find_loss_outputs(list(tensors(args)), outputs)
        return outputs

    def end(self, frame: Frame, outputs: object) -> object:
        """Assigns what runs until the backward pass reaches a call to no call."""
        self.counter.owner, self.counter.is_ended = None, True
        return outputs

    @contextmanager
    def window(self, phase: str, op: int) -> Iterator[None]:
        """Assigns what runs and is allocated within the context to `op`."""
        counter = self.counter
        counter.owner, start = ("f" if phase == "f" else "b", op), len(counter.changes)
        yield
        self.add_temporary(phase, op, temporary_peak(counter.changes[start:]))
        self.add_window(phase, op, start, len(counter.changes))
