"""Exported programs: FLOPs by hand, the generated backward pass, open dimensions, what is guessed and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.errors import FormatError, InvalidInput
from baechi_lab.graph.hardware import HOST_OP_US
from baechi_lab.graph.opgraph import GROWS, VIEW
from baechi_lab.profilers import Hardware
from baechi_lab.profilers.kernel_model import estimated_us, kernel_us
from baechi_lab.profilers.programs.backward import add_backward_and_updates
from baechi_lab.profilers.programs.estimation import GuessedCosts
from baechi_lab.profilers.programs.records import UNKNOWN_SHAPES, CallWork, Program, ProgramOp
from baechi_lab.profilers.work import SCORE_FLOPS, Kernel, Product, Rows, work_of

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

FLOAT = TensorProto.FLOAT


def weights(name: str, *shape: int) -> TensorProto:
    return helper.make_tensor(name, FLOAT, shape, np.zeros(shape, np.float32).tobytes(), raw=True)


def value(name: str, *shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, list(shape))


def model(nodes: list, inputs: list, outputs: list, initializers: list = (), **fields) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, list(initializers))
    return helper.make_model(graph, **{"opset_imports": [helper.make_opsetid("", 17)], "ir_version": 9, **fields})


def two_layers(batch="batch") -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["a"], name="relu"),
        helper.make_node("MatMul", ["a", "w2"], ["y"], name="second"),
    ]
    return model(
        nodes,
        [value("x", batch, 8)],
        [value("y", None, 4)],
        [weights("w1", 8, 16), weights("b1", 16), weights("w2", 16, 4)],
    )


def kernel_of(
    op: str,
    inputs: dict[str, tuple],
    output: tuple,
    weight: dict[str, tuple] | None = None,
    kind: int = TensorProto.FLOAT,
    **attributes,
) -> Kernel:
    from baechi_lab.profilers.programs.onnx_model import program_of

    node = helper.make_node(op, [*inputs, *(weight or {})], ["y"], **attributes)
    domains = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    program = model(
        [node],
        [helper.make_tensor_value_info(k, kind, list(s)) for k, s in inputs.items()],
        [helper.make_tensor_value_info("y", kind, list(output))],
        [weights(k, *s) for k, s in (weight or {}).items()],
        opset_imports=domains,
    )
    return program_of(program).ops[0].kernels[-1]


def flops_of(*arguments, **attributes) -> float:
    return kernel_of(*arguments, **attributes).flops


def test_flops_by_hand():
    assert flops_of("MatMul", {"a": (2, 3, 8), "b": (2, 8, 5)}, (2, 3, 5)) == 2 * 2 * 3 * 8 * 5
    assert flops_of("Gemm", {"a": (8, 3)}, (3, 5), {"w": (8, 5)}, transA=1) == 2 * 3 * 8 * 5
    # 6 channels in 2 groups: every output sums over 3 channels and 9 positions of the kernel
    assert (
        flops_of("Conv", {"x": (1, 6, 10, 10)}, (1, 4, 8, 8), {"w": (4, 3, 3, 3)}, group=2) == 2 * (4 * 8 * 8) * 3 * 9
    )
    assert flops_of("ConvTranspose", {"x": (1, 6, 5, 5)}, (1, 4, 7, 7), {"w": (6, 4, 3, 3)}) == 2 * (6 * 5 * 5) * 4 * 9
    assert flops_of("Einsum", {"a": (2, 3, 8), "b": (2, 8, 5)}, (2, 3, 5), equation="bij,bjk->bik") == 2 * 2 * 3 * 8 * 5


def test_several_operands_of_einsum_are_multiplied_from_left_to_right():
    """n x n times n x n twice: the product of all four sizes would be n times as much. A letter of no other operand is summed."""
    square = {"a": (8, 8), "b": (8, 8), "c": (8, 8)}
    assert flops_of("Einsum", square, (8, 8), equation="ij,jk,kl->il") == 2 * (2 * 8**3)
    assert flops_of("Einsum", square, (8, 8), equation="ij,jk,kl") == 2 * (2 * 8**3)
    assert flops_of("Einsum", square, (8, 8, 8), equation="ij,jk,jl->ikl") == 2 * 8**3 + 2 * 8**4
    batched = {"a": (3, 2, 8), "b": (3, 8, 5), "c": (5, 7)}
    assert flops_of("Einsum", batched, (3, 2, 7), equation="...ij,...jk,kl->...il") == 2 * 3 * 2 * (8 * 5 + 5 * 7)
    assert flops_of("Einsum", {"a": (4, 4)}, (4,), equation="ii->i") == 4


def test_quantized_and_deformable_convolutions_by_hand():
    """Scale and zero point of a quantized operand follow it. Every output sums over 3 channels and 9 positions."""
    quantized = {"x": (1, 3, 8, 8), "xs": (), "xz": (), "w": (4, 3, 3, 3), "ws": (), "wz": (), "ys": (), "yz": ()}
    assert flops_of("QLinearConv", quantized, (1, 4, 6, 6)) == 2 * (4 * 6 * 6) * 3 * 9
    product = {"a": (8, 16), "as": (), "az": (), "b": (16, 5), "bs": (), "bz": ()}
    assert flops_of("QGemm", product, (8, 5), domain="com.microsoft") == 2 * 8 * 5 * 16
    deformable = {"x": (1, 3, 8, 8), "w": (4, 3, 3, 3), "offset": (1, 18, 6, 6)}
    assert flops_of("DeformConv", deformable, (1, 4, 6, 6)) == 2 * (4 * 6 * 6) * 3 * 9


def test_bug_quantized_products_had_no_tiles_and_a_bias_of_their_own():
    """Zero points were taken for a bias, and scales for the second operand. A kernel for integers adds its bias."""
    image, filters, zero = {"x": (1, 16, 8, 8)}, {"w": (4, 16, 3, 3)}, {"xz": (), "wz": ()}
    quantized_inputs = {**image, "xs": (), "xz": (), **filters, "ws": (), "wz": (), "ys": (), "yz": (), "b": (4,)}
    plain = kernel_of("Conv", image, (1, 4, 6, 6), filters)
    in_integers = kernel_of("ConvInteger", {**image, **filters, **zero}, (1, 4, 6, 6), kind=TensorProto.UINT8)
    quantized = kernel_of("QLinearConv", quantized_inputs, (1, 4, 6, 6), kind=TensorProto.UINT8)
    assert quantized.products == in_integers.products == plain.products
    assert quantized.convolution and quantized.precision == in_integers.precision == "int8"
    assert quantized.followed_by is None and in_integers.followed_by is None
    product = {"a": (8, 16), "as": (), "az": (), "b": (16, 5), "bs": (), "bz": (), "ys": (), "yz": ()}
    for op, domain in (("QLinearMatMul", ""), ("QGemm", "com.microsoft")):
        kernel = kernel_of(op, product, (8, 5), kind=TensorProto.UINT8, domain=domain)
        assert kernel.products == (Product(1, 8, 5, 16),) and kernel.row_alignment == 1
    kernel = kernel_of("MatMulInteger", {"a": (8, 16), "b": (16, 5)}, (8, 5), kind=TensorProto.UINT8)
    assert kernel.row_alignment == 1, "rows of 5 bytes"


def test_bug_rows_that_are_chosen_or_sorted():
    """4 of 1000 rows were a read of all. Rows of 8192 numbers move in 4 passes of 8 bits, those of 64 once."""
    from baechi_lab.profilers.programs.onnx_flops import bytes_of_sort
    from baechi_lab.profilers.programs.onnx_model import program_of

    compression = kernel_of("Compress", {"x": (1000, 16), "c": (1000,)}, (4, 16), axis=0)
    assert compression.moved_bytes == 2 * 4 * 16 * 4
    largest = helper.make_node("TopK", ["x", "k"], ["values", "indices"])
    k = helper.make_tensor("k", TensorProto.INT64, [1], [3])
    top = model([largest], [value("x", 2, 8192)], [value("values", 2, 3)], [k])
    assert program_of(top).ops[0].kernels[0].moved_bytes == 5 * 2 * 8192 * 4
    assert bytes_of_sort(largest, [(2, 8192), (1,)], [(2, 8192)] * 2, 4) == 4 * 2 * 2 * 8192 * (4 + 8)
    assert bytes_of_sort(largest, [(256, 64), (1,)], [(256, 3)] * 2, 4) == 0
    assert kernel_of("Unique", {"x": (8192,)}, (3,)).moved_bytes == 4 * 2 * 8192 * (4 + 8)


@pytest.mark.parametrize("layout", [0, 1])
def test_steps_of_a_recurrent_layer_whose_samples_come_first(layout):
    """100 steps of 8 samples, in two directions."""
    shape = (8, 100, 16) if layout else (100, 8, 16)
    kernel = kernel_of("LSTM", {"x": shape, "w": (2, 128, 16), "r": (2, 128, 32)}, (100, 2, 8, 32), layout=layout)
    assert kernel.steps == 2 * 100


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("SoftmaxCrossEntropyLoss", {"x": (8,), "labels": (8,)}, {}),
        ("Softmax", {"x": (8,)}, {"axis": 1}),
        ("Conv", {"x": (1, 3, 8, 8), "w": (4,)}, {}),
    ],
)
def test_shapes_that_do_not_fit_an_operator_are_a_guess(op, inputs, attributes):
    """ONNX's own check of shapes lets some pass. The bytes of the inputs and of 8 outputs are counted."""
    node = helper.make_node(op, list(inputs), ["y"], "node", **attributes)
    program = model([node], [value(k, *s) for k, s in inputs.items()], [value("y", 8)])
    try:
        with pytest.warns(UserWarning, match="shapes that do not fit the operator|only the bytes are counted"):
            graph = bl.profile_program(program, hardware="a100", training=False)
    except bl.FormatError as error:
        assert "the shapes cannot be inferred" in str(error)
    else:
        assert graph.duration_us[0] > 0


def test_products_of_a_transposed_convolution_and_of_attention_by_hand():
    """The shapes that PyTorch's operators have: input positions by filters times window, and two products per head.

    Stride 1 is a convolution of 3 x 3, which Winograd's algorithm computes in each group by 16 products of a block of 4 x 8
    parts per image, or by 36 of 2 * 2 parts.
    """
    transposed = kernel_of("ConvTranspose", {"x": (2, 6, 5, 5)}, (2, 8, 7, 7), {"w": (6, 4, 3, 3)}, group=2)
    assert transposed.products == (Product(2, 2 * 5 * 5, 4 * 9, 3, Product(2 * 16, 2 * 4 * 8, 4, 3)),)
    assert transposed.products[0].winograd_apart == Product(2 * 36, 2 * 2 * 2, 4, 3)
    packed = {"q": (2, 32, 64), "k": (2, 48, 64), "v": (2, 48, 64)}
    expected = (Product(8, 32, 48, 16), Product(8, 32, 16, 48))
    assert kernel_of("Attention", packed, (2, 32, 64), q_num_heads=4, kv_num_heads=4).products == expected
    split = {"q": (2, 4, 32, 16), "k": (2, 4, 48, 16), "v": (2, 4, 48, 16)}
    assert kernel_of("Attention", split, (2, 4, 32, 16)).products == expected
    fused = {"num_heads": 4, "domain": "com.microsoft"}
    assert kernel_of("MultiHeadAttention", packed, (2, 32, 64), **fused).products == expected
    projected = kernel_of("Attention", {"x": (2, 32, 64)}, (2, 32, 64), {"w": (64, 192)}, **fused)
    assert projected.products == (Product(1, 64, 192, 64), Product(8, 32, 32, 16), Product(8, 32, 16, 32))


def test_bug_values_of_grouped_queries_counted_once_per_group():
    """4 heads of 16 numbers share the keys and values of 2: each head has products of its own, of half the keys: it is causal."""
    inputs = {"q": (2, 32, 64), "k": (2, 32, 32), "v": (2, 32, 32)}
    grouped = kernel_of("GroupQueryAttention", inputs, (2, 32, 64), num_heads=4, kv_num_heads=2, domain="com.microsoft")
    assert grouped.products == (Product(8, 32, 16, 16), Product(8, 32, 16, 16))
    assert grouped.vector_flops == SCORE_FLOPS * 8 * 32 * 16
    assert grouped.flops == 2 * (2 * 8 * 32 * 32 * 16)


def test_an_instance_norm_repeats_its_weights_for_every_sample():
    """As PyTorch does: two more kernels, each of which reads 6 numbers and writes 2 x 6."""
    from baechi_lab.profilers.programs.onnx_model import program_of

    node = helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"])
    inputs, outputs = [value("x", 2, 6, 5, 5)], [value("y", 2, 6, 5, 5)]
    *repeats, norm = program_of(model([node], inputs, outputs, [weights("s", 6), weights("b", 6)])).ops[0].kernels
    assert norm.rows == Rows(4.0 * 300, 100.0, 1, norm=True)
    assert [k.moved_bytes for k in repeats] == [4.0 * (6 + 12)] * 2


def test_the_backward_pass_of_a_norm_reads_gradient_and_input_again():
    """The gradient of a product's output before the norm: 2 x 64 numbers of 4 bytes are read again, in rows of 32."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("LayerNormalization", ["h", "s"], ["n"], name="norm"),
        helper.make_node("Softmax", ["n"], ["y"], name="softmax"),
    ]
    shape, long = (2, 32), (2, 20000)
    small = model(nodes[:2], [value("x", 2, 8)], [value("n", *shape)], [weights("w", 8, 32), weights("s", 32)])
    assert backward_rows(small, "norm") == Rows(2 * 4.0 * 64, 4.0 * 32, 1, norm=True)
    wide = model(nodes, [value("x", 2, 8)], [value("y", *long)], [weights("w", 8, 20000), weights("s", 20000)])
    assert backward_rows(wide, "softmax") == Rows.of_softmax(40000, 20000, 4, backward=True)


def backward_rows(program: onnx.ModelProto, name: str) -> Rows | None:
    from baechi_lab.profilers.programs.onnx_model import program_of

    ops = add_backward_and_updates(program_of(program)).ops
    return next(op for op in ops if op.name == f"{name}/backward").kernels[0].rows


def test_norms_of_images_read_their_rows_again():
    """2 images of 6 channels of 5 x 5: rows are channels of an image, groups of 3 channels, or channels of the batch."""
    x, scale = {"x": (2, 6, 5, 5)}, {"s": (6,), "b": (6,)}
    assert kernel_of("InstanceNormalization", x, (2, 6, 5, 5), scale).rows == Rows.of_norm(300, 25, 4)
    assert kernel_of("GroupNormalization", x, (2, 6, 5, 5), scale, num_groups=2).rows == Rows.of_norm(300, 75, 4)
    statistics = {**scale, "m": (6,), "v": (6,)}
    assert kernel_of("BatchNormalization", x, (2, 6, 5, 5), statistics).rows is None
    assert kernel_of("BatchNormalization", x, (2, 6, 5, 5), statistics, training_mode=1).rows == Rows.of_norm(
        300, 50, 4
    )


_HALVED = {"pads": [1] * 4, "strides": [2, 2]}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    ("layer", "sizes", "shape", "kind", "attributes"),
    [
        ("Linear", (64, 97), (4096, 64), "Gemm", {"transB": 1}),  # rows of 194 bytes in bf16
        ("Conv2d", (64, 32, 3, 1, 1), (64, 64, 32, 32), "Conv", {"pads": [1] * 4}),  # changes the order of its tensors
        ("Conv2d", (3, 64, 7, 2, 3), (64, 3, 64, 64), "Conv", {"pads": [3] * 4, "strides": [2, 2]}),  # few channels
        ("Conv2d", (64, 96, 1, 2), (64, 64, 32, 32), "Conv", {"strides": [2, 2]}),  # positions in gaps
        ("Conv2d", (64, 64, 3, 1, 1, 1, 64), (64, 64, 32, 32), "Conv", {"pads": [1] * 4, "group": 64}),  # depthwise
        ("LayerNorm", (256,), (8192, 256), "LayerNormalization", {}),
        ("BatchNorm2d", (8,), (64, 8, 64, 64), "BatchNormalization", {"training_mode": 1}),
        ("BatchNorm1d", (256,), (65536, 256), "BatchNormalization", {"training_mode": 1}),  # channels come last
        ("InstanceNorm2d", (64, 1e-5, 0.1, True), (8, 64, 128, 128), "InstanceNormalization", {}),
        ("ConvTranspose2d", (64, 64, 4, 2, 1, 0, 64), (16, 64, 32, 32), "ConvTranspose", _HALVED | {"group": 64}),
        ("ConvTranspose2d", (64, 32, 4, 2, 1), (16, 64, 32, 32), "ConvTranspose", _HALVED),
        ("Conv1d", (256, 256, 3, 1, 2, 2), (16, 256, 4096), "Conv", {"pads": [2, 2], "dilations": [2]}),
        ("Conv3d", (64, 64, 3, 1, 1), (2, 64, 32, 32, 32), "Conv", {"pads": [1] * 6}),
        ("Conv2d", (256, 256, 3, 1, 1, 1, 32), (16, 256, 56, 56), "Conv", {"pads": [1] * 4, "group": 32}),
        ("PReLU", (256,), (64, 256, 32, 32), "PRelu", {}),
        ("MaxPool3d", (2,), (4, 64, 32, 64, 64), "MaxPool", {"kernel_shape": [2] * 3, "strides": [2] * 3}),
        ("MaxPool2d", (2,), (64, 8, 64, 64), "MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Softmax", (-1,), (8192, 2048), "Softmax", {}),
        ("GELU", (), (8192, 2048), "Gelu", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_operator_takes_as_long_as_the_layer_of_pytorch(layer, sizes, shape, kind, attributes, precision):
    """Forward, and in training without the update, up to a launch: the gradients of a product are two ops."""
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        module, x = getattr(torch.nn, layer)(*sizes), torch.empty(*shape)
    if kind == "BatchNormalization":
        module.num_batches_tracked = None  # a kernel of its own counts batches and starts the step, which ONNX has not
    stored = [t.shape for t in module.state_dict().values() if t.dim()]
    stored = [(*stored[0], 1, 1)] if kind == "PRelu" else stored  # a slope per channel
    names = [f"w{k}" for k in range(len(stored))]
    written = ["y", "mean", "variance"] if kind == "BatchNormalization" else ["y"]
    program = model(
        [helper.make_node(kind, ["x", *names], written, name="layer", **attributes)],
        [value("x", *shape)],
        [value("y", *module(x).shape)],
        [weights(name, *each) for name, each in zip(names, stored, strict=True)],
        opset_imports=[helper.make_opsetid("", 20)],
    )
    for training in (False, True)[: 1 + bool(stored)]:
        mode = "training" if training or "training_mode" in attributes else "inference"
        us = bl.torch.profile(module, x, hardware="h100", precision=precision, mode=mode).duration_us
        graph = bl.profile_program(program, hardware="h100", precision=precision, training=training)
        of_program = sum(graph.duration_us[i] for i in range(graph.n) if not graph.names[i].endswith("update"))
        assert of_program == pytest.approx(us.sum() if training else us[0], rel=0.06, abs=7.0), training


def test_a_forward_pass_has_the_costs_of_hand_arithmetic():
    graph = bl.profile_program(two_layers(), hardware="a100", training=False, batch_size=4)
    assert graph.names == ("first", "relu", "second")
    assert graph.persistent_bytes.tolist() == [4 * (8 * 16 + 16), 0, 4 * 16 * 4]
    assert graph.tensor_bytes.tolist() == [4 * 4 * 16, 4 * 4 * 16]
    assert graph.output_shapes == ("f32[4,16]", "f32[4,16]", "f32[4,4]")
    shape = (Product(1, 4, 16, 8),)
    first = Kernel(2 * 4 * 8 * 16, 4.0 * (4 * 8 + 8 * 16 + 16 + 4 * 16), "fp32", matrix=True, products=shape)
    assert graph.duration_us[0] == pytest.approx(kernel_us(first, Hardware.named("a100")))


def test_the_generated_backward_pass():
    """second: gradients of w2 and a. relu: one. first: of w1 and b1, but not of x, which nobody asks for. Then updates."""
    graph = bl.profile_program(two_layers(), hardware="a100", batch_size=4, optimizer_states=2)
    backward = ("second/backward/weight", "second/backward/input", "relu/backward", "first/backward/weight")
    assert graph.names[3:] == (*backward, "first/update", "second/update")
    index = graph.index
    assert [graph.names[graph.forward_of[index[b]]] for b in backward] == ["second", "second", "relu", "first"]
    edges = {(graph.names[a], graph.names[b]) for a, b in zip(graph.edge_source, graph.consumers, strict=True)}
    assert ("relu", "second/backward/weight") in edges  # the other factor is saved
    assert ("relu", "relu/backward") in edges  # its output, not its input
    assert ("first", "relu/backward") not in edges
    assert {("second/backward/input", "relu/backward"), ("relu/backward", "first/backward/weight")} <= edges
    assert {("second", "second/backward/weight"), ("first/backward/weight", "first/update")} <= edges
    persistent = dict(zip(graph.names, graph.persistent_bytes.tolist(), strict=True))
    assert persistent == dict.fromkeys(graph.names, 0) | {
        "first": 144 * 4,
        "first/backward/weight": 144 * 4,
        "first/update": 2 * 144 * 4,  # the weights, gradients, two states
        "second": 64 * 4,
        "second/backward/weight": 64 * 4,
        "second/update": 2 * 64 * 4,
    }
    assert {graph.names[i] for i in np.flatnonzero(graph.reuse == GROWS)} == {
        "first/backward/weight",
        "second/backward/weight",
    }
    assert {("first/backward/weight", "second/update"), ("second/backward/weight", "second/update")} <= edges
    assert ("second/update", "first/update") in edges, "updates come after the backward pass"
    assert graph.colocation[index["first"]] == graph.colocation[index["first/update"]] >= 0
    assert graph.duration_us[index["second/backward/weight"]] == graph.duration_us[index["second"]]


def peak(graph):
    """Bytes of one device that runs all of it."""
    cluster = bl.Cluster.uniform(1, kind="a100")
    return bl.simulate(graph, cluster, bl.Placement(device=[0] * graph.n, graph_key=graph.key)).peak_bytes[0]


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0), ("fused-adam", 2)])
def test_bug_gradients_were_counted_twice(optimizer, states, tmp_path):
    """Four products of 64 numbers: weights, gradients and states once each, as ONNX, as exported, in a file, as a module."""
    torch = pytest.importorskip("torch")
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(4)))
    x = torch.zeros(8, 64)
    products = [helper.make_node("MatMul", [f"v{k}", f"w{k}"], [f"v{k + 1}"], name=f"m{k}") for k in range(4)]
    chain = model(products, [value("v0", 8, 64)], [value("v4", 8, 64)], [weights(f"w{k}", 64, 64) for k in range(4)])
    exported = torch.export.export(layers, (x,))
    torch.export.save(exported, tmp_path / "layers.pt2")
    module = bl.torch.profile(layers, x, hardware="a100", optimizer=optimizer)
    weight, activation = 4 * 64 * 64, 4 * 8 * 64
    for program in (chain, exported, tmp_path / "layers.pt2"):
        graph = bl.profile_program(program, hardware="a100", optimizer_states=states)
        assert graph.persistent_bytes.sum() == module.persistent_bytes.sum() == 4 * (2 + states) * weight
        # A module's step holds its input and output, one activation each, until it ends; ONNX does not say who holds them.
        held_by_caller = 0 if program is chain else 2 * activation
        assert peak(graph) == pytest.approx(peak(module) - 2 * activation + held_by_caller, abs=100), (
            "up to control tensors"
        )
    assert 0 <= peak(module) - 4 * (2 + states) * weight <= 3 * activation


def test_gradients_of_a_shared_weight_are_added_up():
    """The second product to come sees the sum so far, its own gradient and the new sum, as in PyTorch."""
    products = [helper.make_node("MatMul", [f"v{k}", "w"], [f"v{k + 1}"], name=f"m{k}") for k in range(2)]
    shared = model(products, [value("v0", 8, 64)], [value("v2", 8, 64)], [weights("w", 64, 64)])
    graph = bl.profile_program(shared, hardware="a100", optimizer_states=2)
    weight, index = 4 * 64 * 64, graph.index
    assert graph.persistent_bytes.sum() == 4 * weight
    assert graph.temp_bytes[index["m0/backward/weight"]] == 2 * weight
    assert 6 * weight <= peak(graph) <= 6 * weight + 3 * 4 * 8 * 64


def test_gradients_that_two_ops_send_are_added():
    """a of 4 bytes is read twice: the second gradient to come is added to the first, which moves three tensors."""
    op = lambda name, read, make: ProgramOp(name, "Neg", (Kernel(moved_bytes=8.0),), (read,), (make,))  # noqa: E731
    ops = (op("n", "w", "a"), op("p", "a", "b"), op("q", "a", "c"))
    size = dict.fromkeys("wabc", 4)
    by_name = {o.name: o for o in add_backward_and_updates(Program("fork", ops, size, {"w": True}, ("b", "c"))).ops}
    moved_bytes = [[k.moved_bytes for k in by_name[f"{name}/backward"].kernels] for name in "qp"]
    assert moved_bytes == [[8.0], [8.0, 12.0]]


def test_a_reader_may_know_the_kernels_of_gradients():
    """Those of the weight and of the input apart for a product, together for others; none where it knows none."""
    asked_values = []

    def gradients(values):
        asked_values.append(tuple(values))
        return CallWork() if values == ["w"] else CallWork((Kernel(moved_bytes=1.0 * len(values)),), 30, 40)

    product = ProgramOp("m", "MatMul", (Kernel(flops=10.0, matrix=True),), ("x", "w"), ("y",), gradients=gradients)
    norm = ProgramOp("n", "Norm", (Kernel(moved_bytes=8.0),), ("y", "v"), ("z",), gradients=gradients)
    first = ProgramOp("f", "Neg", (Kernel(moved_bytes=8.0),), ("u",), ("x",))
    ops = add_backward_and_updates(Program("p", (first, product, norm), {}, dict.fromkeys("uvw", True), ("z",))).ops
    by_name = {o.name: o.kernels for o in ops}
    assert asked_values == [("y", "v"), ("w",), ("x",)]
    assert by_name["n/backward"] == (Kernel(moved_bytes=2.0),) and by_name["m/backward/input"] == (
        Kernel(moved_bytes=1.0),
    )
    assert by_name["m/backward/weight"][0].flops == 10.0
    saved_values = {o.name: [v for v in o.makes if v.startswith("saved")] for o in ops}
    temp_bytes = {o.name: o.temp_bytes for o in ops if o.temp_bytes}
    assert saved_values["m"] == ["saved for m/backward/input"] and saved_values["n"] == ["saved for n/backward"]
    assert temp_bytes == {"n/backward": 30, "m/backward/input": 30}


def test_training_products_are_three_times_the_forward_ones():
    """Of a chain of products whose input needs no gradient: 3 * FLOPs, without the first one's input gradient."""
    op = lambda name, x, w, y: ProgramOp(name, "MatMul", (Kernel(flops=100.0, matrix=True),), (x, w), (y,))  # noqa: E731
    ops = tuple(op(f"m{k}", f"v{k}", f"w{k}", f"v{k + 1}") for k in range(4))
    size = {f"v{k}": 8 for k in range(5)} | {f"w{k}": 16 for k in range(4)}
    training_program = add_backward_and_updates(Program("chain", ops, size, {f"w{k}": True for k in range(4)}, ("v4",)))
    assert sum(k.flops for o in training_program.ops for k in o.kernels if k.matrix) == 100 * (4 + 4 + 3)


def test_products_of_inputs_and_fused_ones():
    """Scores of two inputs get an op each; attention of three gets one of twice the FLOPs; what is frozen gets none."""
    product = lambda name, reads, make: ProgramOp(name, "MatMul", (Kernel(flops=10.0, matrix=True),), reads, (make,))  # noqa: E731
    ops = (
        product("p", ("x", "w"), "q"),
        product("k", ("x", "f"), "key"),
        product("s", ("q", "q2"), "score"),
        product("a", ("q", "q2", "score"), "y"),
    )
    ops = (*ops[:1], ProgramOp("n", "Neg", (Kernel(moved_bytes=8.0),), ("q",), ("q2",)), *ops[1:])
    training_program = add_backward_and_updates(Program("attention", ops, {}, {"w": True, "f": False}, ("y",)))
    by_name = {o.name: o for o in training_program.ops}
    assert {"s/backward/input0", "s/backward/input1", "p/backward/weight", "n/backward"} <= set(by_name)
    assert by_name["a/backward"].kernels[0].flops == 20.0
    assert not any(name.startswith("k/backward") for name in by_name)


# -- operators that stand for one kernel ------------------------------------------------------------------


def scalar(name: str) -> TensorProto:
    return helper.make_tensor(name, TensorProto.FLOAT, [], [2.0])


def nodes_of(*rows: str, **attributes) -> list:
    """Nodes from rows such as "Mul a b -> c". An attribute belongs to the nodes whose output has its name."""
    nodes = []
    for row in rows:
        (op, *inputs), output = row.partition(" -> ")[0].split(), row.partition(" -> ")[2]
        nodes.append(helper.make_node(op, inputs, [output], output, **attributes.get(output, {})))
    return nodes


def read(program: onnx.ModelProto) -> Program:
    from baechi_lab.profilers.programs.onnx_model import program_of

    return program_of(program)


HEADS = (2, 4, 128, 16)  # batch, heads, positions, numbers of a head
SDPA = ("Transpose k -> t", "Mul q c -> qs", "Mul t c -> ts", "MatMul qs ts -> s", "Add s m -> sm", "Softmax sm -> p")
SAFE = ("IsNaN p -> n", "Where n c p -> pn", "MatMul pn v -> y")
EAGER = ("Transpose k -> t", "MatMul q t -> s", "Mul s c -> ss", "Add ss m -> sm", "Softmax sm -> p", "MatMul p v -> y")


def heads_model(rows: tuple[str, ...], **attributes) -> onnx.ModelProto:
    nodes = nodes_of(*rows, **{"t": {"perm": [0, 1, 3, 2]}, "p": {"axis": -1}, **attributes})
    inputs = [value(name, *HEADS) for name in "qkv"] + [value("m", 2, 1, 128, 128)]
    opsets = [helper.make_opsetid("", 23)]  # the first with an operator for attention
    return model(nodes, inputs, [value("y", *HEADS)], [scalar("c")], opset_imports=opsets)


def test_bug_attention_as_pytorch_exports_it_was_not_one_kernel():
    """It scales queries and keys. Models that scale the scores run so in PyTorch, too, and stay as they are written."""
    one_kernel = heads_model(("Attention q k v m -> y",))
    expected = bl.profile_program(one_kernel, hardware="h100", training=False)
    for rows in ((*SDPA, "MatMul p v -> y"), (*SDPA, *SAFE)):
        graph = bl.profile_program(heads_model(rows), hardware="h100", training=False)
        assert graph.op_types == ("Attention",) and graph.duration_us == pytest.approx(expected.duration_us)
    assert len(bl.profile_program(heads_model(EAGER), hardware="h100", training=False).op_types) == len(EAGER)


def test_bug_keys_that_one_transposition_made_ready_for_the_product():
    """Positions come before heads: the keys are transposed as the queries are, and attention reads them where they lie."""
    rows = ("Transpose k0 -> t", *SDPA[1:], "MatMul p v -> y")
    nodes = nodes_of(*rows, t={"perm": [0, 2, 3, 1]}, p={"axis": -1})
    inputs = [value("k0", 2, 128, 4, 16), *(value(name, *HEADS) for name in "qv"), value("m", 2, 1, 128, 128)]
    program = model(nodes, inputs, [value("y", *HEADS)], [scalar("c")])
    graph = bl.profile_program(program, hardware="h100", training=False)
    expected = bl.profile_program(heads_model(("Attention q k v m -> y",)), hardware="h100", training=False)
    assert graph.op_types == ("Transpose", "Attention")
    assert graph.duration_us[1] == pytest.approx(expected.duration_us[0]) and graph.duration_us[0] < 1


def test_inner_values_that_are_read_elsewhere_keep_their_operators():
    for reader in ("Softmax", "MatMul"):
        rows = (*SDPA, "MatMul p v -> y", f"Identity {'p' if reader == 'Softmax' else 's'} -> z")
        graph = bl.profile_program(heads_model(rows), hardware="h100", training=False)
        assert "Attention" not in graph.op_types and reader in graph.op_types


def test_causal_attention_of_the_older_exporter_skips_half_of_the_keys():
    mask = ("Expand c e -> ones", "Trilu ones -> lower", "Equal lower c -> above", "Where above c c -> m2")
    rows = (*mask, *(row.replace("Add s m", "Add s m2") for row in SDPA), "MatMul p v -> y")
    program = heads_model(rows, lower={"upper": 0})
    program.graph.initializer.append(helper.make_tensor("e", TensorProto.INT64, [2], [128, 128]))
    causal = heads_model(("Attention q k v -> y",), y={"is_causal": 1})
    graph, expected = (bl.profile_program(p, hardware="h100", training=False) for p in (program, causal))
    assert graph.op_types == ("Attention",) and graph.duration_us == pytest.approx(expected.duration_us)


def test_attention_with_a_mask_from_a_table_runs_operator_by_operator():
    """A relative position: PyTorch's fused kernels make no gradient of the mask."""
    rows = ("Gather table index -> m2", *(row.replace("Add s m", "Add s m2") for row in SDPA), "MatMul p v -> y")
    program = heads_model(rows)
    program.graph.initializer.append(weights("table", 4, 128))
    program.graph.initializer.append(helper.make_tensor("index", TensorProto.INT64, [128], [0] * 128))
    assert "Softmax" in bl.profile_program(program, hardware="h100", training=False).op_types


def test_the_gradient_of_attention_makes_the_scores_again():
    """Five products of 2 * 2 * 4 * 128 * 128 * 16 FLOPs, forward two."""
    rows = ("MatMul x w -> q", "Attention q q q -> y")
    inputs = [value("x", *HEADS)]
    opsets = [helper.make_opsetid("", 23)]
    outputs, parameters = [value("y", *HEADS)], [weights("w", 16, 16)]
    program = read(model(nodes_of(*rows), inputs, outputs, parameters, opset_imports=opsets))
    backward = next(op for op in add_backward_and_updates(program).ops if op.name == "y/backward")
    assert [op.kernels[0].flops for op in (program.ops[1], backward)] == [
        k * 2 * 2 * 4 * 128 * 128 * 16 for k in (2, 5)
    ]


FORMS = {
    "Gelu": ("Div x c -> a", "Erf a -> b", "Add b c -> d", "Mul x d -> e", "Mul e c -> y"),
    "Gelu of halves": ("Mul x c -> h", "Mul x c -> a", "Erf a -> b", "Add c b -> d", "Mul h d -> y"),
    "Swish": ("Sigmoid x -> a", "Mul a x -> y"),
    "Mish": ("Softplus x -> a", "Tanh a -> b", "Mul x b -> y"),
    "Softplus": ("Softplus x -> a", "Greater x c -> b", "Where b x a -> y"),
    "HardSwish": ("Add x c -> a", "Clip a c c -> b", "Div b c -> d", "Mul x d -> y"),
    "LayerNormalization": (
        "ReduceMean x -> m",
        "Sub x m -> a",
        "Pow a c -> b",
        "ReduceMean b -> v",
        "Add v c -> d",
        "Sqrt d -> e",
        "Div a e -> f",
        "Mul f w -> g",
        "Add g w -> y",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_bug_layers_that_exporters_write_in_smaller_operators_were_several_kernels(form):
    op = form.split()[0]
    means = {name: {"axes": [-1], "keepdims": 1} for name in "mv"} if "Layer" in form else {}
    inputs, parameters = [value("x", 64, 256)], [scalar("c"), weights("w", 256)]
    program = model(
        nodes_of(*FORMS[form], **means),
        inputs,
        [value("y", 64, 256)],
        parameters,
        opset_imports=[helper.make_opsetid("", 13)],
    )
    weighted = "Layer" in form
    layer = nodes_of(f"{op} x w w -> y" if weighted else f"{op} x -> y", **({"y": {"axis": 1}} if weighted else {}))
    single = model(
        layer,
        inputs,
        [value("y", 64, 256)],
        parameters if weighted else [],
        opset_imports=[helper.make_opsetid("", 24)],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph, expected = (bl.profile_program(p, hardware="h100", training=False) for p in (program, single))
    assert graph.op_types == (op,) and graph.duration_us == pytest.approx(expected.duration_us)


def test_bug_a_group_norm_was_a_norm_a_product_and_a_sum():
    rows = ("Reshape x s -> a", "InstanceNormalization a g g -> b", "Reshape b r -> d", "Mul d w -> e", "Add e w -> y")
    parameters = [weights("g", 4), weights("w", 16, 1, 1)]
    parameters += [
        helper.make_tensor(name, TensorProto.INT64, [len(sizes)], sizes)
        for name, sizes in (("s", [8, 4, 256]), ("r", [8, 16, 8, 8]))
    ]
    program = read(model(nodes_of(*rows), [value("x", 8, 16, 8, 8)], [value("y", 8, 16, 8, 8)], parameters))
    (op,) = (op for op in program.ops if op.moves_data)
    assert op.op_type == "GroupNormalization" and op.kernels[0].rows == Rows.of_norm(8 * 16 * 64, 4 * 64, 4)


def test_bug_the_gradient_of_a_single_row_sorted_words():
    """`x[:, 0]` is a view, and its gradient a row among zeros, as the gradient of a slice is."""
    index = helper.make_tensor("i", TensorProto.INT64, [], [0])
    rows = ("MatMul x w -> h", "Gather h i -> y")
    nodes = nodes_of(*rows, y={"axis": 1})
    program = read(model(nodes, [value("x", 8, 64, 32)], [value("y", 8, 32)], [weights("w", 32, 32), index]))
    assert not program.ops[1].moves_data
    backward = next(op for op in add_backward_and_updates(program).ops if op.name == "y/backward")
    assert [(k.wait_us, k.moved_bytes) for k in backward.kernels] == [(0.0, 4.0 * (8 * 64 * 32 + 8 * 32))]


@pytest.mark.parametrize("producer", ["pytorch", "another"])
def test_bug_biases_that_an_exporter_stored_once_were_no_parameters(producer):
    """PyTorch's exporter stores equal tensors once, and copies them for other layers, whose parameters they are."""
    rows = ("Identity b -> b2", "MatMul x w -> h", "Add h b -> g", "MatMul g v -> f", "Add f b2 -> y")
    parameters = [weights("w", 64, 64), weights("v", 64, 64), weights("b", 64)]
    program = model(nodes_of(*rows), [value("x", 8, 64)], [value("y", 8, 64)], parameters)
    program.producer_name = producer
    graph = bl.profile_program(program, hardware="h100", training=False)
    copies = 2 if producer == "pytorch" else 1
    assert graph.persistent_bytes.sum() == 4 * (2 * 64 * 64 + copies * 64)
    assert graph.duration_us[graph.names.index("y")] < 1  # the bias is added in the kernel of the product


@pytest.mark.parametrize(("number", "biases"), [(0.0, 2), (None, 1)])
def test_bug_layers_with_equal_vectors_were_one_group(number, biases):
    """PyTorch's exporter stores the zero biases of new layers once; a vector of different numbers is one parameter."""
    rows = ("MatMul x w -> h", "Add h b -> g", "MatMul g v -> f", "Add f b -> y")
    values = np.arange(64) if number is None else np.full(64, number)
    bias = onnx.numpy_helper.from_array(values.astype(np.float32), "b")
    program = model(
        nodes_of(*rows), [value("x", 8, 64)], [value("y", 8, 64)], [weights("w", 64, 64), weights("v", 64, 64), bias]
    )
    program.producer_name = "pytorch"
    graph = bl.profile_program(program, hardware="h100", training=False)
    assert graph.persistent_bytes.sum() == 4 * (2 * 64 * 64 + biases * 64)
    groups = [graph.colocation[graph.names.index(name)] for name in "gy"]
    assert (groups[0] == groups[1] >= 0) == (biases == 1)
    assert program.graph.node[3].input[1] == "b"  # the caller's model is as it was
    bias.dims[0] = 7  # not as many as there are numbers
    program.graph.initializer[2].CopyFrom(bias)
    with pytest.warns(GuessedCosts, match="shapes"):
        bl.profile_program(program, hardware="h100", training=False)


def test_bug_views_were_copies_in_memory():
    """A reshaped tensor lies where it was: 8 x 64 numbers beside the weights and two sizes. Nothing reads the result."""
    shape = helper.make_tensor("s", TensorProto.INT64, [2], [16, 32])
    rows = ("MatMul x w -> h", "Reshape h s -> r", "Relu r -> y")
    program = model(nodes_of(*rows), [value("x", 8, 64)], [value("y", 16, 32)], [weights("w", 64, 64), shape])
    graph = bl.profile_program(program, hardware="a100", training=False)
    assert graph.reuse is not None and graph.reuse[graph.names.index("r")] == VIEW
    assert peak(graph) == 4 * (64 * 64 + 8 * 64) + 2 * 8


def test_bug_a_batch_size_that_the_program_has_no_room_for_was_ignored():
    assert bl.profile_program(two_layers(2), batch_size=2) == bl.profile_program(two_layers(2))
    with pytest.raises(
        InvalidInput, match=r"batch_size is 4; the program leaves no first dimension open for it.* sizes 2: leave"
    ):
        bl.profile_program(two_layers(2), batch_size=4)
    with pytest.raises(InvalidInput, match="batch_size is 4"):
        bl.profile_program(two_layers(), batch_size=4, sizes={"batch": 3})


def test_open_dimensions_need_sizes():
    with pytest.raises(InvalidInput, match="input 'x' has the open dimension 'batch' at position 0; give batch_size"):
        bl.profile_program(two_layers())
    inner = two_layers()
    inner.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "width"
    with pytest.raises(InvalidInput, match="'width' at position 1; give sizes"):
        bl.profile_program(inner, batch_size=2)
    assert bl.profile_program(inner, batch_size=2, sizes={"width": 8}).n == bl.profile_program(two_layers(2)).n
    # bl.profile ignored the options of programs
    assert bl.profile(inner, batch_size=2, sizes={"width": 8}) == bl.profile_program(
        inner, batch_size=2, sizes={"width": 8}
    )
    with pytest.raises(TypeError, match="batchsize"):
        bl.profile(two_layers(), batchsize=2)
    with pytest.raises(InvalidInput, match="sizes names 'heigth'; the program leaves open 'batch', 'width'"):
        bl.profile_program(inner, batch_size=2, sizes={"width": 8, "heigth": 8})


def test_bug_arithmetic_on_shapes_counted_as_kernels():
    """The layers of a view whose sizes the exporter left open: the host computes them, and the kernels are those of the rest."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", "positions", 8]) for n in "xy")
    index = helper.make_tensor("one", TensorProto.INT64, [], [1])
    tail = helper.make_tensor("tail", TensorProto.INT64, [2], [2, 4])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [8], [1.0] * 8)
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["scaled"], name="mul"),
        helper.make_node("Shape", ["scaled"], ["sizes"], name="shape"),
        helper.make_node("Gather", ["sizes", "one"], ["length"], name="gather"),
        helper.make_node("Mul", ["length", "one"], ["length_of_one"], name="scale"),
        helper.make_node("Unsqueeze", ["length_of_one", "axes"], ["length_as_row"], name="unsqueeze"),
        helper.make_node("Concat", ["minus", "length_as_row", "tail"], ["target"], axis=0, name="concat"),
        helper.make_node("Reshape", ["scaled", "target"], ["heads"], name="reshape"),
        helper.make_node("Cast", ["length"], ["float_length"], to=TensorProto.FLOAT, name="cast"),
        helper.make_node("Sqrt", ["float_length"], ["root"], name="sqrt"),
        helper.make_node("Div", ["heads", "root"], ["divided"], name="divide"),
        helper.make_node("Reshape", ["divided", "sizes"], ["y"], name="back"),
    ]
    initializers = [
        index,
        tail,
        weight,
        *(helper.make_tensor(n, TensorProto.INT64, [1], [v]) for n, v in (("axes", 0), ("minus", -1))),
    ]
    model = helper.make_model(helper.make_graph(nodes, "view", [x], [y], initializers))
    graph = bl.profile_program(model, hardware="a100", training=False, batch_size=4, sizes={"positions": 16})
    kernels = {name for name, us in zip(graph.names, graph.duration_us, strict=True) if us > HOST_OP_US}
    assert kernels == {"mul", "divide"}


def test_unknown_operators_are_named_with_their_share():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"),
        helper.make_node("Wavelet", ["h"], ["y"], name="wave", domain="of.ours"),
    ]
    onnx_model = model(nodes, [value("x", 64, 64)], [value("y", 64, 64)], [weights("w", 64, 64)])
    with pytest.warns(GuessedCosts, match=r"of 1 operators only the bytes are counted \(Wavelet\); they are \d+% of"):
        graph = bl.profile_program(onnx_model, hardware="v100", training=False)
    kernel = Kernel(64 * 64, 2 * 4.0 * 64 * 64)
    follows = estimated_us(work_of(1, [(0, kernel)]), Hardware.named("v100"), follows=True)
    assert graph.duration_us[1] == pytest.approx(follows[0])


def test_bug_models_of_ml_count_their_coefficients():
    """scikit-learn's models are one operator each, with its weights as attributes; the work was that of the outputs."""
    from baechi_lab.profilers.programs.onnx_model import program_of

    linear = helper.make_node("LinearClassifier", ["x"], ["label", "y"], domain="ai.onnx.ml", coefficients=[0.5] * 24)
    trees = helper.make_node("TreeEnsembleRegressor", ["y"], ["z"], domain="ai.onnx.ml", name="trees")
    onnx_model = model(
        [linear, trees],
        [value("x", 32, 8)],
        [value("z", 32, 1)],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)],
    )
    with pytest.warns(GuessedCosts, match=r"only the bytes are counted \(TreeEnsembleRegressor\)"):
        bl.profile_program(onnx_model, training=False)
    kernel = program_of(onnx_model).ops[0].kernels[0]
    assert kernel.flops == 2 * 32 * 24 and kernel.matrix  # three classes of eight coefficients


def tree_stump() -> dict[str, object]:
    """Returns the attributes of a tree of one node."""
    stump: dict[str, object] = {f"nodes_{x}": [0] for x in ("featureids", "truenodeids", "falsenodeids")}
    stump |= {"tree_roots": [0], "nodes_trueleafs": [1], "nodes_falseleafs": [1], "leaf_targetids": [0], "n_targets": 1}
    return stump | {
        "nodes_modes": helper.make_tensor("modes", TensorProto.UINT8, [1], [0]),
        "nodes_splits": helper.make_tensor("splits", FLOAT, [1], [0.5]),
        "leaf_weights": helper.make_tensor("leaves", FLOAT, [1], [0.5]),
    }


def test_bug_numbers_in_attributes_of_ml_are_held_and_read():
    """A scaler and a linear model keep 2 x 8 and 24 + 3 float32 numbers in attributes; they counted no bytes."""
    from baechi_lab.profilers.programs.onnx_model import program_of

    scaler = helper.make_node("Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[0.0] * 8, scale=[1.0] * 8)
    fields = {"coefficients": [0.5] * 24, "intercepts": [0.0] * 3, "targets": 3}
    linear = helper.make_node("LinearRegressor", ["s"], ["z"], domain="ai.onnx.ml", **fields)
    trees = helper.make_node("TreeEnsemble", ["z"], ["t"], domain="ai.onnx.ml", **tree_stump())
    onnx_model = model(
        [scaler, linear, trees],
        [value("x", 32, 8)],
        [value("t", 32, 1)],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 5)],
    )
    with pytest.warns(GuessedCosts) as caught:  # of the trees only the bytes count; the shapes before them are known
        graph = bl.profile_program(onnx_model, training=False)
    assert [str(w.message).count("TreeEnsemble") for w in caught] == [1] and "Scaler" not in str(caught[0].message)
    numbers = [
        4 * 16,
        4 * 27,
        7 * 8 + 1 + 2 * 4,
    ]  # seven lists of one integer, modes of one byte, float32 splits and leaves
    assert graph.persistent_bytes.tolist() == numbers
    assert graph.output_bytes.tolist() == [4 * 32 * 8, 4 * 32 * 3, 0]
    moved = [kernel.moved_bytes for op in program_of(onnx_model).ops for kernel in op.kernels]
    values = [4 * 32 * (8 + 8), 4 * 32 * (8 + 3), 4 * 32 * (3 + 1)]
    assert moved == [a + b for a, b in zip(values, numbers, strict=True)]


def test_bug_shapes_of_ml_were_not_known_where_an_output_leaves_its_size_open():
    """As scikit-learn's converter writes them: 32 samples of 8 columns, three classes, two of the columns."""
    labels = {"classlabels_int64s": [0, 1, 2]}
    linear = {"coefficients": [0.5] * 24, "intercepts": [0.0] * 3}
    nodes = [
        helper.make_node("Imputer", ["x"], ["filled"], domain="ai.onnx.ml", imputed_value_floats=[0.0] * 8),
        helper.make_node("ArrayFeatureExtractor", ["filled", "columns"], ["chosen"], domain="ai.onnx.ml"),
        helper.make_node("LinearClassifier", ["filled"], ["label", "score"], domain="ai.onnx.ml", **linear, **labels),
        helper.make_node("SVMClassifier", ["filled"], ["other", "pairs"], domain="ai.onnx.ml", **labels),
        helper.make_node(
            "LinearRegressor", ["chosen"], ["y"], domain="ai.onnx.ml", coefficients=[0.5] * 2, intercepts=[0.0]
        ),
    ]
    onnx_model = model(
        nodes,
        [helper.make_tensor_value_info("x", FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", FLOAT, [None, 1])],
        [helper.make_tensor("columns", TensorProto.INT64, [2], [3, 5])],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)],
    )
    with pytest.warns(GuessedCosts) as caught:
        graph = bl.profile_program(onnx_model, training=False, batch_size=32)
    assert ["not known" in str(w.message) for w in caught] == [False]  # only the machine's work is no product
    assert [w.filename for w in caught] == [__file__]  # the line that called the library
    expected = ("f32[32,8]", "f32[32,2]", "i64[32], f32[32,3]", "i64[32], f32[32,3]", "f32[32,1]")
    assert graph.output_shapes == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "place"),
    [
        ("EyeLike", "graph"),
        ("EyeLike", "function"),
        ("RegexFullMatch", "branch"),
        ("DictVectorizer", "branch"),
        ("TreeEnsemble", "function"),
    ],
)
def test_bug_operators_behind_custom_ones_do_not_end_the_process(op, place):
    """ONNX's inference reads the type of their input; where nothing infers it, the process ended without a message."""
    domain = "ai.onnx.ml" if op in ("DictVectorizer", "TreeEnsemble") else ""
    custom = helper.make_node("Custom", ["x"], ["z"], domain="custom")
    fields = (
        {"string_vocabulary": ["a"]} if op == "DictVectorizer" else {"pattern": "a"} if op == "RegexFullMatch" else {}
    )
    if op == "TreeEnsemble":
        fields = tree_stump()
    domains = [helper.make_opsetid(name, version) for name, version in (("", 21), ("ai.onnx.ml", 5), ("custom", 1))]
    node = helper.make_node(op, ["z"], ["y"], domain=domain, **fields)
    nodes, functions, condition = [custom, node], [], helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    if place == "branch":
        branch = helper.make_graph(nodes, "branch", [], [helper.make_empty_tensor_value_info("y")])
        nodes = [helper.make_node("If", ["c"], ["result"], then_branch=branch, else_branch=branch)]
    if place == "function":  # whose domain the graph does not use
        functions = [helper.make_function("local", "Both", ["x"], ["y"], nodes, domains)]
        nodes, domains = (
            [helper.make_node("Both", ["x"], ["y"], domain="local")],
            [*domains[:2], helper.make_opsetid("local", 1)],
        )
    output = helper.make_empty_tensor_value_info("result" if place == "branch" else "y")
    unread = model(nodes, [value("x", 4, 4), condition], [output], opset_imports=domains, functions=functions)
    code = (
        "import sys, onnx, baechi_lab as bl; print(bl.profile_program(onnx.load(sys.stdin.buffer), training=False).n)"
    )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], input=unread.SerializeToString(), capture_output=True
    )
    assert (run.returncode, run.stdout.strip()) == (0, b"1" if place == "branch" else b"2"), run.stderr[-500:]


@pytest.mark.parametrize(
    ("version", "model_version", "op_type"), [(11, 17, "ReduceSum"), (18, 17, "ReduceSum"), (17, 11, "Sum")]
)
def test_functions_of_another_operator_version_are_read(version, model_version, op_type):
    """A sum whose axes are an attribute up to version 12. ONNX does not convert it to such a version: the call remains."""
    axes = [helper.make_node("Constant", [], ["axes"], value_ints=[1])]
    nodes = [helper.make_node("ReduceSum", ["a"], ["b"], axes=[1], keepdims=1)]
    if version > 12:
        nodes = [*axes, helper.make_node("ReduceSum", ["a", "axes"], ["b"], keepdims=1)]
    function = helper.make_function("local", "Sum", ["a"], ["b"], nodes, [helper.make_opsetid("", version)])
    call = helper.make_node("Sum", ["x"], ["y"], domain="local")
    domains = [helper.make_opsetid("", model_version), helper.make_opsetid("local", 1)]
    called = model([call], [value("x", 4, 5)], [value("y", 4, 1)], opset_imports=domains, functions=[function])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessedCosts)
        graph = bl.profile_program(called, training=False)
    assert graph.op_types == (op_type,)


def loop_body(condition: str) -> onnx.GraphProto:
    """h <- h w, which is also collected; `w` is a value of the graph around it."""
    nodes = [
        helper.make_node("MatMul", ["h", "w"], ["product"]),
        helper.make_node("Identity", ["product"], ["each"]),
        helper.make_node("ReduceMax", ["h"], ["largest"], keepdims=0),
        helper.make_node("Greater", ["largest", "largest"], ["again"]),
        helper.make_node("Identity", ["go"], ["go_on"]),
    ]
    inputs = [helper.make_tensor_value_info(n, t, s) for n, t, s in (("i", 7, []), ("go", 9, []), ("h", FLOAT, None))]
    outputs = [(condition, 9, []), ("product", FLOAT, None), ("each", FLOAT, None)]
    return helper.make_graph(nodes, "body", inputs, [helper.make_tensor_value_info(*v) for v in outputs])


@pytest.mark.parametrize(("condition", "rounds"), [("go_on", 5), ("again", 1)])
def test_bug_bodies_of_loops_counted_their_bytes_only(condition, rounds):
    """The products of a body count in every round, its weights are held, and shapes behind the loop follow from it."""
    from baechi_lab.profilers.programs.onnx_model import program_of

    loop = helper.make_node("Loop", ["n", "", "x"], ["last", "all"], body=loop_body(condition), name="loop")
    nodes = [loop, helper.make_node("MatMul", ["all", "w"], ["y"])]
    count = helper.make_tensor("n", TensorProto.INT64, [], [5])
    onnx_model = model(nodes, [value("x", 4, 8)], [value("y", None, 4, 8)], [weights("w", 8, 8), count])
    program = program_of(onnx_model)
    product = 2 * 4 * 8 * 8
    assert [sum(k.flops for k in op.kernels if k.matrix) for op in program.ops] == [rounds * product] * 2
    assert program.ops[0].output_shapes == f"f32[4,8], f32[{rounds},4,8]"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = bl.profile_program(onnx_model, training=False)
    assert graph.persistent_bytes.tolist() == [8 * 8 * 4 + 8, 0]
    expected = (
        [] if rounds == 5 else ["how often the bodies of 1 operators run is not known (Loop); one iteration of each"]
    )
    assert [expected[0] in str(w.message) for w in caught] == [True] * len(expected)


def test_bug_branches_and_scans_counted_their_bytes_only():
    """Of two branches the longer one counts, with weights of its own; a scan runs once per row."""
    from baechi_lab.profilers.programs.onnx_model import program_of

    branches = [
        helper.make_graph([node], "branch", [], [helper.make_tensor_value_info("b", FLOAT, None)], initializers)
        for node, initializers in (
            (helper.make_node("Relu", ["x"], ["b"]), []),
            (helper.make_node("MatMul", ["x", "own"], ["b"]), [weights("own", 8, 8)]),
        )
    ]
    rows = [helper.make_tensor_value_info(n, FLOAT, None) for n in ("state", "row", "next", "out")]
    body = [helper.make_node("Add", ["state", "row"], ["sum"]), helper.make_node("MatMul", ["sum", "w"], ["next"])]
    body = helper.make_graph([*body, helper.make_node("Identity", ["next"], ["out"])], "body", rows[:2], rows[2:])
    nodes = [
        helper.make_node("If", ["c"], ["h"], then_branch=branches[0], else_branch=branches[1], name="if"),
        helper.make_node("Scan", ["h", "xs"], ["last", "y"], body=body, num_scan_inputs=1),
    ]
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    inputs = [value("x", 4, 8), value("xs", 6, 4, 8), condition]
    program = program_of(model(nodes, inputs, [value("y", 6, 4, 8)], [weights("w", 8, 8)]))
    product = 2 * 4 * 8 * 8
    assert [sum(k.flops for k in op.kernels if k.matrix) for op in program.ops] == [product, 6 * product]
    assert program.parameters == {"w": True, "if/0/own": True} and not program.reasons_of_guesses


def test_bug_the_weights_of_the_branch_that_does_not_run_were_not_in_memory():
    """Both branches call their weights "own": 8 x 8 numbers of four bytes each, and 8 of them."""
    branches = [
        helper.make_graph([node], "branch", [], [helper.make_tensor_value_info("b", FLOAT, None)], [initializer])
        for node, initializer in (
            (helper.make_node("Add", ["x", "own"], ["b"]), weights("own", 8)),
            (helper.make_node("MatMul", ["x", "own"], ["b"]), weights("own", 8, 8)),
        )
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    inputs = [value("x", 4, 8), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = bl.profile_program(model([node], inputs, [value("y", 4, 8)]), training=False)
    assert graph.persistent_bytes.tolist() == [4 * (8 * 8 + 8)]


def test_bug_shapes_behind_operators_of_onnx_runtime_were_not_known():
    """One step of generation, as ONNX Runtime runs it: 4-bit weights, and a cache of 9 positions that attention reads."""
    from baechi_lab.profilers.programs.onnx_model import program_of

    def runtime_op(op: str, inputs: str, outputs: str, **attributes):
        return helper.make_node(op, inputs.split(","), outputs.split(","), domain="com.microsoft", **attributes)

    four_bits = {"bits": 4, "block_size": 16}
    nodes = [
        runtime_op("MatMulNBits", "x,b,scales", "qkv", K=32, N=64, **four_bits),
        runtime_op("GroupQueryAttention", "qkv,,,k,v,s,t", "a,k2,v2", num_heads=4, kv_num_heads=2),
        runtime_op("MatMulNBits", "a,b,scales", "p", K=32, N=64, **four_bits),
        runtime_op("FusedMatMul", "p,w", "y", transB=1),
    ]
    packed = helper.make_tensor("b", TensorProto.UINT8, [64, 2, 8], bytes(64 * 16), raw=True)
    lengths = [helper.make_tensor_value_info(n, TensorProto.INT32, s) for n, s in (("s", [1]), ("t", []))]
    inputs = [value("x", 1, 1, 32), value("k", 1, 2, 9, 8), value("v", 1, 2, 9, 8), *lengths]
    onnx_model = model(
        nodes,
        inputs,
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [packed, weights("scales", 128), weights("w", 16, 64)],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
    )
    program = program_of(onnx_model)
    projection, attention = 2 * 32 * 64, 2 * 2 * 4 * 8 * (9 + 1)  # queries of 4 heads of 8 numbers, keys and values
    assert [op.kernels[0].flops for op in program.ops] == [projection, attention, projection, 2 * 64 * 16]
    assert program.ops[1].output_shapes == "f32[1,1,32], f32[1,2,10,8], f32[1,2,10,8]"
    assert program.ops[3].output_shapes == "f32[1,1,16]" and not program.reasons_of_guesses
    assert {op.kernels[0].precision for op in program.ops} == {"fp32"}


def test_bug_shapes_behind_fused_and_quantized_operators_of_onnx_runtime_were_not_known():
    """Images of 3 x 8 x 8 numbers; a product of 5 x 6 by 6 x 7, whose first dimension of 4 samples comes second."""
    from baechi_lab.profilers.programs.onnx_model import program_of

    def runtime_op(op: str, inputs: str, outputs: str, **attributes):
        return helper.make_node(op, inputs.split(","), outputs.split(","), domain="com.microsoft", **attributes)

    nodes = [
        runtime_op("FusedConv", "x,w", "c", activation="Relu", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["q"]),
        runtime_op("QLinearAdd", "q,s,z,q,s,z,s,z", "sum"),
        runtime_op("QLinearConcat", "s,z,q,s,z,sum,s,z", "joined", axis=1),
        runtime_op("QLinearGlobalAveragePool", "joined,s,z,s,z", "pooled"),
        helper.make_node("Flatten", ["pooled"], ["rows"]),
        runtime_op("QGemm", "rows,s,z,g,s,z,,s,z", "y", transB=1),
        runtime_op("QGemm", "rows,s,z,g,s,z", "float_y", transB=1),
        runtime_op("FusedMatMul", "a,b", "p", transBatchA=1),
    ]
    scale, zero = helper.make_tensor("s", FLOAT, [], [0.1]), helper.make_tensor("z", TensorProto.UINT8, [], [0])
    packed = helper.make_tensor("g", TensorProto.UINT8, [7, 10], bytes(70), raw=True)
    onnx_model = model(
        nodes,
        [value("x", 2, 3, 8, 8), value("a", 5, 4, 6), value("b", 4, 6, 7)],
        [helper.make_empty_tensor_value_info(n) for n in ("y", "float_y", "p")],
        [weights("w", 5, 3, 3, 3), scale, zero, packed],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
    )
    program = program_of(onnx_model)
    images, pairs = "[2,5,4,4]", "[2,10,4,4]"
    shapes = [
        f"f32{images}",
        f"u8{images}",
        f"u8{images}",
        f"u8{pairs}",
        "u8[2,10,1,1]",
        "u8[2,10]",
        "u8[2,7]",
        "f32[2,7]",
    ]
    assert [op.output_shapes for op in program.ops] == [*shapes, "f32[4,5,7]"]
    assert UNKNOWN_SHAPES not in program.reasons_of_guesses.values()
    flops = {op.name: op.kernels[0].flops for op in program.ops if op.is_product}
    assert flops == {
        "FusedConv_c": 2 * (2 * 5 * 4 * 4) * 27,
        "QGemm_y": 2 * 2 * 7 * 10,
        "QGemm_float_y": 2 * 2 * 7 * 10,
        "FusedMatMul_p": 2 * (4 * 5 * 7) * 6,
    }


@pytest.mark.parametrize("bias", [False, True])
def test_bug_training_of_quantized_weights_was_the_forward_pass_without_a_word(bias):
    """An int8 weight with scales per channel: nothing is trained, or the bias behind the product alone."""
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], "weight", axis=1),
        helper.make_node("MatMul", ["x", "w"], ["p"], "product"),
        helper.make_node("Add" if bias else "Relu", ["p", "b"] if bias else ["p"], ["y"], "last"),
    ]
    packed = helper.make_tensor("q", TensorProto.INT8, [8, 4], bytes(32), raw=True)
    parameters = [packed, weights("s", 4), *([weights("b", 4)] if bias else [])]
    onnx_model = model(nodes, [value("x", 2, 8)], [value("y", 2, 4)], parameters)
    expected = "behind DequantizeLinear the step has no gradients" if bias else "the step is the forward pass alone"
    with pytest.warns(GuessedCosts, match=expected):
        graph = bl.profile_program(onnx_model)
    assert graph.names[:3] == ("weight", "product", "last") and not any("product/" in name for name in graph.names)
    assert graph.names[3:] == (("last/backward", "last/update") if bias else ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bl.profile_program(onnx_model, training=False).n == 3


@pytest.mark.parametrize(
    ("op", "count"),
    [
        ("Add", 1),
        ("Add", 3),
        ("Transpose", 0),
        ("InstanceNormalization", 0),
        ("SoftmaxCrossEntropyLoss", 0),
        ("Loop", 2),
    ],
)
def test_bug_operators_with_other_inputs_than_theirs_ended_in_a_foreign_error(op, count):
    """A damaged model: the inputs, or the outputs of a body, are missing or too many. It is refused, or a guess."""
    body = {"body": helper.make_graph([], "body", [], [])} if op == "Loop" else {}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node(op, ["p"] * count, ["z"], **body),
        helper.make_node("Relu", ["p"], ["y"]),
    ]
    onnx_model = model(nodes, [value("x", 2, 8)], [value("y", 2, 4)], [weights("w", 8, 4)])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuessedCosts)
            graph = bl.profile_program(onnx_model, training=False)
    except bl.FormatError:
        return
    assert graph.n == 3


def test_shapes_that_are_not_known_are_said():
    """A product of tensors without a rank counts next to nothing, and had been one of the ops that count by bytes."""
    onnx_model = model(
        list(two_layers(4).graph.node), [value("x", 4, 8)], [value("y", 4, 4)], two_layers(4).graph.initializer
    )
    onnx_model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.warns(
        GuessedCosts, match=r"shapes of \d of \d operators are not known \(.*MatMul.*\); .* \d+% of .*far more"
    ):
        bl.profile_program(onnx_model, hardware="v100", training=False)


def half_of_channels(source, result):
    """As PyTorch exports `source.chunk(2, 1)[0]` where the batch has no fixed size."""
    inner = [f"{result}/{step}" for step in ("shape", "channels", "half", "end")]
    return [
        helper.make_node("Shape", [source], inner[:1]),
        helper.make_node("Gather", [inner[0], "one"], inner[1:2]),
        helper.make_node("Div", [inner[1], "two"], inner[2:3]),
        helper.make_node("Unsqueeze", [inner[2], "axis"], inner[3:]),
        helper.make_node("Slice", [source, "zeros", inner[3], "axes"], [result]),
    ]


def test_bug_shapes_behind_sizes_that_a_model_divides_were_not_known():
    """ONNX infers no quotient, so that no shape behind one was known: here of a half, and of a half of that."""
    constants = [
        helper.make_tensor(name, TensorProto.INT64, shape, [number])
        for name, shape, number in (
            ("one", [], 1),
            ("two", [], 2),
            ("axis", [1], 0),
            ("ones", [1], 1),
        )
    ]
    zero = helper.make_tensor("zero", TensorProto.INT64, [1], [0])
    nodes = [
        helper.make_node("ConstantOfShape", ["ones"], ["zeros"], value=zero),
        helper.make_node("Reshape", ["ones", "ones"], ["axes"]),
        *half_of_channels("x", "first"),
        helper.make_node("Relu", ["first"], ["activated"]),
        *half_of_channels("activated", "second"),
        helper.make_node("Conv", ["second", "w"], ["y"], "convolution"),
    ]
    onnx_model = model(nodes, [value("x", "batch", 8, 9, 9)], [value("y", "batch", 2, 8, 8)], constants)
    onnx_model.graph.initializer.append(weights("w", 2, 2, 2, 2))
    onnx_model.graph.output[0].type.tensor_type.ClearField("shape")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = bl.profile_program(onnx_model, hardware="a100", training=False, batch_size=3)
    sizes = dict(zip(graph.names, graph.output_shapes, strict=True))
    assert sizes["convolution"] == "f32[3,2,8,8]"


def test_versions_of_operators():
    """Models that are no files were not asked for their versions; those of before ONNX Runtime's oldest passed silently."""
    onnx_model = two_layers(4)
    for version, message in (
        (999, "the model: its operators are of version 999"),
        (0, "operators is 0; opset_import must"),
    ):
        onnx_model.opset_import[0].version = version
        with pytest.raises(FormatError, match=message):
            bl.profile_program(onnx_model)
    onnx_model.opset_import[0].version = 1
    unknown = pytest.warns(GuessedCosts, match="shapes of 3 of 3 operators")  # which ONNX infers from version 7 on
    with unknown, pytest.warns(GuessedCosts, match="of version 1, which ONNX Runtime no longer reads"):
        bl.profile_program(onnx_model)
    nodes = [helper.make_node("LayerNormalization", ["x", "w"], ["y"])]
    onnx_model = model(nodes, [value("x", 4, 8)], [value("y", 4, 8)], [weights("w", 8)])
    onnx_model.opset_import[0].version = 16
    with pytest.warns(GuessedCosts, match=r"only the bytes are counted \(LayerNormalization\)"):  # came with version 17
        bl.profile_program(onnx_model)


def test_an_onnx_file_is_profiled_like_its_model(tmp_path):
    path = tmp_path / "two.onnx"
    onnx.save(two_layers(4), path)
    assert bl.profile(path, mode="estimated", hardware="a100") == bl.profile_program(
        two_layers(4), hardware="a100"
    ).replace(name="two")
    assert bl.profile(path) == bl.profile(path, hardware="rtx2080")
    with pytest.raises(InvalidInput, match="mode='estimated' alone"):
        bl.profile(path, mode="measured")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(FormatError, match="cut off"):
        bl.profile_program(path)
    onnx.save(two_layers(4), path)
    path.write_bytes(path.read_bytes().replace(b"MatMul", b"Mat\xcdul"))
    with pytest.raises(FormatError, match=r"the name b'Mat\\xcdul' is no UTF-8 text"):
        bl.profile_program(path)
    path.write_bytes(b"\x3a\x03\x12\x01g")  # a graph called g
    with pytest.raises(FormatError, match="has no ir_version"):
        bl.profile_program(path)
    path.write_bytes(b"\x08\x09")  # ir_version 9
    with pytest.raises(FormatError, match="the ONNX model has no operators"):
        bl.profile_program(path)
    onnx.save(model(list(two_layers(4).graph.node), [value("x", 4, 8)], [value("y", 4, 4)], ir_version=99), path)
    with pytest.raises(FormatError, match="ir_version is 99"):
        bl.profile_program(path)
    newer = two_layers(4)
    newer.opset_import[0].version = 999
    onnx.save(newer, path)
    with pytest.raises(FormatError, match="its operators are of version 999"):
        bl.profile_program(path)
    with pytest.raises(FormatError, match=r"other\.onnx: cannot be read: No such file"):
        bl.profile_program(tmp_path / "other.onnx")


def test_weights_that_are_missing_are_named(tmp_path):
    onnx_model = two_layers(4)
    onnx.external_data_helper.convert_model_to_external_data(onnx_model, location="weights.bin", size_threshold=0)
    onnx.save(onnx_model, tmp_path / "two.onnx")
    assert bl.profile_program(tmp_path / "two.onnx").n == 9
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(FormatError, match=r"the weights of 'w1' are in 'weights\.bin', which is not beside it"):
        bl.profile_program(tmp_path / "two.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("producer", ["ConstantOfShape", "Expand", "Tile", "Range", "Pad", "Shape"])
def test_bug_long_vectors_were_followed_element_by_element(producer):
    """ONNX's inference did not end. The product behind the short vector of sizes still has its shape."""
    long = 2**38
    numbers = {"zero": 0, "one": 1, "long": long, "ones": [1], "length": [long], "pads": [0, long - 1], "four": [4]}
    numbers |= {"axis": [0], "rows": [12, 64]}
    inputs = {
        "ConstantOfShape": ["length"],
        "Expand": ["ones", "length"],
        "Tile": ["ones", "length"],
        "Range": ["zero", "long", "one"],
        "Pad": ["ones", "pads"],
        "Shape": ["x"],
    }[producer]
    nodes = [helper.make_node(producer, inputs, ["vector"])]
    if producer == "Shape":  # of which the length follows from the input
        product = helper.make_node("ReduceProd", ["vector"], ["elements"], keepdims=1)
        factor = helper.make_node("Mul", ["elements", "length"], ["many"])
        nodes += [product, factor, helper.make_node("ConstantOfShape", ["many"], ["filled"])]
    nodes += [
        helper.make_node("Cast", ["filled" if producer == "Shape" else "vector"], ["cast"], to=TensorProto.INT64),
        helper.make_node("Concat", ["four", "rows"], ["shape"], axis=0),
        helper.make_node("Expand", ["x", "shape"], ["y"]),
        helper.make_node("MatMul", ["y", "w"], ["z"]),
    ]
    constants = [onnx.numpy_helper.from_array(np.array(n, np.int64), name) for name, n in numbers.items()]
    onnx_model = model(
        nodes, [value("x", 1, 64)], [value("z", None, None, None)], [weights("w", 64, 8), *constants], ir_version=9
    )
    script = (
        "import sys, onnx, baechi_lab as bl\n"
        "graph = bl.profile_program(onnx.load_from_string(sys.stdin.buffer.read()), training=False)\n"
        "print(graph.tensor_bytes.tolist())"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    run = subprocess.run(command, input=onnx_model.SerializeToString(), capture_output=True, timeout=120)
    assert run.returncode == 0, run.stderr.decode()[-500:]
    sizes = json.loads(run.stdout)
    assert 4 * 12 * 64 * 4 in sizes
    vector_bytes = {"ConstantOfShape": 4 * long, "Shape": 4 * 64 * long}  # of float32; the others are of int64
    assert vector_bytes.get(producer, 8 * long) in sizes


def test_bug_a_shape_in_another_file_was_unknown(tmp_path):
    """A list of integers says a shape: with it in another file, the product behind it was a guess."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"]), helper.make_node("MatMul", ["y", "w"], ["z"])]
    shape = onnx.numpy_helper.from_array(np.array([-1, 12]), "shape")
    onnx_model = model(nodes, [value("x", 4, 3, 4)], [value("z", None, None)], [weights("w", 12, 64), shape])
    inside = bl.profile_program(onnx_model)
    path, tensors = tmp_path / "reshaped.onnx", tmp_path / "tensors.bin"
    onnx.save(onnx_model, path, save_as_external_data=True, location=tensors.name, size_threshold=0)
    outside = bl.profile_program(path)
    assert outside.duration_us.tolist() == inside.duration_us.tolist()
    assert outside.tensor_bytes.tolist() == inside.tensor_bytes.tolist()
    tensors.write_bytes(tensors.read_bytes()[:-8])
    with pytest.raises(FormatError, match=r"reshaped\.onnx: 'shape' cannot be read from 'tensors\.bin'"):
        bl.profile_program(path)


def test_values_that_nothing_makes_are_refused():
    """A product with a weight that is not there had been estimated by the bytes of the rest."""
    value_infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "first")], "g", value_infos[:1], value_infos[1:]
    )
    with pytest.raises(FormatError, match="operator 'first' reads 'w', which no operator makes"):
        bl.profile_program(helper.make_model(graph), hardware="h100")


def test_two_devices_for_a_model_of_onnx():
    graph = bl.profile_program(two_layers(4), hardware=["a100", "h100"])
    cluster = bl.Cluster.uniform(2, kind="h100")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timeline = bl.simulate(graph, cluster, bl.place(graph, cluster, "m-etf"))
    assert not bl.check(graph, cluster, bl.place(graph, cluster, "m-etf"), timeline)


@pytest.mark.parametrize(
    ("kind", "bits"), [("INT2", 2), ("UINT4", 4), ("INT4", 4), ("FLOAT4E2M1", 4), ("FLOAT8E8M0", 8)]
)
def test_numbers_of_less_than_a_byte_share_bytes(kind, bits):
    """7 x 5 numbers take 35 * bits / 8 bytes, rounded up; four bytes for each of them were counted."""
    packed = TensorProto(
        name="w", data_type=TensorProto.DataType.Value(kind), dims=[7, 5], raw_data=bytes(-(-35 * bits // 8))
    )
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["float_w"]),
        helper.make_node("MatMul", ["x", "float_w"], ["y"]),
    ]
    quantized = model(
        nodes,
        [value("x", 2, 7)],
        [value("y", 2, 5)],
        [packed, weights("s", 1)],
        opset_imports=[helper.make_opsetid("", 25)],
        ir_version=13,
    )
    graph = bl.profile_program(quantized, hardware="a100", training=False)
    assert int(graph.persistent_bytes.sum()) == -(-35 * bits // 8) + 4


def test_sparse_weights_count_as_the_dense_tensors_that_runtimes_make_of_them():
    sparse = helper.make_sparse_tensor(
        weights("w", 3), helper.make_tensor("at", TensorProto.INT64, [3], [0, 5, 31]), [8, 4]
    )
    dense = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], [value("x", 2, 8)], [value("y", 2, 4)], [weights("w", 8, 4)]
    )
    stored_sparsely = onnx.ModelProto()
    stored_sparsely.CopyFrom(dense)
    del stored_sparsely.graph.initializer[:]
    stored_sparsely.graph.sparse_initializer.append(sparse)
    graphs = [bl.profile_program(program, hardware="a100") for program in (dense, stored_sparsely)]
    assert graphs[0].names == graphs[1].names and graphs[0].duration_us.tolist() == graphs[1].duration_us.tolist()
    assert [int(graph.persistent_bytes.sum()) for graph in graphs] == [2 * 8 * 4 * 4] * 2  # weights and gradients
