"""The three lines, and everything around a model that must go on working."""

from __future__ import annotations

import copy
import dataclasses
import io
import sys
import threading
import time
import warnings
from itertools import product

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from fewer import slow  # noqa: E402
from torch import nn  # noqa: E402
from torch_cases import ODD, SMALL, Branches, random_placement, same, train  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.errors import CodeOrderKept  # noqa: E402
from baechi_lab.torch_runtime.transport import HostTransport  # noqa: E402
from baechi_lab.torch_runtime.tree import map_tensors, tensors  # noqa: E402
from baechi_lab.torch_steps.assigner import assign, distribution, move  # noqa: E402
from baechi_lab.torch_steps.tracing import trace  # noqa: E402


def cpus(n, **options):
    return bl.Cluster.uniform(n, kind="cpu", link=bl.Link(1.0, 0.0001), **options)


def scattered(model, inputs, *, seed=0, devices=3, reorder="gpu", ordered=True):
    """`model` distributed at random; returns its trace."""
    traced = trace(model, inputs)
    placement = random_placement(traced, devices, np.random.default_rng(seed), reorder=ordered)
    assign(model, traced, placement, cpus(devices), reorder=reorder)
    return traced


@pytest.mark.parametrize(
    ("name", "placer"),
    [
        *product(["gnmt"], ["single", "m-topo", "m-etf", "m-sct"]),
        pytest.param("transformer", "m-sct", marks=pytest.mark.slow),
    ],
)
def test_a_distributed_model_trains_as_the_original(name, placer):
    step = bl.torch.models.build(name, **SMALL[name])
    model, original = step.model(), step.model()
    assert bl.torch.distribute(model, step.inputs, cpus(2), placer=placer, warmup=0, runs=1) is model
    for _ in range(3):
        assert same(train(model, step.inputs), train(original, step.inputs))
    assert bl.torch.gather(model) is model
    assert same(train(model, step.inputs), train(original, step.inputs))


def test_memory_forces_a_split_and_too_little_memory_says_what_is_needed():
    step = bl.torch.models.build("bert", **SMALL["bert"])
    graph = bl.torch.profile(step, warmup=0, runs=1)
    model_bytes = int(graph.persistent_bytes.sum())
    model = bl.torch.distribute(step.model(), step.inputs, cpus(4, memory_bytes=model_bytes), "m-sct", graph=graph)
    assert len(set(distribution(model).plan.device)) > 1 or distribution(model).placement.device.max() == 0
    with pytest.raises(bl.InfeasiblePlacement):
        bl.torch.distribute(step.model(), step.inputs, cpus(2, memory_bytes=100), "m-sct", graph=graph)


@pytest.mark.slow
def test_training_loop_optimizer_and_checkpoints():
    """The optimizer is made before, the state saved midway, and loaded into a model distributed in another way."""
    step = bl.torch.models.build("transformer", **SMALL["transformer"])
    model, original = step.model(), step.model()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, original)]
    scattered(model, step.inputs)

    def steps(m, optimizer, count, seed):
        torch.manual_seed(seed)
        return [float(step.run(m, optimizer).detach()) for _ in range(count)]

    assert steps(model, optimizers[0], 4, 1) == steps(original, optimizers[1], 4, 1)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizers[0].state_dict()}, file)
    assert list(model.state_dict()) == list(original.state_dict())
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    restored = step.model()
    scattered(restored, step.inputs, seed=9)
    restored.load_state_dict(saved["model"])
    optimizer = torch.optim.AdamW(restored.parameters(), lr=1e-2)
    optimizer.load_state_dict(saved["optimizer"])
    assert steps(restored, optimizer, 3, 2) == steps(original, optimizers[1], 3, 2)


@pytest.mark.parametrize("name", slow([n for n in (*SMALL, *ODD) if n != "inception_v3"], "transformer"))
def test_train_and_eval_modes(name):
    """Distributed as traced in training, evaluated and trained on: dropout and batch norm follow the mode."""
    torch.manual_seed(0)
    if name in SMALL:
        step = bl.torch.models.build(name, **SMALL[name])
        model, inputs = step.model(), step.inputs
    else:
        model, inputs = ODD[name][0](), (ODD[name][1](),)
    original = copy.deepcopy(model)
    scattered(model, inputs, seed=2)
    for training in (True, False, True, False):
        model.train(training), original.train(training)
        with torch.set_grad_enabled(training):
            for _ in range(2):
                torch.manual_seed(4)
                ours = [*tensors(model(*inputs))]
                torch.manual_seed(4)
                assert same(ours, [*tensors(original(*inputs))])


def test_a_model_distributed_in_evaluation_can_be_trained():
    step = bl.torch.models.build("transformer", **SMALL["transformer"])
    model, original = step.model().eval(), step.model().eval()
    scattered(model, step.inputs, seed=3)
    model.train(), original.train()
    for _ in range(3):
        assert same(train(model, step.inputs), train(original, step.inputs))


@pytest.mark.parametrize("name", ["transformer", "bert", "branches"])
def test_autocast_and_inference_mode_reach_waiting_layers(name):
    torch.manual_seed(0)
    if name in SMALL:
        step = bl.torch.models.build(name, **SMALL[name])
        model, inputs = step.model(), step.inputs
    else:
        model, inputs = Branches(), (torch.randn(6, 4),)
    original = copy.deepcopy(model)
    scattered(model, inputs, seed=1)
    for _ in range(3):
        results = []
        for m in (model, original):
            torch.manual_seed(1)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                results.append([*tensors(m(*inputs))])
        assert same(*results)
        assert any(t.dtype == torch.bfloat16 for t in results[0]) or name == "branches"
    for _ in range(2):
        with torch.inference_mode():
            torch.manual_seed(1)
            ours = [*tensors(model(*inputs))]
            torch.manual_seed(1)
            assert same(ours, [*tensors(original(*inputs))]) and all(t.is_inference() for t in ours)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    """Recomputation runs layers during the backward pass, outside any forward of the model."""
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.side, self.head = (
                nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
                nn.Linear(4, 4),
                nn.Linear(4, 2),
            )

        def forward(self, x):
            y = checkpoint(self.body, x, use_reentrant=reentrant)
            return self.head(y + self.side(x))

    torch.manual_seed(0)
    model, x = Net(), torch.randn(3, 4, requires_grad=True)
    original = copy.deepcopy(model)
    scattered(model, (x,), seed=4)
    for _ in range(3):
        assert same(train(model, (x,)), train(original, (x,)))


def test_bug_a_layer_called_alone_ran_where_its_inputs_were():
    """As recomputation calls it. The device "meta" stands for a second one: layer 1 and its inputs are there."""
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), torch.ones(5, 4)
    assign(model, trace(model, x), bl.Placement(device=[0, 1]), cpus(2))
    session = distribution(model).session
    session.plan = dataclasses.replace(session.plan, devices=("cpu", "meta"))
    model[1].to("meta")
    assert model[0](x).device.type == "cpu"
    output = model[1](torch.ones(5, 3))
    assert output.device.type == "meta" and output.shape == (5, 2)


def test_python_between_layers_runs_in_code_order_with_real_values():
    """Prints, branches on data and item() see what code order gives, although layers were to be reordered."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.seen = []

        def forward(self, x):
            y = self.a(x)
            self.seen.append(("shape", tuple(y.shape), len(y), y.dtype))
            self.seen.append(("value", round(y.sum().item(), 4)))
            if y.mean() > 0:
                y = y * 2
            z = self.b(x)
            self.seen.append(("after b", z[0, 0].item()))
            return self.c(y) + z

    torch.manual_seed(0)
    model = Net()
    original, x = copy.deepcopy(model), torch.randn(3, 4)
    traced = trace(model, x)
    order = {"b": 0}
    rank = [order.get(c.key, 1 + i) for i, c in enumerate(traced.calls)]
    assign(model, traced, bl.Placement(device=[0] * len(rank), order=rank), cpus(1))
    session = distribution(model).session
    assert "a" in session.plan.waiting
    for _ in range(3):
        assert same(train(model, (x,)), train(original, (x,)))
    assert session.forced > 0  # the sum and the branch needed a's data before b was reached
    assert model.seen[len(model.seen) - 9 :] == original.seen[-9:]


def test_control_flow_that_differs_from_the_sample():
    """A call that the sample did not make, and one that it made and is now left out."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x, long):
            y = self.a(x)
            if long:
                y = self.b(y) + self.c(y).relu()
            else:
                y = self.d(y)
            return self.d(y) * 2

    torch.manual_seed(0)
    model = Net()
    original, x = copy.deepcopy(model), torch.randn(3, 4)
    traced = trace(model, (x, True))
    for seed in range(6):
        rng = np.random.default_rng(seed)
        assign(model, traced, random_placement(traced, 3, rng, reorder=True), cpus(3))
        for long in (True, True, False, True, False, False):
            results = []
            for m in (model, original):
                m.zero_grad()
                y = m(x, long)
                y.sum().backward()
                results.append([y, *(p.grad for p in m.parameters() if p.grad is not None)])
            assert same(*results)
        bl.torch.gather(model)


def test_other_batch_sizes_than_the_sample():
    model, original = Branches(), None
    torch.manual_seed(0)
    model = Branches()
    original = copy.deepcopy(model)
    scattered(model, (torch.randn(6, 4),), seed=5)
    for rows in (6, 2, 9, 2, 6):
        x = torch.randn(rows, 4)
        assert same(train(model, (x,)), train(original, (x,)))


def test_an_error_in_a_waiting_layer_reaches_the_caller_and_the_next_step_works():
    class Moody(nn.Module):
        angry = False

        def forward(self, x):
            if self.angry:
                raise ValueError("no more")
            return x + 1

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.moody, self.b, self.c = nn.Linear(4, 4), Moody(), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            y = self.moody(self.a(x))
            return self.c(y) + self.b(x)

    model, x = Net(), torch.randn(2, 4)
    traced = trace(model, x)
    rank = [5 if c.key != "b" else 0 for c in traced.calls]
    assign(model, traced, bl.Placement(device=[0] * len(rank), order=rank), cpus(1))
    first = model(x)
    model(x)
    assert distribution(model).session.threads_started > 0
    model.moody.angry = True
    with pytest.raises(ValueError, match="no more") as caught:
        model(x)
    assert any("layer 'moody'" in note for note in getattr(caught.value, "__notes__", ["layer 'moody'"]))
    model.moody.angry = False
    assert torch.equal(model(x), first)


@pytest.mark.slow
def test_an_error_between_layers_leaves_nothing_waiting():
    """The threads are parked, not waiting: the next step uses them, and gathering the model ends them."""
    import threading

    def ours():
        return [t for t in threading.enumerate() if t.name.startswith("baechi")]

    threads_before = set(ours())

    class Net(Branches):
        broken = False

        def forward(self, x):
            y = super().forward(x)
            if self.broken:
                raise KeyError("between")
            return y

    model, x = Net(), torch.randn(6, 4)
    scattered(model, (x,), seed=6)
    model(x), model(x)
    call_count, expected = len(distribution(model).plan.keys), model(x).shape
    model.broken = True
    for _ in range(call_count + 1):  # as many waiting threads would leave none for the next step
        with pytest.raises(KeyError, match="between"):
            model(x)
    model.broken = False
    assert model(x).shape == expected and 0 < len(set(ours()) - threads_before) <= call_count
    bl.torch.gather(model)
    assert not set(ours()) - threads_before


def test_hooks_on_waiting_layers_keep_code_order():
    model, x = Branches(), torch.randn(6, 4)
    traced = trace(model, x)
    rank = [len(traced.calls) if c.key == "br.0.0" else i for i, c in enumerate(traced.calls)]
    assign(model, traced, bl.Placement(device=[0] * len(rank), order=rank), cpus(1))
    assert "br.0.0" in distribution(model).plan.waiting
    hook_calls = []
    free = next(
        c.key for c in traced.calls if c.key.startswith("br.1") and c.key not in distribution(model).plan.waiting
    )
    handle = model.get_submodule(free).register_forward_hook(lambda m, i, o: hook_calls.append(type(o)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CodeOrderKept)
        model(x), model(x)
    assert hook_calls == [torch.Tensor, torch.Tensor]
    handle.remove()
    model.br[0][0].register_forward_hook(lambda m, i, o: hook_calls.append(type(o)))
    with pytest.warns(CodeOrderKept, match=r"'br\.0\.0' has hooks that the plan does not know"):
        model(x)
    assert hook_calls[2:] == [torch.Tensor]
    bl.torch.gather(model)
    assign(model, traced, bl.Placement(device=[0] * len(rank), order=rank), cpus(1), reorder="none")
    model(x), model(x)


def test_inputs_on_a_device_outside_the_cluster():
    model = Branches()
    scattered(model, (torch.randn(6, 4),))
    with pytest.raises(bl.InvalidInput, match="an input is on meta; the model is distributed over cpu"):
        model(torch.empty(6, 4, device="meta"))


def test_bad_assignments_are_rejected():
    model, x = Branches(), torch.randn(6, 4)
    traced = trace(model, x)
    n = len(traced.calls)
    zeros = bl.Placement(device=[0] * n)
    with pytest.raises(bl.UnknownNameError, match="unknown reorder 'sometimes'"):
        assign(model, traced, zeros, cpus(1), reorder="sometimes")
    with pytest.raises(bl.InvalidInput, match="has 3 ops; the model has"):
        assign(model, traced, bl.Placement(device=[0] * 3), cpus(1))
    with pytest.raises(bl.InvalidInput, match="uses device 4"):
        assign(model, traced, bl.Placement(device=[4] * n), cpus(2))
    with pytest.raises(bl.InvalidInput, match="names 1 torch devices"):
        assign(model, traced, zeros, cpus(2), devices=["cpu"])
    group = traced.groups[0]
    split = np.zeros(n, dtype=int)
    split[group[0]] = 1
    with pytest.raises(bl.InvalidInput, match="splits calls that share"):
        assign(model, traced, bl.Placement(device=split), cpus(2))
    with pytest.raises(bl.InvalidInput, match="is not distributed"):
        bl.torch.gather(model)
    if not torch.cuda.is_available():
        with pytest.raises(bl.ExecutionError, match=r"2 GPUs .* torch sees 0"):
            assign(model, traced, zeros, bl.Cluster.uniform(2))
    assign(model, traced, bl.Placement(device=np.arange(n) * 0, order=np.arange(n)[::-1].copy()), cpus(1))
    with pytest.raises(bl.InvalidInput, match="already distributed"):
        bl.torch.distribute(model, x, cpus(1), "single")
    with pytest.raises(TypeError, match="gather the model before"):
        copy.deepcopy(model)
    other_graph = bl.torch.profile(nn.Linear(4, 4), torch.ones(1, 4), warmup=0, runs=1)
    with pytest.raises(bl.InvalidInput, match="profiled from another model"):
        bl.torch.distribute(Branches(), x, cpus(1), "single", graph=other_graph)


class Activated(nn.Module):
    """All models share the activation that is the default argument."""

    def __init__(self, activation=nn.Sequential(nn.GELU(), nn.Tanh())):  # noqa: B008
        super().__init__()
        self.first, self.activation, self.last = nn.Linear(4, 8), activation, nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.activation(self.first(x)))


@pytest.mark.parametrize("gathered_first", [0, 1])
def test_bug_models_that_share_a_default_module_could_not_both_be_distributed(gathered_first):
    models, x = [Activated(), Activated(), Activated()], torch.randn(3, 4)
    plain_outputs = [model(x) for model in models]
    activation = models[0].activation
    for device, model in enumerate(models):
        graph = bl.torch.profile(model, x, warmup=0, runs=1)
        placement = bl.Placement(device=[device if "activation" in name else 1 for name in graph.names])
        bl.torch.distribute(model, x, cpus(3), placement, graph=graph)
    for model, outputs in zip(models, plain_outputs, strict=True):
        torch.testing.assert_close(model(x), outputs)
    for index in (gathered_first, 1 - gathered_first, 2):
        bl.torch.gather(models[index])
        for model, outputs in zip(models, plain_outputs, strict=True):
            torch.testing.assert_close(model(x), outputs)
    assert all("forward" not in vars(module) for module in activation.modules())


def test_a_model_without_state_is_distributed_once():
    x, placement = torch.ones(2), bl.Placement(device=[0, 1])
    model = bl.torch.distribute(nn.Sequential(nn.Tanh(), nn.Tanh()), x, cpus(2), placement)
    with pytest.raises(bl.InvalidInput, match="the model is already distributed"):
        bl.torch.distribute(model, x, cpus(2), placement)


class Moving(HostTransport):
    """Logical device 1 is torch's `meta`: mixing it with the CPU in one layer is an error of torch itself."""

    def arrive(self, state, value, device):
        target = self.devices[device]
        return map_tensors(value, lambda t: t if t.device == target else torch.empty_like(t, device=target))


@pytest.mark.parametrize("name", slow([*SMALL, *ODD], "inception_v3", "transformer"))
def test_every_input_arrives_on_its_layers_device(name):
    """Half of the layers on `meta` tensors: a single input on the wrong device would raise."""
    torch.manual_seed(0)
    if name in SMALL:
        step = bl.torch.models.build(name, **SMALL[name])
        model, inputs = step.model(), step.inputs
    else:
        model, inputs = ODD[name][0](), (ODD[name][1](),)
    traced, rng = trace(model, inputs), np.random.default_rng(8)
    for k in range(2):
        distributed_model = copy.deepcopy(model)
        assign(distributed_model, traced, random_placement(traced, 2, rng, reorder=bool(k % 2)), cpus(2))
        session = distribution(distributed_model).session
        session.plan = dataclasses.replace(session.plan, devices=("cpu", "meta"))
        session.transport, session.plain = Moving(session.plan.devices), False
        to_meta(distributed_model, {name for name, device in session.plan.parameters.items() if device == 1})
        assert {t.device.type for t in distributed_model.parameters()} == {"cpu", "meta"}
        for _ in range(2):
            assert [*tensors(placed_forward(distributed_model, inputs, session))]


def to_meta(model, names):
    """Parameters and buffers on `meta`, shared ones still shared."""
    memo = {}
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()):
        first = memo.get(id(tensor), (name, None))[0]
        if first in names:
            owner, _, key = name.rpartition(".")
            module = model.get_submodule(owner)
            table = module._parameters if key in module._parameters else module._buffers
            fresh = nn.Parameter(tensor.to("meta")) if isinstance(tensor, nn.Parameter) else tensor.to("meta")
            table[key] = memo.setdefault(id(tensor), (first, fresh))[1]


def placed_forward(model, inputs, session):
    """The forward without moving the outputs to one device, which `meta` data cannot do."""
    session.output_device = None
    end = session.end

    def stay(frame, outputs):
        frame.state.output_device = None
        return end(frame, outputs)

    session.end = stay
    try:
        with torch.no_grad():
            return model(*inputs)
    finally:
        session.end = end


def test_parameters_move_and_stay_the_same_objects():
    """Buffers are replaced, as `nn.Module.to` does; the optimizer knows parameters by identity."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to("meta")
    before = [id(p) for p in model.parameters()]
    move(model, {"1.running_mean": torch.device("meta"), "0.weight": torch.device("meta")})
    assert [id(p) for p in model.parameters()] == before
    model = nn.Sequential(nn.BatchNorm1d(2))
    move(model, {"0.running_mean": torch.device("meta")})
    assert model[0].running_mean.is_meta and not model[0].running_var.is_meta and model[0].weight.device.type == "cpu"


def test_one_device_in_code_order_is_left_alone():
    """Nothing is wrapped, so a model placed whole on one device costs nothing."""
    model, x = Branches(), torch.randn(6, 4)
    bl.torch.distribute(model, x, cpus(2, memory_bytes="1GB"), "single", warmup=0, runs=1)
    assert distribution(model).interceptor is None
    assert all("forward" not in m.__dict__ for m in model.modules())


@pytest.mark.subprocess
@pytest.mark.slow
def test_no_heavy_import():
    """The records of a placed PyTorch model need no TensorFlow, pandas, plotly or cvxpy."""
    import subprocess
    import sys

    code = (
        "import sys, torch\n"
        "for name in ('tensorflow', 'pandas', 'plotly', 'cvxpy', 'numba', 'scipy', 'psutil'): sys.modules[name] = None\n"
        "import baechi_lab as bl, baechi_lab.graph\n"
        "m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())\n"
        "c = bl.Cluster.uniform(2, kind='cpu')\n"
        "g = bl.torch.profile(m, torch.ones(1, 2), warmup=0, runs=1)\n"
        "p = bl.Placement(device=[0, 1, 1, 0])\n"
        "m = bl.torch.distribute(m, torch.ones(1, 2), c, p, graph=g)\n"
        "print(tuple(m(torch.ones(1, 2)).shape), bl.torch.models.names())\n"
        "s = bl.torch.models.build('gnmt', batch_size=1, length=2, vocabulary=7, width=4, layers=2)\n"
        "r = bl.torch.execute(s, bl.place(bl.torch.profile(s, warmup=0, runs=1), c, 'm-etf'), 1, warmup=0)\n"
        "assert r.status == 'ok' and r.timeline.makespan_us > 0\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("(1, 2)")


def test_nothing_is_polled(monkeypatch):
    """Whoever waits for a stand-in sleeps until it is called: nobody naps, nobody waits for a while and looks again."""
    wait, waited = threading.Event.wait, []

    def waiting(event, timeout=None):
        if sys._getframe(1).f_globals["__name__"].startswith("baechi_lab"):  # threads of other tests' libraries poll
            waited.append(timeout)
        return wait(event, timeout)

    model, x = Branches(12), torch.randn(6, 4)
    scattered(model, (x,), seed=1, devices=2)
    model(x)
    monkeypatch.setattr(threading.Event, "wait", waiting)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"slept for {seconds} s"))
    for _ in range(5):
        model(x)
    assert set(waited) == {None}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"atomic": "Block"}, "atomic is 'Block'; it must be a list of classes of modules, or of their names"),
        ({"atomic": [None]}, r"atomic is \[None\]; it must be a list of classes"),
        ({"cluster": "8GB"}, "cluster is of type str; it must be a Cluster"),
        ({"graph": [1]}, "graph is of type list; it must be an OpGraph"),
        ({"devices": "cpu"}, "devices is 'cpu'; it must be a list of torch devices, or None"),
        ({"devices": ["cpu", "gpu:0"]}, r"devices\[1\] is 'gpu:0'; it must name a device of torch"),
        ({"output_device": 1.5}, "output_device is 1.5; it must name a device of torch"),
        ({"warmup": "2"}, "warmup is '2'; it must be a whole number of at least 0"),
        ({"runs": 1.5}, "runs is 1.5; it must be a whole number of at least 1"),
        ({"optimizer_states": 2**63}, f"optimizer_states is {2**63}; it must be at most 100"),
        ({"reorder": ["gpu"]}, r"unknown reorder \"\['gpu'\]\""),
    ],
)
def test_wrong_arguments_are_one_sentence(wrong, message):
    arguments = {"cluster": bl.Cluster.uniform(2, kind="cpu"), "placer": "single", "runs": 1, "warmup": 0}
    with pytest.raises(bl.BaechiLabError, match=message):
        bl.torch.distribute(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4), **(arguments | wrong))
