"""The same layers take the same time in a training step, whichever program describes them."""

import numpy as np
import pytest
from fewer import fast

import baechi_lab as bl
from baechi_lab.profilers.arithmetic import column_sum_us

torch = pytest.importorskip("torch")

VIEWS_US = 3.0
"""Views, reads of variables and the like: 0.25 us each."""
LAYERS = {  # channels or features, filters, window, strides, bias; a window of 0 is a linear layer
    "linear": (256, 512, 0, 1, True),
    "convolution": (32, 64, 3, 1, True),
    "convolution with strides": (32, 64, 3, 2, False),
    "pointwise with strides": (32, 64, 1, 2, False),
}
BATCH, SIZE = 16, 32
"""Samples, and rows and columns of their images; a linear layer has as many rows as there are positions."""


def torch_model(channels, filters, window, stride, bias):
    """Two layers, so that the second one has a gradient of its input."""
    if not window:
        layers = torch.nn.Linear(channels, channels, bias=False), torch.nn.Linear(channels, filters, bias=bias)
        return torch.nn.Sequential(*layers), torch.empty(BATCH * SIZE**2, channels)
    first = torch.nn.Conv2d(channels, channels, 1, bias=False)
    second = torch.nn.Conv2d(channels, filters, window, stride, window // 2, bias=bias)
    return torch.nn.Sequential(first, second), torch.empty(BATCH, channels, SIZE, SIZE)


def us_without_updates(graph):
    return sum(us for name, us in zip(graph.names, graph.duration_us, strict=True) if not name.endswith("update"))


def us_of_torch(sizes, precision):
    model, x = torch_model(*sizes)
    return us_without_updates(bl.torch.profile(model, x, hardware="h100", precision=precision))


def us_of_export(sizes, precision):
    model, x = torch_model(*sizes)
    program = torch.export.export(model, (x,))
    return us_without_updates(bl.profile_program(program, hardware="h100", precision=precision))


def us_of_onnx(sizes, precision):
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    _, _, window, stride, bias = sizes
    model, x = torch_model(*sizes)
    tensors = {name.replace(".", "_"): tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    inner = ["1_weight", *(["1_bias"] if bias else [])]
    if window:
        attributes = {"pads": [window // 2] * 4, "strides": [stride] * 2}
        nodes = [helper.make_node("Conv", ["x", "0_weight"], ["h"], "first")]
        nodes += [helper.make_node("Conv", ["h", *inner], ["y"], "second", **attributes)]
    else:
        nodes = [helper.make_node("Gemm", ["x", "0_weight"], ["h"], "first", transB=1)]
        nodes += [helper.make_node("Gemm", ["h", *inner], ["y"], "second", transB=1)]
    value = lambda name, shape: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(shape))  # noqa: E731
    weights = [onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in tensors.items()]
    graph = helper.make_graph(nodes, "two", [value("x", x.shape)], [value("y", model(x).shape)], weights)
    return us_without_updates(bl.profile_program(helper.make_model(graph), hardware="h100", precision=precision))


def us_of_tensorflow(sizes, precision):
    tf = pytest.importorskip("tensorflow")
    channels, filters, window, stride, bias = sizes
    _, x = torch_model(*sizes)
    shape = (*x.shape[:1], *x.shape[2:], channels)
    zeros = lambda *sizes: tf.Variable(np.zeros(sizes, np.float32))  # noqa: E731
    first = zeros(*([1, 1] if window else []), channels, channels)
    second = zeros(*([window, window] if window else []), channels, filters)
    b = zeros(filters)

    def step(x, gradient):
        with tf.GradientTape() as tape:
            h = tf.nn.conv2d(x, first, 1, "SAME") if window else tf.matmul(x, first)
            y = tf.nn.conv2d(h, second, stride, "SAME") if window else tf.matmul(h, second)
            y = tf.nn.bias_add(y, b) if bias else y
        return y, tape.gradient(y, [first, second, *([b] if bias else [])], output_gradients=gradient)

    positions = (BATCH, SIZE // stride, SIZE // stride) if window else shape[:1]
    inputs = np.zeros(shape, np.float32), np.zeros((*positions, filters), np.float32)
    return us_without_updates(bl.profile(step, *inputs, hardware="h100", precision=precision))


@pytest.mark.slow
@pytest.mark.parametrize("precision", fast(["tf32", "fp32", "bf16"], 1))
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    "us_of_reader", [pytest.param(us_of_export, marks=pytest.mark.slow), us_of_onnx, us_of_tensorflow]
)
def test_bug_the_same_layers_took_other_times_in_other_readers(us_of_reader, layer, precision):
    """TensorFlow's biases were kernels of their own; the gradient of a convolution's output changed its order once, not twice."""
    sizes = LAYERS[layer]
    assert us_of_reader(sizes, precision) == pytest.approx(us_of_torch(sizes, precision), rel=0.01, abs=VIEWS_US)


def test_the_bias_of_a_product_takes_no_time_unless_the_product_is_read_twice():
    tf = pytest.importorskip("tensorflow")
    w, b = tf.Variable(np.zeros((64, 64), np.float32)), tf.Variable(np.zeros(64, np.float32))

    def us_of_bias(step):
        graph = bl.profile(step, np.zeros((4096, 64), np.float32), hardware="h100")
        return graph.duration_us[graph.op_types.index("BiasAdd")]

    assert us_of_bias(lambda x: tf.nn.bias_add(x @ w, b)) == 0
    assert us_of_bias(lambda x: tf.nn.bias_add(tf.reshape(x @ w, (64, 64, 64)), b)) == 0

    def read_twice(x):
        product = x @ w
        return tf.nn.bias_add(product, b), tf.nn.relu(product)

    assert us_of_bias(read_twice) > 6


@pytest.mark.slow
def test_bug_a_tensor_that_is_read_as_two_operands_counted_twice():
    """2**24 numbers of 4 bytes are read once and written, by an H100 at 0.874 of 3.35 TB/s."""
    pytest.importorskip("tensorflow")
    graph = bl.profile(lambda x: x * x, np.zeros(1 << 24, np.float32), hardware="h100")
    us = graph.duration_us[graph.op_types.index("Mul")]
    start_us = 22.0
    assert us == pytest.approx(1e6 * 2 * 4 * 2**24 / (0.874 * 3.35e12) + start_us, rel=1e-3)


def test_sums_of_columns_wait_for_each_other():
    """8192 rows of 1024 columns: 8 us, and 0.055 us for each of 8192 / (16 * 4) parts."""
    assert column_sum_us(8192, 1024) == pytest.approx(2 + 6 + 0.055 * 128)
