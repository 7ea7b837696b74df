"""Scratch memory of PyTorch's operators on a CPU: copies in order, counts, buffers of kernels. One thread is assumed.

Measured with PyTorch 2.13 by the events of its allocator. Convolutions are in `convolution_scratch`, recurrent layers in
`recurrent`, decompositions of matrices in `lapack_scratch`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch

from ...torch_runtime.tree import Args, tensors
from .lapack_scratch import LAPACK, transposing_bytes

Rule = Callable[[Args, object], int]

_INDEX_BYTES = torch.int64.itemsize

_LEAST_BLOCKED = 4096
"""Products of so many multiplications run without oneDNN's blocks."""


def cpu_scratch_bytes(name: str, args: Args, out: object) -> int:
    """Returns the bytes that an operator named `name` holds besides its inputs and outputs, by the rules of this module.

    >>> cpu_scratch_bytes("median", (torch.ones(3, 5),), torch.ones(()))    # a copy that is partly sorted
    60
    """
    rule = _RULES.get(name)
    return 0 if rule is None else rule(args, out)


def copy_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of a copy of a tensor in order, and of the block in which a matrix is transposed.

    >>> copy_bytes(torch.ones(70, 60).T)    # 4 * (70 * 60 + 60 * 60)
    31200
    """
    is_transposed = tensor.dim() == 2 and tensor.stride() == (1, tensor.shape[0])
    return tensor.numel() * tensor.itemsize + (transposing_bytes(tensor) if is_transposed else 0)


def fills_memory(tensor: torch.Tensor) -> bool:
    """Whether each element has a place of its own, without gaps between them, in any order.

    >>> fills_memory(torch.ones(2, 3).T), fills_memory(torch.ones(1).expand(3))
    (True, False)
    """
    span = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return span == tensor.numel()


def ordered_bytes(*inputs: torch.Tensor) -> int:
    """Returns the bytes of the copies that an operator makes of inputs whose numbers lie apart."""
    return sum(copy_bytes(t) for t in inputs if not t.is_contiguous())


def _copies(*positions: int) -> Rule:
    """Returns the rule of an operator that copies the inputs at these positions, where their numbers lie apart."""
    return lambda args, out: ordered_bytes(*(t for t in map(args.__getitem__, positions) if torch.is_tensor(t)))


def _repeated_copy(args: Args, out: object) -> int:
    """Returns the bytes of a copy of the first input where several of its elements lie at one place, as in expanded tensors."""
    tensor = args[0]
    return 0 if fills_memory(tensor) else int(tensor.numel() * tensor.itemsize)


def _triangle(args: Args, out: object) -> int:
    """Returns the bytes of a copy of a batch of matrices."""
    return ordered_bytes(args[0]) if args[0].dim() > 2 else 0


def _per_element(size: int) -> Rule:
    return lambda args, out: size * int(args[0].numel())


def _operand_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of a copy of a matrix that a product cannot read: neither rows nor columns lie in order in memory.

    Of a batch, one matrix after another is copied.

    >>> _operand_bytes(torch.ones(4, 3).T), _operand_bytes(torch.ones(1, 1).expand(4, 3))
    (0, 48)
    """
    if tensor.is_conj():
        return tensor.nbytes
    (rows, columns), (row_stride, column_stride) = tensor.shape[-2:], tensor.stride()[-2:]
    by_rows = (column_stride == 1 or columns == 1) and row_stride >= max(columns, 1)
    by_columns = (row_stride == 1 or rows == 1) and column_stride >= max(rows, 1)
    return 0 if by_rows or by_columns else rows * columns * tensor.itemsize


def _product(first: int) -> Rule:
    """Returns the rule of a product of the two arguments from position `first`."""

    def rule(args: Args, out: object) -> int:
        operands = args[first : first + 2]
        copied_bytes = [(t, _operand_bytes(t)) for t in operands if t.dim() > 1]
        if len(copied_bytes) == 2 and (block_bytes := _block_bytes(*operands)):
            return block_bytes + sum(t.nbytes for t, size in copied_bytes if size)  # a batch is copied as a whole
        return sum(size for _, size in copied_bytes)

    return rule


def _block_bytes(matrix: torch.Tensor, factor: torch.Tensor) -> int:
    """Returns the bytes of blocks of matrices in bfloat16, which oneDNN multiplies: operands in its order, sums in float32.

    They are at most these: a first matrix that lies in order by columns may have smaller blocks.

    >>> _block_bytes(torch.ones(32, 64).bfloat16(), torch.ones(64, 64).bfloat16())    # 1024 + 2 * 64 * 64 + 4 * 32 * 64
    17408
    """
    rows, columns = matrix.shape[-2], factor.shape[-1]
    if matrix.dtype is not torch.bfloat16 or matrix.numel() * columns <= _LEAST_BLOCKED:
        return 0
    depth = min(-(-matrix.shape[-1] // 32) * 32, 1024)
    block_rows, block_columns = min(rows, 256), min(columns, 64)
    matrix_bytes = 2 * block_rows * (depth + 32) + 128 if matrix.stride(-2) == 1 < matrix.stride(-1) else 0
    return 1024 + matrix_bytes + 2 * depth * 64 + 4 * block_rows * block_columns


def _median(args: Args, out: object) -> int:
    """Returns the bytes of a copy: of all numbers, or where those of the dimension lie apart."""
    tensor = args[0]
    if len(args) == 1:
        return int(tensor.nbytes)
    is_apart = tensor.dim() > 0 and tensor.stride(args[1]) != 1
    return int(tensor.nbytes) + transposing_bytes(tensor) if is_apart else 0


def _sort(args: Args, out: object) -> int:
    """Returns the bytes of the order of one row. `stable` comes before the dimension in `sort.stable`."""
    dimension = next((a for a in args[1:] if type(a) is int), -1)
    return args[0].shape[dimension] * _INDEX_BYTES if args[0].dim() else 0


def _flash_attention(args: Args, out: object) -> int:
    """Returns the bytes of a block of scores, its statistics and its results; 16-bit scores are there in both types."""
    query, key, value = args[:3]
    rows, columns = _attention_block(query, key)
    scores = rows * columns
    number = max(query.itemsize, 4)
    return number * (scores + 2 * rows + rows * value.shape[-1]) + (2 * scores if query.itemsize == 2 else 0)


def _flash_attention_backward(args: Args, out: object) -> int:
    """Returns the bytes of two blocks of scores and a statistic, and of the gradient position by position.

    Blocks of 16 bits are packed, too.
    """
    gradient, query, key = args[:3]
    rows, columns = _attention_block(query, key)
    block_bytes = max(query.itemsize, 4) * (2 * rows * columns + rows)
    if query.itemsize == 2:
        block_bytes = 2 * (block_bytes + 4 * rows * columns)
    return ordered_bytes(gradient.transpose(1, 2)) + block_bytes


def _attention_block(query: torch.Tensor, key: torch.Tensor) -> tuple[int, int]:
    """Returns how many queries and keys one block has."""
    queries, keys = query.shape[-2], key.shape[-2]
    rows = 256 if queries >= 768 else 64 if queries >= 192 else 32
    return min(rows, queries), min(512, keys)


def _safe_softmax(args: Args, out: object) -> int:
    """Returns the bytes of the mask of minus infinity, and of whole rows of it."""
    tensor = args[0]
    return tensor.numel() + tensor.numel() // max(tensor.shape[args[1]], 1) + tensor.itemsize if tensor.dim() else 0


def _embedding_bag(args: Args, out: object) -> int:
    indices, offsets, mode = args[1], args[2], args[4] if len(args) > 4 else 0
    return (0, 4 * (indices.numel() + offsets.numel()), _INDEX_BYTES * offsets.numel())[mode]


def _embedding_bag_backward(args: Args, out: object) -> int:
    """Returns the bytes of orders and counts of indices; of the gradient in order, and of maxima with their indices."""
    gradient, indices, mode, is_sparse = args[0], args[1], args[8], args[9]
    weights = args[10] if len(args) > 10 else None
    weight_bytes = 0 if weights is None else weights.nbytes
    if is_sparse:
        return int(weight_bytes + (indices.numel() + 1) * _INDEX_BYTES)
    if mode == 2:
        largest_bytes = gradient.numel() * (gradient.itemsize + _INDEX_BYTES) + gradient.shape[0] * _INDEX_BYTES
        return ordered_bytes(gradient) + int(largest_bytes)
    count_bytes = indices.numel() * _INDEX_BYTES * (4 if mode == 0 else 3) + _INDEX_BYTES
    return ordered_bytes(gradient) + int(weight_bytes + count_bytes)


def _scatter_reduce(args: Args, out: object) -> int:
    """Returns the bytes of the counts of a mean, of the ones that are counted, and of the mask of those without any."""
    tensor, source = args[0], args[3]
    return int(tensor.nbytes + source.nbytes + tensor.numel()) if args[4] == "mean" else 0


def _index_reduce(args: Args, out: object) -> int:
    return int(args[0].nbytes + args[3].nbytes) if args[4] == "mean" else 0


def _roll(args: Args, out: object) -> int:
    """Returns the bytes of the results of all shifts but the last one; of the input in order where it is shifted as one row."""
    if len(args) < 3 or not args[2]:
        return ordered_bytes(args[0])
    return int(args[0].nbytes) * min(len(args[1]) - 1, 2)


def _fourier_from_complex(args: Args, out: object) -> int:
    """Returns the bytes of copies of the input, which a transform over several dimensions overwrites."""
    tensor, dimensions = args[0], args[1]
    if len(dimensions) == 1 and tensor.is_contiguous() and dimensions[0] in (-1, tensor.dim() - 1):
        return 0
    return int(tensor.nbytes) * (2 if 1 < len(dimensions) < tensor.dim() else 1)


def _fourier_complex(args: Args, out: object) -> int:
    tensor, dimensions = args[0], args[1]
    is_in_order = bool(dimensions) and min(tensor.stride(d) for d in dimensions) == 1
    return 0 if is_in_order and fills_memory(tensor) else int(tensor.nbytes)


def _euclidean(args: Args, out: object) -> int:
    """Returns the bytes of both sets of points with two more coordinates, whose product is the squared distance."""
    first, second = args[:2]
    return int(sum(t.itemsize * prod(t.shape[:-1]) * (t.shape[-1] + 2) for t in (first, second)))


def _affine_grid(args: Args, out: object) -> int:
    """Returns the bytes of the positions, with a 1 beside the coordinates of each."""
    theta, size = args[:2]
    return int(theta.itemsize * size[0] * prod(size[2:]) * (len(size) - 1))


def _upsample_smoothly(args: Args, out: object) -> int:
    """Returns the bytes of a picture that is resized in its width only, and of weights per row and column."""
    tensor, sizes = args[0], args[1]
    return int(tensor.itemsize * prod(tensor.shape[:-1]) * sizes[1] + 40 * sum(sizes))


def _upsample_indices(bytes_per_position: int) -> Rule:
    """Returns the rule of an operator with indices and weights for each position of each dimension."""
    return lambda args, out: bytes_per_position * sum(next(tensors(out)).shape[2:])


def _absolute(args: Args, out: object) -> int:
    return int(args[0].nbytes) if args[0].is_complex() else 0


def _truth(args: Args, out: object) -> int:
    return 0 if args[0].dtype is torch.bool else int(args[0].numel())


_RULES: dict[str, Rule] = {
    **LAPACK,
    "median": _median,
    "nanmedian": _median,
    "sort": _sort,
    "kthvalue": lambda args, out: int(args[0].numel() * (args[0].itemsize + _INDEX_BYTES)) if args[0].dim() else 0,
    "multinomial": lambda args, out: int(args[0].nbytes),
    "mm": _product(0),
    "bmm": _product(0),
    "addmm": _product(1),
    "addmm_": _product(1),
    "baddbmm": _product(1),
    "_scaled_dot_product_flash_attention_for_cpu": _flash_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _flash_attention_backward,
    "_safe_softmax": _safe_softmax,
    "_ctc_loss_backward": lambda args, out: int(args[6].nbytes),
    "_embedding_bag": _embedding_bag,
    "_embedding_bag_backward": _embedding_bag_backward,
    "embedding_dense_backward": _copies(0),
    "scatter_reduce": _scatter_reduce,
    "index_reduce": _index_reduce,
    "roll": _roll,
    "_fft_c2r": _fourier_from_complex,
    "_fft_r2c": _repeated_copy,
    "_fft_c2c": _fourier_complex,
    "_euclidean_dist": _euclidean,
    "_cdist_forward": _copies(0, 1),
    "_cdist_backward": _copies(1, 2),
    "affine_grid_generator": _affine_grid,
    "_upsample_bilinear2d_aa": _upsample_smoothly,
    "_upsample_bicubic2d_aa": _upsample_smoothly,
    "upsample_linear1d": _upsample_indices(24),
    "upsample_trilinear3d": _upsample_indices(24),
    "upsample_bicubic2d": _upsample_indices(48),
    **dict.fromkeys(
        ("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest3d", "_upsample_nearest_exact3d"),
        _upsample_indices(12),
    ),
    **dict.fromkeys(
        (
            f"{name}_backward"
            for name in (
                "upsample_linear1d upsample_trilinear3d upsample_nearest1d _upsample_nearest_exact1d upsample_nearest3d "
                "_upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d fractional_max_pool2d"
            ).split()
        ),
        _copies(0),
    ),
    **dict.fromkeys("log_sigmoid_forward rrelu_with_noise bucketize".split(), _copies(0)),
    **dict.fromkeys(("gelu_backward", "channel_shuffle"), _repeated_copy),
    **dict.fromkeys(("tril", "triu"), _triangle),
    "searchsorted": _copies(1),
    "unfold_backward": lambda args, out: _INDEX_BYTES * int(args[1][args[2]]),
    "logsumexp": lambda args, out: next(tensors(out)).nbytes,
    "abs": _absolute,
    "any": _truth,
    "all": _truth,
    "isinf": lambda args, out: int(args[0].nbytes),
    "count_nonzero": _per_element(_INDEX_BYTES + 1),
}
"""Operator -> its scratch memory, from its arguments and its result."""
