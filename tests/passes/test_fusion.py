"""Fusion by the safe-degree rule: Jeon et al.'s examples, both forms, and properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import baechi_lab as bl
from baechi_lab.graph.generators import chain, gnmt, random_dag
from baechi_lab.passes.contraction import contract
from baechi_lab.passes.coplacement import CoPlacement
from baechi_lab.passes.forward_only import ForwardOnly
from baechi_lab.passes.fusion import Fusion, distinct_edges, fuse


def one_group(n: int, edges: list[tuple[int, int, int]]) -> bl.OpGraph:
    return bl.OpGraph.from_edges([1.0] * n, edges, colocation=[0] * n, colocation_names=("g",))


def labels(graph: bl.OpGraph) -> list[int]:
    return Fusion().apply(graph).group_of.tolist()


def test_benefit_of_fusion_as_published():
    """Section 3.3, figure 6: 7 time units before fusion, 3 after.

    Grad and Step both feed UpdateStep; Step and UpdateStep are colocated; every op takes 1, Grad -> UpdateStep 5.
    Before: Grad on device 1 (0-1), Step on the idle device 2 (0-1), so UpdateStep waits there: 1 + 5, 6-7.
    After: {Step, UpdateStep} starts on device 1 when Grad has ended, 1 + 2 = 3; on device 2 it could start at 6.
    """
    graph = bl.OpGraph.from_edges(
        [1.0, 1.0, 1.0],
        [(0, 2, 5), (1, 2, 1)],
        names=["Grad", "Step", "UpdateStep"],
        colocation=[-1, 0, 0],
        colocation_names=("step",),
    )
    cluster = bl.Cluster.uniform(2, link=bl.Link(0.0, 1.0))
    by_hand = bl.Placement(device=[0, 1, 1])
    assert bl.simulate(graph, cluster, by_hand).makespan_us == 7
    fused = Fusion().apply(graph)
    assert fused.group_of.tolist() == [0, 1, 1]
    assert fused.duration_us.tolist() == [1.0, 2.0]
    placement = bl.place(fused, cluster, "m-etf")
    assert bl.simulate(graph, cluster, placement).makespan_us == 3
    assert bl.simulate(fused, cluster, placement).makespan_us == 3


def test_no_cycle_as_in_figure_4():
    """Fusing both pairs of the working example would close a cycle: the rule merges one of them only.

    Groups {Weight, ApplyGrad} and {Step, UpdateStep}; Weight -> Grad -> ApplyGrad -> UpdateStep, Weight -> ApplyGrad,
    Step -> ApplyGrad, Step -> UpdateStep. Step has two successors and UpdateStep two predecessors: not merged. Weight
    has two successors (Grad, ApplyGrad) and ApplyGrad three predecessors: not merged.
    """
    graph = bl.OpGraph.from_edges(
        [1.0] * 5,
        [(0, 1, 4), (1, 2, 4), (0, 2, 4), (3, 2, 4), (3, 4, 4), (2, 4, 4)],
        names=["Weight", "Grad", "ApplyGrad", "Step", "UpdateStep"],
        colocation=[0, -1, 0, 1, 1],
        colocation_names=("w", "s"),
    )
    assert Fusion().apply(graph) is graph


def test_figure_5_safe_cases():
    # (d) the source has one successor; (e) the target has one predecessor.
    assert labels(one_group(2, [(0, 1, 4)])) == [0, 0]
    side = bl.OpGraph.from_edges([1.0] * 3, [(0, 1, 4), (0, 2, 4)], colocation=[0, 0, -1], colocation_names=("g",))
    assert labels(side) == [0, 0, 1]
    # (a) a second path 0 -> 1 -> 2 beside 0 -> 2, where 1 is of another group.
    path = [(0, 1, 4), (1, 2, 4), (0, 2, 4)]
    unsafe = bl.OpGraph.from_edges([1.0] * 3, path, colocation=[0, -1, 0], colocation_names=("g",))
    assert Fusion().apply(unsafe) is unsafe
    # All of one group: 1 has one successor, so 1 joins 2; then only one edge is left.
    assert labels(one_group(3, path)) == [0, 0, 0]


def test_parallel_tensors_between_two_ops_count_as_one_neighbour():
    graph = bl.OpGraph.from_edges([1.0] * 2, [(0, 1, 4), (0, 1, 8)], colocation=[0, 0], colocation_names=("g",))
    assert graph.tensor_count == 2
    assert labels(graph) == [0, 0]


def test_ops_without_a_group_are_left_alone():
    graph = chain(5)
    assert Fusion().apply(graph) is graph


def test_collectives_stay_apart_from_ops_that_compute():
    """A chain of one group: the two matrix products merge, the two collectives merge, and the last op stays alone."""
    types = ["matmul", "matmul", "all_reduce", "all_gather", "matmul"]
    graph = bl.OpGraph.from_edges(
        [1.0, 2.0, 4.0, 8.0, 16.0],
        [(i, i + 1, 4) for i in range(4)],
        op_types=types,
        colocation=[0] * 5,
        colocation_names=("a",),
        forward_of=[-1, -1, -1, -1, 3],
    )
    coarse = Fusion().apply(graph)
    assert coarse.duration_us.tolist() == [3.0, 12.0, 16.0]
    assert coarse.on_communication_lane.tolist() == [False, True, False]
    assert ForwardOnly().apply(graph).n == 5  # the backward op of a collective computes
    with pytest.raises(bl.InvalidInput, match="group holds 'op2', which is a collective, and ops that compute"):
        contract(graph, np.zeros(5, dtype=int))


def test_the_first_group_counts_too():
    """Group 0 without allowed lists once had the key of "no group"."""
    assert Fusion().apply(one_group(4, [(0, 1, 4), (1, 2, 4), (2, 3, 4)])).n == 1


def test_lists_that_only_a_cluster_can_combine_stay_apart():
    graph = one_group(3, [(0, 1, 4), (1, 2, 4)]).replace(allowed=[0, 1, 1], allowed_sets=(("gpu:0",), ("gpu",)))
    assert labels(graph) == [0, 1, 1]


def mergeable_edges(source, target, key, label):
    """Edges that the rule would still allow to be merged."""
    u, v = distinct_edges(label[source], label[target], len(key))
    out, into = np.bincount(u, minlength=len(key)), np.bincount(v, minlength=len(key))
    return np.flatnonzero((key[u] == key[v]) & (key[u] >= 0) & ((out[u] == 1) | (into[v] == 1)))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(1, 40),
    degree=st.floats(0.5, 3),
    seed=st.integers(0, 10**6),
    max_rounds=st.sampled_from([0, 1, 2, 12]),
)
def test_both_forms_reach_a_fixed_point_without_cycles(n, degree, seed, max_rounds, check_coarse):
    """`max_rounds` 0 is the work list alone, 12 nearly always the array form alone."""
    graph = random_dag(n, degree=degree, colocation_groups=2, grouped=0.9, seed=seed)
    source, target, key = graph.edge_source.astype(np.int64), graph.consumers.astype(np.int64), graph.colocation
    label = fuse(source, target, key.astype(np.int64), max_rounds)
    assert len(mergeable_edges(source, target, key, label)) == 0
    assert np.all(label <= np.arange(n))
    assert np.array_equal(label[label], label)
    assert np.array_equal(key[label], key)
    from baechi_lab.passes import contract

    check_coarse(graph, contract(graph, label))  # raises CycleError if there were a cycle


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_a_second_fusion_changes_nothing(n, seed):
    once = Fusion().apply(random_dag(n, degree=1.5, colocation_groups=2, grouped=0.9, seed=seed))
    assert Fusion().apply(once) is once


def test_a_ladder_needs_the_work_list():
    """Each merge makes the next one possible: rungs of two groups, far more turns than the array form takes."""
    rungs = 60
    edges = [(k, k + 1, 4) for k in range(rungs - 1)] + [(k, k + 2, 4) for k in range(rungs - 2)]
    graph = one_group(rungs, edges)
    # The last op but one has one successor; once the two are one op, so has the op before them; and so on.
    assert Fusion().apply(graph).n == 1


def test_colocated_chains_of_a_large_graph():
    graph = gnmt(ops=5000)
    coarse = bl.optimize(graph, passes=["colocation", CoPlacement(readers="all"), "fusion"])
    assert coarse.n < 0.5 * graph.n
    assert coarse.source_key == graph.key
