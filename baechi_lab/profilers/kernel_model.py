"""The kernel model: turns the work of kernels into microseconds on a GPU, for all frameworks.

Matrix products. Blocks of threads compute tiles of the output. `multiprocessors` of them run at a time, so that the last, partly
filled wave takes as long as a full one:

    blocks = count * ceil(rows / tile_rows) * ceil(columns / tile_columns) * splits
    compute_us = ceil(blocks / multiprocessors) * (2 * tile_rows * tile_columns * ceil(inner / splits) * flop_us + tile_us)
    flop_us = multiprocessors * (1 / (product_share * peak) + long_row_ps * max(0, log2(inner / 4096)))

A single product may split its summed dimension among blocks, which then add their parts; the number of splits is the best
one. Batched products, which have enough blocks, do not split. Convolutions, whose gradients of filters sum over all positions
of all images, split into more parts, and the groups of one split as well. In float32 before Hopper, only those gradients and
windows of one position split: the 6,040 convolutions of `data/neusight` are further off where others do, on each of five
devices. The overhead of a tile, `tile_us`, is that of float32; matrix units, which are faster, wait for operands as much
less. A product of a matrix and a vector has no tiles: its FLOPs run at the peak of float32, so that its bytes decide. Boards
with a low power limit cannot hold their peak rate: `power_us = FLOPs * product_pj / power`, where the FLOPs are those of
whole tiles. On matrix units, a FLOP takes `matrix_unit_pj` in 16 bits, and more in other precisions by as much as it takes
longer. A product takes the longest of `compute_us`,
`power_us` and the time of its operands and output in memory.

Convolutions are products of all output positions by channels, in tiles as narrow as there are filters. Filters of 3 x 3 with
stride 1 have two more algorithms in float32. A kernel of Winograd's F(2 x 2, 3 x 3) computes each 4 x 4 part of the input by 16
products, with 2.25 times fewer FLOPs, in blocks of 8 x 16 outputs of one image. F(4 x 4, 3 x 3) has 4 times fewer, but kernels of
their own transform input, filters and output, which lie in memory in between. The fastest one counts. The gradients of filters
have only F(4 x 4, 3 x 3), from `MANY_FILTERS` on. Matrix units compute products of all positions only: VGG-16 on RTX 3090, 4090
and 5090 (`data/training`). Gradients of filters of one position, and of images with few channels, reach `POINT_FILTERS_SHARE`.
On matrix units, few channels are filled up to `ALIGNED` bytes, and their kernels reach `FEW_CHANNELS_SHARES`. Gradients of
inputs with positions that no filter reads reach `GAPS_SHARE` in float32.
A convolution of float32 that is run alone also needs `convolution_us`, in which the host chooses its algorithm. On matrix units,
`layout_bytes` change their order in memory: at the bandwidth of other kernels or at `LAYOUT_CYCLE_BYTES` in a cycle, whichever
takes longer, and at least in `LAYOUT_US`.

Boards whose matrix units run at a part of their generation's speed (`is_halved`) reach all of that part: operands arrive in time.
Precisions for which a device has no matrix units run like float32 (`Hardware.uses_float32_units`). So does float64, at the rate
of the data sheet; it has no kernels of Winograd's algorithm, and its few units do not reach the power limit.

Matrix units load `ALIGNED` bytes at once. Products with rows of other lengths run on kernels that reach `UNALIGNED_SHARES` of
the peak. These wait for loads, so that boards with halved units reach as many FLOP/s as others, and so do convolutions of few
channels. TF32 is a permission: a product
runs in float32 where that is faster, as with such rows on boards of games. Neither holds for convolutions: ResNet-50
(`data/training`), which is estimated too short on boards of games already, would become 1 to 10 % shorter.

Arithmetic beside products (`vector_flops`) are the scores of fused attention, depthwise convolutions and batch norms, of which a
multiprocessor computes one channel at a time. It needs cycles rather than units: its FLOPs, counted on multiprocessors with 128
units for float32, run at the peak that the device would have with as many. `multiprocessor_us` are cycles too,
at the clock of the data sheet.

All other kernels take the time of their bytes at `bandwidth_share` of the bandwidth, or of their arithmetic at the peak. Kernels
that read a row of numbers more than once (softmax, norms) read it again from the L2 cache, if the rows of all running blocks
fit there, else from memory. In between, a part of them is there. Some blocks read from the cache while others read from memory,
so that both times overlap: in norms, whose blocks are small, the longer one counts, in softmax `sqrt(memory_us^2 + cache_us^2)`.

Long rows of large operands slow float32 products down by `long_row_ps` per FLOP and doubling, in part from `NEAR_BYTES` on and
fully from `FAR_BYTES` on. Rows of convolutions, which are positions of images, lie together.

The host starts kernels ahead of the device, so that a kernel takes at least `launch_us`, and only the first kernel of a step
waits for its start, `start_us` (`Hardware.launches_hidden`). Hardware without a generation has no tiles and reaches
all of its peak: a roofline (S. Williams, A. Waterman, D. Patterson, CACM 52(4), 2009, doi:10.1145/1498765.1498785).

Sources: NVIDIA, "Matrix Multiplication Background User's Guide" (tiles and waves); A. Lavin, S. Gray, "Fast Algorithms for
Convolutional Neural Networks", CVPR 2016 (Winograd). Constants: `generations`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..graph.hardware import CONVERTED_SHARE, HOST_OP_US, PRECISIONS, Hardware
from ..graph.kernels.csr import grouped_sum
from .generations import Generation, generation_named
from .work import ALIGNED, PRECISION_BYTES, Booleans, Floats, Kernel, Products, Work, work_of

LONG_ROW = 4096
"""Elements of the summed dimension from which on rows are so far apart in memory that reading them slows a product down."""
NEAR_BYTES, FAR_BYTES = 2**27, 2**31
"""Bytes of a product's operands up to which long rows slow nothing down, and from which on they do so fully: the addresses of
more pages than these have do not stay in the tables that translate them."""
SPLITS = (1, 2, 4, 8, 16, 32, 64)
"""Into how many parts the summed dimension of a product of float32 numbers may be split."""
MATRIX_UNIT_SPLITS = 16
"""The most parts of other products."""
CONVOLUTION_SPLITS = (*SPLITS, 128, 256)
"""The same for convolutions."""
SHORTEST_SPLIT = 64
"""Elements that a part of a split dimension takes the time of, at least."""
LONG_PART = 4096
"""The same of products of float32 numbers on Hopper and later, and of those on early matrix units. On an H200, 32 rows by
4096 x 4096 numbers take as long as a tile that sums all 4096, and gradients of 256 x 256 weights, which sum 65,536, take as long
as in 16 parts. On a V100 in float16, 16 to 64 rows by 1760 x 1760 up to 4096 x 4096 numbers take 10 to 18 ns per summed number
(DeepBench)."""
EARLY_MATRIX_UNITS = ("volta", "turing")
EARLY_MATRIX_TILE_ROWS = 128
"""Rows of a tile on the matrix units of these generations: 84 products of DeepBench in float16 with up to 128 rows or columns on
a V100. Those on a T4 were not fitted."""
NARROW_TILE = 32
"""Fewest columns of a tile of a convolution, whose tiles are not wider than it has filters before Hopper: single convolutions of
DeepBench on P100, GTX 1080 Ti, V100 and T4. On an H200, those of few filters take as long as whole tiles."""
NARROW_SHARE = 0.75
"""Share of the rate of other products of float32 numbers that those in tiles narrower than their generation's reach, before
Hopper: 52 products of up to 32 rows (DeepBench) on V100 and T4. Those on P100 and GTX 1080 Ti were not fitted."""
WINOGRAD_TILE = 32
"""Rows and columns of a block's tile in Winograd's algorithm."""
FILTER_PASSES = 8.0
"""Times that Winograd's algorithm moves the bytes of its filters: it reads 9 numbers, writes 16 and reads them, in parts."""
PART_NUMBERS, OUTPUT_NUMBERS, FILTER_NUMBERS = 36, 16, 9
"""Of Winograd's F(4 x 4, 3 x 3): the products that compute a part of the output, each of which needs a number of the part, of its
input and of the filter that is written and read; the numbers of a part, and of a filter, where no kernel has transformed them."""
WINOGRAD_KERNELS = 4
"""Kernels of F(4 x 4, 3 x 3): transforms of input, filters and output, and the products."""
VECTOR_UNITS = 128
"""Units for float32 of the multiprocessors on which `vector_flops` were measured, those of an H200."""
MEASURED_HZ = 67e12 / (2 * 132 * 128)
"""`Hardware.clock_hz` of an H200, on which `multiprocessor_us` were measured: they are a number of cycles."""
NUMBER_BYTES = 4
"""Of a filter's number."""
NORM_THREADS = 128
"""Threads of a block that computes one row of a norm."""
SOFTMAX_BLOCKS = 2
"""Rows that one multiprocessor works on at a time in the softmax of long rows: blocks of 1024 threads."""
VECTOR_BYTES = 512 * 16
"""Bytes that half the threads of such a block load at once, 16 each. Rows of so many bytes, and all from twice as many on, are
read again from the cache twice as fast as others, which leave a remainder to load one by one: 2048 numbers, and 4096 to 10,240,
on A100 and T4 (`data/neusight`)."""
NORM_START_US = 25.0
"""Microseconds that a norm which is run alone takes more than other kernels: the host makes tensors for its statistics too."""
ALL_CACHED, NONE_CACHED = 0.4, 0.8
"""Shares of the L2 cache that rows in flight may take until the first, and the last, of them is read from memory again."""
LAYOUT_US = 10.0
"""Microseconds per product of a convolution on matrix units for the kernels that change the order of its tensors in memory."""
LAYOUT_CYCLE_BYTES = 7.2
"""Bytes that those read and write at most in a cycle of a multiprocessor. Measured on an H200."""
UNALIGNED_SHARES = {2: 0.11, 4: 0.24, 8: 0.24}
"""Bytes that divide the rows of a product -> share of the matrix units' peak that it reaches on Hopper and later. Measured on an
H200, whose kernels for such rows use the instructions of earlier hardware."""
EARLIER_UNALIGNED_SHARE = 0.3
"""The same on earlier hardware: with 50,304 words in place of 50,257, GPT-2 trains about 25 % faster on an A100 (nanoGPT)."""
CROSSED_SHARE = 0.6
"""Share of what other products in TF32 reach that those with crossed operands do, on Hopper and later: their matrix units read
TF32 along the summed dimension only. Measured on an H200."""
CONVOLUTION_SHARE = 0.57
"""Share of what products of float32 numbers reach that convolutions of them do, on Hopper and later: cuDNN chooses implicit
products, and no kernels of Winograd's algorithm. Measured on an H200."""
POINT_FILTERS_SHARE = 0.55
"""Share of what other products of float32 numbers reach that gradients of filters of one position do, before Hopper: 45 single
convolutions of DeepBench on each of P100, GTX 1080 Ti, V100 and T4. Those of images with few channels, of which these have 10, do
so in any precision."""
PRODUCT_BANDWIDTH_SHARE = 0.8
"""Share of the bandwidth of other kernels that products in TF32 reach: tiles are written when they are complete. Measured on an
H200."""
INLINE_ECC_SHARE = 0.9
"""Share of the bandwidth that boards with `Hardware.inline_ecc` reach: element-wise kernels on an L4 reach 0.787 of the data
sheet's, where those of Ampere, whose multiprocessors Ada resembles, reach 0.874."""
WHOLE_RATIOS = {"turing": 8.0, "rtx-ampere": 4.0, "ada": 4.0, "rtx-blackwell": 4.0, "hopper": 14.8}
"""Generation -> FLOPs in half precision per FLOP in float32, by data sheets, of boards whose matrix units are whole. Boards of
games, the A10G, L40 and H20 have a half of that, or less."""
HALVED_SHARE = 0.65
"""Share of that ratio below which the matrix units of a board are called halved."""
FEW_CHANNELS = 4
"""Most channels of images, such as their colours, whose convolutions have kernels of their own."""
FEW_CHANNELS_SHARES = {"volta": 0.2, "turing": 0.2, "hopper": 0.08, "blackwell": 0.08}
"""Generation -> share of the matrix units' peak that these convolutions reach, counted with as many channels as fill `ALIGNED`
bytes: single convolutions of DeepBench on V100 and T4, and of an H200."""
OTHER_FEW_CHANNELS_SHARE = 0.4
"""The same of other generations. Boards with halved units reach twice as much of their peak: ResNet-18 and 50 on RTX 3090, 4090
and 5090 (benchmarks of timm)."""
LONG_WINDOW, LONG_WINDOW_SHARE, HALF_LONG_WINDOW_SHARE = 64, 0.2, 0.1
"""Positions of a filter from which on convolutions of groups of channels run without matrix units, and the shares of the peak of
float32 that they reach in TF32 and in 16 bits: windows of 128 positions in 16 groups (wav2vec 2.0) on an H200."""
GROUPS_FP32_SHARE = 0.12
"""Most of the peak of float32 that convolutions of groups of channels reach in it on Hopper and later, where cuDNN runs a kernel
per group: RegNet-Y 4.0 in inference on an H200 (groups of 64 channels)."""
FEW_CHANNELS_FP32_SHARE = 0.65
"""Share of what other convolutions of float32 numbers reach that those of few channels do, on Hopper and later. Measured on an
H200."""
NUMBER_SIZES = np.array([PRECISION_BYTES[name] for name in PRECISIONS], dtype=np.float64)
"""Bytes of a number by the index of its precision."""
GAPS_SHARE = 0.5
"""Share of what other products of float32 numbers reach that gradients of inputs do, positions of which no filter reads: 18
single convolutions of DeepBench on each of P100, GTX 1080 Ti, V100 and T4."""
VOLUME_SHARE = 0.45
"""Share of what other products reach that gradients of convolutions in three dimensions do, unless channels come last. Measured
on an H200, in TF32 and bfloat16; nnU-Net on A100 and V100 was not fitted (`data/training`)."""
FP32, TF32, FP64 = (PRECISIONS.index(name) for name in ("fp32", "tf32", "fp64"))
MATRIX_UNIT_PRECISIONS = [PRECISIONS.index(name) for name in ("tf32", "fp16", "bf16")]


def estimated_us(
    work: Work, hardware: Hardware, *, generation: Generation | None = None, follows: bool = False
) -> NDArray[np.float64]:
    """Returns float64[ops], the microseconds of every op on `hardware`.

    Args:
        work: kernels of the ops, in the order in which they run.
        hardware: the device.
        generation: constants in place of those of `hardware.generation`.
        follows: True if other kernels of the step run before, so that the first of these does not wait for its start.

    >>> rows = [(0, Kernel(9.6e6, matrix=True)), (1, Kernel(moved_bytes=25.6e4))]
    >>> core = Hardware.named("cpu-core")    # 96e9 FLOP/s and 25.6e9 bytes/s: 100 us and 10 us, and 0.25 us to start them
    >>> estimated_us(work_of(2, rows), core).round(6).tolist()
    [100.25, 10.25]
    """
    hardware.validate()
    constants = generation_named(hardware.generation) if generation is None else generation
    bytes_us = _memory_us(work, hardware, constants)
    arithmetic_us = _arithmetic_us(work, hardware, constants)
    # Products of few rows are faster on the units of float32, whose tiles are narrower, than on matrix units.
    may_run_in_fp32 = np.isin(work.precision, MATRIX_UNIT_PRECISIONS) & ~_uses_float32_units(work, hardware)
    may_run_in_fp32 &= ~work.convolution
    if hardware.multiprocessors and may_run_in_fp32.any():
        in_fp32 = replace(work, precision=np.where(may_run_in_fp32, FP32, work.precision))
        arithmetic_us = np.minimum(arithmetic_us, _arithmetic_us(in_fp32, hardware, constants))
    kernel = np.maximum(arithmetic_us, bytes_us)
    if hardware.multiprocessors:
        layout_rate = LAYOUT_CYCLE_BYTES * hardware.multiprocessors * hardware.clock_hz
        layout_bandwidth = min(_bandwidth(hardware, constants), layout_rate)
        layout_us = LAYOUT_US * work.product_count + 1e6 * work.layout_bytes / layout_bandwidth
        changes_layout = work.convolution & ~_uses_float32_units(work, hardware)
        multiprocessor_us = MEASURED_HZ / hardware.clock_hz * work.multiprocessor_us
        multiprocessor_us /= _busy_multiprocessors(work, hardware)
        kernel = np.maximum(kernel, multiprocessor_us) + work.wait_us + np.where(changes_layout, layout_us, 0.0)
    if hardware.launches_hidden and not follows:
        first = np.flatnonzero(~(work.free | work.metadata))[:1]
        kernel[first] += start_us(work, hardware, constants)[first]
    launches_us = np.minimum(hardware.launch_us, work.step_us) * work.steps
    op_us = np.maximum(launches_us, kernel) if hardware.launches_hidden else launches_us + kernel
    once = np.where(work.free, 0.0, np.where(work.metadata, HOST_OP_US, op_us))
    return grouped_sum(work.times * once, work.op, work.ops)


def start_us(work: Work, hardware: Hardware, generation: Generation) -> Floats:
    """Returns float64[kernels], the microseconds that each kernel takes besides its own time if it is run alone."""
    float32_convolution = work.convolution & _uses_float32_units(work, hardware)
    special_us = np.where(work.norm, NORM_START_US, np.where(float32_convolution, generation.convolution_us, 0.0))
    return generation.start_us + special_us


def kernel_us(kernel: Kernel, hardware: Hardware) -> float:
    """Returns the microseconds of one run of a kernel on `hardware`, launch included.

    >>> kernel_us(Kernel(flops=9.6e6, matrix=True), Hardware.named("cpu-core"))    # 100 us at 96 GFLOP/s, and its start
    100.25
    """
    return float(estimated_us(work_of(1, [(0, kernel)]), hardware)[0])


def _arithmetic_us(work: Work, hardware: Hardware, constants: Generation) -> NDArray[np.float64]:
    """Returns the time of the arithmetic: of products by tiles where their shapes are known, else of FLOPs at their rate."""
    calibrated_share = np.where(work.batched, hardware.batched_share, hardware.matmul_share)
    full_precision = _uses_float32_units(work, hardware)
    is_recent = hardware.generation in ("hopper", "blackwell")
    matrix_unit_share = 1.0 if is_halved(hardware) else constants.matrix_unit_share
    reached_share = np.where(full_precision, constants.product_share, matrix_unit_share)
    if hardware.multiprocessors:
        few_channels = np.zeros(len(work.op), dtype=np.bool_)
        few_channels[work.products.owner] = _has_few_channels(work.products)
        for alignment, hopper_share in UNALIGNED_SHARES.items():
            share = hopper_share if is_recent else EARLIER_UNALIGNED_SHARE
            product_share = min(1.0, share / _unit_share(hardware)) if is_halved(hardware) else share
            unaligned_share = np.where(work.convolution, share, product_share)
            reached_share = np.where(
                ~full_precision & (work.row_alignment == alignment), unaligned_share, reached_share
            )
        few_share = FEW_CHANNELS_SHARES.get(hardware.generation, OTHER_FEW_CHANNELS_SHARE)
        few_share = min(1.0, few_share / _unit_share(hardware)) if is_halved(hardware) else few_share
        reached_share = np.where(few_channels & ~full_precision, few_share, reached_share)
        if is_recent:
            reached_share = np.where(
                few_channels & full_precision, FEW_CHANNELS_FP32_SHARE * reached_share, reached_share
            )
            slow = work.crossed & (work.precision == TF32) & (work.row_alignment == ALIGNED)
            reached_share = np.where(slow, CROSSED_SHARE * reached_share, reached_share)
            reached_share = np.where(
                work.convolution & full_precision, CONVOLUTION_SHARE * reached_share, reached_share
            )
    peaks = np.array([hardware.product_flops(p) for p in PRECISIONS])[work.precision]
    rates = peaks * calibrated_share * reached_share
    rate = np.where(work.matrix, rates, hardware.peak_flops * hardware.arithmetic_share)
    us_without_shape = 1e6 * work.flops / rate
    if not hardware.multiprocessors:
        return us_without_shape
    busy_share = _busy_multiprocessors(work, hardware) / hardware.multiprocessors
    vector_peak = hardware.peak_flops * hardware.arithmetic_share * VECTOR_UNITS / hardware.float32_units
    vector_us = 1e6 * work.vector_flops / (vector_peak * busy_share)
    owner = work.products.owner
    tile_columns = np.full(len(owner), float(constants.tile_columns))
    if not is_recent:
        filters = 2 ** np.ceil(np.log2(np.maximum(work.products.columns, NARROW_TILE)))
        tile_columns = np.where(work.convolution[owner], np.minimum(filters, tile_columns), tile_columns)
    full, is_double = full_precision[owner], work.precision[owner] == FP64
    in_float32 = full & ~is_double
    is_single = (work.products.count == 1) & ~work.convolution[owner]
    on_early_matrix_units = ~full & (hardware.generation in EARLY_MATRIX_UNITS)
    sums_long_parts = in_float32 if is_recent else on_early_matrix_units
    splits = np.where(is_single, np.where(in_float32, SPLITS[-1], MATRIX_UNIT_SPLITS), 1)
    splits = np.where(work.convolution[owner], CONVOLUTION_SPLITS[-1], splits)
    sums_whole = in_float32 & (work.products.window > 1) & ~work.products.makes_filters & (not is_recent)
    splits = np.where(sums_whole, 1, splits)
    tile_rows = np.full(len(owner), float(constants.tile_rows))
    tile_rows = np.where(~work.convolution[owner] & on_early_matrix_units, EARLY_MATRIX_TILE_ROWS, tile_rows)
    narrows = is_single & in_float32 & (not is_recent)
    tile_rows = np.where(narrows, _narrow_side(work.products.rows, constants.tile_rows), tile_rows)
    tile_columns = np.where(narrows, _narrow_side(work.products.columns, constants.tile_columns), tile_columns)
    is_narrow = narrows & (tile_rows * tile_columns < constants.tile_rows * constants.tile_columns)
    few_channels_of_product = _has_few_channels(work.products)
    makes_slowly = work.products.makes_filters & (not is_recent)
    makes_slowly &= few_channels_of_product | ((work.products.window == 1) & full)
    product_rates = rates[owner] * np.where(makes_slowly, POINT_FILTERS_SHARE, 1.0)
    product_rates *= np.where(is_narrow, NARROW_SHARE, 1.0)
    product_rates *= np.where(work.products.has_gaps & full, GAPS_SHARE, 1.0)
    has_long_windows = (work.products.count > 1) & (work.products.window >= LONG_WINDOW) & ~full
    long_window_share = np.where(work.precision[owner] == TF32, LONG_WINDOW_SHARE, HALF_LONG_WINDOW_SHARE)
    long_window_rates = np.minimum(product_rates, long_window_share * hardware.peak_flops)
    product_rates = np.where(has_long_windows, long_window_rates, product_rates)
    product_rates *= np.where(work.products.of_volume & (work.layout_bytes[owner] > 0), VOLUME_SHARE, 1.0)
    product_us = _products_us(
        _with_padded_channels(work.products, work.precision[owner], full),
        product_rates,
        peaks[owner],
        full & ~is_double,
        full & ~work.convolution[owner],
        splits,
        hardware,
        constants,
        tile_rows,
        tile_columns,
        np.where(is_single & sums_long_parts, LONG_PART, SHORTEST_SPLIT),
    )
    runs_by_group = (work.products.count > 1) & (work.products.window > 0) & (work.products.window < LONG_WINDOW)
    flops = 2.0 * work.products.count * work.products.rows * work.products.columns * work.products.inner
    if is_recent:
        groups_us = 1e6 * flops / (GROUPS_FP32_SHARE * hardware.peak_flops)
        product_us = np.where(runs_by_group & in_float32, np.maximum(product_us, groups_us), product_us)
    if not is_recent:
        for winograd, is_apart in ((work.winograd, False), (work.winograd_apart, True)):
            replaced = winograd.owner[in_float32[winograd.owner]]
            winograd_us = _winograd_us(winograd, rates[owner], peaks[owner], is_apart, hardware, constants)
            winograd_us = winograd_us[in_float32[winograd.owner]]
            product_us[replaced] = np.minimum(product_us[replaced], winograd_us)
    is_vector = _multiplies_vectors(work)
    vector_product_us = 1e6 * flops / (hardware.peak_flops * hardware.arithmetic_share)
    product_us = np.where(is_vector, vector_product_us, product_us)
    us_of_products = grouped_sum(product_us, owner, len(work.op))
    has_shape = np.zeros(len(work.op), dtype=np.bool_)
    has_shape[owner] = True
    return np.where(has_shape, us_of_products, np.where(work.vector_flops > 0, 0.0, us_without_shape)) + vector_us


def _winograd_us(
    products: Products, rates: Floats, peaks: Floats, is_apart: bool, hardware: Hardware, constants: Generation
) -> Floats:
    """Returns the time of convolutions by Winograd's algorithm, in float32.

    Args:
        products: its products; their owners are the products that they may replace.
        rates, peaks: FLOP/s that those reach, and that their units have.
        is_apart: whether kernels of their own transform input, filters and output.
        hardware: the device.
        constants: of its generation.
    """
    n = len(products.owner)
    sides = (constants.tile_rows, constants.tile_columns) if is_apart else (WINOGRAD_TILE, WINOGRAD_TILE)
    us = _products_us(
        products,
        rates[products.owner],
        peaks[products.owner],
        np.ones(n, dtype=np.bool_),
        np.zeros(n, dtype=np.bool_),
        np.ones(n),
        hardware,
        constants,
        np.full(n, sides[0]),
        np.full(n, sides[1]),
        np.full(n, SHORTEST_SPLIT),
    )
    numbers = products.rows * products.inner, products.inner * products.columns, products.rows * products.columns
    filters = np.where(products.makes_filters, numbers[2], numbers[1])
    if not is_apart:
        return us + 1e6 * FILTER_PASSES * FILTER_NUMBERS * NUMBER_BYTES * filters / hardware.bandwidth
    images = sum(numbers) - filters
    groups = products.count / PART_NUMBERS
    moved_numbers = 2 * PART_NUMBERS * (images + filters) + OUTPUT_NUMBERS * images + FILTER_NUMBERS * filters
    moved_us = 1e6 * NUMBER_BYTES * groups * moved_numbers / _bandwidth(hardware, constants)
    return us + moved_us + WINOGRAD_KERNELS * hardware.launch_us


def _has_few_channels(products: Products) -> Booleans:
    """Returns which products are of convolutions of images with few channels. Groups of few channels have other kernels."""
    return (products.count == 1) & (products.channels > 0) & (products.channels <= FEW_CHANNELS)


def _narrow_side(numbers: Floats, side: int) -> Floats:
    """Returns the side of a tile of a product that has so many numbers in that direction."""
    return np.minimum(2 ** np.ceil(np.log2(np.maximum(numbers, NARROW_TILE))), side)


def _with_padded_channels(products: Products, precision: NDArray[np.int64], full_precision: Booleans) -> Products:
    """Returns the products with the channels that fill `ALIGNED` bytes, where few channels are computed on matrix units."""
    padded = _has_few_channels(products) & ~full_precision
    if not padded.any():
        return products
    channel_bytes = np.where(padded, products.channels * NUMBER_SIZES[precision], ALIGNED)
    padding = np.ceil(channel_bytes / ALIGNED) * ALIGNED / channel_bytes
    return replace(
        products,
        rows=products.rows * np.where(products.makes_filters, padding, 1.0),
        inner=products.inner * np.where(products.makes_filters, 1.0, padding),
    )


def is_halved(hardware: Hardware) -> bool:
    """Whether the matrix units of a board run at a part of the speed of its generation's others, by its data sheet."""
    return _unit_share(hardware) < HALVED_SHARE


def _unit_share(hardware: Hardware) -> float:
    """Returns which part of its generation's matrix units a board has, by its data sheet; 1 where no boards are halved."""
    ratio = hardware.half_flops / hardware.peak_flops
    return ratio / WHOLE_RATIOS.get(hardware.generation, ratio)


def _uses_float32_units(work: Work, hardware: Hardware) -> NDArray[np.bool_]:
    """Returns which kernels compute their products with the units of float32."""
    return np.array([hardware.uses_float32_units(p) for p in PRECISIONS])[work.precision]


def _busy_multiprocessors(work: Work, hardware: Hardware) -> Floats:
    """Returns on how many multiprocessors each kernel runs: all, but for norms of few rows."""
    return np.minimum(np.where(work.row_count > 0, work.row_count, hardware.multiprocessors), hardware.multiprocessors)


def _multiplies_vectors(work: Work) -> NDArray[np.bool_]:
    """Returns which products multiply a matrix and a vector, which has no tiles."""
    return (np.minimum(work.products.rows, work.products.columns) == 1) & ~work.convolution[work.products.owner]


def _products_us(
    products: Products,
    rates: NDArray[np.float64],
    unit_peaks: NDArray[np.float64],
    full_precision: NDArray[np.bool_],
    has_long_rows: NDArray[np.bool_],
    most_splits: Floats,
    hardware: Hardware,
    constants: Generation,
    tile_rows: Floats,
    tile_columns: Floats,
    shortest_part: Floats,
) -> NDArray[np.float64]:
    """Returns the time of every product, by tiles, waves and power.

    Arrays have an entry per product. `rates` are the FLOP/s that it reaches, and `unit_peaks` those of its precision.
    """
    tiles = products.count * np.ceil(products.rows / tile_rows) * np.ceil(products.columns / tile_columns)
    doublings = np.maximum(0.0, np.log2(np.maximum(products.inner, 1) / LONG_ROW))
    operand_bytes = NUMBER_BYTES * products.inner * (products.rows + products.columns)
    near, far = np.log2(NEAR_BYTES), np.log2(FAR_BYTES)
    doublings *= np.clip((np.log2(np.maximum(operand_bytes, 1)) - near) / (far - near), 0.0, 1.0)
    long_row_us = 1e-6 * constants.long_row_ps * np.where(has_long_rows, doublings, 0.0)
    flop_us = hardware.multiprocessors * (1e6 / rates + long_row_us)
    area_share = tile_rows * tile_columns / (constants.tile_rows * constants.tile_columns)
    float32_rate = hardware.product_flops("fp32") * constants.product_share
    tile_us = constants.tile_us * area_share * np.where(full_precision, 1.0, np.minimum(float32_rate / rates, 1.0))
    best = np.full(len(tiles), np.inf)
    part_bytes = 2 * NUMBER_BYTES * products.count * products.rows * products.columns * (full_precision & has_long_rows)
    for splits in CONVOLUTION_SPLITS:
        inner = products.inner if splits == 1 else np.maximum(np.ceil(products.inner / splits), shortest_part)
        waves = np.ceil(tiles * splits / hardware.multiprocessors)
        us = waves * (2.0 * tile_rows * tile_columns * inner * flop_us + tile_us)
        us += (splits > 1) * splits * 1e6 * part_bytes / hardware.bandwidth
        best = np.where((splits <= most_splits) & (us < best), us, best)
    flops = 2.0 * tiles * tile_rows * tile_columns * products.inner
    if hardware.power_w:
        float32_pj = constants.product_pj * float32_rate / rates
        energy_pj = np.where(full_precision, float32_pj, constants.matrix_unit_pj * hardware.half_flops / unit_peaks)
        energy_pj[unit_peaks < CONVERTED_SHARE * hardware.peak_flops] = 0.0  # few units, for float64
        best = np.maximum(best, 1e-6 * flops * energy_pj / hardware.power_w)
    return best


def _bandwidth(hardware: Hardware, constants: Generation) -> float:
    """Returns the bytes/s that kernels reach."""
    ecc_share = INLINE_ECC_SHARE if hardware.inline_ecc else 1.0
    return hardware.bandwidth * hardware.bandwidth_share * constants.bandwidth_share * ecc_share


def _memory_us(work: Work, hardware: Hardware, constants: Generation) -> Floats:
    """Returns the time of every kernel's bytes in memory, and in the L2 cache, from which it reads rows again.

    The cache holds the rows of all running blocks, or a part of them; the others are read from memory again.
    """
    memory = np.full(len(work.op), _bandwidth(hardware, constants))
    if hardware.multiprocessors and not hardware.uses_float32_units("tf32"):
        writes_tiles = work.matrix & (work.precision == TF32) & (work.product_count > 0) & ~work.convolution
        writes_tiles[work.products.owner] &= ~_multiplies_vectors(work)
        memory *= np.where(writes_tiles, PRODUCT_BANDWIDTH_SHARE, 1.0)
    if not hardware.l2_bytes or not work.reread_bytes.any():
        return 1e6 * work.moved_bytes / memory
    blocks = np.where(work.norm, hardware.multiprocessor_threads // NORM_THREADS, SOFTMAX_BLOCKS)
    in_flight = hardware.multiprocessors * blocks * work.row_bytes / hardware.l2_bytes
    miss_share = np.clip((in_flight - ALL_CACHED) / (NONE_CACHED - ALL_CACHED), 0.0, 1.0)
    memory_us = 1e6 * (work.moved_bytes + miss_share * work.reread_bytes) / memory
    reads_vectors = ~work.norm & ((work.row_bytes == VECTOR_BYTES) | (work.row_bytes >= 2 * VECTOR_BYTES))
    cache = constants.cached_bytes_per_flop * hardware.peak_flops * np.where(reads_vectors, 2.0, 1.0)
    cache_us = 1e6 * (1 - miss_share) * work.reread_bytes / cache
    return np.where(work.norm, np.maximum(memory_us, cache_us), np.hypot(memory_us, cache_us))
