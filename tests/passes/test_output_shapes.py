"""Shapes of outputs follow their ops through every pass; a new op has none, a group neither."""

import pytest

import baechi_lab as bl
from baechi_lab.passes.data_parallel import Bucket, divide_data
from baechi_lab.passes.replicate import Replicate

NAMES = ["const", "a", "b", "c", "b_grad", "a_grad", "update"]
EDGES = [(0, 1, 4), (0, 2, 4), (1, 2, 1000), (2, 3, 8), (3, 4, 8), (4, 5, 8), (1, 5, 1000), (5, 6, 4)]
GRAPH = bl.OpGraph.from_edges(
    [0, 1, 40, 40, 40, 1, 1],
    EDGES,
    names=NAMES,
    op_types=["Const", *["MatMul"] * 5, "Update"],
    forward_of=[-1, -1, -1, -1, 2, 1, -1],
    output_shapes=[f"f32[{name}]" for name in NAMES],
)
HOST = bl.Cluster.uniform(1, memory_bytes=10**6, link=bl.Link(1.0, 0.001), comm="duplex").with_host(10**6)


@pytest.mark.parametrize(
    ("graph", "new_ops"),
    [
        (bl.unroll(GRAPH, 2), 0),
        (bl.recompute(GRAPH, drop=["a"]), 0),
        (bl.offload(GRAPH, HOST, ["a"]), 1),
        (divide_data(GRAPH, [Bucket("w", 1, (5,), 6, 100, 200, 200, 600, copies=4)], lambda *_: 1.0, zero=0), 1),
        (Replicate().apply(GRAPH), 0),
    ],
    ids=["unroll", "recompute", "offload", "divide_data", "replicate"],
)
def test_ops_keep_their_shapes(graph, new_ops):
    assert graph.n > GRAPH.n and len(graph.output_shapes) == graph.n
    assert graph.output_shapes.count("") == new_ops
    for name, shape in zip(graph.names, graph.output_shapes, strict=True):
        assert shape in ("", f"f32[{name.split('/')[0]}]")
        assert shape or name not in GRAPH.index


def test_groups_have_no_output_shapes():
    coarse = bl.optimize(GRAPH)
    assert coarse.n < GRAPH.n and coarse.output_shapes == ()


def test_a_list_of_another_length_is_refused():
    with pytest.raises(bl.InvalidInput, match=r"output_shapes has shape \(1,\).*\(7,\)"):
        GRAPH.replace(output_shapes=["f32[1]"])
