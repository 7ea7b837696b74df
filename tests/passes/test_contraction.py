"""Contraction: structure, costs, and memory that neither hides nor doubles bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import baechi_lab as bl
from baechi_lab.graph.generators import chain, random_dag
from baechi_lab.memory.peak import single_device_peak
from baechi_lab.passes import contract
from baechi_lab.passes.fusion import fuse


def test_nothing_to_merge_returns_the_graph_itself():
    graph = chain(4)
    assert contract(graph, np.array([9, 3, 5, 1])) is graph
    empty = chain(0)
    assert contract(empty, np.zeros(0, dtype=int)) is empty


def test_groups_are_numbered_by_their_smallest_member():
    coarse = contract(chain(4), np.array([7, 2, 2, 5]))
    assert coarse.group_of.tolist() == [0, 1, 1, 2]


def test_sums_names_and_tensors():
    graph = bl.OpGraph.from_edges(
        [1.0, 2.0, 4.0, 8.0],
        [(0, 1, 10), (0, 2, 10), (1, 2, 20), (1, 3, 30), (2, 3, 40)],
        names=["a", "b", "c", "d"],
        op_types=["A", "B", "C", "D"],
        persistent_bytes=[1, 2, 2**60, 4],
        duration_by_kind={"cpu": [10.0, 20.0, 30.0, 40.0]},
    )
    coarse = contract(graph, np.array([0, 1, 1, 3]))
    assert coarse.names == ("a", "c", "d")  # b and c are named after the longer one
    assert coarse.op_types == ("A", "C", "D")
    assert coarse.duration_us.tolist() == [1.0, 6.0, 8.0]
    assert coarse.duration_by_kind["cpu"].tolist() == [10.0, 50.0, 40.0]
    assert coarse.persistent_bytes.tolist() == [1, 2**60 + 2, 4]  # exact, as float64 would not be
    # b -> c disappears; a's tensor is read by the group once; b's and c's outputs stay apart.
    assert [coarse.tensor_label(t) for t in range(3)] == ["a:0", "c:b:1", "c:c:0"]
    assert coarse.tensor_bytes.tolist() == [10, 30, 40]
    assert [coarse.tensor_consumers(t).tolist() for t in range(3)] == [[1], [2], [2]]


def test_groups_of_groups_lead_to_the_original_ops():
    graph = chain(6)
    once = contract(graph, np.array([0, 0, 2, 2, 4, 5]))
    twice = contract(once, np.array([0, 0, 1, 1]))
    assert twice.group_of.tolist() == [0, 0, 0, 0, 1, 1]
    assert twice.source_key == graph.key
    assert [m.tolist() for m in twice.members] == [[0, 1, 2, 3], [4, 5]]


def test_a_placement_of_groups_is_a_placement_of_ops():
    graph = chain(4, duration_us=1.0)
    coarse = contract(graph, np.array([0, 0, 1, 1]))
    cluster = bl.Cluster.uniform(2)
    placement = bl.place(coarse, cluster, "m-etf")
    assert placement.on(graph).device.tolist() == placement.device[[0, 0, 1, 1]].tolist()


def test_the_chain_by_hand():
    """Chain of 100-byte tensors a -> b -> c -> d; b and c merge.

    One by one: while b runs, a:0 and b:0 are held, 200; while c runs, b:0 and c:0, 200 (a:0 is gone).
    The coarse op has a:0 as its own input and c:0 as its output: 200 are counted already, so temp is 0.
    """
    graph = chain(4, duration_us=1.0, size_bytes=100)
    coarse = contract(graph, np.array([0, 1, 1, 3]))
    assert coarse.temp_bytes.tolist() == [0, 0, 0]
    assert single_device_peak(graph) == single_device_peak(coarse) == 200


def test_inner_tensors_and_temporaries_by_hand():
    """a -> b (10 bytes), b -> c (500, inner), c -> d (20); temporaries b 7, c 9.

    b runs: 10 + 500 + 7 = 517. c runs: 500 + 20 + 9 = 529 (a's 10 are gone). Counted by the simulator: input 10
    and output 20, so temp = 529 - 30 = 499.
    """
    graph = bl.OpGraph.from_edges([1] * 4, [(0, 1, 10), (1, 2, 500), (2, 3, 20)], temp_bytes=[0, 7, 9, 0])
    coarse = contract(graph, np.array([0, 1, 1, 3]))
    assert coarse.temp_bytes.tolist() == [0, 499, 0]
    assert single_device_peak(graph) == single_device_peak(coarse) == 529


def test_ops_between_which_nothing_is_sent():
    """One runs after the other, and each has its own temporaries."""
    coarse = contract(bl.OpGraph.from_edges([1.0, 2.0, 4.0], temp_bytes=[3, 5, 7]), np.array([0, 0, 1]))
    assert coarse.duration_us.tolist() == [3.0, 4.0] and coarse.temp_bytes.tolist() == [5, 7]


def test_an_input_that_others_read_too_is_not_given_back_early():
    """a's 10 bytes are read by b and by d, so they stay while c runs: 10 + 500 + 20 + 9 = 539."""
    edges = [(0, 1, 10), (0, 3, 10), (1, 2, 500), (2, 3, 20)]
    graph = bl.OpGraph.from_edges([1] * 4, edges, temp_bytes=[0, 7, 9, 0])
    coarse = contract(graph, np.array([0, 1, 1, 3]))
    assert coarse.temp_bytes.tolist() == [0, 539 - 30 + 10 - 10, 0]
    assert single_device_peak(graph) == single_device_peak(coarse) == 539


def test_unread_outputs_of_members_are_temporary_and_of_single_ops_stay():
    graph = bl.OpGraph(
        names=("a", "b"),
        duration_us=[1, 1],
        tensor_producer=[0, 0, 1],
        tensor_bytes=[8, 64, 32],
        consumer_ptr=[0, 1, 1, 1],
        consumers=[1],
    )
    coarse = contract(graph, np.array([0, 0]))
    assert coarse.tensor_count == 0
    assert coarse.temp_bytes.tolist() == [8 + 64]  # while a runs; later b holds 8 + 32
    three = contract(bl.OpGraph.from_edges([1, 1, 1, 1], [(0, 1, 8), (2, 3, 4)]), np.array([0, 0, 2, 3]))
    assert three.tensor_bytes.tolist() == [4]


def random_groups(graph: bl.OpGraph, rng: np.random.Generator) -> np.ndarray:
    """Groups that cannot make a cycle: what fusion allows for random keys."""
    key = rng.integers(-1, 2, size=graph.n)
    return fuse(graph.edge_source.astype(np.int64), graph.consumers.astype(np.int64), key)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(n=st.integers(1, 25), seed=st.integers(0, 10**6))
def test_memory_is_never_hidden(n, seed, slow_peak, check_coarse):
    """The coarse peak is at least the peak of the members run group after group, and exact where nothing is cut."""
    graph = random_dag(n, second_output=0.3, temp_bytes=(0, 10**6), persistent_bytes=(0, 10**6), seed=seed)
    coarse = contract(graph, random_groups(graph, np.random.default_rng(seed)))
    check_coarse(graph, coarse)
    assert coarse.persistent_bytes.sum() == graph.persistent_bytes.sum()
    position = np.argsort(graph.order)
    order = [m for g in coarse.order for m in sorted(coarse.members[g], key=lambda i: position[i])]
    assert slow_peak(coarse, coarse.order) >= slow_peak(graph, order)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 20), seed=st.integers(0, 10**6), data=st.data())
def test_chains_keep_their_peak_exactly(n, seed, data, slow_peak):
    """Whenever no group's formula is cut at 0, the peak of a chain is the same before and after."""
    graph = chain(n, size_bytes=(1, 100), seed=seed).replace(temp_bytes=np.full(n, 200))
    cuts = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    coarse = contract(graph, np.cumsum(cuts))
    assert slow_peak(coarse, coarse.order) == slow_peak(graph, graph.order)


def test_the_simulator_sees_the_same_peak():
    graph = chain(9, size_bytes=(10, 1000), seed=2).replace(temp_bytes=np.full(9, 2000))
    coarse = contract(graph, np.array([0, 0, 0, 1, 1, 2, 3, 3, 3]))
    cluster = bl.Cluster.uniform(1)
    peaks = [
        bl.simulate(g, cluster, bl.Placement(device=np.zeros(g.n, dtype=int))).peak_bytes[0] for g in (graph, coarse)
    ]
    assert peaks[0] == peaks[1] == single_device_peak(graph)


def test_groups_of_a_cycle_are_refused():
    with pytest.raises(bl.CycleError):
        contract(chain(3), np.array([0, 1, 0]))


def test_a_wrong_group_array_is_refused():
    for group in ([0, 1], [[0, 1, 2]], [0.5, 1, 2]):
        with pytest.raises(bl.InvalidInput, match="group"):
            contract(chain(3), np.array(group))


def test_colocation_groups_that_meet_become_one():
    graph = chain(5).replace(colocation=[0, 1, 1, 2, -1], colocation_names=("x", "y", "z"))
    coarse = contract(graph, np.array([0, 0, 2, 3, 4]))  # ops of x and y merge
    assert coarse.colocation.tolist() == [0, 0, 1, -1]
    assert coarse.colocation_names == ("x", "z")


def test_allowed_lists_meet():
    sets = (("gpu", "cpu"), ("cpu", "tpu"))
    graph = chain(3).replace(allowed=[0, 1, -1], allowed_sets=sets)
    coarse = contract(graph, np.array([0, 0, 2]))
    assert coarse.allowed_sets[coarse.allowed[0]] == ("cpu",)
    assert coarse.allowed[1] == -1
    with pytest.raises(bl.ColocationError, match="op1"):
        contract(graph.replace(allowed_sets=(("gpu",), ("cpu",))), np.array([0, 0, 2]))
    with pytest.raises(bl.ColocationError, match="no list combines"):
        contract(graph.replace(allowed_sets=(("gpu:0",), ("gpu",))), np.array([0, 0, 2]))


def test_forward_of_follows_the_majority():
    # Backward ops 3, 4, 5 of forward ops 0, 0, 1; groups {0}, {1}, {2}, {3, 4, 5}.
    graph = chain(6).replace(forward_of=[-1, -1, -1, 0, 0, 1])
    assert contract(graph, np.array([0, 1, 2, 3, 3, 3])).forward_of.tolist() == [-1, -1, -1, 0]
    graph = graph.replace(forward_of=[-1, -1, -1, 0, -1, 1])  # an update between two gradients
    assert contract(graph, np.array([0, 1, 2, 3, 3, 3])).forward_of.tolist() == [-1, -1, -1, -1]


def test_bug_gradients_of_several_ops_had_no_forward_op():
    """A group of backward ops alone, such as the gradients of an activation and of the product before it, belongs to the
    group of most of their forward ops, and of these to that of more time."""
    graph = chain(6).replace(forward_of=[-1, -1, -1, 0, 2, 1], duration_us=[1.0, 1.0, 1.0, 2.0, 3.0, 1.0])
    assert contract(graph, np.array([0, 1, 2, 3, 3, 3])).forward_of.tolist() == [-1, -1, -1, 2]
    graph = graph.replace(forward_of=[-1, -1, -1, 0, 2, 0])
    assert contract(graph, np.array([0, 1, 2, 3, 3, 3])).forward_of.tolist() == [-1, -1, -1, 0]


def test_tensor_names_stay_distinct():
    graph = bl.OpGraph(
        names=("a", "a:b", "c"),
        duration_us=[1, 1, 1],
        tensor_producer=[0, 1],
        tensor_bytes=[4, 4],
        consumer_ptr=[0, 2, 3],
        consumers=[1, 2, 2],
        tensor_names=("b:x", "x"),
    )
    assert contract(graph, np.array([0, 0, 2])).tensor_names == ("0", "1")
