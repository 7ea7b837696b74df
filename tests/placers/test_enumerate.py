"""The best schedule of small graphs: against brute force, under every rule that narrows it down."""

import numpy as np
import pytest
from brute_force import optimum
from fewer import fast

from baechi_lab import Cluster, Device, Link, OpGraph, optimize, place, simulate
from baechi_lab.errors import InfeasiblePlacement
from baechi_lab.graph import generators
from baechi_lab.placers.evaluation.enumerate import best_schedule
from baechi_lab.simulator import makespan_and_peak


def problem(k: int) -> tuple[OpGraph, Cluster]:
    """Up to 6 ops: groups, allowed devices, short memory, unequal devices, zero durations, collectives and links by turns."""
    rng = np.random.default_rng([15, k])
    n = int(rng.integers(2, 7))
    count = int(rng.integers(1, 4)) if n < 6 else 2
    share = rng.choice([0.2, 0.4, 0.7])
    edges = [(i, j, int(rng.integers(0, 12))) for i in range(n) for j in range(i + 1, n) if rng.random() < share]
    graph = OpGraph.from_edges(
        rng.integers(k % 3 == 0, 8, n).astype(float) if k % 2 else rng.random(n) * 5,
        edges,
        temp_bytes=rng.integers(0, 25, n),
        persistent_bytes=rng.integers(0, 45, n) * (rng.random(n) < 0.7),
        colocation=np.where(rng.random(n) < (0.3 if k % 4 == 0 else 0.0), 0, -1),
        colocation_names=("a",),
        allowed=np.where(rng.random(n) < (0.3 if k % 5 == 0 else 0.0), 0, -1),
        allowed_sets=(("gpu:0",),),
        op_types=["all_reduce" if k % 4 == 3 and i % 2 else "matmul" for i in range(n)],
    )
    total = max(int(graph.persistent_bytes.sum() + graph.tensor_bytes.sum() + graph.temp_bytes.max()), 1)
    memory = (rng.uniform(0.5, 1.2, count) * total).astype(int).tolist() if k % 2 else [10**9] * count
    speed = rng.choice([1.0, 2.0], count) if k % 7 == 0 else np.ones(count)
    devices = tuple(Device(f"gpu:{i}", "gpu", m, speed=float(speed[i])) for i, m in enumerate(memory))
    link = Link(float(rng.choice([0, 1, 3])), float(rng.choice([0, 0.1, 0.5])))
    return graph, Cluster(devices, link, ("parallel", "sequential", "duplex")[k % 3])


@pytest.mark.parametrize("start", fast(range(0, 60, 15), 1))
def test_it_is_the_optimum_of_brute_force(start):
    for k in range(start, start + 15):
        graph, cluster = problem(k)
        try:
            least, best = optimum(graph, cluster), best_schedule(graph, cluster, max_simulations=10**9)
        except InfeasiblePlacement:  # a group whose ops may run on no common device
            continue
        assert best.complete and best.makespan_us == pytest.approx(least, rel=1e-9), k
        if best.placement is not None:
            makespan, peak = makespan_and_peak(graph, cluster, best.placement)
            assert makespan == best.makespan_us and np.all(peak <= cluster.memory_bytes)


@pytest.mark.slow
def test_bug_auto_was_not_the_optimum_of_small_graphs():
    for k in range(20):
        graph, cluster = problem(k)
        least = optimum(graph, cluster)
        if not np.isfinite(least):
            with pytest.raises(InfeasiblePlacement):
                place(graph, cluster, "auto")
            continue
        placement = place(graph, cluster, "auto")
        timeline = simulate(graph, cluster, placement)
        assert timeline.feasible and timeline.makespan_us == pytest.approx(least, rel=1e-9), k
        assert (placement.info["status"], placement.info["bound_us"], placement.info["gap"]) == (
            "OPTIMAL",
            timeline.makespan_us,
            0,
        )


def test_auto_by_hand_where_every_rule_takes_longer():
    # a 2, then b 3 and c 2, d 3 after both; e 6 alone; sending takes 1. On two devices: 16 us of work, so at least 8.
    # a, c, b one after the other, d behind them, is 10 on one device; e beside that. With b elsewhere: b 3..6, sent, d 7..10.
    graph = OpGraph.from_edges([2, 3, 2, 3, 6], [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1)])
    placement = place(graph, Cluster.uniform(2, link=Link(1.0, 0.0)), "auto")
    assert placement.info["bound_us"] == 10 and placement.info["status"] == "OPTIMAL"


def test_what_is_not_searched_to_its_end_is_not_called_optimal():
    cluster = Cluster.uniform(3, link=Link(20.0, 0.01))
    assert "status" not in place(generators.layered_dag(60, seed=1), cluster, "auto").info
    graph = OpGraph.from_edges(np.arange(1.0, 10.0), [(i, i + 3, 8) for i in range(6)])
    few = best_schedule(graph, cluster, max_simulations=1)
    assert not few.complete and few.simulations >= 1
    assert "status" not in place(graph, cluster, "auto", placers=("heft",)).info


def test_what_is_known_already_is_not_found_again():
    graph, cluster = OpGraph.from_edges([1, 1], [(0, 1, 8)]), Cluster.uniform(2)
    assert best_schedule(graph, cluster, known_us=2.0)[:3] == (None, 2.0, True)
    assert best_schedule(graph, cluster, known_us=2.1).makespan_us == 2.0
    assert best_schedule(OpGraph.from_edges([]), cluster).complete


def test_groups_are_judged_by_their_ops():
    graph = generators.unrolled_rnn(2, 1)
    cluster = Cluster.uniform(2)
    coarse = optimize(graph, cluster)
    placement = place(coarse, cluster, "auto")
    assert coarse.n <= 16 and "status" not in placement.info
    assert simulate(graph, cluster, placement).makespan_us == min(
        row["makespan_us"] for row in placement.info["table"] if row["feasible"]
    )


def test_bug_the_optimum_of_groups_was_called_that_of_their_ops():
    """a works 5 us for y. x and y, 5 us each and one behind the other, are a group, which as one op waits for a: 15 us.

    In turns x runs beside a, and y after both: 10 us on two devices, which is less than the bound of groups.
    """
    pytest.importorskip("ortools")
    graph = OpGraph.from_edges(
        [5, 5, 5], [(0, 2, 1), (1, 2, 1)], names=["a", "x", "y"], colocation=[-1, 0, 0], colocation_names=("g",)
    )
    cluster = Cluster.uniform(2, link=Link(0.0, 0.0))
    groups = optimize(graph, cluster, passes=("colocation", "fusion"), forward_only=False)
    placement = place(groups, cluster, "exact", time_limit=5)
    assert groups.n == 2 and placement.info["status"] == "OPTIMAL of groups" and placement.info["bound_us"] == 15
    best = place(graph, cluster, "exact", time_limit=5)
    assert best.info["status"] == "OPTIMAL" and best.info["bound_us"] == 10
    assert simulate(graph, cluster, best).makespan_us == 10
