"""Plans of a PyTorch model: accelerate and torch's own pipelining take what is written for them."""

import copy
import random
from unittest import mock

import numpy as np
import pytest

import baechi_lab as bl

torch = pytest.importorskip("torch")


class Block(torch.nn.Module):
    """A residual block."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(4, 8)
        self.down = torch.nn.Linear(8, 4)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Language(torch.nn.Module):
    """Embedding, three blocks, and a head that shares the embedding's weight."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 4)
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))
        self.register_buffer("steps", torch.zeros(1))
        self.norm = torch.nn.LayerNorm(4)
        self.head = torch.nn.Linear(4, 10)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


TOKENS = torch.tensor([[1, 2, 3]])
SPLIT = {"embed": 0, "layers.0": 0, "layers.1": 1, "layers.2": 1, "norm": 1, "head": 0}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Language().eval()


@pytest.fixture(scope="module")
def graph(model):
    return bl.torch.profile(model, (TOKENS,), mode="inference", warmup=0, runs=1)


def placement_by_name(graph, device_of):
    """Every op on the device of the first name that it begins with."""
    return bl.Placement(device=[next(d for m, d in device_of.items() if name.startswith(m)) for name in graph.names])


def test_a_module_that_is_whole_is_one_entry(model, graph):
    plan = bl.write_plan(graph, placement_by_name(graph, SPLIT), model=model)
    assert plan.value == {**SPLIT, "steps": 0}
    assert plan.unsupported == (  # the buffer is the root's own, and the root is not whole
        "accelerate places modules; 'steps' are parameters or buffers of modules over several devices",
    )
    plan_of_one = bl.write_plan(graph, bl.Placement(device=[1] * graph.n), model=model)
    assert plan_of_one.value == {"": 1}


def test_tied_weights_stay_whole(model, graph):
    plan = bl.write_plan(graph, placement_by_name(graph, {**SPLIT, "head": 1}), model=model)
    assert plan.value["head"] == plan.value["embed"] == 0
    assert plan.unsupported[0] == "'embed.weight' and 'head.weight' are one tensor, kept whole on 0"
    assert any("'head' on 0 instead of 1" in sentence for sentence in plan.unsupported)


def as_accelerate_runs(model, device_map, inputs):
    """Run the model under accelerate's own hooks, with fake tensors on fake devices; tensors of two devices raise."""
    accelerate = pytest.importorskip("accelerate")
    from torch._subclasses import FakeTensorMode

    model, mode = copy.deepcopy(model), FakeTensorMode()
    fakes = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for key, tensor in tensors.items():
                if tensor is not None:
                    tensors[key] = fakes.setdefault(id(tensor), (tensor, mode.from_tensor(tensor.data)))[1]
    inputs = {key: mode.from_tensor(tensor) for key, tensor in inputs.items()}

    def move(module, name, device, **_):
        *path, last = name.split(".")
        module = module.get_submodule(".".join(path))
        for tensors in (module._parameters, module._buffers):
            if tensors.get(last) is not None:
                tensors[last] = tensors[last].to(device)

    # Of the kinds of devices without hardware, "lazy" is one that PyTorch lets be faked everywhere.
    named = {name: device if device == "cpu" else f"lazy:{device}" for name, device in device_map.items()}
    main = min((device for device in named.values() if device != "cpu"), default="cpu")
    retied = mock.patch("accelerate.big_modeling.retie_parameters", lambda *_: None)  # it takes parameters alone
    with mode, retied, mock.patch("accelerate.hooks.set_module_tensor_to_device", move):
        accelerate.dispatch_model(model, named, main_device=main, force_hooks=True)
        return model(**inputs)


def test_a_split_block_is_kept_whole(model, graph):
    """Its residual addition would meet tensors of two devices."""
    device_of = {"layers.1.down": 1, "layers.1.up": 0, **SPLIT, "layers.2": 1}
    plan = bl.write_plan(graph, placement_by_name(graph, {**device_of, "layers.1": 0}), model=model)
    assert plan.value == {**SPLIT, "layers.1": 0, "steps": 0}  # up has 8 * 4 + 8 parameters, down 4 * 8 + 4
    assert plan.unsupported[0] == (
        "'layers.1' call functions between their modules and are kept whole, each on the device that has most of it"
    )
    assert "'layers.1.down' on 0 instead of 1" in plan.unsupported[-1]
    as_accelerate_runs(model, plan.value, {"tokens": TOKENS})
    separated = {name: d for name, d in plan.value.items() if name != "layers.1"} | {
        "layers.1.up": 0,
        "layers.1.down": 1,
    }
    with pytest.raises(RuntimeError, match="two devices"):
        as_accelerate_runs(model, separated, {"tokens": TOKENS})


def test_cpus_and_gpus_are_named_as_accelerate_does(model, graph):
    big = 1 << 34
    cluster = bl.Cluster((bl.Device("host", "cpu", big), bl.Device("card", "a100", big)), bl.Link(1, 0.001))
    plan = bl.write_plan(graph, placement_by_name(graph, SPLIT), model=model, cluster=cluster)
    assert plan.value["embed"] == "cpu" and plan.value["layers.1"] == 0
    assert any("runs them on a GPU" in sentence for sentence in plan.unsupported)
    two = bl.Cluster.uniform(2, kind="cpu")
    assert (
        "cpu:0, cpu:1 are all 'cpu'"
        in bl.write_plan(graph, placement_by_name(graph, SPLIT), model=model, cluster=two).unsupported
    )


@pytest.mark.filterwarnings("ignore:The following device_map keys")  # the buffer
def test_accelerate_takes_the_map_of_any_placement(model, graph):
    utils = pytest.importorskip("accelerate.utils")
    chance = random.Random(0)
    modules = dict(model.named_modules())
    for _ in range(50):
        plan = bl.write_plan(graph, bl.Placement(device=[chance.randrange(3) for _ in graph.names]), model=model)
        utils.check_device_map(model, plan.value)  # every parameter and buffer is covered
        assert {k for k in plan.value if k not in modules} <= {"steps"}
        home = [
            next(d for k, d in plan.value.items() if name == k or name.startswith(f"{k}.") or not k)
            for name in ("embed.weight", "head.weight")
        ]
        assert home[0] == home[1]


@pytest.mark.filterwarnings("ignore:The following device_map keys")
def test_accelerate_runs_the_map(graph, tmp_path):
    """With no GPU here, the second device is a folder: its weights come from the disk at each call."""
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(0)
    model = Language().eval()
    expected = model(TOKENS)
    plan = bl.write_plan(graph, placement_by_name(graph, SPLIT), model=model)
    device_of = {name: "disk" if device else "cpu" for name, device in plan.value.items() if name != "steps"}
    spread = accelerate.dispatch_model(model, {**device_of, "steps": "cpu"}, offload_dir=tmp_path)
    assert spread.layers[1].up.weight.device.type == "meta" and spread.embed.weight.device.type == "cpu"
    assert torch.equal(spread(TOKENS), expected)


def test_torch_splits_where_the_plan_says(graph):
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    plan = bl.write_plan(graph, placement_by_name(graph, {**SPLIT, "head": 1}), "pipelining")
    assert plan.value == {"layers.1": "BEGINNING"}
    points = {name: getattr(pipelining.SplitPoint, point) for name, point in plan.value.items()}
    pipe = pipelining.pipeline(Language(), (TOKENS,), split_spec=points)
    assert pipe.num_stages == 2
    first = {name for name, _ in pipe.get_stage_module(0).named_parameters()}
    assert any("layers.0" in name for name in first) and not any("layers.1" in name for name in first)


def test_bug_torch_splits_before_the_first_of_a_list(graph):
    """The split was said to be before the `ModuleList`, which is never called: PyTorch made one stage, and said nothing."""
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    device_of = {"embed": 0, "layers.0": 1, "layers.1": 1, "layers.2": 1, "norm": 2, "head": 2}
    plan = bl.write_plan(graph, placement_by_name(graph, device_of), "pipelining")
    points = {name: getattr(pipelining.SplitPoint, point) for name, point in plan.value.items()}
    assert list(points) == ["layers.0", "norm"]
    assert pipelining.pipeline(Language(), (TOKENS,), split_spec=points).num_stages == 3


def test_the_model_of_another_graph_is_refused(graph):
    with pytest.raises(bl.InvalidInput, match=r"no module that is an op of the graph"):
        bl.write_plan(graph, placement_by_name(graph, SPLIT), model=torch.nn.Sequential(torch.nn.Linear(1, 1)))


def test_a_training_graph_and_a_model_that_runs_as_one(model):
    training = bl.torch.profile(model, (TOKENS,), mode="training", warmup=0, runs=1)
    plan = bl.write_plan(training, placement_by_name(training, SPLIT), model=model)
    assert plan.value == {**SPLIT, "steps": 0}
    assert not any("run elsewhere" in sentence for sentence in plan.unsupported)
    blocks = bl.torch.profile(model, (TOKENS,), mode="inference", atomic=[Block], warmup=0, runs=1)
    assert bl.write_plan(blocks, placement_by_name(blocks, SPLIT), model=model).value == {**SPLIT, "steps": 0}
    assert bl.write_plan(blocks, placement_by_name(blocks, {**SPLIT, "head": 1}), "vllm").value == "1,2"


def test_modules_that_never_run_are_covered_and_named():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    graph = bl.torch.profile(model, (torch.ones(1, 2),), mode="inference", warmup=0, runs=1)
    model.spare = torch.nn.Linear(2, 2, bias=False)
    plan = bl.write_plan(graph, bl.Placement(device=[1, 0]), model=model)
    assert plan.value == {"0": 1, "1": 0, "spare": 1}
    assert plan.unsupported == ("no op of the graph uses 'spare.weight'; they go with the first op",)


def test_a_model_that_is_one_op():
    model = torch.nn.Linear(2, 2)
    graph = bl.torch.profile(model, (torch.ones(1, 2),), mode="inference", warmup=0, runs=1)
    plan = bl.write_plan(graph, bl.Placement(device=[1]), model=model)
    assert plan.value == {"": 1} and plan.unsupported == ()


def test_weights_tied_in_a_chain_follow_the_first():
    """a-b share a weight and b-c a bias: all three go where a is, in one plan."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3)))
    model[1].weight, model[2].bias = model[0].weight, model[1].bias
    graph = bl.torch.profile(model, (torch.ones(1, 2),), mode="inference", warmup=0, runs=1)
    plan = bl.write_plan(graph, bl.Placement(device=[2, 1, 0]), model=model)
    assert plan.value == {"": 2}
    assert [sentence.split(" are ")[0] for sentence in plan.unsupported[:2]] == [
        "'0.weight' and '1.weight'",
        "'1.bias' and '2.bias'",
    ]


class Functional(torch.nn.Module):
    """Parameters used by calls of plain functions, none by a module."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 2))
        self.body = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.body(torch.nn.functional.linear(x, self.weight))


class Learned(torch.nn.Module):
    """Positions that are a parameter of the model, a buffer that scales, blocks of a sequence, and weights that are tied."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(10, 4)
        self.positions = torch.nn.Parameter(torch.zeros(3, 4))
        self.register_buffer("scale", torch.ones(4))
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.head = torch.nn.Linear(4, 10)

    def forward(self, tokens):
        x = self.words(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x * self.scale)


class Joined(torch.nn.Module):
    """Two embeddings, whose sum no module computes; named blocks that are no list; two outputs that meet at the end."""

    def __init__(self):
        super().__init__()
        self.words, self.kinds = torch.nn.Embedding(10, 4), torch.nn.Embedding(10, 4)
        self.first, self.second = Residual(), Residual()

    def forward(self, tokens):
        x = self.first(self.words(tokens) + self.kinds(tokens))
        return torch.cat([x, self.second(x)], -1)


class Residual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))

    def forward(self, x):
        return x + self.net(x)


@pytest.mark.parametrize("kind", [Language, Learned, Joined])
def test_the_map_of_any_placement_runs_as_written(kind):
    chance = np.random.default_rng(0)
    model = kind().eval()
    graph = bl.torch.profile(model, (TOKENS,), mode="inference", warmup=0, runs=1)
    for _ in range(10):
        plan = bl.write_plan(graph, bl.Placement(device=chance.integers(0, 3, graph.n)), model=model)
        as_accelerate_runs(model, plan.value, {"tokens": TOKENS})


def test_modules_whose_outputs_meet_share_a_device():
    """Advice was to keep blocks whole, which embeddings of tokens and positions are not."""
    model = Joined().eval()
    graph = bl.torch.profile(model, (TOKENS,), mode="inference", warmup=0, runs=1)
    plan = bl.write_plan(
        graph,
        placement_by_name(graph, {"words": 0, "kinds": 1, "add": 1, "first": 1, "second": 1, "cat": 1}),
        model=model,
    )
    assert plan.value == {"words": 0, "kinds": 0, "first": 1, "second": 1}
    assert plan.unsupported[0] == (
        "accelerate moves what modules read, not what code between them reads (add); modules whose outputs meet there are kept "
        "on one device"
    )
    assert "'kinds' on 0 instead of 1" in plan.unsupported[-1] and not any(
        "atomic" in sentence for sentence in plan.unsupported
    )


class Pooled(torch.nn.Module):
    """Multiplies the last layer's outputs with a mask of the batch, in its own code."""

    def __init__(self, mask_code):
        super().__init__()
        self.words, self.head, self.mask_code = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 2), mask_code
        self.layers = torch.nn.ModuleList(Residual() for _ in range(3))

    def forward(self, tokens, mask):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.mask_code(x, mask))


@pytest.mark.parametrize(
    "mask_code",
    [
        lambda x, mask: (x * mask[..., None]).mean(1),
        lambda x, mask: (x + (1 - mask)[..., None]).sum(1) / mask.sum(1, keepdim=True),
        lambda x, mask: torch.where(mask[..., None] > 0, x, x.min()).amax(1),
    ],
)
def test_bug_outputs_that_meet_inputs_are_on_the_main_device(mask_code):
    """The mask stays on GPU 0, where accelerate has the inputs; the last layer was on GPU 1."""
    model, inputs = Pooled(mask_code).eval(), {"tokens": TOKENS, "mask": torch.ones(TOKENS.shape)}
    graph = bl.torch.profile(model, inputs, mode="inference", hardware="a100")
    placement = placement_by_name(graph, {"words": 0, "layers.0": 0, "layers.1": 0, "": 1})
    plan = bl.write_plan(graph, placement, model=model)
    assert plan.value == {"words": 0, "layers": 0, "head": 1}
    as_accelerate_runs(model, plan.value, inputs)


SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
SEQUENCES = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 99,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
STRANGERS = {
    "LlamaForCausalLM": {**SMALL, "num_key_value_heads": 2},
    "GPT2LMHeadModel": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": 99,
        "n_positions": 64,
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
    "OPTForCausalLM": {
        "hidden_size": 32,
        "ffn_dim": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 99,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 64,
    },
    "GPTNeoXForCausalLM": SMALL,
    "BertForMaskedLM": SMALL,
    "T5ForConditionalGeneration": {
        "d_model": 32,
        "d_ff": 64,
        "d_kv": 8,
        "num_layers": 1,
        "num_heads": 4,
        "vocab_size": 99,
        "decoder_start_token_id": 0,
    },
    "BartForConditionalGeneration": {**SEQUENCES, "max_position_embeddings": 64},
    "ViTForImageClassification": {
        **{k: v for k, v in SMALL.items() if k != "vocab_size"},
        "image_size": 32,
        "patch_size": 8,
    },
    "WhisperForConditionalGeneration": {
        **SEQUENCES,
        "num_mel_bins": 8,
        "max_source_positions": 30,
        "max_target_positions": 40,
    },
}
"""Architectures of transformers, small."""


def stranger(name, **changes):
    """A model of transformers and inputs for it."""
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**STRANGERS[name], **changes)).eval()
    model.config.use_cache = False
    ids = torch.randint(5, 99, (2, 12))
    if name.startswith("ViT"):
        return model, {"pixel_values": torch.randn(2, 3, 32, 32)}
    if name.startswith("Whisper"):
        return model, {"input_features": torch.randn(2, 8, 60), "decoder_input_ids": ids}
    return model, {"input_ids": ids, **({"decoder_input_ids": ids[:, :7]} if name.startswith(("T5", "Bart")) else {})}


@pytest.mark.parametrize(
    "name", [n if n[:4] in ("GPT2", "Bert", "Whis") else pytest.param(n, marks=pytest.mark.slow) for n in STRANGERS]
)
def test_maps_of_transformers_run_as_written(name):
    """Halves of the model, and devices by chance; masked language models gave no plan at all, for ever."""
    torch.manual_seed(0)
    model, inputs = stranger(name)
    graph = bl.torch.profile(model, inputs, mode="inference", hardware="a100")
    chance = np.random.default_rng(0)
    for device in (2 * graph.position // graph.n, chance.integers(0, 3, graph.n)):
        plan = bl.write_plan(graph, bl.Placement(device=device), model=model)
        assert len(plan.value) > 1 or (device > 1).any()
        as_accelerate_runs(model, plan.value, inputs)


@pytest.mark.parametrize(("name", "atomic"), [("LlamaForCausalLM", True), ("GPT2LMHeadModel", False)])
def test_stages_of_transformers_are_split_where_the_plan_says(name, atomic):
    """As documented: one run of layers per device, whole layers or not; torch splits there and computes the same."""
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    torch.manual_seed(0)
    model, inputs = stranger(name, tie_word_embeddings=False)
    atomic_classes = model._no_split_modules if atomic else ()
    graph = bl.torch.profile(model, inputs, mode="inference", hardware="h100", atomic=atomic_classes)
    slow_link = bl.Link(134.0, 0.0001754)  # so that the fewest tensors are sent
    cluster = bl.Cluster.uniform(2, kind="h100", memory_bytes="10GB", link=slow_link)
    plan = bl.write_plan(
        graph, bl.place(graph, cluster, "contiguous", objective="throughput"), "pipelining", model=model
    )
    points = dict.fromkeys(plan.value, pipelining.SplitPoint.BEGINNING)
    pipe = pipelining.pipeline(model, (), inputs, split_spec=points)
    assert len(plan.value) == 1 and pipe.num_stages == 2
    torch.testing.assert_close(pipe(**inputs)[0], model(**inputs).logits)


def test_bug_names_of_a_stage_plan_are_modules():
    """Labels are padded within the model; the part of what the padding made, 'pad/parts', was a split point.

    'lm_head/named' holds the logits for the training loop and stands for no call: it was a layer, and now may be anywhere.
    """
    model, inputs = stranger("LlamaForCausalLM", tie_word_embeddings=False)
    graph = bl.torch.profile(
        model, {**inputs, "labels": inputs["input_ids"]}, mode="training", hardware="h100", atomic=["LlamaDecoderLayer"]
    )
    assert {"pad/parts", "lm_head/named"} <= set(graph.names)
    after_first_layer = graph.position > graph.position[graph.names.index("model.layers.0")]
    device = after_first_layer[np.where(graph.forward_of < 0, np.arange(graph.n), graph.forward_of)].astype(int)
    device[graph.names.index("lm_head/named")] = 0
    for format in ("pipelining", "deepspeed"):
        plan = bl.write_plan(graph, bl.Placement(device=device), format, model=model)
        names = list(plan.value) if format == "pipelining" else plan.value["layers"]
        assert names and all(model.get_submodule(name) is not None for name in names)
        with pytest.raises(bl.InvalidInput, match="of the graph is no module of the model"):
            bl.write_plan(graph, bl.Placement(device=device), format, model=torch.nn.Linear(2, 2))


class Branches(torch.nn.Module):
    """A dict of blocks, which has no forward of its own."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.rest = torch.nn.ModuleDict({"a": Block(), "b": Block()})

    def forward(self, x):
        return self.rest["b"](self.rest["a"](self.first(x)))


def test_bug_a_split_is_before_a_module_that_is_called():
    """The split was before the dict, where torch makes no stage and says nothing."""
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    model, x = Branches(), torch.ones(1, 4)
    graph = bl.torch.profile(model, (x,), mode="inference", warmup=0, runs=1)
    plan = bl.write_plan(graph, placement_by_name(graph, {"first": 0, "rest": 1}), "pipelining", model=model)
    assert plan.value == {"rest.a": "BEGINNING"}
    points = dict.fromkeys(plan.value, pipelining.SplitPoint.BEGINNING)
    assert pipelining.pipeline(model, (x,), split_spec=points).num_stages == 2


def test_targets_of_a_loss_that_is_not_on_the_main_device_are_named():
    """BERT compares with labels where they are, which accelerate puts on the first GPU."""
    model, inputs = stranger("BertForMaskedLM")
    model.tie_weights = lambda *_, **__: None
    model.cls.predictions.decoder.weight = torch.nn.Parameter(torch.zeros(99, 32))
    inputs["labels"] = inputs["input_ids"]
    graph = bl.torch.profile(model, inputs, mode="inference", hardware="a100")
    plan = bl.write_plan(graph, bl.Placement(device=2 * graph.position // graph.n), model=model)
    assert any("inputs on 0 and 'cross_entropy' reads outputs on 1: give labels there" in s for s in plan.unsupported)


def test_parameters_that_calls_use_are_where_the_calls_are():
    model = Functional()
    graph = bl.torch.profile(model, (torch.ones(1, 2),), mode="inference", warmup=0, runs=1)
    plan = bl.write_plan(graph, placement_by_name(graph, {"linear": 1, "body": 0}), model=model)
    assert plan.value == {"weight": 1, "body": 0}
    assert bl.write_plan(graph, bl.Placement(device=[2] * graph.n), model=model).value == {"": 2}
