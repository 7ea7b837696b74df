"""The walks of a search as a team: trials, rounds that grow colder, and several searches where there is time for them."""

import numpy as np
import pytest

from baechi_lab import Cluster, Link, place, simulate
from baechi_lab.graph import generators
from baechi_lab.placers.search import team as search_team
from baechi_lab.placers.search.engine import LATE_LEVELS, LEVELS, Budget, Space, Walk
from baechi_lab.placers.search.starts import Starts
from baechi_lab.placers.search.team import (
    CYCLE,
    LATE,
    MOST_ROUNDS,
    PARTS_SHARE,
    RESTART_OPS,
    ROUNDS,
    SEARCH_OPS,
    SEARCH_SECONDS,
    SEARCHES,
    Team,
)


def test_longer_budgets_are_more_rounds():
    """Nine tenths of the budget, of which a tenth paid for so many simulations, are rounds of `CYCLE` per walk, or
    `MOST_ROUNDS` longer ones."""
    graph = generators.layered_dag(60)
    team = Team(Space(graph, Cluster.uniform(2)), 2, 0, Budget(None, 10**6), lambda cost, used: None)
    assert team._affordable(0.9, 0.1 / 100) == ROUNDS
    assert team._affordable(0.9, 0.1 / (2 * 2 * CYCLE)) == 18
    assert team._affordable(0.9, 0.1 / (2 * 7 * CYCLE)) == MOST_ROUNDS
    assert team._affordable(-0.1, 0.1 / (2 * 7 * CYCLE)) == ROUNDS
    assert team._affordable(0.9, 0.0) == ROUNDS


def test_long_budgets_are_several_searches():
    graph = generators.layered_dag(60)
    space = Space(graph, Cluster.uniform(2))
    enough = 2 * SEARCH_OPS // graph.n + 2

    def searches(seconds, evaluations):
        return Team(space, 2, 0, Budget(seconds, evaluations), lambda cost, used: None)._searches()

    assert [searches(s, None) for s in (0.0, 10.0, 2.1 * SEARCH_SECONDS, 1e6)] == [1, 1, 2, SEARCHES]
    assert [searches(None, n) for n in (0, enough // 2, enough, 2 * enough, 10**12)] == [1, 1, 1, 2, SEARCHES]
    assert searches(10.0, 10**12) == searches(1e6, 1) == 1
    little = Space(generators.layered_dag(RESTART_OPS // 2), Cluster.uniform(2))
    assert Team(little, 2, 0, Budget(1e6, None), lambda cost, used: None)._searches() == 1


def test_what_an_earlier_search_found_is_kept_and_gone_on_from(monkeypatch):
    monkeypatch.setattr(search_team, "SEARCH_OPS", 1000)
    graph, cluster = generators.layered_dag(200), Cluster.uniform(3, link=Link(20.0, 0.0))
    bests, begun, others = [], [], []
    tried, rounds = Team._tried, Team._rounds
    monkeypatch.setattr(
        Team,
        "_tried",
        lambda team, until: bests.append(team.best[0]) or others.append(list(team.others)) or tried(team, until),
    )

    def watched(team, candidates, until, price, late=False):
        if late:
            others.append([other.makespan_us for other in team.others])
            begun.append((team.best[0], candidates[0].makespan_us, len(candidates)))
        rounds(team, candidates, until, price, late)

    monkeypatch.setattr(Team, "_rounds", watched)
    placed = place(graph, cluster, "search", time_limit=None, evaluations=4000, seed=1)
    assert len(bests) == SEARCHES and bests == sorted(bests, reverse=True)
    assert [x[2] for x in begun] == [1] and begun[0][0] == pytest.approx(begun[0][1])
    assert others[:-1] == [[]] * SEARCHES, "a search that heard of another one would end there"
    assert len(others[-1]) == SEARCHES and min(others[-1]) == pytest.approx(begun[0][0])
    assert begun[0][0] <= bests[-1] and simulate(graph, cluster, placed).makespan_us <= begun[0][0] * (1 + 1e-12)


def test_a_search_that_is_stopped_in_its_second_part_keeps_the_first(monkeypatch):
    monkeypatch.setattr(search_team, "SEARCH_OPS", 1000)
    graph, cluster = generators.layered_dag(200), Cluster.uniform(3, link=Link(20.0, 0.0))
    told = []

    def tell(progress):
        told.append(progress.makespan_us)
        return progress.evaluations > 2500

    placed = place(graph, cluster, "search", time_limit=None, evaluations=8000, seed=1, callback=tell)
    assert told == sorted(told, reverse=True)
    assert simulate(graph, cluster, placed).makespan_us <= told[-1] * (1 + 1e-12)
    assert placed.info["evaluations"] < 8000


def test_the_first_rounds_are_hot_and_the_later_ones_cold_with_parts(monkeypatch):
    space, seen = Space(generators.layered_dag(60), Cluster.uniform(2)), []
    cycle = Walk.cycle

    def watched(walk, share, levels, parts=0.0, others=()):
        seen.append((levels, parts))
        cycle(walk, share, levels, parts, others)

    monkeypatch.setattr(Walk, "cycle", watched)
    starts = Starts(space, ("fifo", "planned"), 0).from_rules(lambda: False)
    team = Team(space, 1, 0, Budget(None, 20_000), lambda cost, used: None)
    team.search(starts, 0)
    rounds = seen[team.trials.count :]
    assert rounds[0] == (LEVELS, 0.0) and rounds[-1] == (LATE_LEVELS, PARTS_SHARE)
    assert max(hot for _, hot, _ in LATE_LEVELS) <= min(cold for _, _, cold in LEVELS)
    assert [levels for levels, _ in rounds].index(LATE_LEVELS) == np.ceil(LATE * len(rounds))
