"""Recomputation in graphs of a few ops: the optimum over all orders and repetitions, against enumeration."""

import itertools

import numpy as np
import pytest
from fewer import fast

import baechi_lab as bl
from baechi_lab.memory.peak import order_peak
from baechi_lab.memory_saving import order_search as orders_module
from baechi_lab.memory_saving.op_sequence import OpSequence
from baechi_lab.memory_saving.order_search import OrderSearch
from baechi_lab.memory_saving.recompute import graph_with_copies
from baechi_lab.memory_saving.training_graph import TrainingGraph


def sequences(graph, training, repeats):
    """Every order of the ops in which at most so many run again."""
    repeatable = set(np.flatnonzero(training.may_repeat).tolist())
    pointer, ops = graph.predecessors
    before = [set(ops[a:b].tolist()) for a, b in itertools.pairwise(pointer)]

    def longer(prefix, runs_left):
        executed = set(prefix)
        if len(executed) == graph.n:
            yield prefix
            return
        for op in range(graph.n):
            if op not in executed and before[op] <= executed:
                yield from longer([*prefix, op], runs_left)
            elif op in executed and op in repeatable and runs_left:
                yield from longer([*prefix, op], runs_left - 1)

    return longer([], repeats)


def small(seed):
    rng = np.random.default_rng(seed)
    forward = bl.generators.random_dag(3, seed=seed, size_bytes=(1000, 4000), temp_bytes=(0, 2000))
    graph = bl.generators.with_backward(forward)
    if seed % 2:
        return graph.replace(reuse=rng.choice([0, 1, 2, 3], graph.n), persistent_bytes=rng.integers(0, 999, graph.n))
    return graph


@pytest.mark.slow
@pytest.mark.parametrize("seed", fast(range(5), 1))
def test_the_best_of_all_orders_is_found(seed):
    graph = small(seed)
    training, peaks_and_work = TrainingGraph(graph), []
    for ops in sequences(graph, training, 2):
        plan = OpSequence(training, np.array(ops))
        peaks_and_work.append((order_peak(graph_with_copies(plan, plan.node), plan.node), plan.work_us))
    assert OrderSearch(training).least_bytes == min(peak for peak, _ in peaks_and_work)
    before = np.inf
    for budget in sorted({peak for peak, _ in peaks_and_work}):
        recomputed = bl.recompute(graph, budget=budget)
        timeline = bl.simulate(recomputed, bl.Cluster.uniform(1), bl.Placement(device=[0] * recomputed.n))
        work = float(recomputed.duration_us.sum() - graph.duration_us.sum())
        assert timeline.peak_bytes[0] <= budget
        assert work <= min(us for peak, us in peaks_and_work if peak <= budget) + 1e-6 and work <= before + 1e-6
        before = work


def test_the_order_saves_what_repeating_cannot():
    """Two branches of which each ends in little: one after the other holds 1000 bytes, side by side 2000."""
    edges = [(0, 1, 8), (0, 2, 8), (1, 3, 1000), (2, 4, 1000), (3, 5, 8), (4, 5, 8)]
    graph = bl.OpGraph.from_edges([1] * 6, edges, op_types=["Data", "Loss", "Loss", "op", "op", "op"])
    with pytest.raises(bl.InfeasiblePlacement, match="in whatever order its ops run") as refused:
        bl.recompute(graph, budget=1)
    assert refused.value.needed_bytes == 1016  # x is read by the other branch as well, or the first one's end is held
    recomputed = bl.recompute(graph, budget=1016)
    timeline = bl.simulate(recomputed, bl.Cluster.uniform(1), bl.Placement(device=[0] * recomputed.n))
    assert recomputed.n == graph.n and timeline.peak_bytes[0] == 1016


def test_the_empty_graph_has_an_empty_order():
    orders = OrderSearch(TrainingGraph(bl.OpGraph.from_edges([])))
    assert orders.least_bytes == 0 and len(orders.sequence(0)) == 0


def test_too_much_to_try_proves_nothing(monkeypatch):
    """Seven values that four ops each read: more sets of them than may be looked at, so one order is what is proven."""
    edges = [(0, i, 50) for i in range(1, 8)] + [(i, j, 10 * i + j) for i in range(1, 8) for j in range(8, 12)]
    graph = bl.OpGraph.from_edges([1] * 12, edges, forward_of=[-1] * 8 + [1, 2, 3, 4])
    monkeypatch.setattr(orders_module, "MOST_TRIED", 1_000)
    assert OrderSearch(TrainingGraph(graph)).least_bytes is None
    with pytest.raises(bl.InfeasiblePlacement) as refused:
        bl.recompute(graph, budget=1)
    assert "in whatever order" not in str(refused.value)
    recomputed = bl.recompute(graph, budget=refused.value.needed_bytes)
    timeline = bl.simulate(recomputed, bl.Cluster.uniform(1), bl.Placement(device=[0] * recomputed.n))
    assert timeline.peak_bytes[0] <= refused.value.needed_bytes
