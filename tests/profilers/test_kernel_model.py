"""The kernel model by hand: tiles, waves, splits, power limits, rows that are read again, launches."""

from dataclasses import replace

import numpy as np
import pytest
from fewer import fast

from baechi_lab.errors import InvalidInput, UnknownNameError
from baechi_lab.graph.hardware import HARDWARE, Hardware
from baechi_lab.profilers.generations import GENERATIONS, Generation, generation_named
from baechi_lab.profilers.kernel_model import FILTER_PASSES, estimated_us, kernel_us, start_us
from baechi_lab.profilers.work import Kernel, Product, Rows, convolution_products, work_of

DEVICE = Hardware(
    "toy",
    peak_flops=4e12,
    matmul_flops=4e12,
    half_flops=8e12,
    bandwidth=1e12,
    launch_us=0.0,
    memory_bytes=10**9,
    multiprocessors=4,
    l2_bytes=1_000_000,
    power_w=100.0,
)
"""Four multiprocessors of 1e12 FLOP/s each."""
TILES = Generation(tile_rows=64, tile_columns=64, tile_us=2.0)
TILE_FLOPS = 2 * 64 * 64 * 128  # of a tile with a summed dimension of 128


def product_us(product, generation=TILES, device=DEVICE, **fields):
    kernel = Kernel(product.flops, matrix=True, products=(product,), **fields)
    return float(estimated_us(work_of(1, [(0, kernel)]), device, generation=generation)[0])


def test_one_tile_takes_one_multiprocessor():
    """2 * 64 * 64 * 128 FLOPs at 1e12 FLOP/s, and 2 us; a part of a tile takes as long as all of it."""
    expected = TILE_FLOPS / 1e6 + 2
    assert product_us(Product(1, 64, 64, 64)) == pytest.approx(2 * 64 * 64 * 64 / 1e6 + 2)
    assert product_us(Product(2, 64, 64, 128)) == product_us(Product(2, 33, 2, 128)) == pytest.approx(expected)


def test_one_wave_and_one_more_tile():
    """Four products of one tile run at a time; a fifth takes another wave."""
    wave = TILE_FLOPS / 1e6 + 2
    for count, waves in ((4, 1), (5, 2), (8, 2), (9, 3)):
        assert product_us(Product(count, 64, 64, 128)) == pytest.approx(waves * wave)


def test_a_single_product_splits_its_summed_dimension():
    """One tile of 256 in four parts of 64: each multiprocessor takes one. A batched product does not split."""
    parts_us = 4 * 2 * 4 * 64 * 64 / 1e6
    assert product_us(Product(1, 64, 64, 256)) == pytest.approx(2 * 64 * 64 * 64 / 1e6 + 2 + parts_us)
    assert product_us(Product(2, 64, 64, 256)) == pytest.approx(2 * 64 * 64 * 256 / 1e6 + 2)


def test_parts_of_a_split_dimension_are_written_and_added():
    """Sixteen tiles of 4096 on 64 multiprocessors in four parts: numbers of 4 bytes of each part are written and read."""
    device = replace(DEVICE, multiprocessors=64, peak_flops=64e12, matmul_flops=64e12, power_w=0.0)
    parts_us = 4 * 2 * 4 * 256 * 256 / 1e6
    assert product_us(Product(1, 256, 256, 4096), device=device) == pytest.approx(
        2 * 64 * 64 * 1024 / 1e6 + 2 + parts_us
    )


def test_products_of_few_rows_have_narrow_tiles():
    """Up to 32 rows: tiles of 32 x 64, which reach 0.75 of the rate of others; batched products have whole ones."""
    narrow_us = 2 * 32 * 64 * 64 / (0.75 * 1e6) + 1
    assert product_us(Product(1, 20, 256, 64)) == product_us(Product(1, 32, 256, 64)) == pytest.approx(narrow_us)
    assert product_us(Product(1, 33, 256, 64)) == pytest.approx(2 * 64 * 64 * 64 / 1e6 + 2)
    assert product_us(Product(4, 20, 64, 64)) == pytest.approx(2 * 64 * 64 * 64 / 1e6 + 2)


@pytest.mark.parametrize(
    ("device", "shape", "measured_us"),
    [
        ("v100", (32, 4096, 4096), 110),  # 45 % too long
        ("v100", (16, 8448, 2816), 133),  # 66 % too long
        ("gtx1080ti", (32, 4096, 4096), 186),  # 44 % too long
        ("t4", (32, 4096, 4096), 345),  # 61 % too long
        ("h200", (32, 4096, 4096), 98.7),  # 55 % too short
        ("h200", (64, 1024, 1024), 23.4),  # 70 % too short
        ("h200", (128, 11008, 4096), 284),  # 15 % too short
    ],
)
def test_bug_products_of_few_rows_were_far_off_in_float32(device, shape, measured_us):
    """DeepBench and layers of an H200: tiles were never narrow, and products on Hopper were split into short parts."""
    rows, columns, inner = shape
    product = Product(1, rows, columns, inner)
    moved_bytes = 4.0 * (rows * inner + inner * columns + rows * columns)
    kernel = Kernel(product.flops, moved_bytes, matrix=True, products=(product,))
    us = estimated_us(work_of(1, [(0, kernel)]), Hardware.named(device), follows=True)[0]
    assert us == pytest.approx(measured_us, rel=0.25)


def test_long_sums_are_split_on_hopper_too():
    """The gradient of 256 x 256 weights from 65,536 rows: 16 tiles in 16 parts of 4096 run in two waves."""
    h200 = Hardware.named("h200")
    product = Product(1, 256, 256, 65_536)
    us = float(estimated_us(work_of(1, [(0, Kernel(product.flops, matrix=True, products=(product,)))]), h200)[0])
    rate = generation_named("hopper").product_share * h200.peak_flops / h200.multiprocessors
    assert us == pytest.approx(2e6 * 2 * 64 * 64 * 4096 / rate, rel=0.2)


@pytest.mark.parametrize(("rows", "sides", "measured_us"), [(64, 1760, 22.5), (128, 4096, 69.0), (64, 2048, 25.5)])
def test_bug_products_of_few_rows_were_half_as_long_in_float16(rows, sides, measured_us):
    """A V100 (DeepBench) sums all numbers of a tile of 128 x 64 one after another; 16 parts were 25 to 66 % too short."""
    product = Product(1, rows, sides, sides)
    kernel = Kernel(product.flops, 2.0 * sides * (sides + 2 * rows), "fp16", matrix=True, products=(product,))
    v100 = Hardware.named("v100")
    tile_us = 2e6 * 128 * 64 * sides / (0.74 * v100.product_flops("fp16") / v100.multiprocessors)
    (us,) = estimated_us(work_of(1, [(0, kernel)]), v100, follows=True)
    assert us == pytest.approx(tile_us, rel=0.05) and us == pytest.approx(measured_us, rel=0.25)


def test_bug_groups_in_float32_ran_at_the_rate_of_one_product_on_hopper():
    """Groups of 64 channels of RegNet-Y, each a kernel of its own, reach 0.12 of the peak of an H200. TF32 has one kernel."""
    h200 = Hardware.named("h200")
    (product,) = convolution_products(64, (28, 28), 192, 192, (3, 3), groups=3, plain=True)

    def us(product, precision):
        kernel = Kernel(product.flops, precision=precision, matrix=True, products=(product,), convolution=True)
        return float(estimated_us(work_of(1, [(0, kernel)]), h200, follows=True)[0])

    for gradient in (product, product.left_gradient, product.right_gradient):
        assert us(gradient, "fp32") == pytest.approx(1e6 * product.flops / (0.12 * h200.peak_flops), rel=0.01)
        assert us(gradient, "tf32") < us(gradient, "fp32") / 2
    (dense,) = convolution_products(64, (28, 28), 192, 192, (3, 3), plain=True)
    assert us(dense, "fp32") < us(product, "fp32")


def test_bug_a_t4_held_its_rate_in_float16():
    """8448 x 2816 by 2816 x 48,000 took 62.2 ms (DeepBench): 70 W do not hold 74 % of the peak. It was 22 % too short."""
    product = Product(1, 48_000, 8448, 2816)
    kernel = Kernel(product.flops, 2.0 * 48_000 * (8448 + 2816), "fp16", matrix=True, products=(product,))
    assert kernel_us(kernel, Hardware.named("t4")) == pytest.approx(62_200, rel=0.08)
    assert kernel_us(kernel, Hardware.named("quadro-rtx-8000")) == pytest.approx(
        1e6 * product.flops / (0.74 * 130.5e12), rel=0.05
    )


def test_error_correction_in_the_same_memory_takes_a_tenth_of_the_bandwidth():
    """An L4 has it, a GeForce RTX 4090 does not: its kernels were estimated to reach no more than those of an L4."""
    copy = work_of(1, [(0, Kernel(moved_bytes=1e9))])
    boards = {name: Hardware.named(name) for name in ("l4", "rtx4090")}
    shares = {
        name: 1e15 / estimated_us(copy, board, follows=True)[0] / board.bandwidth for name, board in boards.items()
    }
    assert shares["l4"] == pytest.approx(0.9 * shares["rtx4090"], rel=0.01)
    assert shares["rtx4090"] == pytest.approx(0.874, abs=0.01)
    names = {name for name, hardware in HARDWARE.items() if hardware.inline_ecc}
    assert names == {"a10", "a10g", "a40", "l4", "l40", "l40s", "rtx-6000-ada"}


def test_bug_long_windows_of_groups_ran_on_matrix_units():
    """Windows of 128 positions in 16 groups (wav2vec 2.0): a tenth of the float32 peak of an H200 in 16 bits, a fifth in TF32."""
    h200 = Hardware.named("h200")
    for precision, share in (("bf16", 0.1), ("tf32", 0.2)):
        products = convolution_products(8, (1999,), 768, 768, (128,), groups=16)
        flops = products[0].flops
        kernel = Kernel(flops, precision=precision, matrix=True, products=products, convolution=True)
        us = kernel_us(kernel, h200)
        assert 1 / share < us * h200.peak_flops / (1e6 * flops) < 1.5 / share
    (short,) = convolution_products(8, (1999,), 768, 768, (31,), groups=16)
    kernel = Kernel(short.flops, precision="bf16", matrix=True, products=(short,), convolution=True)
    assert kernel_us(kernel, h200) < 0.2e6 * short.flops / (0.1 * h200.peak_flops)


def test_bug_a_matrix_and_a_vector_took_the_time_of_whole_tiles():
    """4096 x 4096 numbers of 4 bytes at 1e12 bytes/s; 2 FLOPs each at 4e12 FLOP/s take an eighth of that."""
    for product in (Product(1, 1, 4096, 4096), Product(1, 4096, 1, 4096)):
        assert product_us(product, moved_bytes=4.0 * 4096**2) == pytest.approx(4 * 4096**2 / 1e6)
        assert product_us(product) == pytest.approx(2 * 4096**2 / 4e6)
    half_tile_us = 2 * 64 * 32 * 64 / 1e6 + 1
    assert product_us(Product(1, 64, 1, 64), convolution=True) == pytest.approx(half_tile_us), "a convolution has tiles"


def test_bug_groups_of_a_convolution_did_not_split():
    """Two groups of one tile of 256 in two parts each; the gradient of filters over 64 * 256 positions in 256 parts."""
    groups = Product(2, 64, 64, 256)
    assert product_us(groups, convolution=True) == pytest.approx(TILE_FLOPS / 1e6 + 2)
    large = replace(DEVICE, multiprocessors=256, peak_flops=256e12, matmul_flops=256e12, power_w=0.0)
    quarter_us = 2 * 64 * 64 * 64 / 1e6 + 2
    filters = Product(1, 64, 64, 64 * 256)
    assert product_us(filters, device=large, convolution=True) == pytest.approx(quarter_us)


def test_matrix_units_wait_less_for_a_tile_and_need_rows_of_16_bytes():
    """Four times as fast as float32, a tile's 2 us are 0.5; rows of 2 bytes reach 0.3 of the peak, of Hopper 0.11."""
    device = replace(DEVICE, half_flops=16e12)
    half_us = TILE_FLOPS / 4e6
    assert product_us(Product(1, 64, 64, 64), device=device, precision="fp16") == pytest.approx(half_us / 2 + 0.5)
    product, generation = Product(4, 64, 64, 128), replace(TILES, tile_us=0.0)
    for hopper, share in (("", 0.3), ("hopper", 0.11 * 14.8 / 4)):
        us = product_us(product, generation, replace(device, generation=hopper), precision="fp16", row_alignment=2)
        assert us == pytest.approx(half_us / share), (
            "Hopper has 14.8 times the FLOPs of float32, and this board 4 times"
        )
    assert product_us(product, generation, device, row_alignment=2) == pytest.approx(TILE_FLOPS / 1e6), "float32"


def test_convolutions_on_matrix_units_change_layouts():
    """10 us, and 1e6 bytes at 1e12 bytes/s, or at 7.2 bytes in a cycle of each of four multiprocessors where that takes longer.

    A V100 has no matrix units for bfloat16, so that its float32 units convolve, and no layout changes.
    """
    generation, fields = replace(TILES, tile_us=0.0), {"convolution": True, "layout_bytes": 1e6}
    product = Product(4, 64, 64, 128)
    slow = replace(DEVICE, half_flops=16e12)
    fast_clock = replace(slow, float32_units=1)  # 4e12 / (2 * 4): 5e11 cycles a second
    half_us = TILE_FLOPS / 4e6
    cycles_us = 1e12 / (7.2 * 4 * slow.clock_hz)
    assert product_us(product, generation, fast_clock, precision="fp16", **fields) == pytest.approx(half_us + 10 + 1)
    assert product_us(product, generation, slow, precision="fp16", **fields) == pytest.approx(half_us + 10 + cycles_us)
    volta = replace(slow, generation="volta")
    converted_us = product_us(product, generation, volta, precision="bf16")
    assert product_us(product, generation, volta, precision="bf16", **fields) == pytest.approx(converted_us)


def test_choosing_an_algorithm_delays_only_the_first_convolution():
    """50 us beside the start of 20 us, in float32; the second of two convolutions of 1 us, and float16, do not wait."""
    generation, device = Generation(start_us=20.0, convolution_us=50.0), replace(DEVICE, launches_hidden=True)

    def us(precision):
        kernel = Kernel(4e6, precision=precision, matrix=True, convolution=True)
        return estimated_us(work_of(2, [(0, kernel), (1, kernel)]), device, generation=generation)

    assert us("fp32") == pytest.approx([20 + 50 + 1, 1])
    assert us("fp16") == pytest.approx([20 + 0.5, 0.5])


def test_channels_of_a_norm_keep_as_many_multiprocessors_busy():
    """4e6 FLOPs at 4e12 FLOP/s take 1 us on four multiprocessors, and 2 us where there are two channels."""
    for channels, us in ((4, 1), (40, 1), (2, 2)):
        kernel = Kernel(vector_flops=4e6, rows=Rows.of_norm(channels * 10, 10, 4))
        assert estimated_us(work_of(1, [(0, kernel)]), DEVICE, generation=Generation()) == pytest.approx(us)


def test_indices_waits_and_the_kernel_that_follows():
    """6 us of one multiprocessor are 1.5 us of four, or 3 us of two; 2 us of waiting come besides; 1e6 bytes follow in 1 us.

    They are as many cycles: at half the clock, they take twice as long. What waits does not.
    """
    h200 = Hardware.named("h200")
    device = replace(DEVICE, float32_units=1, peak_flops=4 * 2 * h200.clock_hz)
    after = Kernel(moved_bytes=1e6)
    kernel = Kernel(moved_bytes=1e6, multiprocessor_us=6.0, wait_us=2.0, followed_by=after)
    few = replace(kernel, rows=Rows(0.0, 0.0, 0, count=2), followed_by=None)
    work = work_of(2, [(0, kernel), (1, few)], times=[1.0, 3.0])
    us = estimated_us(work, device, generation=Generation(), follows=True)
    assert us.tolist() == pytest.approx([1.5 + 2 + 1, 3 * (3 + 2)])
    slow = replace(device, peak_flops=device.peak_flops / 2)
    us = estimated_us(work, slow, generation=Generation(), follows=True)
    assert us.tolist() == pytest.approx([3 + 2 + 1, 3 * (6 + 2)])
    assert work.op.tolist() == [0, 0, 1] and work.times.tolist() == [1, 1, 3]


def test_recent_matrix_units_read_tf32_along_the_summed_dimension():
    """Products with crossed operands reach 0.6 of the others, on Hopper, in TF32 and where rows are aligned."""
    flat = replace(TILES, tile_us=0.0)

    def slowdown(generation, precision, **fields):
        device = replace(DEVICE, matmul_flops=16e12, half_flops=60e12, generation=generation)
        plain, crossed = (
            product_us(Product(4, 64, 64, 128), flat, device, precision=precision, crossed=c, **fields)
            for c in (False, True)
        )
        return crossed / plain

    assert slowdown("hopper", "tf32") == pytest.approx(1 / 0.6)
    assert slowdown("ampere", "tf32") == slowdown("hopper", "fp16") == slowdown("hopper", "fp32") == 1
    assert slowdown("hopper", "tf32", row_alignment=4) == 1


def test_tiles_in_tf32_are_written_when_they_are_complete():
    """1e8 bytes of a product in TF32 at 0.8 of the bandwidth. A product with a vector has no tiles."""
    product, vector = Product(1, 64, 64, 64), Product(1, 1, 64, 64)
    for precision, us in (("tf32", 1.25), ("fp16", 1.0), ("fp32", 1.0)):
        kernel = Kernel(moved_bytes=1e8, matrix=True, precision=precision, products=(product,))
        assert kernel_us_of(kernel) == pytest.approx(100 * us)
        assert kernel_us_of(replace(kernel, products=(vector,))) == pytest.approx(100)


def kernel_us_of(kernel):
    return float(estimated_us(work_of(1, [(0, kernel)]), DEVICE, generation=Generation())[0])


def test_convolutions_of_float32_on_recent_hardware_are_implicit_products():
    """They reach 0.57 of what products reach, and have no kernels of Winograd's algorithm."""
    flat = replace(TILES, tile_us=0.0)
    (product,) = convolution_products(16, (32, 32), 64, 64, (3, 3), plain=True)
    device = replace(DEVICE, generation="hopper")
    expected = product.flops / 4e6 / 0.57
    assert product_us(product, flat, device, convolution=True) == pytest.approx(expected)
    assert product_us(product, flat, device) < expected


def test_power_holds_the_tiles_back():
    """100 W at 50 pJ per FLOP are 2e12 FLOP/s, half the peak, for whole tiles and only for float32."""
    generation = replace(TILES, tile_us=0.0, product_pj=50.0)
    product = Product(400, 64, 33, 128)
    assert product_us(product, generation) == pytest.approx(400 * TILE_FLOPS / 2e6)
    assert product_us(product, generation, precision="fp16") == pytest.approx(400 * TILE_FLOPS / 8e6)
    assert product_us(product, generation, replace(DEVICE, power_w=0.0)) == pytest.approx(400 * TILE_FLOPS / 4e6)


def test_power_holds_matrix_units_back():
    """100 W at 50 pJ per FLOP in 16 bits are 2e12 FLOP/s, a quarter of the peak, and half as many in TF32, whose peak is half."""
    generation = replace(TILES, tile_us=0.0, matrix_unit_pj=50.0)
    device = replace(DEVICE, matmul_flops=4e12, half_flops=8e12, peak_flops=0.5e12)
    product = Product(400, 64, 33, 128)
    for precision, rate in (("fp16", 2e6), ("bf16", 2e6), ("tf32", 1e6), ("fp32", 0.5e6)):
        assert product_us(product, generation, device, precision=precision) == pytest.approx(400 * TILE_FLOPS / rate)


@pytest.mark.parametrize("name", ["p4", "v100", "t4", "mi100", "mi250", "mi350x"])
def test_bug_tf32_made_products_longer_where_no_units_compute_it(name):
    """TF32 is float32 there. 64 products of 128 x 8 by 8 x 1024 are bound by bytes, and took 1.25 times as long in TF32."""
    kernel = Kernel(2.0 * 64 * 128 * 8 * 1024, 3.5e7, matrix=True, batched=True, products=(Product(64, 128, 1024, 8),))
    large = Kernel(2.0 * 4096**3, 2.0e8, matrix=True, products=(Product(1, 4096, 4096, 4096),))
    device = Hardware.named(name)
    for in_float32 in (kernel, large):
        assert kernel_us(replace(in_float32, precision="tf32"), device) == kernel_us(in_float32, device)


def test_long_rows_slow_float32_down():
    """A summed dimension of four times 4096: two doublings of 0.25 ps, on each of four multiprocessors; batched, so no split.

    Operands of 2 GiB and more are slowed down fully, those of 512 MiB by half (two of the four doublings from 128 MiB on), and
    those of 128 MiB not at all.
    """
    generation = replace(TILES, tile_us=0.0, long_row_ps=0.25)
    inner = 4 * 4096

    def slowdown(operand_bytes, inner=inner):
        rows = operand_bytes // (4 * inner) - 64
        product = Product(4, rows, 64, inner)
        return product_us(product, generation) * 1e6 / (2 * 64 * 64 * inner * -(-rows // 64))

    assert slowdown(2**32) == slowdown(2**31) == pytest.approx(1 + 4 * 2 * 0.25)
    assert slowdown(2**29) == pytest.approx(1 + 4 * 2 * 0.25 / 2)
    assert slowdown(2**27) == pytest.approx(1)
    assert slowdown(2**31, inner=4096) == pytest.approx(1)
    positions = Product(1, 64, 64, 2**23)  # the gradient of filters over positions, which lie together; 4 parts
    assert product_us(positions, generation, convolution=True) == pytest.approx(2 * 64 * 64 * 2**21 / 1e6)


def test_winograd_where_it_is_faster():
    """Filters of 3 x 3 with stride 1 take 16 / 36 of the FLOPs in one kernel, or 1 / 4 and the bytes of four kernels.

    Those write and read 36 numbers of each part of 4 x 4 and of each filter. With stride 2 there is only the direct product.
    """
    generation = replace(TILES, tile_us=0.0)
    (product,) = convolution_products(16, (32, 32), 64, 64, (3, 3), plain=True)
    filters = 1e6 * FILTER_PASSES * 9 * 4 * 64 * 64 / 1e12
    direct_us = 2 * (16 * 32 * 32) * 64 * 64 * 9 / 4e6
    fused_us = filters + direct_us * 16 / 36
    part_count, numbers = 16 * 8 * 8, 2 * 36 * 4
    parts_us = 1e6 * (part_count * 2 * 64 * (numbers + 16 * 4) + 64 * 64 * (numbers + 9 * 4)) / 1e12
    apart_us = direct_us / 4 + parts_us + 4 * DEVICE.launch_us
    for changes, us in (
        ({}, min(fused_us, apart_us)),
        ({"winograd_apart": None}, fused_us),
        ({"winograd": None}, apart_us),
        ({"winograd": None, "winograd_apart": None}, direct_us),
    ):
        assert product_us(replace(product, **changes), generation, convolution=True) == pytest.approx(us)


def test_bug_winograd_filled_its_blocks_with_parts_of_other_images():
    """A block of one kernel computes 8 x 16 outputs of one image: 64 images of 5 x 5 outputs take as long as of 8 x 16.

    They were estimated to take 0.28 times as long. Single convolutions on a V100 reach 0.7 of its peak for images of 5 x 5, and
    1.35 for those of 8 x 8.
    """

    def fused_us(height, width):
        (product,) = convolution_products(64, (height, width), 512, 512, (3, 3), plain=True)
        in_one_kernel = replace(product, count=1, rows=1e9, winograd_apart=None)  # the direct product is not faster
        return product_us(in_one_kernel, replace(TILES, tile_us=0.0), convolution=True)

    assert fused_us(5, 5) == fused_us(8, 16)
    assert fused_us(9, 9) == fused_us(16, 16) == pytest.approx(2 * fused_us(8, 16), rel=0.01)


@pytest.mark.parametrize("name", ["rtx3090", "v100", "a100", "t4"])
def test_bug_matrix_units_had_winograds_algorithm(name):
    """A layer of VGG-16, whose inference in float16 was 15 to 46 % too short on boards of games. Float32 keeps the algorithm."""
    (product,) = convolution_products(256, (56, 56), 256, 256, (3, 3), plain=True)
    device, generation = Hardware.named(name), generation_named(Hardware.named(name).generation)
    for precision in ("fp16", "fp32"):
        us, direct_us = (
            product_us(p, generation, device, precision=precision, convolution=True)
            for p in (product, replace(product, winograd=None, winograd_apart=None))
        )
        assert us == direct_us if precision == "fp16" else us < direct_us / 1.5


@pytest.mark.parametrize(("generation", "window", "splits"), [("", 3, 1), ("", 1, 4), ("hopper", 3, 4)])
def test_convolutions_of_float32_do_not_split_their_sums(generation, window, splits):
    """64 positions of 64 filters are one tile, which one of four multiprocessors sums. Gradients of filters split."""
    flat, device = replace(TILES, tile_us=0.0), replace(DEVICE, generation=generation)
    (product,) = convolution_products(1, (8, 8), 256, 64, (window, window))
    forward_us, input_us, filters_us = (
        product_us(p, flat, device, convolution=True) for p in (product, product.left_gradient, product.right_gradient)
    )
    share = 0.57 if generation else 1.0
    assert forward_us == input_us == pytest.approx(2 * 64 * 64 * 256 * window**2 / splits / share / 1e6)
    if window == 3 and not generation:
        assert filters_us == pytest.approx(forward_us / 4)


def test_winograd_makes_gradients_of_many_filters():
    """As many FLOPs as forward by kernels apart, from 128 channels and filters on; fewer have the direct product."""
    generation = replace(TILES, tile_us=0.0)

    def forward_and_gradient(channels):
        (product,) = convolution_products(16, (32, 32), channels, channels, (3, 3), plain=True)
        forward = replace(product, winograd=None)
        return [product_us(p, generation, convolution=True) for p in (forward, product.right_gradient)]

    forward_us, gradient_us = forward_and_gradient(128)
    assert gradient_us == pytest.approx(forward_us)
    forward_us, gradient_us = forward_and_gradient(64)
    assert gradient_us == pytest.approx(2 * (16 * 32 * 32) * 64 * 64 * 9 / 4e6) and gradient_us > 2 * forward_us


@pytest.mark.parametrize(
    ("generation", "precision", "slowdown"), [("", "fp32", 1 / 0.55), ("", "fp16", 1), ("hopper", "fp32", 1)]
)
def test_gradients_of_filters_of_one_position(generation, precision, slowdown):
    """They take longer than the other two products of the convolution, which have as many FLOPs."""
    device, flat = replace(DEVICE, generation=generation), replace(TILES, tile_us=0.0)
    (product,) = convolution_products(16, (32, 32), 64, 64, (1, 1), plain=True)
    forward_us, input_us, filters_us = (
        product_us(p, flat, device, precision=precision, convolution=True)
        for p in (product, product.left_gradient, product.right_gradient)
    )
    assert forward_us == input_us and filters_us == pytest.approx(slowdown * forward_us)


@pytest.mark.parametrize(("generation", "share"), [("", 0.4), ("volta", 0.2), ("hopper", 0.08)])
def test_few_channels_fill_16_bytes_on_matrix_units(generation, share):
    """4 tiles of 256 x 64 outputs and 3 channels: 8 channels in 16 bits at a share of 16e12 FLOP/s, 4 in TF32 of 8e12.

    Changes of layouts take 10 us. A group of as few channels has other kernels.
    """
    flat = replace(TILES, tile_us=0.0)
    device = replace(DEVICE, generation=generation, peak_flops=1e12, matmul_flops=8e12, half_flops=16e12)
    (product,) = convolution_products(4, (8, 8), 3, 64, (1, 1))
    if generation != "volta":  # has no matrix units for TF32
        us = product_us(product, flat, device, precision="tf32", convolution=True, row_alignment=4)
        assert us == pytest.approx(10 + 4 * 2 * 64 * 64 * 4 / (share * 8e6))
    us = product_us(product, flat, device, precision="fp16", convolution=True, row_alignment=2)
    assert us == pytest.approx(10 + 4 * 2 * 64 * 64 * 8 / (share * 16e6))
    group = replace(product, count=2, rows=128)
    assert product_us(group, flat, device, precision="fp16", convolution=True) < us


def test_convolutions_of_few_channels_are_as_fast_on_halved_units():
    """They wait for loads: 0.4 of the peak of an RTX A6000 (155 TFLOP/s), 0.8 of that of an RTX 3090 (71), in float16.

    Three channels are filled up to 8, so that as many FLOPs as with 8 count.
    """
    (product,) = convolution_products(256, (112, 112), 3, 64, (7, 7))
    kernel = Kernel(product.flops, 0.0, "fp16", matrix=True, products=(product,), convolution=True, row_alignment=2)
    for name, share in (("rtx-a6000", 0.4), ("rtx3090", 0.8)):
        board = Hardware.named(name)
        us = float(estimated_us(work_of(1, [(0, kernel)]), board, follows=True)[0])
        assert us == pytest.approx(1e6 * product.flops * 8 / 3 / (share * board.half_flops), rel=0.1), name


@pytest.mark.parametrize(("generation", "filters_share", "all_share"), [("", 0.55, 1.0), ("hopper", 1.0, 0.65)])
def test_few_channels_of_float32(generation, filters_share, all_share):
    """Before Hopper the gradient of their filters is slower than that of more channels, on Hopper all three products are."""
    flat, device = replace(TILES, tile_us=0.0), replace(DEVICE, generation=generation)
    (few,) = convolution_products(16, (32, 32), 4, 64, (5, 5))
    for gradient, share in (("left_gradient", all_share), ("right_gradient", all_share * filters_share)):
        product = getattr(few, gradient)
        expected = product_us(replace(product, channels=16), flat, device, convolution=True) / share
        assert product_us(product, flat, device, convolution=True) == pytest.approx(expected)


def test_gradients_of_inputs_with_gaps_take_twice_as_long_in_float32():
    """Single positions with strides leave gaps; the other products and other precisions take as long as without."""
    flat = replace(TILES, tile_us=0.0)
    (product,) = convolution_products(16, (32, 32), 64, 64, (1, 1), has_gaps=True)
    for precision, slowdown in (("fp32", 2), ("fp16", 1)):
        forward_us, input_us = (
            product_us(p, flat, precision=precision, convolution=True) for p in (product, product.left_gradient)
        )
        assert input_us == pytest.approx(slowdown * forward_us)


def test_gradients_of_volumes_reach_0_45_of_the_rate_of_others():
    """In any precision, unless channels come last, so that no tensor changes its order."""
    flat = replace(TILES, tile_us=0.0)
    (image,) = convolution_products(16, (16, 64), 64, 64, (3, 9))
    (volume,) = convolution_products(16, (16, 8, 8), 64, 64, (3, 3, 3))
    for make_gradient in (lambda p: p.left_gradient, lambda p: p.right_gradient):
        for layout_bytes, slowdown in ((1.0, 1 / 0.45), (0.0, 1.0)):
            image_us, volume_us = (
                product_us(make_gradient(p), flat, convolution=True, layout_bytes=layout_bytes) for p in (image, volume)
            )
            assert volume_us == pytest.approx(slowdown * image_us)


def test_rows_are_read_again_from_the_cache_or_from_memory():
    """1e6 bytes: at 1e12 bytes/s once, and again from a cache of 0.5 * 4e12 bytes/s as far as the rows in flight fit there."""
    generation = Generation(cached_bytes_per_flop=0.5)

    def us(row_bytes, norm=False, device=DEVICE):
        kernel = Kernel(moved_bytes=2e6, rows=Rows(1e6, row_bytes, 1, norm))
        return float(estimated_us(work_of(1, [(0, kernel)]), device, generation=generation)[0])

    # of a softmax, 4 * 2 rows are in flight; 0.4 and 0.8 of a cache of 1e5 bytes are 5,000 and 10,000 bytes per row
    # reading from the cache (0.5 us for all bytes) overlaps in part with reading from memory
    small_cache = replace(DEVICE, l2_bytes=DEVICE.l2_bytes / 10)
    assert us(5_000, device=small_cache) == pytest.approx((2**2 + 0.5**2) ** 0.5)
    assert us(7_500, device=small_cache) == pytest.approx((2.5**2 + 0.25**2) ** 0.5)
    assert us(10_000, device=small_cache) == pytest.approx(2 + 1)
    # rows of 8 KiB, and from 16 KiB on, leave little to load one by one: they are read again twice as fast
    for row_bytes, cache_us in ((8192, 0.25), (8196, 0.5), (16380, 0.5), (16384, 0.25), (50_000, 0.25)):
        assert us(row_bytes) == pytest.approx((2**2 + cache_us**2) ** 0.5)
    # of a norm, 4 * 2048 / 128 rows are; reading from the cache (0.5 us) hides behind memory
    assert us(6_250, norm=True) == pytest.approx(2)
    assert us(12_500, norm=True) == pytest.approx(2 + 1)
    assert us(12_500, norm=True, device=replace(DEVICE, multiprocessor_threads=1024)) == pytest.approx(2)


def test_a_norm_that_starts_a_step_waits_longer():
    """Its statistics are tensors too: 25 us of the host beside the start of 20 us."""
    generation, device = Generation(start_us=20.0), replace(DEVICE, launches_hidden=True)
    work = work_of(2, [(i, Kernel(moved_bytes=1e6, rows=Rows(0.0, 0.0, 1, True))) for i in range(2)])
    assert start_us(work, device, generation).tolist() == [45, 45]
    assert estimated_us(work, device, generation=generation) == pytest.approx([46, 1])


def test_softmax_reads_long_rows_three_times():
    assert Rows.of_softmax(10 * 1024, 1024, 4) is None, "a warp holds the row"
    for length in (1025, 4096, 16384):
        rows = Rows.of_softmax(10 * length, length, 4)
        assert (rows.rereads, rows.row_bytes) == (2, 4 * length)


def test_kernels_wait_for_their_launches():
    """Of three kernels of 5 us: the first waits for its start, and those after it take at least a launch."""
    kernels = [(i, Kernel(moved_bytes=moved_bytes)) for i, moved_bytes in enumerate((5e6, 5e6, 1e6))]
    work, generation = work_of(3, kernels), Generation(start_us=20.0)
    device = replace(DEVICE, launch_us=3.0)
    hidden = replace(device, launches_hidden=True)
    assert estimated_us(work, hidden, generation=generation) == pytest.approx([25, 5, 3])
    assert estimated_us(work, hidden, generation=generation, follows=True) == pytest.approx([5, 5, 3])
    assert estimated_us(work, device, generation=generation) == pytest.approx([8, 8, 4])


FIRST_OF_GENERATIONS = {
    hardware.generation: name for name, hardware in reversed(HARDWARE.items()) if hardware.generation
}


@pytest.mark.parametrize("name", fast([*FIRST_OF_GENERATIONS.values()], 4))
def test_more_work_never_takes_less_time(name):
    """Of a device of every generation in the catalog, in each dimension of a product and for each precision."""
    device = HARDWARE[name]
    for precision in ("fp32", "fp16"):
        for dimension in range(4):
            sizes = [[1, 100, 100, 100] for _ in range(20)]
            for k, shape in enumerate(sizes):
                shape[dimension] = 1 + 200 * k * k
            if dimension == 0:
                sizes = sizes[1:]  # a single product may split its summed dimension, several may not
            products = [Product(*shape) for shape in sizes]
            us = [kernel_us(Kernel(p.flops, 0.0, precision, True, products=(p,)), device) for p in products]
            assert (np.diff(us) >= -1e-9).all(), (precision, dimension)


def test_no_estimate_is_faster_than_the_data_sheet():
    for device in HARDWARE.values():
        product = Product(1, 8192, 8192, 4096)
        kernel = Kernel(product.flops, 1e9, matrix=True, products=(product,))
        bound = 1e6 * max(product.flops / device.product_flops("fp32"), 1e9 / device.bandwidth)
        assert kernel_us(kernel, device) >= bound * (1 - 1e-9)


def test_generations_say_their_constants_and_unknown_ones_are_rejected():
    for generation in GENERATIONS.values():
        numbers = np.count_nonzero(list(generation.constants.values()))
        assert numbers <= 10 + 1, "ten constants; the tile is one of them and has two sides"
    assert all(generation.fitted_on for generation in GENERATIONS.values())
    assert {hardware.generation for hardware in HARDWARE.values()} - {""} == set(GENERATIONS)
    assert generation_named("") == Generation()
    with pytest.raises(UnknownNameError, match="generation of hardware 'amper'; did you mean 'ampere'"):
        kernel_us(Kernel(), replace(DEVICE, generation="amper"))
    with pytest.raises(InvalidInput, match=r"multiprocessors is -1; it must be finite and not negative"):
        kernel_us(Kernel(), replace(DEVICE, multiprocessors=-1))
