"""Tensors inside the tuples, lists, dicts and records that layers pass around."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import inspect
import numbers
import re
import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import nn

from ..errors import InvalidInput

Args = tuple[Any, ...]
"""Positional arguments of a call."""

Kwargs = dict[str, Any]
"""Keyword arguments of a call."""

Function = Callable[..., Any]
"""A function of torch, or the `forward` of a layer."""

T = TypeVar("T")


def as_arguments(
    sample_inputs: object, model: torch.nn.Module | None = None
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Returns positional and keyword arguments from a tensor, a tuple or list, a mapping of keywords, or `(tuple, mapping)`.

    A list of tensors is one argument if the model's `forward` says that it takes a list, as detectors do.

    >>> as_arguments({"x": 1}), as_arguments(((2,), {"x": 1})), as_arguments(([2], 3))
    (((), {'x': 1}), ((2,), {'x': 1}), (([2], 3), {}))
    """
    if any(tensor.is_nested and tensor.layout is torch.strided for tensor in tensors(sample_inputs)):
        raise InvalidInput(
            "sample_inputs has a nested tensor of layout torch.strided, whose sizes PyTorch does not tell; make it with "
            "layout=torch.jagged, or pad its parts to one length"
        )
    # Hugging Face's BatchEncoding is a mapping, but no dict.
    if isinstance(sample_inputs, Mapping) and all(isinstance(key, str) for key in sample_inputs):
        return (), dict(sample_inputs)
    if isinstance(sample_inputs, tuple) and len(sample_inputs) == 2:
        args, kwargs = sample_inputs
        if type(args) is tuple and isinstance(kwargs, Mapping) and all(isinstance(k, str) for k in kwargs):
            return args, dict(kwargs)
    if isinstance(sample_inputs, list) and model is not None and _is_one_argument(sample_inputs, model):
        return (sample_inputs,), {}
    if isinstance(sample_inputs, (tuple, list)):
        return tuple(sample_inputs), {}
    if isinstance(sample_inputs, torch.Tensor):
        return (sample_inputs,), {}
    raise InvalidInput(
        f"sample_inputs is a {type(sample_inputs).__name__}; it must be a tensor, a tuple of positional arguments, "
        "a dict of keyword arguments, or both as (tuple, dict)"
    )


def _is_one_argument(candidates: list[object], model: torch.nn.Module) -> bool:
    """Whether a list of tensors is one argument of `model`. Raises `InvalidInput` if `forward` may take it either way."""
    forward = getattr(type(model), "forward", None)
    if not inspect.isfunction(forward):
        return False
    parameters = list(inspect.signature(forward).parameters.values())[1:]
    positions = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required_positions = [p for p in positions if p.default is p.empty]
    several = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if (
        several
        or len(required_positions) != 1
        or not candidates
        or not all(isinstance(t, torch.Tensor) for t in candidates)
    ):
        return False
    annotation = positions[0].annotation
    if annotation is not inspect.Parameter.empty:
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
        return bool(_LISTED.match(text))
    if 1 < len(candidates) <= len(positions):
        names = ", ".join(p.name for p in positions[: len(candidates)])
        raise InvalidInput(
            f"sample_inputs is a list of {len(candidates)} tensors, which may be the arguments {names} of "
            f"{type(model).__name__} or its {positions[0].name} alone; write a tuple of {len(candidates)} "
            "tensors, or ([...],) for one list"
        )
    return len(candidates) > len(positions)


_LISTED = re.compile(r"(typing\.|collections\.abc\.)?(list|sequence|iterable|collection)\b", re.IGNORECASE)
"""Annotations of a parameter that takes a list."""


def map_tensors(value: T, change: Callable[[torch.Tensor], object]) -> T:
    """Returns the same structure with `change` applied to every tensor; anything that holds no tensor is passed through.

    >>> map_tensors((torch.ones(2), [3]), lambda t: t * 2)
    (tensor([2., 2.]), [3])
    """
    node: Any = value
    new_value: Any = value
    if isinstance(node, torch.Tensor):
        new_value = change(node)
    elif isinstance(node, tuple):
        entries = tuple(map_tensors(v, change) for v in node)
        if type(node) is tuple:
            new_value = entries
        elif hasattr(node, "_fields"):  # a named tuple; its `__new__` may check its fields
            new_value = tuple.__new__(type(node), entries)
        else:  # torch's result types (torch.return_types) take one sequence
            new_value = type(node)(entries)
    elif isinstance(node, list):
        new_value = [map_tensors(v, change) for v in node]
    elif isinstance(node, slice):
        new_value = slice(*(map_tensors(v, change) for v in (node.start, node.stop, node.step)))
    elif type(node) is dict:
        new_value = {k: map_tensors(v, change) for k, v in node.items()}
    elif is_record(node) or isinstance(node, dict):
        new_value = _changed_record(node, change)
    elif _is_batch(node):
        new_value = copy.copy(node)
        new_value.__dict__.update({k: map_tensors(v, change) for k, v in vars(node).items()})
    return cast(T, new_value)


def tensors(value: object) -> Iterator[torch.Tensor]:
    """Yields every tensor in `value`, in a fixed order. A tensor that occurs twice is yielded twice."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from tensors(entry)
    elif isinstance(value, slice):
        yield from tensors((value.start, value.stop, value.step))
    elif isinstance(value, dict) or is_record(value):
        for entry in parts_of(value).values():
            yield from tensors(entry)
    elif _is_batch(value):
        yield from tensors(vars(value))


def is_record(value: object) -> bool:
    """Whether this is an instance of a data class of Python or attrs."""
    kind = type(value)
    return dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__")


def parts_of(value: object) -> dict[tuple[str, object], object]:
    """Returns the contents of a record or dict, each object once: items, fields, and other attributes of the instance."""
    items = {("item", key): entry for key, entry in value.items()} if isinstance(value, dict) else {}
    fields: Any = getattr(type(value), "__dataclass_fields__", None) or getattr(type(value), "__attrs_attrs__", ())
    names = [f if isinstance(f, str) else f.name for f in fields] if is_record(value) else []
    # the outputs of Hugging Face have their items as attributes too
    item_ids = {id(entry) for entry in items.values()}
    attributes = {
        ("attribute", name): getattr(value, name)
        for name in dict.fromkeys([*names, *getattr(value, "__dict__", ())])
        if hasattr(value, name)
    }
    return {**items, **{at: entry for at, entry in attributes.items() if id(entry) not in item_ids}}


def _changed_record(value: object, change: Callable[[torch.Tensor], object]) -> object:
    """Copies a record or dict with `change` applied to its tensors, without running the checks of its class again."""
    if not any(True for _ in tensors(value)):
        return value
    changed_entries = {at: (entry, map_tensors(entry, change)) for at, entry in parts_of(value).items()}
    kind: Any = type(value)
    new_record = kind.__new__(kind)
    if isinstance(value, collections.defaultdict):
        new_record.default_factory = value.default_factory
    base = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
    for (place, key), (_, changed_entry) in changed_entries.items():
        if place == "item":
            base.__setitem__(new_record, key, changed_entry)
    changed_of = {id(entry): changed_entry for entry, changed_entry in changed_entries.values()}
    # The attributes of the object itself, in its `__dict__` or in slots.
    slots = (slot for kind in type(value).__mro__ for slot in _slots(kind))
    for name in [*getattr(value, "__dict__", ()), *(slot for slot in slots if hasattr(value, slot))]:
        entry = getattr(value, name)
        object.__setattr__(new_record, name, changed_of.get(id(entry), entry))
    return new_record


def _slots(kind: type) -> tuple[str, ...]:
    names = kind.__dict__.get("__slots__", ())
    names = (names,) if isinstance(names, str) else tuple(names)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _is_batch(value: object) -> bool:
    """Whether this is a plain object of tensors that can be moved, as torchvision's `ImageList` is.

    It has a `to`, no base class, and attributes that hide nothing. An object that keeps state, such as a cache, does not count.
    """
    kind = type(value)
    if kind.__bases__ != (object,) or not callable(getattr(kind, "to", None)) or not hasattr(value, "__dict__"):
        return False
    attributes = vars(value)
    return any(True for _ in tensors(attributes)) and outline(attributes) is not None


def attribute_tensors(module: nn.Module) -> list[torch.Tensor]:
    """Returns the tensors that a module has as parameters, buffers or plain attributes, those of modules within it included.

    >>> layer = nn.Linear(2, 2)
    >>> layer.scale = torch.ones(1)
    >>> [list(t.shape) for t in attribute_tensors(layer)]
    [[2, 2], [2], [1]]
    """
    return [
        value
        for inner in module.modules()
        for attributes in (inner._parameters, inner._buffers, inner.__dict__)
        for value in attributes.values()
        if isinstance(value, torch.Tensor)
    ]


def split_batch(batch: T, count: int) -> list[T]:
    """Splits a batch along the first dimension of its tensors into `count` micro-batches of the same structure.

    >>> split_batch((torch.arange(4), {"scale": 2}), 2)
    [(tensor([0, 1]), {'scale': 2}), (tensor([2, 3]), {'scale': 2})]

    Raises:
        InvalidInput: a first dimension that is no multiple of `count`.
    """
    uneven = next((t for t in tensors(batch) if count > 1 and (t.dim() == 0 or len(t) % count)), None)
    if uneven is not None:
        raise InvalidInput(
            f"the batch has a tensor of shape {list(uneven.shape)}; its first dimension must be a multiple of the "
            f"{count} micro-batches"
        )

    def micro_batch(tensor: torch.Tensor, k: int) -> torch.Tensor:
        view = tensor.chunk(count)[k]
        # Views count writes together: autograd would refuse what a model writes into another micro-batch.
        return view if view.requires_grad else view.data

    return [map_tensors(batch, lambda t, k=k: micro_batch(t, k)) for k in range(count)]  # type: ignore[misc]


def lists_of_images(value: object) -> Iterator[list[torch.Tensor]]:
    """Lists of tensors that may be one image each (channels, height, width), as detectors take them, at any depth.

    >>> images = [torch.ones(3, 8, 8), torch.ones(3, 8, 8)]
    >>> len(list(lists_of_images((images, {"scale": [torch.ones(2)]})))), list(lists_of_images(tuple(images)))
    (1, [])
    """
    if isinstance(value, list) and value and all(isinstance(t, torch.Tensor) for t in value):
        if all(t.dim() == 3 and t.shape[0] in (1, 3, 4) for t in value):
            yield value
    elif isinstance(value, (tuple, list, dict)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from lists_of_images(entry)


def understood(value: object) -> bool:
    """Whether every tensor of `value` can be found, because no foreign object might hide one.

    >>> understood((torch.ones(2), {"scale": 2.0})), understood(iter([torch.ones(2)]))
    (True, False)
    """
    return outline(value) is not None


def outline(value: object, shapes: bool = False) -> Hashable | None:
    """Returns a hashable description of `value` without data, to compare it by. Returns None if it might hide a tensor.

    With `shapes`, only shape and dtype of tensors count, and a slice that reads a tensor's value gives None.

    >>> outline((torch.ones(2), True)) == outline((torch.zeros(2), True))
    True
    """
    if isinstance(value, torch.Tensor):
        if shapes:
            return None if value.is_nested else (torch.Tensor, tuple(value.shape), value.dtype)
        return (torch.Tensor, tuple(value.shape), value.dtype, value.device, value.requires_grad)
    of = partial(outline, shapes=shapes)
    if value is None or isinstance(value, PLAIN):
        return (type(value), value)
    if isinstance(value, dict):
        outlines: list[object] = [*map(of, value), *map(of, value.values())]
    elif isinstance(value, (tuple, list)):
        outlines = [*map(of, value)]
    elif isinstance(value, slice):
        bounds = (value.start, value.stop, value.step)
        if shapes and any(isinstance(end, torch.Tensor) for end in bounds):
            return None
        outlines = [*map(of, bounds)]
    elif is_record(value):
        outlines = [of(entry) for entry in parts_of(value).values()]
    elif _is_batch(value):
        outlines = [of(vars(value))]
    else:
        return None
    return None if any(entry is None for entry in outlines) else (type(value), *outlines)


PLAIN = (
    numbers.Number,
    str,
    bytes,
    type,
    range,
    enum.Enum,
    type(...),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    types.BuiltinFunctionType,
)
"""Types whose values hold no tensor."""
