"""Runs: ops of a unit that are simulated as one while the unit moves."""

from dataclasses import replace

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab import Cluster, Link
from baechi_lab.graph.generators import gnmt, random_dag
from baechi_lab.placers.evaluation.anneal import NO_STEPS, anneal
from baechi_lab.placers.evaluation.moves import Units, make_state
from baechi_lab.placers.evaluation.orders import measure
from baechi_lab.placers.evaluation.work import make_work
from baechi_lab.placers.search.chain import Chain
from baechi_lab.placers.search.instance import Instance
from baechi_lab.placers.search.parameters import SEARCH
from baechi_lab.placers.search.reduced import Subproblem
from baechi_lab.placers.search.runs import project_to_ops, with_runs

SMALL = SEARCH.runs_from_ops


def _evaluated(instance, device, rank, unit_count, rng):
    """The candidate, simulated, with about `unit_count` units to move."""
    objective, state = instance.objective(), make_state(device, rank)
    anneal(objective, state, instance.groups, NO_STEPS, rng)
    return Subproblem(objective, state, instance.units(device, unit_count, rng))


def _make_runs(instance, seed, unit_count):
    rng, devices = np.random.default_rng(seed), instance.cluster.n
    device = rng.integers(0, devices, instance.graph.n).astype(np.int32)[instance.labels_near(20)]
    subproblem = _evaluated(instance, device, instance.position.astype(np.float64), unit_count, rng)
    return subproblem.state, subproblem.units, with_runs(instance, subproblem)


@pytest.mark.parametrize("seed", range(6))
def test_runs_stay_within_units_and_short_and_make_no_cycle(seed):
    graph = random_dag(SMALL + 300, degree=1.7, duration_us=(0.01, 50.0), seed=seed)
    cluster = Cluster.uniform(3, memory_bytes=1 << 50, link=Link(100.0, 1e-4))
    instance = Instance(graph, cluster, parameters=replace(SEARCH, fewer_runs=0.99))
    state, units, short = _make_runs(instance, seed, 8)  # contract refuses groups that form a cycle
    assert len(short.model.degree) < graph.n
    run_count = short.model.degree.size
    for label in (units.of, state.device):
        low, high = np.full(run_count, np.iinfo(np.int64).max), np.full(run_count, -1)
        np.minimum.at(low, short.member, label)
        np.maximum.at(high, short.member, label)
        assert np.array_equal(low, high)
    longest = np.zeros(run_count)
    np.maximum.at(longest, short.member, graph.duration_us)
    joined = np.bincount(short.member, graph.duration_us) - longest
    assert joined.max() <= SEARCH.joined_share * state.cost[2] * (1 + 1e-9)
    assert np.array_equal(short.units.of, units.of[np.unique(short.member, return_index=True)[1]])
    for u in range(len(units.ptr) - 1):
        runs_of_unit = set(short.member[units.ops[units.ptr[u] : units.ptr[u + 1]]].tolist())
        assert runs_of_unit == set(short.units.ops[short.units.ptr[u] : short.units.ptr[u + 1]].tolist())


def test_a_recurrent_step_is_several_times_shorter_and_takes_nearly_the_same_time():
    graph = gnmt(ops=6000, seed=1)
    cluster = Cluster.uniform(2, memory_bytes=1 << 50, link=Link(134.0, 1.754e-4))
    placement = bl.place(graph, cluster, "m-etf")
    instance = Instance(graph, cluster)
    subproblem = _evaluated(instance, placement.device, placement.rank, 48, np.random.default_rng(0))
    short, state = with_runs(instance, subproblem), subproblem.state
    assert len(short.model.degree) < 0.5 * graph.n
    anneal(short.objective, short.state, short.units, NO_STEPS, np.random.default_rng(0))
    before = float(state.cost[2])
    assert short.state.cost[2] == pytest.approx(before, rel=0.03)
    for device, line in project_to_ops(short, state.position):
        rank = np.empty(graph.n)
        rank[line] = np.arange(graph.n)
        assert np.array_equal(device, placement.device)
        assert measure(instance.model, make_work(instance.model), "", device, rank).makespan_us == pytest.approx(
            before, rel=0.03
        )


def test_only_the_given_units_move_and_what_hardly_gets_shorter_is_left():
    graph = random_dag(SMALL + 100, degree=1.8, duration_us=(0.01, 50.0), seed=3)
    cluster = Cluster.uniform(2, memory_bytes=1 << 50, link=Link(100.0, 1e-4))
    instance = Instance(graph, cluster)
    chain = Chain(instance, np.random.default_rng(0))
    chain.start_from(
        measure(instance.model, chain.objective.work, "", np.zeros(graph.n), instance.position.astype(np.float64))
    )
    groups = instance.groups
    part_units = Units(groups.ptr[:61], groups.ops[: groups.ptr[60]], groups.of, groups.allowed[:60])
    short = with_runs(instance, chain.subproblem_of(part_units))
    moving = set(short.member[part_units.ops].tolist())
    assert moving == set(short.units.ops.tolist())
    assert not moving & set(np.delete(short.member, part_units.ops).tolist())
    slow = random_dag(SMALL + 100, degree=1.8, duration_us=50.0, seed=3)  # no op is short
    instance = Instance(slow, cluster)
    subproblem = _evaluated(
        instance, np.zeros(slow.n, np.int32), instance.position.astype(np.float64), 48, np.random.default_rng(0)
    )
    assert with_runs(instance, subproblem) is None


@pytest.mark.slow
def test_groups_and_allowed_devices_are_kept_where_runs_mix_them():
    graph = gnmt(ops=1500, seed=2)
    n, rng = graph.n, np.random.default_rng(0)
    group = np.where(rng.random(n) < 0.3, rng.integers(0, 40, n), -1)
    group[np.isin(group, np.setdiff1d(np.arange(40), group))] = -1
    allowed = np.where(group < 0, rng.integers(-1, 2, n), -1)
    graph = graph.replace(
        colocation=group,
        colocation_names=tuple(f"g{k}" for k in range(40)),
        allowed=allowed,
        allowed_sets=(("gpu",), ("gpu:0", "gpu:1")),
    )
    cluster = Cluster.uniform(3, memory_bytes=1 << 50, link=Link(134.0, 1.754e-4))
    placement = bl.place(
        graph, cluster, "search", time_limit=None, evaluations=4000, schedulers=("planned",), start="m-etf"
    )
    timeline = bl.simulate(graph, cluster, placement)
    assert not bl.check(graph, cluster, placement, timeline)
    assert timeline.makespan_us < placement.info["start_us"]
