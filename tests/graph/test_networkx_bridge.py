"""networkx and back without loss."""

import json

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import baechi_lab as bl
from baechi_lab.graph import generators


def two(**edge) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_node("a", duration_us=1)
    graph.add_node("b", duration_us=2.5)
    graph.add_edge("a", "b", **{"size_bytes": 8, **edge})
    return graph


def test_every_column_survives_the_way_to_networkx_and_back(full_graph):
    graph = full_graph
    converted = bl.OpGraph.from_networkx(graph.to_networkx())
    assert converted == graph and converted.output_shapes == graph.output_shapes
    assert converted.batch_readers == graph.batch_readers


def test_what_the_digraph_looks_like(full_graph):
    digraph = full_graph.to_networkx()
    assert list(digraph) == ["a", "b", "b/grad"]
    assert digraph.edges["a", "b"] == {"size_bytes": 8, "tensor": "left"}
    # b/grad reads both outputs of a: one edge, 8 + 16 bytes.
    assert digraph.edges["a", "b/grad"] == {"size_bytes": 24, "tensors": {"left": 8, "right": 16}}
    assert digraph.nodes["b"]["unread"] == {"unread": 4}
    assert digraph.nodes["b/grad"]["forward_of"] == "b"
    assert digraph.nodes["b"]["allowed"] == ["gpu:0", "cpu"]
    assert digraph.nodes["a"]["colocation_group"] == "w"
    assert digraph.nodes["a"]["duration_by_kind"] == {"cpu": 10.0}


@pytest.mark.parametrize(
    ("write", "read"), [(nx.node_link_data, nx.node_link_graph), (nx.adjacency_data, nx.adjacency_graph)]
)
def test_a_file_of_networkx_says_how_it_is_read(tmp_path, write, read):
    path = tmp_path / "two.json"
    path.write_text(json.dumps(write(two())))
    with pytest.raises(bl.FormatError, match=rf"networkx\.{read.__name__} .*bl\.OpGraph\.from_networkx"):
        bl.load_graph(path)
    graph = bl.OpGraph.from_networkx(read(json.loads(path.read_text())))
    assert graph == bl.OpGraph.from_networkx(two())


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 25), seed=st.integers(0, 10**6), share=st.floats(0, 1), groups=st.integers(0, 3))
def test_any_random_graph_survives(n, seed, share, groups):
    graph = generators.random_dag(n, degree=3.0, second_output=share, colocation_groups=groups, seed=seed)
    assert bl.OpGraph.from_networkx(graph.to_networkx()) == graph


def test_training_graphs_and_coarse_graphs_survive():
    graph = generators.unrolled_rnn(3, 2)
    assert bl.OpGraph.from_networkx(graph.to_networkx()) == graph
    coarse = bl.optimize(graph)
    loaded = bl.OpGraph.from_networkx(coarse.to_networkx())
    assert loaded == coarse
    assert loaded.source_key == graph.key


def test_edges_of_one_producer_with_one_size_are_one_tensor():
    graph = nx.DiGraph()
    graph.add_nodes_from([(k, {"duration_us": 1.0}) for k in range(4)])
    graph.add_edge(0, 1, size_bytes=8)
    graph.add_edge(0, 2, size_bytes=8)
    graph.add_edge(0, 3, size_bytes=4)
    op_graph = bl.OpGraph.from_networkx(graph)
    assert op_graph.names == ("0", "1", "2", "3")
    assert op_graph.tensor_bytes.tolist() == [4, 8]
    assert op_graph.tensor_consumers(1).tolist() == [1, 2]


def test_equal_sizes_with_different_names_are_different_tensors():
    graph = two(tensor="x")
    graph.add_node("c", duration_us=1)
    graph.add_edge("a", "c", size_bytes=8, tensor="y")
    op_graph = bl.OpGraph.from_networkx(graph)
    assert op_graph.tensor_names == ("x", "y")
    assert op_graph.tensor_bytes.tolist() == [8, 8]


def test_insertion_order_is_op_index_whatever_the_nodes_are():
    graph = nx.DiGraph()
    graph.add_node((2, "late"), duration_us=2, name="second")
    graph.add_node(frozenset({1}), duration_us=1, name="first")
    graph.add_edge(frozenset({1}), (2, "late"), size_bytes=4)
    op_graph = bl.OpGraph.from_networkx(graph, name="mine")
    assert op_graph.names == ("second", "first")
    assert op_graph.order.tolist() == [1, 0]
    assert op_graph.name == "mine"


def test_forward_of_by_node_and_by_name():
    graph = nx.DiGraph()
    graph.add_node(10, duration_us=1, name="f")
    graph.add_node(11, duration_us=1, forward_of=10)
    graph.add_node(12, duration_us=1, forward_of="f")
    assert bl.OpGraph.from_networkx(graph).forward_of.tolist() == [-1, 0, 0]


def test_allowed_as_text_or_list():
    graph = nx.DiGraph()
    graph.add_node("a", duration_us=1, allowed="gpu")
    graph.add_node("b", duration_us=1, allowed=["gpu"])
    graph.add_node("c", duration_us=1, allowed=("cpu:0", "gpu"))
    op_graph = bl.OpGraph.from_networkx(graph)
    assert op_graph.allowed.tolist() == [0, 0, 1]
    assert op_graph.allowed_sets == (("gpu",), ("cpu:0", "gpu"))


def test_multidigraph_edges_are_tensors():
    graph = nx.MultiDiGraph()
    graph.add_node("a", duration_us=1)
    graph.add_node("b", duration_us=1)
    graph.add_edge("a", "b", size_bytes=8, tensor="x")
    graph.add_edge("a", "b", size_bytes=8, tensor="y")
    op_graph = bl.OpGraph.from_networkx(graph)
    assert op_graph.tensor_names == ("x", "y")
    assert bl.OpGraph.from_networkx(op_graph.to_networkx()) == op_graph


def test_unnamed_and_named_tensors_do_not_collide():
    graph = two(tensor="0")
    graph.add_node("c", duration_us=1)
    graph.add_edge("a", "c", size_bytes=16)
    op_graph = bl.OpGraph.from_networkx(graph)
    assert sorted(op_graph.tensor_names) == ["0", "1"]


def test_nan_and_negative_costs():
    for value in (float("nan"), -1.0, float("inf")):
        graph = two()
        graph.nodes["a"]["duration_us"] = value
        with pytest.raises(bl.CostError, match="'a'"):
            bl.OpGraph.from_networkx(graph)


def with_node(**attributes):
    graph = two()
    graph.nodes["b"].update(attributes)
    return graph


@pytest.mark.parametrize(
    ("graph", "error", "words"),
    [
        (nx.Graph(), bl.InvalidInput, "DiGraph"),
        (5, bl.InvalidInput, "DiGraph"),
        (nx.DiGraph([("a", "b")]), bl.InvalidInput, "node 'a' has no duration_us"),
        (two(size_bytes=None), bl.InvalidInput, "edge 'a' -> 'b' has no size_bytes"),
        (two(size_bytes=1.5), bl.CostError, "1.5"),
        (two(size_bytes=-4), bl.CostError, "-4"),
        (two(size_bytes="big"), bl.CostError, "'big'"),
        (two(tensors={"x": 3, "y": 4}), bl.InvalidInput, "add up to 7"),
        (two(tensors=[1, 2]), bl.InvalidInput, "tensors"),
        (with_node(forward_of="z"), bl.UnknownOpError, "'z'"),
        (with_node(forward_of="b"), bl.InvalidInput, "itself"),
        (with_node(name="a"), bl.DuplicateNameError, "'a'"),
        (with_node(persistent_bytes=float("nan")), bl.CostError, "persistent_bytes"),
        (with_node(unread=[1]), bl.InvalidInput, "unread"),
        (with_node(allowed=()), bl.InvalidInput, "allowed"),
        (nx.DiGraph([("a", "a")]), bl.InvalidInput, "'a'"),
    ],
)
def test_bad_graphs_are_rejected(graph, error, words):
    with pytest.raises(error, match=words):
        bl.OpGraph.from_networkx(graph)


def test_cycles_and_loops_are_rejected():
    graph = two()
    graph.add_edge("b", "a", size_bytes=4)
    with pytest.raises(bl.CycleError, match="cycle"):
        bl.OpGraph.from_networkx(graph)
    graph = two()
    graph.add_edge("b", "b", size_bytes=4)
    with pytest.raises(bl.CycleError, match="'b' reads its own output"):
        bl.OpGraph.from_networkx(graph)


def test_one_tensor_has_one_size():
    graph = two(tensor="x")
    graph.add_node("c", duration_us=1)
    graph.add_edge("a", "c", size_bytes=9, tensor="x")
    with pytest.raises(bl.CostError, match="'x' of op 'a' has 8 bytes on one edge and 9"):
        bl.OpGraph.from_networkx(graph)


ODD = (
    None,
    [],
    {},
    "x",
    "",
    -1,
    1.5,
    10**400,
    2**63,
    2**53 + 1,
    float("nan"),
    float("inf"),
    True,
    "\ud800",
    {"a": 1},
    ["gpu", 3],
    [None],
    {"a": 10**400},
    (1, 2),
    b"x",
    {1: 2},
    object(),
)


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_odd_attributes_are_one_sentence_or_taken(value):
    keys = {
        "node": (
            "name",
            "op_type",
            "duration_us",
            "duration_by_kind",
            "temp_bytes",
            "persistent_bytes",
            "colocation_group",
            "allowed",
            "forward_of",
            "unread",
            "outputs",
        ),
        "edge": ("size_bytes", "tensor", "tensors"),
        "graph": ("name", "colocation_groups", "allowed_sets", "group_of", "source_key"),
    }
    for place, names in keys.items():
        for key in names:
            digraph = nx.DiGraph()
            digraph.add_node("a", duration_us=1.0)
            digraph.add_node("b", duration_us=2.0)
            digraph.add_edge("a", "b", size_bytes=4)
            {"node": digraph.nodes["a"], "edge": digraph.edges["a", "b"], "graph": digraph.graph}[place][key] = value
            try:
                graph = bl.OpGraph.from_networkx(digraph)
            except bl.BaechiLabError as error:
                assert "\n" not in str(error) and len(str(error)) < 400, (place, key)
            else:
                assert graph.n == 2 and bl.OpGraph.from_networkx(graph.to_networkx()).key == graph.key, (place, key)
