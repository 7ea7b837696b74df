"""What each call of a trace computes and allocates, operator by operator, where tensors are fake.

One forward and backward pass runs under the same interception as a measured profile. A mode sees every ATen operator and
gives it to the call that is running, in the backward pass to the call whose autograd node is running; what runs between
calls goes to the one before. Memory is what a call's operators allocate beyond what is left at its end, as in a
measured profile; scratch memory within kernels is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ...torch.records import Trace
from ...torch.runtime.intercept import Frame
from ...torch.runtime.storage import storage_key, storages, tensor_bytes
from ...torch.runtime.tree import tensors
from ..roofline import Kernel
from .faking import Watching
from .kernels import kernel_bytes, kernel_of
from .layers import reached
from .memory import LOSS_KEY, MemoryWatch, temporary_peak
from .quantization import stored_bytes

_NOT_RUN = frozenset({"detach", "alias"})
"""What autograd does to tensors that it keeps; interception as well."""

Owner = tuple[str, int]
"""Phase, "f" or "b", and the index of a call."""


class Counter(Watching):
    """Kernels by owner, and the bytes that come (positive) and go (negative) while it watches."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: Owner | None = None
        self.rows: list[tuple[Owner, Kernel]] = []
        self.changes: list[int] = []
        self.alive: dict[int, weakref.finalize] = {}
        self.stored_share: dict[
            int, float
        ] = {}  # memory of quantized parameters -> stored bytes by bytes of their type

    def saw(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Count it, where somebody runs."""
        if self.owner is not None and runs(func):
            self.rows.append((self.owner, self.kernel_of(func, args, kwargs, out)))
            self._allocated(args, kwargs, out)

    def know_quantized(self, model: nn.Module) -> None:
        """Parameters that are stored in fewer bytes than their type has."""
        for p in (p for p in model.parameters() if hasattr(p, "stored_bytes")):
            self.stored_share[storage_key(p)] = stored_bytes(p) / tensor_bytes(p)

    def kernel_of(self, func: Any, args: Any, kwargs: Any, out: Any) -> Kernel:
        """The kernel of a call, which reads quantized parameters as they are stored."""
        return kernel_of(func, args, kwargs, out, self._stored_bytes if self.stored_share else kernel_bytes)

    def _stored_bytes(self, tensor: Any) -> int:
        return int(kernel_bytes(tensor) * self.stored_share.get(storage_key(tensor), 1.0))

    def _allocated(self, args: Any, kwargs: Any, out: Any) -> None:
        old = {storage_key(t) for t in tensors((args, kwargs))}
        for storage in (storage for tensor in tensors(out) for storage in storages(tensor)):
            key = storage._cdata
            if key not in old and key not in self.alive:
                self.changes.append(storage.nbytes())
                self.alive[key] = weakref.finalize(storage, self._freed, key, storage.nbytes())

    def _freed(self, key: int, size: int) -> None:
        del self.alive[key]
        self.changes.append(-size)


def runs(func: Any) -> bool:
    """Whether an operator counts as one that the model runs."""
    return func.namespace != "prim" and func.overloadpacket.__name__ not in _NOT_RUN


class WorkWatch(MemoryWatch):
    """The handler that says who is running, and what it allocates."""

    def __init__(self, model: nn.Module, found: Trace, training: bool, counter: Counter):
        super().__init__(model, found, training, cuda=False)
        self.counter = counter
        self.loss_of: tuple[int, ...] | None = None

    def call(self, frame: Frame, key: str, run: Callable[..., Any], args: Any, kwargs: Any, module: Any) -> Any:
        outputs = super().call(frame, key, run, args, kwargs, module)
        if key == LOSS_KEY:
            self.loss_of = reached(list(tensors(args)), outputs)
        return outputs

    def end(self, frame: Frame, outputs: Any) -> Any:
        """What runs until the backward pass reaches a call belongs to none."""
        self.counter.owner = None
        return outputs

    @contextmanager
    def window(self, phase: str, op: int) -> Iterator[None]:
        """What runs and is allocated from here on belongs to that op."""
        counter = self.counter
        counter.owner, start = ("f" if phase == "f" else "b", op), len(counter.changes)
        yield
        column = self.forward if phase == "f" else self.backward
        column[op] = max(column[op], temporary_peak(counter.changes[start:]))
        self.spanned(phase, op, start, len(counter.changes))
