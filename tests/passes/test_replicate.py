"""The pass `replicate`: constants are copied to the devices of their readers, and nothing is sent for them."""

import numpy as np
import pytest

from baechi_lab import Cluster, Link, OpGraph, Placement, check, optimize, place, simulate
from baechi_lab.errors import InvalidInput
from baechi_lab.passes.replicate import Replicate


def with_constant(**columns):
    """const -> a, b; a -> c; b -> c. Ops 1, 10, 10, 5."""
    edges = [(0, 1, 4), (0, 2, 4), (1, 3, 8), (2, 3, 16)]
    columns = {"op_types": ("Const", "MatMul", "MatMul", "Add"), "names": ["const", "a", "b", "c"], **columns}
    return OpGraph.from_edges([1, 10, 10, 5], edges, **columns)


def test_a_constant_is_on_both_devices():
    graph = with_constant()
    copied = Replicate().apply(graph)
    assert copied.names == ("const", "a", "b", "c", "const/replicate/_1")
    assert copied.colocation[0] == copied.colocation[1] >= 0 and copied.colocation[4] == copied.colocation[2] >= 0
    cluster = Cluster.uniform(2, memory_bytes=1000, link=Link(100.0, 0.0))
    before = simulate(graph, cluster, Placement(device=[0, 0, 1, 0]))
    placement = Placement(
        device=[0, 0, 1, 0, 1], graph_key=copied.key, group_of=copied.group_of, source_key=copied.source_key
    )
    after = simulate(copied, cluster, placement)
    # Sent: 1 + 100 + 10 + 100 + 5. Copied: 1 + 10 + 100 + 5.
    assert before.makespan_us == 216 and after.makespan_us == 116
    assert len(before.transfers) == 2 and len(after.transfers) == 1
    assert not check(copied, cluster, placement, after)
    # The placement is also one of the original graph, with the constant on the device of its first copy.
    assert placement.on(graph).device.tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize(
    "change",
    [
        {"op_types": ("Variable", "MatMul", "MatMul", "Add")},
        {"persistent_bytes": [4, 0, 0, 0]},
        {"allowed": [0, -1, -1, -1], "allowed_sets": (("gpu:0",),)},
        {"colocation": [0, 0, -1, -1], "colocation_names": ("a",)},
    ],
    ids=["type", "persistent", "allowed", "grouped"],
)
def test_sources_that_may_not_be_copied_stay(change):
    graph = with_constant(**change)
    assert Replicate().apply(graph) is graph


def test_long_or_large_sources_are_sent():
    graph = with_constant()
    assert Replicate(max_duration_us=0.5).apply(graph) is graph
    assert Replicate(max_bytes=3).apply(graph) is graph
    assert Replicate(types=("MatMul",)).apply(graph) is graph  # reads something


def test_readers_of_one_group_share_a_copy():
    graph = with_constant(colocation=[-1, 0, 0, -1], colocation_names=("pair",))
    copied = Replicate().apply(graph)
    assert copied.n == 4 and copied.colocation.tolist() == [0, 0, 0, -1]


def test_several_tensors_and_unread_ones():
    graph = OpGraph.from_edges([1, 2, 3], [(0, 1, 4), (0, 2, 8)], op_types=("Const", "op", "op"))
    copied = Replicate().apply(graph)
    assert copied.tensor_producer.tolist() == [0, 3] and copied.tensor_bytes.tolist() == [4, 8]
    assert copied.consumers.tolist() == [1, 2]
    assert Replicate().apply(copied) is copied


def test_it_composes_with_the_other_passes_and_placers():
    rng = np.random.default_rng(0)
    edges = [(0, i, 4) for i in range(1, 20)] + [(i, i + 1, int(rng.integers(10, 99))) for i in range(1, 19)]
    graph = OpGraph.from_edges([1] + [10] * 19, edges, op_types=("Const",) + ("op",) * 19)
    coarse = optimize(graph, passes=("replicate", "colocation", "coplacement", "fusion"))
    cluster = Cluster.uniform(2, memory_bytes=10_000, link=Link(5.0, 0.0))
    for target in (coarse, Replicate().apply(graph)):
        placement = place(target, cluster, "m-etf")
        assert simulate(target, cluster, placement).feasible and simulate(graph, cluster, placement).feasible


def test_bad_parameters_are_rejected():
    for bad in ({"types": "Const"}, {"max_bytes": -1}, {"max_duration_us": -1.0}):
        with pytest.raises(InvalidInput):
            Replicate(**bad).validate()
