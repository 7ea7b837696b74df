"""Plans for other runtimes: small models by hand, with what each format must say and what it cannot."""

import itertools
import re

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.exporters.plans import FORMATS

NAMES = ["embed", "layers.0", "layers.1", "layers.2", "layers.3", "norm", "head"]


def chain(names, types=None, **columns):
    """A chain of ops of 1 us."""
    edges = [(i, i + 1, 8) for i in range(len(names) - 1)]
    types_column = {} if types is None else {"op_types": tuple(types)}
    return bl.OpGraph.from_edges([1.0] * len(names), edges, names=names, **types_column, **columns)


def write(device, format, names=NAMES, **options):
    """A plan of a chain."""
    return bl.write_plan(chain(names), bl.Placement(device=device), format, **options)


TWO = [0, 0, 0, 1, 1, 1, 1]  # the embedding and two layers; two layers, norm and head


def test_vllm_counts_the_layers_of_each_stage():
    plan = write(TWO, "vllm")
    assert plan.value == "2,2"
    assert plan.text == "VLLM_PP_LAYER_PARTITION=2,2  # with --pipeline-parallel-size 2\n" == str(plan)
    assert plan.unsupported == ()


def test_deepspeed_counts_all_modules():
    plan = write(TWO, "deepspeed")
    assert plan.value == {"num_stages": 2, "parts": [0, 3, 7], "layers": NAMES}  # 3 = embed and 2 layers; 7 = all
    assert "PARTS = [0, 3, 7]" in plan.text
    compile(plan.text, "plan.py", "exec")
    assert len(plan.unsupported) == 1 and "no parts given by hand" in plan.unsupported[0]


@pytest.mark.parametrize(
    ("device", "layout"),
    [
        (TWO, "Et*2|t*2L"),
        ([0, 1, 1, 1, 2, 2, 3], "E|t*3|t|L"),  # embedding and head on devices of their own
        ([0] * 7, "Et*4L"),
        ([0, 0, 1, 2, 3, 3, 3], "Et|t|t|tL"),
    ],
)
def test_megatron_layouts_list_the_layers_of_stages(device, layout):
    plan = write(device, "megatron")
    assert plan.value == layout
    assert f"--pipeline-model-parallel-size {layout.count('|') + 1} " in plan.text
    if device != [0, 1, 1, 1, 2, 2, 3]:
        assert plan.unsupported == ()
    else:  # the norm goes with the head: 1 of 7 ops, 1/7 of the time
        assert plan.unsupported == ("1 of 7 ops, 14% of the time, run elsewhere: 'norm' on 3 instead of 2",)


def test_pipelining_splits_before_the_outermost_module():
    names = ["embed", "layers.0.norm", "layers.0.mlp", "layers.1.norm", "layers.1.mlp", "head"]
    assert write([0, 0, 0, 1, 1, 1], "pipelining", names).value == {"layers.1": "BEGINNING"}
    inner = write([0, 0, 1, 1, 1, 2], "pipelining", names)
    assert inner.value == {"layers.0.mlp": "BEGINNING", "head": "BEGINNING"}
    assert "'layers.0.mlp': SplitPoint.BEGINNING,\n    'head': SplitPoint.BEGINNING,\n" in inner.text


def test_pipelining_cannot_split_inside_a_module_that_runs_twice():
    with pytest.raises(bl.InvalidInput, match=r"module 'shared' is called on both sides of a split"):
        write([0, 0, 1], "pipelining", ["shared.a", "shared", "shared#1"])


def test_calls_run_where_the_module_before_them_runs():
    graph = chain(["layers.0", "add", "layers.1"], ["Linear", "add", "Linear"])
    plan = bl.write_plan(graph, bl.Placement(device=[0, 1, 1]), "pipelining")
    assert plan.value == {"layers.1": "BEGINNING"}
    assert plan.unsupported == ("1 of 3 ops, 33% of the time, run elsewhere: 'add' on 0 instead of 1",)


@pytest.mark.parametrize(
    ("format", "device"),
    [
        ("vllm", [0, 0, 1, 0, 1, 1, 1]),
        ("deepspeed", [0, 0, 1, 0, 1, 1, 1]),
        ("megatron", [0, 0, 1, 0, 0, 0, 0]),  # 0, 1, 0: no whole round
        ("pipelining", [0, 0, 1, 0, 2, 1, 2]),  # 0, 1, 0, 2, 1, 2
    ],
)
def test_layers_that_turn_back_are_named(format, device):
    with pytest.raises(bl.InvalidInput, match=r"'layers.2' turns back to device 0, which 'layers.0' had left"):
        write(device, format)


LOOPED = [0, 0, 1, 0, 1, 1, 1]


def test_rounds_through_the_devices_are_virtual_stages_of_megatron():
    """Two stages on each of two devices, as its interleaved schedule runs them, were refused."""
    plan = write(LOOPED, "megatron")
    assert plan.value == "Et|t|t|tL" and plan.unsupported == ()
    assert plan.text.startswith("--pipeline-model-parallel-size 2 ")  # 4 stages on 2 ranks: 2 virtual ones each
    swapped = write([1 - d for d in LOOPED], "megatron")
    assert swapped.value == plan.value
    assert swapped.unsupported == ("the format numbers ranks, not devices: rank 0 is device 1, rank 1 is device 0",)
    # An embedding on a device of its own would be a stage of its own, which no round has.
    separated = write([2, *LOOPED[1:]], "megatron")
    assert separated.value == plan.value and "'embed' on 0 instead of 2" in separated.unsupported[0]


def test_rounds_through_the_devices_are_looped_stages_of_torch():
    plan = write(LOOPED, "pipelining")
    assert plan.value == dict.fromkeys(["layers.1", "layers.2", "layers.3"], "BEGINNING") and plan.unsupported == ()
    assert "# 4 stages on 2 ranks: stage k is rank k % 2's, as in ScheduleInterleaved1F1B.\n" in plan.text
    assert "ranks" not in write(TWO, "pipelining").text


@pytest.mark.parametrize("format", ["deepspeed", "pipelining"])
def test_tied_weights_are_named_as_what_holds_a_layer(format):
    """The placer 'contiguous', which was advised for every plan that turns back, cannot tell tied weights apart."""
    graph = chain(NAMES, colocation=[0, -1, -1, -1, -1, -1, 0], colocation_names=("embed",))
    with pytest.raises(
        bl.InvalidInput, match=r"'head' turns back .*'head' must share a device with 'embed', as tied weights do: untie"
    ):
        bl.write_plan(graph, bl.Placement(device=[0, 0, 0, 1, 1, 1, 0]), format)
    assert bl.write_plan(graph, bl.Placement(device=[0, 0, 0, 1, 1, 1, 0]), "megatron").value == "Et*2|t*2L"


@pytest.mark.parametrize("format", ["deepspeed", "pipelining", "megatron", "vllm", "llama_cpp"])
def test_updates_are_no_layers(format):
    """Updates of an optimizer counted as modules behind the last layer, and made a stage go back to its device."""
    names = [*NAMES, "embed/update", "layers.0/update"]
    types = ["op"] * len(NAMES) + ["Update"] * 2
    plan = bl.write_plan(chain(names, types), bl.Placement(device=[*TWO, 0, 0]), format)
    assert plan.value == write(TWO, format).value and not any("update" in sentence for sentence in plan.unsupported)


@pytest.mark.parametrize("format", ["pipelining", "deepspeed"])
def test_parts_of_an_output_are_no_modules(format):
    """What only takes an output apart was a split point, and a layer of DeepSpeed's."""
    names = [*NAMES, "pad", "pad/parts", "pad/parts'"]
    graph = chain(names, [*["op"] * 7, "pad", "view", "view"])
    plan = bl.write_plan(graph, bl.Placement(device=[0] * 7 + [0, 1, 1]), format)
    assert plan.value in ({}, {"num_stages": 1, "parts": [0, 7], "layers": NAMES})


def test_rounds_within_layers_are_no_stages():
    """Ops that alternate between two devices were written as dozens of stages on two ranks."""
    names = [f"layers.{k}.{module}" for k in range(4) for module in ("attention", "mlp")]
    with pytest.raises(
        bl.InvalidInput, match=r"goes through its 2 devices 4 times and changes device within layers \(at"
    ):
        write([0, 1] * 4, "pipelining", names)
    assert len(write([0, 0, 1, 1] * 2, "pipelining", names).value) == 3


def test_bug_the_tied_head_is_named_where_a_layer_turns_back():
    """The embedding is on the last device because of the head; a layer after it was blamed, and 'contiguous' advised."""
    graph = chain(NAMES, colocation=[0, -1, -1, -1, -1, -1, 0], colocation_names=("embed",))
    with pytest.raises(
        bl.InvalidInput, match=r"'layers.2' turns back to device 1.*\('head' must share a device with 'embed'"
    ):
        bl.write_plan(graph, bl.Placement(device=[1, 0, 0, 1, 1, 1, 1]), "deepspeed")


def test_a_layer_over_two_devices_goes_where_most_of_its_bytes_are():
    names = ["layers.0.a", "layers.0.b", "layers.1.a", "layers.1.b"]
    graph = chain(names, persistent_bytes=[10, 30, 5, 5])
    plan = bl.write_plan(graph, bl.Placement(device=[0, 0, 0, 1]), "vllm")
    assert plan.value == "2"  # layers.1: 5 bytes and 1 us on either, so the lower index
    assert plan.unsupported == ("1 of 4 ops, 25% of the time, run elsewhere: 'layers.1.b' on 0 instead of 1",)
    assert bl.write_plan(graph, bl.Placement(device=[1, 0, 1, 1]), "vllm").value == "1,1"  # 30 bytes against 10


def test_llama_cpp_has_one_cpu():
    """Layers on two CPUs were written as if one of them were the other."""
    plan = write(TWO, "llama_cpp", cluster=bl.Cluster.uniform(2, kind="cpu"))
    assert "cpu:0, cpu:1 are all 'CPU'" in plan.unsupported


def test_ends_that_vllm_keeps_with_the_first_and_last_stage():
    plan = write([2, 0, 0, 1, 1, 1, 2], "vllm")
    assert plan.value == "2,2"
    assert "'embed' on 0 instead of 2, 'head' on 1 instead of 2" in plan.unsupported[0]


def test_stages_on_devices_in_another_order():
    cluster = bl.Cluster.uniform(2)
    plan = write([1, 1, 1, 0, 0, 0, 0], "vllm", cluster=cluster)
    assert plan.unsupported == (
        "the format numbers stages, not devices: stage 0 is device gpu:1, stage 1 is device gpu:0",
    )


def test_layers_are_counted_by_number_and_the_stack_can_be_named():
    names = ["enc.0", "enc.1", "enc.2", "dec.0", "dec.1"]
    plan = write([0, 0, 1, 1, 1], "vllm", names)
    assert plan.value == "2,1"
    assert plan.unsupported[0] == "one stack of layers is written, 'enc'; not 'dec'"
    assert write([0, 0, 1, 1, 2], "vllm", names, layers="dec").value == "1,1"
    with pytest.raises(bl.InvalidInput, match=r"layers is 'body'; the graph has numbered layers under 'dec', 'enc'"):
        write([0] * 5, "vllm", names, layers="body")
    ten = [f"layers.{i}" for i in range(11)]
    assert write([0] * 10 + [1], "vllm", ten).value == "10,1"  # layer 10 comes after 9, not after 1


def test_backward_ops_go_with_their_forward_ops():
    names = ["layers.0", "layers.1", "layers.1/backward", "layers.0/backward"]
    graph = chain(names, forward_of=[-1, -1, 1, 0])
    assert bl.write_plan(graph, bl.Placement(device=[0, 1, 1, 0]), "vllm").unsupported == ()
    sentences = bl.write_plan(graph, bl.Placement(device=[0, 1, 1, 1]), "vllm").unsupported
    assert sentences == ("1 of 4 ops, 25% of the time, run elsewhere: 'layers.0/backward' on 0 instead of 1",)


# -- llama.cpp -----------------------------------------------------------------------------------------------


def test_llama_cpp_counts_the_output_as_a_layer():
    plan = write(TWO, "llama_cpp")
    assert plan.text == "-ngl 999 -sm layer -ts 2,3\n"  # 2 layers; 2 layers and the output
    assert plan.unsupported == ("llama.cpp keeps input embeddings on the CPU, wherever they were planned",)


def test_llama_cpp_overrides_what_a_split_cannot_say():
    cluster = bl.Cluster(
        (bl.Device("cpu:0", "cpu", 1 << 34), *(bl.Device(f"gpu:{i}", "gpu", 1 << 34) for i in range(2))),
        bl.Link(1, 0.001),
    )
    plan = write([0, 0, 1, 2, 1, 1, 1], "llama_cpp", cluster=cluster)  # layers on CPU, gpu 0, gpu 1, gpu 0
    assert plan.value == {"tensor_split": [5, 0], "override_tensor": [r"^blk\.(0)\.=CPU", r"^blk\.(2)\.=CUDA1"]}
    assert plan.text == '-ngl 999 -sm layer -ts 5,0 -ot "^blk\\.(0)\\.=CPU" -ot "^blk\\.(2)\\.=CUDA1"\n'
    assert any("-ot moves weights only" in sentence for sentence in plan.unsupported)
    assert not any("run elsewhere" in sentence for sentence in plan.unsupported)
    cpu = write([0] * 7, "llama_cpp", cluster=bl.Cluster.uniform(1, kind="cpu"))
    assert cpu.text == "-ngl 0\n"


def loaded(plan, layers, gpus):
    """Where llama.cpp puts each layer and the output: single precision, the first share above the layer's fraction."""
    shares = np.cumsum(np.asarray(plan.value["tensor_split"], np.float32))
    shares /= shares[-1]
    loaded_tensors = []
    for i in range(layers + 1):
        split = int(np.searchsorted(shares, np.float32(i) / np.float32(layers + 1), side="right"))
        name = f"blk.{i}.attn_output.weight" if i < layers else "output.weight"
        hits = (p.rpartition("=") for p in plan.value["override_tensor"])
        buffer = next((device for pattern, _, device in hits if re.search(pattern, name)), f"CUDA{split}")
        loaded_tensors.append(int(buffer.removeprefix("CUDA")))
    return loaded_tensors


@pytest.mark.parametrize("device", list(itertools.product(range(3), repeat=4)))
def test_llama_cpp_puts_every_layer_where_it_was_planned(device):
    names = ["layers.0", "layers.1", "layers.2", "head"]
    plan = write(device, "llama_cpp", names, cluster=bl.Cluster.uniform(3))
    assert loaded(plan, 3, 3) == list(device)
    rising = (base for base in itertools.product(range(3), repeat=4) if list(base) == sorted(base))
    fewest = min(sum(a != b for a, b in zip(base, device, strict=True)) for base in rising)
    overridden = sum(len(re.findall(r"\d", p.partition("=")[0])) or 1 for p in plan.value["override_tensor"])
    assert overridden == fewest


MIXTURE = ["self_attn", "mlp.gate", "mlp.experts"]
TENSORS = {
    "self_attn": ("attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm"),
    "mlp.gate": ("ffn_gate_inp", "exp_probs_b"),
    "mlp.experts": ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
    "mlp": ("ffn_gate", "ffn_up", "ffn_down"),
    "mlp.gate_proj": ("ffn_gate",),
    "mlp.up_proj": ("ffn_up",),
    "mlp.down_proj": ("ffn_down",),
    "self_attn.q_proj": ("attn_q",),
    "self_attn.k_proj": ("attn_k",),
    "self_attn.v_proj": ("attn_v",),
    "self_attn.o_proj": ("attn_output",),
    "self_attn.q_norm": ("attn_q_norm",),
    "input_layernorm": ("attn_norm",),
    "post_attention_layernorm": ("ffn_norm", "post_attention_norm"),
    "mlp.experts.0.w1": ("ffn_gate_exps",),
    "mlp.experts.0.w2": ("ffn_down_exps",),
    "mlp.experts.0.w3": ("ffn_up_exps",),
    "mlp.shared_expert.gate_proj": ("ffn_gate_shexp",),
    "attn.c_attn": ("attn_qkv",),
    "attn.c_proj": ("attn_output",),
    "mlp.c_fc": ("ffn_up",),
    "mlp.c_proj": ("ffn_down",),
    "ln_1": ("attn_norm",),
    "ln_2": ("ffn_norm",),
}
"""Modules of a layer, and what llama.cpp calls their tensors."""


def of_layers(modules, layers, device):
    """A graph of an embedding, layers of those modules, norm and head; `device(layer, module)`, the rest on device 0."""
    inner = [
        (f"model.layers.{k}.{m}", 9000 if "experts" in m else 1000, device(k, m))
        for k in range(layers)
        for m in modules
    ]
    rows = [("model.embed_tokens", 1000, 0), *inner, ("model.norm", 1000, 0), ("lm_head", 1000, 0)]
    names, sizes, devices = zip(*rows, strict=True)
    return chain(names, persistent_bytes=sizes), bl.Placement(device=devices)


def one_gpu_and_host(gpus=1):
    devices = (*(bl.Device(f"gpu:{i}", "gpu", 1 << 20) for i in range(gpus)), bl.Device("cpu:0", "cpu", 1 << 20))
    return bl.Cluster(devices, bl.Link(0.0, 0.0))


def weights_of(plan, modules, layers, gpus):
    """Module of each layer -> where llama.cpp has its tensors, by its own rules; all tensors of a module must agree."""
    shares = np.cumsum(plan.value["tensor_split"]) / max(sum(plan.value["tensor_split"]), 1)
    patterns = [p.rpartition("=") for p in plan.value["override_tensor"]]
    device_of_tensor = {}
    for k, module in itertools.product(range(layers), modules):
        names = [f"blk.{k}.{tensor}.{end}" for tensor in TENSORS[module] for end in ("weight", "bias")]
        split = int(np.searchsorted(shares, k / (layers + 1), side="right"))
        buffers = {next((b for p, _, b in patterns if re.search(p, name)), f"CUDA{split}") for name in names}
        assert len(buffers) == 1, (module, buffers)
        buffer = buffers.pop()
        device_of_tensor[k, module] = gpus if buffer == "CPU" else int(buffer.removeprefix("CUDA"))
    return device_of_tensor


@pytest.mark.parametrize(
    ("modules", "on_host", "on_cpu", "on_gpu"),
    [
        ([], "post_attention_layernorm", ["ffn_norm", "post_attention_norm"], ["attn_norm"]),  # Llama, OLMo 2
        (["pre_feedforward_layernorm"], "post_attention_layernorm", ["post_attention_norm"], ["ffn_norm"]),  # Gemma 2
        (["post_self_attn_layernorm"], "post_attention_layernorm", ["ffn_norm"], ["post_attention_norm"]),  # GLM-4
        (["post_self_attn_layernorm"], "post_self_attn_layernorm", ["post_attention_norm"], ["ffn_norm"]),
        (["post_mlp_layernorm"], "post_mlp_layernorm", ["post_ffw_norm"], ["ffn_norm"]),
        (["mixer.in_proj", "mixer.out_proj"], "mixer.in_proj", ["ssm_in"], ["ssm_out", "ssm_x"]),  # Mamba
        (["mamba.dt_proj", "mamba.x_proj"], "mamba.dt_proj", ["ssm_dt"], ["ssm_x", "ssm_dt_norm"]),  # Jamba
        (["conv.conv", "conv.in_proj"], "conv.in_proj", ["shortconv.in_proj"], ["shortconv.conv"]),  # LFM 2
        (["norm_1", "norm_2"], "norm_2", ["ffn_norm"], ["attn_norm"]),  # MPT
        (["ln_mlp"], "ln_attn", ["attn_norm_2"], ["attn_norm", "ffn_norm"]),  # Falcon 40B
        (["self_attn.q_proj"], "self_attn.gate_proj", ["attn_gate"], ["ffn_gate", "attn_q"]),  # AFMoE
        (["pre_mlp_layernorm"], "pre_mlp_layernorm", ["ffn_norm"], ["attn_norm"]),  # AFMoE
        (
            ["attention_layernorm", "feedforward_layernorm"],
            "attention_layernorm",
            ["attn_norm"],
            ["ffn_norm"],
        ),  # Apertus
        (["self_attn.query_layernorm"], "self_attn.key_layernorm", ["attn_k_norm"], ["attn_q_norm"]),  # Hunyuan
        (["mlp.experts"], "mlp.gate.wg", ["ffn_gate_inp"], ["ffn_gate_exps"]),  # Hunyuan
        (["mlp.experts"], "mlp.gate", ["ffn_gate_inp", "exp_probs_b"], ["ffn_gate_exps", "ffn_gate_shexp"]),  # DeepSeek
        (["mlp.experts"], "mlp.router", ["ffn_gate_inp", "exp_probs_b"], ["ffn_gate_exps"]),  # AFMoE
        (["mamba.in_proj"], "mamba.dt_layernorm", ["ssm_dt_norm"], ["ssm_in", "ssm_dt"]),  # Jamba
        (["linear_attn.in_proj_qkvz"], "linear_attn.in_proj_ba", ["ssm_ba"], ["ssm_in", "ssm_out"]),  # Qwen 3 Next
        (["linear_attn.out_proj"], "linear_attn", [], ["ssm_out"]),  # weights that its own code reads have no one name
    ],
)
def test_tensors_have_the_names_of_gguf(modules, on_host, on_cpu, on_gpu):
    """Names as in `gguf.tensor_mapping.TensorNameMap` 0.19 for the architectures beside."""
    layer = list(dict.fromkeys(["self_attn", *modules, "mlp", on_host]))
    graph, placement = of_layers(layer, 2, lambda k, m: int(m == on_host))
    plan = bl.write_plan(graph, placement, "llama_cpp", cluster=one_gpu_and_host())
    patterns = [p.rpartition("=")[0] for p in plan.value["override_tensor"] if p.endswith("=CPU")]
    names_on_cpu = [name for name in (*on_cpu, *on_gpu) if any(re.search(p, f"blk.1.{name}.weight") for p in patterns)]
    assert names_on_cpu == on_cpu


def test_bug_experts_on_the_host_are_their_tensors_alone():
    """The plan that most use llama.cpp for was written as whole layers on the CPU, attention and its caches included."""
    graph, placement = of_layers(MIXTURE, 4, lambda k, m: int("experts" in m))
    plan = bl.write_plan(graph, placement, "llama_cpp", cluster=one_gpu_and_host())
    assert plan.text == '-ngl 999 -sm layer -ts 5 -ot "^blk\\.(0|1|2|3)\\.ffn_.*_exps\\.=CPU"\n'
    assert [s.split(",")[0] for s in plan.unsupported] == ["llama.cpp keeps input embeddings on the CPU", "1 of 15 ops"]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "modules",
    [
        MIXTURE,
        [
            "input_layernorm",
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.q_norm",
            "self_attn.o_proj",
            "post_attention_layernorm",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
        ],
        [
            "input_layernorm",
            "self_attn",
            "mlp.gate",
            "mlp.experts.0.w1",
            "mlp.experts.0.w2",
            "mlp.experts.0.w3",
            "mlp.shared_expert.gate_proj",
        ],
        ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"],
        ["self_attn", "mlp"],
    ],
)
def test_llama_cpp_puts_every_module_where_it_was_planned(modules, seed):
    """Experts or feed-forward parts of some layers on the host, attention on one GPU, parts by chance."""
    chance = np.random.default_rng(seed)
    if seed < 4:

        def device(k, m):
            return 2 if ("experts" in m or m.startswith("mlp")) and k >= seed else 0
    elif seed < 6:

        def device(k, m):
            return 0 if "attn" in m else 1
    else:

        def device(k, m):
            return int(chance.integers(0, 3))

    graph, placement = of_layers(modules, 4, device)
    plan = bl.write_plan(graph, placement, "llama_cpp", cluster=one_gpu_and_host(2))
    planned = dict(zip(graph.names, placement.device.tolist(), strict=True))
    assert weights_of(plan, modules, 4, 2) == {
        (k, m): planned[f"model.layers.{k}.{m}"] for k in range(4) for m in modules
    }
    sentences = [s for s in plan.unsupported if "run elsewhere" in s]
    assert len(sentences) <= 1 and all("embed_tokens" in s and "1 of" in s for s in sentences)
    assert not any("," in pattern for pattern in plan.value["override_tensor"])  # a comma begins another pattern


def test_llama_cpp_says_which_tensors_it_has_no_name_for():
    graph, placement = of_layers(["self_attn", "gizmo"], 2, lambda k, m: int(m == "gizmo"))
    plan = bl.write_plan(graph, placement, "llama_cpp", cluster=one_gpu_and_host())
    assert plan.value["override_tensor"] == []
    assert any("'model.layers.0.gizmo' is not known" in s for s in plan.unsupported)
    assert any("'model.layers.0.gizmo' on gpu:0 instead of cpu:0" in s for s in plan.unsupported)


def test_llama_cpp_shares_are_exact_for_many_layers():
    for layers, first in itertools.product((7, 33, 80, 126), (1, 3, 5)):
        device = [0] * first + [1] * (layers - first) + [1]
        names = [*(f"layers.{i}" for i in range(layers)), "head"]
        plan = write(device, "llama_cpp", names)
        assert plan.value["override_tensor"] == []
        assert loaded(plan, layers, 2) == device


# -- Graphviz ------------------------------------------------------------------------------------------------


def test_dot_has_every_op_edge_and_device():
    graph = bl.OpGraph.from_edges([1, 2.5, 3], [(0, 1, 16), (0, 2, 16)], names=['a"b', "c\\d", "e"])
    plan = bl.write_plan(graph, bl.Placement(device=[0, 1, 0]), "dot", cluster=bl.Cluster.uniform(2))
    assert plan.text.splitlines() == [
        'digraph "graph" {',
        "  node [shape=box];",
        "  subgraph cluster_0 {",
        '    label="device gpu:0";',
        '    n0 [label="a\\"b\\n1 us"];',
        '    n2 [label="e\\n3 us"];',
        "  }",
        "  subgraph cluster_1 {",
        '    label="device gpu:1";',
        '    n1 [label="c\\\\d\\n2.5 us"];',
        "  }",
        '  n0 -> n1 [label="16 B", color=red];',
        '  n0 -> n2 [label="16 B"];',
        "}",
    ]
    assert plan.unsupported == ()


# -- what no format takes, and bad input ----------------------------------------------------------------------


def test_order_and_replicas_are_lost():
    placement = bl.Placement(device=[0] * 7, order=range(7), replicas=[(0, 1)])
    sentences = bl.write_plan(chain(NAMES), placement, "vllm").unsupported
    assert [sentence.split(";")[0] for sentence in sentences] == [
        "vllm has no order of ops within a device",
        "vllm has no stages on several devices",
    ]


def test_a_placement_of_groups_is_read_for_the_ops():
    graph = chain(NAMES)
    groups = bl.Placement(device=[0, 1], group_of=TWO, source_key=graph.key)
    assert bl.write_plan(graph, groups, "vllm").value == "2,2"


def test_an_unknown_format_suggests_one():
    with pytest.raises(bl.UnknownNameError, match=r"unknown format 'vlm'; did you mean 'vllm'\?"):
        write(TWO, "vlm")


@pytest.mark.parametrize("format", ["vllm", "megatron", "deepspeed", "llama_cpp"])
def test_a_graph_without_layers_is_refused(format):
    with pytest.raises(bl.InvalidInput, match=r"cuts between numbered layers, and no op of the graph is named like"):
        write([0, 1], format, ["embed", "head"])


@pytest.mark.parametrize("format", FORMATS)
def test_other_bad_input_is_rejected(format):
    with pytest.raises(bl.InvalidInput, match=r"another graph, of 2 ops"):
        write([0, 1], format)
    with pytest.raises(bl.InvalidInput, match=r"device 1; the cluster has devices 0..0"):
        write(TWO, format, cluster=bl.Cluster.uniform(1))
    with pytest.raises(bl.InvalidInput, match=r"cluster is of type int; it must be a Cluster"):
        write(TWO, format, cluster=2)
    with pytest.raises(bl.InvalidInput, match=r"layers is 3"):
        write(TWO, format, layers=3)
    with pytest.raises(bl.InvalidInput, match=r"placement"):
        bl.write_plan(chain(NAMES), TWO, format)


def test_a_device_map_needs_the_model():
    with pytest.raises(bl.InvalidInput, match=r"model is missing; a device_map needs the PyTorch model"):
        write(TWO, "device_map")
