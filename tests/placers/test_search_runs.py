"""Runs: ops of a unit that are simulated as one while the unit moves."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab import Cluster, Link
from baechi_lab.graph.generators import gnmt, random_dag
from baechi_lab.placers.evaluation.evaluate import make_work
from baechi_lab.placers.evaluation.orders import measure
from baechi_lab.placers.search import runs as search_runs
from baechi_lab.placers.search.anneal import make_state, settle
from baechi_lab.placers.search.engine import Space, Walk
from baechi_lab.placers.search.runs import JOINED, SMALL, Form, read, shorter


def _settled(space, device, rank, wanted, rng):
    """The candidate, simulated, with about `wanted` units to move."""
    state, work = make_state(device, rank), make_work(space.model)
    weight = space.weight(np.inf)
    settle(space.model, work, state, space.samples, rank is not None, space.track, weight)
    return Form(space.model, work, state, space.samples, space.units(device, wanted, rng))


def _form(graph, cluster, seed, wanted):
    space, rng = Space(graph, cluster), np.random.default_rng(seed)
    device = rng.integers(0, cluster.n, graph.n).astype(np.int32)[space.along(20, rng)]
    whole = _settled(space, device, space.position.astype(np.float64), wanted, rng)
    return whole.state, whole.units, shorter(space, whole)


@pytest.mark.parametrize("seed", range(6))
def test_runs_stay_within_units_and_short_and_form_no_cycle(seed, monkeypatch):
    monkeypatch.setattr(search_runs, "FEWER", 0.99)
    graph = random_dag(SMALL + 300, degree=1.7, duration_us=(0.01, 50.0), seed=seed)
    cluster = Cluster.uniform(3, memory_bytes=1 << 50, link=Link(100.0, 1e-4))
    state, units, form = _form(graph, cluster, seed, 8)  # contract refuses groups that form a cycle
    assert len(form.model.degree) < graph.n
    runs = form.model.degree.size
    for what in (units.of, state.device):
        low, high = np.full(runs, np.iinfo(np.int64).max), np.full(runs, -1)
        np.minimum.at(low, form.member, what)
        np.maximum.at(high, form.member, what)
        assert np.array_equal(low, high)
    longest = np.zeros(runs)
    np.maximum.at(longest, form.member, graph.duration_us)
    joined = np.bincount(form.member, graph.duration_us) - longest
    assert joined.max() <= JOINED * state.cost[2] * (1 + 1e-9)
    assert np.array_equal(form.units.of, units.of[np.unique(form.member, return_index=True)[1]])
    for u in range(len(units.ptr) - 1):
        mine = set(form.member[units.ops[units.ptr[u] : units.ptr[u + 1]]].tolist())
        assert mine == set(form.units.ops[form.units.ptr[u] : form.units.ptr[u + 1]].tolist())


def test_a_recurrent_step_is_several_times_shorter_and_takes_nearly_the_same_time():
    graph = gnmt(ops=6000, seed=1)
    cluster = Cluster.uniform(2, memory_bytes=1 << 50, link=Link(134.0, 1.754e-4))
    placed = bl.place(graph, cluster, "m-etf")
    space = Space(graph, cluster)
    whole = _settled(space, placed.device, placed.rank, 48, np.random.default_rng(0))
    form, state = shorter(space, whole), whole.state
    assert len(form.model.degree) < 0.5 * graph.n
    settle(form.model, form.work, form.state, form.samples, True, False, space.weight(np.inf))
    before = float(state.cost[2])
    assert form.state.cost[2] == pytest.approx(before, rel=0.03)
    for device, line in read(form, state.position):
        rank = np.empty(graph.n)
        rank[line] = np.arange(graph.n)
        assert np.array_equal(device, placed.device)
        assert measure(space.model, make_work(space.model), "", device, rank).makespan_us == pytest.approx(
            before, rel=0.03
        )


def test_only_the_given_units_move_and_what_hardly_gets_shorter_is_left():
    graph = random_dag(SMALL + 100, degree=1.8, duration_us=(0.01, 50.0), seed=3)
    cluster = Cluster.uniform(2, memory_bytes=1 << 50, link=Link(100.0, 1e-4))
    space = Space(graph, cluster)
    walk = Walk(space, np.random.default_rng(0))
    walk.begin(measure(space.model, walk.work, "", np.zeros(graph.n), space.position.astype(np.float64)))
    part = walk._part()
    form = shorter(space, walk._own(part))
    moving = set(form.member[part.ops].tolist())
    assert moving == set(form.units.ops.tolist())
    assert not moving & set(np.delete(form.member, part.ops).tolist())
    slow = random_dag(SMALL + 100, degree=1.8, duration_us=50.0, seed=3)  # no op is short
    space = Space(slow, cluster)
    whole = _settled(space, np.zeros(slow.n, np.int32), space.position.astype(np.float64), 48, np.random.default_rng(0))
    assert shorter(space, whole) is None


def test_groups_and_allowed_devices_are_kept_where_runs_mix_them():
    graph = gnmt(ops=1500, seed=2)
    n, rng = graph.n, np.random.default_rng(0)
    group = np.where(rng.random(n) < 0.3, rng.integers(0, 40, n), -1)
    group[np.isin(group, np.setdiff1d(np.arange(40), group))] = -1
    allowed = np.where(group < 0, rng.integers(-1, 2, n), -1)
    graph = graph.replace(
        colocation=group, colocation_names=tuple(f"g{k}" for k in range(40)), allowed=allowed,
        allowed_sets=(("gpu",), ("gpu:0", "gpu:1")),
    )  # fmt: skip
    cluster = Cluster.uniform(3, memory_bytes=1 << 50, link=Link(134.0, 1.754e-4))
    placed = bl.place(
        graph, cluster, "search", time_limit=None, evaluations=4000, schedulers=("planned",), start="m-etf"
    )
    timeline = bl.simulate(graph, cluster, placed)
    assert not bl.check(graph, cluster, placed, timeline)
    assert timeline.makespan_us < placed.info["start_us"]
