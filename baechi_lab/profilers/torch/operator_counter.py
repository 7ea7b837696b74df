"""Counts the work and the allocations of each call of a trace, operator by operator, on fake tensors.

One forward and backward pass runs under the same interception as a measured profile. A dispatch mode sees every ATen operator
and assigns it to the running call; in the backward pass to the call whose autograd node is running. Operators between calls
belong to the preceding call, and those before all calls to the first one. As in a measured profile, temporary memory is what a
call's operators allocate beyond what remains at its end. Scratch memory within kernels is that of a CPU (`cpu_scratch`), or the
copies that convolutions make in another order.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction

from ...torch_runtime.context import in_backward
from ...torch_runtime.intercept import Frame
from ...torch_runtime.storage import storage_bytes, storage_key, storages, tensor_bytes
from ...torch_runtime.tree import Args, Function, Kwargs, tensors
from ...torch_steps.records import Trace
from ..precision import Precision
from ..work import Kernel
from .convolution_scratch import copied_bytes_on_cpu
from .cpu_scratch import copy_bytes, cpu_scratch_bytes, ordered_bytes
from .fake_tensors import OperatorObserver, channels_come_last
from .kernels import kernel_bytes, kernel_of, trilinear_shapes
from .layers import find_loss_outputs
from .memory import LOSS_KEY, MemoryWatch, temporary_peak
from .quantization import stored_bytes
from .recurrent import lstm_scratch_bytes

if TYPE_CHECKING:
    from torch._ops import OpOverload

_ADD = torch.ops.aten.add.Tensor
_CONVOLUTION = torch.ops.aten.convolution.default
_INTERMEDIATE_RESULTS = {
    **dict.fromkeys(("mse_loss", "smooth_l1_loss", "huber_loss", "dist", "logsumexp"), 1),
    "binary_cross_entropy_with_logits": 2,
    "soft_margin_loss_backward": 3,
    "linalg_matrix_exp": 13,
}
"""Operators -> tensors of the input's size that they make, the result among them if it is not reduced."""
_ROW_OPERATORS = frozenset("native_layer_norm _softmax _log_softmax".split())
_WINDOW_OPERATORS = frozenset(
    "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d "
    "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
    "adaptive_max_pool2d adaptive_max_pool3d pixel_shuffle pixel_unshuffle im2col col2im".split()
)
_ORDERED_BACKWARD = frozenset(
    "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d reflection_pad2d replication_pad2d".split()
)
"""Operators whose gradient is made in the order of its own gradient, then in that of an input with channels last."""
_CHOOSING_LOSSES = frozenset(
    "nll_loss_forward nll_loss2d_forward multi_margin_loss multilabel_margin_loss_forward multi_margin_loss_backward "
    "multilabel_margin_loss_backward".split()
)
"""The operators of these three sets copy inputs whose numbers lie apart on a CPU, such as those of a transposed tensor.

`_CHOOSING_LOSSES` copy every such tensor, the others the first one, and backward passes of `_ROW_OPERATORS` the second, too.
"""
_UPSAMPLING = frozenset("upsample_nearest2d _upsample_nearest_exact2d upsample_bilinear2d upsample_bicubic2d".split())
"""Operators that copy both tensors, unless channels come last or the picture is large."""
LARGEST_UPSAMPLED = 128
"""Height and width together up to which PyTorch upsamples pictures with channels last, other ones in copies."""
_CONVERTING = frozenset("add sub mul div pow maximum minimum clamp sum mean prod cumsum linalg_vector_norm".split())
"""Operators that convert inputs to one type, with or without an underscore."""
_COMPARING = frozenset("eq ne lt le gt ge".split())
"""Operators that convert two inputs to the type that both have in common."""
_COUNTING = frozenset("masked_select masked_scatter_backward".split())
"""Operators that count, in 8 bytes per number, what a mask selects."""
_WRITES_IN_PLACE = {"BinaryCrossEntropyWithLogitsBackward0": (("mul", "sub"), ("add", "mul", "sub"))}
"""Nodes of autograd whose formulas write in place unless a dispatch mode is active: operators -> operators whose results they
overwrite."""
_SPREADING = frozenset("MaxBackward1 MinBackward1 MedianBackward0 NanmedianBackward0".split())
"""Nodes of autograd that divide a gradient among all elements with one value."""
_NOT_RUN = frozenset({"detach", "alias"})
"""Operators that autograd and the interception apply to retained tensors."""

PhaseCall = tuple[str, int]
"""Phase ("f" or "b") and index of a call."""


class Counter(OperatorObserver):
    """Kernels by owner, and allocated (positive) and freed (negative) bytes in order."""

    def __init__(self, precision: Precision | None = None, on_cpu: bool = False) -> None:
        super().__init__()
        self.precision, self.on_cpu = precision or Precision(), on_cpu
        self.owner: PhaseCall | None = None
        self.is_ended = False  # True after the forward pass
        self.output_bytes: dict[int, int] = {}  # memory of the model's outputs
        self.rows: list[tuple[PhaseCall, Kernel]] = []
        self.changes: list[int] = []
        self.alive: dict[int, weakref.finalize] = {}
        self.node: tuple[str, int] | None = None  # the node of autograd that runs
        self.made_by_node: dict[int, str] = {}  # memory that it has allocated -> operator
        self.sum_of: tuple[int, int] | None = None  # memory of a gradient that was added up, length of `changes` then
        # memory of quantized parameters -> stored bytes by bytes of their type
        self.stored_share: dict[int, float] = {}

    def observe(self, func: OpOverload, args: Args, kwargs: Kwargs, out: object) -> None:
        if self.owner is not None and is_model_operator(func):
            kernel = self.precision.kernel(self.kernel_of(func, args, kwargs, out))
            self.rows.append((self.owner, kernel))
            input_storages = {storage_key(t) for t in tensors((args, kwargs))}
            overwritten_memory = self._overwritten(func, args, out)
            for storage in (storage for tensor in tensors(out) for storage in storages(tensor)):
                key = storage._cdata
                if key not in input_storages and key not in self.alive:
                    self.made_by_node[key] = func.overloadpacket.__name__
                    if overwritten_memory is None:
                        self.changes.append(storage.nbytes())
                    else:
                        overwritten_memory.detach()
                    self.alive[key] = weakref.finalize(storage, self._record_release, key, storage.nbytes())
            scratch_bytes = self.scratch_bytes(func, args, out, kernel)
            if scratch_bytes:
                self.changes += [scratch_bytes, -scratch_bytes]

    def scratch_bytes(self, func: OpOverload, args: Args, out: object, kernel: Kernel) -> int:
        """Returns the bytes that an operator holds besides its inputs and outputs: copies and intermediate results."""
        name = func.overloadpacket.__name__
        intermediate_bytes = _intermediate_bytes(name, args, out) + _spread_bytes(name, args)
        if self.on_cpu:
            if name == "mkldnn_rnn_layer":
                return lstm_scratch_bytes(args[0], args[2])
            if name == "mkldnn_rnn_layer_backward":
                return lstm_scratch_bytes(args[0], args[2], args[10])
            if name == "recurrent_layer_backward":  # gradients of weights beside their sum, and of all states
                return 2 * int(args[2].nbytes + args[5].nbytes)
            copied_bytes = _reordered_bytes(name, args, out) + copied_bytes_on_cpu(name, args, out)
            computed_bytes = _counted_bytes(name, args) + cpu_scratch_bytes(name, args, out)
            return intermediate_bytes + _converted_bytes(name, args, out) + copied_bytes + computed_bytes
        is_copied = kernel.layout_bytes > 0 and not kernel.vector_flops
        is_convolution = func is _CONVOLUTION and is_copied and kernel.precision not in ("fp32", "fp64")
        return intermediate_bytes + (int(kernel.moved_bytes) if is_convolution else 0)

    def know_quantized(self, model: nn.Module) -> None:
        """Registers parameters that are stored in fewer bytes than their type has."""
        for p in (p for p in model.parameters() if hasattr(p, "stored_bytes")):
            self.stored_share[storage_key(p)] = stored_bytes(p) / tensor_bytes(p)

    def kernel_of(self, func: OpOverload, args: Args, kwargs: Kwargs, out: object) -> Kernel:
        """Returns the kernel of a call, which reads quantized parameters as they are stored."""
        return kernel_of(func, args, kwargs, out, self._stored_bytes if self.stored_share else kernel_bytes)

    def _stored_bytes(self, tensor: torch.Tensor) -> int:
        return int(kernel_bytes(tensor) * self.stored_share.get(storage_key(tensor), 1.0))

    def _overwritten(self, func: OpOverload, args: Args, out: object) -> weakref.finalize | None:
        """Returns what records the release of the memory that an operator of a node of autograd would overwrite without modes.

        Autograd also adds up gradients in place, if nothing else refers to the first one: then this one is released next.
        """
        node = torch._C._current_autograd_node()  # type: ignore[attr-defined]
        identity = None if node is None else (node.name(), node._sequence_nr())
        if identity != self.node:
            self.node, self.made_by_node = identity, {}
        target, name = args[0] if args else None, func.overloadpacket.__name__
        if identity is None or torch.is_grad_enabled() or not (_is_dense(target) and _is_dense(out)):
            return None
        if target.shape != out.shape or kernel_bytes(target) < out.nbytes:
            return None
        key = storage_key(target)
        is_gradient = key not in self.made_by_node and not isinstance(node, BackwardCFunction)
        if func is _ADD and is_gradient and not target._is_view():  # a view holds its base
            self.sum_of = key, len(self.changes) + 1
        operators, makers = _WRITES_IN_PLACE.get(identity[0], ((), ()))
        return self.alive.pop(key, None) if name in operators and self.made_by_node.get(key) in makers else None

    def _record_release(self, key: int, size: int) -> None:
        self.alive.pop(key, None)
        if self.sum_of == (key, len(self.changes)) and self.changes[-1] == size:
            self.changes.pop()
        else:
            self.changes.append(-size)


def _is_dense(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def is_model_operator(func: OpOverload) -> bool:
    """Whether an operator counts as one that the model runs."""
    return func.namespace != "prim" and func.overloadpacket.__name__ not in _NOT_RUN


def _trilinear_bytes(args: Args) -> int:
    """Returns the bytes of the product of the first two tensors of a bilinear layer, and of its product with the third.

    PyTorch computes them for one index of a dimension at a time, usually dimension 1. The first product is summed over the
    dimensions that the third tensor does not have.

    >>> rows, weight = torch.ones(5, 3), torch.ones(2, 3, 4)
    >>> _trilinear_bytes((rows, weight, torch.ones(5, 4), [1, 3], [0], [1, 2], [2, 3]))    # 4 * (5 * 4 + 5)
    100
    """
    first, second, third = trilinear_shapes(args)
    missing_in_third, summed, unrolled = args[5], args[6], args[7] if len(args) > 7 else 1
    pairs = [max(sizes) for sizes in zip(first, second, strict=True)]
    results = [max(sizes) for sizes in zip(pairs, third, strict=True)]
    pair_count = prod(n for d, n in enumerate(pairs) if d != unrolled and not (d in summed and d in missing_in_third))
    result_count = prod(n for d, n in enumerate(results) if d != unrolled and d not in summed)
    return (pair_count + result_count) * int(args[0].itemsize)


def _intermediate_bytes(name: str, args: Args, out: object) -> int:
    """Returns the bytes of what losses and norms compute per element, or products of three tensors per pair, beside results."""
    if name == "_trilinear":
        return _trilinear_bytes(args)
    if name not in _INTERMEDIATE_RESULTS:
        return 0
    elements = prod(torch.broadcast_shapes(*(t.shape for t in args[:2] if isinstance(t, torch.Tensor))))
    is_reduced = out.numel() < elements  # type: ignore[attr-defined]
    return elements * args[0].itemsize * (_INTERMEDIATE_RESULTS[name] - (not is_reduced))


def _spread_bytes(name: str, args: Args) -> int:
    """Returns the bytes with which the gradient of a maximum or median is divided, beside those of the operators that run here.

    PyTorch counts the elements with this value in 8 bytes each, beside the gradient. It has one mask then. Under a dispatch
    mode it has three, and makes the gradient after it has counted.
    """
    node = torch._C._current_autograd_node() if name == "eq" else None  # type: ignore[attr-defined]
    if node is None or node.name() not in _SPREADING:
        return 0
    return int(args[0].numel()) * (torch.int64.itemsize + args[0].itemsize - 2)


def _converted_bytes(name: str, args: Args, out: object) -> int:
    """Returns the bytes of inputs that a CPU converts to the result's type before it computes, such as masks of bool."""
    if name in _COMPARING and len(args) > 1 and isinstance(args[1], torch.Tensor):
        dtype = torch.result_type(args[0], args[1])
    elif name.rstrip("_") in _CONVERTING:
        dtype = out.dtype  # type: ignore[attr-defined]
    else:
        return 0
    return sum(t.numel() * dtype.itemsize for t in tensors(args) if t.dtype is not dtype and t.dim())


def _counted_bytes(name: str, args: Args) -> int:
    """Returns the bytes in which a CPU counts what a mask selects; with positions, where numbers lie apart or are repeated."""
    if name not in _COUNTING:
        return 0
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    in_order = all(t.shape == shape and t.is_contiguous() for t in args[:2])
    return shape.numel() * torch.int64.itemsize * (1 if in_order else 2)


def _reordered_bytes(name: str, args: Args, out: object) -> int:
    """Returns the bytes of inputs that a CPU copies because their numbers lie apart, and of results that it makes twice."""
    forward_name, backward, _ = name.partition("_backward")
    twice_bytes = 0
    if forward_name in _UPSAMPLING and not backward and isinstance(out, torch.Tensor):
        if "bicubic" in name or sum(out.shape[-2:]) > LARGEST_UPSAMPLED:
            return 0
        return 0 if args[0].is_contiguous(memory_format=torch.channels_last) else int(args[0].nbytes + out.nbytes)
    if name in _CHOOSING_LOSSES:
        inputs = [t for t in args if isinstance(t, torch.Tensor)]
    elif forward_name in _ROW_OPERATORS | _WINDOW_OPERATORS | _UPSAMPLING:
        inputs = list(args[: 2 if backward and forward_name in _ROW_OPERATORS else 1])
    else:
        return 0
    if name == "im2col" and isinstance(out, torch.Tensor) and out.nbytes > args[0].nbytes:
        twice_bytes = args[0].nbytes  # the result is first as large as the input
    if forward_name in _ROW_OPERATORS:
        return ordered_bytes(*inputs)
    if (
        backward
        and forward_name in _ORDERED_BACKWARD
        and channels_come_last(args[1])
        and not channels_come_last(args[0])
    ):
        # The gradient is first made in the other order. Pooling reads positions in this order, too.
        positions = [t for t in args[2:] if isinstance(t, torch.Tensor)]
        twice_bytes = next(tensors(out)).nbytes + sum(t.nbytes for t in positions)
    return twice_bytes + sum(copy_bytes(t) for t in inputs if not (t.is_contiguous() or channels_come_last(t)))


class WorkWatch(MemoryWatch):
    """The handler that passes the running call to the counter, and measures its allocations."""

    def __init__(self, model: nn.Module, trace: Trace, training: bool, counter: Counter):
        super().__init__(model, trace, training, cuda=False)
        self.counter = counter
        self.loss_of: tuple[int, ...] | None = None
        self.rows_at_save: dict[int, int] = {}
        """Call -> the kernels that had run when it saved its last tensor for the backward pass."""

    def record_saved(self, op: int, saved_tensors: list[torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
        self.rows_at_save[op] = len(self.counter.rows)
        return super().record_saved(op, saved_tensors, tensor)

    def call(self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module) -> object:
        outputs = super().call(frame, key, run, args, kwargs, module)
        self.change_end[self.index.get(key, -1)] = len(self.counter.changes)
        if key == LOSS_KEY:
            self.loss_of = find_loss_outputs(list(tensors(args)), outputs)
        return outputs

    def begin(self, frame: Frame, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Makes the first call the owner of what runs before it."""
        if self.index and not in_backward():
            self.counter.owner = ("f", 0)
        return super().begin(frame, args, kwargs)

    def end(self, frame: Frame, outputs: object) -> object:
        """Assigns what runs until the backward pass reaches a call to no call."""
        if not in_backward():
            self.counter.owner, self.counter.is_ended = None, True
            self.counter.output_bytes = {storage_key(t): storage_bytes(t) for t in tensors(outputs)}
        return outputs

    @contextmanager
    def window(self, phase: str, op: int) -> Iterator[None]:
        """Assigns what runs and is allocated within the context to `op`."""
        counter = self.counter
        counter.owner, start = ("f" if phase == "f" else "b", op), len(counter.changes)
        yield
        self.add_temporary(phase, op, temporary_peak(counter.changes[start:]))
        self.add_window(phase, op, start)
