"""One layer has one cost, whatever reads it: the option `precision` and its rule."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.errors import InvalidInput, UnknownNameError
from baechi_lab.graph.hardware import Hardware
from baechi_lab.profilers.estimate_record import describe_estimate
from baechi_lab.profilers.kernel_model import kernel_us
from baechi_lab.profilers.precision import NAMES, Precision, profile_mode
from baechi_lab.profilers.work import Kernel

torch = pytest.importorskip("torch")
from baechi_lab.profilers.torch.profile import ConfiguredDtype  # noqa: E402

ROWS, WIDTH = 128, 256

A100 = Hardware.named("a100").as_roofline()


def layer_of_torch(precision, **options):
    layer = torch.nn.Linear(WIDTH, WIDTH, bias=False, device="meta")
    inputs = torch.empty(ROWS, WIDTH, device="meta")
    return bl.torch.profile(layer, inputs, mode="inference", hardware="a100", precision=precision, **options)


def layer_of_operators(precision):
    return layer_of_torch(precision, granularity="operator")


def layer_of_export(precision):
    program = torch.export.export(torch.nn.Linear(WIDTH, WIDTH, bias=False), (torch.zeros(ROWS, WIDTH),))
    return bl.profile_program(program, hardware="a100", training=False, precision=precision)


def layer_of_onnx(precision):
    onnx = pytest.importorskip("onnx")
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [ROWS, WIDTH]) for n in "xy")
    w = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [WIDTH, WIDTH], [0.0] * WIDTH**2)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "one", [x], [y], [w]))
    return bl.profile_program(model, hardware="a100", training=False, precision=precision)


def layer_of_tensorflow(precision):
    tf = pytest.importorskip("tensorflow")
    w = tf.Variable(np.zeros((WIDTH, WIDTH), np.float32))
    return bl.profile(lambda x: x @ w, np.zeros((ROWS, WIDTH), np.float32), hardware="a100", precision=precision)


READERS = (layer_of_torch, layer_of_operators, layer_of_export, layer_of_onnx, layer_of_tensorflow)


@pytest.mark.parametrize("precision", [None, *NAMES])
def test_every_reader_gives_one_layer_one_time(precision):
    """All products take the same time; what is left are ops that move no data (reading a variable: 0.25 us)."""
    graphs = [read(precision) for read in READERS]
    longest = [float(graph.duration_us.max()) for graph in graphs]
    assert longest == pytest.approx([longest[0]] * len(READERS), abs=0.3), (
        "a layer of PyTorch includes a view of 0.25 us"
    )
    assert {graph.info["estimate"]["precision"] for graph in graphs} == {precision or "fp32"}
    width = 4 if precision in (None, "fp32", "tf32") else 2
    stored = [int(graph.persistent_bytes.sum()) for graph in graphs]
    variable = 4 if precision in ("mixed-bf16", "mixed-fp16") else width  # of TensorFlow: the float32 master weight
    assert stored == [width * WIDTH**2] * 4 + [variable * WIDTH**2]


def double_of_torch():
    layer = torch.nn.Linear(WIDTH, WIDTH, bias=False, device="meta", dtype=torch.float64)
    inputs = torch.empty(ROWS, WIDTH, device="meta", dtype=torch.float64)
    return bl.torch.profile(layer, inputs, mode="inference", hardware="rtx4090")


def double_of_export():
    layer = torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)
    program = torch.export.export(layer, (torch.zeros(ROWS, WIDTH, dtype=torch.float64),))
    return bl.profile_program(program, hardware="rtx4090", training=False)


def double_of_onnx():
    onnx = pytest.importorskip("onnx")
    kind = onnx.TensorProto.DOUBLE
    x, y = (onnx.helper.make_tensor_value_info(n, kind, [ROWS, WIDTH]) for n in "xy")
    w = onnx.helper.make_tensor("w", kind, [WIDTH, WIDTH], [0.0] * WIDTH**2)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "one", [x], [y], [w]))
    return bl.profile_program(model, hardware="rtx4090", training=False)


def double_of_tensorflow():
    tf = pytest.importorskip("tensorflow")
    w = tf.Variable(np.zeros((WIDTH, WIDTH)))
    return bl.profile(lambda x: x @ w, np.zeros((ROWS, WIDTH)), hardware="rtx4090")


@pytest.mark.parametrize("read", [double_of_torch, double_of_export, double_of_onnx, double_of_tensorflow])
def test_bug_float64_products_counted_as_float32(read):
    """128 x 256 x 256 on an RTX 4090: 82.6 / 64 TFLOP/s, of which Ada's products reach 0.95, in two tiles of 128 x 128.

    They split their summed dimension into four parts of 64. A tile takes 1.85 us more, and the first kernel starts after 23.6 us.
    """
    graph = read()
    part_us = 2 * 128 * 128 * 64 / (0.95 * 82.6e12 / 64 / 128) * 1e6
    assert graph.info["estimate"]["precision"] == "fp64"
    assert graph.duration_us.max() == pytest.approx(part_us + 1.85 + 23.6, abs=0.3)


def product_of_torch(inner, number_type):
    layer = torch.nn.Linear(inner, 1024, bias=False, device="meta", dtype=getattr(torch, number_type))
    inputs = torch.empty(1024, inner, device="meta", dtype=getattr(torch, number_type))
    return bl.torch.profile(layer, inputs, mode="inference", hardware="a100")


def product_of_export(inner, number_type):
    with torch.device("meta"):
        layer = torch.nn.Linear(inner, 1024, bias=False, dtype=getattr(torch, number_type))
        program = torch.export.export(layer, (torch.empty(1024, inner, dtype=getattr(torch, number_type)),))
    return bl.profile_program(program, hardware="a100", training=False)


def product_of_tensorflow(inner, number_type):
    tf = pytest.importorskip("tensorflow")
    w = tf.Variable(tf.zeros((inner, 1024), number_type))
    return bl.profile(lambda x: x @ w, np.zeros((1024, inner), number_type), hardware="a100")


@pytest.mark.slow
@pytest.mark.parametrize("read", [product_of_torch, product_of_export, product_of_tensorflow])
@pytest.mark.parametrize(
    ("complex_type", "real_type", "precision"), [("complex64", "float32", "fp32"), ("complex128", "float64", "fp64")]
)
def test_bug_complex_products_counted_as_one_product_of_real_numbers(read, complex_type, real_type, precision):
    """(a + bi) (c + di) has four products of real numbers: as many as with a summed dimension of four times the length."""
    of_complex, of_real = read(1024, complex_type), read(4096, real_type)
    assert of_complex.info["estimate"]["precision"] == precision
    assert of_complex.duration_us.max() == pytest.approx(of_real.duration_us.max(), abs=0.3)
    assert of_complex.duration_us.max() > 8 * 1024**3 / 19.5e12 * 1e6


def test_float32_is_full_float32_whatever_pytorch_is_set_to():
    before = torch.get_float32_matmul_precision()
    plain = layer_of_torch(None)
    try:
        torch.set_float32_matmul_precision("high")
        assert layer_of_torch(None) == plain == layer_of_torch("fp32") != layer_of_torch("tf32")
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("granularity", ["layer", "operator"])
def test_the_host_needs_time_per_operator(granularity):
    """One product, and a view of its weights: 46 us, which no kernel of this size takes. A CPU is its own host."""
    graph = layer_of_torch(None, granularity=granularity)
    assert graph.info["estimate"]["host"] == {
        "operators": 2,
        "us": 46.0,
        "kernels_us": {"a100": pytest.approx(graph.duration_us.sum(), abs=0.1)},
    }
    assert "a100 waits for it" in describe_estimate(graph.info["estimate"])["host"]
    layer, inputs = torch.nn.Linear(WIDTH, WIDTH, device="meta"), torch.empty(ROWS, WIDTH, device="meta")
    graph = bl.torch.profile(layer, inputs, hardware="cpu-core", granularity=granularity)
    assert "host" not in graph.info["estimate"] and "host" not in describe_estimate(graph.info["estimate"])


def test_only_products_of_float32_become_tf32():
    tf32, product = Precision.of("tf32"), Kernel(8.0, matrix=True)
    assert tf32.kernel(product).precision == "tf32"
    assert tf32.kernel(Kernel(8.0)).precision == "fp32"
    assert tf32.kernel(Kernel(8.0, precision="fp16", matrix=True)).precision == "fp16"
    assert Precision().kernel(product) is product


@pytest.mark.parametrize("granularity", ["layer", "operator"])
@pytest.mark.parametrize(
    ("options", "bytes_per_parameter"),
    [
        ({}, 4 + 4 + 8),
        ({"precision": "bf16"}, 2 + 2 + 4),
        ({"precision": "mixed-bf16"}, 2 + 4 + 4 + 8),
        ({"precision": "mixed-bf16", "gradients": "bf16"}, 2 + 2 + 4 + 8),
        ({"precision": "mixed-fp16"}, 2 + 2 + 4 + 8),
        ({"precision": "mixed-fp16", "gradients": "fp32"}, 2 + 4 + 4 + 8),
    ],
)
def test_bytes_per_parameter_with_adam(granularity, options, bytes_per_parameter):
    """Weight, gradient, master weight, two states."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    graph = bl.torch.profile(
        model, torch.ones(2, 64), hardware="h100", optimizer="adam", granularity=granularity, **options
    )
    assert int(graph.persistent_bytes.sum()) == bytes_per_parameter * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("gradients", "bytes_per_parameter"), [(None, 18), ("bf16", 16)])
def test_bytes_per_parameter_of_an_exported_program(gradients, bytes_per_parameter):
    layer = torch.nn.Linear(64, 32, bias=False)
    program = torch.export.export(layer, (torch.zeros(8, 64),))
    options = {"optimizer_states": 2, "precision": "mixed-bf16", "gradients": gradients}
    graph = bl.profile_program(program, hardware="h100", **options)
    assert int(graph.persistent_bytes.sum()) == bytes_per_parameter * 64 * 32


def test_float32_gradients_are_there_from_the_start():
    """One layer of 64 x 64, by hand: 18 bytes per weight, its gradient of the backward pass (2), and what flows (2 x 64 each)."""
    layer, inputs = torch.nn.Linear(64, 64, bias=False), torch.ones(2, 64)
    graph = bl.torch.profile(layer, inputs, hardware=A100, optimizer="adam", precision="mixed-bf16")
    cluster = bl.Cluster.uniform(1, memory_bytes="1GB")
    timeline = bl.simulate(graph, cluster, bl.place(graph, cluster, "single"))
    assert timeline.peak_bytes.tolist() == pytest.approx([(18 + 2) * 64 * 64], abs=4 * 2 * 2 * 64)


def test_an_update_in_mixed_precision_moves_30_bytes_per_parameter():
    """It reads the gradient (4) and reads and writes the master weight (8) and two states (16), and writes the weight (2)."""
    layer = torch.nn.Linear(4096, 4096, bias=False, device="meta")
    options = {"optimizer": "adam", "precision": "mixed-bf16", "granularity": "operator"}
    graph = bl.torch.profile(layer, torch.empty(1, 4096, device="meta"), hardware=A100, **options)
    update = next(us for us, name in zip(graph.duration_us, graph.names, strict=True) if name.endswith("update"))
    assert update == pytest.approx(kernel_us(Kernel(moved_bytes=30.0 * 4096**2), A100))


@pytest.mark.parametrize(
    ("precision", "gradients", "message"),
    [
        ("bf17", None, "unknown precision 'bf17'"),
        ("fp8", None, "unknown precision 'fp8'"),
        ("mixed-bf16", "fp16", "with precision 'mixed-bf16' it must be fp32 or bf16"),
        ("bf16", "fp32", "gradients have the type of the weights unless"),
        (None, "fp32", "gradients have the type of the weights unless"),
    ],
)
def test_precisions_that_do_not_exist(precision, gradients, message):
    with pytest.raises((InvalidInput, UnknownNameError), match=message):
        Precision.of(precision, gradients)


def test_names_in_any_case_and_types_of_torch():
    names = ("BF16", "bfloat16", torch.bfloat16, "Mixed_BF16", "mixed-bfloat16", "float32", "half")
    assert [Precision.of(name).name for name in names] == ["bf16"] * 3 + ["mixed-bf16"] * 2 + ["fp32", "fp16"]


@pytest.mark.parametrize("field", ["dtype", "autocast"])
def test_two_choices_of_a_type_are_refused(field):
    with pytest.raises(InvalidInput, match=f"precision is 'bf16' and {field} is given too"):
        layer_of_torch("bf16", **{field: "bf16"})


def test_named_hardware_is_estimated():
    layer, inputs = torch.nn.Linear(4, 4), torch.ones(2, 4)
    graph = bl.profile(layer, inputs, hardware="h100")
    assert graph == bl.torch.profile(layer, inputs, hardware="h100")
    assert graph.info["estimate"]["hardware"] == {"gpu": "h100", "h100": "h100"}
    assert set(graph.info["estimate"]["expected_error"]) == {"h100"}
    assert "estimate" not in bl.profile(layer, inputs).info


@pytest.mark.parametrize("option", [{"hardware": "h100"}, {"precision": "bf16"}])
def test_a_measurement_of_other_hardware_is_refused(option):
    layer, inputs = torch.nn.Linear(4, 4), torch.ones(2, 4)
    (field,) = option
    for call in (
        lambda: bl.profile(layer, inputs, mode="measured", **option),
        lambda: bl.Profile("measured", **option),
    ):
        with pytest.raises(InvalidInput, match=f"mode is 'measured' and {field} is"):
            call()
    with pytest.raises(UnknownNameError, match="unknown profile mode 'guessed'"):
        profile_mode("guessed", None)


def test_the_record_outlives_a_file(tmp_path):
    graph = layer_of_torch("tf32")
    bl.save_graph(graph, tmp_path / "graph.json")
    assert bl.load_graph(tmp_path / "graph.json").info["estimate"] == graph.info["estimate"]


PUBLISHED_PEAKS = {(8, 1): 28.29, (4, 2): 39.07, (2, 4): 60.68}
"""(tensor, data parallelism) -> GiB allocated at the peak on the fullest of eight B200: Llama 3 70B with 12 of its layers under
Megatron-LM, one sample of 4096 tokens per micro-batch, bf16 with float32 gradients, Adam, ZeRO-1, sequence parallelism, no
recomputation (SimuMax v1.2, github.com/MooreThreads/SimuMax, Apache-2.0)."""


@pytest.mark.slow
def test_peaks_of_sharded_models_are_those_published():
    """Sharding divides the peak of one device: tensor parallelism all of it, data parallelism master weights and states.

    The loop of a Hugging Face model holds the logits that it returns beside its loss; Megatron's model returns the loss alone.
    """
    pytest.importorskip("transformers")
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 12,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "max_position_embeddings": 8192,
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    model, inputs = bl.torch.hugging_face(config, sequence_length=4096)
    graph = bl.torch.profile(model, inputs, hardware="b200", precision="mixed-bf16", optimizer="adam")
    cluster = bl.Cluster.uniform(1, kind="b200", memory_bytes="1TB")
    peak = int(bl.simulate(graph, cluster, bl.place(graph, cluster, "single")).peak_bytes[0])
    peak -= 4096 * 128_256 * 2  # logits in bf16
    parameters = sum(p.numel() for p in model.parameters())
    assert int(graph.persistent_bytes.sum()) == pytest.approx(18 * parameters, rel=1e-6)
    for (tensor, data), published in PUBLISHED_PEAKS.items():
        sharded = peak - parameters * 12 * (1 - 1 / data)
        assert sharded / tensor / 2**30 == pytest.approx(published, rel=0.06)


@pytest.mark.parametrize(
    ("options", "name"),
    [({}, "bf16"), ({"precision": "fp32"}, "fp32"), ({"autocast": "fp16"}, "fp16"), ({"dtype": "bf16"}, "bf16")],
)
def test_the_record_names_the_type_of_most_products(options, name):
    dtype = torch.float32 if options.get("autocast") else torch.bfloat16
    layer = torch.nn.Linear(64, 64, bias=False, dtype=dtype)
    for granularity in ("layer", "operator"):
        graph = bl.torch.profile(
            layer, torch.ones(8, 64, dtype=dtype), hardware="a100", granularity=granularity, **options
        )
        assert graph.info["estimate"]["precision"] == name


def test_weights_in_another_type_than_their_configuration():
    """As after `LlamaForCausalLM(config)`, which makes float32 weights whatever the configuration says."""
    layer, inputs = torch.nn.Linear(8, 8), torch.ones(2, 8)
    layer.config = type("Config", (), {"dtype": torch.bfloat16})()
    with pytest.warns(ConfiguredDtype, match="the weights of Linear are float32, and its configuration says bfloat16"):
        graph = bl.torch.profile(layer, inputs, hardware="a100")
    assert graph.info["estimate"]["precision"] == "fp32"
    assert bl.torch.profile(layer, inputs, hardware="a100", precision="bf16").n == graph.n
    assert bl.torch.profile(layer.bfloat16(), inputs.bfloat16(), hardware="a100").n == graph.n


def test_types_of_a_tensorflow_graph_and_its_functions():
    """A conditional's branches are functions; their products count in the chosen type too: 2 * 256^3 FLOPs each."""
    tf = pytest.importorskip("tensorflow")
    w = tf.Variable(np.zeros((256, 256), np.float32))

    def step(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x @ w, lambda: (x @ w) @ w)

    traced = bl.trace(step, np.ones((256, 256), np.float32))
    graphs = [bl.profile(traced, hardware="a100", precision=p) for p in (None, "bf16", "mixed-bf16")]
    assert [int(graph.persistent_bytes.sum()) // 256**2 for graph in graphs] == [4, 2, 4]
    longest = [float(graph.duration_us.max()) for graph in graphs]
    assert longest[0] > longest[1] == longest[2]
