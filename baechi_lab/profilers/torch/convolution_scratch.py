"""Scratch memory of convolutions on a CPU: mostly oneDNN's copies in another order. One thread is assumed.

Measured with PyTorch 2.13 on processors with AVX-512, by the events of its allocator.
"""

from __future__ import annotations

from math import prod

import torch

from ...torch_runtime.tree import Args
from .cpu_scratch import ordered_bytes
from .fake_tensors import channels_come_last, channels_last_format

BLOCK = 16
"""Channels that oneDNN's convolutions hold together in memory, with AVX-512."""
LARGE_WINDOW_COPIES = 258
"""Sums of a depthwise weight's gradient that oneDNN holds where channels come last and the window is larger than 3."""
LARGEST_WINDOW = 14
"""Width of a window up to which oneDNN computes the gradient of a weight without unfolding the windows."""
PRODUCT_COPIES = 4
"""Copies of a weight's gradient that oneDNN holds where it computes it as a product of unfolded windows."""
PAGE_BYTES = 4096
"""What oneDNN rounds parts of its scratch memory up to."""
SCRATCH_HEADER_BYTES = 400
"""Most bytes of scratch memory beside its parts."""
UNFOLDED_NUMBERS = 20480
"""Numbers of a sample up to which PyTorch unfolds its windows."""


def copied_bytes_on_cpu(name: str, args: Args, out: object) -> int:
    """Returns the bytes that a convolution holds besides its inputs and outputs: mostly oneDNN's copies in another order.

    A small single sample runs without oneDNN, as a product of its unfolded windows. OneDNN's kernels hold `BLOCK` channels
    together. Inputs with fewer are read as they are, and so are tensors whose channels come last in memory. Measured with
    PyTorch 2.13.
    """
    backward = name == "convolution_backward"
    if not backward and name != "convolution":
        return 0
    tensor = args[1] if backward else args[0]
    if tensor.dtype in (torch.float64, torch.float16):
        return _unfolded_batch_bytes(args, backward)
    if tensor.dtype not in (torch.float32, torch.bfloat16):
        return 0
    # What is sliced, permuted or in another order than the input should be is copied before any kernel runs.
    order = channels_last_format(tensor) if channels_come_last(tensor) else torch.contiguous_format
    reordered_bytes = sum(t.nbytes for t in args[: 2 + backward] if not t.is_contiguous(memory_format=order))
    if not backward:
        return reordered_bytes + _copies_of_convolution(args, out)  # type: ignore[arg-type]
    copies = _copies_of_gradients(args)
    return reordered_bytes + (max(copies, _gradients_in_bfloat16(args)) if tensor.dtype is torch.bfloat16 else copies)


def _unfolded_batch_bytes(args: Args, backward: bool) -> int:
    """Returns the bytes of all windows of a batch, and of inputs in order, in types that oneDNN does not compute.

    Dilated windows, and those of the gradients of a transposed convolution, are unfolded sample by sample.
    """
    inputs = args[: 2 + backward]
    tensor, weight = inputs[-2:]
    dilation, is_transposed = args[5 + backward], args[6 + backward]
    groups, samples = args[8 + backward], tensor.shape[0]
    gradient = args[0]
    if not backward:
        strides, padding = args[3], args[4]
        positions = [
            (size + 2 * pad - gap * (window - 1) - 1) // stride + 1
            for size, window, stride, pad, gap in zip(
                tensor.shape[2:], weight.shape[2:], strides, padding, dilation, strict=True
            )
        ]
    else:
        positions = list(gradient.shape[2:])
    if is_transposed:
        positions = list(tensor.shape[2:])
    one_by_one = max(dilation) > 1 or (is_transposed and backward)
    unfolded = weight[0].numel() // (1 if not is_transposed else groups) * prod(positions)
    return ordered_bytes(*inputs) + int(unfolded * (1 if one_by_one else samples) * tensor.itemsize)


def _copies_of_convolution(args: Args, out: torch.Tensor) -> int:
    """Returns the bytes that a convolution holds besides its input, in order, and its output."""
    tensor, weight, strides, groups = args[0], args[1], args[3], args[8]
    if (
        tensor.dtype is torch.bfloat16
        and prod(weight.shape[2:]) == 1
        and groups == 1
        and not channels_come_last(tensor)
    ):
        copies = _blocked_bytes(tensor) + _blocked_bytes(out) + _blocked_weight_bytes(weight)
        copies += _read_positions_bytes(tensor, weight, strides, out)
        product_bytes = copies + SCRATCH_HEADER_BYTES
        if args[6]:
            return max(product_bytes, _copies_of_transposed(tensor, weight, strides, groups, out))
        return product_bytes
    if args[6]:
        if max(args[5]) > 1 or (weight.dim() > 4 and _is_unfolded(tensor, weight)):
            return _copies_of_dilated_transposed(tensor, weight, out)
        return _copies_of_transposed(tensor, weight, strides, groups, out)
    if groups == 1 and _is_unfolded(tensor, weight):
        return _unfolded_bytes(tensor, weight, out) if prod(weight.shape[2:]) > 1 else 0
    if channels_come_last(tensor) and tensor.dtype is torch.bfloat16:
        return weight.nbytes + 2 * PAGE_BYTES + SCRATCH_HEADER_BYTES
    if channels_come_last(tensor):
        return 0 if _is_product(weight, strides) else weight.nbytes
    output_bytes, depthwise = _blocked_bytes(out), weight.shape[1] == 1 < groups
    input_bytes = _blocked_bytes(tensor) if tensor.shape[1] >= BLOCK or depthwise else 0
    weight_bytes, is_blocked = weight.nbytes, groups == 1 and not _is_product(weight, strides)
    if is_blocked and tensor.shape[1] >= BLOCK:
        weight_bytes = _blocked_weight_bytes(weight)
    elif is_blocked or depthwise:
        weight_bytes = _round_up(weight.shape[0], BLOCK) * weight[0].nbytes
    if groups == 1:
        input_bytes += _read_positions_bytes(tensor, weight, strides, out)
    return max(output_bytes + weight_bytes + input_bytes - out.nbytes, output_bytes)


def _copies_of_gradients(args: Args) -> int:
    """Returns the bytes that the gradients of a convolution hold besides their inputs, in order, and their outputs."""
    gradient, tensor, weight, groups = *args[:3], args[9]
    if args[7]:
        return _gradients_of_transposed(args)
    if groups == 1 and _is_unfolded(tensor, weight):
        # Of volumes, windows of one element are copied.
        is_read_in_place = prod(weight.shape[2:]) == 1 and weight.dim() < 5
        return 0 if is_read_in_place else _unfolded_bytes(tensor, weight, gradient)
    depthwise, window = weight.shape[1] == 1 < groups, max(weight.shape[2:])
    if channels_come_last(tensor):
        if depthwise:
            return weight.nbytes * (LARGE_WINDOW_COPIES if window > 3 else 2)
        return 0 if _is_product(weight, args[4]) else weight.nbytes + _copied_weight_bytes(args)
    input_bytes = _blocked_bytes(tensor) if tensor.shape[1] >= BLOCK or depthwise else tensor.nbytes
    # The gradient of the weights reads copies of both tensors, unless groups are small or windows of depthwise ones large.
    copies_both = groups == 1 or tensor.shape[1] // groups >= BLOCK // 2 or (depthwise and window <= 3)
    pair = input_bytes, _blocked_bytes(gradient)
    for_weights = sum(pair) if copies_both else max(pair)
    if groups == 1 and tensor.shape[1] >= BLOCK and weight.dim() < 5 and not _is_product(weight, args[4]):
        for_weights += _blocked_weight_bytes(weight) - weight.nbytes
        for_weights += _read_positions_bytes(tensor, weight, args[4], gradient)
    return max(for_weights, _copied_weight_bytes(args), _copies_of_input_gradient(args))


def _gradients_in_bfloat16(args: Args) -> int:
    """Returns the bytes that gradients of a convolution in bfloat16 hold besides their inputs and outputs.

    They are copies of both tensors in blocks of channels, those of one sample transposed, and the gradient of the weights in
    bfloat16 and in float32, in which it is added up. What has few channels, or channels that come last, is read as it is.
    """
    gradient, tensor, weight, strides, padding, is_transposed = *args[:3], args[4], args[5], args[7]
    weight_bytes = _blocked_weight_bytes(weight)
    if weight.shape[1] == 1 < args[9]:
        return _blocked_bytes(tensor) + _blocked_bytes(gradient) + 2 * int(weight.nbytes) + SCRATCH_HEADER_BYTES
    source, result = (gradient, tensor) if is_transposed else (tensor, gradient)
    stride = strides[-1]
    source_width = _round_up(source.shape[-1] + 2 * padding[-1] + 4 * stride * (stride > 1), 2)
    result_width = _round_up(result.shape[-1], BLOCK if stride > 1 else 2)
    pair = [(source, source_width), (result, result_width)]
    if source.shape[1] < BLOCK and prod(weight.shape[2:]) > 1:
        pair, weight_bytes = pair[1:], weight_bytes // BLOCK * source.shape[1]
    transposed_bytes = sum(_blocked_bytes(t) // (t.shape[0] * t.shape[-1]) * width for t, width in pair)
    copies = weight.nbytes if channels_come_last(tensor) else sum(_blocked_bytes(t) for t, _ in pair)
    sum_bytes = max(weight_bytes - weight.nbytes, 0) + 2 * weight_bytes
    return int(copies + sum_bytes + transposed_bytes) + 2 * PAGE_BYTES + SCRATCH_HEADER_BYTES


def _read_positions_bytes(tensor: torch.Tensor, weight: torch.Tensor, strides: list[int], out: torch.Tensor) -> int:
    """Returns the bytes of the positions of a sample that windows of one element read if they have strides; otherwise 0."""
    if prod(weight.shape[2:]) > 1 or max(strides) == 1:
        return 0
    return int(tensor.shape[1] * prod(out.shape[2:]) * tensor.itemsize) + SCRATCH_HEADER_BYTES


def _blocked_weight_bytes(weight: torch.Tensor) -> int:
    """Returns the bytes of weights in blocks of both kinds of channels."""
    return prod(_round_up(c, BLOCK) for c in weight.shape[:2]) * prod(weight.shape[2:]) * weight.itemsize


def _copies_of_input_gradient(args: Args) -> int:
    """Returns the bytes that the gradient of a convolution's input holds besides the outputs of `convolution_backward`.

    It is made first, in blocks of channels, from copies of the other gradient and of the weights. The gradient of the weights
    does not exist yet.
    """
    gradient, tensor, weight, groups = *args[:3], args[9]
    needs_input, needs_weights, _ = args[10]
    if not needs_input or groups > 1 or _is_product(weight, args[4]):
        return 0
    if max(args[4]) > 1:  # a transposed convolution
        return _copies_of_transposed(gradient, weight, args[4], groups, tensor) - int(weight.nbytes * needs_weights)
    output_bytes = tensor.nbytes + weight.nbytes * needs_weights
    return _blocked_bytes(gradient) + _blocked_weight_bytes(weight) + _blocked_bytes(tensor) - int(output_bytes)


def _is_product(weight: torch.Tensor, strides: list[int]) -> bool:
    """Whether a convolution is a product of matrices: windows of one element, at each position."""
    return prod(weight.shape[2:]) == max(strides) == 1


def _unfolded_bytes(tensor: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> int:
    """Returns the bytes of the unfolded windows of one sample."""
    return weight[0].numel() * prod(out.shape[2:]) * tensor.itemsize


def _unfolded_transposed_bytes(tensor: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> int:
    """Returns the bytes of the unfolded windows of a sample; of volumes, also of a copy of the input or of ones for the bias."""
    copy_bytes = max(tensor.nbytes, prod(out.shape[2:]) * out.itemsize) if weight.dim() > 4 else 0
    return _unfolded_bytes(tensor, weight, tensor) + copy_bytes


def _copies_of_transposed(
    tensor: torch.Tensor, weight: torch.Tensor, strides: list[int], groups: int, out: torch.Tensor
) -> int:
    """Returns the bytes that a transposed convolution holds besides its input and output.

    They are the output twice, or scratch memory of the kernel and copies of the input and of the weights. Without strides the
    kernel is that of a convolution, and all copies are in blocks of channels.
    """
    if groups > 1 and max(strides) == 1:
        return max(out.nbytes, _blocked_bytes(tensor) + weight.nbytes + _blocked_bytes(out) - out.nbytes)
    if groups > 1 or _is_product(weight, strides):
        return out.nbytes
    if _is_unfolded(tensor, weight):
        return _unfolded_transposed_bytes(tensor, weight, out)
    if max(strides) == 1 and weight.shape[-1] > LARGEST_WINDOW:
        copies = _unfolded_bytes(tensor, weight, tensor) + out.nbytes + SCRATCH_HEADER_BYTES
    elif max(strides) == 1:
        copies = 2 * _blocked_bytes(out) + _blocked_bytes(tensor) + _blocked_weight_bytes(weight) - out.nbytes
    else:
        is_wide = weight.shape[1] == 1 and weight.shape[-1] > LARGEST_WINDOW
        block = BLOCK // 2 if is_wide else BLOCK
        weight_bytes = weight.nbytes // weight.shape[1] * _round_up(weight.shape[1], block)
        copies = _strided_scratch_bytes(tensor, weight, strides, out) + tensor.nbytes + weight_bytes
    return int(max(2 * out.nbytes, copies))


def _strided_scratch_bytes(tensor: torch.Tensor, weight: torch.Tensor, strides: list[int], out: torch.Tensor) -> int:
    """Returns the scratch memory of a transposed convolution with strides: a sample with the margins that windows read.

    Where the output's sizes are no multiples of the strides, a copy of the output and rows of it as well.
    """
    margins = [2 * ((window - 1) // stride) for window, stride in zip(weight.shape[2:], strides, strict=True)]
    positions = prod(size + margin for size, margin in zip(tensor.shape[2:], margins, strict=True))
    sample_bytes = _round_up(tensor.shape[1] * positions * tensor.itemsize, 4 * PAGE_BYTES)
    is_uneven = any(size % stride for size, stride in zip(out.shape[2:], strides, strict=True))
    pages = 7 if tensor.dtype is torch.bfloat16 else 5
    uneven_bytes = 5 * PAGE_BYTES + out.nbytes + 4 * out.shape[1] * out.shape[-1] * out.itemsize
    return pages * PAGE_BYTES + SCRATCH_HEADER_BYTES + sample_bytes + is_uneven * uneven_bytes


def _copies_of_dilated_transposed(tensor: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> int:
    """Returns the bytes of a transposed convolution with dilated windows, or of one volume.

    They are those of copies in blocks, or of the unfolded windows of one sample.
    """
    if tensor.shape[0] == 1:
        return _unfolded_transposed_bytes(tensor, weight, out)
    return _blocked_bytes(out) + _blocked_bytes(tensor) + _blocked_weight_bytes(weight) - out.nbytes


def _gradients_of_transposed(args: Args) -> int:
    """Returns the bytes that the gradients of a transposed convolution hold besides their inputs and outputs."""
    gradient, tensor, weight, strides = args[0], args[1], args[2], args[4]
    if max(args[6]) > 1 or (weight.dim() > 4 and _is_unfolded(tensor, weight)):
        copies = PRODUCT_COPIES * weight.nbytes if tensor.shape[0] > 1 else 0
        return _unfolded_bytes(tensor, weight, tensor) + copies
    if _is_product(weight, strides):
        return 0
    if _is_unfolded(tensor, weight):
        return _unfolded_bytes(tensor, weight, tensor)
    # Few channels are in blocks of 8; a gradient with fewer than 4 is read as it is.
    has_blocks = gradient.shape[1] >= BLOCK // 4
    block = BLOCK // 2 if has_blocks and gradient.shape[1] < BLOCK else BLOCK
    outputs = _round_up(weight.shape[1], block) if has_blocks else weight.shape[1]
    weight_bytes = weight.nbytes // prod(weight.shape[:2]) * _round_up(weight.shape[0], block) * outputs
    copies = _blocked_bytes(tensor, block) + _blocked_bytes(gradient, block) * has_blocks + weight_bytes - weight.nbytes
    return max(copies, weight_bytes, _copied_weight_bytes(args))


def _copied_weight_bytes(args: Args) -> int:
    """Returns the bytes of the copies of a weight's gradient in `convolution_backward`, on one thread.

    The gradient is made in blocks of channels. Windows that are wider than `LARGEST_WINDOW`, higher than the input with their
    dilation, or deeper than 1 run as a product of the unfolded windows of a sample: its scratch memory has `PRODUCT_COPIES` of
    the weight's size.
    """
    gradient, tensor, weight, strides, dilation, is_transposed = args[0], args[1], args[2], args[4], args[6], args[7]
    window, depthwise = weight.shape[2:], weight.shape[1] == 1 < args[9]
    if depthwise or _is_product(weight, strides):
        return 0
    height = (window[-2] - 1) * dilation[-2] + 1 if len(window) > 1 else 1
    is_high = len(window) > 1 and (height > tensor.shape[-2] or (len(window) == 3 and window[0] > 1))
    if window[-1] > LARGEST_WINDOW or (is_high and not is_transposed):
        positions = (tensor if is_transposed else gradient).shape[2:][-2:]
        unfolded_bytes = int(weight[0].numel() * prod(positions) * tensor.itemsize)
        return PRODUCT_COPIES * int(weight.nbytes) + unfolded_bytes
    blocked_channels = [_round_up(channels, BLOCK) if channels >= BLOCK else channels for channels in weight.shape[:2]]
    return int(prod(blocked_channels) * prod(window) * weight.itemsize)


def _is_unfolded(tensor: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether PyTorch unfolds the windows of a sample instead of calling oneDNN (`ConvParams::use_mkldnn`)."""
    numbers = prod(tensor.shape[:4])  # without the width of volumes, which PyTorch leaves out
    small = tensor.shape[0] == 1 and numbers <= UNFOLDED_NUMBERS and tensor.dtype is torch.float32
    return small and not (weight.dim() > 3 and min(weight.shape[-2:]) > 3)


def _blocked_bytes(tensor: torch.Tensor, block: int = BLOCK) -> int:
    channels = int(tensor.shape[1])
    return tensor.nbytes // max(channels, 1) * _round_up(channels, block)


def _round_up(number: int, block: int) -> int:
    return -(-number // block) * block
