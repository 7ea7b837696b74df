"""Bounds of steps of several micro-batches and of the period: by hand, and against everything that can be tried."""

import itertools

import numpy as np
import pytest
from fewer import fast

import baechi_lab as bl
from baechi_lab.simulator.schedules import RULES


def cluster(n, comm="parallel", delay=0.0):
    return bl.Cluster.uniform(n, memory_bytes=1 << 40, link=bl.Link(delay, 0.0), comm=comm)


def test_the_bound_of_a_chain_is_its_device_load():
    f, b, count = [21.0, 19.0, 5.0, 15.0], [42.0, 38.0, 10.0, 30.0], 16
    graph = bl.generators.pipeline(f, b)
    placement = bl.Placement(device=[0, 1, 2, 3] * 2)
    lower_bounds = bl.bounds(graph, cluster(4), micro_batches=count, placement=placement)
    expected = max(sum(f[:s]) + sum(b[:s]) + count * (f[s] + b[s]) for s in range(4))
    assert lower_bounds["device-load"] == expected == lower_bounds.best
    # Another formula, the sum and M - 1 times the largest, is no bound: 1F1B is faster here.
    tempting = sum(f) + sum(b) + (count - 1) * max(x + y for x, y in zip(f, b, strict=True))
    makespan_us = bl.simulate(graph, cluster(4), placement, micro_batches=count, schedule="1f1b").makespan_us
    assert expected <= makespan_us
    assert makespan_us <= tempting


def test_copies_share_a_device():
    """Two independent ops on two devices: the longer one alone takes M times as long as once."""
    graph = bl.OpGraph.from_edges([1.0, 5.0])
    assert bl.bounds(graph, cluster(2), micro_batches=7)["same-device"] == 35.0
    assert bl.bounds(graph, cluster(2), period=True) == {"all-work": 3.0, "same-device": 5.0}


@pytest.mark.slow
@pytest.mark.parametrize("seed", fast(range(4), 1))
@pytest.mark.parametrize("comm", ["parallel", "sequential", "duplex"])
def test_below_every_order_of_every_placement(seed, comm):
    """Tiny graphs: all placements, and per placement 60 of the priorities that ops of the unrolled graph can have."""
    rng = np.random.default_rng(seed)
    graph = bl.generators.random_dag(3, degree=1.0, duration_us=(1, 9), size_bytes=(1, 50), seed=seed)
    machine, count = bl.Cluster.uniform(2, link=bl.Link(1.0, 0.1), comm=comm), 2
    step_graph = bl.unroll(graph, count)
    common = bl.bounds(graph, machine, micro_batches=count).best
    period = bl.bounds(graph, machine, period=True).best
    for device in itertools.product(range(2), repeat=graph.n):
        micro_batch_placement = bl.Placement(device=list(device))
        placed_bounds = bl.bounds(graph, machine, micro_batches=count, placement=micro_batch_placement)
        best = np.inf
        for _ in range(60):
            order = rng.permutation(step_graph.n).astype(float)
            placement = bl.Placement(
                device=micro_batch_placement.on(step_graph).device, order=order, graph_key=step_graph.key
            )
            best = min(best, bl.simulate(step_graph, machine, placement).makespan_us)
        assert common <= placed_bounds.best <= best * (1 + 1e-12)
        for sums in (False, True):
            assert period <= bl.throughput(graph, machine, micro_batch_placement, sum=sums).period_us * (1 + 1e-12)


@pytest.mark.parametrize("name", RULES)
def test_bounds_are_below_every_schedule(name):
    rng = np.random.default_rng(1)
    for _ in range(3):
        p, count = 3, int(rng.integers(1, 6))
        shape = RULES[name].shape
        stages = p if shape == "chain" else 2 * p
        graph = bl.generators.pipeline(*rng.uniform(1, 9, (3, stages)), output_bytes=10)
        home = [min(s, 2 * p - 1 - s) for s in range(stages)] if shape == "v" else [s % p for s in range(stages)]
        placement, machine = (
            bl.Placement(device=home * 3),
            bl.Cluster.uniform(p, link=bl.Link(0.3, 0.01), comm="duplex"),
        )
        makespan_us = bl.simulate(graph, machine, placement, micro_batches=count, schedule=name).makespan_us
        assert bl.bounds(graph, machine, micro_batches=count, placement=placement).best <= makespan_us * (1 + 1e-12)


def test_degenerate_and_bad_input():
    assert bl.bounds(bl.OpGraph.from_edges([]), cluster(2), micro_batches=3).best == 0
    assert bl.bounds(bl.OpGraph.from_edges([]), cluster(2), period=True).best == 0
    with pytest.raises(bl.InvalidInput, match="micro_batches is 0"):
        bl.bounds(bl.OpGraph.from_edges([1.0]), cluster(2), micro_batches=0)
    with pytest.raises(bl.InvalidInput, match="period=True"):
        bl.bounds(bl.OpGraph.from_edges([1.0]), cluster(2), micro_batches=2, period=True)
