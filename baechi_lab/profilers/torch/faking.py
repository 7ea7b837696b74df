"""A model and its inputs as fake tensors: shapes and types without data, so that a model of any size runs anywhere.

Every parameter, buffer and input is replaced by a fake tensor on the CPU, wherever it was, the meta device included:
code that makes tensors of its own gets fake ones on the same device. Attention and dropout run as the fused kernels that
they are on GPUs; random numbers are drawn for real, one for each operator that would draw, so that a trace sees which
calls are random. What looks at values (`item()`, `nonzero()`) runs where these depend on nothing but integer inputs and
what the model makes itself (see `values`), or asks whether all of them are finite; else it cannot run, and says so.
`transformers` takes the path of real tensors where such values are known, so that it leaves out the same masks.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CellType, FunctionType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_unary
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from ...errors import InvalidInput
from ...torch.runtime.tree import map_tensors
from ...torch.snapshot import ModelSnapshot
from .routing import EvenRouting, expert_counts
from .values import Values

DTYPES = {
    "fp32": torch.float32, "float32": torch.float32, "bf16": torch.bfloat16, "bfloat16": torch.bfloat16,
    "fp16": torch.float16, "float16": torch.float16, "half": torch.float16,
}  # fmt: skip

_SWITCH = "TRANSFORMERS_DISABLE_TORCH_CHECK"
_GROUPED = torch.ops.aten._grouped_mm.default
_DEVICE = torch.ops.prim.device.default
_ITEM = torch.ops.aten._local_scalar_dense.default
_KEEP_ENTRIES = frozenset({torch.ops.aten.clone.default, torch.ops.aten.add.Tensor})
"""Operators on sparse tensors whose shape functions forget how many entries there are."""
_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
_UNKNOWN = (UnsupportedFakeTensorException, UnsupportedOperatorException)


def named_dtype(dtype: Any, field: str = "dtype") -> torch.dtype | None:
    """A floating-point type by its name, itself, or None for none."""
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype in DTYPES.values()):
        return dtype
    name = str(dtype).lower().removeprefix("torch.")
    if name not in DTYPES:
        raise InvalidInput(f"{field} is {dtype!r:.60}; it must be one of {', '.join(DTYPES)}")
    return DTYPES[name]


@contextmanager
def faked(
    model: nn.Module, inputs: Any, *, dtype: torch.dtype | None = None, autocast: torch.dtype | None = None,
    watching: Watching | None = None,
) -> Iterator[Any]:  # fmt: skip
    """Run the body with a fake model, under fake tensors and `watching`; gives the fake inputs.

    Args:
        model: it is as before afterwards, with what it holds besides parameters and buffers.
        inputs: any structure of tensors.
        dtype: floating-point parameters, buffers and inputs have it, as after `model.to(dtype)`.
        autocast: matrix products run in it, as under `torch.autocast`.
        watching: a mode that is told of every operator that runs.

    Raises:
        InvalidInput: the model looks at values that fake tensors do not have, or has parameters without a shape yet.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = _Maker(mode, dtype)
    watching = watching or Watching()
    with ExitStack() as stack:
        stack.callback(_forget, model)
        stack.enter_context(_swapped(model, fake))
        stack.enter_context(ModelSnapshot(model))  # before all tensors that are made are fake, its copies of values too
        stack.enter_context(mode)
        stack.enter_context(_fused())
        stack.enter_context(_unchecked())
        stack.enter_context(_real_where_known(watching.values))
        watching.routing = EvenRouting(expert_counts(model), watching.values)
        stack.enter_context(watching)
        if autocast is not None:
            stack.enter_context(torch.autocast("cpu", dtype=autocast))
        try:
            yield map_tensors(inputs, functools.partial(_with_values, watching, fake))
        except _NEEDS_VALUES as error:
            raise _refusal("the model", error) from error
        except InvalidInput as error:
            if isinstance(error.__cause__, _NEEDS_VALUES):
                raise _refusal(str(error).partition(" failed on")[0], error.__cause__) from error.__cause__
            raise
        except _UNKNOWN as error:
            raise InvalidInput(
                f"the model cannot be estimated: {_first_line(error)} has no shape function in PyTorch"
            ) from error


def with_full_attention(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments; attention masks on the meta device, which have no values, become ones: no token is padding.

    >>> with_full_attention({"attention_mask": torch.empty(1, 2, dtype=torch.long, device="meta")})
    {'attention_mask': tensor([[1, 1]])}
    """
    masks = {k: v for k, v in kwargs.items() if k.endswith("attention_mask") and isinstance(v, torch.Tensor)}
    return kwargs | {k: torch.ones_like(v, device="cpu") for k, v in masks.items() if v.is_meta and v.dim() == 2}


def _with_values(
    watching: Watching, fake: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor
) -> torch.Tensor:
    """The fake twin of an input; of whole numbers and of yes and no, the values are known."""
    made = fake(tensor)
    if not (tensor.is_meta or tensor.is_floating_point() or tensor.is_complex()) and tensor.layout is torch.strided:
        watching.values.put(made, tensor)
    return made


def _forget(model: nn.Module) -> None:
    """Empty the caches (`functools.lru_cache`) of the model's classes: what they keep of this run are fake tensors."""
    own = {c for m in model.modules() for c in type(m).__mro__ if not c.__module__.startswith("torch.")}
    for kept in (value for c in own for value in vars(c).values()):
        function = kept.__func__ if isinstance(kept, (staticmethod, classmethod)) else kept
        cells = (function.__closure__ or ()) if isinstance(function, FunctionType) else ()
        for found in (function, *(cell.cell_contents for cell in cells if cell != CellType())):
            if isinstance(found, _Cache):
                found.cache_clear()


_Cache = type(functools.lru_cache(int))


class _Maker:
    """Fake twins of tensors, one for each."""

    def __init__(self, mode: FakeTensorMode, dtype: torch.dtype | None):
        self.mode, self.dtype = mode, dtype
        self.made: dict[
            int, tuple[torch.Tensor, torch.Tensor]
        ] = {}  # keeps the originals alive, so that ids stay theirs

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self.made:
            self.made[id(tensor)] = (tensor, self._make(tensor))
        return self.made[id(tensor)][1]

    def _make(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self.dtype if self.dtype is not None and tensor.is_floating_point() else tensor.dtype
        shape = tuple(tensor.shape)
        dense = tensor.layout is torch.strided and not tensor.is_quantized
        with self.mode, torch.no_grad():
            made = (
                torch.empty_strided(shape, tensor.stride(), dtype=dtype, device="cpu")
                if dense
                else torch.empty(shape, dtype=dtype, device="cpu")
            )
            if isinstance(tensor, nn.Parameter):
                twin = nn.Parameter(made, requires_grad=tensor.requires_grad)
                if hasattr(tensor, "stored_bytes"):  # see `quantization`
                    twin.stored_bytes = tensor.stored_bytes
                return twin
        return made.requires_grad_(tensor.requires_grad)


@contextmanager
def _swapped(model: nn.Module, fake: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Fake parameters and buffers in the model's modules. Set as attributes, as some modules keep track of theirs."""
    before = [
        (module, name, tensor)
        for module in model.modules()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    ]
    try:
        for module, name, tensor in before:
            setattr(module, name, fake(tensor))
        yield
    finally:
        for module, name, tensor in before:
            setattr(module, name, tensor)


@contextmanager
def _fused() -> Iterator[None]:
    """Kernels of GPUs: one for dropout, which keeps a mask of a byte per element, and one for attention with dropout.

    The latter is that of attention without dropout, whose work is the same.
    """
    dropout, attention = functional.dropout, functional.scaled_dot_product_attention

    @functools.wraps(dropout)
    def fused_dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if has_torch_function_unary(input) or inplace or not (training and 0 < p < 1):
            return dropout(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    @functools.wraps(attention)
    def fused_attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *rest: Any, **kwargs: Any
    ) -> Any:
        if has_torch_function((query, key, value)):  # so that who intercepts functions gets this one, draw and all
            given = (query, key, value, attn_mask, dropout_p, *rest)
            return handle_torch_function(fused_attention, (query, key, value), *given, **kwargs)
        if dropout_p > 0:
            draw()
        return attention(query, key, value, attn_mask, 0.0, *rest, **kwargs)

    functional.dropout, functional.scaled_dot_product_attention = fused_dropout, fused_attention  # type: ignore[assignment]
    try:
        yield
    finally:
        functional.dropout, functional.scaled_dot_product_attention = dropout, attention  # type: ignore[assignment]


@contextmanager
def _unchecked() -> Iterator[None]:
    """Without checks of values in transformers (as many image tokens as images), and PyTorch's own log of what failed."""
    log, before = logging.getLogger("torch._subclasses.fake_tensor"), os.environ.get(_SWITCH)
    disabled, log.disabled, os.environ[_SWITCH] = log.disabled, True, "1"
    swap, torch.utils.swap_tensors = torch.utils.swap_tensors, _replace_data  # within `module.to(...)`
    try:
        yield
    finally:
        log.disabled, torch.utils.swap_tensors = disabled, swap
        if before is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before


def _replace_data(parameter: torch.Tensor, converted: torch.Tensor) -> None:
    """A parameter becomes what it was converted to, as a real one does."""
    parameter.data = converted.data


@contextmanager
def _real_where_known(values: Values) -> Iterator[None]:
    """Fake tensors whose values are known are real ones to `transformers`, and numbers in texts (`f"expert_{index}"`).

    It makes the mask of padded or packed sequences wherever a mask or positions are fake, since it must not look at them.
    """

    def number(tensor: torch.Tensor, spec: str) -> str:
        known = values.of(tensor) if tensor.dim() == 0 else None
        return object.__format__(tensor, spec) if known is None else format(known.tolist(), spec)

    library = sys.modules.get("transformers.utils.import_utils")
    before = getattr(library, "is_fake_tensor", None)
    FakeTensor.__format__ = number  # type: ignore[method-assign]
    if before is not None:
        library.is_fake_tensor = lambda x: before(x) and values.of(x) is None  # type: ignore[union-attr]
    try:
        yield
    finally:
        del FakeTensor.__format__
        if before is not None:
            library.is_fake_tensor = before  # type: ignore[union-attr]


class Watching(TorchDispatchMode):
    """Sees every operator that runs; draws a real number wherever one would draw.

    Code that asks whether all values are finite, as to clamp those that are not, is told that they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values = Values()
        self.routing = EvenRouting(frozenset(), self.values)
        self.finite = WeakTensorKeyDictionary()  # answers to that question, as one of its operators has made them

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and not asking takes half of the time

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:  # as FakeTensorMode answers, and more often than all else together
            return args[0].fake_device if isinstance(args[0], FakeTensor) else func(*args)
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            draw()
        if func is _ITEM and args[0] in self.finite and self.values.of(args[0]) is None:
            return self.finite[args[0]]
        args = self.values.index(func, args)
        try:
            out = _grouped(*args, **kwargs) if func is _GROUPED else func(*args, **kwargs)
        except _NEEDS_VALUES:
            if (answer := self.values.answer(func, args, kwargs)) is None:
                raise
            out = answer[0]
        else:
            self.values.ran(func, args, kwargs, out)
            self.routing.ran(func, args, out)
        if func in _KEEP_ENTRIES and out.layout is torch.sparse_coo:
            out = _with_entries(out, [t for t in args if isinstance(t, torch.Tensor)])
        if self.finite and func._schema.is_mutable:
            self.finite.pop(args[0], None)
        if func in _ABOUT_FINITE and (finite := _ABOUT_FINITE[func](self.finite, *args)) is not None:
            self.finite[out] = finite
        self.saw(func, args, kwargs, out)
        return out

    def saw(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operator ran."""


def _combined(known: Any, *args: Any) -> bool | None:
    """Of answers that are the same: theirs."""
    said = {known.get(a) if isinstance(a, torch.Tensor) else None for a in args}
    return said.pop() if len(said) == 1 else None


_ABOUT_FINITE: dict[Any, Callable[..., bool | None]] = {
    torch.ops.aten.isinf.default: lambda known, *args: False,
    torch.ops.aten.isnan.default: lambda known, *args: False,
    torch.ops.aten.ne.Scalar: lambda known, a, b: True if b == float("inf") else None,
    torch.ops.aten.eq.Scalar: lambda known, a, b: False if b == float("inf") else None,
    torch.ops.aten.eq.Tensor: lambda known, a, b: True if a is b else None,
    torch.ops.aten.mul.Tensor: _combined,
    torch.ops.aten.logical_or.default: _combined,
    torch.ops.aten.bitwise_or.Tensor: _combined,
    torch.ops.aten.all.default: _combined,
    torch.ops.aten.any.default: _combined,
}
"""Operators of `isfinite`, `isinf`, `isnan` and of what is made of them -> the answer, None where it is about more."""


def _grouped(a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """A product per expert in any precision; PyTorch's own shape function knows bfloat16 only."""
    groups = [offs.shape[0]] if a.dim() == b.dim() == 2 else [a.shape[0]] if a.dim() == b.dim() == 3 else []
    return a.new_empty([*groups, a.shape[-2], b.shape[-1]], dtype=out_dtype)


def _with_entries(made: torch.Tensor, terms: list[torch.Tensor]) -> torch.Tensor:
    """A sparse gradient with all entries of what was added; none of them is merged, as in a real backward pass."""
    indices, values = ([getattr(t, part)() for t in terms] for part in ("_indices", "_values"))
    count = sum(part.shape[0] for part in values)
    return torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        made.sparse_dim(), made.dense_dim(), made.shape,
        indices[0].new_empty(made.sparse_dim(), count), values[0].new_empty(count, *values[0].shape[1:]),
        layout=torch.sparse_coo, dtype=made.dtype, device=made.device,
    )  # fmt: skip


def draw() -> None:
    """Advance the random generator."""
    with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
        torch.rand(1)


def _refusal(who: str, error: BaseException) -> InvalidInput:
    return InvalidInput(
        f"{who} looks at the values of tensors ({_first_line(error)}), which an estimate does not have: profile the model "
        "measured, with weights (bl.torch.profile(model, inputs)), or without that part"
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
