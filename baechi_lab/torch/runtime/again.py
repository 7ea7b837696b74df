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

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from ...errors import ExecutionError
from .context import Context, saved_tensor_hooks_active
from .random import States, generator_states
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

    def __init__(self, rows: Iterable[Row], random: Iterable[int] = ()):
        self.random = frozenset(random)
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
        self.involved = {reader for reader, _, _ in self.backward} | set(self.runs)
        self.involved |= {producer for _, _, producer in self.backward}


class Activations:
    """What the calls of one forward save; `call` runs one of them."""

    def __init__(self, sources: Sources, observer: Any = None):
        self.sources, self.observer = sources, observer
        self.lock = threading.RLock()
        self.made: dict[StorageWeakRef, Made] = {}
        self.hosted: dict[StorageWeakRef, Hosted] = {}
        self.numbers = itertools.count()

    def call(self, op: int, run: Callable[..., Any], module: nn.Module | None, /, *args: Any, **kwargs: Any) -> Any:
        """The outputs of a call; what its backward pass needs is kept or dropped as planned."""
        if op not in self.sources.involved or not torch.is_grad_enabled() or saved_tensor_hooks_active():
            return run(*args, **kwargs)
        with self.lock:
            record = self._record(op, run, args, kwargs, module) if op in self.sources.runs else None
        packs: list[Pack] = []

        def pack(tensor: torch.Tensor) -> Pack:
            packs.append(Pack(tensor))
            return packs[-1]

        with saved_tensors_hooks(pack, Pack.unpack):
            outputs = run(*args, **kwargs)
        with self.lock:
            given = {_storage(t) for t in tensors((args, kwargs)) if _plain(t)}
            state = () if module is None else (*module.parameters(), *module.buffers())
            fixed = {_storage(t) for t in state if _plain(t)}
            made = [t for t in tensors(outputs) if _plain(t)]
            for position, tensor in enumerate(made):
                if (storage := _storage(tensor)) not in given:
                    self.made[storage] = Made(op, position, record)
            for index, kept in enumerate(packs):
                if _plain(kept.tensor) and (storage := _storage(kept.tensor)) not in fixed:
                    self._settle(op, kept, index, storage, storage in given, record)
            if record is not None:
                record.packs = len(packs)
        return outputs

    def _record(self, op: int, run: Callable[..., Any], args: Any, kwargs: Any, module: nn.Module | None) -> Record:
        states = generator_states() if op in self.sources.random else None
        record = Record(next(self.numbers), op, run, module, states, self.sources.runs[op], self.lock, self.observer)
        occurring = list(tensors((args, kwargs)))
        unique = {id(t): t for t in occurring}  # one object may be several arguments, which some layers ask for
        number = {key: k for k, key in enumerate(unique)}
        record.taken = [self._argument(record, t) for t in unique.values()]
        record.order = [number[id(t)] for t in occurring]
        record.arguments = map_tensors((args, kwargs), lambda t: _EMPTY)
        return record

    def _argument(self, record: Record, tensor: torch.Tensor) -> Held | Part:
        found = self.made.get(_storage(tensor)) if _plain(tensor) else None
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
            return  # an input of the model, or made between calls
        what, producer = (SAVED, op) if found is None else (OUTPUT, found.op)
        source = self.sources.backward.get((op, what, producer), 0)
        if source == HOST:
            if storage not in self.hosted:
                self.hosted[storage] = Hosted(pack.tensor, self.lock)
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


class Pack:
    """What autograd holds in the place of a saved tensor: the tensor, or where to find it."""

    __slots__ = ("part", "tensor", "version")

    def __init__(self, tensor: torch.Tensor):
        self.tensor: Any = tensor.detach()
        self.version = _version(tensor)
        self.part: Part | None = None

    def drop(self, part: Part) -> None:
        """Keep no tensor."""
        self.tensor, self.part = None, part

    def unpack(self) -> torch.Tensor:
        """The tensor."""
        if self.part is not None:
            return self.part.get((id(self), BACKWARD))
        if _version(self.tensor) != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of "
                f"shape {list(self.tensor.shape)} is at version {_version(self.tensor)}; expected version {self.version}"
            )
        return self.tensor  # type: ignore[no-any-return]


class Held:
    """An argument of a record that nothing drops."""

    __slots__ = ("requires_grad", "tensor", "version")

    def __init__(self, tensor: torch.Tensor):
        self.requires_grad, self.version = tensor.requires_grad, _version(tensor)
        self.tensor = tensor if isinstance(tensor, nn.Parameter) else tensor.detach()

    def take(self, op: str) -> torch.Tensor:
        """The argument as the first run had it."""
        if _version(self.tensor) != self.version:
            raise ExecutionError(
                f"{op} cannot run again: a tensor of shape {list(self.tensor.shape)} that it reads was written in place after "
                "it ran; keep its output"
            )
        if isinstance(self.tensor, nn.Parameter):
            return self.tensor
        return self.tensor.detach().requires_grad_(self.requires_grad)


class Part:
    """A tensor in the storage of a result that is had from a record, or from the host."""

    __slots__ = ("layout", "position", "record", "requires_grad")

    def __init__(self, record: Record | Hosted, position: int, tensor: torch.Tensor):
        self.record: Any = record
        self.position, self.requires_grad = position, tensor.requires_grad
        self.layout = (tensor.dtype, tuple(tensor.size()), tensor.stride(), tensor.storage_offset())

    def get(self, reader: tuple[int, int]) -> torch.Tensor:
        """The tensor, for a reader that wants it once."""
        whole: torch.Tensor = self.record.value(self.position, reader)
        return self.of(whole)

    def take(self, op: str) -> torch.Tensor:
        """The tensor as an argument."""
        return self.of(self.record.look(self.position)).detach().requires_grad_(self.requires_grad)

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The same part of a storage."""
        dtype, size, stride, offset = self.layout
        if whole.dtype != dtype:  # a view of another type, or a result that has changed, which `Record` refuses
            whole = torch.empty(0, dtype=dtype, device=whole.device).set_(whole.untyped_storage())
        return whole.as_strided(size, stride, offset)


class Record:
    """A call as it can be made again: up to `runs` times by the plan."""

    def __init__(
        self, number: int, op: int, run: Callable[..., Any], module: nn.Module | None, states: States | None, runs: int,
        lock: Any, observer: Any,
    ):  # fmt: skip
        self.number, self.op, self.function, self.module = number, op, run, module
        self.states, self.runs, self.lock, self.observer = states, runs, lock, observer
        self.context, self.stream = Context(), _stream()
        self.taken: list[Held | Part] = []
        self.order: list[int] = []  # which of `taken` each tensor among the arguments is
        self.arguments: Any = ()
        self.readers: dict[int, set[tuple[int, int]]] = {}  # run -> who reads what it makes
        self.wanted: set[int] = set()  # positions of outputs, ~index of what else is saved
        self.waiting: set[tuple[int, int]] = set()  # those that have not had the results of the last run
        self.values: dict[int, torch.Tensor] = {}  # by position or ~index
        self.made = self.packs = 0

    def wanted_by(self, reader: tuple[int, int], position: int, run: int) -> None:
        """`reader` will ask for a result, after so many runs."""
        self.wanted.add(position)
        self.readers.setdefault(run, set()).add(reader)

    def value(self, position: int, reader: tuple[int, int]) -> torch.Tensor:
        """A result, for a reader that is done with it then."""
        with self.lock:
            found = self.look(position)
            self.had(reader)
            return found

    def look(self, position: int) -> torch.Tensor:
        """A result; where it is not there, this call runs again, and before it those whose results it reads."""
        if position not in self.values:
            for record in self._missing():
                record.again()
        return self.values[position]

    def had(self, reader: tuple[int, int]) -> None:
        """A reader is done; results go with the last."""
        self.waiting.discard(reader)
        if not self.waiting:
            self.values = {}

    def _missing(self) -> list[Record]:
        found, stack = {self.number: self}, [self]
        while stack:
            for part in stack.pop().taken:
                if isinstance(part, Part) and part.position not in part.record.values:
                    if part.record.number not in found:
                        found[part.record.number] = part.record
                        stack.append(part.record)
        return [found[number] for number in sorted(found)]

    def again(self) -> None:
        """Run once more and hold the results."""
        self.made = self.made % self.runs + 1
        count, saved = itertools.count(), {}

        def pack(tensor: torch.Tensor) -> None:
            if ~(index := next(count)) in self.wanted:
                saved[~index] = tensor.detach()

        seen = contextlib.nullcontext() if self.observer is None else self.observer(self.op, self.made)
        with seen, self._as_before():
            taken = [part.take(self.name) for part in self.taken]
            given = iter([taken[k] for k in self.order])
            args, kwargs = map_tensors(self.arguments, lambda _: next(given))
            with saved_tensors_hooks(pack, _never):
                outputs = self.function(*args, **kwargs)
        if (packs := next(count)) != self.packs:
            raise ExecutionError(
                f"{self.name} saved {packs} tensors when it ran again and {self.packs} before; what it does must depend on its "
                "inputs alone to be computed again: keep its output"
            )
        made = enumerate(t for t in tensors(outputs) if _plain(t))
        self.values = {k: t.detach() for k, t in made if k in self.wanted} | saved
        self.waiting = set(self.readers.get(self.made, ())) or {(-1, -1)}
        for part in self.taken:
            if isinstance(part, Part):
                part.record.had((self.number, self.made))

    @property
    def name(self) -> str:
        """What to call it in a message."""
        own = getattr(self.function, "__name__", "function") if self.module is None else type(self.module).__name__
        return f"call {self.op} ({own})"

    @contextlib.contextmanager
    def _as_before(self) -> Iterator[None]:
        """Settings, random numbers, buffers and stream of the first run; what it does to them now is undone."""
        with contextlib.ExitStack() as stack:
            if self.stream is not None:
                stack.enter_context(_on(self.stream))
            if self.module is not None:
                stack.enter_context(_own_buffers(self.module))
            if self.states is not None:
                stack.callback(generator_states().restore)
                self.states.restore()
            stack.enter_context(self.context.entered())
            yield


class Hosted:
    """The storage of a tensor that waits on the host; on CPU devices, which have the host's memory, it stays where it is."""

    def __init__(self, tensor: torch.Tensor, lock: Any):
        self.device, self.dtype, self.lock = tensor.device, tensor.dtype, lock
        flat = _flat(tensor)
        self.away = flat if flat.device.type == "cpu" else _to_host(flat)

    def value(self, position: int, reader: tuple[int, int]) -> torch.Tensor:
        """The storage, back on its device."""
        with self.lock:
            return self.away if self.device.type == "cpu" else self.away.to(self.device, non_blocking=True)


_EMPTY = torch.empty(0)


def _never(packed: Any) -> torch.Tensor:
    raise ExecutionError("a run that only computes activations again has no backward pass")


def _storage(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a part of a storage and nothing else."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
        and not tensor.is_conj() and not tensor.is_neg() and not tensor.is_quantized
    )  # fmt: skip


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor's storage."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)  # type: ignore[call-overload,no-any-return]


def _to_host(flat: torch.Tensor) -> torch.Tensor:
    away = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
    away.copy_(flat, non_blocking=True)
    return away


def _stream() -> Any:
    return torch.cuda.current_stream() if torch.cuda.is_available() and torch.cuda.is_initialized() else None


@contextlib.contextmanager
def _on(stream: Any) -> Iterator[None]:
    """Run on a stream that waits for the present one, which then waits for it."""
    present = torch.cuda.current_stream(stream.device)
    stream.wait_stream(present)
    with torch.cuda.stream(stream):
        yield
    present.wait_stream(stream)


@contextlib.contextmanager
def _own_buffers(module: nn.Module) -> Iterator[None]:
    """Copies in the place of a module's buffers, so that statistics are not updated twice."""
    before = [
        (part, name, buffer)
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    try:
        for part, name, buffer in before:
            part._buffers[name] = buffer.clone()
        yield
    finally:
        for part, name, buffer in before:
            part._buffers[name] = buffer
