"""Tensors inside the tuples, lists and dicts that layers pass around."""

from __future__ import annotations

import dataclasses
import enum
import numbers
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same structure with `change` applied to every tensor; anything that holds no tensor is passed through.

    >>> map_tensors((torch.ones(2), [3]), lambda t: t * 2)
    (tensor([2., 2.]), [3])
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple):
        parts = [map_tensors(v, change) for v in value]
        if type(value) is tuple:
            return tuple(parts)
        # named tuples take their fields one by one, torch's own result types (torch.return_types) take one sequence
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list):
        return [map_tensors(v, change) for v in value]
    if isinstance(value, slice):
        return slice(*(map_tensors(v, change) for v in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        mapped = {k: map_tensors(v, change) for k, v in value.items()}
        return mapped if type(value) is dict else type(value)(mapped)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **{k: map_tensors(v, change) for k, v in held.items()})
    return value


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in `value`, in a fixed order, repeated where it is repeated."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, slice):
        yield from tensors((value.start, value.stop, value.step))
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            yield from tensors(getattr(value, f.name))


def divided(batch: Sequence[torch.Tensor], count: int) -> list[tuple[torch.Tensor, ...]]:
    """The tensors of a batch cut along their first dimension: those of each of `count` micro-batches.

    >>> divided([torch.arange(4)], 2)
    [(tensor([0, 1]),), (tensor([2, 3]),)]
    """
    return [tuple(t.chunk(count)[k] for t in batch) for k in range(count)]


def understood(value: Any) -> bool:
    """Whether every tensor of `value` can be found: no foreign object that might hide one.

    >>> understood((torch.ones(2), {"scale": 2.0})), understood(iter([torch.ones(2)]))
    (True, False)
    """
    return outline(value) is not None


def outline(value: Any) -> Hashable | None:
    """What is known of `value` without reading data, to compare it by; None when it might hide a tensor.

    >>> outline((torch.ones(2), True)) == outline((torch.zeros(2), True))
    True
    """
    if isinstance(value, torch.Tensor):
        return (torch.Tensor, tuple(value.shape), value.dtype, value.device, value.requires_grad)
    if value is None or isinstance(value, PLAIN):
        return (type(value), value)
    if isinstance(value, dict):
        parts: list[Any] = [*map(outline, value), *map(outline, value.values())]
    elif isinstance(value, (tuple, list)):
        parts = [*map(outline, value)]
    elif isinstance(value, slice):
        parts = [*map(outline, (value.start, value.stop, value.step))]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [outline(getattr(value, f.name)) for f in dataclasses.fields(value)]
    else:
        return None
    return None if any(part is None for part in parts) else (type(value), *parts)


PLAIN = (
    numbers.Number, str, bytes, type, range, enum.Enum, type(...), torch.dtype, torch.device, torch.layout,
    torch.memory_format, types.BuiltinFunctionType,
)  # fmt: skip
"""Types whose values hold no tensor."""
