"""FLOPs and times per element of operators other than matrix products, for all frameworks.

A sum, product or comparison counts as one operation. A division or root counts as four, since hardware iterates them. Exp,
log, tanh, erf and similar functions count as ten, since polynomials of about ten operations evaluate them. A composite
operator counts as the sum of its parts; a gradient includes what it recomputes from the saved tensor.
"""

from __future__ import annotations

import warnings

from ..errors import UncountedWork
from ..internal_warnings import outer_stacklevel

TRANSCENDENTAL = 10
"""FLOPs of exp, log, tanh, sigmoid, erf, sin and similar functions: a polynomial of about ten operations."""

_FLOPS_AND_OPS = """
    2 squareddifference
    3 hardsigmoid tanhgrad sigmoidgrad hardswishgrad addcmul lerp
    4 sqrt rsqrt div realdiv divnonan reciprocal fmod remainder mod floormod floordiv floordivide rsqrtgrad
    4 hardswish softmaxgraddata
    5 fusedrmsnorm
    6 addcdiv
    8 nativelayernorm layernormalization nativebatchnorm cudnnbatchnorm batchnormalization nativegroupnorm
    8 groupnormalization instancenormalization
    10 exp exp2 expm1 log log2 log10 log1p tanh sigmoid logsigmoid erf erfc erfinv pow sin cos tan asin acos atan
    10 atan2 sinh cosh asinh acosh atanh lgamma digamma softplus elu selu celu gelu fastgelu random rand randn
    10 bernoulli normal uniform exponential nativedropout fusedrmsnormgrad
    11 silu swish
    12 elugrad softplusgrad
    13 logsoftmaxgraddata
    14 nativelayernormgrad nativebatchnormgrad cudnnbatchnormgrad nativegroupnormgrad
    15 softmax safesoftmax logsoftmax silugrad
    21 mish
    25 gelugrad
"""
_PER_ELEMENT = {op: int(flops) for flops, *ops in map(str.split, _FLOPS_AND_OPS.strip().splitlines()) for op in ops}

_DECOMPOSITIONS = frozenset(
    "svd linalgsvd qr linalgqr geqrf eig linalgeig linalgeigh linalgeigvals selfadjointeigv2 cholesky linalgcholeskyex "
    "lu linalgluex linalglufactorex linalginvex matrixinverse linalgsolveex matrixsolve matrixsolvels linalglstsq "
    "linalgdet det linalgslogdet matrixdeterminant logmatrixdeterminant linalgmatrixexp matrixexponential "
    "linalgpinv linalghouseholderproduct matrixsquareroot matrixlogarithm ormqr linalgldlfactorex linalgldlsolve "
    "linalgsolvetriangular triangularsolve matrixtriangularsolve bandedtriangularsolve tridiagonalsolve "
    "choleskysolve choleskyinverse choleskygrad linalglusolve".split()
)
"""Decompositions of matrices, and equations that are solved with them: rows wait for each other, often in hundreds of kernels."""
_SEQUENTIAL = frozenset({"ctcloss", "cudnnctcloss", "ctclossgrad", "ctclossv2"})
"""Operators whose steps along a sequence wait for each other in one kernel."""
_SORTS = frozenset({"sort", "mode", "unique", "unique2", "uniquev2", "uniquewithcounts", "uniquewithcountsv2"})
_SELECTIONS = frozenset({"topk", "topkv2", "kthvalue", "median", "nanmedian"})
"""Operators that find the largest or the middle numbers of a row without sorting it."""
BLOCK_ROW = 4096
"""Most numbers of a row that a block of threads sorts in its own memory in PyTorch: it reads and writes them once."""
POSITION_BYTES = 8
"""Of the position of a number before it was sorted."""

_MICROSECONDS_AND_OPS = """
    2.4e-4 2.4e-4 maxpool2dwithindices maxpool3dwithindices maxpool maxpool3d softmax safesoftmax logsoftmax gelugrad
    2.4e-4 2.4e-4 softmaxgraddata logsoftmaxgraddata softmaxgrad logsoftmaxgrad
    2.4e-4 2.4e-4 softmaxcrossentropyloss softmaxcrossentropylossgrad
    2.4e-4 2.4e-4 softmaxcrossentropywithlogits sparsesoftmaxcrossentropywithlogits
    1.5e-3 1.5e-3 maxpool2dwithindicesgrad maxpool3dwithindicesgrad maxpoolgrad maxpool3dgrad
    8.5e-4 8.5e-4 upsamplebilinear2d resizebilinear
    1.1e-3 1.1e-3 upsamplebilinear2dgrad resizebilineargrad
    4.6e-4 3.2e-4 nativelayernorm layernormalization
    4.1e-4 2.9e-4 nativelayernormgrad layernormalizationgrad rmsnormalizationgrad simplifiedlayernormalizationgrad
    3.6e-4 2.1e-4 fusedrmsnorm rmsnormalization simplifiedlayernormalization
    9.2e-4 8.0e-4 nativegroupnorm groupnormalization
    1.04e-3 1.0e-3 nativegroupnormgrad groupnormalizationgrad
    2.3e-4 2.3e-4 nativedropout
    1.8e-4 1.8e-4 gelu fastgelu
"""
"""Microseconds of a multiprocessor per number of float32 and of 16-bit numbers, of operators whose kernels compute indices,
exponentials or sums beside the numbers that they move; of max pooling per position of a window. Measured on an H200."""
_ROW_MICROSECONDS_AND_OPS = """
    0.17 0.13 nativelayernorm layernormalization
    0.085 0.085 nativelayernormgrad layernormalizationgrad rmsnormalizationgrad simplifiedlayernormalizationgrad
    0.08 0.05 fusedrmsnorm rmsnormalization simplifiedlayernormalization
"""
"""The same per row of a norm, each of which is a block of threads: rows of 96 numbers take nearly as long as rows of 192."""
SHORT_ROW_SHARE = 0.65
"""Share of a number's time that it takes in a short row, beside the time of the row."""
SHORT_SUM_US, SPLIT_SUM_US, PART_US = 2.0, 6.0, 0.055
"""`Kernel.wait_us` of sums of columns: of all; where several blocks of threads share the rows of a column; and of each of these
parts, which the last block adds. Measured on an H200."""


def _by_op(table: str) -> dict[str, tuple[float, float]]:
    rows = map(str.split, table.strip().splitlines())
    return {op: (float(us), float(half_us)) for us, half_us, *ops in rows for op in ops}


_NUMBER_US, _ROW_US = _by_op(_MICROSECONDS_AND_OPS), _by_op(_ROW_MICROSECONDS_AND_OPS)


def per_element(op: str, otherwise: int = 1) -> int:
    """Returns the FLOPs per element of an operator, by its name in TensorFlow, ONNX or ATen; `otherwise` if it is unknown.

    >>> per_element("Log1p"), per_element("exp_"), per_element("_softmax"), per_element("TanhGrad"), per_element("Relu")
    (10, 10, 15, 3, 1)

    Warns of decompositions and of steps along a sequence, whose time is not counted (`UncountedWork`).
    """
    is_sequential = _plain(op) in _SEQUENTIAL
    if is_sequential or _plain(op) in _DECOMPOSITIONS:
        reason = "takes steps that wait for each other" if is_sequential else "decomposes or solves a matrix"
        warnings.warn(
            f"{op} {reason}, and its work is not counted: an estimate has the time of its bytes, of which it may "
            f"take {'a hundred' if is_sequential else 'a thousand'} times as long; measure the step instead",
            UncountedWork,
            stacklevel=outer_stacklevel(),
        )
    return _PER_ELEMENT.get(_plain(op), otherwise)


def multiprocessor_us(op: str, number_bytes: int, numbers: int, rows: int = 0) -> float:
    """Returns the `Kernel.multiprocessor_us` of an operator; 0 if it takes no longer than its bytes.

    Args:
        op: its name in TensorFlow, ONNX or ATen.
        number_bytes: bytes of a number.
        numbers: how many numbers it computes; of max pooling, times the positions of a window.
        rows: of a norm, into how many rows they are divided.

    >>> multiprocessor_us("native_layer_norm", 4, 96_000, 1_000), multiprocessor_us("Relu", 4, 96_000)
    (198.704, 0.0)
    """
    is_half = number_bytes <= 2
    number_us, row_us = (table.get(_plain(op), (0.0, 0.0))[is_half] for table in (_NUMBER_US, _ROW_US))
    return max(number_us * numbers, SHORT_ROW_SHARE * number_us * numbers + row_us * rows)


def sorting_bytes(op: str, numbers: int, row: int, number_bytes: int, selected: int = 0) -> int:
    """Returns the bytes that sorting long rows, or selecting from them, moves; 0 for short rows and other operators.

    Each pass looks at a digit of 8 bits (A. Adinets, D. Merrill, "Onesweep", 2022, arXiv:2206.01784). In a sort, it reads and
    writes all numbers and their positions. In a selection, it reads all numbers; one more pass collects those that are selected.

    Args:
        op: its name in TensorFlow, ONNX or ATen.
        numbers: how many numbers it reads.
        row: numbers of a row.
        number_bytes: bytes of a number.
        selected: numbers that are selected from a row; to select all of them is to sort.

    >>> sorting_bytes("sort", 10_000, 10_000, 4)    # 4 passes, in each of which 12 bytes per number are read and written
    960000
    >>> sorting_bytes("TopKV2", 10_000, 10_000, 4, selected=50), sorting_bytes("TopKV2", 10_000, 100, 4, selected=50)
    (200000, 0)
    """
    plain = _plain(op)
    if row <= BLOCK_ROW or plain not in _SORTS | _SELECTIONS:
        return 0
    if plain in _SORTS or selected == row:
        return number_bytes * 2 * numbers * (number_bytes + POSITION_BYTES)
    return (number_bytes + 1) * numbers * number_bytes


def column_sum_us(rows: int, columns: int) -> float:
    """Returns the `Kernel.wait_us` of sums of columns, as of a bias' gradient.

    A block of 128 threads sums four columns per thread. Each thread takes every `height`-th row, and no fewer than 16.

    >>> column_sum_us(64, 1024), round(column_sum_us(8192, 1024), 2)
    (2.0, 15.04)
    """
    height = max(4, 512 // columns)
    if rows < 64 * height:
        return SHORT_SUM_US
    return SHORT_SUM_US + SPLIT_SUM_US + PART_US * min(rows / (16 * height), 2**18 / columns)


def _plain(op: str) -> str:
    return op.replace("_", "").lower().replace("backward", "grad")
