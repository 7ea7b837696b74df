"""Estimated times over hardware, precisions and odd shapes: finite, longer for larger sizes, not slower in 16 bits."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from baechi_lab.graph.hardware import HARDWARE, PRECISIONS
from baechi_lab.profilers.kernel_model import PRODUCT_BANDWIDTH_SHARE, estimated_us
from baechi_lab.profilers.work import PRECISION_BYTES, Kernel, Product, Rows, work_of

SIZES = (1, 2, 3, 7, 8, 31, 63, 64, 65, 127, 128, 129, 509, 1021, 1024, 4093, 4096, 8192, 65536, 2**20)
SHAPES = ((1, 128, 512, 1024), (8, 64, 64, 64), (1, 4096, 4096, 4096), (1, 1, 1, 1), (16, 17, 31, 509), (1, 2, 7, 3))
"""Count, rows, columns and inner size of products, of which one at a time takes all `SIZES`."""
DEVICES = (
    "k40",
    "p4",
    "v100",
    "t4",
    "a100",
    "a10",
    "rtx3090",
    "l4",
    "h100",
    "h20",
    "rtx5090",
    "b200",
    "mi100",
    "mi300x",
)
"""One of every generation, and boards with a low power limit, halved matrix units or none."""


def product_kernel(count, rows, columns, inner, precision="fp32"):
    numbers = count * (rows * inner + inner * columns + rows * columns)
    shape = Product(count, rows, columns, inner)
    kernel = Kernel(shape.flops, float(PRECISION_BYTES[precision] * numbers), matrix=True, products=(shape,))
    return replace(kernel, precision=precision, batched=count > 1)


def kernels_us(kernels, device):
    return estimated_us(work_of(len(kernels), enumerate(kernels)), HARDWARE[device], follows=True)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_larger_products_take_at_least_as_long(precision):
    """In each of the four sizes; splitting the summed dimension may not make a longer product shorter."""
    shapes = [(*s[:axis], size, *s[axis + 1 :]) for s, axis, size in product(SHAPES, range(4), SIZES)]
    work = work_of(len(shapes), enumerate(product_kernel(*shape, precision) for shape in shapes))
    for device in (*DEVICES, "cpu-core"):
        us = estimated_us(work, HARDWARE[device], follows=True).reshape(-1, len(SIZES))
        assert np.isfinite(us).all() and (us > 0).all(), device
        assert (np.diff(us, axis=1) >= -1e-9 * us[:, 1:]).all(), device


@pytest.mark.parametrize("device", sorted(HARDWARE))
def test_empty_kernels_take_finite_times(device):
    products = [product_kernel(*shape) for shape in ((0, 4, 4, 4), (1, 0, 4, 4), (1, 4, 0, 4), (1, 4, 4, 0))]
    no_rows = Kernel(rows=Rows.of_norm(0, 0, 4)), Kernel(rows=Rows.of_softmax(0, 5000, 4))
    us = kernels_us([*products, *no_rows, Kernel()], device)
    assert np.isfinite(us).all() and (us >= 0).all() and us.max() <= 2 * HARDWARE[device].launch_us + 50


@pytest.mark.parametrize("device", DEVICES)
def test_products_on_matrix_units_are_not_slower_than_in_float32(device):
    """Rows of other than multiples of 16 bytes included, where these units reach a tenth of their peak on recent hardware."""
    hardware = HARDWARE[device]
    precisions = [p for p in ("tf32", "fp16", "bf16") if not hardware.uses_float32_units(p)]
    shapes = list(product((1, 64), (1, 17, 128, 4093), (1, 64, 4096, 50257), (8, 509, 4096)))
    in_float32 = kernels_us([product_kernel(*shape) for shape in shapes], device)
    for precision in precisions:
        number_bytes = PRECISION_BYTES[precision]
        kernels = [product_kernel(*shape, precision) for shape in shapes]
        alignments = [int(np.gcd.reduce([number_bytes * s[2], number_bytes * s[3], 16])) for s in shapes]
        us = kernels_us([replace(k, row_alignment=a) for k, a in zip(kernels, alignments, strict=True)], device)
        most = 1 / PRODUCT_BANDWIDTH_SHARE if precision == "tf32" else 1.0  # tiles in TF32, as measured on an H200
        assert (us <= 1.001 * most * in_float32).all(), precision
