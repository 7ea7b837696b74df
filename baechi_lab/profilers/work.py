"""The work of kernels, independent of device and framework: FLOPs, bytes, and the shapes that decide how a GPU runs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph.hardware import PRECISIONS

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

PRECISION_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "fp64": 8}
"""Bytes of a number by the precision of its products."""
REGISTER_ROW = 1024
"""Numbers of a row that PyTorch's softmax holds in the registers of one warp."""
ALIGNED = 16
"""Bytes that matrix units load at once."""
DEPTHWISE_GRADIENT = 1.64
"""How many times as long as a depthwise convolution the gradient of its input, or of its filters, takes. Measured on an H200."""
FP16_DEPTHWISE_SHARE, FP16_DEPTHWISE_WINDOWS = 0.3, ((3, 3), (5, 5))
"""Share of the `vector_flops` of other depthwise convolutions that those of float16 numbers and these windows need: PyTorch runs
cuDNN's kernels for them, for no other type. MobileNets and EfficientNets on RTX 3090 (benchmarks of timm)."""
LAST_DEPTHWISE_FLOPS = {
    "forward": ((0.0, 24.0), (51.0, 10.0)),
    "input": ((0.0, 24.0), (0.0, 24.0)),
    "filters": ((0.0, 25.0), (150.0, 8.0)),
}
"""`vector_flops` of a depthwise convolution whose channels come last in memory, and of its gradients: per output (of the gradient
of the input: per input), and per position of the window; of float32 and of 16-bit numbers. Measured on an H200."""
LARGE_WINDOW, LARGE_WINDOW_FILTERS_FLOPS = 49, 24_000.0
"""Positions of a window from which on the gradient of such filters of float32 has a kernel that is slower by far, and its
`vector_flops` per output. Measured on an H200 (windows of 7 x 7; those of 5 x 5 have the other kernel)."""
PLANE_US, PLANE_NUMBER_US = 0.082, 3.6e-4
"""`Kernel.multiprocessor_us` of a batch norm with given statistics: per plane (a channel of a sample) at least, and per number.
Measured on an H200."""
ATTENTION_TILE, ATTENTION_TILE_FLOPS = 128, 8e5
"""Queries and keys of a tile in fused attention of 16-bit numbers, and the `vector_flops` that the tiles of the same queries need
besides their scores. Measured on an H200."""

SCORE_FLOPS, HALF_SCORE_FLOPS = 200.0, 8.0
"""`vector_flops` of a score in fused attention of float32 and of 16-bit numbers: an exponential is computed at a sixteenth of
the rate of multiplications, and kernels of float32, which use no matrix units, wait for it. Measured on an H200."""
BATCH_NORM_FLOPS, HALF_BATCH_NORM_FLOPS = (280.0, 600.0), (480.0, 725.0)
"""`vector_flops` per number of a batch norm, forward and backward, of float32 and of 16-bit numbers. Measured on an H200."""
INDEX_US = 4.1e-4
"""`Kernel.multiprocessor_us` per number of an element-wise kernel that computes where its operands lie: one of them is repeated
along a dimension, or lies in memory in another order, or has another type. Measured on an H200."""
COLUMN_SUM_US, ROW_SUM_US = 1.4e-4, 1.9e-3
"""The same of the gradients of a norm's weights, which sum columns, and of a table's rows, which sum equal words."""
COLUMNS = 32
"""Columns that a block of threads sums for the gradients of a norm's weights. It sums all rows, up to `MANY_ROWS`."""
MANY_ROWS = 2**16
"""Most rows that one block sums."""
SORT_US = 75.0
"""`Kernel.wait_us` of sorting the words whose gradients are summed. Measured on an H200."""
MANY_FILTERS = 128
"""Channels and filters from which on cuDNN makes the gradients of filters by Winograd's algorithm, for which it has kernels apart
only: single convolutions of DeepBench, on P100, GTX 1080 Ti, V100 and T4."""
WINOGRAD_BLOCK = (4, 8)
"""Parts of one image that a block of Winograd's algorithm in a single kernel computes, by rows and columns. Of blocks of 1 to 16
parts each way, these fit the 6,000 convolutions of P100, P4, T4 and V100 best (`data/neusight`). cuDNN's kernels have `tile148`
in their names."""
POSITIONS_SUM_US = 25.0
"""`Kernel.wait_us` of the gradient of a convolution's bias, which sums positions and images. Measured on an H200."""
PERSISTENT_HIDDEN = ((384, 256), (192, 128))
"""Largest states, forward and backward, of recurrent layers that PyTorch runs as one kernel: with one gate, and with more."""
PERSISTENT_STEP_US = 2.1
"""Microseconds of a step of such a kernel. Measured on an H200."""


@dataclass(frozen=True)
class Product:
    """`count` matrix products of `rows` x `inner` by `inner` x `columns`.

    For a convolution that Winograd's algorithm can compute, `winograd` are its products in a single kernel, and
    `winograd_apart` those between kernels of their own that transform input, filters and output. These are set for a convolution
    only: `input_gradient`, the product that makes the gradient of its input; `window`, the positions of a filter; `channels`, of
    the input of a group; `makes_filters` of the product that makes the gradient of the filters; `has_gaps` of the product that
    makes the gradient of an input, positions of which lie in gaps between the filters' windows; `of_volume` of the products that
    make gradients of a convolution in three dimensions.

    >>> Product(1, 512, 4096, 1024).flops == 2 * 512 * 4096 * 1024
    True
    """

    count: int
    rows: int
    columns: int
    inner: int
    winograd: Product | None = None
    winograd_apart: Product | None = field(default=None, compare=False, repr=False)
    input_gradient: Product | None = field(default=None, compare=False, repr=False)
    window: int = field(default=0, compare=False, repr=False)
    makes_filters: bool = field(default=False, compare=False, repr=False)
    channels: int = field(default=0, compare=False, repr=False)
    has_gaps: bool = field(default=False, compare=False, repr=False)
    of_volume: bool = field(default=False, compare=False, repr=False)

    @property
    def flops(self) -> float:
        """A multiply-add counts as two."""
        return 2.0 * self.count * self.rows * self.columns * self.inner

    @property
    def left_gradient(self) -> Product:
        """The product that makes the gradient of the left operand: of the output's gradient and the right operand."""
        return self.input_gradient or Product(self.count, self.rows, self.inner, self.columns)

    @property
    def right_gradient(self) -> Product:
        """The product that makes the gradient of the right operand: of the left operand and the output's gradient.

        Winograd's algorithm makes the gradients of the filters that it can convolve with, if they are many. The filters of a
        transposed convolution have the gradient of those of the convolution that makes the gradient of its input.
        """
        convolved = self.input_gradient or self
        winograd = convolved.winograd_apart and replace(convolved.winograd_apart.right_gradient, makes_filters=True)
        if winograd and min(winograd.rows, winograd.columns) < MANY_FILTERS:
            winograd = None
        return Product(
            convolved.count,
            convolved.inner,
            convolved.columns,
            convolved.rows,
            winograd_apart=winograd,
            window=self.window,
            makes_filters=self.window > 0,
            channels=self.channels,
            of_volume=convolved.of_volume,
        )


@dataclass(frozen=True)
class Rows:
    """Rows that a kernel reads more than once.

    Args:
        bytes: of all rows.
        row_bytes: of one row.
        rereads: times that each row is read again.
        norm: True for a norm, whose blocks are so many that some read rows again while others read from memory.
        count: the number of rows of a norm.
    """

    bytes: float
    row_bytes: float
    rereads: int
    norm: bool = False
    count: int = field(default=0, compare=False)

    @classmethod
    def of_softmax(cls, numbers: int, length: int, number_bytes: int, backward: bool = False) -> Rows | None:
        """Rows of `length` numbers each: the maximum, the sum and the output each read a long row.

        Backward, the sum and the gradient each read a row of the output and of its gradient.

        None for short rows, which are read once.
        """
        if length <= REGISTER_ROW:
            return None
        tensors, rereads = (2, 1) if backward else (1, 2)
        return cls(float(tensors * numbers * number_bytes), float(tensors * length * number_bytes), rereads)

    @classmethod
    def of_norm(cls, numbers: int, length: int, number_bytes: int, tensors: int = 1) -> Rows:
        """Rows of `length` numbers each, in as many `tensors`: the statistics and the output each read a row."""
        read_bytes, row_bytes = float(tensors * numbers * number_bytes), float(length * number_bytes)
        return cls(read_bytes, row_bytes, 1, norm=True, count=numbers // max(length, 1))


@dataclass(frozen=True)
class Kernel:
    """The work of one call of an operator.

    Args:
        flops: floating-point operations, where a multiply-add counts as two; 0 if unknown, so that its bytes decide.
        moved_bytes: bytes read from and written to memory, each tensor once.
        precision: precision of a matrix product's operands, one of `PRECISIONS`.
        matrix: True if it runs on the matrix units.
        batched: True for a product of many small matrices, as in attention.
        metadata: True if it moves no data, so that only the host is busy.
        products: the matrix products that it consists of, where their shapes are known.
        convolution: True for a convolution, whose products are those of all output positions by channels.
        rows: the rows that it reads more than once.
        vector_flops: arithmetic beside its products that the units for float32 do: of the scores of fused attention, of a
            depthwise convolution, of the channels of a batch norm.
        layout_bytes: bytes that change their order in memory before and after a convolution on matrix units.
        row_alignment: the largest power of two, up to `ALIGNED`, that divides the bytes of the operands' rows.
        crossed: True for a product, neither of whose operands lies in memory along the summed dimension.
        multiprocessor_us: microseconds of one multiprocessor that is not bound by FLOPs: of integers, which compute where
            operands lie, and of loads that wait for each other.
        wait_us: microseconds that the kernel takes besides, in which some blocks of threads wait for others.
        steps: of a recurrent layer, or gradients of a convolution, which run one after another: each takes at least a launch,
            or `step_us`.
        step_us: microseconds of a step at least, if it is less than a launch: all steps are one kernel.
        followed_by: the kernel that the operator runs after this one.

    >>> Kernel(flops=9.6e6, precision="fp16", matrix=True).metadata
    False
    """

    flops: float = 0.0
    moved_bytes: float = 0.0
    precision: str = "fp32"
    matrix: bool = False
    batched: bool = False
    metadata: bool = False
    products: tuple[Product, ...] = ()
    convolution: bool = False
    rows: Rows | None = None
    vector_flops: float = 0.0
    layout_bytes: float = 0.0
    row_alignment: int = ALIGNED
    crossed: bool = False
    multiprocessor_us: float = 0.0
    wait_us: float = 0.0
    steps: int = 1
    step_us: float = inf
    followed_by: Kernel | None = None

    @property
    def sequence(self) -> tuple[Kernel, ...]:
        """The kernel and those that follow it."""
        return (self, *(() if self.followed_by is None else self.followed_by.sequence))


COMPLEX_PRODUCTS = 4
"""Multiplications of real numbers in one of complex numbers."""


def product_of_complex_numbers(kernel: Kernel) -> Kernel:
    """Returns the kernel of the same product, whose numbers are complex: four multiply-adds in place of one.

    >>> product_of_complex_numbers(Kernel(2.0 * 8 * 8 * 16, products=(Product(1, 8, 8, 16),))).products[0].inner
    64
    """
    products = tuple(replace(product, inner=COMPLEX_PRODUCTS * product.inner) for product in kernel.products)
    return replace(kernel, flops=COMPLEX_PRODUCTS * kernel.flops, products=products)


def convolution_products(
    batch: int,
    outputs: Sequence[int],
    channels: int,
    filters: int,
    window: Sequence[int],
    groups: int = 1,
    plain: bool = False,
    has_gaps: bool = False,
) -> tuple[Product, ...]:
    """Returns the product that a convolution is: of all output positions by channels.

    A depthwise convolution, whose groups have one input channel, does not count: its kernels have no tiles (`depthwise_flops`).
    The gradient of its input is a convolution of the same size.

    Args:
        batch: number of images.
        outputs: positions of the output in each direction.
        channels, filters: channels of the input and the output, of all groups together.
        window: size of the filters in each direction.
        groups: groups of channels that are convolved apart.
        plain: True for stride 1 and dilation 1, so that Winograd's algorithm may compute it.
        has_gaps: True if strides are larger than the window, so that positions of the input lie in gaps.

    >>> (product,) = convolution_products(2, (8, 8), 16, 32, (3, 3), plain=True)
    >>> product.rows, product.columns, product.inner
    (128, 32, 144)
    >>> product.winograd
    Product(count=16, rows=64, columns=32, inner=16, winograd=None)
    >>> product.winograd_apart
    Product(count=36, rows=8, columns=32, inner=16, winograd=None)
    >>> convolution_products(2, (8, 8), 16, 16, (3, 3), groups=16)
    ()
    """
    group_channels, group_filters = channels // groups, filters // groups
    if groups > 1 and group_channels == 1:
        return ()
    shape = Product(groups, batch * prod(outputs), group_filters, group_channels * prod(window))
    if plain and tuple(window) == (3, 3) and group_channels > 1:
        shape = _with_winograd(shape, batch, outputs, group_channels)
    forward = replace(shape, window=prod(window), channels=group_channels)
    gradient = replace(forward, has_gaps=has_gaps, of_volume=len(window) == 3)
    return (replace(forward, input_gradient=gradient),)


def recurrent_kernel(
    kernel: Kernel, steps: int, samples: int, hidden: int, gates: int, backward: bool = False
) -> Kernel:
    """Returns the kernel of a recurrent layer with its steps, whose gates are a kernel of their own.

    Small layers of float32 numbers run all steps in one kernel, which keeps the weights of the states in registers
    (`PERSISTENT_HIDDEN`).
    """
    if kernel.precision == "fp32" and hidden <= PERSISTENT_HIDDEN[gates > 1][backward]:
        return replace(kernel, steps=steps, step_us=PERSISTENT_STEP_US)
    number_bytes = PRECISION_BYTES[kernel.precision]
    gate_bytes = float(number_bytes * steps * samples * hidden * (2 * gates + 1))
    return replace(
        kernel, steps=steps, followed_by=Kernel(moved_bytes=gate_bytes, precision=kernel.precision, steps=steps)
    )


def depthwise_flops(outputs: int, window: Sequence[int], precision: str = "fp32") -> float:
    """Returns the `Kernel.vector_flops` of a depthwise convolution; each of its gradients has `DEPTHWISE_GRADIENT` times as many.

    Such a kernel computes indices for every output, and loads a number for every multiplication. Measured on an H200, for
    windows of 3 x 3 to 7 x 7 in float32 and bfloat16.

    Args:
        outputs: numbers in the output of the forward convolution.
        window: size of the filters in each direction.
        precision: of the numbers.

    >>> depthwise_flops(10, (3, 3)), depthwise_flops(10, (3, 3), "fp16")
    (6600.0, 1980.0)
    """
    has_own_kernel = precision == "fp16" and tuple(window) in FP16_DEPTHWISE_WINDOWS
    return (FP16_DEPTHWISE_SHARE if has_own_kernel else 1.0) * outputs * (300.0 + 40.0 * prod(window))


def last_depthwise_flops(numbers: int, window: Sequence[int], number_bytes: int, gradient: str = "forward") -> float:
    """Returns the `Kernel.vector_flops` of a depthwise convolution whose channels come last in memory, or of a gradient.

    Args:
        numbers: in the output of the forward convolution; for the gradient of the input, in the input.
        window: size of the filters in each direction.
        number_bytes: bytes of a number.
        gradient: "forward", "input" or "filters".

    >>> last_depthwise_flops(10, (3, 3), 4), last_depthwise_flops(10, (3, 3), 2)
    (2160.0, 1410.0)
    """
    each, per_position = LAST_DEPTHWISE_FLOPS[gradient][number_bytes <= 2]
    if gradient == "filters" and number_bytes > 2 and prod(window) >= LARGE_WINDOW:
        return numbers * LARGE_WINDOW_FILTERS_FLOPS
    return numbers * (each + per_position * prod(window))


def score_flops(scores: Product, number_bytes: int) -> float:
    """Returns the `Kernel.vector_flops` of fused attention, from the product that makes its scores."""
    if number_bytes > 2:
        return SCORE_FLOPS * scores.count * scores.rows * scores.columns
    tiles = scores.count * -(-scores.rows // ATTENTION_TILE)
    keys = -(-scores.columns // ATTENTION_TILE) * ATTENTION_TILE
    return tiles * (ATTENTION_TILE_FLOPS + HALF_SCORE_FLOPS * ATTENTION_TILE * keys)


def batch_norm_us(planes: int, positions: int) -> float:
    """Returns the `Kernel.multiprocessor_us` of a batch norm with given statistics.

    Args:
        planes: number of samples times channels.
        positions: numbers of a plane.

    >>> batch_norm_us(1000, 49), round(batch_norm_us(1000, 1000))
    (82.0, 360)
    """
    return planes * max(PLANE_US, PLANE_NUMBER_US * positions)


def batch_norm_flops(shape: Sequence[int], number_bytes: int, backward: bool = False) -> float:
    """Returns the `Kernel.vector_flops` of a batch norm that computes statistics, or of its gradients.

    Channels of a matrix come last, so that memory bounds its norm.

    >>> batch_norm_flops((64, 8), 4), batch_norm_flops((64, 8, 16), 4) > 0
    (0.0, True)
    """
    flops_per_number = (BATCH_NORM_FLOPS if number_bytes > 2 else HALF_BATCH_NORM_FLOPS)[backward]
    return flops_per_number * prod(shape) if len(shape) > 2 else 0.0


def convolution_layout_bytes(
    moved_bytes: float, window: Sequence[int], strides: Sequence[int], input_bytes: float
) -> float:
    """Returns the `Kernel.layout_bytes` of a convolution, which reads and writes its tensors in another order.

    A convolution of single positions is a product of matrices as they lie in memory. With strides, the positions of
    the input that it uses are copied.

    Args:
        moved_bytes: of all its tensors.
        window: size of the filters in each direction.
        strides: steps from one position of the output to the next, in each direction.
        input_bytes: of the input.

    >>> convolution_layout_bytes(100.0, (3, 3), (2, 2), 80.0), convolution_layout_bytes(100.0, (1, 1), (2, 2), 80.0)
    (200.0, 80.0)
    """
    if prod(window) > 1:
        return 2.0 * moved_bytes
    return 0.0 if prod(strides) == 1 else 2.0 * (moved_bytes - input_bytes * (1 - 1 / prod(strides)))


def added_bias(numbers: int, number_bytes: int) -> Kernel:
    """Returns the kernel that adds a bias to the `numbers` of a convolution's output."""
    return Kernel(moved_bytes=2.0 * numbers * number_bytes, multiprocessor_us=INDEX_US * numbers)


def norm_sums(numbers: int, columns: int, number_bytes: int) -> Kernel:
    """Returns the kernel that makes the gradients of a norm's weights: sums of rows of `columns` numbers each."""
    rows = numbers // max(columns, 1)
    blocks = -(-columns // COLUMNS) if rows <= MANY_ROWS else 0
    return Kernel(
        moved_bytes=2.0 * numbers * number_bytes,
        multiprocessor_us=COLUMN_SUM_US * numbers,
        rows=Rows(0.0, 0.0, 0, count=blocks),
    )


def table_sums(numbers: int, number_bytes: int) -> Kernel:
    """Returns the kernel that makes the gradient of a table, from `numbers` in the gradient of what was looked up."""
    return Kernel(moved_bytes=3.0 * numbers * number_bytes, multiprocessor_us=ROW_SUM_US * numbers, wait_us=SORT_US)


def transposed_products(
    batch: int,
    inputs: Sequence[int],
    channels: int,
    filters: int,
    window: Sequence[int],
    groups: int = 1,
    plain: bool = False,
) -> tuple[Product, ...]:
    """Returns the product that a transposed convolution is: of all input positions by filters times window.

    Arguments as in `convolution_products`, but for `inputs`, the positions of the input in each direction. The gradient of its
    input is a convolution.

    >>> (product,) = transposed_products(2, (8, 8), 32, 16, (4, 4))
    >>> product.rows, product.columns, product.inner
    (128, 256, 32)
    >>> product.left_gradient == convolution_products(2, (8, 8), 16, 32, (4, 4))[0]
    True
    """
    group_channels, group_filters = channels // groups, filters // groups
    if groups > 1 and group_channels == 1:
        return ()
    (gradient,) = convolution_products(batch, inputs, filters, channels, window, groups, plain) or (None,)
    shape = Product(
        groups,
        batch * prod(inputs),
        group_filters * prod(window),
        group_channels,
        input_gradient=gradient,
        window=prod(window),
    )
    if plain and tuple(window) == (3, 3) and group_filters > 1:
        shape = _with_winograd(shape, batch, inputs, group_channels, group_filters)
    return (shape,)


def _with_winograd(
    shape: Product, batch: int, positions: Sequence[int], group_channels: int, group_filters: int = 0
) -> Product:
    """Returns the product of a convolution with those of Winograd's algorithm, which computes parts of the output.

    A single kernel computes parts of 2 x 2 by 16 products, in blocks of `WINOGRAD_BLOCK`. Kernels apart compute parts of 4 x 4 by
    36 products.
    """
    filters = group_filters or shape.columns
    blocks = prod(-(-size // (2 * side)) for size, side in zip(positions, WINOGRAD_BLOCK, strict=True))
    in_one_kernel = Product(16 * shape.count, batch * blocks * prod(WINOGRAD_BLOCK), filters, group_channels)
    part_count = prod(-(-size // 4) for size in positions)
    in_kernels_apart = Product(36 * shape.count, batch * part_count, filters, group_channels)
    return replace(shape, winograd=in_one_kernel, winograd_apart=in_kernels_apart)


def matmul_product(left: Sequence[int], right: Sequence[int], inner: int, outputs: Sequence[int]) -> Product | None:
    """Returns the product of stacks of matrices; one matrix on the right multiplies the rows of all matrices on the left.

    Args:
        left, right: shapes of the operands.
        inner: size of the summed dimension.
        outputs: shape of the result.

    >>> matmul_product((2, 8, 16), (16, 4), 16, (2, 8, 4)), matmul_product((2, 8, 16), (2, 16, 4), 16, (2, 8, 4))
    (Product(count=1, rows=16, columns=4, inner=16, winograd=None), Product(count=2, rows=8, columns=4, inner=16, winograd=None))
    """
    if len(left) < 2 or len(right) < 2 or len(outputs) < 2 or not prod(outputs) or not inner:
        return None
    if prod(right[:-2]) == 1:
        return Product(1, prod(outputs[:-1]), outputs[-1], inner)
    return Product(prod(outputs[:-2]), outputs[-2], outputs[-1], inner)


def einsum_product(left: str, right: str, result: str, sizes: Mapping[str, int]) -> Product:
    """Returns the product that an Einstein sum of two operands is, from the letters of their dimensions.

    >>> einsum_product("bsh", "hd", "bsd", {"b": 2, "s": 8, "h": 16, "d": 4})
    Product(count=1, rows=16, columns=4, inner=16, winograd=None)
    """
    size = lambda letters: prod(sizes[x] for x in letters)  # noqa: E731
    shared_letters, result_letters = set(left) & set(right), set(result)
    return Product(
        size(shared_letters & result_letters),
        size((set(left) - shared_letters) & result_letters),
        size((set(right) - shared_letters) & result_letters),
        size(shared_letters - result_letters),
    )


@dataclass(frozen=True, eq=False)
class Products:
    """Matrix products as columns; `owner` is the index of what each belongs to: a kernel, or a product that it may replace."""

    owner: NDArray[np.int64]
    count: Floats
    rows: Floats
    columns: Floats
    inner: Floats
    window: NDArray[np.int64]
    makes_filters: Booleans
    channels: NDArray[np.int64]
    has_gaps: Booleans
    of_volume: Booleans

    @classmethod
    def of(cls, products: Sequence[tuple[int, Product]]) -> Products:
        """Builds the columns from pairs of an owner's index and a product."""
        records = [product for _, product in products]
        return cls(
            owner=np.array([owner for owner, _ in products], dtype=np.int64),
            **_columns(records, "count rows columns inner", np.float64),
            **_columns(records, "window channels", np.int64),
            **_columns(records, "makes_filters has_gaps of_volume", np.bool_),
        )


def _columns(
    records: Sequence[Product] | Sequence[Kernel], names: str, kind: type[np.generic]
) -> dict[str, NDArray[Any]]:
    """Returns the fields of the records with these names as arrays."""
    return {name: np.array([getattr(record, name) for record in records], dtype=kind) for name in names.split()}


@dataclass(frozen=True, eq=False)
class Work:
    """The work of a step: one row per kernel, each of which belongs to an op and runs `times` times.

    FLOPs and bytes are those of one run. `matrix` rows run on the matrix units in `precision` (an index into `PRECISIONS`),
    `metadata` rows move no data, `free` rows take no time, `batched` rows are products of many small matrices, as in attention.
    `products` hold the shapes of the kernels' products, `winograd` and `winograd_apart` those that may replace one of them.
    `reread_bytes` are read again, in rows of `row_bytes`; `norm` rows are norms of `row_count` rows. The other columns are those
    of the kernels.
    """

    ops: int
    op: NDArray[np.int64]
    times: Floats
    flops: Floats
    moved_bytes: Floats
    matrix: Booleans
    precision: NDArray[np.int64]
    metadata: Booleans
    free: Booleans
    batched: Booleans
    convolution: Booleans
    reread_bytes: Floats
    row_bytes: Floats
    norm: Booleans
    row_count: NDArray[np.int64]
    vector_flops: Floats
    layout_bytes: Floats
    row_alignment: NDArray[np.int64]
    crossed: Booleans
    multiprocessor_us: Floats
    wait_us: Floats
    steps: NDArray[np.int64]
    step_us: Floats
    products: Products
    winograd: Products = field(default_factory=lambda: Products.of([]))
    winograd_apart: Products = field(default_factory=lambda: Products.of([]))

    @property
    def product_count(self) -> NDArray[np.int64]:
        """int64[kernels], of how many products each kernel consists."""
        return np.bincount(self.products.owner, minlength=len(self.op))


def work_of(
    ops: int,
    rows: Iterable[tuple[int, Kernel]],
    times: Sequence[float] | None = None,
    free: Sequence[bool] | None = None,
) -> Work:
    """Builds the `Work` of `ops` ops from pairs of an op's index and a kernel.

    Args:
        ops: number of ops.
        rows: the kernels, in the order in which they run.
        times: runs of each kernel and of those that follow it, 1 by default.
        free: which kernels take no time, none by default.
    """
    row_sequences = [(op, kernel.sequence) for op, kernel in rows]
    lengths = [len(sequence) for _, sequence in row_sequences]
    kernels = [kernel for _, sequence in row_sequences for kernel in sequence]
    index = {precision: i for i, precision in enumerate(PRECISIONS)}
    products = [(i, product) for i, kernel in enumerate(kernels) for product in kernel.products]
    kernel_rows = [kernel.rows for kernel in kernels]
    return Work(
        ops=ops,
        op=np.repeat(np.array([op for op, _ in row_sequences], dtype=np.int64), lengths),
        times=np.repeat(np.ones(len(lengths)) if times is None else np.array(times, np.float64), lengths),
        **_columns(
            kernels, "flops moved_bytes vector_flops layout_bytes multiprocessor_us wait_us step_us", np.float64
        ),
        **_columns(kernels, "matrix metadata batched convolution crossed", np.bool_),
        **_columns(kernels, "row_alignment steps", np.int64),
        precision=np.array([index[kernel.precision] for kernel in kernels], dtype=np.int64),
        free=np.repeat(np.zeros(len(lengths), np.bool_) if free is None else np.array(free, np.bool_), lengths),
        reread_bytes=np.array([0.0 if r is None else r.bytes * r.rereads for r in kernel_rows]),
        row_bytes=np.array([0.0 if r is None else r.row_bytes for r in kernel_rows]),
        norm=np.array([r is not None and r.norm for r in kernel_rows], dtype=np.bool_),
        row_count=np.array([0 if r is None else r.count for r in kernel_rows], dtype=np.int64),
        products=Products.of(products),
        winograd=Products.of([(i, p.winograd) for i, (_, p) in enumerate(products) if p.winograd]),
        winograd_apart=Products.of([(i, p.winograd_apart) for i, (_, p) in enumerate(products) if p.winograd_apart]),
    )
