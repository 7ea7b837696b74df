"""Optimizer state on a host between steps: results bit-equal, measured peaks as simulated."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
from fewer import fast

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch_cases import said_by  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.errors import StateAtOnce  # noqa: E402
from baechi_lab.torch_runtime.optimizer_offload import OffloadedOptimizerState, offloaded_state_of  # noqa: E402

WITH_HOST = bl.Cluster.uniform(2, kind="cpu").with_host("1GB")
OPTIMIZERS = {
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adam at once": partial(torch.optim.Adam, lr=0.01, foreach=True, amsgrad=True),
    "adam in one kernel": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "rmsprop": partial(torch.optim.RMSprop, momentum=0.9, centered=True),
    "adagrad": torch.optim.Adagrad,
    "nadam": torch.optim.NAdam,
    "adafactor": torch.optim.Adafactor,
}


def layers():
    return nn.Sequential(
        nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)
    )


def step_of(optimizer, rows=64):
    torch.manual_seed(0)
    x, y = torch.randn(rows, 32), torch.randint(0, 4, (rows,))
    return bl.torch.TorchStep("layers", layers, (x,), nn.functional.cross_entropy, y, optimizer=optimizer)


def offloaded(step):
    graph = bl.torch.profile(step, warmup=0, runs=1)
    return graph, bl.offload(graph, WITH_HOST, share=0.0, state=True)


@pytest.mark.parametrize("name", fast(["momentum", "adam", "adam at once", "rmsprop"], 2))
def test_the_peak_falls_as_simulated(name):
    """On each of two devices; the host has the state, and while it goes back a layer's once more in the simulation."""
    step, after = step_of(OPTIMIZERS[name]), {}
    for kind, graph in zip(("kept", "lent"), offloaded(step), strict=True):
        placement = bl.place(graph.replace(duration_us=np.ones(graph.n)), WITH_HOST, "m-topo")
        run = bl.torch.execute(step, placement.on(graph), 2, warmup=1, cluster=WITH_HOST, graph=graph)
        simulated, after[kind] = bl.simulate(graph, WITH_HOST, placement.on(graph)).peak_bytes, run
        assert run.timeline.peak_bytes[:2] == pytest.approx(simulated[:2], rel=0.01)
    kept_run, lent_run = after["kept"], after["lent"]
    assert lent_run.outputs == kept_run.outputs and len(set(lent_run.outputs)) == len(lent_run.outputs)
    state_bytes = sum(t.nbytes for t in layers().parameters()) * {"momentum": 1, "adam at once": 3}.get(name, 2)
    if name == "rmsprop":
        state_bytes = state_bytes // 2 * 3
    assert kept_run.timeline.peak_bytes[2] == 0 and lent_run.timeline.peak_bytes[2] == pytest.approx(
        state_bytes, rel=0.01
    )
    assert state_bytes <= simulated[2] <= 2 * state_bytes


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_results_are_those_of_the_plain_optimizer(name):
    """Two groups of parameters, one that has no gradient, one whose state stays; copies come and go, as on a GPU."""
    models = [layers() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = []
    for model in models:
        model[0].bias.requires_grad_(False)
        first, *other_parameters = model.parameters()
        optimizers.append(OPTIMIZERS[name]([{"params": [first], "lr": 0.02}, {"params": other_parameters}]))
    lent = OffloadedOptimizerState(optimizers[1], [list(model[k].parameters()) for k in (0, 2, 6)])
    brought = []
    lent.copy = lambda state, parameter: brought.append(state) or state.clone()
    torch.manual_seed(1)
    for _ in range(4):
        x = torch.randn(8, 32)
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        homes = {
            id(t) for p in models[1][2].parameters() for t in optimizers[1].state[p].values() if torch.is_tensor(t)
        }
        assert all(id(state) in homes for state in brought[-2:-1] if state.shape == models[1][2].bias.shape)
    assert brought
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b) and (a.grad is None) == (b.grad is None)
    plain, offloaded_state = (optimizer.state_dict()["state"] for optimizer in optimizers)
    assert plain.keys() == offloaded_state.keys() and len(plain) >= 7
    for key, state in plain.items():
        for key_of_state, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(offloaded_state[key][key_of_state])), (
                key,
                key_of_state,
            )


def counted(optimizer):
    """How many tensors are brought at once, at most."""
    (lent, parameter_counts) = offloaded_state_of(optimizer), []
    lent.copy = lambda state, parameter: parameter_counts.append(len(lent.device_copies) + 1) or state.clone()
    return parameter_counts


def test_what_may_look_at_all_gradients_gets_all_state_at_once():
    """An optimizer of somebody's own, a hook, a closure: results are right, and a warning says why more memory is taken."""

    class Clipped(torch.optim.SGD):
        def step(self, closure=None):
            nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.01)
            return super().step(closure)

    def clip(optimizer, args, kwargs):
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.01)

    for kind, why in ((Clipped, "Clipped is no optimizer of torch's own"), (torch.optim.SGD, "has hooks")):
        models = [layers() for _ in range(2)]
        models[1].load_state_dict(models[0].state_dict())
        optimizers = [kind(model.parameters(), lr=0.1, momentum=0.9) for model in models]
        if kind is torch.optim.SGD:
            for optimizer in optimizers:
                optimizer.register_step_pre_hook(clip)
        OffloadedOptimizerState(optimizers[1], [model.parameters() for model in (models[1][0], models[1][2])])
        most_parameters = counted(optimizers[1])
        for _ in range(3):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                model(torch.ones(2, 32)).square().mean().backward()
            optimizers[0].step()
            with pytest.warns(StateAtOnce, match=why):
                optimizers[1].step()
        assert max(most_parameters) == 4
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert torch.equal(a, b)
    model = layers()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    OffloadedOptimizerState(optimizer, [model.parameters()])

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 32)).square().mean()
        loss.backward()
        return loss

    with pytest.warns(StateAtOnce, match="has a closure"), torch.enable_grad():
        first = float(optimizer.step(closure))
        assert float(optimizer.step(closure)) < first


def test_a_layer_at_a_time_with_schedulers_and_checkpoints():
    """State of one layer is there at once; schedulers made before or after say nothing; state loads into a new optimizer."""
    model = layers()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    before = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    OffloadedOptimizerState(optimizer, [model[k].parameters() for k in (0, 2, 4, 6)])
    after = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    most_parameters = counted(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 32)).square().mean().backward()
        optimizer.step(None)
        before.step()
        after.step()
    assert max(most_parameters) == 4 and optimizer.param_groups[0]["lr"] == pytest.approx(
        1e-5
    )  # two tensors of weights and of biases
    restored_optimizer = torch.optim.Adam(copy.deepcopy(model).parameters(), lr=0.1)
    restored_optimizer.load_state_dict(optimizer.state_dict())
    optimizer.load_state_dict(restored_optimizer.state_dict())
    optimizer.step()
    assert offloaded_state_of(copy.deepcopy(optimizer)) is None


def test_nothing_without_gradients_is_touched():
    model = layers()
    optimizer = torch.optim.Adam(model.parameters())
    OffloadedOptimizerState(optimizer, [model.parameters()])
    state_before = copy.deepcopy(model.state_dict())
    optimizer.step()
    assert not optimizer.state and all(torch.equal(t, state_before[name]) for name, t in model.state_dict().items())


def test_an_optimizer_of_ones_own():
    """After `distribute` with such a graph; plain devices have the host's memory, so that nothing is copied."""
    step = step_of(OPTIMIZERS["adam"])
    _, graph = offloaded(step)
    losses = []
    for options in ({"graph": graph}, {}):
        model = bl.torch.distribute(
            step.model(), step.inputs, WITH_HOST, bl.place(graph, WITH_HOST, "single"), **options
        )
        optimizer = step.optimizer(model.parameters())
        if options:
            assert bl.torch.offload_optimizer_state(optimizer, model) is optimizer
            assert [len(group) for group in offloaded_state_of(optimizer).groups] == [2] * 4
        torch.manual_seed(0)
        losses.append([float(step.run(model, optimizer).detach()) for _ in range(3)])
        if options:
            continue
        with (
            pytest.warns(DeprecationWarning, match="use bl.torch.offload_optimizer_state"),
            pytest.raises(bl.InvalidInput),
        ):
            bl.torch.lend_state(optimizer, model)
        with pytest.raises(bl.InvalidInput, match=r"all optimizer state on its devices; .*graph=bl\.offload\("):
            bl.torch.offload_optimizer_state(optimizer, model)
        with pytest.raises(bl.InvalidInput, match="is not distributed"):
            bl.torch.offload_optimizer_state(optimizer, layers())
    assert losses[0] == losses[1]


def test_state_is_offloaded_once():
    model = layers()
    optimizer = torch.optim.Adam(model.parameters())
    OffloadedOptimizerState(optimizer, [])
    with pytest.raises(bl.InvalidInput, match="state of the Adam is offloaded already"):
        OffloadedOptimizerState(optimizer, [])


def test_state_of_no_layer_is_refused():
    step = step_of(OPTIMIZERS["adam"])
    _, graph = offloaded(step)
    wrong = graph.replace(names=tuple(name.replace("2/update/state", "second/update/state") for name in graph.names))
    with pytest.raises(bl.InvalidInput, match=r"op 'second/update/state' of graph .* keeps the state of no layer"):
        bl.torch.execute(step, bl.place(wrong, WITH_HOST, "single"), 1, cluster=WITH_HOST, graph=wrong)


@pytest.mark.slow
def test_micro_batches_are_updated_once():
    step = step_of(OPTIMIZERS["adam"])
    _, graph = offloaded(step.micro_batches(4)[0])
    unrolled = bl.unroll(graph, 4)
    assert sum(name.endswith("/state") for name in unrolled.names) == 4
    options = {"warmup": 0, "cluster": WITH_HOST, "graph": graph, "micro_batches": 4}
    run = bl.torch.execute(step, bl.place(graph, WITH_HOST, "m-topo"), 2, schedule="gpipe", **options)
    plain = bl.torch.execute(step, bl.place(graph, WITH_HOST, "m-topo"), 2, warmup=0, cluster=WITH_HOST, graph=graph)
    assert run.outputs[0] == pytest.approx(plain.outputs[0]) and run.status == "ok"


def test_a_pipeline_of_processes_is_refused():
    step = step_of(OPTIMIZERS["adam"])
    _, graph = offloaded(step.micro_batches(4)[0])
    placement = bl.place(graph, WITH_HOST, "m-topo")
    with pytest.raises(bl.InvalidInput, match="pipeline is True"):
        bl.torch.execute(step, placement, 1, cluster=WITH_HOST, graph=graph, micro_batches=4, pipeline=True)


def test_fit_offers_the_offload_of_optimizer_state():
    graph, _ = offloaded(step_of(OPTIMIZERS["adam"]))
    placement = bl.simulate(graph, WITH_HOST, bl.place(graph, WITH_HOST, "single"))
    small = bl.Cluster.uniform(1, kind="cpu", memory_bytes=int(placement.peak_bytes[0] * 0.9)).with_host("1GB")
    options = bl.fit(graph, small, give_up=("offload",)).to_pandas()
    assert list(options.choice[options.fits]) == ["optimizer state"]


@pytest.mark.slow
def test_the_exported_script_lends_state_with_torch_alone(tmp_path):
    step = bl.torch.models.build("gnmt", batch_size=2, length=4, vocabulary=11, width=6, layers=3)
    step = bl.torch.TorchStep(step.name, step.build, step.inputs, step.loss, step.targets, optimizer=torch.optim.Adam)
    _, graph = offloaded(step)
    placement = bl.place(graph, WITH_HOST, "m-topo")
    folder = bl.torch.export(step, placement, tmp_path / "placed", cluster=WITH_HOST, graph=graph)
    code = (
        "import placed_optimizer_offload, train\n"
        "offloaded = placed_optimizer_offload.OffloadedOptimizerState\n"
        "groups, on_devices = [], offloaded._state_on_devices\n"
        "offloaded._state_on_devices = lambda self, p: (groups.append(len(p)), on_devices(self, p))[1]\n"
        "print((train.train(3), len(groups)))\n"
    )
    losses, groups = said_by(folder, code)
    assert groups == 3 * sum(kind == "State" for kind in graph.op_types)
    plain = bl.torch.execute(step, placement, 2, warmup=0, graph=graph, cluster=WITH_HOST)
    assert losses == [loss for (loss,) in plain.outputs]
