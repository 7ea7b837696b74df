"""rho, the SCT assumption and the proven ratios (docs/papers.md), by hand."""

import math

import numpy as np
import pytest
from brute_force import optimum

import baechi_lab as bl


def cluster(devices=2, latency=2.0, comm="parallel", memory=10**9):
    return bl.Cluster.uniform(devices, memory_bytes=memory, link=bl.Link(latency, 0.0), comm=comm)


def test_ratios_are_those_of_baechi():
    graph = bl.OpGraph.from_edges([4, 8], [(0, 1, 1)], persistent_bytes=[99, 100])
    proven = bl.ratios(graph, cluster(4, memory=100))
    beta = (2 + 2 * 0.5) / (2 + 0.5)
    assert proven.rho == 2 / 4
    assert proven.etf == 2 + 0.5 - 1 / 4
    assert proven.sct == pytest.approx(1 + (1 - 1 / 4) * beta)
    assert proven.memory_factor == 4 * 100 / (99 + 100 + 1)
    assert proven.m_sct == pytest.approx(proven.sct + (1 - beta / 4) / (2 - 1))
    assert proven.premises == ()
    assert math.isnan(proven.achieved)


def test_premises_that_fail_are_named():
    graph = bl.OpGraph.from_edges([1, 8, 8], [(0, 1, 1), (1, 2, 1)], colocation=[0, 0, -1], colocation_names=("w",))
    proven = bl.ratios(graph, cluster(comm="sequential"))
    assert not proven.sct_assumption
    assert proven.sct_share == 0.5  # the edge between the two ops of 8
    assert len(proven.premises) == 3
    assert math.isnan(bl.ratios(graph, cluster(memory=0)).m_sct)
    collectives = bl.OpGraph.from_edges([1, 1], op_types=["matmul", "all_reduce"])  # one device runs both at once
    assert bl.ratios(collectives, cluster()).premises == ("no collectives",)


def test_zero_durations_leave_no_ratio_for_etf():
    proven = bl.ratios(bl.OpGraph.from_edges([0, 1], [(0, 1, 1)]), cluster())
    assert proven.rho == math.inf
    assert proven.sct == 1 + (1 - 1 / 2) * 2


def test_the_achieved_ratio_is_the_step_over_the_bound():
    graph = bl.OpGraph.from_edges([4, 4])
    assert bl.ratios(graph, cluster(), bl.Placement(device=[0, 0])).achieved == 8 / 4


@pytest.mark.parametrize("seed", range(15))
def test_etf_and_sct_keep_their_promise_where_the_premises_hold(seed):
    """Against the best simulated placement, which is no better than the optimum of the theorem."""
    rng = np.random.default_rng(seed)
    n, devices = int(rng.integers(2, 7)), int(rng.integers(2, 4))
    edges = [(i, j, 1) for i in range(n) for j in range(i + 1, n) if rng.random() < 0.5]
    graph, clu = bl.OpGraph.from_edges(rng.integers(3, 9, n).astype(float), edges), cluster(devices)
    proven = bl.ratios(graph, clu)
    assert proven.premises == ()
    best = optimum(graph, clu, orders=False)
    for placer, ratio in (("etf", proven.etf), ("m-etf", proven.etf), ("sct", proven.sct), ("m-sct", proven.m_sct)):
        planned = bl.place(graph, clu, placer).info["planned_makespan_us"]
        assert planned <= ratio * best * (1 + 1e-9)
