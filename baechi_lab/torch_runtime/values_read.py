"""Finds calls that read the values of tensors. The shape of what they return may differ for inputs of the same shape.

`ValuesRead` watches the operators that a call runs, and the functions of torch that pass values to Python without one.
"""

from __future__ import annotations

import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .tree import Args, Function, Kwargs

_READERS = "item tolist numpy equal allclose is_nonzero __bool__ __int__ __float__ __index__ __complex__ __contains__ __array__"
READERS = frozenset(_READERS.split())
"""Functions that give Python a tensor's values."""

_OPERATORS = frozenset(("aten::equal", "aten::_pack_padded_sequence", "aten::_pad_packed_sequence", "torchvision::nms"))
"""Operators that read values and are not tagged so."""

_INDEX, _ONE_HOT = "aten::index", "aten::one_hot"


class ValuesRead:
    """Whether code within a `with` block reads values, for a shape or for Python: `reads_values`.

    >>> with ValuesRead() as values:
    ...     _ = torch.ones(3)[torch.tensor([0, 2])]
    >>> values.reads_values
    False
    >>> with ValuesRead() as values:
    ...     _ = torch.ones(3)[torch.tensor([True, False, True])]
    >>> values.reads_values
    True
    """

    def __init__(self) -> None:
        self.reads_values = False
        self.modes = (_Operators(self), _Functions(self))

    def __enter__(self) -> ValuesRead:
        self.enabled = torch._C._EnableTorchFunction()  # type: ignore[attr-defined]
        self.enabled.__enter__()
        for mode in self.modes:
            mode.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        for mode in reversed(self.modes):
            mode.__exit__(*exc)
        self.enabled.__exit__(*exc)


class _Operators(TorchDispatchMode):
    def __init__(self, values: ValuesRead):
        super().__init__()
        self.values = values

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        self.values.reads_values |= _reads(func, args)
        return func(*args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    def __init__(self, values: ValuesRead):
        super().__init__()
        self.values = values

    def __torch_function__(
        self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        self.values.reads_values |= getattr(func, "__name__", "") in READERS
        with torch._C.DisableTorchFunction():  # no other mode sees the functions of a layer
            return func(*args, **(kwargs or {}))


def _reads(func: OpOverload, args: Args) -> bool:
    name = func._schema.name
    if name == _INDEX:
        return any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
    if name == _ONE_HOT:
        return len(args) < 2 or args[1] < 0
    tags = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
    return name in _OPERATORS or any(tag in func.tags for tag in tags)
