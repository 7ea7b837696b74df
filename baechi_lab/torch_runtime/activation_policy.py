"""Activation policy: drops tensors that calls save for the backward pass, and computes them again or keeps them on the host.

Idea: a call runs under `saved_tensors_hooks`. If the plan says that the backward call reads an output from a later run of its
producer, the hook stores no tensor. It stores a `CallRecord` of the producer (function, arguments, settings and random
states, as `torch.utils.checkpoint` does) and which view of the result's storage the tensor is. When autograd asks for the
tensor, the producer runs again, after those of its inputs that were dropped too. Its results stay until all readers that the
plan names have read them. A plan can thus drop one op and keep its neighbours, and can run an op several times. A
checkpointed region, in contrast, must be one function of the model, and holds all that it computes again at once.

Gradients are right for every plan: the plan only says what may be dropped, and when. Records belong to the autograd graph and
are freed with it. A tensor that is no view of a storage is kept. Storages are identified by weak references, because their
addresses are not used again.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from .context import saved_tensor_hooks_active
from .random import generator_states, same_states
from .rerun import EMPTY, CallRecord, HostCopier, HostedStorage, ObserveRerun, RetainedArgument, StorageView
from .sequence import inputs_of, nodes_between
from .storage import is_plain, is_whole, storage_reference, version
from .tree import Args, Function, Kwargs, map_tensors, tensors

HOST = -1
"""Stands for a run: the tensor waits on the host."""

BACKWARD = -1
"""Stands for a run of a reader: its backward call."""

OUTPUT, SAVED = 0, 1
"""Kinds of tensors that are read: an output of the producer, or another tensor that it saves for its own backward call."""

ActivationRow = tuple[int, int, int, int, int]
"""Reader, its run (or `BACKWARD`), kind (`OUTPUT` or `SAVED`), producer, and the producer's run (or `HOST`)."""


class ActivationSources:
    """Looks up the rows of a plan. Runs of a call are counted from 0, the run in the forward pass."""

    def __init__(self, rows: Iterable[ActivationRow]):
        self.backward: dict[tuple[int, int, int], int] = {}  # (call, kind, producer) -> run
        self.copies: dict[tuple[int, int], dict[int, int]] = {}  # (call, producer) -> run -> run of the producer
        self.last_run: dict[int, int] = {}  # producer -> its last run
        for reader, run, kind, producer, source in rows:
            if run == BACKWARD:
                self.backward[reader, kind, producer] = source
            else:
                self.copies.setdefault((reader, producer), {})[run] = source
                self.last_run[reader] = max(self.last_run.get(reader, 0), run)
            if source > 0:
                self.last_run[producer] = max(self.last_run.get(producer, 0), source)
        # (call, training) -> buffers that the call was seen to leave unchanged
        self.unchanged_buffers: dict[tuple[int, bool], set[str]] = {}
        self.involved_calls = {reader for reader, _, _ in self.backward} | set(self.last_run)
        self.involved_calls |= {producer for _, _, producer in self.backward}


class ActivationPolicy:
    """Decides which tensors the calls of one forward pass save; `call` runs one of them."""

    def __init__(
        self, sources: ActivationSources, observer: ObserveRerun | None = None, host_copier: HostCopier | None = None
    ):
        self.sources, self.observer, self.host_copier = sources, observer, host_copier or HostCopier()
        self.lock = threading.RLock()
        self.producers: dict[StorageWeakRef, Producer] = {}
        self.hosted_storages: dict[StorageWeakRef, HostedStorage] = {}
        # copy on another device -> its original, and whether both cover their storages
        self.received_copies: dict[StorageWeakRef, tuple[StorageWeakRef, bool]] = {}
        self.record_numbers = itertools.count()

    def call(
        self, op: int, run: Callable[..., object], module: nn.Module | None, /, *args: object, **kwargs: object
    ) -> object:
        """Runs a call and returns its outputs. The tensors that its backward pass needs are kept or dropped as planned."""
        if op not in self.sources.involved_calls or not torch.is_grad_enabled() or saved_tensor_hooks_active():
            return run(*args, **kwargs)
        with self.lock:
            record = self._record_call(op, run, args, kwargs, module) if op in self.sources.last_run else None
        snapshots = {} if record is None else self._snapshot_buffers(op, module)
        packs: list[SavedTensor] = []

        def pack(tensor: torch.Tensor) -> SavedTensor:
            packs.append(SavedTensor(tensor))
            return packs[-1]

        with saved_tensors_hooks(pack, SavedTensor.unpack):
            outputs = run(*args, **kwargs)
        with self.lock:
            if record is not None:
                # Keep the old values of buffers that the call has changed. Later forwards do not copy the others.
                key = (op, record.module is not None and record.module.training)
                for name, buffer in snapshots.items():
                    # values are compared because some kernels do not raise the version
                    if version(buffer.tensor) != buffer.version or not torch.equal(buffer.tensor, buffer.values):
                        record.buffers[id(buffer.tensor)] = buffer.values
                    else:
                        self.sources.unchanged_buffers.setdefault(key, set()).add(name)
                if record.states is not None and same_states(record.states, generator_states()):
                    record.states = None  # the call has drawn no random numbers
            argument_storages = {storage_reference(t) for t in tensors((args, kwargs)) if is_plain(t)}
            state = () if module is None else (*module.parameters(), *module.buffers())
            state_storages = {storage_reference(t) for t in state if is_plain(t)}
            output_tensors = [t for t in tensors(outputs) if is_plain(t)]
            for position, tensor in enumerate(output_tensors):
                if (storage := storage_reference(tensor)) not in argument_storages:
                    self.producers[storage] = Producer(op, position, record)
            has_python_functions = (
                any(map(_is_python_function, nodes_between(outputs, inputs_of((args, kwargs))))) if packs else False
            )
            for index, saved_pack in enumerate(packs):
                if (
                    is_plain(saved_pack.tensor)
                    and (storage := storage_reference(saved_pack.tensor)) not in state_storages
                ):
                    self._drop_if_planned(op, saved_pack, index, storage, storage in argument_storages, record)
                if (
                    has_python_functions
                    and saved_pack.view is not None
                    and isinstance(saved_pack.view.record, CallRecord)
                ):
                    saved_pack.view.record.keep_arguments()
            if record is not None:
                record.packs = len(packs)
        packs.clear()  # autograd holds the hooks, and with them this list, until the last node of the call has run
        return outputs

    def note_copies(self, originals: object, copies: object) -> None:
        """Records which arguments of a call are copies of tensors of other devices."""
        with self.lock:
            for tensor, copy in zip(tensors(originals), tensors(copies), strict=True):
                if copy is not tensor and is_plain(tensor) and is_plain(copy):
                    covers_storage = is_whole(tensor) and is_whole(copy)
                    self.received_copies[storage_reference(copy)] = storage_reference(tensor), covers_storage

    def _record_call(self, op: int, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None) -> CallRecord:
        """Returns the record by which a call can run again: its function, arguments, settings and random states."""
        states = generator_states()
        record = CallRecord(
            next(self.record_numbers), op, run, module, states, self.sources.last_run[op], self.lock, self.observer
        )
        argument_tensors = list(tensors((args, kwargs)))
        unique = {id(t): t for t in argument_tensors}  # some layers test whether two arguments are one object
        position_of = {key: k for k, key in enumerate(unique)}
        record.inputs = [self._record_argument(record, t) for t in unique.values()]
        record.input_index = [position_of[id(t)] for t in argument_tensors]
        record.arguments = map_tensors((args, kwargs), lambda t: EMPTY)
        return record

    def _snapshot_buffers(self, op: int, module: nn.Module | None) -> dict[str, BufferSnapshot]:
        """Copies the buffers of a call, except those that the call was seen to leave unchanged."""
        unchanged_names = (
            self.sources.unchanged_buffers.get((op, module.training), set()) if module is not None else set()
        )
        buffers = () if module is None else module.named_buffers()
        return {
            name: BufferSnapshot(buffer, buffer.detach().clone(), version(buffer))
            for name, buffer in buffers
            if name not in unchanged_names
        }

    def _record_argument(self, record: CallRecord, tensor: torch.Tensor) -> RetainedArgument | StorageView:
        """Returns a view of the producer's later result if the plan computes the argument again, else the argument."""
        producer = self.producers.get(storage_reference(tensor)) if is_plain(tensor) else None
        if producer is not None and producer.record is not None:
            source_of_run = self.sources.copies.get((record.op, producer.op), {})
            if len(source_of_run) == record.last_run and all(source > 0 for source in source_of_run.values()):
                for run, source in source_of_run.items():
                    producer.record.add_reader((record.number, run), producer.position, source)
                return StorageView(producer.record, producer.position, tensor)
        return RetainedArgument(tensor)

    def _drop_if_planned(
        self,
        op: int,
        pack: SavedTensor,
        index: int,
        storage: StorageWeakRef,
        is_argument: bool,
        own_record: CallRecord | None,
    ) -> None:
        """Drops the saved tensor if the plan says that it is computed again or waits on the host."""
        owner = self.producers.get(storage)
        if owner is None and is_argument:
            owner = self.producers.get(self.received_copies.get(storage, (storage, True))[0])
            if owner is None or self.sources.backward.get((op, OUTPUT, owner.op)) != HOST:
                return  # an input, a tensor computed between calls, or a copy that no call makes again here
        kind, producer = (SAVED, op) if owner is None else (OUTPUT, owner.op)
        source = self.sources.backward.get((op, kind, producer), 0)
        if source == HOST:
            if storage not in self.hosted_storages:
                origin, covers_storage = self.received_copies.get(storage, (storage, True))
                hosted_origin = self.hosted_storages.get(origin) if covers_storage else None
                self.hosted_storages[storage] = HostedStorage(
                    pack.tensor, op, self.lock, self.host_copier, hosted_origin
                )
            pack.drop(StorageView(self.hosted_storages[storage], 0, pack.tensor))
        elif source > 0:
            record, position = (own_record, ~index) if owner is None else (owner.record, owner.position)
            if record is not None:
                pack.drop(StorageView(record, position, pack.tensor))
                record.add_reader((id(pack), BACKWARD), position, source)


def _is_python_function(node: Node) -> bool:
    """Whether the node is a `torch.autograd.Function`, which unpacks its saved tensors whenever it reads one of them."""
    return isinstance(node, torch._C._FunctionBase)


@dataclass(frozen=True)
class Producer:
    """The call that made a storage, and the position of that output."""

    op: int
    position: int
    record: CallRecord | None


@dataclass(frozen=True)
class BufferSnapshot:
    """A buffer of a module, with its values and version before a call."""

    tensor: torch.Tensor
    values: torch.Tensor
    version: int


class SavedTensor:
    """An entry that autograd holds for a saved tensor: the tensor itself, or the view from which it is read."""

    __slots__ = ("tensor", "version", "view")

    def __init__(self, tensor: torch.Tensor):
        self.tensor: Any = tensor.detach()
        self.version = version(tensor)
        self.view: StorageView | None = None

    def drop(self, view: StorageView) -> None:
        """Replaces the tensor by a view of a result or of a copy on the host."""
        self.tensor, self.view = None, view

    def unpack(self) -> torch.Tensor:
        """Returns the tensor. Raises `RuntimeError`, as torch does, if it was written in place meanwhile."""
        if self.view is not None:
            return self.view.get((id(self), BACKWARD))
        if version(self.tensor) != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of "
                f"shape {list(self.tensor.shape)} is at version {version(self.tensor)}; expected version {self.version}"
            )
        return self.tensor  # type: ignore[no-any-return]
