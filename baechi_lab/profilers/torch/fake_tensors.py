"""Runs a model on fake tensors: shapes and types without data, so that a model of any size runs anywhere.

Every parameter, buffer and input is replaced by a fake tensor on the CPU, even if it was on the meta device, so that code that
creates tensors gets fake tensors on the same device. Attention and dropout run as the fused kernels that GPUs use, or as a CPU
runs them. Random numbers are really drawn, one for each operator that would draw, so that a trace sees which calls are random.

Operators that read values (`item()`, `nonzero()`) run if the values depend only on integer inputs and on tensors that the
model creates itself (see `known_values`), or if they only ask whether all values are finite. Otherwise `InvalidInput` is
raised. If such values are known, `transformers` takes the same path as with real tensors, so that it omits the same masks.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_unary
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from ...errors import InvalidInput, in_short
from ...torch_runtime.storage import is_wrapper, tensor_bytes
from ...torch_runtime.tree import Args, Kwargs, map_tensors
from ...torch_steps.snapshot import ModelSnapshot
from ...torch_steps.tracing import FailedCall
from ..precision import Precision
from .known_values import KnownValues
from .recurrent import KINDS, PACKING, gru_workspace, lstm_workspace_bytes, run_layers
from .routing import EvenRouting, expert_counts, experts_by_shape
from .values_needed import NEEDS_VALUES, first_line, hook_without_values, lacks_values, refusal, skip_value_checks

if TYPE_CHECKING:
    from torch._ops import OpOverload

DTYPES = {
    **dict.fromkeys(("fp32", "float32"), torch.float32),
    **dict.fromkeys(("bf16", "bfloat16"), torch.bfloat16),
    **dict.fromkeys(("fp16", "float16", "half"), torch.float16),
}

_GROUPED = torch.ops.aten._grouped_mm.default
_DEVICE = torch.ops.prim.device.default
_ONE_AT_A_TIME = threading.RLock()
"""Held while PyTorch is patched: estimates of several threads run one after another."""
_ITEM = torch.ops.aten._local_scalar_dense.default
_REDUCED_IN_PLACE = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy")
)
"""Losses whose mean or sum, one number, lies in memory as large as their input."""
_KEEP_ENTRIES = frozenset({torch.ops.aten.clone.default, torch.ops.aten.add.Tensor})
"""Operators on sparse tensors whose shape functions lose the number of entries."""
_COLUMNS_BACK = torch.ops.aten.col2im.default
_RECURRENT = torch.ops.baechi_lab.recurrent_layer.default
_LSTM = torch.ops.aten.mkldnn_rnn_layer.default
_LSTM_BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default
_BAG_GRADIENT = torch.ops.aten._embedding_bag_backward.default
_DENSE_LIKE = {
    torch.ops.aten.native_batch_norm.default: 0,
    torch.ops.aten.native_batch_norm_backward.default: 1,
    torch.ops.aten.native_layer_norm_backward.default: 1,
}
"""Operators whose first output is contiguous on CPUs, or has channels last like the argument at this position.

The shape functions keep the order of a transposed tensor instead, so that the next layer would need no copy.
"""
MOST_BUFFER_ELEMENTS = 1024
"""Largest number of elements of a buffer whose values are known: sizes and flags, but no masks, which would be computed."""
_UNKNOWN = (UnsupportedFakeTensorException, UnsupportedOperatorException)


def named_dtype(dtype: object, field: str = "dtype") -> torch.dtype | None:
    """Returns a floating-point type by its name, a type itself, or None for None."""
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype in DTYPES.values()):
        return dtype
    name = str(dtype).lower().removeprefix("torch.") if isinstance(dtype, (str, torch.dtype)) else ""
    if name not in DTYPES:
        raise InvalidInput(f"{field} is {in_short(dtype)}; it must be one of {', '.join(DTYPES)}")
    return DTYPES[name]


def types_of_estimate(precision: Precision, dtype: object, autocast: object) -> dict[str, torch.dtype | None]:
    """Returns the options `dtype` and `autocast` of `use_fake_tensors` for those of an estimate.

    Raises:
        InvalidInput: an unknown type, or `precision` beside one of the two others.
    """
    types = {"dtype": named_dtype(dtype), "autocast": named_dtype(autocast, "autocast")}
    named_field = next((field for field, value in types.items() if value is not None), None)
    if named_field is None or precision.dtype is None:
        return types | ({"dtype": named_dtype(precision.dtype)} if named_field is None else {})
    raise InvalidInput(f"precision is {precision.name!r} and {named_field} is given too; give one of them")


@contextmanager
def use_fake_tensors(
    model: nn.Module,
    inputs: object,
    *,
    dtype: torch.dtype | None = None,
    autocast: torch.dtype | None = None,
    observer: OperatorObserver | None = None,
    on_cpu: bool = False,
) -> Iterator[Any]:
    """Runs the body with a fake model, under fake tensors and `observer`; yields the fake inputs.

    Args:
        model: restored afterwards, with everything that it holds besides parameters and buffers.
        inputs: any structure of tensors.
        dtype: type of floating-point parameters, buffers and inputs, as after `model.to(dtype)`.
        autocast: type of matrix products, as under `torch.autocast`.
        observer: a mode that sees every operator that runs.
        on_cpu: run dropout, attention and norms as a CPU does, not as the fused kernels of GPUs.

    Raises:
        InvalidInput: the model reads values that fake tensors do not have, or has parameters without a shape.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = _TwinMaker(mode, dtype)
    observer = observer or OperatorObserver()
    with _ONE_AT_A_TIME, ExitStack() as stack:
        stack.callback(_clear_caches, model)
        stack.enter_context(_swap_tensors(model, fake))
        stack.enter_context(ModelSnapshot(model))  # enters before the fake mode, so that its copies of values are real
        stack.enter_context(mode)
        stack.enter_context(use_fused_kernels(on_cpu))
        stack.enter_context(skip_value_checks())
        stack.enter_context(_use_known_values(observer.values))
        for tensor, twin in fake.twins.values():
            if not isinstance(tensor, nn.Parameter) and tensor.numel() <= MOST_BUFFER_ELEMENTS:
                _store_known(observer, twin, tensor)
        observer.routing = EvenRouting(expert_counts(model), observer.values, experts_by_shape(model))
        stack.enter_context(observer)
        if autocast is not None:
            stack.enter_context(torch.autocast("cpu", dtype=autocast))
        try:
            yield map_tensors(inputs, functools.partial(_fake_input, observer, fake))
        except NEEDS_VALUES as error:
            raise refusal("the model", error) from error
        except FailedCall as error:
            if lacks_values(error.__cause__):
                raise refusal(error.call, error.__cause__) from error.__cause__
            raise
        except _UNKNOWN as error:
            raise InvalidInput(
                f"the model cannot be estimated: {first_line(error)} has no shape function in PyTorch"
            ) from error
        except RuntimeError as error:  # in the backward pass; `run_call` names a call that fails in the forward pass
            raise InvalidInput(
                f"the model cannot be estimated: its step fails without the values of tensors ({first_line(error)}); profile it "
                "measured, with weights (bl.torch.profile(model, inputs))"
            ) from error


def with_full_attention(kwargs: dict[str, object]) -> dict[str, Any]:
    """Replaces attention masks on the meta device, which have no values, by ones: no token is padding.

    >>> with_full_attention({"attention_mask": torch.empty(1, 2, dtype=torch.long, device="meta")})
    {'attention_mask': tensor([[1, 1]])}
    """
    masks = {k: v for k, v in kwargs.items() if k.endswith("attention_mask") and isinstance(v, torch.Tensor)}
    return kwargs | {k: torch.ones_like(v, device="cpu") for k, v in masks.items() if v.is_meta and v.dim() == 2}


def _fake_input(
    observer: OperatorObserver, fake: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor
) -> torch.Tensor:
    """Returns the fake twin of an input; values of integer and boolean inputs are stored as known."""
    fake_tensor = fake(tensor)
    _store_known(observer, fake_tensor, tensor)
    return fake_tensor


def _store_known(observer: OperatorObserver, fake_tensor: torch.Tensor, tensor: torch.Tensor) -> None:
    """Stores the values of a real tensor as known for its fake twin if they are integers or booleans."""
    if not (tensor.is_meta or tensor.is_floating_point() or tensor.is_complex()) and tensor.layout is torch.strided:
        observer.values.store(fake_tensor, tensor)


def _clear_caches(model: nn.Module) -> None:
    """Clears the caches (`functools.lru_cache`) of the model's classes, which would keep fake tensors of this run."""
    classes = {c for m in model.modules() for c in type(m).__mro__ if not c.__module__.startswith("torch.")}
    for attribute in (value for c in classes for value in vars(c).values()):
        function = attribute.__func__ if isinstance(attribute, (staticmethod, classmethod)) else attribute
        cells = (function.__closure__ or ()) if isinstance(function, FunctionType) else ()
        for candidate in (function, *(cell.cell_contents for cell in cells if cell != CellType())):
            if isinstance(candidate, _Cache):
                candidate.cache_clear()


_Cache = type(functools.lru_cache(int))


class _TwinMaker:
    """Creates one fake twin per tensor."""

    def __init__(self, mode: FakeTensorMode, dtype: torch.dtype | None):
        self.mode, self.dtype = mode, dtype
        # keeps the originals alive, so that ids stay theirs
        self.twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self.twins:
            self.twins[id(tensor)] = (tensor, self._make(tensor))
        return self.twins[id(tensor)][1]

    def _make(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_nested:
            raise refusal("the model", AssertionError())
        dtype = self.dtype if self.dtype is not None and tensor.is_floating_point() else tensor.dtype
        shape = tuple(tensor.shape)
        dense = tensor.layout is torch.strided and not tensor.is_quantized
        with self.mode, torch.no_grad():
            data = torch.empty(shape, dtype=dtype, device="cpu")
            data = torch.empty_strided(shape, tensor.stride(), dtype=dtype, device="cpu") if dense else data
            if isinstance(tensor, nn.Parameter):
                twin = nn.Parameter(data, requires_grad=tensor.requires_grad)
                if hasattr(tensor, "stored_bytes"):  # see `quantization`
                    twin.stored_bytes = tensor.stored_bytes
                elif is_wrapper(tensor):
                    twin.stored_bytes = tensor_bytes(tensor)
                for hook in (tensor._backward_hooks or {}).values():
                    twin.register_hook(hook_without_values(hook))
                return twin
        return data.requires_grad_(tensor.requires_grad)


@contextmanager
def _swap_tensors(model: nn.Module, fake: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Swaps in fake parameters and buffers, by assignment, because some modules track the attributes that are set."""
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


_REPLACING = threading.RLock()
"""Held while functions of PyTorch are replaced: two threads at a time would leave a replacement behind."""


def _unfused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Computes attention operator by operator, in float32."""
    number_type, scale = query.dtype, query.shape[-1] ** -0.5 if scale is None else scale
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    query, key, value, mask = (t.float() if t.itemsize == 2 else t for t in (query, key, value, mask))
    scores = (query * scale**0.5) @ (key * scale**0.5).transpose(-2, -1) + mask
    probabilities = torch._safe_softmax(scores, -1)
    return (functional.dropout(probabilities, dropout_p) @ value).to(number_type)


def _runs_unfused(mask: torch.Tensor) -> bool:
    """Whether GPUs run attention with this mask operator by operator: where the numbers of a row are apart in memory.

    A trained mask counts as such, too, because its gradient is known of separate operators only. GPUs have a kernel for it.
    """
    is_trained = mask.requires_grad and torch.is_grad_enabled()
    return is_trained or (mask.shape[-1] > 1 and mask.stride(-1) != 1)


def _mask_of_kernel(mask: torch.Tensor, dims: int) -> torch.Tensor:
    """Returns the mask as PyTorch's choice of a kernel on a CPU accepts it: of two or all dimensions, without a gradient.

    GPUs have a kernel for others, too. It repeats them for all samples and heads.
    """
    if mask.requires_grad:
        mask = mask.detach()
    return mask[(None,) * (dims - mask.dim())] if 2 < mask.dim() < dims else mask


@contextmanager
def use_fused_kernels(on_cpu: bool = False) -> Iterator[None]:
    """Lets this thread call the fused kernels that a GPU would run, in place of the operators that a CPU runs.

    - Dropout keeps a mask of one byte per element.
    - Attention with dropout is the kernel without dropout, and an RMS norm that of a layer norm: their work is the same.
    - A recurrent layer is one kernel over a whole sequence.

    Layers of attention run operator by operator in inference too, because one operator for a whole layer would hide its
    products. Other threads, which may train for real, get the functions as they are.

    With `on_cpu`, only recurrent layers over long sequences are fused. Dropout on a CPU keeps a mask of the type of its input,
    and attention with dropout keeps its scores.
    """
    _REPLACING.acquire()
    own_thread = threading.get_ident()
    fused_functions = {} if on_cpu else _fused_functions(own_thread)
    functions = {name: getattr(functional, name) for name in fused_functions}
    recurrent = {name: getattr(torch._VF, name) for name in (*KINDS, *PACKING)}
    fast_path = torch.backends.mha.get_fastpath_enabled()
    for name, function in fused_functions.items():
        setattr(functional, name, function)
    for name, function in recurrent.items():
        setattr(torch._VF, name, _fused_recurrent(function, own_thread, on_cpu))
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for name, function in functions.items():
            setattr(functional, name, function)
        for name, function in recurrent.items():
            setattr(torch._VF, name, function)
        _REPLACING.release()


def _fused_functions(own_thread: int) -> dict[str, Callable[..., Any]]:
    """Returns the functions of `torch.nn.functional` that run as one kernel on GPUs, for the thread `own_thread`, by name."""
    dropout, attention = functional.dropout, functional.scaled_dot_product_attention
    rms_norm = functional.rms_norm

    @functools.wraps(dropout)
    def fused_dropout(input: object, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        is_other = threading.get_ident() != own_thread
        if is_other or has_torch_function_unary(input) or inplace or not (training and 0 < p < 1):
            return dropout(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    @functools.wraps(attention)
    def fused_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if threading.get_ident() != own_thread:
            return attention(query, key, value, attn_mask, dropout_p, *args, **kwargs)
        if has_torch_function((query, key, value)):  # an interceptor gets this function, with its draw
            arguments = (query, key, value, attn_mask, dropout_p, *args)
            return handle_torch_function(fused_attention, (query, key, value), *arguments, **kwargs)
        if attn_mask is not None and _runs_unfused(attn_mask):
            return _unfused_attention(query, key, value, attn_mask, dropout_p, *args, **kwargs)  # type: ignore[arg-type]
        if attn_mask is not None:
            attn_mask = _mask_of_kernel(attn_mask, query.dim())
        if dropout_p > 0:
            advance_random_generator()
        # No fused kernel shares float32 keys between heads: GPUs compute and keep the scores.
        is_shared = query.itemsize > 2 and query.dim() > 3 and query.shape[-3] != key.shape[-3]
        with sdpa_kernel(SDPBackend.MATH) if is_shared else nullcontext():
            return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    @functools.wraps(rms_norm)
    def fused_rms_norm(
        input: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None
    ) -> torch.Tensor:
        if has_torch_function((input, weight)):
            return handle_torch_function(fused_rms_norm, (input, weight), input, normalized_shape, weight, eps)
        if weight is not None and weight.dtype != input.dtype:  # there is no such kernel
            return rms_norm(input, normalized_shape, weight, eps)
        return functional.layer_norm(input, normalized_shape, weight, eps=eps or 1e-5)

    return {"dropout": fused_dropout, "rms_norm": fused_rms_norm, "scaled_dot_product_attention": fused_attention}


def _fused_recurrent(function: Callable[..., Any], own_thread: int, on_cpu: bool) -> Callable[..., Any]:
    """Returns a function of recurrent layers that runs as one kernel for the thread `own_thread`."""

    @functools.wraps(function)
    def fused(*args: object) -> Any:
        if threading.get_ident() != own_thread:
            return function(*args)
        if has_torch_function(args[:2]):
            return handle_torch_function(fused, args[:2], *args)
        packing = PACKING.get(function.__name__)
        return run_layers(function, on_cpu, *args) if packing is None else packing(*args)

    return fused


@contextmanager
def _use_known_values(values: KnownValues) -> Iterator[None]:
    """Makes fake tensors with known values real for `transformers`, and numbers in texts and lists.

    They are printed as numbers (`f"expert_{index}"`), and `torch.tensor` takes them within a list. Otherwise `transformers`
    creates the mask of padded or packed sequences whenever a mask or positions are fake, because it must not read them.
    """

    def number(tensor: torch.Tensor, spec: str) -> str:
        real = values.of(tensor) if tensor.dim() == 0 else None
        return object.__format__(tensor, spec) if real is None else format(real.tolist(), spec)

    def array(tensor: torch.Tensor, *, force: bool = False) -> NDArray[Any]:
        empty = torch.empty(0, dtype=tensor.dtype)
        with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
            dtype = empty.numpy().dtype
        return np.array(tensor.tolist(), dtype=dtype)

    def tensor_of_numbers(data: object, **options: object) -> torch.Tensor:
        return new_tensor(_as_numbers(data) if isinstance(data, (list, tuple)) else data, **options)

    new_tensor, torch.tensor = torch.tensor, tensor_of_numbers
    library = sys.modules.get("transformers.utils.import_utils")
    before = getattr(library, "is_fake_tensor", None)
    FakeTensor.__format__, FakeTensor.numpy = number, array  # type: ignore[method-assign, assignment]
    if before is not None:
        library.is_fake_tensor = lambda x: before(x) and values.of(x) is None  # type: ignore[union-attr]
    try:
        yield
    finally:
        torch.tensor = new_tensor
        del FakeTensor.__format__, FakeTensor.numpy
        if before is not None:
            library.is_fake_tensor = before  # type: ignore[union-attr]


def _as_numbers(data: object) -> object:
    """Returns nested lists whose fake tensors are numbers. Reading an unknown one raises."""
    if isinstance(data, FakeTensor):
        return data.tolist()
    return [_as_numbers(item) for item in data] if isinstance(data, (list, tuple)) else data


class OperatorObserver(TorchDispatchMode):
    """Sees every operator that runs, and draws a real number whenever an operator would draw.

    Code that asks whether all values are finite, for example to clamp those that are not, gets the answer yes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values = KnownValues()
        self.routing = EvenRouting(frozenset(), self.values)
        self.finite = WeakTensorKeyDictionary()  # tensors of that question -> the answer
        self.on_cpu = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and skipping the check halves the time

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        if func is _DEVICE:  # the answer of FakeTensorMode; the most frequent operator by far
            return args[0].fake_device if isinstance(args[0], FakeTensor) else func(*args)
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            advance_random_generator()
        if func is _ITEM and args[0] in self.finite and self.values.of(args[0]) is None:
            return self.finite[args[0]]
        args = self.values.index(func, args)
        try:
            out = _grouped_mm(*args, **kwargs) if func is _GROUPED else func(*args, **kwargs)
        except NEEDS_VALUES:
            if (answer := self.values.answer(func, args, kwargs)) is None:
                raise
            out = answer[0]
        else:
            self.values.propagate(func, args, kwargs, out)
            self.routing.observe(func, args, kwargs, out)
        if self.on_cpu and func in _DENSE_LIKE and out[0] is not None:
            # Such a result is contiguous, or has channels last if its source has.
            source = args[_DENSE_LIKE[func]]
            memory_format = channels_last_format(source) if channels_come_last(source) else torch.contiguous_format
            out = (out[0].contiguous(memory_format=memory_format), *out[1:])
        if func in _KEEP_ENTRIES and out.layout is torch.sparse_coo:
            # A sparse sum has the entries of all terms, none of them merged, as in a real backward pass.
            out = _with_entries(out, sum(t._values().shape[0] for t in args if isinstance(t, torch.Tensor)))
        elif func is _BAG_GRADIENT and out.layout is torch.sparse_coo and not out._values().shape[0]:
            out = _with_entries(out, args[1].shape[0])  # one per index
        elif func is _LSTM and args[-1]:  # in training
            workspace = out[3].new_empty(lstm_workspace_bytes(args[0], out[0].shape[-1], self.on_cpu))
            out = (*out[:3], workspace)
        elif func is _LSTM_BACKWARD:  # the shape function returns one tensor for the gradients of both biases
            out = (*out[:4], torch.empty_like(out[3]), *out[5:])
        elif self.on_cpu and func is _RECURRENT and out[2].shape[-1] == 3 * out[0].shape[-1]:
            out = (*out[:2], gru_workspace(out[0]))
        elif self.on_cpu and func is _COLUMNS_BACK and args[0].nbytes > out.nbytes:
            out = args[0].new_empty(args[0].numel()).resize_(out.shape)  # lies in memory as large as the input
        elif func in _REDUCED_IN_PLACE and not out.dim() and self.values.of(out) is None:
            out = args[0].new_empty(torch.broadcast_shapes(args[0].shape, args[1].shape)).resize_(())
        if self.finite and func._schema.is_mutable:
            self.finite.pop(args[0], None)
        if func in _ABOUT_FINITE and (finite := _ABOUT_FINITE[func](self.finite, *args)) is not None:
            self.finite[out] = finite
        self.observe(func, args, kwargs, out)
        return out

    def observe(self, func: OpOverload, args: Args, kwargs: Kwargs, out: object) -> None:
        """Handles an operator that has run."""


def _with_entries(out: torch.Tensor, count: int) -> torch.Tensor:
    """Returns a sparse tensor like `out` that has so many entries."""
    values = out._values()
    return torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        out.sparse_dim(),
        out.dense_dim(),
        out.shape,
        out._indices().new_empty(out.sparse_dim(), count),
        values.new_empty(count, *values.shape[1:]),
        layout=torch.sparse_coo,
        dtype=out.dtype,
        device=out.device,
    )


def channels_come_last(tensor: torch.Tensor) -> bool:
    """Whether the channels of each position are next to each other in memory."""
    return tensor.is_contiguous(memory_format=channels_last_format(tensor)) and not tensor.is_contiguous()


def channels_last_format(tensor: torch.Tensor) -> torch.memory_format:
    """Returns the format with channels last, of tensors that have one; else the contiguous one."""
    return {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim(), torch.contiguous_format)


def _common_answer(answers: Any, *args: Any) -> bool | None:
    """Returns the answer that all arguments share, else None."""
    argument_answers = {answers.get(a) if isinstance(a, torch.Tensor) else None for a in args}
    return argument_answers.pop() if len(argument_answers) == 1 else None


_ABOUT_FINITE: dict[OpOverload, Callable[..., bool | None]] = {
    torch.ops.aten.isinf.default: lambda answers, *args: False,
    torch.ops.aten.isnan.default: lambda answers, *args: False,
    torch.ops.aten.ne.Scalar: lambda answers, a, b: True if b == float("inf") else None,
    torch.ops.aten.eq.Scalar: lambda answers, a, b: False if b == float("inf") else None,
    torch.ops.aten.eq.Tensor: lambda answers, a, b: True if a is b else None,
    torch.ops.aten.mul.Tensor: _common_answer,
    torch.ops.aten.logical_or.default: _common_answer,
    torch.ops.aten.bitwise_or.Tensor: _common_answer,
    torch.ops.aten.all.default: _common_answer,
    torch.ops.aten.any.default: _common_answer,
}
"""Operators of `isfinite`, `isinf`, `isnan` and their combinations -> the answer, None if they ask more than that."""


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: Any = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiplies per expert in any precision; PyTorch's own shape function supports only bfloat16."""
    groups = [offs.shape[0]] if a.dim() == b.dim() == 2 else [a.shape[0]] if a.dim() == b.dim() == 3 else []
    return a.new_empty([*groups, a.shape[-2], b.shape[-1]], dtype=out_dtype)


def advance_random_generator() -> None:
    """Advances the random generator."""
    with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
        torch.rand(1)
