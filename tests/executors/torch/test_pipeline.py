"""Steps of several micro-batches: stages cut from a model, pipelines of processes, and the session for other placements."""

from __future__ import annotations

import itertools
import re
import socket
import sys
import threading
import warnings
from concurrent.futures import BrokenExecutor, Future
from functools import partial

import numpy as np
import pytest
from fewer import slow

torch = pytest.importorskip("torch")
from exported_script import run_torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_cases import ODD, SMALL  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.errors import ExecutionError, InvalidInput, UnknownNameError  # noqa: E402
from baechi_lab.executors.torch.pipelined import cut_step, run_pipeline, wait_for_reports  # noqa: E402
from baechi_lab.executors.torch.placed_model import place_model  # noqa: E402
from baechi_lab.executors.torch.reduction import reduction_of  # noqa: E402
from baechi_lab.profilers.torch import layers as layers_module  # noqa: E402
from baechi_lab.simulator.pipeline_stages import B, W, find_pipeline_stages  # noqa: E402
from baechi_lab.torch_runtime.tree import as_arguments, tensors  # noqa: E402
from baechi_lab.torch_steps.pipelines.cutting import cut  # noqa: E402
from baechi_lab.torch_steps.pipelines.recording import record  # noqa: E402
from baechi_lab.torch_steps.pipelines.worker import actions, rebuild_output, with_transfers  # noqa: E402
from baechi_lab.torch_steps.step import TorchStep  # noqa: E402
from baechi_lab.torch_steps.tracing import trace  # noqa: E402
from baechi_lab.workers import forked  # noqa: E402
from baechi_lab.workers.pool import Pool  # noqa: E402


class Skipping(nn.Module):
    """Residual blocks, a mask made between layers, a view that is sent on, and the first layer's output read by the last."""

    def __init__(self, width: int = 8, layers: int = 6, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(layers)
        )
        self.head = nn.Linear(width, 11)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        first = x = self.embed(tokens)
        mask = torch.ones(tokens.size(1), dtype=torch.bool, device=tokens.device).logical_not()[None, :, None]
        for layer in self.layers:
            x = (x + layer(x)).masked_fill(mask, 0.0).transpose(0, 1).transpose(0, 1)
        return self.head(x + first)


class Halving(nn.Module):
    """Two branches; a step that reads a value in Python where `reads`."""

    def __init__(self, reads: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.o = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.reads = reads

    def forward(self, x):
        y = self.a(x) + self.b(x)
        return self.o(y if not self.reads or float(y.detach().sum()) < 1e9 else y / 2)


def tokens_loss(outputs, labels):
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten())


def skipping(rows=8, loss=tokens_loss, tied=False, optimizer=None):
    generator = torch.Generator().manual_seed(0)
    tokens, labels = (torch.randint(11, (rows, 5), generator=generator) for _ in range(2))
    return TorchStep("skipping", partial(Skipping, layers=3, tied=tied), (tokens,), loss, (labels,), optimizer)


def padded(step):
    """The step with labels that do not count: none of the first micro-batch of four counts, and not all of the third."""
    step.targets[0][:2] = -100
    step.targets[0][4, 2:] = -100
    return step


def train_as_pipeline(processes, step, graph, placement, cluster, micro_batches, schedule, *, steps, warmup):
    """The run of a placed step, one process per CPU device, and the pipeline that it ran as."""
    placed_model = place_model(step, step.micro_batches(micro_batches), placement, graph, cluster)
    pipeline = cut_step(placed_model, schedule)
    run = run_pipeline(
        placed_model,
        pipeline,
        ("cpu",) * cluster.n,
        adding=reduction_of(step, placed_model.model, placed_model.model_trace.layers, placed_model.micro_steps),
        steps=steps,
        warmup=warmup,
        gradients=True,
        pool=processes,
    )
    return run, pipeline


def profiled(step, micro_batches=4):
    graph = bl.torch.profile(step.micro_batches(micro_batches)[0], warmup=0, runs=1)
    return graph.replace(duration_us=np.full(graph.n, 10.0))


def in_stages(graph, home):
    """Calls in equal runs of the code, run k on device home[k]; backward ops with their forward op."""
    forward = np.flatnonzero(graph.forward_of < 0)
    device = np.zeros(graph.n, dtype=int)
    device[forward] = np.asarray(home)[np.arange(len(forward)) * len(home) // len(forward)]
    is_backward = graph.forward_of >= 0
    device[is_backward] = device[graph.forward_of[is_backward]]
    return bl.Placement(device=device, graph_key=graph.key)


def undivided(step):
    model = step.model()
    loss = step.run(model)
    return float(loss.detach()), {n: p.grad.numpy() for n, p in model.named_parameters()}


def same_gradients(gradients, expected):
    """To float32 rounding: sums of four parts in another order."""
    assert gradients.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(gradients[name], values, rtol=1e-5, atol=2e-6, err_msg=name)


def cpus(n):
    return bl.Cluster.uniform(n, kind="cpu", memory_bytes="1GB", link=bl.Link(5.0, 0.0001))


# -- cutting -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", slow(sorted([*SMALL, *ODD]), "inception_v3"))
def test_stages_in_a_row_compute_what_the_model_computes(name):
    """Bit for bit, dropout included: the same calls in the same order."""
    if name in SMALL:
        step = bl.torch.models.build(name, **SMALL[name])
        model, inputs = step.model(), step.inputs
    else:
        model, inputs = ODD[name][0](), (ODD[name][1](),)
    traced = trace(model, inputs)
    program = record(model, inputs, traced)
    stage = monotone(traced, 3)
    stage_modules = cut(model, program, stage, int(stage.max()) + 1)
    torch.manual_seed(1)
    expected = model(*inputs)
    torch.manual_seed(1)
    values = ()
    for stage_module in stage_modules:
        values = stage_module.module(
            *values, **{name: inputs[int(name.removeprefix("input_"))] for name in stage_module.inputs}
        )
    output = rebuild_output(program.template, values)

    def flat(o):
        return o if isinstance(o, tuple) else (o,)

    assert all(torch.equal(a, b) for a, b in zip(flat(output), flat(expected), strict=True))


def monotone(traced, count):
    """A stage per call: thirds of the code, moved on until groups share one and nothing reads from a later one."""
    n = len(traced.calls)
    stage = np.arange(n) * count // n
    while True:
        before = stage.copy()
        for group in traced.groups:
            stage[list(group)] = stage[list(group)].max()
        for i in range(n):
            stage[i] = max([stage[i], *(stage[p] for p in traced.parents(i))])
        if (before == stage).all():
            return np.unique(stage, return_inverse=True)[1]


def test_a_tensor_that_skips_a_stage_is_handed_on():
    """The last stage of three reads the embedding of the first: the middle one receives it and sends it on."""
    model, tokens = Skipping(), torch.ones(2, 5, dtype=torch.int64)
    traced = trace(model, (tokens,))
    keys = [c.key for c in traced.calls]
    stage = [(i >= keys.index("layers.2.0")) + (i >= keys.index("layers.4.0")) for i in range(len(keys))]
    stage_modules = cut(model, record(model, (tokens,), traced), stage, 3)
    assert [len(module.sends) for module in stage_modules] == [2, 2, 1] and stage_modules[0].inputs == ("input_0",)
    assert stage_modules[1].sends[0] == ((2, 5, 8), "float32", True)


def test_a_stage_takes_its_inputs_from_the_batch_not_from_the_stage_before():
    """GNMT's decoder reads target tokens, which no stage sends."""
    step = bl.torch.models.build("gnmt", **SMALL["gnmt"])
    model = step.model()
    traced = trace(model, step.inputs)
    keys = [c.key for c in traced.calls]
    stage = (np.arange(len(keys)) >= keys.index("decoder.dropout")).astype(int)
    stage[[keys.index("target")]] = 1
    stage_modules = cut(model, record(model, step.inputs, traced), stage, 2)
    assert [stage_module.inputs for stage_module in stage_modules] == [("input_0",), ("input_1",)]
    assert len(stage_modules[0].sends) == 1


def test_bug_a_part_of_an_output_that_only_the_next_stage_reads_is_sent():
    """An LSTM returns a tuple; its first part is all that the next stage reads, and nothing in its own stage does."""
    model, x = Two(), torch.ones(1, 3, 2)
    stage_modules = cut(model, record(model, (x,), trace(model, x)), [0, 1], 2)
    (output,) = stage_modules[0].module(input_0=x)
    assert torch.equal(stage_modules[1].module(output)[0], model(x))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LSTM(2, 2, batch_first=True), nn.LSTM(2, 2, batch_first=True)

    def forward(self, x):
        x, _ = self.a(x)
        x, _ = self.b(x)
        return x


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(2, 2, batch_first=True), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0])


def test_bug_packed_sequences_in_a_pipeline_ended_with_a_system_error():
    model, inputs = Packed(), (torch.ones(3, 4, 2), torch.tensor([4, 2, 3]))
    with pytest.raises(
        InvalidInput, match="a call of 'layer' takes a PackedSequence that cannot be sent between stages"
    ):
        record(model, inputs, trace(model, inputs))


def test_what_a_program_cannot_repeat_is_refused():
    x = torch.ones(2, 4)
    model = Halving(reads=True)
    with pytest.raises(InvalidInput, match="reads a tensor's values in Python, which follow from the model's inputs"):
        record(model, (x,), trace(model, x))
    hooked = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    hooked[0].register_forward_hook(lambda *_: None)
    with pytest.raises(InvalidInput, match="the hooks of '0'"):
        record(hooked, (x,), trace(hooked, x))

    class Frozen(nn.Sequential):
        def forward(self, x):
            with torch.no_grad():
                x = self[0](x)
            return self[1](x)

    frozen = Frozen(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(InvalidInput, match="settings of its own"):
        record(frozen, (x,), trace(frozen, x))


class Positions(nn.Module):
    """Python reads positions that are made of sizes; `kind` adds a value that follows from something else."""

    def __init__(self, kind: str = "") -> None:
        super().__init__()
        self.a, self.b, self.kind = nn.Linear(4, 4), nn.Linear(4, 2), kind
        self.register_buffer("offsets", torch.arange(4))
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x):
        positions = torch.arange(x.shape[1]) + self.offsets.max().item()
        rows = torch.zeros_like(x[:, :1]).flatten().add_(1.0)
        if (positions.diff() == 1).all() and bool(rows.bool().all()) and self.offsets.sum().item() == 6:
            x = x * (positions / 4.0)
        if self.kind == "input" and x.sum() > 100:
            x = -x
        if self.kind == "written":
            rows[0] = x[0, 0]
            x = x * float(rows.max())
        if self.kind == "parameter":
            x = x * float(self.a.bias.detach().max())
        if self.kind == "random":
            x = x * torch.rand(1).item()
        if self.kind == "buffer":
            self.steps += 1
            x = x / float(self.steps)
        if self.kind == "later":
            x = x + float(self.steps)
            self.steps.add_(x.detach().mean())
        return self.b(self.a(x))


def in_a_row(model, inputs, batch, count=2):
    """The program of `inputs`, cut into stages and run on `others`."""
    traced = trace(model, inputs)
    program = record(model, inputs, traced)
    stage = monotone(traced, count)
    named_inputs = {f"input_{i}": t for i, t in enumerate(tensors(as_arguments(batch)))}
    values = ()
    for stage_module in cut(model, program, stage, int(stage.max()) + 1):
        values = stage_module.module(*values, **{name: named_inputs[name] for name in stage_module.inputs})
    return rebuild_output(program.template, values)


def test_values_made_of_constants_and_sizes_may_be_read():
    """A check whether positions from `arange` are packed sequences stopped every causal language model of transformers."""
    model, x = Positions(), torch.arange(8.0).view(2, 4)
    assert torch.equal(in_a_row(model, (x,), (x + 1,)), model(x + 1))


@pytest.mark.parametrize("kind", ["input", "written", "parameter", "random", "buffer"])
def test_values_that_vary_may_not_be_read(kind):
    model, x = Positions(kind), torch.ones(2, 4)
    with pytest.raises(InvalidInput, match="reads a tensor's values in Python, which follow from"):
        record(model, (x,), trace(model, (x,)))


def test_values_that_the_model_changes_later_may_not_be_read():
    model, x = Positions("later"), torch.ones(2, 4)
    with pytest.raises(InvalidInput, match="reads values that the model changes later"):
        record(model, (x,), trace(model, (x,)))


class Picking(nn.Module):
    """Takes the rows whose first value is positive; `reads` says whether Python reads how many there are."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.a, self.b, self.reads = nn.Linear(4, 4), nn.Linear(4, 4), reads

    def forward(self, x):
        selected_rows = self.a(x)[x[:, 0] > 0]
        rows = selected_rows.shape[0] if self.reads else 1
        selected_rows = self.b(selected_rows) * rows
        return torch.zeros_like(x).index_add(0, (x[:, 0] > 0).nonzero()[:, 0], selected_rows)


def test_bug_sizes_that_follow_from_values_stood_in_the_program_as_numbers():
    """The second micro-batch was multiplied with the number of rows of the first, or received in a buffer of its size."""
    x = torch.tensor([[1.0, 2, 3, 4], [-1, 2, 3, 4], [2, 2, 2, 2]])
    model = Picking(True)
    with pytest.raises(InvalidInput, match=r"a size that follows from values, of what '__getitem__.*' makes, is read"):
        record(model, (x,), trace(model, (x,)))
    model = Picking(False)
    traced = trace(model, (x,))
    program, keys = record(model, (x,), traced), [call.key for call in traced.calls]
    with pytest.raises(InvalidInput, match="has a size that follows from values, and a stage would send it"):
        cut(model, program, [int(k >= keys.index("b")) for k in range(len(keys))], 2)
    (stage_module,) = cut(model, program, [0] * len(keys), 1)
    assert torch.equal(stage_module.module(input_0=-x)[0], model(-x))


class Aside(nn.Module):
    """A layer that puts a tensor into an attribute instead of returning it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        self.__dict__["scale"] = x * self.weight
        return x + 1


class Fetching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.aside, self.out = Aside(), nn.Linear(4, 4)

    def forward(self, x):
        return self.out(self.aside(x)) * self.aside.scale


def test_bug_a_tensor_that_a_layer_has_put_aside_became_a_constant():
    """The second micro-batch was multiplied with what the first one had made, and nothing was said."""
    model, x = Fetching(), torch.ones(2, 4)
    with pytest.raises(
        InvalidInput, match=r"a tensor of shape \[2, 4\] was made within a layer, which did not return it"
    ):
        record(model, (x,), trace(model, (x,)))


class Padded(nn.Module):
    """Leaves out a mask that is all ones, unless it is exported, as attention masks of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, mask):
        y = self.a(x)
        if torch.compiler.is_exporting() or not mask.all():
            y = y * (mask.float() * 2 - 1)[..., None]
        return self.b(y * (mask.float() + 1)[..., None])


def test_a_shortcut_that_depends_on_values_is_left_out():
    """What is exported holds for any mask; both functions `float` would have one number where only one was called."""
    torch.manual_seed(0)
    model, x = Padded(), torch.randn(2, 3, 4)
    ones, half = torch.ones(2, 3), torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert torch.equal(in_a_row(model, (x, ones), (x, half)), model(x, half))
    assert not torch.compiler.is_exporting()


def test_named_outputs_are_read_as_those_of_transformers():
    output = rebuild_output({"is": "output", "of": [["loss", None], ["logits", {"slot": 0}]]}, ["a"])
    assert output.loss is None and output.logits == output[0] == output["logits"] == "a"
    assert output.to_tuple() == output[:1] == ("a",)
    with pytest.raises(
        AttributeError, match="the output of the pipeline has no 'past_key_values'; it has loss, logits"
    ):
        output.past_key_values  # noqa: B018


ROTARY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 99,
}
LANGUAGE_MODELS = {
    "Llama": {**ROTARY, "num_key_value_heads": 2},
    "Mistral": {**ROTARY, "num_key_value_heads": 2, "sliding_window": 6},
    "Mixtral": {**ROTARY, "num_key_value_heads": 2, "num_local_experts": 4},
    "GPTNeoX": ROTARY,
    "Phi": ROTARY,
    "Qwen2": {**ROTARY, "num_key_value_heads": 2},
    "Gemma": {**ROTARY, "num_key_value_heads": 2, "head_dim": 8},
    "OPT": {
        "hidden_size": 32,
        "ffn_dim": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 99,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 64,
    },
    "GPT2": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": 99,
        "n_positions": 64,
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
    "Bert": {**ROTARY, "is_decoder": False},
}
"""Causal language models (and BERT's masked one) of transformers, with small sizes."""


def language_model(name, **changes):
    transformers = pytest.importorskip("transformers")
    head = "ForMaskedLM" if name == "Bert" else "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    config = getattr(transformers, f"{name}Config")(**{**LANGUAGE_MODELS[name], **changes})
    return partial(getattr(transformers, f"{name}{head}"), config)


def padding(*lengths, size=12):
    return (torch.arange(size) < torch.tensor(lengths)[:, None]).long()


BATCHES = ("plain", "all ones", "padded", "four dimensions", "labels")
OTHER_BATCHES = {
    "GPT2": ("padded", "four dimensions"),
    "Bert": ("plain", "labels"),
    "OPT": ("padded", "all ones"),  # its positions are counted in a mask of two dimensions
    "Mixtral": ("padded", "labels"),
}
FAST_CUTS = (("Llama", "padded"), ("Llama", "labels"))
CUT_MODELS = [
    pytest.param(name, batch, marks=[] if (name, batch) in FAST_CUTS else pytest.mark.slow)
    for name in LANGUAGE_MODELS
    for batch in (BATCHES if name == "Llama" else OTHER_BATCHES.get(name, ("padded",)))
]
"""Rotary models read their masks in the same way: all batches for one of them."""


@pytest.mark.parametrize(("name", "kind"), CUT_MODELS)
def test_bug_language_models_of_transformers_are_cut(name, kind):
    """A bool of the positions stopped the recording; keyword arguments and named outputs were refused.

    The program of the first micro-batch runs on the second, whose padding differs.
    """
    torch.manual_seed(0)
    model = language_model(name, tie_word_embeddings=False)().eval()
    first, second = ({"input_ids": torch.randint(5, 99, (2, 12))} for _ in range(2))
    if kind == "labels":
        first["labels"], second["labels"] = first["input_ids"], second["input_ids"]
    if kind in ("all ones", "padded"):
        first["attention_mask"] = padding(12, 12) if kind == "all ones" else padding(12, 5)
        second["attention_mask"] = padding(7, 9)
    if kind == "four dimensions":
        first["attention_mask"] = second["attention_mask"] = torch.zeros(2, 1, 12, 12)
    expected, output = model(**second), in_a_row(model, first, second)
    assert ("loss" in output) == (kind == "labels")
    for key, value in output.items():
        torch.testing.assert_close(value, expected[key])


@pytest.mark.slow
def test_a_language_model_with_labels_and_padding_trains_as_a_pipeline_of_processes(processes):
    """Two micro-batches, one padded and one not: losses and gradients are those of the undivided batch."""
    batch = {"input_ids": torch.randint(5, 99, (4, 12)), "attention_mask": padding(12, 12, 9, 5)}
    batch["labels"] = batch["input_ids"].clone()
    step = TorchStep("llama", language_model("Llama", tie_word_embeddings=False), batch, mode="training")
    graph = profiled(step, 2)
    late_ops = graph.position >= graph.position[graph.names.index("model.layers.1.input_layernorm")]
    forward = np.where(graph.forward_of < 0, np.arange(graph.n), graph.forward_of)
    placement = bl.Placement(device=late_ops[forward].astype(int))
    run, _ = train_as_pipeline(processes, step, graph, placement, cpus(2), 2, "1f1b", steps=1, warmup=0)
    loss, gradients = undivided(step)
    assert run.status == "ok" and run.outputs[0][0] == pytest.approx(loss, rel=1e-6)
    same_gradients(run.info["gradients"], gradients)


def test_what_a_later_stage_would_change_in_place_is_refused():
    """A ReLU that writes into what the first stage made, and running statistics that two stages would update."""
    x = torch.ones(2, 4)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    program = record(model, (x,), trace(model, x))
    with pytest.raises(InvalidInput, match="stage 1 runs '1' and stage 0 '0', which it writes into; put both on one"):
        cut(model, program, [0, 1, 1], 2)
    assert len(cut(model, program, [0, 0, 1], 2)) == 2
    norm = nn.BatchNorm1d(4)
    twice = nn.Sequential(norm, nn.Linear(4, 4), norm)
    with pytest.raises(InvalidInput, match=r"stage 1 runs '0' and stage 0 '0', which changes the same buffer '0\."):
        cut(twice, record(twice, (x,), trace(twice, x)), [0, 0, 1], 2)
    assert len(cut(twice.eval(), record(twice, (x,), trace(twice, x)), [0, 0, 1], 2)) == 2


def test_bug_a_stage_without_calls_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.ones(2, 4)
    with pytest.raises(InvalidInput, match="stage 1 of 3 has no forward call"):
        cut(model, record(model, (x,), trace(model, x)), [0, 2], 3)


def test_torchs_words_for_a_schedule():
    assert actions("0F0 0B0") == [["0F0", "0B0"]]
    assert actions("0F0 0B0 0W0") == [["0F0", "0I0", "0W0"]]


def test_what_replicas_send_goes_to_the_one_that_has_the_micro_batch():
    """Micro-batches 0 and 2 on process 0, 1 on process 1; stage 1 on process 2."""
    text = "0F0 0F2 0B0 0B2\n0F1 0B1\n1F0 1B0 1F1 1B1 1F2 1B2"
    output = with_transfers(actions(text), [[0, 1], [2]])
    assert [word for word in output[1] if "_" in word] == ["0SEND_F1", "0RECV_B1"]
    assert [word for word in output[2] if "RECV" in word] == ["1RECV_F0", "1RECV_F1", "1RECV_F2"]
    assert [[w for w in line if "_" not in w] for line in output] == [line.split() for line in text.splitlines()]
    with pytest.raises(ValueError, match="blocks itself"):
        with_transfers(actions("0B0 0F0\n1F0 1B0"), [[0], [1]])


# -- the batch ---------------------------------------------------------------------------------------------


def test_a_batch_is_cut_along_its_first_dimension():
    micro_steps = skipping().micro_batches(4)
    assert [len(p.inputs[0]) for p in micro_steps] == [2] * 4
    assert torch.equal(torch.cat([p.targets[0] for p in micro_steps]), skipping().targets[0])
    with pytest.raises(InvalidInput, match="has 8 rows; it must be a multiple of micro_batches, which is 3"):
        skipping().micro_batches(3)
    with pytest.raises(InvalidInput, match=r"shapes \[4, 2\], \[3\]"):
        TorchStep("odd", nn.Identity, (torch.ones(4, 2), torch.ones(3))).micro_batches(2)
    images = [torch.ones(3, 8, 8) for _ in range(3)]
    for inputs in ((images,), images, ({"images": images},)):  # they had been cut along their channels
        with pytest.raises(InvalidInput, match=r"has a list of 3 tensors of shape \[3, 8, 8\], which may be images"):
            TorchStep("detector", nn.Identity, inputs).micro_batches(3)
    assert len(TorchStep("parts", nn.Identity, (tuple(images),)).micro_batches(3)) == 3


# -- profiles ----------------------------------------------------------------------------------------------


def test_halves_of_a_backward_pass_are_ops_of_their_own():
    """The first layer has no gradients of inputs, the ReLU none of parameters: neither has halves."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    graph = bl.torch.profile(model, torch.ones(2, 4), warmup=0, runs=1, split_backward=True)
    assert graph.names == ("0", "1", "2", "2/backward", "1/backward", "0/backward", "2/backward_weights")
    assert graph.forward_of.tolist() == [-1, -1, -1, 2, 1, 0, 2] and (graph.duration_us > 0).all()
    stages = find_pipeline_stages(graph, cpus(2), np.array([0, 0, 1, 1, 0, 0, 1]))
    assert [stages.phase[graph.names.index(name)] for name in ("2/backward", "2/backward_weights")] == [B, W]


def test_adding_to_gradients_is_timed_where_asked(monkeypatch):
    """A clock that advances by one at every look: a linear layer adds to two gradients, of its weight and its bias."""
    ticks = itertools.count()
    monkeypatch.setattr(layers_module, "now_us", lambda: float(next(ticks)))
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    plain, added = (bl.torch.profile(model, torch.ones(2, 4), warmup=1, runs=2, accumulate=a) for a in (False, True))
    assert (added.duration_us - plain.duration_us).tolist() == [0, 0, 0, 2]
    assert model[0].weight.grad is None


# -- the session -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "in_flight"), [("gpipe", 4), ("1f1b", 2)])
def test_a_placement_that_forms_no_pipeline_runs_in_the_session(schedule, in_flight):
    step = skipping()
    graph = profiled(step)
    placement = in_stages(graph, [0, 1, 0, 1])
    run = bl.torch.execute(
        step,
        placement,
        2,
        warmup=0,
        graph=graph,
        cluster=cpus(2),
        micro_batches=4,
        schedule=schedule,
        return_gradients=True,
    )
    loss, gradients = undivided(step)
    assert run.info["runtime"] == "session" and run.info["in_flight"] == in_flight
    assert run.outputs[0][0] == pytest.approx(loss, rel=1e-6)
    same_gradients(run.info["gradients"], gradients)
    simulated = bl.simulate(graph, cpus(2), placement, micro_batches=4)
    measured = run.timeline
    assert measured.op_names == simulated.op_names and sorted(measured.op) == sorted(simulated.op)
    assert (np.bincount(measured.micro_batch[measured.op]) == graph.n).all()
    assert len(measured.transfers) == len(simulated.transfers)


@pytest.mark.slow
def test_what_forms_no_pipeline_is_refused_where_one_is_asked_for():
    step = skipping()
    graph = profiled(step)
    placement = in_stages(graph, [0, 1, 0, 1])
    for argument in ({"pipeline": True}, {"schedule": "zb-h1"}):
        with pytest.raises(InvalidInput, match=r"form no pipeline: the forward tensor .* turns back from"):
            bl.torch.execute(step, placement, 1, graph=graph, cluster=cpus(2), micro_batches=4, **argument)
    with pytest.raises(InvalidInput, match="schedule is 'zb-h1'; outside a pipeline"):
        bl.torch.execute(
            step, placement, 1, graph=graph, cluster=cpus(2), micro_batches=4, schedule="zb-h1", pipeline=False
        )
    with pytest.raises(UnknownNameError, match="unknown schedule 'zb-h3'"):
        bl.torch.execute(step, placement, 1, graph=graph, cluster=cpus(2), micro_batches=4, schedule="zb-h3")
    chain = in_stages(graph, [0, 1])
    with pytest.raises(InvalidInput, match="form no pipeline with several stages on a device: stage 3 of 4"):
        bl.torch.execute(step, chain, 1, graph=graph, cluster=cpus(2), micro_batches=4, schedule="zb-v")
    with pytest.raises(InvalidInput, match="has 8 rows"):
        bl.torch.execute(step, chain, 1, graph=graph, cluster=cpus(2), micro_batches=5)


@pytest.mark.slow
def test_replicas_that_cannot_run_are_refused():
    step = skipping()
    graph = profiled(step)
    placement = in_stages(graph, [0, 2]).replace(replicas=[(0, 1)])
    with pytest.raises(InvalidInput, match=r"replicas is \(\(0, 1\),\); bl.execute runs every op on one device"):
        bl.torch.execute(step, placement, 1, graph=graph)
    with pytest.raises(InvalidInput, match=r"replicas is \(\(0, 1\),\); bl.export runs every op on one device"):
        bl.torch.export(step, placement, "nowhere", graph=graph)
    with pytest.raises(InvalidInput, match="pipeline is False; replicas of stages run in processes of their own"):
        bl.torch.execute(step, placement, 1, graph=graph, micro_batches=4, pipeline=False)
    with pytest.raises(InvalidInput, match="micro_batches is 1; a stage has 2 replicas, each of which needs one"):
        bl.torch.execute(step, placement, 1, graph=graph, micro_batches=1)
    turning = in_stages(graph, [0, 2, 0, 2]).replace(replicas=[(0, 1)])
    with pytest.raises(InvalidInput, match="form no pipeline"):
        bl.torch.execute(step, turning, 1, graph=graph, micro_batches=4)


class Norms(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


class FrozenNorms(Norms):
    """As detectors are trained: stored statistics are used, and stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.train()

    def train(self, mode: bool = True) -> FrozenNorms:
        super().train(mode)
        self[1].eval()
        return self


@pytest.mark.slow
@pytest.mark.parametrize(("build", "warned"), [(Norms, 1), (FrozenNorms, 0)])
def test_batch_statistics_are_warned_of_once(build, warned):
    """Without a warning, gradients are those of the undivided batch."""
    step = TorchStep("norms", build, (torch.randn(8, 4),))
    graph = profiled(step, 2)
    options = {"graph": graph, "cluster": cpus(2), "micro_batches": 2, "return_gradients": True}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = bl.torch.execute(step, in_stages(graph, [0, 1, 0]), 1, warmup=0, **options)
    assert sum("statistics of its batch" in str(w.message) for w in caught) == warned
    model = step.model()
    step.run(model)
    equal = [np.allclose(run.info["gradients"][name], p.grad, atol=1e-6) for name, p in model.named_parameters()]
    assert all(equal) == (not warned)


# -- pipelines of processes ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def processes():
    """Three, for pipelines of two or three."""
    with Pool(3, tries=1, imports=forked.TORCH_PIPELINE) as pool:
        yield pool


FACTS = "(__import__('os').getppid(), __import__('os').getpid(), __import__('numpy').random.random())"


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked on Linux alone")
def test_processes_import_pytorch_once_and_draw_numbers_of_their_own(processes):
    """All are forked from one process, whose generator of NumPy they do not share."""
    tasks = [processes.submit(eval, f"({FACTS}, __import__('time').sleep(0.2))") for _ in range(6)]
    facts = [task.result()[0] for task in tasks]
    assert {parent for parent, _, _ in facts} == {
        server.process.pid for (imports, _), server in forked._running.items() if imports == forked.TORCH_PIPELINE
    }
    assert len({process for _, process, _ in facts}) > 1 and len({number for _, _, number in facts}) == 6


SCHEDULES = {
    "1f1b": [0, 1],
    "gpipe": [0, 1],
    "zb-h1": [0, 1],
    "zb-h2": [0, 1],
    "zb-auto": [0, 1],
    "interleaved-1f1b": [0, 1, 0, 1],
    "zb-v": [0, 1, 1, 0],
}


@pytest.fixture(scope="module")
def tied_step():
    """A step whose ends share a weight and of whose labels not all count, its graph, and its undivided loss and gradients."""
    step = padded(skipping(tied=True))
    return step, profiled(step), *undivided(step)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_gives_the_gradients_of_the_undivided_batch(processes, tied_step, schedule):
    """Also where labels do not count, and of the weight that two stages share, of which either process has a copy."""
    step, graph, loss, gradients = tied_step
    placement = in_stages(graph, SCHEDULES[schedule])
    run, pipeline = train_as_pipeline(processes, step, graph, placement, cpus(2), 4, schedule, steps=2, warmup=1)
    assert run.status == "ok" and len(run.step_seconds) == 2 and len(run.outputs) == 3
    assert run.outputs[0][0] == pytest.approx(loss, rel=1e-6)
    same_gradients(run.info["gradients"], gradients)
    units = run.timeline.op_names
    assert sorted(units) == sorted(str(pipeline.schedule).split())
    for line, device in enumerate(dict.fromkeys(pipeline.stages.device.tolist())):
        own_rows = np.flatnonzero(run.timeline.device == device)
        assert [units[i] for i in run.timeline.op[own_rows]] == str(pipeline.schedule).splitlines()[line].split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "stages", "replicas"),
    [
        ("1f1b", [0, 2], [(0, 1)]),  # micro-batches 0 and 2 on process 0, 1 and 3 on process 1
        ("zb-h1", [0, 1], [(1, 2)]),  # the last stage is shared: the loss too
        ("gpipe", [0], [(0, 1, 2)]),  # data parallel, replicas with two micro-batches and with one
    ],
)
def test_replicas_of_stages_add_up_the_gradients_of_the_undivided_batch(
    processes, tied_step, schedule, stages, replicas
):
    (step, graph, loss, gradients), cluster = tied_step, cpus(3)
    placement = in_stages(graph, stages).replace(replicas=replicas)
    run, pipeline = train_as_pipeline(processes, step, graph, placement, cluster, 4, schedule, steps=2, warmup=1)
    assert run.status == "ok"
    assert run.outputs[0][0] == pytest.approx(loss, rel=1e-6)
    same_gradients(run.info["gradients"], gradients)
    simulated = bl.simulate(graph, cluster, placement, micro_batches=4, schedule=schedule)
    lines = str(pipeline.schedule).splitlines()
    assert simulated.pipeline_devices == list(pipeline.processes)
    for line, device in zip(lines, pipeline.processes, strict=True):
        own_rows = np.flatnonzero(run.timeline.device == device)
        assert [run.timeline.op_names[i] for i in run.timeline.op[own_rows]] == line.split()


@pytest.mark.slow
def test_bug_all_stages_drew_the_same_dropout_masks(processes):
    """The gradient of a slope is not zero where both masks let it pass: at a quarter of the places, not at half of them."""
    layers = [nn.PReLU(2048, init=1.0), nn.Dropout(0.5), nn.PReLU(2048, init=1.0), nn.Dropout(0.5)]
    step = TorchStep("masks", partial(nn.Sequential, *layers), -torch.ones(1, 2048), loss=torch.sum)
    graph = bl.torch.profile(step, warmup=0, runs=1)
    placement = in_stages(graph, [0, 1])
    run, _ = train_as_pipeline(processes, step, graph, placement, cpus(2), 1, "gpipe", steps=1, warmup=0)
    for gradient in run.info["gradients"].values():
        assert np.count_nonzero(gradient) / 2048 == pytest.approx(0.25, abs=0.05)


class Turning(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 3), Transpose(), nn.Linear(2, 2))


class Transpose(nn.Module):
    def forward(self, x):
        return x.t()


@pytest.mark.slow
def test_bug_a_gradient_that_is_not_contiguous_is_sent(processes):
    """The second stage begins with a transposition, so what it sends back is a view."""
    step = TorchStep("turning", Turning, (torch.arange(16.0).view(4, 4),))
    graph = profiled(step, 2)
    placement = bl.Placement(device=[int(not name.startswith("0")) for name in graph.names])
    run, _ = train_as_pipeline(processes, step, graph, placement, cpus(2), 2, "1f1b", steps=1, warmup=0)
    expected = {}
    for micro_step in step.micro_batches(2):
        alone = step.model()
        (micro_step.run(alone) / 2).detach()
        for name, p in alone.named_parameters():
            expected[name] = expected.get(name, 0) + p.grad.numpy() / 2
    same_gradients(run.info["gradients"], expected)


@pytest.mark.slow
def test_the_pipeline_trains_as_one_process_does_and_its_timeline_lies_beside_the_simulated_one():
    from baechi_lab import viz  # processes of the pipeline import this file too, and charts take longest

    step = skipping(tied=True, optimizer=torch.optim.Adam)
    graph = profiled(step)
    cluster = cpus(2)
    reported_steps = []
    run = bl.torch.execute(
        step,
        in_stages(graph, [1, 0]),
        2,
        warmup=1,
        graph=graph,
        cluster=cluster,
        micro_batches=4,
        schedule="1f1b",
        on_step=reported_steps.append,
    )
    model = step.model()
    optimizer = step.optimizer(model.parameters())
    expected = [float(step.run(model, optimizer).detach()) for _ in range(3)]
    assert [loss for (loss,) in run.outputs] == pytest.approx(expected, rel=1e-5)
    assert [s.phase for s in reported_steps] == ["warmup", "measured", "measured"]
    assert run.timeline.device[run.timeline.op_names.index("0F0")] == 1
    viz.gantt(bl.simulate(graph, cluster, in_stages(graph, [1, 0]), micro_batches=4, schedule="1f1b"), run.timeline)
    timed_out = bl.torch.execute(
        step, in_stages(graph, [0, 1]), 1000, graph=graph, cluster=cluster, micro_batches=4, timeout=0.1
    )
    assert timed_out.status == "timeout"


class Tripwire(nn.Module):
    def forward(self, x):
        if torch.distributed.is_initialized():
            raise RuntimeError("the wire was touched")
        return x * 2


@pytest.mark.slow
def test_an_error_in_a_process_is_one_sentence():
    step = TorchStep("trips", Trips, (torch.randn(4, 4),))
    graph = profiled(step, 2)
    with pytest.raises(ExecutionError, match="a process of the pipeline failed: the wire was touched"):
        bl.torch.execute(step, in_stages(graph, [0, 1]), 1, graph=graph, cluster=cpus(2), micro_batches=2)


CONNECTION_LOST = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")


@pytest.mark.parametrize(
    ("second_error", "status", "says"),
    [
        (ValueError("the wire was touched"), None, "failed: the wire was touched"),
        (BrokenExecutor("process 1 was killed"), "died", "process 1 was killed"),
        (CONNECTION_LOST, None, "failed: .*Connection closed"),
    ],
)
def test_whoever_only_saw_another_go_does_not_speak_for_it(second_error, status, says):
    """The neighbour of the process that failed may be the first to end."""
    futures = [Future(), Future()]
    futures[0].set_exception(CONNECTION_LOST)
    timer = threading.Timer(0.3, futures[1].set_exception, [second_error])
    timer.start()
    if status is None:
        with pytest.raises(ExecutionError, match=says):
            wait_for_reports(futures, None, None)
    else:
        assert wait_for_reports(futures, None, None) == (status, says)
    timer.join()


class Trips(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), Tripwire(), nn.Linear(4, 4), nn.Linear(4, 4))


# -- scripts -------------------------------------------------------------------------------------------------


def losses_of(text):
    return [float(line.split("loss ")[1].split(",")[0]) for line in text.splitlines() if line.startswith("step ")]


def three_losses(step):
    model = step.model()
    optimizer = step.optimizer(model.parameters())
    return [float(step.run(model, optimizer).detach()) for _ in range(3)]


TORCHRUN = """
import runpy, sys
from torch.distributed import run
from torch.distributed.launcher.api import elastic_launch

def run_script(name, *arguments):
    sys.argv[:] = [name, *arguments]
    runpy.run_path(name, run_name="__main__")

def launch(command):
    config, _, words = run.config_from_args(run.parse_args(command[1:]))
    config.start_method = "fork"
    elastic_launch(config, run_script)(*words[words.index("train.py"):])
"""
"""torchrun, whose processes are forked: none of the four imports PyTorch."""


@pytest.mark.slow
def test_an_exported_pipeline_trains_under_torchrun_without_us(tmp_path):
    """Two replicas of the encoder, and one of the decoder, which shares their table of words."""
    step = bl.torch.models.build(
        "transformer", **{**SMALL["transformer"], "layers": 1, "batch_size": 4, "dropout": 0.0}
    )
    graph, expected = bl.torch.profile(step.micro_batches(2)[0], warmup=0, runs=1), three_losses(step)
    target = ("decoder", "head", "loss", "embedding#1", "mul#1", "add#1")
    stage = [2 * int(name.startswith(target)) for name in graph.names]
    placement = bl.Placement(device=stage, graph_key=graph.key, replicas=[(0, 1)])
    folder = bl.torch.export(step, placement, tmp_path / "out", graph=graph, micro_batches=2, schedule="zb-h1")
    for path in folder.glob("*.py"):
        assert not re.search(r"^\s*(from|import) (baechi_lab|\.)", path.read_text(), re.MULTILINE)
    meeting = ("--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file", "--rdzv-endpoint", str(tmp_path / "meeting"))
    words = ["torchrun", "--nproc-per-node", "3", *meeting, "train.py", "--steps", "3"]
    process = run_torch(folder, "-c", f"{TORCHRUN}\nlaunch({words})")
    assert process.returncode == 0, process.stderr[-2000:]
    assert losses_of(process.stdout) == pytest.approx(expected, rel=1e-5)
    is_alone = {name for _, name in socket.if_nameindex()} == {"lo"}
    assert ("other users of this machine can connect" in process.stderr) != is_alone
    assert "unshare --map-root-user --net" in (folder / "README.md").read_text()
    assert not list(folder.glob(".meeting*"))
    bl.torch.export(step, placement, folder, graph=graph, micro_batches=2)  # replaces what it wrote


@pytest.mark.slow
def test_bug_more_processes_than_the_pipeline_has_ended_with_stop_iteration(tmp_path):
    """All stages on one of two devices are a pipeline of one process."""
    step = bl.torch.models.build("gnmt", **{**SMALL["gnmt"], "batch_size": 4, "dropout": 0.0})
    graph = bl.torch.profile(step.micro_batches(2)[0], warmup=0, runs=1)
    placement, cluster = bl.Placement(device=[0] * graph.n, graph_key=graph.key), bl.Cluster.uniform(2, kind="cpu")
    options = {"cluster": cluster, "graph": graph, "micro_batches": 2, "schedule": "1f1b", "pipeline": True}
    folder = bl.torch.export(step, placement, tmp_path / "out", **options)
    variables = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    process = run_torch(folder, "--steps", "1", **variables)
    assert process.returncode == 1
    assert process.stderr.strip() == "torchrun started 2 processes; this pipeline has 1, see README.md"


@pytest.mark.slow
def test_an_exported_session_divides_the_batch(tmp_path):
    step = bl.torch.models.build("gnmt", **{**SMALL["gnmt"], "batch_size": 4, "dropout": 0.0})
    graph, expected = bl.torch.profile(step.micro_batches(2)[0], warmup=0, runs=1), three_losses(step)
    forward = np.flatnonzero(graph.forward_of < 0)
    device = np.arange(graph.n) % 2
    is_backward = graph.forward_of >= 0
    device[is_backward] = device[graph.forward_of[is_backward]]
    assert len(forward) > 4
    folder = bl.torch.export(
        step,
        bl.Placement(device=device),
        tmp_path / "out",
        graph=graph,
        cluster=cpus(2),
        micro_batches=2,
        schedule="gpipe",
    )
    process = run_torch(folder, "--steps", "3")
    assert process.returncode == 0, process.stderr[-2000:]
    assert losses_of(process.stdout) == pytest.approx(expected, rel=1e-5)


class Filling(nn.Module):
    """Fills a tensor that is made without reading any."""

    def __init__(self, last: bool):
        super().__init__()
        self.first, self.a, self.b, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), last

    def forward(self, x):
        x = self.first(x)
        y = torch.zeros(6, 4)
        y[:3] = torch.tanh(x)[:3]
        y[3:] = self.a(x)[3:]
        return self.b(y) if self.last else (self.b(x), y)


@pytest.mark.parametrize("last", [True, False])
def test_bug_a_stage_read_zeros_that_another_stage_had_filled(last):
    """Every stage makes such a tensor itself, so the values that another stage writes into it were lost without a word."""
    model, x = Filling(last), torch.randn(6, 4)
    model_trace = trace(model, (x,))
    program = record(model, (x,), model_trace)
    names = [call.key for call in model_trace.calls]
    reason = "'__setitem__', which fills a tensor that it reads" if last else "which fills an output of the model"
    with pytest.raises(InvalidInput, match=reason):
        cut(model, program, [int(name == names[-1]) for name in names], 2)
    stages = cut(model, program, [int(i > 0) for i in range(len(names))], 2)
    received = stages[0].module(x)
    outputs = stages[1].module(*(received if isinstance(received, tuple) else (received,)))
    expected = model(x)
    for output, tensor in zip(tensors(outputs), tensors(expected), strict=True):
        torch.testing.assert_close(output, tensor, rtol=0, atol=0)
