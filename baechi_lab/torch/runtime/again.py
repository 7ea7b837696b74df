"""Again: what calls save for the backward pass is dropped and computed again, or waits on the host.

Idea: a call runs under `saved_tensors_hooks`. Where the plan says that its backward call reads an output from a later run of
its producer, the hook keeps no tensor, but where to find it: a record of the producer's call (function, arguments, settings,
state of the random generators, with which `torch.utils.checkpoint` works too), and which part of its storage. When autograd
asks, the producer runs again, after those of its inputs that were dropped themselves. Its results are kept until all readers
that the plan names have had them. So one op may be dropped and its neighbours kept, and an op may run several times, in any
plan; a checkpointed region would have to be one function of the model, and holds all that it computes again at once.

What is read comes out right whatever the plan says: the plan only tells what may be dropped, and when. Records hang on
the autograd graph alone, and go with it. A tensor that cannot be named by a part of a storage is kept. Storages are known by weak
references, whose addresses are not given out again.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from .context import saved_tensor_hooks_active
from .random import generator_states, same_states
from .rerun import EMPTY, Carrier, Held, Hosted, Part, Record
from .storage import is_plain, is_whole, storage_reference, version
from .tree import map_tensors, tensors

HOST = -1
"""In the place of a run: the tensor waits on the host."""

BACKWARD = -1
"""In the place of a reader's run: its backward call."""

OUTPUT, SAVED = 0, 1
"""What is read: an output of the producer, or what else it saves for its own backward call."""

Row = tuple[int, int, int, int, int]
"""A call and its run (or `BACKWARD`) read what (`OUTPUT` or `SAVED`) of which call from which run (or the `HOST`)."""


class Sources:
    """The rows of a plan, to look up. Runs of a call are counted from 0, which is the one of the forward pass."""

    def __init__(self, rows: Iterable[Row]):
        self.backward: dict[tuple[int, int, int], int] = {}  # (call, what, producer) -> run
        self.copies: dict[tuple[int, int], dict[int, int]] = {}  # (call, producer) -> run -> run of the producer
        self.runs: dict[int, int] = {}  # producer -> its last run
        for reader, run, what, producer, source in rows:
            if run == BACKWARD:
                self.backward[reader, what, producer] = source
            else:
                self.copies.setdefault((reader, producer), {})[run] = source
                self.runs[reader] = max(self.runs.get(reader, 0), run)
            if source > 0:
                self.runs[producer] = max(self.runs.get(producer, 0), source)
        self.steady: dict[
            tuple[int, bool], set[str]
        ] = {}  # (call, training) -> buffers that it was seen to leave as they are
        self.involved = {reader for reader, _, _ in self.backward} | set(self.runs)
        self.involved |= {producer for _, _, producer in self.backward}


class Activations:
    """What the calls of one forward save; `call` runs one of them."""

    def __init__(self, sources: Sources, observer: Any = None, carrier: Carrier | None = None):
        self.sources, self.observer, self.carrier = sources, observer, carrier or Carrier()
        self.lock = threading.RLock()
        self.made: dict[StorageWeakRef, Made] = {}
        self.hosted: dict[StorageWeakRef, Hosted] = {}
        # a copy on another device -> what it is a copy of, and whether of all of it
        self.received: dict[StorageWeakRef, tuple[StorageWeakRef, bool]] = {}
        self.numbers = itertools.count()

    def call(self, op: int, run: Callable[..., Any], module: nn.Module | None, /, *args: Any, **kwargs: Any) -> Any:
        """The outputs of a call; what its backward pass needs is kept or dropped as planned."""
        if op not in self.sources.involved or not torch.is_grad_enabled() or saved_tensor_hooks_active():
            return run(*args, **kwargs)
        with self.lock:
            record = self._record(op, run, args, kwargs, module) if op in self.sources.runs else None
        before = {} if record is None else self._buffers(op, module)
        packs: list[Pack] = []

        def pack(tensor: torch.Tensor) -> Pack:
            packs.append(Pack(tensor))
            return packs[-1]

        with saved_tensors_hooks(pack, Pack.unpack):
            outputs = run(*args, **kwargs)
        with self.lock:
            if record is not None:
                self._keep_buffers(op, record, before)
                if record.states is not None and same_states(record.states, generator_states()):
                    record.states = None  # it has drawn nothing
            given = {storage_reference(t) for t in tensors((args, kwargs)) if is_plain(t)}
            state = () if module is None else (*module.parameters(), *module.buffers())
            fixed = {storage_reference(t) for t in state if is_plain(t)}
            made = [t for t in tensors(outputs) if is_plain(t)]
            for position, tensor in enumerate(made):
                if (storage := storage_reference(tensor)) not in given:
                    self.made[storage] = Made(op, position, record)
            for index, kept in enumerate(packs):
                if is_plain(kept.tensor) and (storage := storage_reference(kept.tensor)) not in fixed:
                    self._settle(op, kept, index, storage, storage in given, record)
            if record is not None:
                record.packs = len(packs)
        return outputs

    def arrived(self, sent: Any, received: Any) -> None:
        """What a call takes, before and after it was brought to the call's device."""
        with self.lock:
            for tensor, here in zip(tensors(sent), tensors(received), strict=True):
                if here is not tensor and is_plain(tensor) and is_plain(here):
                    whole = is_whole(tensor) and is_whole(here)
                    self.received[storage_reference(here)] = storage_reference(tensor), whole

    def _record(self, op: int, run: Callable[..., Any], args: Any, kwargs: Any, module: nn.Module | None) -> Record:
        states = generator_states()
        record = Record(next(self.numbers), op, run, module, states, self.sources.runs[op], self.lock, self.observer)
        occurring = list(tensors((args, kwargs)))
        unique = {id(t): t for t in occurring}  # one object may be several arguments, which some layers ask for
        number = {key: k for k, key in enumerate(unique)}
        record.taken = [self._argument(record, t) for t in unique.values()]
        record.order = [number[id(t)] for t in occurring]
        record.arguments = map_tensors((args, kwargs), lambda t: EMPTY)
        return record

    def _buffers(self, op: int, module: nn.Module | None) -> dict[str, Buffer]:
        """The buffers of a call that may change them, as they are."""
        steady = self.sources.steady.get((op, module.training), set()) if module is not None else set()
        named = () if module is None else module.named_buffers()
        return {
            name: Buffer(buffer, buffer.detach().clone(), version(buffer))
            for name, buffer in named
            if name not in steady
        }

    def _keep_buffers(self, op: int, record: Record, before: dict[str, Buffer]) -> None:
        """Keep the values of buffers that the call has changed; the others are not copied again."""
        key = (op, record.module is not None and record.module.training)
        for name, buffer in before.items():
            if buffer.changed():
                record.buffers[id(buffer.tensor)] = buffer.values
            else:
                self.sources.steady.setdefault(key, set()).add(name)

    def _argument(self, record: Record, tensor: torch.Tensor) -> Held | Part:
        found = self.made.get(storage_reference(tensor)) if is_plain(tensor) else None
        if found is not None and found.record is not None:
            runs = self.sources.copies.get((record.op, found.op), {})
            if len(runs) == record.runs and all(source > 0 for source in runs.values()):
                for run, source in runs.items():
                    found.record.wanted_by((record.number, run), found.position, source)
                return Part(found.record, found.position, tensor)
        return Held(tensor)

    def _settle(
        self, op: int, pack: Pack, index: int, storage: StorageWeakRef, given: bool, own: Record | None
    ) -> None:
        """Drop the tensor of `pack` where the plan has it elsewhere."""
        found = self.made.get(storage)
        if found is None and given:
            found = self.made.get(self.received.get(storage, (storage, True))[0])
            if found is None or self.sources.backward.get((op, OUTPUT, found.op)) != HOST:
                return  # an input of the model, or made between calls, or a copy that nothing makes again here
        what, producer = (SAVED, op) if found is None else (OUTPUT, found.op)
        source = self.sources.backward.get((op, what, producer), 0)
        if source == HOST:
            if storage not in self.hosted:
                origin, whole = self.received.get(storage, (storage, True))
                there = self.hosted.get(origin) if whole else None
                self.hosted[storage] = Hosted(pack.tensor, op, self.lock, self.carrier, there)
            pack.drop(Part(self.hosted[storage], 0, pack.tensor))
        elif source > 0:
            record, position = (own, ~index) if found is None else (found.record, found.position)
            if record is not None:
                pack.drop(Part(record, position, pack.tensor))
                record.wanted_by((id(pack), BACKWARD), position, source)


@dataclass(frozen=True)
class Made:
    """Which call made a storage, as which of its outputs."""

    op: int
    position: int
    record: Record | None


@dataclass(frozen=True)
class Buffer:
    """A buffer of a module, with its values and version before a call."""

    tensor: torch.Tensor
    values: torch.Tensor
    version: int

    def changed(self) -> bool:
        """Whether the call wrote into it; some kernels do not count what they write."""
        return version(self.tensor) != self.version or not torch.equal(self.tensor, self.values)


class Pack:
    """What autograd holds in the place of a saved tensor: the tensor, or where to find it."""

    __slots__ = ("part", "tensor", "version")

    def __init__(self, tensor: torch.Tensor):
        self.tensor: Any = tensor.detach()
        self.version = version(tensor)
        self.part: Part | None = None

    def drop(self, part: Part) -> None:
        """Keep no tensor."""
        self.tensor, self.part = None, part

    def unpack(self) -> torch.Tensor:
        """The tensor."""
        if self.part is not None:
            return self.part.get((id(self), BACKWARD))
        if version(self.tensor) != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of "
                f"shape {list(self.tensor.shape)} is at version {version(self.tensor)}; expected version {self.version}"
            )
        return self.tensor  # type: ignore[no-any-return]
