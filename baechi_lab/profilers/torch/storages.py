"""What is alive in memory while a step runs: storages, followed from the op that makes them to the last reference.

A dispatch mode sees every tensor that an operator of torch returns, in the backward pass too; a weak reference tells when
its storage goes. Counted are the bytes of storages, each once however many views it has, not the allocator's rounding.
Scratch of kernels, which never becomes a tensor, is read from the events of the CPU's allocator (`scratch`). A storage
belongs to the device whose call runs in the thread that makes it. What is made outside of calls (the update of
parameters) lies where what it is made from lies, as between devices with memory of their own; part by part where an operator
takes a list and returns one; on `home` where nothing is known of what it is made from.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from ...torch.runtime.tree import tensors
from .memory import windows

_LABEL = "baechi operator "

CLAIMED = -2
"""Op of what no call made and a call has taken."""


@dataclass
class Held:
    """One storage: where, how many bytes, made by which op (-1 for none), and from when to when in nanoseconds of the host."""

    device: int
    size: int
    op: int
    start_ns: int
    end_ns: int = -1
    persistent: bool = False
    received: bool = False
    label: int = -1


class Storages:
    """Follows storages; `held` lists all that it has seen, in order.

    >>> following = Storages()
    >>> with following.mode():
    ...     y = torch.ones(4) * 2
    >>> [held.size for held in following.held]      # the ones are gone, the product is alive
    [16, 16]
    >>> [held.end_ns >= 0 for held in following.held]
    [True, False]
    """

    def __init__(self, home: int = 0):
        self.home = home
        self.held: list[Held] = []
        self.lock = threading.RLock()
        self.local = threading.local()
        self.alive: dict[int, tuple[Any, Held]] = {}
        self.ran: list[Held] = []

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Around what is to be followed: the most that each operator of this thread took is held while it runs."""
        # acc_events avoids a warning of recent versions about dropping events between cycles
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
            yield
        for k, changes in windows(profiler, _LABEL):
            peak = max(0, *accumulate(changes, initial=0))
            if peak > max(sum(changes), 0):
                self.ran[k].size = peak
                self.held.append(self.ran[k])

    def keep(self, kept: Iterable[torch.Tensor]) -> None:
        """What is followed and alive becomes persistent, from when it was made."""
        for tensor in kept:
            if _has_storage(tensor) and (known := self.alive.get(tensor.untyped_storage()._cdata)) is not None:
                known[1].persistent = True

    def claim(self, taken: Iterable[torch.Tensor], device: int) -> None:
        """What no call made (masks, positions) is on the device whose call takes it first."""
        for tensor in taken:
            known = self.alive.get(tensor.untyped_storage()._cdata) if _has_storage(tensor) else None
            if known is not None and known[1].op < 0 and not (known[1].persistent or known[1].received):
                known[1].device, known[1].op = device, CLAIMED

    def running(self, taken: Any) -> Held:
        """An operator that starts now with some arguments; its place in `ran` is its label."""
        op = getattr(self.local, "op", -1)
        device = self.local.device if op >= 0 else self.lying(taken)
        with self.lock:
            self.ran.append(Held(device, 0, op, time.perf_counter_ns(), label=len(self.ran)))
            return self.ran[-1]

    def mode(self) -> TorchDispatchMode:
        """A mode to enter around what is to be followed, once per thread."""
        return _Following(self)

    def call(self, op: int, device: int) -> None:
        """Calls of `op` on `device` run in this thread from now on; -1 for none."""
        self.local.op, self.local.device = op, device

    def lying(self, taken: Any) -> int:
        """The device of the largest followed storage among what is taken; `home` where none is."""
        known = [self.alive.get(t.untyped_storage()._cdata) for t in tensors(taken) if _has_storage(t)]
        held = [row[1] for row in known if row is not None and row[0]() is not None]
        return max(held, key=lambda row: row.size).device if held else self.home

    def ran_to(self, outputs: Any, taken: Any) -> None:
        """Follow what an operator made."""
        if getattr(self.local, "op", -1) >= 0:
            self.add(tensors(outputs))
            return
        lists = [part for part in taken if isinstance(part, (tuple, list)) and any(True for _ in tensors(part))]
        if isinstance(outputs, (tuple, list)) and lists and len(lists[0]) == len(outputs):
            for made, given in zip(outputs, lists[0], strict=True):
                self.add(tensors(made), self.lying(given))
        else:
            self.add(tensors(outputs), self.lying(taken))

    def add(
        self,
        made: Iterable[torch.Tensor],
        device: int | None = None,
        persistent: bool = False,
        received: bool = False,
    ) -> None:
        """Follow the storages of tensors that are not followed yet."""
        op, here = getattr(self.local, "op", -1), getattr(self.local, "device", self.home)
        for tensor in made:
            if not _has_storage(tensor):
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata
            with self.lock:
                known = self.alive.get(key)
                if known is not None and known[0]() is not None:
                    continue
                held = Held(
                    here if device is None else device, storage.nbytes(), op, time.perf_counter_ns(), -1, persistent,
                    received,
                )  # fmt: skip
                self.held.append(held)
                self.alive[key] = weakref.ref(storage, partial(_gone, held)), held


def _gone(held: Held, _: Any) -> None:
    held.end_ns = time.perf_counter_ns()


class _Following(TorchDispatchMode):
    def __init__(self, storages: Storages):
        super().__init__()
        self.storages = storages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        held = self.storages.running((args, kwargs))
        with record_function(f"{_LABEL}{held.label}"):
            outputs = func(*args, **(kwargs or {}))
        held.end_ns = time.perf_counter_ns()
        self.storages.ran_to(outputs, args)
        return outputs


def _has_storage(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
