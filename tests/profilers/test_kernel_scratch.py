"""Scratch memory of TensorFlow's kernels in an estimate, by hand and as the allocator of a run reports it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import baechi_lab as bl

pytestmark = pytest.mark.tensorflow

MIB = 1 << 20
CPU = Path("/proc/cpuinfo")


def convolution_and_products(dtype):
    """One step: a convolution with both gradients, two products and an einsum that is transposed."""
    import tensorflow as tf

    images, filters, weights = (np.ones(shape, dtype) for shape in ((2, 8, 8, 2), (3, 3, 2, 4), (16, 4)))
    strides = [1, 2, 2, 1]

    def step(images, filters, weights):
        gradient = tf.raw_ops.Conv2D(input=images, filter=filters, strides=strides, padding="SAME")
        shapes = {"input_sizes": [2, 8, 8, 2], "filter_sizes": [3, 3, 2, 4]}
        common = {"out_backprop": gradient, "strides": strides, "padding": "SAME"}
        of_input = tf.raw_ops.Conv2DBackpropInput(input_sizes=shapes["input_sizes"], filter=filters, **common)
        of_filter = tf.raw_ops.Conv2DBackpropFilter(input=images, filter_sizes=shapes["filter_sizes"], **common)
        product = tf.raw_ops.MatMul(a=tf.reshape(gradient, [8, 16]), b=weights)
        cells = tf.reshape(gradient, [2, 4, 4, 4])
        attention = tf.raw_ops.Einsum(inputs=[cells, cells], equation="bqhd,bkhd->bhqk")
        return tuple(tf.reduce_sum(x) for x in (of_input, of_filter, product, attention))

    return bl.trace(step, images, filters, weights)


def by_type(graph):
    kinds = ("Conv2DBackpropInput", "Conv2DBackpropFilter", "MatMul", "Einsum")
    return [int(graph.temp_bytes[graph.op_types.index(kind)]) for kind in kinds]


def expected(number_bytes, product_bytes):
    """The windows of 16 positions have 18 numbers each, and with results (16 x 4) and weights (18 x 4) an image has 424."""
    windows, image = 16 * 18, 16 * 18 + 16 * 4 + 18 * 4
    images = -(-30 * MIB // number_bytes // image)
    copies = 2 * (2 * 4 * 4 * 4)  # both operands of the einsum: b h q d from b q h d
    gradients = images * windows * number_bytes
    return [gradients, gradients, product_bytes, copies * number_bytes]


def test_bug_estimates_left_out_what_kernels_allocate_for_themselves():
    step = convolution_and_products("float64")
    assert by_type(bl.profile(step, hardware="cpu-core")) == expected(8, product_bytes=0)
    assert by_type(bl.profile(step, hardware=["cpu-core", "a100"])) == [0, 0, 0, expected(8, 0)[-1]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "scratch"), [("float16", expected(2, 4 * (8 * 16 + 16 * 4 + 8 * 4))), ("float64", expected(8, 0))]
)
@pytest.mark.filterwarnings("ignore::baechi_lab.errors.BusyMachine")
def test_scratch_memory_is_what_the_allocator_reports(dtype, scratch):
    step = convolution_and_products(dtype)
    assert by_type(bl.profile(step, hardware="cpu-core")) == by_type(bl.profile(step, warmup=1, runs=1)) == scratch


@pytest.mark.slow
def test_what_onednn_computes_has_no_windows_of_its_own():
    step = convolution_and_products("float32")
    assert by_type(bl.profile(step, hardware="cpu-core")) == [0, 0, 0, expected(4, 0)[-1]]


def bfloat16_products():
    """A product of 16 x 64 and 64 x 128, and one whose first operand is read transposed."""
    import tensorflow as tf

    first, transposed, second = (tf.cast(tf.ones(shape), tf.bfloat16) for shape in ((16, 64), (64, 16), (64, 128)))

    def step(first, transposed, second):
        return tf.matmul(first, second, name="plain"), tf.matmul(transposed, second, transpose_a=True, name="turned")

    return bl.trace(step, first.numpy(), transposed.numpy(), second.numpy())


def bytes_of_bfloat16_products(graph):
    return [int(graph.temp_bytes[graph.index[name]]) for name in ("plain", "turned")]


def test_bug_products_of_bfloat16_had_no_scratch_memory():
    """Of a step of 6 KB, two thirds were in it: 64 x 64 numbers of 2 bytes and 1 KB beside them; 16 x 64 numbers transposed."""
    estimate = bl.profile(bfloat16_products(), hardware="cpu-core")
    assert bytes_of_bfloat16_products(estimate) == [2 * 64 * 64 + 1024, 2 * 64 * 64 + 1024 + 2 * 16 * 64]
    elsewhere = bl.profile(bfloat16_products(), hardware=["cpu-core", "a100"])
    assert bytes_of_bfloat16_products(elsewhere) == [0, 0]


@pytest.mark.slow
@pytest.mark.skipif(not CPU.is_file() or "avx512_bf16" not in CPU.read_text(), reason="other kernels multiply bfloat16")
@pytest.mark.filterwarnings("ignore::baechi_lab.errors.BusyMachine")
def test_scratch_of_bfloat16_is_about_what_the_allocator_reports():
    step = bfloat16_products()
    estimates = bytes_of_bfloat16_products(bl.profile(step, hardware="cpu-core"))
    measured = bytes_of_bfloat16_products(bl.profile(step, warmup=1, runs=1))
    assert estimates == pytest.approx(measured, rel=0.05)
