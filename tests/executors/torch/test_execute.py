"""Running a placed step, the measured Timeline, the comparison with what people use today, and the export."""

from __future__ import annotations

import ast
import dataclasses
import functools
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch_cases import SMALL, Branches, said_by  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.torch.references import (  # noqa: E402
    Accelerate,
    Naive,
    Pipelining,
    device_map,
    equal_parts,
    forward_calls,
    split_points,
)

pytestmark = [pytest.mark.slow]


def cpus(n, memory="1GB"):
    return bl.Cluster.uniform(n, kind="cpu", memory_bytes=memory, link=bl.Link(5.0, 0.0001))


@pytest.fixture(scope="module")
def profiled():
    """Step and graph of every benchmark model; a fixed duration per op, so that no test depends on the machine."""
    torch.set_num_threads(1)
    cache = {}
    for name, config in SMALL.items():
        step = bl.torch.models.build(name, **config)
        graph = bl.torch.profile(step, warmup=0, runs=1)
        cache[name] = step, dataclasses.replace(graph, duration_us=np.full(graph.n, 100.0))
    return cache


def scattered(graph, devices, seed=0):
    """Any device per colocation group, backward with forward."""
    rng = np.random.default_rng(seed)
    device = rng.integers(0, devices, graph.n)
    for group in range(len(graph.colocation_names)):
        members = np.flatnonzero(graph.colocation == group)
        device[members] = device[members[0]]
    return bl.Placement(device=device, order=rng.permutation(graph.n), graph_key=graph.key)


# -- execute -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_losses_do_not_depend_on_the_placement(name, profiled):
    step, graph = profiled[name]
    cluster = cpus(3)
    one = bl.torch.execute(step, bl.Placement(device=np.zeros(graph.n, dtype=int)), 2, warmup=1, graph=graph)
    many = bl.torch.execute(step, scattered(graph, 3), 2, warmup=1, graph=graph, cluster=cluster)
    assert one.status == many.status == "ok"
    assert one.outputs == many.outputs and len(one.outputs) == 4  # one warm-up, two measured, one observed
    assert len(many.step_seconds) == 2 and many.median_seconds > 0


@pytest.mark.parametrize("name", [name for name in SMALL if name != "inception_v3"])
def test_measured_timeline_has_every_op_where_it_was_placed(name, profiled):
    """Forward rows follow the dependencies; every tensor that another device reads is sent to it once."""
    step, graph = profiled[name]
    placement = scattered(graph, 3, seed=1)
    timeline = bl.torch.execute(step, placement, 1, warmup=1, graph=graph, cluster=cpus(3)).timeline
    assert timeline.origin == "measured" and timeline.info["clock"] == "host"
    assert sorted(timeline.op.tolist()) == list(range(graph.n))
    assert (timeline.device == placement.device[timeline.op]).all()
    start, end = np.empty(graph.n), np.empty(graph.n)
    start[timeline.op], end[timeline.op] = timeline.start_us, timeline.end_us
    assert (end >= start).all() and timeline.makespan_us >= end.max()
    for a, b in zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True):
        if graph.forward_of[b] < 0 or graph.forward_of[a] < 0:
            assert start[b] >= end[a]
    expected = {
        (int(t), int(placement.device[c]))
        for t, p, c in zip(graph.edge_tensor, graph.edge_source, graph.consumers, strict=True)
        if placement.device[p] != placement.device[c] and graph.tensor_names[t] != "control"
    }
    transfers = list(zip(timeline.transfers.tensor.tolist(), timeline.transfers.target.tolist(), strict=True))
    assert set(transfers) == expected and len(transfers) == len(expected)
    persistent_bytes = np.bincount(placement.device, graph.persistent_bytes, minlength=3)
    assert (timeline.peak_bytes >= persistent_bytes).all()


def test_timeline_draws_and_writes(profiled, tmp_path):
    step, graph = profiled["gnmt"]
    timeline = bl.torch.execute(step, scattered(graph, 2), 1, warmup=0, graph=graph, cluster=cpus(2)).timeline
    table = timeline.to_pandas()
    assert set(table["kind"]) == {"op", "transfer"}
    timeline.to_chrome_trace(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").stat().st_size > 1000
    for device in range(2):
        _, levels = timeline.memory.levels(device)
        assert (levels >= 0).all()


def test_a_placement_of_the_calls_alone_and_a_coarse_one(profiled):
    step, graph = profiled["gnmt"]
    calls = len(forward_calls(graph))
    assert bl.torch.execute(step, bl.Placement(device=np.zeros(calls, dtype=int)), 1, warmup=0).status == "ok"
    placement = bl.place(bl.optimize(graph), cpus(2), "m-etf")
    assert bl.torch.execute(step, placement, 1, warmup=0, graph=graph, cluster=cpus(2)).status == "ok"
    second_run = bl.torch.execute(
        step, placement, 1, warmup=0
    )  # the graph is profiled again; its structure is the same
    assert second_run.status == "ok" and len(second_run.timeline.op) == graph.n


def test_time_limit_cancellation_and_bad_input(profiled):
    step, graph = profiled["bert"]
    placement = bl.Placement(device=np.zeros(graph.n, dtype=int))
    timed_out = bl.torch.execute(step, placement, 5, graph=graph, timeout=0.0)
    assert timed_out.status == "timeout" and len(timed_out.step_seconds) == 0 and timed_out.timeline is None
    stop = threading.Event()
    stop.set()
    assert bl.torch.execute(step, placement, 5, graph=graph, cancel=stop).status == "cancelled"
    with pytest.raises(bl.InvalidInput, match="steps is 0"):
        bl.torch.execute(step, placement, 0, graph=graph)
    with pytest.raises(bl.InvalidInput, match=r"runs a baechi_lab.torch.TorchStep"):
        bl.torch.execute("step", placement)
    with pytest.raises(bl.InvalidInput, match="made for another graph"):
        bl.torch.execute(step, bl.Placement(device=[0, 0, 0]), 1, graph=graph)
    with pytest.raises(bl.UnknownNameError, match="unknown model 'resnet'"):
        bl.torch.models.build("resnet")
    with pytest.raises(bl.UnknownNameError, match="'witdh'"):
        bl.torch.models.build("bert", witdh=3)
    with pytest.raises(bl.InvalidInput, match="batch_size is 0"):
        bl.torch.models.build("bert", batch_size=0)


def test_full_sizes_are_the_published_ones():
    """Parameters of ResNet-50 and of Inception-V3 with its auxiliary head as published; the Transformer's by hand."""
    with torch.device("meta"):
        from baechi_lab.torch.models.bert import BERT
        from baechi_lab.torch.models.inception import InceptionV3
        from baechi_lab.torch.models.resnet import ResNet
        from baechi_lab.torch.models.transformer import Transformer

        counts = {
            m.__name__: sum(p.numel() for p in m().parameters()) for m in (ResNet, InceptionV3, Transformer, BERT)
        }
    assert counts["ResNet"] == 25_557_032
    assert counts["InceptionV3"] == 27_161_264
    encoder = 6 * (4 * (512 * 512 + 512) + 2 * 512 * 2048 + 2048 + 512 + 4 * 512)
    decoder = 6 * (8 * (512 * 512 + 512) + 2 * 512 * 2048 + 2048 + 512 + 6 * 512)
    assert counts["Transformer"] == 32000 * 512 + encoder + decoder  # one embedding for source, target and output
    assert 109e6 < counts["BERT"] < 111e6


# -- experts and references ----------------------------------------------------------------------------------


def test_experts_place_layers_as_people_do(profiled):
    """GNMT: every LSTM layer on another device, embeddings with the first, the head with the last decoder layer."""
    _, graph = profiled["gnmt"]
    placement = bl.torch.models.expert("gnmt", graph, cpus(3))
    device_of = {name: int(placement.device[i]) for i, name in enumerate(graph.names)}
    assert device_of["source"] == device_of["encoder.first"] == device_of["decoder.first"] == device_of["target"] == 0
    assert [device_of["encoder.rest.0"], device_of["encoder.rest.1"]] == [1, 2]
    assert [device_of["decoder.rest.0"], device_of["decoder.rest.1"], device_of["head"]] == [1, 2, 2]
    assert device_of["encoder.rest.1/backward"] == 2
    for name in ("inception_v3", "resnet50"):
        assert set(bl.torch.models.expert(name, profiled[name][1], cpus(4)).device.tolist()) == {0}
    _, graph = profiled["bert"]
    placement = bl.torch.models.expert("bert", graph, cpus(2))
    assert (
        placement.device[graph.index["layers.0.attention"]] == 0
        and placement.device[graph.index["layers.1.attention"]] == 1
    )
    assert placement.device[graph.index["linear"]] == 0  # the output layer shares the embedding's weights
    with pytest.raises(bl.UnknownNameError, match="unknown model 'vgg'"):
        bl.torch.models.expert("vgg", graph, cpus(2))


def test_equal_parts_by_hand():
    """Weights 1 1 1 1 in two parts; one heavy entry takes a part of its own; nothing to weigh is split by count."""
    assert equal_parts(np.ones(4), 2).tolist() == [0, 0, 1, 1]
    assert equal_parts(np.array([6.0, 1, 1, 1, 1, 1, 1]), 2).tolist() == [0, 1, 1, 1, 1, 1, 1]
    assert equal_parts(np.zeros(4), 2).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("name", ["gnmt", "resnet50"])
def test_references_make_valid_placements(name, profiled):
    step, graph = profiled[name]
    cluster = cpus(2)
    placers = [Naive(), Pipelining(step)]
    if _has("accelerate"):
        placers.append(Accelerate(step))
    for placer in placers:
        placement = placer.assign(graph, cluster)
        assert placement.placer == placer.name and set(placement.device.tolist()) == {0, 1}
        timeline = bl.simulate(graph, cluster, placement)
        assert bl.check(graph, cluster, placement, timeline) == ()
        assert bl.torch.execute(step, placement, 1, warmup=0, graph=graph, cluster=cluster).status == "ok"


def test_naive_parts_follow_the_code(profiled):
    _, graph = profiled["resnet50"]
    device = Naive().assign(graph, cpus(3)).device[forward_calls(graph)]
    free = [i for i in forward_calls(graph) if (graph.colocation == graph.colocation[i]).sum() <= 2]
    assert (np.diff(device[free]) >= 0).all() and device.max() == 2


def test_naive_parts_count_what_the_optimizer_keeps():
    """40 bytes of the first of four calls, 10 of each other: it makes half of the whole."""
    graph = bl.OpGraph.from_edges(
        [1.0] * 5,
        names=["a", "b", "c", "d", "a/update"],
        op_types=["Linear"] * 4 + ["Update"],
        colocation=[0, 1, 2, 3, 0],
        colocation_names=("a", "b", "c", "d"),
        persistent_bytes=[10, 10, 10, 10, 30],
    )
    assert Naive().assign(graph, cpus(2)).device.tolist() == [0, 1, 1, 1, 0]


def test_accelerate_follows_its_device_map(profiled):
    pytest.importorskip("accelerate")
    step, graph = profiled["gnmt"]
    cluster = cpus(2, memory=30_000)
    device_of = device_map(step.model(), cluster)
    device = Accelerate(step).assign(graph, cluster).device
    for name, d in device_of.items():
        if name in graph.index:
            assert device[graph.index[name]] == d
    with pytest.raises(bl.InfeasiblePlacement, match="accelerate would offload"):
        Accelerate(step, balanced=False).assign(graph, cpus(2, memory=2_000))


def test_pipelining_says_what_it_cannot_cut(profiled):
    step, graph = profiled["transformer"]
    with pytest.raises(
        bl.ExecutionError, match=r"torch\.distributed\.pipelining could not cut the model 'transformer'"
    ):
        Pipelining(step).assign(graph, cpus(2))
    assert len(split_points(graph, step.model(), 3)) == 2


def test_one_table_of_all(profiled):
    step, graph = profiled["bert"]
    table = bl.compare(graph, cpus(2), ["single", "m-etf", "m-sct", Naive(), Pipelining(step)], progress=False)
    assert table["placer"].tolist() == ["single", "m-etf", "m-sct", "naive-to", "torch-pipelining"]
    assert table["feasible"].all() and (table["gap"] >= -1e-9).all()


def _has(package):
    import importlib.util

    return importlib.util.find_spec(package) is not None


# -- export ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gnmt", "resnet50"])
def test_the_exported_script_imports_only_torch_and_trains_the_same(name, profiled, tmp_path):
    step, graph = profiled[name]
    cluster, placement = cpus(3), scattered(graph, 3, seed=5)
    folder = bl.torch.export(step, placement, tmp_path / "placed", cluster=cluster, graph=graph)
    losses = said_by(folder, "import train; print(train.train(3))")
    run = bl.torch.execute(step, placement, 2, warmup=0, cluster=cluster, graph=graph)
    assert losses == [loss for (loss,) in run.outputs]
    module_names = {path.stem for path in folder.glob("*.py")}
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for imported in names:
                top = imported.partition(".")[0]
                assert top == "torch" or top in module_names or top in sys.stdlib_module_names, (
                    f"{path.name} imports {imported}"
                )
    bl.torch.export(step, placement, folder, cluster=cluster, graph=graph)  # an earlier export is replaced


def test_exports_that_cannot_be_written_say_why(tmp_path, profiled):
    step, graph = profiled["gnmt"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    placement = bl.Placement(device=np.zeros(graph.n, dtype=int))
    with pytest.raises(bl.InvalidInput, match="holds no earlier export"):
        bl.torch.export(step, placement, tmp_path / "full", graph=graph)
    one = bl.Placement(device=[0])
    x = (torch.ones(1, 4),)
    local = bl.torch.TorchStep("local", lambda: nn.Sequential(nn.Linear(4, 2)), x)
    with pytest.raises(bl.InvalidInput, match=r"build is .*lambda.* an export needs a class or function"):
        bl.torch.export(local, one, tmp_path / "a")
    weird = bl.torch.TorchStep("weird", functools.partial(nn.Linear, 4, object()), x)
    with pytest.raises((bl.InvalidInput, TypeError)):
        bl.torch.export(weird, one, tmp_path / "b")
    foreign = bl.torch.TorchStep("foreign", Branches, (torch.ones(3, 4),))
    calls = len(bl.torch.trace(foreign.model(), foreign.inputs).calls)
    with pytest.raises(bl.InvalidInput, match="imports 'exported_script'; an exported model may import only torch"):
        bl.torch.export(foreign, bl.Placement(device=[0] * calls), tmp_path / "c")
    assert not list(tmp_path.glob(".*"))
    bound = bl.torch.TorchStep("bound", nn.Linear(4, 2).requires_grad_, x)
    with pytest.raises(bl.InvalidInput, match=r"build is 'Module\.requires_grad_'; an export needs"):
        bl.torch.export(bound, one, tmp_path / "d")


def test_bug_class_methods_that_a_class_inherits_were_named_after_their_home():
    """As `AutoModelForCausalLM.from_config`, which stands in a class that knows no model."""
    from baechi_lab.exporters.torch.sources import Sources

    assert Sources().name(nn.EmbeddingBag.from_pretrained, "build") == "torch.nn.EmbeddingBag.from_pretrained"
    module_names = type("Table", (nn.Embedding,), {"__module__": "torch.nn", "__qualname__": "Embedding"})
    assert Sources().name(nn.Embedding.from_pretrained, "build") == "torch.nn.Embedding.from_pretrained"
    with pytest.raises(bl.InvalidInput, match="does not offer by a public name"):
        Sources().name(module_names.from_pretrained, "build")


def test_a_plan_survives_json():
    import json

    from baechi_lab.torch_runtime.plan import Plan
    from baechi_lab.torch_steps.plan import make_plan
    from baechi_lab.torch_steps.tracing import trace

    torch.manual_seed(0)
    traced = trace(Branches(), torch.randn(6, 4))
    device = np.zeros(len(traced.calls), dtype=int)
    device[traced.index["cat"]] = 1
    plan = make_plan(traced, bl.Placement(device=device, order=np.arange(len(device))[::-1].copy()), ("cpu", "cpu"))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert plan.sends[traced.index["o"] - 2] or any(plan.sends)


def test_bl_execute_and_bl_compare_take_a_torch_step(profiled):
    step, graph = profiled["bert"]
    placement, reported_steps = bl.Placement(device=np.zeros(graph.n, dtype=int)), []
    run = bl.execute(step, placement, steps=2, warmup=1, graph=graph, on_step=reported_steps.append)
    assert run.status == "ok" and [r.phase for r in reported_steps] == ["warmup", "measured", "measured", "traced"]
    assert [r.outputs for r in reported_steps] == list(run.outputs)
    with pytest.raises(bl.InvalidInput, match="virtual is 2; that option is for TensorFlow steps"):
        bl.execute(step, placement, graph=graph, virtual=2)
    table = bl.compare(graph, cpus(2), ["single", "m-etf"], step=step, measure=True, steps=1, progress=False)
    assert (table["measured_us"] > 0).all() and (table["error"] == "").all()


def test_replicas_are_refused():
    from baechi_lab.torch.models import build

    step = build("gnmt", batch_size=1, length=2, vocabulary=7, width=4, layers=2)
    with pytest.raises(bl.InvalidInput, match=r"replicas is \(\(0, 1\),\); bl.execute runs every op on one device"):
        bl.execute(step, bl.Placement(device=[0] * 19, replicas=[(0, 1)]), cluster=bl.Cluster.uniform(2, kind="cpu"))


def test_bug_a_layer_that_models_share_was_distributed_for_ever():
    """Models of a class may share an activation, as those of ultralytics: a second run said that it is distributed already."""
    shared, layer = nn.SiLU(), nn.Linear(4, 4)
    step = bl.torch.TorchStep("shared", lambda: nn.Sequential(layer, shared, nn.Linear(4, 4), shared), torch.ones(2, 4))
    for device in ([0, 0, 1, 0], [0, 1, 1, 1]):
        run = bl.torch.execute(step, bl.Placement(device=device), 1, cluster=bl.Cluster.uniform(2, kind="cpu"))
        assert run.status == "ok" and "forward" not in {*shared.__dict__, *layer.__dict__}
