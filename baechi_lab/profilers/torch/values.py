"""Values of small fake tensors, for code that looks at them: masks of ones, positions, integer inputs.

Fake tensors have shapes only. Much of what models look at does not depend on weights, though: a padding mask that the model
made itself, the sizes of images, the tokens of the sample. Such memory has a real twin here, on the CPU: of every operator
whose tensors all have one, the result has one too, views share their base's, and what is written in place is written there.
What is random, larger than `MOST_ELEMENTS`, not yet written, or made of anything without a twin has none, and memory loses its
twin when anything such is written there.
So a value is either that of the step with these inputs, or not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

from ...torch.runtime.tree import map_tensors, tensors

MOST_ELEMENTS = 1 << 24
"""Of a tensor with values: real work is done for it."""

_aten = torch.ops.aten
_INDEX = _aten.index.Tensor
_SELECT = _aten.masked_select.default
_FILLED: dict[Any, int | None] = {
    _aten.zeros_like.default: 0, _aten.ones_like.default: 1, _aten.new_zeros.default: 0, _aten.new_ones.default: 1,
    _aten.full_like.default: None, _aten.new_full.default: None,
}  # fmt: skip
"""Operators that look at the type of a tensor only -> what they fill theirs with, None for their last argument."""
_EMPTY = frozenset({"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"})
_FAILS = (RuntimeError, TypeError, ValueError, IndexError)


class Values:
    """Memory of fake tensors -> its real twin."""

    def __init__(self) -> None:
        self.twins: dict[int, tuple[StorageWeakRef, torch.Tensor]] = {}
        self.spoiled: set[int] = set()  # real memory that the model wrote to, which fake tensors do without doing it
        self.sweep_at = 1024

    def put(self, fake: torch.Tensor, real: torch.Tensor) -> None:
        """From here on the memory of `fake`, all of which it fills, has the values of `real`."""
        fits = fake.shape == real.shape and fake.dtype == real.dtype and not fake.storage_offset()
        if not fits or fake.layout is not torch.strided or fake.numel() > MOST_ELEMENTS:
            return
        with _really():
            for dim in (d for d, stride in enumerate(fake.stride()) if stride == 0 and real.shape[d]):
                real = real.narrow(dim, 0, 1)  # of an expanded input: the one element that all others share
            held = torch.empty_strided(real.size(), fake.stride(), dtype=fake.dtype, device="cpu").copy_(real)
        if len(self.twins) >= self.sweep_at:
            self.twins = {key: twin for key, twin in self.twins.items() if not twin[0].expired()}
            self.sweep_at = 1024 + 2 * len(self.twins)
        storage = fake.untyped_storage()
        self.twins[storage._cdata] = (StorageWeakRef(storage), held)

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A real tensor with the values of this one, None where they are not known."""
        if not isinstance(tensor, FakeTensor):
            plain = type(tensor) is torch.Tensor and tensor.device.type == "cpu" and tensor.numel() <= MOST_ELEMENTS
            known = plain and tensor.layout is torch.strided and tensor.untyped_storage()._cdata not in self.spoiled
            return tensor if known else None
        if tensor.layout is not torch.strided or isinstance(tensor, nn.Parameter):
            return None
        found = self.twins.get(tensor.untyped_storage()._cdata)
        if found is None or found[0].expired():
            return None
        with _really():
            empty = torch.empty(0, dtype=tensor.dtype)
            return empty.set_(found[1].untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())

    def forget(self, tensor: torch.Tensor) -> None:
        """The values of this memory are not known any more."""
        if tensor.layout is not torch.strided:
            return
        key = tensor.untyped_storage()._cdata
        if isinstance(tensor, FakeTensor):
            self.twins.pop(key, None)
        else:
            self.spoiled.add(key)

    def ran(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operator ran: what it made has values if all that it read has."""
        written = list(_written(func, args, kwargs)) if func._schema.is_mutable else []
        if func.overloadpacket.__name__ in _EMPTY:
            return
        if func in _FILLED:
            self._fill(func, args, out)
        elif not written and not any(isinstance(t, FakeTensor) and self._fresh(t, args, kwargs) for t in tensors(out)):
            return  # views, and what makes no tensor
        elif (
            any(not isinstance(t, FakeTensor) for t in written)
            or (real := self._computed(func, args, kwargs, out)) is None
        ):
            for tensor in written:
                self.forget(tensor)
        elif not written:
            for made, value in zip(tensors(out), tensors(real), strict=True):
                self.put(made, value)

    def answer(self, func: Any, args: Any, kwargs: Any) -> tuple[Any] | None:
        """What an operator gives whose result depends on values: a number or fake tensors, None where it is not known."""
        if func is _SELECT and (mask := self.of(args[1])) is not None and self.of(args[0]) is None:
            with _really():
                shape = torch.broadcast_shapes(args[0].shape, mask.shape)
                count = int(mask.expand(shape).sum())
            return (args[0].new_empty(count),)
        real = self._computed(func, args, kwargs, None)
        if real is None:
            return None
        return (map_tensors(real[0], self._fake),)

    def index(self, func: Any, args: Any) -> Any:
        """The arguments of an operator; masks with values by which one indexes become the positions that they mean."""
        if func is not _INDEX or not any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1]):
            return args
        found: list[Any] = []
        for given in args[1]:
            mask = self.of(given) if given is not None and given.dtype in (torch.bool, torch.uint8) else None
            if mask is None:
                found.append(given)
                continue
            with _really():
                positions = mask.nonzero(as_tuple=True)
            found += [self._fake(p) for p in positions]
        return (args[0], found, *args[2:])

    def _fake(self, real: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided(real.size(), real.stride(), dtype=real.dtype, device="cpu")
        self.put(made, real)
        return made

    def _fresh(self, tensor: torch.Tensor, args: Any, kwargs: Any) -> bool:
        if tensor.layout is not torch.strided:
            return False
        own = tensor.untyped_storage()._cdata
        return all(t.layout is not torch.strided or t.untyped_storage()._cdata != own for t in tensors((args, kwargs)))

    def _fill(self, func: Any, args: Any, out: torch.Tensor) -> None:
        value = args[-1] if _FILLED[func] is None else _FILLED[func]
        if out.numel() <= MOST_ELEMENTS and not isinstance(value, torch.Tensor):
            with _really():
                real = torch.full(out.shape, value, dtype=out.dtype)
            self.put(out, real)

    def _computed(self, func: Any, args: Any, kwargs: Any, out: Any) -> tuple[Any] | None:
        """The operator's real result, where all that it reads has values and it is small; None otherwise."""
        if torch.Tag.nondeterministic_seeded in func.tags or sum(t.numel() for t in tensors(out)) > MOST_ELEMENTS:
            return None
        given = [self.of(t) for t in tensors((args, kwargs))]
        if any(t is None for t in given):
            return None
        twins = iter(given)
        args, kwargs = map_tensors((args, kwargs), lambda _: next(twins))
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        try:
            with _really():
                return (func(*args, **kwargs),)
        except _FAILS:
            return None


def _really() -> Any:
    """What runs within is no part of the model: no mode sees it."""
    return torch._C._DisableTorchDispatch()  # type: ignore[attr-defined]


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """The tensors that an operator writes in place."""
    for k, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[k] if k < len(args) else kwargs.get(argument.name)
            yield from tensors(given)
