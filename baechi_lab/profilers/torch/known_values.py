"""Values of small fake tensors, for code that reads them: masks of ones, positions, integer inputs.

Fake tensors have only shapes. Yet many values that models read do not depend on weights: a padding mask that the model creates,
the sizes of images, the tokens of the sample. The memory of such a tensor has a real twin on the CPU. If all tensor arguments
of an operator have twins, its result gets one too. Views share the twin of their base, and writes in place are repeated on it.

Random tensors, tensors larger than `MOST_ELEMENTS`, tensors that are not written yet, and results of arguments without a twin
have none. Memory loses its twin when such a tensor is written to it. So a value is either that of the step with these inputs,
or unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

from ...torch_runtime.tree import Args, Kwargs, map_tensors, tensors
from .values_needed import RandomDecision

if TYPE_CHECKING:
    from torch._ops import OpOverload

MOST_ELEMENTS = 1 << 24
"""Largest number of elements of a tensor with values, because computing them is real work."""

_aten = torch.ops.aten
_INDEX = _aten.index.Tensor
_SELECT = _aten.masked_select.default
_NUMBER = _aten._local_scalar_dense.default
_PACK = torch.ops.aten._pack_padded_sequence.default
_CTC = _aten._ctc_loss.Tensor
_FILLED: dict[OpOverload, int | None] = {
    _aten.zeros_like.default: 0,
    _aten.ones_like.default: 1,
    _aten.new_zeros.default: 0,
    _aten.new_ones.default: 1,
    _aten.full_like.default: None,
    _aten.new_full.default: None,
}
"""Operators that only read a tensor's type -> the value that they fill in; None for their last argument."""
_EMPTY = frozenset({"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"})
_FAILURES = (RuntimeError, TypeError, ValueError, IndexError)


class KnownValues:
    """Maps the memory of fake tensors to its real twin."""

    def __init__(self) -> None:
        self.twins: dict[int, tuple[StorageWeakRef, torch.Tensor]] = {}
        self.random_memory: dict[int, StorageWeakRef] = {}  # of random numbers, and of what is computed of them alone
        self.invalid_memory: set[int] = set()  # real memory that a fake write has made invalid
        self.sweep_at = 1024

    def store(self, fake: torch.Tensor, real: torch.Tensor) -> None:
        """Stores the values of `real` for the memory of `fake`, which must fill all of its memory."""
        fits = fake.shape == real.shape and fake.dtype == real.dtype and not fake.storage_offset()
        if not fits or fake.layout is not torch.strided or fake.numel() > MOST_ELEMENTS:
            return
        with _without_modes():
            for dim in (d for d, stride in enumerate(fake.stride()) if stride == 0 and real.shape[d]):
                real = real.narrow(dim, 0, 1)  # an expanded input: all share one element
            real_copy = torch.empty_strided(real.size(), fake.stride(), dtype=fake.dtype, device="cpu").copy_(real)
        if len(self.twins) >= self.sweep_at:
            self.twins = {key: twin for key, twin in self.twins.items() if not twin[0].expired()}
            self.sweep_at = 1024 + 2 * len(self.twins)
        storage = fake.untyped_storage()
        self.twins[storage._cdata] = (StorageWeakRef(storage), real_copy)

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns a real tensor with the values of this one, None if they are unknown."""
        if not isinstance(tensor, FakeTensor):
            is_plain = type(tensor) is torch.Tensor and tensor.device.type == "cpu" and tensor.layout is torch.strided
            is_known = is_plain and tensor.numel() <= MOST_ELEMENTS
            return tensor if is_known and tensor.untyped_storage()._cdata not in self.invalid_memory else None
        if tensor.layout is not torch.strided or isinstance(tensor, nn.Parameter):
            return None
        entry = self.twins.get(tensor.untyped_storage()._cdata)
        if entry is None or entry[0].expired():
            return None
        with _without_modes():
            empty = torch.empty(0, dtype=tensor.dtype)
            return empty.set_(entry[1].untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())

    def forget(self, tensor: torch.Tensor) -> None:
        """Marks the values of this memory as unknown."""
        if tensor.layout is not torch.strided:
            return
        key = tensor.untyped_storage()._cdata
        if isinstance(tensor, FakeTensor):
            self.twins.pop(key, None)
        else:
            self.invalid_memory.add(key)

    def propagate(self, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
        """Gives values to the results of an operator if all its arguments have values."""
        written_tensors = list(_written_tensors(func, args, kwargs)) if func._schema.is_mutable else []
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        sources = [t for t in tensors((args, kwargs)) if not (is_random and any(t is w for w in written_tensors))]
        if (is_random or (self.random_memory and any(map(self._is_random, sources)))) and all(
            self._is_random(t) or self.of(t) is not None for t in sources
        ):
            storages = [t.untyped_storage() for t in tensors(out) if t.layout is torch.strided]
            self.random_memory |= {storage._cdata: StorageWeakRef(storage) for storage in storages}
        if func.overloadpacket.__name__ in _EMPTY:
            return
        if func in _FILLED:
            value = args[-1] if _FILLED[func] is None else _FILLED[func]
            if out.numel() <= MOST_ELEMENTS and not isinstance(value, torch.Tensor):
                with _without_modes():
                    real = torch.full(out.shape, value, dtype=out.dtype)
                self.store(out, real)
        elif not written_tensors and not any(
            isinstance(t, FakeTensor) and self._has_new_memory(t, args, kwargs) for t in tensors(out)
        ):
            return  # views, and operators without tensor results
        elif (
            any(not isinstance(t, FakeTensor) for t in written_tensors)
            or (real := self._compute(func, args, kwargs, out)) is None
        ):
            for tensor in written_tensors:
                self.forget(tensor)
        elif not written_tensors:
            for output, value in zip(tensors(out), tensors(real), strict=True):
                self.store(output, value)

    def answer(self, func: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Any] | None:
        """Returns the result of an operator that depends on values (numbers or fake tensors), None if it is unknown.

        Raises:
            RandomDecision: it is a random number.
        """
        if func is _SELECT and (mask := self.of(args[1])) is not None and self.of(args[0]) is None:
            with _without_modes():
                shape = torch.broadcast_shapes(args[0].shape, mask.shape)
                count = int(mask.expand(shape).sum())
            return (args[0].new_empty(count),)
        if func is _CTC and (lengths := self.of(args[3])) is not None:
            with _without_modes():
                states = 2 * int(lengths.max()) + 1
            samples = args[0].shape[1] if args[0].dim() > 2 else 1
            return ((args[0].new_empty(samples), args[0].new_empty(samples, args[0].shape[0], states)),)
        if func is _PACK and (lengths := self.of(args[1])) is not None:
            with _without_modes():
                positions, batch_sizes = func(torch.empty(args[0].shape[:2]), lengths, *args[2:])
            # PyTorch's C++ code reads these.
            return ((args[0].new_empty(len(positions), *args[0].shape[2:]), batch_sizes),)
        real = self._compute(func, args, kwargs, None)
        if real is None:
            if func is _NUMBER and self._is_random(args[0]):
                raise RandomDecision(func)
            return None
        return (map_tensors(real[0], self._fake),)

    def index(self, func: OpOverload, args: Args) -> Args:
        """Replaces boolean masks with known values, in arguments of indexing, by the positions that they select."""
        if func is not _INDEX or not any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1]):
            return args
        indices: list[object] = []
        for position in args[1]:
            mask = self.of(position) if position is not None and position.dtype in (torch.bool, torch.uint8) else None
            if mask is None:
                indices.append(position)
                continue
            with _without_modes():
                positions = mask.nonzero(as_tuple=True)
            indices += [self._fake(p) for p in positions]
        return (args[0], indices, *args[2:])

    def _fake(self, real: torch.Tensor) -> torch.Tensor:
        fake = torch.empty_strided(real.size(), real.stride(), dtype=real.dtype, device="cpu")
        self.store(fake, real)
        return fake

    def _is_random(self, tensor: torch.Tensor) -> bool:
        if tensor.layout is not torch.strided:
            return False
        reference = self.random_memory.get(tensor.untyped_storage()._cdata)
        return reference is not None and not reference.expired()

    def _has_new_memory(self, tensor: torch.Tensor, args: Args, kwargs: Kwargs) -> bool:
        if tensor.layout is not torch.strided:
            return False
        storage_id = tensor.untyped_storage()._cdata
        return all(
            t.layout is not torch.strided or t.untyped_storage()._cdata != storage_id for t in tensors((args, kwargs))
        )

    def _compute(self, func: OpOverload, args: Args, kwargs: Kwargs, out: object) -> tuple[object] | None:
        """Returns the operator's real result if all arguments have values and it is small; None otherwise."""
        if torch.Tag.nondeterministic_seeded in func.tags or sum(t.numel() for t in tensors(out)) > MOST_ELEMENTS:
            return None
        real_tensors = [self.of(t) for t in tensors((args, kwargs))]
        if any(t is None for t in real_tensors):
            return None
        twins = iter(real_tensors)
        args, kwargs = map_tensors((args, kwargs), lambda _: next(twins))
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        try:
            with _without_modes():
                return (func(*args, **kwargs),)
        except _FAILURES:
            return None


def _without_modes() -> Any:
    """Hides what runs within it from all modes: it is not part of the model."""
    return torch._C._DisableTorchDispatch()  # type: ignore[attr-defined]


def _written_tensors(func: OpOverload, args: Args, kwargs: Kwargs) -> Iterator[torch.Tensor]:
    """Yields the tensors that an operator writes in place."""
    for k, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            tensor_argument = args[k] if k < len(args) else kwargs.get(argument.name)
            yield from tensors(tensor_argument)
