"""Tracks the memory of a step: storages, from the op that makes them to their last reference.

A dispatch mode sees every tensor that an operator of torch returns, also in the backward pass. Bytes are those of storages,
each once however many views it has, without the allocator's rounding. The end of a storage is known from a weak reference or
from the events of the CPU's allocator (`from_events`). With events, a storage is identified by its address alone, because
autograd sums gradients in place only if nothing else refers to their storage, and a Python object of it would. Events also show
scratch memory of kernels, which never becomes a tensor, and allocations of the backward pass between two nodes, such as sums of
gradients.

A storage belongs to the device whose call runs in the thread that makes it. A storage made outside calls (by the update of
parameters) belongs to the device of the tensors that it is made from, as if devices had memory of their own. If an operator
takes a list and returns one, this holds for each pair of entries. If no argument is tracked, the storage belongs to
`default_device`.
"""

from __future__ import annotations

import threading
import time
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from ...torch_runtime.storage import dense_components
from ...torch_runtime.tree import Args, Kwargs, tensors
from .memory import read_marked_changes

if TYPE_CHECKING:
    from torch._ops import OpOverload

_LABEL = "baechi operator "

CLAIMED = -2
"""Op of a storage that no call made and that a call has taken."""


@dataclass
class StorageRecord:
    """One storage: its device, bytes, the op that made it (-1: none), and its start and end in nanoseconds of the host clock."""

    device: int
    size: int
    op: int
    start_ns: int
    end_ns: int = -1
    persistent: bool = False
    is_received: bool = False
    label: int = -1
    address: int = 0


class StorageTracker:
    """Tracks storages; `records` lists all of them in order.

    >>> tracker = StorageTracker()
    >>> with tracker.mode():
    ...     y = torch.ones(4) * 2
    >>> [record.size for record in tracker.records]      # the ones are freed, the product is alive
    [16, 16]
    >>> [record.end_ns >= 0 for record in tracker.records]
    [True, False]
    """

    def __init__(self, default_device: int = 0):
        self.default_device = default_device
        self.records: list[StorageRecord] = []
        self.lock = threading.RLock()
        self.local = threading.local()
        self.alive: dict[int, tuple[Any, StorageRecord]] = {}
        self.at: dict[int, StorageRecord] = {}
        """Address -> the last record at that address."""
        self.operator_records: list[StorageRecord] = []
        self.node_marks: list[tuple[int, int, int]] = []
        """Starts and ends of nodes of the backward pass, with the device and the op (-1: none) of what is allocated then."""
        self.by_events = False

    @contextmanager
    def from_events(self) -> Iterator[None]:
        """Tracks CPU memory by the allocator's events: ends of storages, scratch memory, and untracked allocations."""
        self.by_events = True
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            yield
        self.by_events = False
        changes, marks = read_marked_changes(profiler, _LABEL)
        for label, start, end in marks:
            peak = max(0, *accumulate(changes[start:end], initial=0))
            if peak > max(sum(changes[start:end]), 0):
                self.operator_records[int(label)].size = peak
                self.records.append(self.operator_records[int(label)])
        self._read_blocks(profiler)

    def _read_blocks(self, profiler: torch.profiler.profile) -> None:
        """Reads the ends of tracked storages, and what nodes of the backward pass allocate."""
        events = [e for e in profiler.profiler.kineto_results.events() if e.name().startswith(_LABEL)]
        running = sorted((e.start_ns(), e.start_ns() + e.duration_ns(), int(e.name()[len(_LABEL) :])) for e in events)
        if not running:
            return
        # Both clocks count nanoseconds. An operator starts after its label, so this offset makes no end too early.
        ahead = max(start - self.operator_records[label].start_ns for start, _, label in running)
        events, changes = list(profiler.profiler.kineto_results.experimental_event_tree()), []
        while events:
            event = events.pop()
            events += event.children
            if event.tag == _EventType.Allocation:
                changes.append((event.start_time_ns, event.extra_fields.alloc_size, event.extra_fields.ptr))
        blocks: dict[int, list[_Block]] = {}
        for at, size, address in sorted(changes):
            allocations = blocks.setdefault(address, [])
            if size > 0:
                allocations.append(_Block(size, at))
            elif allocations:
                allocations[-1].end_ns = at
        matched_blocks: set[int] = set()
        rows, self.records = self.records, []
        for record in rows:
            block = None
            if record.address:
                allocations = blocks.get(record.address, [])
                k = bisect_right(allocations, record.start_ns + ahead, key=lambda block: block.start_ns) - 1
                block = allocations[k] if k >= 0 else None
                if block is None or id(block) in matched_blocks:  # it is older than the step, or tracked already
                    continue
                matched_blocks.add(id(block))
                record.size, record.end_ns = block.size, block.end_ns - ahead if block.end_ns >= 0 else -1
            self.records.append(record)
        nodes = sorted(self.node_marks)
        for block in (
            block for allocations in blocks.values() for block in allocations if id(block) not in matched_blocks
        ):
            at = bisect_right(running, block.start_ns, key=lambda row: row[0]) - 1
            node = bisect_right(nodes, block.start_ns - ahead, key=lambda row: row[0]) - 1
            if node >= 0 and (at < 0 or block.start_ns > running[at][1]):
                end_ns = block.end_ns - ahead if block.end_ns >= 0 else -1
                _, device, op = nodes[node]
                start_ns = block.start_ns - ahead
                self.records.append(StorageRecord(device, block.size, op, start_ns, end_ns, persistent=end_ns < 0))

    def keep(self, persistent_tensors: Iterable[torch.Tensor]) -> None:
        """Marks tracked tensors that are alive as persistent from their start."""
        for tensor in (inner for t in persistent_tensors for inner in dense_components(t)):
            if (record := self._record_of(tensor)) is not None:
                record.persistent = True

    def claim(self, arguments: Iterable[torch.Tensor], device: int) -> None:
        """Assigns storages that no call made (masks, positions) to the device of the first call that takes them."""
        for tensor in (inner for t in arguments for inner in dense_components(t)):
            record = self._record_of(tensor)
            if record is not None and record.op < 0 and not (record.persistent or record.is_received):
                record.device, record.op = device, CLAIMED

    def assign(self, gradients: Iterable[torch.Tensor], device: int) -> None:
        """Notes the device of gradients that a node has made; they are tracked by the allocator's events alone."""
        for tensor in gradients:
            if _has_storage(tensor):
                self.at[_address(tensor)] = StorageRecord(device, tensor.nbytes, -1, time.perf_counter_ns())

    def start_operator(self, arguments: object) -> StorageRecord:
        """Records the start of an operator; its position in `operator_records` is its label."""
        op = getattr(self.local, "op", -1)
        device = self.local.device if op >= 0 else self.device_of(arguments)
        with self.lock:
            self.operator_records.append(
                StorageRecord(device, 0, op, time.perf_counter_ns(), label=len(self.operator_records))
            )
            return self.operator_records[-1]

    def mode(self) -> TorchDispatchMode:
        """Returns a mode that tracks what runs in it; each thread enters it once."""
        return _TrackingMode(self)

    def call(self, op: int, device: int) -> None:
        """Sets the op and device of calls in this thread from now on; op -1 for none."""
        self.local.op, self.local.device = op, device

    def device_of(self, arguments: object) -> int:
        """Returns the device of the largest tracked storage among the arguments; `default_device` if there is none."""
        records = [record for t in _inner_tensors(arguments) if (record := self._record_of(t)) is not None]
        return max(records, key=lambda row: row.size).device if records else self.default_device

    def track_outputs(self, outputs: Any, arguments: Any) -> None:
        """Tracks the results of an operator."""
        if getattr(self.local, "op", -1) >= 0:
            self.add(tensors(outputs), arguments=arguments)
            return
        lists = [a for a in arguments if isinstance(a, (tuple, list)) and any(True for _ in tensors(a))]
        if isinstance(outputs, (tuple, list)) and lists and len(lists[0]) == len(outputs):
            for output, argument_list in zip(outputs, lists[0], strict=True):
                self.add(tensors(output), self.device_of(argument_list), arguments=arguments)
        else:
            self.add(tensors(outputs), self.device_of(arguments), arguments=arguments)

    def add(
        self,
        outputs: Iterable[torch.Tensor],
        device: int | None = None,
        persistent: bool = False,
        is_received: bool = False,
        arguments: object = (),
    ) -> None:
        """Tracks the storages of tensors that are not tracked yet and are not among `arguments` of their operator."""
        op, current_device = getattr(self.local, "op", -1), getattr(self.local, "device", self.default_device)
        argument_addresses = (
            {_address(t) for t in _inner_tensors(arguments) if _has_storage(t)} if self.by_events else set()
        )
        for tensor in (inner for t in outputs for inner in dense_components(t)):
            if not _has_storage(tensor) or (address := _address(tensor)) in argument_addresses:
                continue
            with self.lock:
                if not self.by_events and self._record_of(tensor) is not None:
                    continue
                record_device, start_ns = current_device if device is None else device, time.perf_counter_ns()
                record = StorageRecord(record_device, tensor.nbytes, op, start_ns, -1, persistent, is_received)
                self.records.append(record)
                self.at[address] = record
                if self.by_events:
                    record.address = address
                else:
                    storage = tensor.untyped_storage()
                    record.size = storage.nbytes()
                    self.alive[storage._cdata] = weakref.ref(storage, partial(_mark_freed, record)), record

    def add_batch(self, batch: Iterable[torch.Tensor], device: int) -> None:
        """Tracks the tensors of a batch. Of a data set that they are views of, only their own bytes count.

        >>> tracker = StorageTracker()
        >>> tracker.add_batch(torch.ones(100).split(10)[:3], device=0)
        >>> [record.size for record in tracker.records]
        [120]
        """
        batch_tensors = list({id(t): t for t in batch}.values())
        first_record = len(self.records)
        self.add(batch_tensors, device, persistent=True)
        viewed_bytes: Counter[int] = Counter()
        for tensor in (inner for t in batch_tensors for inner in dense_components(t)):
            if (record := self._record_of(tensor)) is not None:
                viewed_bytes[id(record)] += tensor.nbytes
        for record in self.records[first_record:]:
            record.size = min(record.size, viewed_bytes[id(record)])

    def _record_of(self, tensor: torch.Tensor) -> StorageRecord | None:
        """Returns the record of a tensor's storage if it is tracked and alive."""
        if not _has_storage(tensor):
            return None
        if self.by_events:
            return self.at.get(_address(tensor))
        reference, record = self.alive.get(tensor.untyped_storage()._cdata, (None, None))
        return None if reference is None or reference() is None else record


def _inner_tensors(structure: object) -> Iterator[torch.Tensor]:
    """Yields the tensors of a structure, of a wrapper subclass or a sparse tensor those within."""
    for tensor in tensors(structure):
        yield from dense_components(tensor)


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()


def _mark_freed(record: StorageRecord, _: object) -> None:
    record.end_ns = time.perf_counter_ns()


@dataclass(eq=False)
class _Block:
    """An allocation, with its start and end (-1: not freed)."""

    size: int
    start_ns: int
    end_ns: int = -1


class _TrackingMode(TorchDispatchMode):
    def __init__(self, storages: StorageTracker):
        super().__init__()
        self.storages = storages

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        record = self.storages.start_operator((args, kwargs))
        with record_function(f"{_LABEL}{record.label}"):
            record.start_ns = time.perf_counter_ns()
            outputs = func(*args, **(kwargs or {}))
        record.end_ns = time.perf_counter_ns()
        self.storages.track_outputs(outputs, args)
        return outputs


def _has_storage(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
