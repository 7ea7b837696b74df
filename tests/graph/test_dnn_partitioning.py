"""The dnn-partitioning reader, on hand-made files and on the set's own where it lies beside the checkout."""

import json
from pathlib import Path

import pytest

import baechi_lab as bl

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "dnn-partitioning"


def node(id, **fields):
    defaults = {
        "name": f"n{id}",
        "supportedOnFpga": 1,
        "cpuLatency": 2.0,
        "fpgaLatency": 0.5,
        "isBackwardNode": 0,
        "size": 10.0,
    }
    return {"id": id, **defaults, **fields}


def written(tmp_path, nodes, edges, **extra):
    path = tmp_path / "net.json"
    path.write_text(json.dumps({"maxFPGAs": 2, "nodes": nodes, "edges": edges, **extra}))
    return path


def edge(a, b, size=8.0):
    return {"sourceId": a, "destId": b, "cost": 99.0, "size": size}


def test_units_groups_and_tensors(tmp_path):
    nodes = [
        node(7, colorClass=3),
        node(5, supportedOnFpga=False),
        node("x", colorClass=3, size=0, fpgaLatency=0),
    ]
    graph = bl.load_graph(written(tmp_path, nodes, [edge(7, 5), edge(7, "x"), edge(5, "x", 4.0)]))
    assert graph.names == ("n7", "n5", "nx")
    assert graph.duration_us.tolist() == [500.0, 500.0, 0.0]  # 0.5 ms on the accelerator
    assert graph.duration_by_kind["cpu"].tolist() == [2000.0] * 3
    assert graph.persistent_bytes.tolist() == [10, 10, 0]
    assert graph.colocation.tolist() == [0, -1, 0]
    assert graph.colocation_names == ("color3",)
    assert graph.allowed_sets[graph.allowed[1]] == ("cpu",)
    assert graph.allowed[0] == graph.allowed[2] == -1
    # Both edges of node 7 have 8 bytes: one tensor with two readers.
    assert graph.tensor_bytes.tolist() == [8, 4]
    assert graph.tensor_consumers(0).tolist() == [1, 2]
    assert graph.name == "net"


def test_backward_nodes_find_their_forward_node(tmp_path):
    nodes = [
        node(0, name="conv"),
        node(1, name="conv_Grad/Gemm_1", isBackwardNode=1),
        node(2, name="w", colorClass=1),
        node(3, name="AdamOptimizer_w", isBackwardNode=1, colorClass=1),
        node(4, name="layer4grad", isBackwardNode=True),
        node(5, name="layer4"),
        node(6, name="odd", isBackwardNode=1, colorClass=1),  # only forward node of its colour: w
        node(7, name="lost", isBackwardNode=1),
        node(8, name="forward_named_like_a_Grad/x"),
    ]
    graph = bl.load_graph(written(tmp_path, nodes, []))
    assert graph.forward_of.tolist() == [-1, 0, -1, 2, 5, -1, 2, -1, -1]


def test_a_colour_with_two_forward_nodes_is_no_evidence(tmp_path):
    nodes = [node(0, colorClass=1), node(1, colorClass=1), node(2, colorClass=1, isBackwardNode=1)]
    assert bl.load_graph(written(tmp_path, nodes, [])).forward_of.tolist() == [-1, -1, -1]


def test_names_used_twice_get_their_id(tmp_path):
    graph = bl.load_graph(written(tmp_path, [node(0, name="a"), node(1, name="a"), node(2, name="b")], []))
    assert graph.names == ("a#0", "a#1", "b")


@pytest.mark.parametrize(
    ("nodes", "edges", "error", "words"),
    [
        ([node(0), node(0)], [], bl.DuplicateNameError, r"nodes\[1\]"),
        ([node(0)], [edge(0, 9)], bl.UnknownOpError, r"edges\[0\]\.destId is 9"),
        ([node(0), {"id": 1}], [], bl.FormatError, r"nodes\[1\]\.fpgaLatency"),
        ([node(0, size="big")], [], bl.FormatError, r"nodes\[0\]\.size is 'big'"),
        (
            [node(0, fpgaLatency=True)],
            [],
            bl.FormatError,
            r"nodes\[0\]\.fpgaLatency is True; it must be of type int or float",
        ),
        ([node(0, isBackwardNode=7)], [], bl.FormatError, r"isBackwardNode is 7; it must be true or false, or 1 or 0"),
        ([node(0), 5], [], bl.FormatError, r"nodes\[1\]"),
        ({"0": 1}, [], bl.FormatError, "nodes"),
        ([node(0)], None, bl.FormatError, "edges"),
        ([node(0), node(1)], [edge(0, 1), edge(1, 0)], bl.CycleError, "cycle"),
        ([node(0, fpgaLatency=-1)], [], bl.CostError, "duration_us"),
        ([node(0), node(1)], [{"sourceId": 0, "destId": 1}], bl.FormatError, r"edges\[0\]\.size"),
    ],
)
def test_bad_files_are_rejected(tmp_path, nodes, edges, error, words):
    with pytest.raises(error, match=words) as caught:
        bl.load_graph(written(tmp_path, nodes, edges))
    assert "net.json" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "ops", "edges", "groups", "paired"),
    [
        # Counts of the files' own nodes, edges, colours; and of backward nodes that a rule of the reader pairs:
        # bert has 365 backward nodes, of which 16 have neither a name that leads back nor a colour of their own.
        ("bert_l-3_training", 600, 817, 121, 349),
        ("inceptionv3_training", 652, 726, 326, 326),
    ],
)
def test_the_graphs_of_the_set(name, ops, edges, groups, paired):
    path = DATA / f"{name}.json"
    if not path.exists():
        pytest.skip("the dnn-partitioning files are not beside this checkout")
    graph = bl.load_graph(path)
    raw = json.loads(path.read_text())
    assert (graph.n, graph.edge_count, len(graph.colocation_names)) == (ops, edges, groups)
    assert graph.duration_us.sum() == pytest.approx(1000 * sum(x["fpgaLatency"] for x in raw["nodes"]))
    assert graph.persistent_bytes.sum() == sum(round(x["size"]) for x in raw["nodes"])
    assert (graph.forward_of >= 0).sum() == paired
    assert bl.OpGraph.from_networkx(graph.to_networkx()) == graph


def test_a_split_is_not_a_graph():
    path = DATA / "inceptionv3_inference_expert.json"
    if not path.exists():
        pytest.skip("the dnn-partitioning files are not beside this checkout")
    with pytest.raises(bl.FormatError, match="split"):
        bl.load_graph(path)
