"""Combining placements: what segments are, and that only what is faster is taken over."""

from itertools import permutations

import numpy as np
import pytest

from baechi_lab import Cluster, Link, OpGraph
from baechi_lab.graph import generators
from baechi_lab.placers.evaluation.assignment import make_assignment
from baechi_lab.placers.evaluation.orders import measure
from baechi_lab.placers.search.budget import Budget
from baechi_lab.placers.search.chain import Chain
from baechi_lab.placers.search.combine import LINES, Donor, combine, line_of, renumber_devices
from baechi_lab.placers.search.instance import Instance
from baechi_lab.placers.search.multistart import MultiStart

COMMS = ("parallel", "sequential", "duplex")


def random_instance(seed):
    rng = np.random.default_rng(seed)
    graph = generators.random_dag(
        int(rng.integers(8, 60)),
        degree=float(rng.uniform(0.5, 2.0)),
        duration_us=(1, 100),
        size_bytes=(10, 1000),
        colocation_groups=seed % 4,
        seed=seed,
    )
    memory = (1 << 40) if seed % 2 else int(0.7 * graph.persistent_bytes.sum() + 3 * graph.tensor_bytes.sum())
    return Instance(graph, Cluster.uniform(3, memory_bytes=memory, link=Link(5.0, 0.1), comm=COMMS[seed % 3]))


def random_candidate(instance, rng, by_rank=True):
    groups = instance.groups
    device = rng.integers(0, instance.cluster.n, len(groups.ptr) - 1)[groups.of]
    rank = instance.position + rng.normal(0.0, 5.0, instance.graph.n) if by_rank else None
    return measure(instance.model, Chain(instance, rng).objective.work, "random", device, rank)


def combined(chain, partner, line, steps, rng):
    subproblem = chain.subproblem_of(chain.instance.groups)
    chain.evaluate(subproblem)
    donor = Donor(line, make_assignment(partner.device, partner.rank), steps)
    return combine(subproblem.objective, subproblem.state, subproblem.units, donor, rng)


@pytest.mark.parametrize("seed", range(10))
def test_renumbering_agrees_as_much_as_any_exchange_of_numbers(seed):
    rng = np.random.default_rng(seed)
    device, like, work = rng.integers(0, 4, 12), rng.integers(0, 4, 12), rng.uniform(0.0, 1.0, 12)
    renumbering = renumber_devices(device.astype(np.int32), like, work, 4)
    assert len({(a, b) for a, b in zip(device, renumbering, strict=True)}) == len(set(device)) == len(set(renumbering))
    best = max(work[np.array(numbers)[device] == like].sum() for numbers in permutations(range(4)))
    assert work[renumbering == like].sum() == pytest.approx(best)


@pytest.mark.parametrize("kind", LINES)
def test_a_line_names_units_once(kind):
    instance = Instance(generators.gnmt(layers=2, length=4), Cluster.uniform(2))
    units, rng = instance.groups, np.random.default_rng(0)
    line = line_of(kind, instance, units, rng)
    assert len(set(line.tolist())) == len(line) and line.min() >= 0 and line.max() < len(units.ptr) - 1
    assert len(line) == len(units.ptr) - 1  # the graph is connected


@pytest.mark.parametrize("seed", range(12))
def test_what_is_kept_is_faster_and_simulates_as_noted(seed):
    instance, rng = random_instance(seed), np.random.default_rng(seed)
    chain, partner = Chain(instance, rng), random_candidate(instance, rng)
    begun = random_candidate(instance, rng)
    chain.start_from(begun)
    before = float(chain.state.cost[0])
    line = line_of(LINES[seed % len(LINES)], instance, instance.groups, rng)
    simulations = combined(chain, partner, line, 60, rng)
    state = chain.state
    assert 0 < simulations <= 60 and state.cost[0] <= before
    assert np.array_equal(state.at[state.position], np.arange(instance.graph.n))
    assert ((state.device == begun.device) | (state.device == partner.device)).all()
    remeasured = measure(instance.model, chain.objective.work, "again", state.device, state.position.astype(float))
    assert remeasured.makespan_us + (1e30 * remeasured.overflow_bytes if instance.track else 0.0) == pytest.approx(
        state.cost[0]
    )
    assert chain.best.key <= (begun.overflow_bytes, begun.makespan_us)


def test_each_gives_what_it_does_well():
    """Two blocks of two branches each, one after the other: one placement spreads the first, one the second."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6)]
    graph = OpGraph.from_edges([1.0, 50.0, 50.0, 1.0, 50.0, 50.0, 1.0], [(a, b, 1) for a, b in edges])
    instance = Instance(graph, Cluster.uniform(2, link=Link(1.0, 0.0)))
    rng = np.random.default_rng(0)
    chain = Chain(instance, rng)
    first, second = (
        measure(instance.model, chain.objective.work, "half", np.array(device, dtype=np.int32), None)
        for device in ([0, 1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 1, 1])
    )
    assert first.makespan_us == second.makespan_us == pytest.approx(155.0)
    chain.start_from(first)
    chain.cycle(Budget(None, 400), levels=(), partners=(second,))
    assert chain.best.makespan_us == pytest.approx(107.0)
    assert chain.used <= 60 + 2


def test_orders_are_taken_over_as_well():
    """Two chains share a device: what is long afterwards must come first, as only the other order has it."""
    graph = OpGraph.from_edges([10.0, 10.0, 90.0], [(1, 2, 1)])
    instance = Instance(graph, Cluster.uniform(2, link=Link(1.0, 0.0)))
    chain = Chain(instance, np.random.default_rng(0))
    device = np.array([0, 0, 1], dtype=np.int32)
    slow, fast = (
        measure(instance.model, chain.objective.work, "x", device, np.array(rank))
        for rank in ([0.0, 1, 2], [1.0, 0, 2])
    )
    chain.start_from(slow)
    assert combined(chain, fast, np.arange(3), 40, chain.rng) > 0
    assert (slow.makespan_us, chain.best.makespan_us) == (pytest.approx(111.0), pytest.approx(101.0))


def test_an_equal_placement_costs_nothing():
    instance, rng = random_instance(1), np.random.default_rng(1)
    chain, same = Chain(instance, rng), random_candidate(instance, rng)
    chain.start_from(same)
    assert combined(chain, same, np.arange(len(instance.groups.ptr) - 1), 50, rng) == 0
    used = chain.used
    chain.cycle(Budget(None, 1000), levels=(), partners=(same, same))
    assert chain.used == used + 1, "only what it goes on from is simulated"


def test_units_stay_where_they_are_allowed():
    cluster = Cluster.uniform(2)
    graph = OpGraph.from_edges([5.0, 5.0, 5.0], [(0, 1, 1)])
    graph = graph.replace(allowed=[0, -1, -1], allowed_sets=((cluster.devices[0].name,),))
    instance = Instance(graph, cluster)
    chain = Chain(instance, np.random.default_rng(0))
    chain.start_from(measure(instance.model, chain.objective.work, "x", np.zeros(3, np.int32), None))
    combined(
        chain,
        measure(instance.model, chain.objective.work, "y", np.ones(3, np.int32), None),
        np.arange(3),
        50,
        chain.rng,
    )
    assert chain.best.device[0] == 0 and chain.best.makespan_us == pytest.approx(10.0)


@pytest.mark.slow
@pytest.mark.parametrize(("ops", "small"), [(60, False), (20, True)])
def test_chains_hear_of_what_others_found(ops, small, monkeypatch):
    """Nothing is known during the trials; small graphs begin again from anywhere instead."""
    instance, heard = Instance(generators.layered_dag(ops), Cluster.uniform(2)), []
    cycle = Chain.cycle

    def watched(chain, share, levels, partners=()):
        heard.append(len(partners))
        cycle(chain, share, levels, partners)

    monkeypatch.setattr(Chain, "cycle", watched)
    start = random_candidate(instance, np.random.default_rng(0))
    chains = MultiStart(instance, 2, 0, Budget(None, 20_000), lambda cost, used: None)
    chains.search([start], 0)
    assert chains.small is small and heard[0] == 0
    assert heard[-1] == 0 if small else heard[-1] > 2
