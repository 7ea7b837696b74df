"""Scratch memory of decompositions of matrices on a CPU: copies that LAPACK overwrites, and its work arrays.

The lengths of work arrays are those that LAPACK's documentation names, with the largest block of columns that MKL uses. They
were compared with the events of PyTorch's allocator (2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch

from ...torch_runtime.tree import Args

Rule = Callable[[Args, object], int]

_TRANSPOSED = 60
"""Rows and columns of the block in which PyTorch transposes a matrix that has at least as many elements."""
_PIVOT_BYTES = torch.int32.itemsize


def transposing_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of the block in which a matrix is copied to the other order, row by row or column by column."""
    is_blocked = tensor.dim() == 2 and min(tensor.shape) > 1 and tensor.numel() >= _TRANSPOSED**2
    return is_blocked * _TRANSPOSED**2 * tensor.itemsize


def _by_columns(tensor: torch.Tensor) -> int:
    """Returns the bytes of a copy that has its numbers column by column, which LAPACK requires."""
    return int(tensor.nbytes) + (transposing_bytes(tensor) if tensor.is_contiguous() else 0)


def _matrices(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Returns how many matrices a tensor has, and their rows and columns."""
    return prod(tensor.shape[:-2]), tensor.shape[-2], tensor.shape[-1]


def _with_pivots(tensor: torch.Tensor, copied: bool = True) -> int:
    """Returns the bytes of a copy, with a pivot per column and an error code per matrix."""
    count, rows, columns = _matrices(tensor)
    return (_by_columns(tensor) if copied else 0) + count * (min(rows, columns) + 1) * _PIVOT_BYTES


def _svd(args: Args, out: object) -> int:
    return _by_columns(args[0]) + _matrices(args[0])[0] * _PIVOT_BYTES


def _eigh(args: Args, out: object) -> int:
    """Returns the bytes of `syevd`: 1 + 6 n + 2 n^2 numbers and 3 + 5 n integers; without vectors a copy and 2 n + 1 numbers.

    >>> _eigh((torch.ones(5, 5),), None)    # 4 * (1 + 30 + 50 + 3 + 25) and 2 error codes
    444
    """
    tensor = args[0]
    count, n, _ = _matrices(tensor)
    codes = (count + 1) * _PIVOT_BYTES
    if len(args) > 2 and not args[2]:
        return int(tensor.nbytes) + (2 * n + 1) * tensor.itemsize + codes
    return int((1 + 6 * n + 2 * n * n) * tensor.itemsize) + (3 + 5 * n) * _PIVOT_BYTES + codes


def _eig(args: Args, out: object) -> int:
    """Returns the bytes of a copy, of real vectors and values, and of `geev`'s work array."""
    tensor = args[0]
    count, n, _ = _matrices(tensor)
    numbers = 2 * tensor.numel() + 2 * n * count + (386 if n > 10 else 34) * n
    return int(numbers * tensor.itemsize) + (count + 1) * _PIVOT_BYTES


def _work(columns: int, tensor: torch.Tensor, largest_block: int = 32) -> int:
    """Returns the bytes of the work array of a decomposition in blocks: one number per column of the matrix and of a block."""
    block = 1 if columns < 32 else 16 if columns <= 64 else 32 if columns <= 128 else largest_block
    return int((block * columns + 1) * tensor.itemsize)


def _qr(args: Args, out: object) -> int:
    """Returns the bytes of the factors of reflections, and of the work array or the part of R that is cut out."""
    tensor = args[0]
    count, rows, columns = _matrices(tensor)
    rank = min(rows, columns)
    is_complete = len(args) > 1 and args[1] == "complete"
    upper_bytes = 0 if is_complete or rows == columns else count * rank * rank * tensor.itemsize
    return count * rank * tensor.itemsize + max(_work(rows if is_complete else rank, tensor), upper_bytes)


def _least_squares(args: Args, out: object) -> int:
    """Returns the bytes of a copy and of the largest work array of `gels`, `gelsy` and `gelsd` that was measured."""
    tensor = args[0]
    count, rows, columns = _matrices(tensor)
    return int(tensor.nbytes + (38 * min(rows, columns) + 910) * tensor.itemsize) + count * _PIVOT_BYTES


def _pseudo_inverse(args: Args, out: object) -> int:
    """Returns the bytes of a copy and of the singular vectors of both sides."""
    tensor = args[0]
    count, rows, columns = _matrices(tensor)
    rank = min(rows, columns)
    return int(count * tensor.itemsize * (rows * columns + (rows + columns + 3) * rank)) + 32


def _lu_unpack(args: Args, out: object) -> int:
    tensor = args[0]
    count, rows, columns = _matrices(tensor)
    upper_bytes = 0 if rows == columns else count * min(rows, columns) ** 2 * tensor.itemsize
    return int(upper_bytes + count * rows * (2 * _PIVOT_BYTES + 1))


LAPACK: dict[str, Rule] = {
    "_linalg_svd": _svd,
    "_linalg_eigh": _eigh,
    "linalg_eig": _eig,
    "linalg_qr": _qr,
    "geqrf": lambda args, out: _work(min(args[0].shape[-2:]), args[0]),
    "linalg_householder_product": lambda args, out: _work(args[0].shape[-1], args[0]),
    "ormqr": lambda args, out: int(args[2].nbytes) + _work(max(args[2].shape[-2:]), args[2], 64),
    "linalg_lstsq": _least_squares,
    "linalg_lu": lambda args, out: _with_pivots(args[0]),
    "lu_unpack": _lu_unpack,
    "linalg_inv_ex": lambda args, out: _with_pivots(args[0]) + args[0].shape[-1] * _matrices(args[0])[0],
    "_linalg_det": lambda args, out: 3 * _with_pivots(args[0], copied=False),
    "_linalg_slogdet": lambda args, out: 3 * _with_pivots(args[0], copied=False),
    "linalg_ldl_factor_ex": lambda args, out: int(24 * args[0].shape[-1] * args[0].itemsize),
    "cholesky_solve": lambda args, out: int(args[1].nbytes) + _matrices(args[1])[0] * _PIVOT_BYTES,
    "linalg_solve_triangular": lambda args, out: (
        0 if args[0].dim() < 3 or args[0].is_contiguous() or not args[1].is_contiguous() else int(args[0].nbytes)
    ),
    "linalg_pinv": _pseudo_inverse,
}
"""Operator -> its scratch memory, from its arguments and its result."""
