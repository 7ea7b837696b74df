"""Trace, profile and graph: dependencies, memory classes, groups (Shetty 2022, section 1.3.1)."""

from __future__ import annotations

import copy
import functools
import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from fewer import slow  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_cases import ODD, SMALL, same  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.graph.hardware import Hardware  # noqa: E402
from baechi_lab.profilers.dispatch import profile_with_report  # noqa: E402
from baechi_lab.profilers.torch.layers import profile_layers  # noqa: E402
from baechi_lab.profilers.torch.memory import temporary_peak  # noqa: E402
from baechi_lab.profilers.torch.profile import profile  # noqa: E402
from baechi_lab.torch_steps.tracing import trace  # noqa: E402


def case(name):
    if name in SMALL:
        step = bl.torch.models.build(name, **SMALL[name])
        return step.model(), step.inputs
    torch.manual_seed(0)
    make, inputs = ODD[name]
    return make(), (inputs(),)


class Small(nn.Module):
    """`join` reads both branches; the view and the scaling belong to no layer or are functions."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.join = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.join((self.left(x) + self.right(x)).view(-1, 8))


def test_functions_between_layers_are_operators_and_views_are_not():
    traced = trace(Small(), torch.ones(3, 4))
    assert [c.key for c in traced.calls] == ["left", "right", "add", "join"]
    assert traced.edges == {("left", "add"), ("right", "add"), ("add", "join")}


@pytest.mark.parametrize("name", slow([n for n in (*SMALL, *ODD) if n != "inception_v3"], "transformer"))
def test_the_trace_and_the_autograd_graph_agree(name):
    """The paper's graph is the part of ours that autograd records: dependencies through tensors with gradients."""
    model, inputs = case(name)
    traced = trace(model, inputs)
    ours = {
        (traced.calls[value.producer].key, call.key)
        for call in traced.calls
        for value in (traced.values[v] for v in call.reads)
        if value.requires_grad and call.requires_grad
    }
    assert ours == bl.torch.autograd_edges(model, inputs)


@pytest.mark.parametrize("name", slow([n for n in (*SMALL, *ODD) if n != "inception_v3"], "transformer"))
def test_profiling_leaves_the_model_as_it_was(name):
    model, inputs = case(name)
    before = copy.deepcopy(model)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    profile(model, inputs, warmup=0, runs=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert same([*before.state_dict().values()], [*model.state_dict().values()])
    assert all(p.grad is None for p in model.parameters())
    assert all("forward" not in m.__dict__ for m in model.modules())
    assert model.training


@pytest.mark.parametrize("name", slow([*SMALL, *ODD], "inception_v3", "transformer"))
def test_the_graph_is_whole(name):
    """Every call has a time, every call with gradients a backward op in its colocation group, forward before backward."""
    model, inputs = case(name)
    graph = profile(model, inputs, warmup=0, runs=1)
    forward = graph.forward_of < 0
    is_parts_op = np.array([kind == "Parts" for kind in graph.op_types])
    assert (graph.duration_us[forward & ~is_parts_op] > 0).all() and not graph.duration_us[is_parts_op].any()
    for b in np.flatnonzero(graph.forward_of >= 0):
        f = graph.forward_of[b]
        assert graph.names[b] == f"{graph.names[f]}/backward" and graph.colocation[f] == graph.colocation[b] >= 0
    sizes = {id(t): t.nbytes for t in (*model.parameters(), *model.buffers())}
    gradients = sum({id(p): p.nbytes for p in model.parameters()}.values())
    used = int(graph.persistent_bytes.sum())
    assert used <= sum(sizes.values()) + gradients
    inference = profile(model, inputs, mode="inference", warmup=0, runs=1)
    assert (inference.forward_of < 0).all() and model.training


class Gram(nn.Module):
    """Products of rows with each other, which read a tensor and a view of it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(4, 2)

    def forward(self, x):
        h = self.a(x)
        return self.b(torch.bmm(h, h.transpose(1, 2)))


def test_bug_a_tensor_and_its_view_are_both_sent():
    """2 x 4 rows of 16 floats: 512 bytes twice, though on their own device they share their memory."""
    graph = profile(Gram(), torch.ones(2, 4, 8), warmup=0, runs=1)
    product, (pointer, tensors) = graph.names.index("bmm"), graph.inputs
    read = tensors[pointer[product] : pointer[product + 1]]
    assert graph.tensor_bytes[read].tolist() == [512, 512]
    assert {graph.names[k] for k in graph.tensor_producer[read]} == {"a", "a/parts"}
    device = np.zeros(graph.n, dtype=np.int32)
    device[graph.colocation == graph.colocation[product]] = 1
    timeline = bl.simulate(graph, bl.Cluster.uniform(2), bl.Placement(device=device))
    sent_tensors = timeline.transfers.tensor[timeline.transfers.target == 1]
    assert set(read) <= set(sent_tensors)
    alone = bl.simulate(graph, bl.Cluster.uniform(1), bl.Placement(device=[0] * graph.n))
    changed_by_a = np.isin(alone.memory.op, [graph.names.index("a"), graph.names.index("a/parts")])
    grown = alone.memory.delta[changed_by_a & (alone.memory.delta > 4) & (alone.memory.category == 1)]  # besides waits
    assert grown.tolist() == [512]


def test_memory_classes_by_hand():
    """Linear(4, 8) on 3 rows: 40 floats of parameters; its output is 24 floats; ReLU in place makes no output."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))
    layers = profile_layers(model, torch.ones(3, 4), warmup=0, runs=1)
    assert layers.parameters.tolist() == [40 * 4, 0, 18 * 4]  # class a: 4 x 8 + 8, then 8 x 2 + 2
    assert layers.outputs.tolist() == [24 * 4, 0, 6 * 4]  # class b: 3 x 8, in place, 3 x 2
    assert layers.parameter_gradients.tolist() == [160, 0, 72]  # class c equals a
    assert layers.upstream_gradients.tolist() == [96, 0, 24]  # class d equals b
    assert layers.permanent_bytes.tolist() == [160 + 160 + 96, 0, 72 + 72 + 24]
    assert (layers.temporary_bytes >= layers.upstream_gradients).all()
    resting = profile_layers(model, torch.ones(3, 4), mode="inference", warmup=0, runs=1)
    assert resting.permanent_bytes.tolist() == [160, 0, 72]
    assert (resting.temporary_bytes >= resting.outputs).all()


def test_saved_activations_live_until_their_backward_op():
    """A linear layer saves its input, a ReLU its output, dropout a mask of its own; an addition saves nothing."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.relu, self.drop, self.b = nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 4)

        def forward(self, x):
            y = self.a(x)
            return self.b(self.drop(self.relu(y)) + y)

    graph = profile(Net(), torch.ones(2, 4), warmup=0, runs=1)
    readers = {
        graph.tensor_label(t): {graph.names[c] for c in graph.tensor_consumers(t)} for t in range(graph.tensor_count)
    }
    by_op = {op: {k: v for k, v in readers.items() if k.startswith(f"{op}:")} for op in ("a", "relu", "drop", "add")}
    assert {"relu", "add"} in by_op["a"].values()  # neither ReLU nor addition needs its input again
    assert {"drop", "relu/backward"} in by_op["relu"].values()
    assert by_op["drop"]["drop:saved"] == {"drop/backward"}
    assert {"b", "b/backward"} in by_op["add"].values()


def test_temporaries_are_found_on_the_cpu():
    """A layer that makes a large intermediate and drops it: the peak beyond what it keeps."""

    class Big(nn.Module):
        def forward(self, x):
            return (x.expand(1000, 1000) + 1).sum()

    layers = profile_layers(nn.Sequential(nn.Linear(1, 1), Big()), torch.ones(1, 1), warmup=0, runs=1)
    assert layers.temporaries[1] >= 1000 * 1000 * 4
    assert layers.temporaries[0] < 1000


@pytest.mark.parametrize(
    ("changes", "expected"),
    [([], 0), ([100], 0), ([100, 40, -40], 40), ([50, -50], 50), ([-20, 30], 0), ([60, 60, -60, -60, 10], 110)],
)
def test_the_peak_of_temporaries_leaves_out_what_remains(changes, expected):
    assert temporary_peak(changes) == expected


@pytest.mark.slow
def test_shared_weights_are_a_colocation_group():
    """Tied weights by assignment (Transformer) and by a function that reads an embedding's weight (BERT)."""
    for name, first, last in (("transformer", "embedding", "head"), ("bert", "embeddings.tokens", "linear")):
        model, inputs = case(name)
        graph = profile(model, inputs, warmup=0, runs=1)
        a, b = graph.index[first], graph.index[last]
        assert graph.colocation[a] == graph.colocation[b] >= 0
        assert graph.persistent_bytes[b] < graph.persistent_bytes[a]  # counted once


def test_a_layer_called_twice_shares_its_device_and_in_place_layers_join_their_input():
    model, inputs = case("odd")
    traced = trace(model, inputs)
    keys = [{traced.calls[i].key for i in g} for g in traced.groups]
    assert {"b.0.bn", "b.0.relu"} in keys  # relu writes into the norm's output
    assert {"b.0.d", "b.0/add_", "b.0.relu#1"} in keys


def test_an_in_place_layer_comes_after_everything_that_read_its_input_before():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.early, self.write = nn.Linear(4, 4), nn.Tanh(), nn.ReLU(inplace=True)

        def forward(self, x):
            y = self.a(x)
            early_output = self.early(y * 1.0)
            return self.write(y) + early_output + y  # the last y is what `write` wrote

    traced = trace(Net(), torch.ones(2, 4))
    index = traced.index
    assert index["mul"] in traced.parents(index["write"])
    assert index["write"] in traced.parents(index["add#1"])


def test_detached_and_transposed_data_still_depends_on_its_layer():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            y = self.a(x)
            return self.b(y.data) + self.c(y.detach().T.T)

    traced = trace(Net(), torch.ones(2, 4))
    assert {("a", "b"), ("a", "c")} <= traced.edges


@pytest.mark.slow
def test_atomic_modules_stay_whole():
    step = bl.torch.models.build("inception_v3", **SMALL["inception_v3"])
    atomic_trace = trace(step.model(), step.inputs, atomic=("ConvBNReLU",))
    fine = trace(step.model(), step.inputs)
    atomic_calls = [c for c in atomic_trace.calls if c.op_type == "ConvBNReLU"]
    assert len(atomic_calls) == sum(c.op_type == "Conv2d" for c in fine.calls) == 96
    assert not any(c.op_type == "Conv2d" for c in atomic_trace.calls)


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4)), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.body(x))


class Foreign(nn.Module):
    class Box:
        def __init__(self, x):
            self.x = x

    def forward(self, x):
        return self.Box(x * 2)


class Opens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.box = Foreign()

    def forward(self, x):
        return self.box(x).x


def test_bad_models_are_refused_by_layer():
    with pytest.raises(bl.InvalidInput, match=r"layer 'body\.1' \(Linear\) failed on the sample inputs"):
        profile(Fails(), torch.ones(2, 4))
    with pytest.raises(bl.InvalidInput, match="layer 'box' returns a Box"):
        profile(Opens(), torch.ones(2, 4))
    with pytest.raises(bl.InvalidInput, match="function 'matmul' failed"):
        profile(type("Net", (nn.Module,), {"forward": lambda self, x: torch.matmul(x, x)})(), torch.ones(2, 4))
    with pytest.raises(bl.InvalidInput, match="sample_inputs is a str"):
        profile(Small(), "images")
    with pytest.raises(bl.InvalidInput, match="model is a str"):
        trace("model", torch.ones(1))
    with pytest.raises(bl.InvalidInput, match="mode is 'fast'"):
        profile(Small(), torch.ones(3, 4), mode="fast")
    with pytest.raises(bl.InvalidInput, match="runs is 0"):
        profile(Small(), torch.ones(3, 4), runs=0)
    for argument in (None, "model"):
        with pytest.raises(bl.InvalidInput, match="model is a"):
            profile(argument, torch.ones(3, 4))
    with pytest.raises(bl.InvalidInput, match=r"model Bilinear failed on the sample inputs: TypeError: .* 'input2'"):
        profile(nn.Bilinear(4, 4, 1), torch.ones(3, 4))
    with pytest.raises(bl.InvalidInput, match=r"layer '0' \(LazyLinear\) is lazy"):
        profile(nn.Sequential(nn.LazyLinear(4)), torch.ones(3, 4))
    scripted = nn.Sequential(torch.jit.script(nn.Linear(4, 4)))
    with pytest.raises(bl.InvalidInput, match="layer '0' is a TorchScript module"):
        profile(scripted, torch.ones(3, 4))


def test_inputs_may_be_positional_or_keywords():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x, *, scale):
            return F.relu(self.a(x) * scale)

    traced = trace(Net(), {"x": torch.ones(1, 4), "scale": torch.tensor(2.0)})
    assert [c.key for c in traced.calls] == ["a", "mul", "relu"]


def test_times_and_bytes_feed_the_placers():
    model, inputs = case("gnmt")
    graph = profile(model, inputs, warmup=0, runs=1)
    cluster = bl.Cluster.uniform(2, kind="cpu", memory_bytes="1GB", link=bl.Link(1.0, 0.001))
    for placer in ("m-topo", "m-etf", "m-sct"):
        placement = bl.place(bl.optimize(graph), cluster, placer)
        timeline = bl.simulate(graph, cluster, placement)
        assert timeline.feasible and bl.check(graph, cluster, placement, timeline) == ()


class Square(torch.autograd.Function):
    """x^2 + x, as two calls that autograd does not see."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x + x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (2 * x + 1)


class Counted(nn.Linear):
    run_count = 0

    def forward(self, x):
        Counted.run_count += 1
        return super().forward(x)


class Recomputed(nn.Module):
    """A region of layers (called twice), functions, a Function and dropout; `how` says how it is checkpointed."""

    def __init__(self, how=None):
        super().__init__()
        self.how, self.first, self.last = how, nn.Linear(4, 4), nn.Linear(4, 1)
        self.block = nn.Sequential(Counted(4, 4), nn.Tanh(), nn.Dropout(0.5))

    def inner(self, x):
        return F.relu(self.block(Square.apply(self.block(x)) * 2))

    def forward(self, x):
        x = self.first(x)
        if self.how == "offloaded":
            with torch.autograd.graph.save_on_cpu():
                return self.last(self.inner(x))
        run = self.inner
        for reentrant in self.how or ():
            run = functools.partial(checkpoint, run, use_reentrant=reentrant)
        return self.last(run(x))


@pytest.fixture
def ticks(monkeypatch):
    """A clock that goes on by one whenever it is read: a call takes 1 us, and each autograd node takes 1 us."""
    monkeypatch.setattr("baechi_lab.profilers.torch.layers.now_us", itertools.count().__next__)


@pytest.mark.parametrize(
    "how", [(True,), (False,), (True, True), (True, False), (False, True), (False, False)], ids=str
)
def test_a_checkpointed_call_computes_forward_again_in_its_backward_op(how, ticks):
    plain, x = profile_layers(Recomputed(), torch.ones(2, 4), warmup=1, runs=2), torch.ones(2, 4)
    ours = profile_layers(Recomputed(how), x, warmup=1, runs=2)
    keys = [call.key for call in ours.trace.calls]
    assert keys == [call.key for call in plain.trace.calls]
    before = Counted.run_count
    Recomputed(how)(x).sum().backward()
    recomputations = (Counted.run_count - before) // 2 - 1  # the layer is called twice
    # non-reentrant regions in each other: the outer one stops where it has the inputs of the inner one
    assert recomputations == (1 if how == (False, False) else len(how))
    region = np.array([len(how) * (key not in ("first", "last")) for key in keys])
    assert [call.recomputed for call in ours.trace.calls] == region.tolist()
    assert ours.forward_us.tolist() == plain.forward_us.tolist() == [1.0] * len(keys)
    assert ours.backward_us.tolist() == (plain.backward_us + region * plain.forward_us).tolist()
    assert all(call.requires_grad for call in ours.trace.calls) and (plain.backward_us > 0).all()
    for first, second in zip(ours.memory, plain.memory, strict=True):
        assert (first.saves_inputs, first.saves_outputs) == (second.saves_inputs, second.saves_outputs)
        assert first.saved_bytes == second.saved_bytes
    graph = ours.graph()
    companions = [kind == "Recomputed" for kind in graph.op_types]
    assert sum(companions) == (region > 0).sum()
    assert (graph.forward_of >= 0).sum() == len(keys) + sum(companions)
    assert (graph.duration_us == 0).tolist() == companions


class CheckpointedBlocks(nn.Module):
    """Blocks that save two values each, their own output among them."""

    def __init__(self, count, reentrant):
        super().__init__()
        layers = lambda: (nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 8, bias=False), nn.Tanh())  # noqa: E731
        self.blocks, self.reentrant = nn.ModuleList(nn.Sequential(*layers()) for _ in range(count)), reentrant

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.slow
@pytest.mark.parametrize(("reentrant", "values"), [(None, 2), (False, 1), (True, 1)])
@pytest.mark.parametrize("options", [{"warmup": 0, "runs": 1}, {"hardware": {"gpu": "cpu-core"}}], ids=str)
def test_a_checkpointed_block_holds_its_input_alone(reentrant, values, options):
    """One more block costs the peak its weights and one value, without checkpointing two values."""
    x, cluster, peaks = torch.ones(100, 8, requires_grad=True), bl.Cluster.uniform(2, memory_bytes="1GB"), []
    for count in (4, 5):
        graph = bl.torch.profile(CheckpointedBlocks(count, reentrant), x, **options)
        peaks.append(bl.simulate(graph, cluster, bl.Placement(device=[0] * graph.n)).peak_bytes[0])
    assert peaks[1] - peaks[0] == 2 * 8 * 8 * 4 + values * 100 * 8 * 4
    placement = bl.place(graph, cluster, "random", seed=1)
    assert not bl.check(graph, cluster, placement, bl.simulate(graph, cluster, placement))


@pytest.mark.slow
def test_offloaded_activations_are_not_computed_again(ticks):
    plain, ours = (profile_layers(Recomputed(how), torch.ones(2, 4), runs=1) for how in (None, "offloaded"))
    assert not any(call.recomputed for call in ours.trace.calls)
    assert ours.backward_us.tolist() == plain.backward_us.tolist()


def test_the_node_of_a_function_is_shared_by_the_calls_in_it(ticks):
    """One node of 1 us for `mul` and `add`: half each; `mul#1` after it has a node of its own."""
    layers = profile_layers(Recomputed(), torch.ones(2, 4), runs=1)
    times = dict(zip((call.key for call in layers.trace.calls), layers.backward_us, strict=True))
    assert (times["mul"], times["add"], times["mul#1"]) == (0.5, 0.5, 1.0)


def test_what_a_function_saves_belongs_to_its_calls():
    """`add` takes x and its square; no call made the mask of 2 x 4 bytes: it is for the last call."""

    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            mask = torch.tensor([[True] * 4] * 2)
            square = x * x
            ctx.save_for_backward(x, square, mask, weight)
            return square + x

        @staticmethod
        def backward(ctx, gradient):
            x, _, mask, _ = ctx.saved_tensors
            return gradient * (2 * x + 1) * mask, None

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x):
            return Saves.apply(self.a(x), self.a.weight)

    layers = profile_layers(Net(), torch.ones(2, 4), warmup=0, runs=1)
    memory = dict(zip((call.key for call in layers.trace.calls), layers.memory, strict=True))
    assert [(m.saves_inputs, m.saves_outputs, m.saved_bytes) for m in memory.values()] == [
        ((0,), False, 0),  # the linear layer saves its input
        ((), False, 0),
        ((0, 1), False, 8),  # `add` takes the square and x
    ]


def test_a_reentrant_region_without_gradients_has_no_backward_ops():
    """Nothing that it takes has a gradient, so torch builds no graph for it."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(checkpoint(self.a, x, use_reentrant=True))

    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        layers = profile_layers(Net(), torch.ones(2, 4), runs=1)
    assert [(c.requires_grad, c.recomputed) for c in layers.trace.calls] == [(False, False), (True, False)]
    assert layers.backward_us[0] == 0 < layers.backward_us[1]


def test_bl_profile_takes_steps_and_modules_of_torch():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4)
    assert bl.profile(model, x, runs=1).names == ("0", "1", "1/backward", "0/backward")
    step = bl.torch.TorchStep("tiny", lambda: nn.Linear(4, 2), (x,))
    graph, report = profile_with_report(step, runs=1)
    assert (report.ops, report.backward_ops, report.paired_share) == (graph.n, 2, 1.0)  # the layer's and the loss's
    assert bl.profile(step, mode="estimated").names == graph.names
    with pytest.raises(bl.InvalidInput, match="2 inputs"):
        bl.profile(model, x, x)


class _OwnLoss(nn.Module):
    """Returns its loss beside logits that no backward op reads: the loss adds them up."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(8, 8, bias=False), nn.Linear(8, 1000, bias=False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.wide(torch.sigmoid(self.narrow(x)))
        return {"loss": logits.sum(), "logits": logits}


@pytest.mark.parametrize("options", [{"runs": 1, "warmup": 0}, {"hardware": "a100"}], ids=["measured", "estimated"])
def test_bug_outputs_beside_a_loss_were_not_held_during_the_backward_pass(options: dict[str, object]) -> None:
    """While the gradient of `wide` is made: logits, weights, that gradient, and what is saved; the ones take no memory."""
    graph = bl.torch.profile(_OwnLoss(), torch.ones(64, 8), **options)
    one = bl.Cluster.uniform(1, memory_bytes=1 << 30, kind="a100" if "hardware" in options else "cpu")
    peak = bl.simulate(graph, one, bl.place(graph, one, "single")).peak_bytes.max()
    logits, table, rows = 4 * 64 * 1000, 4 * 8 * 1000, 4 * 64 * 8
    assert peak >= logits + 2 * table + 2 * rows


class Filled(nn.Module):
    """A layer's result is written into a new tensor, by something that returns nothing."""

    def __init__(self, write):
        super().__init__()
        self.a, self.b, self.write = nn.Linear(8, 8), nn.Linear(8, 8), write

    def forward(self, x):
        y = torch.zeros_like(x)
        self.write(y, torch.tanh(self.a(x)))
        return self.b(y)


class Writer(nn.Module):
    def forward(self, y, x):
        y.copy_(x)


def by_view(y, x):
    rows = y[1:]
    rows[:] = x[1:]


class Experts(nn.Module):
    """A mixture as in DeepSeek's reference code: `y[rows] += expert(x[rows])`."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 2), nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        weights, y = self.gate(x).softmax(-1), torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows = torch.where(torch.arange(len(x)) % 2 == k)[0]
            y[rows] += expert(x[rows]) * weights[rows, k, None]
        return y


WRITES = {
    "rows": lambda y, x: y.__setitem__(torch.arange(len(x)).flip(0), x),
    "slice": lambda y, x: y.__setitem__(slice(1, None), x[1:]),
    "view": by_view,
    "layer": Writer(),
}


@pytest.mark.parametrize("name", WRITES)
def test_bug_calls_behind_a_tensor_that_is_filled_had_no_backward_op(name):
    """`y[rows] = x` returns nothing, so that no gradient was seen to reach x: the backward pass of all layers behind it was
    missing, in measured and estimated profiles.
    """
    model, x = Filled(WRITES[name]), torch.randn(4, 8)
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    graph = bl.torch.profile(model, x, warmup=0, runs=1, mode="training")
    assert {"a/backward", "tanh/backward", "b/backward"} <= set(graph.names)
    estimate = bl.torch.estimate_layers(model, x, mode="training")
    assert (
        estimate.flops == 2 * 4 * 8 * 8 * 5
    )  # each layer and the gradients of its weights, and that of the input of b
    estimated = estimate.graph({"h100": Hardware.named("h100")})
    assert {"a/backward", "tanh/backward", "b/backward"} <= set(estimated.names)
    assert estimated.duration_us[estimated.names.index("a/backward")] > 0


def test_bug_experts_whose_results_are_added_to_rows_had_no_backward_op():
    graph = bl.torch.profile(Experts(), torch.randn(6, 8), warmup=0, runs=1, mode="training")
    assert {"gate/backward", "experts.0/backward", "experts.1/backward"} <= set(graph.names)
