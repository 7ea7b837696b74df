"""What is alive in memory while a step runs: storages, followed from the op that makes them to the last reference.

A dispatch mode sees every tensor that an operator of torch returns, in the backward pass too. Counted are the bytes of
storages, each once however many views it has, not the allocator's rounding. When a storage goes is told by a weak reference,
or by the events of the CPU's allocator (`from_events`). There a storage is known by its address alone: autograd adds up
gradients in place only where nobody else refers to their storage, and Python's object of it does. The events also tell of
scratch of kernels, which never becomes a tensor, and of what is allocated in the backward pass between two nodes, as sums of
gradients are. A storage
belongs to the device whose call runs in the thread that makes it. What is made outside of calls (the update of
parameters) lies where what it is made from lies, as between devices with memory of their own; part by part where an operator
takes a list and returns one; on `home` where nothing is known of what it is made from.
"""

from __future__ import annotations

import threading
import time
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from ...torch.runtime.tree import tensors
from .memory import marks

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
    address: int = 0


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
        self.at: dict[int, Held] = {}
        """By address, what was followed there last."""
        self.ran: list[Held] = []
        self.between_nodes: list[tuple[int, int]] = []
        """When a node of the backward pass ended, and its device."""
        self.by_events = False

    @contextmanager
    def from_events(self) -> Iterator[None]:
        """Around what is to be followed on CPUs: the allocator's events say when storages go and what else there is."""
        self.by_events = True
        # acc_events avoids a warning of recent versions about dropping events between cycles
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
            yield
        self.by_events = False
        changes, marked = marks(profiler, _LABEL)
        for label, start, end in marked:
            peak = max(0, *accumulate(changes[start:end], initial=0))
            if peak > max(sum(changes[start:end]), 0):
                self.ran[int(label)].size = peak
                self.held.append(self.ran[int(label)])
        self._read_blocks(profiler)

    def _read_blocks(self, profiler: Any) -> None:
        """The ends of what was followed, and what nobody has followed between two nodes."""
        events = [e for e in profiler.profiler.kineto_results.events() if e.name().startswith(_LABEL)]
        running = sorted((e.start_ns(), e.start_ns() + e.duration_ns(), int(e.name()[len(_LABEL) :])) for e in events)
        if not running:
            return
        # Both clocks count nanoseconds. An operator starts after its label, so that no end comes too early by this.
        ahead = max(start - self.ran[label].start_ns for start, _, label in running)
        blocks = _blocks(profiler)
        known: set[int] = set()
        rows, self.held = self.held, []
        for held in rows:
            block = None
            if held.address:
                there = blocks.get(held.address, [])
                k = bisect_right(there, held.start_ns + ahead, key=lambda block: block.start_ns) - 1
                block = there[k] if k >= 0 else None
                if block is None or id(block) in known:  # it was there before the step, or it is followed already
                    continue
                known.add(id(block))
                held.size, held.end_ns = block.size, block.end_ns - ahead if block.end_ns >= 0 else -1
            self.held.append(held)
        nodes = sorted(self.between_nodes)
        for block in (block for there in blocks.values() for block in there if id(block) not in known):
            at = bisect_right(running, block.start_ns, key=lambda row: row[0]) - 1
            node = bisect_right(nodes, block.start_ns - ahead, key=lambda row: row[0]) - 1
            if node >= 0 and (at < 0 or block.start_ns > running[at][1]):
                ended = block.end_ns - ahead if block.end_ns >= 0 else -1
                sums = Held(nodes[node][1], block.size, -1, block.start_ns - ahead, ended, persistent=ended < 0)
                self.held.append(sums)

    def keep(self, kept: Iterable[torch.Tensor]) -> None:
        """What is followed and alive becomes persistent, from when it was made."""
        for tensor in kept:
            if (known := self._known(tensor)) is not None:
                known.persistent = True

    def claim(self, taken: Iterable[torch.Tensor], device: int) -> None:
        """What no call made (masks, positions) is on the device whose call takes it first."""
        for tensor in taken:
            known = self._known(tensor)
            if known is not None and known.op < 0 and not (known.persistent or known.received):
                known.device, known.op = device, CLAIMED

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
        held = [known for t in tensors(taken) if (known := self._known(t)) is not None]
        return max(held, key=lambda row: row.size).device if held else self.home

    def ran_to(self, outputs: Any, taken: Any) -> None:
        """Follow what an operator made."""
        if getattr(self.local, "op", -1) >= 0:
            self.add(tensors(outputs), taken=taken)
            return
        lists = [part for part in taken if isinstance(part, (tuple, list)) and any(True for _ in tensors(part))]
        if isinstance(outputs, (tuple, list)) and lists and len(lists[0]) == len(outputs):
            for made, given in zip(outputs, lists[0], strict=True):
                self.add(tensors(made), self.lying(given), taken=taken)
        else:
            self.add(tensors(outputs), self.lying(taken), taken=taken)

    def add(
        self,
        made: Iterable[torch.Tensor],
        device: int | None = None,
        persistent: bool = False,
        received: bool = False,
        taken: Any = (),
    ) -> None:
        """Follow the storages of tensors that are not followed yet, nor were `taken` by what made them."""
        op, here = getattr(self.local, "op", -1), getattr(self.local, "device", self.home)
        given = {_address(t) for t in tensors(taken) if _has_storage(t)} if self.by_events else set()
        for tensor in made:
            if not _has_storage(tensor) or (address := _address(tensor)) in given:
                continue
            with self.lock:
                if not self.by_events and self._known(tensor) is not None:
                    continue
                held = Held(
                    here if device is None else device, tensor.nbytes, op, time.perf_counter_ns(), -1, persistent, received,
                )  # fmt: skip
                self.held.append(held)
                self.at[address] = held
                if self.by_events:
                    held.address = address
                else:
                    storage = tensor.untyped_storage()
                    held.size = storage.nbytes()
                    self.alive[storage._cdata] = weakref.ref(storage, partial(_gone, held)), held

    def _known(self, tensor: torch.Tensor) -> Held | None:
        """The storage of a tensor, where it is followed and alive."""
        if not _has_storage(tensor):
            return None
        if self.by_events:
            return self.at.get(_address(tensor))
        reference, held = self.alive.get(tensor.untyped_storage()._cdata, (None, None))
        return None if reference is None or reference() is None else held


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()


def _gone(held: Held, _: Any) -> None:
    held.end_ns = time.perf_counter_ns()


@dataclass(eq=False)
class _Block:
    """What the allocator gave, from when to when (-1: to the end)."""

    size: int
    start_ns: int
    end_ns: int = -1


def _blocks(profiler: Any) -> dict[int, list[_Block]]:
    """Address -> what was allocated there, in time."""
    events, changes = list(profiler.profiler.kineto_results.experimental_event_tree()), []
    while events:
        event = events.pop()
        events += event.children
        if event.tag == _EventType.Allocation:
            changes.append((event.start_time_ns, event.extra_fields.alloc_size, event.extra_fields.ptr))
    found: dict[int, list[_Block]] = {}
    for at, size, address in sorted(changes):
        there = found.setdefault(address, [])
        if size > 0:
            there.append(_Block(size, at))
        elif there:
            there[-1].end_ns = at
    return found


class _Following(TorchDispatchMode):
    def __init__(self, storages: Storages):
        super().__init__()
        self.storages = storages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        held = self.storages.running((args, kwargs))
        with record_function(f"{_LABEL}{held.label}"):
            held.start_ns = time.perf_counter_ns()
            outputs = func(*args, **(kwargs or {}))
        held.end_ns = time.perf_counter_ns()
        self.storages.ran_to(outputs, args)
        return outputs


def _has_storage(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
