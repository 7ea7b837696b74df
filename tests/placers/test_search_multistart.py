"""The chains of a search together: trials, rounds, and several searches where there is time for them."""

import importlib
from dataclasses import replace

import pytest

from baechi_lab import Cluster, Link, OpGraph, passes, place, simulate
from baechi_lab.graph import generators
from baechi_lab.placers.search.budget import Budget
from baechi_lab.placers.search.instance import Instance
from baechi_lab.placers.search.multistart import MultiStart
from baechi_lab.placers.search.parameters import SEARCH

OFTEN = replace(SEARCH, search_ops=1000)
"""Several searches in a small budget."""


def test_longer_budgets_are_more_rounds():
    """Nine tenths of the budget, of which a tenth paid for so many simulations, are rounds of `cycle_steps` per chain, or
    `most_rounds` longer ones."""
    graph = generators.layered_dag(60)
    multi_start = MultiStart(Instance(graph, Cluster.uniform(2)), 2, 0, Budget(None, 10**6), lambda cost, used: None)
    assert multi_start.affordable_rounds(0.9, 0.1 / 100) == SEARCH.rounds
    assert multi_start.affordable_rounds(0.9, 0.1 / (2 * 2 * SEARCH.cycle_steps)) == 18
    assert multi_start.affordable_rounds(0.9, 0.1 / (2 * 7 * SEARCH.cycle_steps)) == SEARCH.most_rounds
    assert multi_start.affordable_rounds(-0.1, 0.1 / (2 * 7 * SEARCH.cycle_steps)) == SEARCH.rounds
    assert multi_start.affordable_rounds(0.9, 0.0) == SEARCH.rounds


def test_long_budgets_are_several_searches():
    graph = generators.layered_dag(60)
    instance = Instance(graph, Cluster.uniform(2))
    enough = 2 * SEARCH.search_ops // graph.n + 2

    def searches(seconds, evaluations):
        return MultiStart(instance, 2, 0, Budget(seconds, evaluations), lambda cost, used: None).search_count()

    assert [searches(s, None) for s in (0.0, 10.0, 2.1 * SEARCH.search_seconds, 1e6)] == [1, 1, 2, SEARCH.searches]
    assert [searches(None, n) for n in (0, enough // 2, enough, 2 * enough, 10**12)] == [1, 1, 1, 2, SEARCH.searches]
    assert searches(10.0, 10**12) == searches(1e6, 1) == 1
    little = Instance(generators.layered_dag(SEARCH.restart_ops // 2), Cluster.uniform(2))
    assert MultiStart(little, 2, 0, Budget(1e6, None), lambda cost, used: None).search_count() == 1


@pytest.mark.slow
def test_what_an_earlier_search_found_is_kept_and_gone_on_from(monkeypatch):
    graph, cluster = generators.layered_dag(200), Cluster.uniform(3, link=Link(20.0, 0.0))
    bests, last_rounds, partners = [], [], []
    run_trials, run_rounds = MultiStart._run_trials, MultiStart._rounds
    monkeypatch.setattr(
        MultiStart,
        "_run_trials",
        lambda search, until: (
            bests.append(search.best[0]) or partners.append(list(search.partners)) or run_trials(search, until)
        ),
    )

    def record_rounds(search, candidates, until, price):
        if until == 1.0:
            partners.append([partner.makespan_us for partner in search.partners])
            last_rounds.append((search.best[0], candidates[0].makespan_us, len(candidates)))
        run_rounds(search, candidates, until, price)

    monkeypatch.setattr(MultiStart, "_rounds", record_rounds)
    placement = place(graph, cluster, "search", time_limit=None, evaluations=4000, seed=1, numbers=OFTEN)
    assert len(bests) == SEARCH.searches and bests == sorted(bests, reverse=True)
    assert [x[2] for x in last_rounds] == [1] and last_rounds[0][0] == pytest.approx(last_rounds[0][1])
    assert partners[:-1] == [[]] * SEARCH.searches, "a search that heard of another one would end there"
    assert len(partners[-1]) == SEARCH.searches and min(partners[-1]) == pytest.approx(last_rounds[0][0])
    makespan_us = simulate(graph, cluster, placement).makespan_us
    assert last_rounds[0][0] <= bests[-1] and makespan_us <= last_rounds[0][0] * (1 + 1e-12)


@pytest.mark.slow
def test_a_search_that_is_stopped_in_its_second_part_keeps_the_first():
    graph, cluster = generators.layered_dag(200), Cluster.uniform(3, link=Link(20.0, 0.0))
    reports = []

    def tell(progress):
        reports.append(progress.makespan_us)
        return progress.evaluations > 2500

    placement = place(graph, cluster, "search", time_limit=None, evaluations=8000, seed=1, callback=tell, numbers=OFTEN)
    assert reports == sorted(reports, reverse=True)
    assert simulate(graph, cluster, placement).makespan_us <= reports[-1] * (1 + 1e-12)
    assert placement.info["evaluations"] < 8000


@pytest.mark.slow
def test_what_would_last_too_long_is_not_begun(monkeypatch):
    """A graph whose reduction would take far longer than there is time is neither optimized nor contracted."""
    placer_module, begun_stages = importlib.import_module("baechi_lab.placers.search.placer"), []
    optimize = passes.optimize
    monkeypatch.setattr(
        passes, "optimize", lambda *arguments, **keywords: begun_stages.append(1) or optimize(*arguments, **keywords)
    )
    monkeypatch.setattr(placer_module, "contracted_graph", lambda *arguments: begun_stages.append(2))
    graph = OpGraph.from_edges([5.0] * 40, [(i // 2, i, 8) for i in range(1, 40)])
    cluster = Cluster.uniform(2, link=Link(0.1, 0.0))
    placement = place(graph, cluster, "search", time_limit=600.0, evaluations=50, workers=1)
    assert 1 in begun_stages and 2 in begun_stages and placement.info["start_us"] < 200.0
    begun_stages.clear()
    monkeypatch.setattr(
        placer_module, "SEARCH", replace(placer_module.SEARCH, reducing_time=1e12, contracting_time=1e12)
    )
    hurried = place(graph, cluster, "search", time_limit=600.0, evaluations=50, workers=1)
    assert not begun_stages and "on the ops" in hurried.info["start"] and hurried.info["evaluations"] > 1
    place(graph, cluster, "search", time_limit=None, evaluations=50, workers=1)  # whose time is not limited
    assert 1 in begun_stages
