"""FLOP counts by hand."""

from __future__ import annotations

import pytest

from baechi_lab.errors import UncountedWork
from baechi_lab.profilers.arithmetic import per_element
from baechi_lab.profilers.tensorflow.flops import (
    flops,
    is_matrix_product,
    layout_bytes,
    multiprocessor_us,
    product_shapes,
    repeated_rows,
    row_alignment,
    vector_flops,
)
from baechi_lab.profilers.work import Product, Rows

tf = pytest.importorskip("tensorflow")


def node(op, **attrs):
    node_def = tf.compat.v1.NodeDef(name="n", op=op)
    for key, value in attrs.items():
        if isinstance(value, bool):
            node_def.attr[key].b = value
        elif isinstance(value, str):
            node_def.attr[key].s = value.encode()
        else:
            node_def.attr[key].list.i.extend(value)
    return node_def


CASES = [
    # op, attributes, input shapes, output shapes, FLOPs
    ("MatMul", {}, [(3, 4), (4, 5)], [(3, 5)], 2 * 3 * 5 * 4),
    ("MatMul", {"transpose_a": True}, [(4, 3), (4, 5)], [(3, 5)], 2 * 3 * 5 * 4),
    ("BatchMatMulV2", {"adj_y": True}, [(7, 3, 4), (7, 5, 4)], [(7, 3, 5)], 2 * 7 * 3 * 5 * 4),
    ("Einsum", {"equation": "abc,cd->abd"}, [(2, 3, 4), (4, 5)], [(2, 3, 5)], 2 * 2 * 3 * 4 * 5),
    ("Einsum", {"equation": "...c,cd->...d"}, [(2, 3, 4), (4, 5)], [(2, 3, 5)], 2 * 2 * 3 * 4 * 5),
    # 1 x 8 x 8 x 16 outputs, each 3 x 3 positions x 4 channels
    ("Conv2D", {}, [(1, 8, 8, 4), (3, 3, 4, 16)], [(1, 8, 8, 16)], 2 * 8 * 8 * 16 * 9 * 4),
    ("Conv2DBackpropInput", {}, [(4,), (3, 3, 4, 16), (1, 8, 8, 16)], [(1, 8, 8, 4)], 2 * 8 * 8 * 16 * 9 * 4),
    ("Conv2DBackpropFilter", {}, [(1, 8, 8, 4), (4,), (1, 8, 8, 16)], [(3, 3, 4, 16)], 2 * 8 * 8 * 16 * 9 * 4),
    # each of the 4 x 2 output channels sums 3 x 3 positions of its own input channel
    ("DepthwiseConv2dNative", {}, [(1, 8, 8, 4), (3, 3, 4, 2)], [(1, 8, 8, 8)], 2 * 8 * 8 * 8 * 9),
    ("Conv", {}, [(1, 8, 8, 4), (3, 3, 4, 16)], [(1, 8, 8, 16)], 2 * 8 * 8 * 16 * 9 * 4),
    ("SparseMatMul", {"transpose_a": True}, [(4, 3), (4, 5)], [(3, 5)], 2 * 3 * 5 * 4),
    ("QuantizedMatMul", {}, [(3, 4), (4, 5), (), (), (), ()], [(3, 5), (), ()], 2 * 3 * 5 * 4),
    # 7 entries of a 3 x 4 matrix, each times a row of 5
    ("SparseTensorDenseMatMul", {}, [(7, 2), (7,), (2,), (4, 5)], [(3, 5)], 2 * 7 * 5),
    ("Dilation2D", {}, [(1, 8, 8, 4), (3, 3, 4)], [(1, 8, 8, 4)], 2 * 8 * 8 * 4 * 9),
    ("FusedBatchNormV2", {}, [(10, 8)], [(10, 8)], 8 * 80),
    ("FusedBatchNormGradV2", {}, [(10, 8)], [(10, 8)], 14 * 80),
    ("MaxPool", {"ksize": [1, 3, 3, 1]}, [(1, 9, 9, 2)], [(1, 3, 3, 2)], 9 * 3 * 3 * 2),
    ("AddV2", {}, [(10, 10), (10, 10)], [(10, 10)], 100),
    ("AddN", {}, [(10,), (10,), (10,)], [(10,)], 20),
    ("Mean", {}, [(10, 10), (1,)], [(10,)], 100),
    ("Tanh", {}, [(5,)], [(5,)], 50),
    ("Reshape", {}, [(5, 2), (1,)], [(10,)], 0),
    ("ConcatV2", {}, [(5, 2), (5, 2), ()], [(10, 2)], 0),
]


@pytest.mark.parametrize(("op", "attrs", "inputs", "outputs", "expected"), CASES)
def test_flops_of_operators_are_those_of_hand_arithmetic(op, attrs, inputs, outputs, expected):
    assert flops(node(op, **attrs), inputs, outputs) == expected


def test_matrix_products_are_recognized_by_type():
    assert is_matrix_product("Conv2DBackpropFilter") and not is_matrix_product("DepthwiseConv2dNative")


IMAGES, FILTERS, UPSAMPLED = (2, 5, 5, 8), (4, 4, 6, 8), (2, 10, 10, 6)
"""A transposed convolution of stride 2, from 8 channels to 6."""


@pytest.mark.parametrize("dims", [2, 3])
def test_bug_a_transposed_convolution_had_the_product_of_a_gradient(dims):
    """Forward: 2 x 5 x 5 input positions by 6 filters x 16, over 8 channels. As a gradient: by 8, over 6 x 16."""
    images, filters, upsampled = (
        shape if dims == 2 else shape[:1] + (3,) + shape[1:] for shape in (IMAGES, FILTERS, UPSAMPLED)
    )
    op = "Conv2DBackpropInput" if dims == 2 else "Conv3DBackpropInputV2"
    node_def = node(op, strides=[1, 2, 2, 1] if dims == 2 else [1, 1, 2, 2, 1])
    positions, window = 2 * 5 * 5 * (1 if dims == 2 else 3), 16 * (1 if dims == 2 else 3)
    shapes = ([(4,), filters, images], [upsampled])
    assert product_shapes(node_def, *shapes) == (Product(1, positions, 6 * window, 8),)
    node_def.name = "gradient_tape/model/conv2d/Conv2DBackpropInput"
    assert product_shapes(node_def, *shapes) == (Product(1, positions, 8, 6 * window),)


def test_the_filters_gradient_of_a_convolution_in_space_is_a_product():
    """2 x 4 x 4 x 4 output positions are summed; the filters are 27 x 3 by 5."""
    node_def = node("Conv3DBackpropFilterV2", strides=[1, 1, 1, 1, 1])
    inputs = [(2, 4, 4, 4, 3), (5,), (2, 4, 4, 4, 5)]
    assert product_shapes(node_def, inputs, [(3, 3, 3, 3, 5)]) == (Product(1, 27 * 3, 5, 2 * 4 * 4 * 4),)


def test_bug_a_generic_convolution_had_no_product():
    """2 x 3 samples of 8 x 8 outputs by 16 filters, over 9 positions of 4 channels."""
    steps = {"strides": [1, 2, 2, 1], "dilations": [1, 1, 1, 1]}
    image, filters, outputs = (2, 3, 16, 16, 4), (3, 3, 4, 16), (2, 3, 8, 8, 16)
    expected = (Product(1, 2 * 3 * 8 * 8, 16, 9 * 4),)
    assert product_shapes(node("Conv", **steps), [image, filters], [outputs]) == expected
    first = node("Conv", data_format="CHANNELS_FIRST", **steps)
    assert product_shapes(first, [(6, 4, 16, 16), filters], [(6, 16, 8, 8)]) == expected
    assert layout_bytes(first, [(6, 4, 16, 16), filters], [(6, 16, 8, 8)], 100.0) == 200


@pytest.mark.parametrize("version", ["", "V2"])
@pytest.mark.parametrize("dims", ["2D", "3D"])
def test_bug_gradients_of_convolutions_of_other_versions_had_no_work(dims, version):
    image, filters, outputs = (1, 8, 8, 4), (3, 3, 4, 16), (1, 8, 8, 16)
    expected = 2 * 8 * 8 * 16 * 9 * 4
    assert flops(node(f"Conv{dims}BackpropInput{version}"), [image, filters, outputs], [image]) == expected
    assert flops(node(f"Conv{dims}BackpropFilter{version}"), [image, filters, outputs], [filters]) == expected


def test_a_pointwise_convolution_with_strides_copies_the_positions_that_it_uses():
    """Of 256 numbers of the input every fourth, 64 of filters and 64 of the output; the gradient of the input has all."""
    image, filters, outputs = (1, 8, 8, 4), (1, 1, 4, 16), (1, 4, 4, 16)
    forward, gradient = node("Conv2D", strides=[1, 2, 2, 1]), node("Conv2DBackpropInput", strides=[1, 2, 2, 1])
    assert layout_bytes(forward, [image, filters], [outputs], 576.0) == 2 * (256 / 4 + 64 + 256)
    assert layout_bytes(gradient, [(4,), filters, outputs], [image], 580.0) == 2 * 580
    gradient.name = "gradient_tape/model/conv2d/Conv2DBackpropInput"
    (of_input,) = product_shapes(gradient, [(4,), filters, outputs], [image])
    (of_output,) = product_shapes(forward, [image, filters], [outputs])
    assert of_input.has_gaps and not of_output.has_gaps and of_input.channels == of_output.channels == 4


def test_no_convolution_is_what_only_begins_like_one():
    assert row_alignment(node("ConvertToCooTensor"), [(4,), (4,), (4,)], [(4,), (4,), (4,)], 4) == 16


def test_ops_have_the_kernels_of_pytorch():
    """Rows of 5 x 2 and 4 x 2 bytes; 3 x 3 filters change the order of 100 bytes twice; per number what an H200 takes."""
    matmul = [(3, 4), (4, 5)], [(3, 5)]
    assert [row_alignment(node("MatMul"), *matmul, n) for n in (2, 4)] == [2, 4]
    image, filters = (1, 8, 8, 4), (3, 3, 4, 16)
    convolution, gradient = node("Conv2D", strides=[1] * 4), node("Conv2DBackpropFilter", strides=[1] * 4)
    assert row_alignment(convolution, [image, filters], [(1, 8, 8, 16)], 2) == 8
    assert layout_bytes(convolution, [image, filters], [(1, 8, 8, 16)], 100.0) == 200
    assert layout_bytes(gradient, [image, (4,), (1, 8, 8, 16)], [filters], 100.0) == 200
    assert layout_bytes(convolution, [image, (1, 1, 4, 16)], [(1, 8, 8, 16)], 100.0) == 0
    norm = node("FusedBatchNormGradV3", is_training=True)
    assert vector_flops(norm, [image, image], [image], 4) == 600 * 256
    assert repeated_rows(norm, [image, image], 4) == Rows(2 * 4.0 * 256, 4.0 * 64, 1, norm=True)
    assert multiprocessor_us(node("AddV2"), [image, (4,)], [image], 4) == pytest.approx(4.1e-4 * 256)
    assert multiprocessor_us(node("AddV2"), [image, image], [image], 4) == 0
    pooled = multiprocessor_us(node("MaxPool", ksize=[1, 2, 2, 1]), [image], [(1, 4, 4, 4)], 4)
    assert pooled == pytest.approx(2.4e-4 * 4 * 64)
    volume, half = (1, 4, 4, 4, 2), (1, 2, 2, 2, 2)
    max_pool, average_pool = (node(f"{op}Pool3D", ksize=[1, 2, 2, 2, 1]) for op in ("Max", "Avg"))
    assert multiprocessor_us(max_pool, [volume], [half], 4) == pytest.approx(2.4e-4 * 8 * 16)
    assert flops(max_pool, [volume], [half]) == flops(average_pool, [volume], [half]) == 8 * 16


@pytest.mark.parametrize(
    "op",
    [
        *("_linalg_svd", "linalg_inv_ex", "Svd", "MatrixInverse", "Cholesky", "Det"),
        *("linalg_solve_triangular", "cholesky_solve", "MatrixTriangularSolve", "linalg_lu_solve"),
    ],
)
def test_decompositions_are_not_counted_and_say_so(op):
    """An SVD of 256 x 256 numbers was estimated at 21 us, where a GPU needs tens of milliseconds."""
    with pytest.warns(UncountedWork, match=f"{op} decomposes or solves a matrix"):
        per_element(op)


def test_steps_along_a_sequence_are_not_counted_and_say_so():
    """A loss of 1000 steps was estimated at 48 us, as long as its bytes take."""
    with pytest.warns(UncountedWork, match="_ctc_loss takes steps that wait for each other"):
        per_element("_ctc_loss")
