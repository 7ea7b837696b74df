"""Edges that others imply: what is left orders the same ops and sends the same tensors, in the same times."""

from dataclasses import replace

import numpy as np
import pytest
from fewer import fast

from baechi_lab import Cluster, Link
from baechi_lab.graph.generators import gnmt, random_dag
from baechi_lab.passes import contraction
from baechi_lab.placers.evaluation.anneal import NO_STEPS, anneal
from baechi_lab.placers.evaluation.assignment import Assignment, Limits, make_assignment
from baechi_lab.placers.evaluation.cost import make_objective
from baechi_lab.placers.evaluation.evaluate import evaluate
from baechi_lab.placers.evaluation.model import make_model
from baechi_lab.placers.evaluation.moves import make_state, make_units
from baechi_lab.placers.evaluation.work import make_work
from baechi_lab.placers.search import reduced
from baechi_lab.placers.search.implied_edges import mark_needed_edges
from baechi_lab.placers.search.instance import Instance
from baechi_lab.placers.search.parameters import SEARCH
from baechi_lab.placers.search.reduced import (
    Subproblem,
    locations,
    merged_model,
    without_implied_edges,
)
from baechi_lab.placers.search.runs import with_runs


def _edges(graph):
    """As the search has them: arrays of another type are another signature, for which the kernel is compiled again."""
    return tuple(column.astype(np.int64) for column in (graph.edge_source, graph.edge_tensor, graph.consumers))


def _reachable(n, pairs, order):
    """bool[n, n]: from which ops a way along `pairs` leads to which."""
    reachable = np.zeros((n, n), dtype=bool)
    before = {v: [] for v in range(n)}
    for a, b in pairs:
        before[b].append(a)
    for v in order:
        for a in before[v]:
            reachable[:, v] |= reachable[:, a]
            reachable[a, v] = True
    return reachable


@pytest.mark.parametrize("seed", range(12))
def test_every_order_within_a_label_stays_and_no_edge_too_many(seed):
    graph = random_dag(40, degree=1.0 + seed % 4, seed=seed)
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 1 + seed % 5, graph.n)
    source, tensor, reader = _edges(graph)
    order = graph.order.astype(np.int64)
    needed_edges = mark_needed_edges((source, tensor, reader), label.astype(np.int64), order, SEARCH.way_ops)
    inside = label[source] == label[reader]

    def within(edge_mask):
        edges = np.flatnonzero(inside & edge_mask)
        return _reachable(graph.n, list(zip(source[edges].tolist(), reader[edges].tolist(), strict=True)), order)

    everything = np.ones(len(needed_edges), dtype=bool)
    assert np.array_equal(within(needed_edges), within(everything))
    for e in np.flatnonzero(inside & needed_edges):  # without it, its order would be lost
        without_one = needed_edges.copy()
        without_one[e] = False
        assert not within(without_one)[source[e], reader[e]]
    assert needed_edges[~inside].all()  # between labels every transfer stays


def _random_case(seed):
    rng = np.random.default_rng(seed)
    graph = (
        gnmt(ops=1200, seed=seed)
        if seed % 3 == 0
        else random_dag(500 + seed, degree=1.0 + seed % 5, duration_us=(0.0, 50.0), seed=seed)
    )
    if seed % 4 == 1:  # ties, and ops that take no time
        graph = graph.replace(duration_us=np.round(graph.duration_us / 25.0) * 25.0)
    comm = ("sequential", "parallel", "duplex")[seed % 3]
    link = Link(float(rng.choice([0.0, 25.0, 100.0])), 1e-4 if seed % 2 else 0.0)
    cluster = Cluster.uniform(2 + seed % 3, memory_bytes=1 << 50, link=link, comm=comm)
    return graph, cluster, rng


def _subproblem(instance, rng, by_rank, unit_count):
    graph = instance.graph
    device = rng.integers(0, instance.cluster.n, graph.n).astype(np.int32)[instance.labels_near(20)]
    rank = instance.position + rng.normal(0.0, 50.0, graph.n) if by_rank else None
    objective, state = instance.objective(), make_state(device, rank)
    anneal(objective, state, instance.groups, NO_STEPS, rng)
    return Subproblem(objective, state, instance.units(device, unit_count, rng))


def _move_units(units, device, rng, devices):
    for u in rng.integers(0, len(units.ptr) - 1, 5):
        device[units.ops[units.ptr[u] : units.ptr[u + 1]]] = rng.integers(0, devices)
    return device


@pytest.mark.parametrize("seed", fast(range(12), 4))
@pytest.mark.parametrize("by_rank", [True, False])
def test_wherever_units_go_the_times_stay_the_same(seed, by_rank):
    graph, cluster, rng = _random_case(seed)
    instance = Instance(graph, cluster)
    subproblem = _subproblem(instance, rng, by_rank, int(rng.choice([10, 48, 150])))
    reduced_problem = without_implied_edges(instance, subproblem)
    assert len(reduced_problem.model.edge_to) <= len(instance.model.edge_to)
    state, work, device = subproblem.state, subproblem.objective.work, subproblem.state.device.copy()
    for _ in range(8):
        _move_units(subproblem.units, device, rng, cluster.n)
        assignment = Assignment(device, state.position, state.at, by_rank)
        times = [evaluate(m, work, assignment, Limits(False)) for m in (instance.model, reduced_problem.model)]
        assert times[0] == times[1]


@pytest.mark.parametrize("seed", [0, 3, 6])
def test_runs_with_fewer_edges_take_the_same_time(seed, monkeypatch):
    graph, cluster, rng = _random_case(seed)
    instance = Instance(graph, cluster, parameters=replace(SEARCH, fewer_runs=0.999))
    subproblem = _subproblem(instance, rng, True, 20)
    fewer_edges = with_runs(instance, subproblem)
    monkeypatch.setattr(reduced, "mark_needed_edges", lambda column, *ignored: np.ones(len(column[0]), dtype=bool))
    all_edges = with_runs(instance, subproblem)
    assert np.array_equal(fewer_edges.member, all_edges.member)
    assert len(fewer_edges.model.edge_to) < len(all_edges.model.edge_to)
    device, state = fewer_edges.state.device.copy(), fewer_edges.state
    for _ in range(8):
        _move_units(fewer_edges.units, device, rng, cluster.n)
        assignment = Assignment(device, state.position, state.at, True)
        times = [evaluate(x.model, x.objective.work, assignment, Limits(False)) for x in (fewer_edges, all_edges)]
        assert times[0] == pytest.approx(times[1], rel=1e-12)


def test_where_memory_matters_runs_are_those_of_the_contracted_graph():
    graph = gnmt(ops=1500, seed=1)
    need = int(graph.persistent_bytes.sum() + graph.temp_bytes.sum() + graph.tensor_bytes.sum())
    instance = Instance(graph, Cluster.uniform(3, memory_bytes=need // 2, link=Link(134.0, 1e-4)))
    assert instance.track
    position = instance.position
    run = np.arange(graph.n)
    run[graph.order] = np.arange(graph.n) // 4  # segments of a topological order make no cycle
    count = int(run.max()) + 1
    model = merged_model(instance, run, np.zeros(count, dtype=np.int64), np.arange(count))
    coarse = contraction.contract(graph, run)
    number = contraction.number_groups(graph, run)
    at = np.empty(count, dtype=np.int64)
    at[run] = number  # the same groups, numbered by their smallest member
    expected = make_model(coarse, instance.cluster)
    for name in ("table", "persistent", "temp", "output_bytes", "unread"):
        assert np.array_equal(getattr(model, name), getattr(expected, name)[at]), name
    device = np.random.default_rng(0).integers(0, 3, count).astype(np.int32)
    contracted_device = np.empty(count, dtype=np.int32)
    contracted_device[at] = device
    rank = np.empty(count)
    rank[at] = np.arange(count)
    times, peaks = [], []
    for m, device_of_ops, order in ((model, device, np.arange(count)), (expected, contracted_device, rank)):
        work = make_work(m)
        times.append(evaluate(m, work, make_assignment(device_of_ops, order), Limits(True)))
        peaks.append(work.peak.tolist())
    assert times[0] == times[1]
    assert peaks[0] == peaks[1]
    assert len(position) == graph.n
    subproblem = Subproblem(instance.objective(), None, None)
    assert without_implied_edges(instance, subproblem) is subproblem


def test_homes_are_devices_of_what_stays_and_units_of_what_moves():
    device = np.array([1, 0, 1, 0], dtype=np.int32)
    units = make_units(np.array([0, 1, 1, 2]), np.arange(4), np.ones((4, 2), dtype=bool))
    instance = Instance(random_dag(4, seed=0), Cluster.uniform(2))
    subproblem = Subproblem(make_objective(instance.model), make_state(device, None), units)
    assert locations(subproblem).tolist() == [2, 3, 3, 4]


def test_very_large_labels_keep_all_edges():
    n = SEARCH.way_ops + 2
    chain = np.arange(n - 1)
    source, reader = np.concatenate([chain, chain[:-1]]), np.concatenate([chain + 1, chain[:-1] + 2])
    tensor = np.arange(len(source))
    assert mark_needed_edges((source, tensor, reader), np.zeros(n, dtype=np.int64), np.arange(n), SEARCH.way_ops).all()
    half = mark_needed_edges((source, tensor, reader), np.arange(n) // (n // 2 + 1), np.arange(n), SEARCH.way_ops)
    assert half.sum() < 0.6 * len(half)


def test_of_several_tensors_to_one_reader_within_a_label_one_stays():
    zeros = np.zeros(2, dtype=np.int64)
    needed_edges = mark_needed_edges((zeros, np.arange(2), zeros + 1), zeros, np.arange(2), SEARCH.way_ops)
    assert needed_edges.tolist() == [True, False]
    assert mark_needed_edges(
        (zeros, np.arange(2), zeros + 1), np.arange(2), np.arange(2), SEARCH.way_ops
    ).all()  # two transfers
