"""Plans that are files: Chakra traces that read back, and ONNX models that say where their nodes run."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.cli import main
from baechi_lab.errors import InvalidInput


@pytest.fixture
def chain():
    """a and b on device 0, c on device 1, which both read a's tensor of 1000 bytes."""
    return bl.OpGraph.from_edges(
        [4, 6, 3], [(0, 1, 1000), (0, 2, 1000), (1, 2, 50)], names=["a", "b", "c"], persistent_bytes=[8, 0, 0]
    )


def read_back(plan, folder):
    """The recording of a Chakra plan's files."""
    paths = [folder / f"plan{ending}" for ending in plan.files]
    for path, data in zip(paths, plan.files.values(), strict=True):
        path.write_bytes(data)
    return bl.load_trace(paths)


def test_a_chakra_plan_reads_back_to_the_simulated_step(chain, tmp_path):
    """a 0..4, b 4..10. Sends queue: a's tensor 4..14 (0.01 us per byte), b's 14..14.5, rounded to 0; then c for 3."""
    cluster = bl.Cluster.uniform(2, link=bl.Link(0.0, 0.01))
    placement = bl.Placement(device=[0, 0, 1])
    plan = bl.write_plan(chain, placement, "chakra", cluster=cluster)
    assert sorted(plan.files) == [".0.et", ".1.et"]
    replayed = read_back(plan, tmp_path)
    assert bl.simulate(replayed.graph, replayed.cluster, replayed.placement).makespan_us == 4 + 10 + 3
    assert bl.simulate(chain, cluster, placement).makespan_us == pytest.approx(4 + 10 + 0.5 + 3)
    assert sorted(replayed.graph.op_types) == ["comm_recv"] * 2 + ["comm_send"] * 2 + ["comp"] * 3
    assert "no memory" in " ".join(plan.unsupported)
    assert "how transfers wait for each other (sequential) is not written" in " ".join(plan.unsupported)
    nodes = [json.loads(line) for line in plan.text.splitlines()]
    tags = {(n["attr"][1]["name"], n["attr"][1]["uint64Val"]) for n in nodes if n.get("type") == "COMM_SEND_NODE"}
    assert tags == {("comm_size", "1000"), ("comm_size", "50")}


@pytest.mark.parametrize("comm", ["sequential", "duplex", "parallel"])
def test_a_chakra_plan_with_a_timeline_keeps_the_queues_of_transfers(comm, tmp_path):
    """Links that are busy most of the time: the order of transfers decides how long the step is."""
    graph = random_graph(seed=5)
    cluster = bl.Cluster.uniform(3, link=bl.Link(7.0, 0.2, overhead_us=2.0), comm=comm)
    placement = bl.Placement(device=np.arange(graph.n) % 3)
    timeline = bl.simulate(graph, cluster, placement)
    plan = bl.write_plan(graph, placement, "chakra", cluster=cluster, timeline=timeline)
    replayed = read_back(plan, tmp_path)
    assert not any("not kept" in note for note in replayed.notes)
    assert bl.simulate(replayed.graph, replayed.cluster, replayed.placement).makespan_us == round(timeline.makespan_us)
    assert replayed.timeline.makespan_us == round(timeline.makespan_us)
    assert "keep the order of this step" in " ".join(plan.unsupported)


def random_graph(seed):
    """30 ops with tensors of up to 2000 bytes; every fifth op takes no time."""
    rng = np.random.default_rng(seed)
    edges = [(i, j, int(rng.integers(0, 2000))) for i in range(30) for j in range(i + 1, 30) if rng.random() < 0.2]
    return bl.OpGraph.from_edges(rng.integers(1, 90, 30) * (np.arange(30) % 5 > 0), edges)


def test_a_timeline_is_of_the_step_that_is_written(chain):
    cluster, placement = bl.Cluster.uniform(2), bl.Placement(device=[0, 0, 1])
    timeline = bl.simulate(chain, cluster, placement)
    for timeline_given, message in (
        ({"placement": bl.Placement(device=[0, 1, 1])}, "of another step"),
        ({"cluster": None}, "without cluster"),
        ({"timeline": replace(timeline, origin="measured")}, "is measured"),
        ({"timeline": 3}, "timeline is of type int"),
        ({"format": "dot"}, "dot has no order"),
    ):
        values = {"placement": placement, "format": "chakra", "cluster": cluster, "timeline": timeline} | timeline_given
        with pytest.raises(InvalidInput, match=message):
            bl.write_plan(chain, values.pop("placement"), values.pop("format"), **values)


def test_chakra_ranks_are_devices_also_where_some_are_empty(chain, tmp_path):
    cluster = bl.Cluster.uniform(4, link=bl.Link(10.0, 0.0, overhead_us=1.0))
    plan = bl.write_plan(chain, bl.Placement(device=[1, 1, 3]), "chakra", cluster=cluster)
    assert list(plan.files) == [".0.et", ".1.et", ".2.et", ".3.et"]
    replayed = read_back(plan, tmp_path)
    assert not any("no send" in note for note in replayed.notes)
    # a 4 + 1, b 6 + 1 and c 3 + 2 with their messages; b's message leaves at 12, a's was on the wire until 15
    assert replayed.timeline.makespan_us == 5 + 10 + 10 + 5


def test_chakra_says_what_rounding_loses(chain):
    plan = bl.write_plan(chain.replace(duration_us=[0.4, 6, 3]), bl.Placement(device=[0, 0, 0]), "chakra")
    assert plan.unsupported[0] == "durations are whole microseconds: 0.4 us of 9.4 are rounded away or added"


@pytest.fixture
def model():
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = [
        helper.make_tensor(f"w{k}", kind, (8, 8), np.zeros((8, 8), np.float32).tobytes(), raw=True) for k in range(3)
    ]
    nodes = [helper.make_node("MatMul", [f"v{k}", f"w{k}"], [f"v{k + 1}"], name=f"mm{k}") for k in range(3)]
    value = lambda name: helper.make_tensor_value_info(name, kind, [4, 8])  # noqa: E731
    graph = helper.make_graph(nodes, "three", [value("v0")], [value("v3")], weights)
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


def test_an_onnx_model_says_where_its_nodes_run(model):
    import onnx

    graph = bl.profile_program(model)
    device = [0 if name.startswith("mm0") else 1 for name in graph.names]
    plan = bl.write_plan(graph, bl.Placement(device=device), "onnx", model=model, cluster=bl.Cluster.uniform(2))
    written = onnx.ModelProto.FromString(plan.files[""])
    onnx.checker.check_model(written)
    assert written.ir_version >= 11 and list(written.configuration[0].device) == ["gpu:0", "gpu:1"]
    configurations = [n.device_configurations[0] for n in written.graph.node]
    assert [list(s.sharding_spec[0].device) for s in configurations] == [[0], [1], [1]]
    assert [s.pipeline_stage for s in configurations] == [0, 1, 1]
    assert json.loads(plan.text) == {"mm0": "gpu:0", "mm1": "gpu:1", "mm2": "gpu:1"}
    assert f"{graph.n - 3} ops of the graph (backward pass, updates)" in plan.unsupported[0]
    assert model.ir_version == 9 and not model.graph.node[0].device_configurations
    plan_of_groups = bl.write_plan(
        graph, bl.Placement(device=[int("mm1" in n) for n in graph.names]), "onnx", model=model
    )
    assert any("none has a pipeline_stage" in sentence for sentence in plan_of_groups.unsupported)


@pytest.mark.parametrize("named", [True, False])
def test_nodes_that_were_joined_to_one_op_go_with_it(model, named):
    """A GELU behind the last product is one op of the graph and five nodes of the model."""
    helper = pytest.importorskip("onnx").helper
    model.graph.initializer.append(helper.make_tensor("c", 1, [], [2.0]))
    rows = [("Div", "v3", "c"), ("Erf", "g0"), ("Add", "g1", "c"), ("Mul", "v3", "g2"), ("Mul", "g3", "c")]
    model.graph.node.extend(
        helper.make_node(op, inputs, [f"g{k}"], f"gelu{k}" if named else "") for k, (op, *inputs) in enumerate(rows)
    )
    model.graph.output[0].name = "g4"
    graph = bl.profile_program(model, training=False)
    assert graph.names == ("mm0", "mm1", "mm2", "gelu4" if named else "Mul_g4")
    plan = bl.write_plan(graph, bl.Placement(device=[0, 0, 0, 1]), "onnx", model=model, cluster=bl.Cluster.uniform(2))
    written = type(model).FromString(plan.files[""])
    configurations = [n.device_configurations[0] for n in written.graph.node]
    assert [list(s.sharding_spec[0].device) for s in configurations] == [[0]] * 3 + [[1]] * 5


def test_an_onnx_plan_needs_its_model(model, chain):
    with pytest.raises(InvalidInput, match="model is missing"):
        bl.write_plan(chain, bl.Placement(device=[0, 0, 0]), "onnx")
    with pytest.raises(InvalidInput, match="no node that is an op"):
        bl.write_plan(chain, bl.Placement(device=[0, 0, 0]), "onnx", model=model)


@pytest.mark.filterwarnings("default")
def test_command_line_from_file_to_plan(model, tmp_path, capsys):
    import onnx

    onnx.save(model, tmp_path / "three.onnx")
    path = str(tmp_path / "three.onnx")
    assert main(["profile", path, "--hardware", "a100", "-o", str(tmp_path / "g.json"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (
        facts["mode"] == "estimated"
        and facts["ops"] == bl.load_graph(tmp_path / "g.json").n == bl.profile_program(path).n
    )
    assert (
        main(
            [
                "export",
                path,
                "--devices",
                "2",
                "--format",
                "onnx",
                "-o",
                str(tmp_path / "out.onnx"),
            ]
        )
        == 0
    )
    assert onnx.load(tmp_path / "out.onnx").configuration[0].num_devices == 2
    assert (
        main(
            ["export", str(tmp_path / "g.json"), "--placer", "single", "--format", "chakra", "-o", str(tmp_path / "p")]
        )
        == 0
    )
    capsys.readouterr()
    assert main(["profile", str(tmp_path / "p.0.et")]) == 0
    assert "measured" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "p.0.et"), "--devices", "2", "--placers", "single"]) == 0
    errors = capsys.readouterr().err
    assert errors.startswith("note: ") and "no start times" in errors and errors.count("\n") == 1
    for line, errors in (
        (["profile", path, "--execution-trace", "x"], "goes with a Kineto trace"),
        (["profile", path, "--mode", "measured"], "is a program, and is estimated"),
        (["profile", str(tmp_path / "p.0.et"), "--mode", "estimated"], "is read as a trace, measured as it ran"),
        (["export", path, "--format", "device_map"], "divides a PyTorch model"),
        (["profile", str(tmp_path / "p.0.et"), "--inference"], "is read as a trace, measured as it ran"),
        (["profile", "mlp", "--inference"], "is for programs and traces"),
        (["export", path], "holds no step that could run"),
        (["profile", str(tmp_path / "none.pt2")], "cannot be read"),
    ):
        assert main(line) == 2
        error = capsys.readouterr().err
        assert errors in error and error.count("\n") == 1
