"""Trials move whole layers, or single ops from several starts; nothing found in a trial is lost."""

import numpy as np
import pytest
from fewer import fast

import baechi_lab as bl
from baechi_lab import Cluster, Link
from baechi_lab.graph.generators import gnmt, random_dag
from baechi_lab.placers.evaluation.orders import Candidate
from baechi_lab.placers.search.instance import Instance
from baechi_lab.placers.search.multistart import Trials
from baechi_lab.placers.search.parameters import SEARCH

CLUSTER = Cluster.uniform(3, memory_bytes=1 << 50, link=Link(134.0, 1.754e-4))


def _candidates(n, *costs):
    return [
        Candidate(
            f"rule {k}", (np.arange(n) < 10 * k).astype(np.int32), np.roll(np.arange(n), k).astype(float), cost, 0.0
        )
        for k, cost in enumerate(costs)
    ]


def test_trials_of_a_graph_with_layers_move_these_from_the_best_start():
    instance = Instance(gnmt(ops=1500, seed=0), CLUSTER)
    layers = instance.coarse_layers
    assert 1 < layers.max() < SEARCH.coarse_labels
    trials = Trials(instance, _candidates(instance.graph.n, 100.0, 105.0), small=False, chains=2)
    assert trials.count == SEARCH.layer_trials
    for trial in [trials.next() for _ in range(trials.count)]:
        assert trial.start.name == "rule 0" and trial.levels[0][0] is layers and trial.levels[1] == SEARCH.levels[0]
    assert Trials(instance, _candidates(instance.graph.n, 1.0), small=True, chains=2).layers is None


def test_graphs_without_layers_get_a_cycle_per_start():
    instance = Instance(random_dag(300, seed=0), CLUSTER)
    assert instance.coarse_layers is None
    trials = Trials(instance, _candidates(300, 1.0, 2.0, 3.0), small=False, chains=2)
    trial_list = [trials.next() for _ in range(trials.count)]
    assert [t.start.name for t in trial_list] == ["rule 0", "rule 1", "rule 2"]
    assert all(t.levels == SEARCH.levels for t in trial_list)
    small = Trials(instance, _candidates(300, *range(1, 9)), small=True, chains=2)
    assert small.count == SEARCH.trial_starts and small.next().levels == SEARCH.small_levels
    assert (
        Trials(instance, _candidates(300, *range(1, 9)), small=False, chains=3 * SEARCH.trial_starts).count
        > SEARCH.trial_starts
    )


@pytest.mark.slow
@pytest.mark.parametrize("stop", fast([2, 7], 1))
def test_a_search_that_is_stopped_during_its_trials_returns_the_best_of_them(stop):
    reports = []

    def tell(progress):
        if not reports or progress.makespan_us < reports[-1]:
            reports.append(progress.makespan_us)
        return len(reports) > stop

    graph = gnmt(ops=1500, seed=0)
    placement = bl.place(graph, CLUSTER, "search", time_limit=None, evaluations=20_000, callback=tell, seed=stop)
    assert bl.simulate(graph, CLUSTER, placement).makespan_us <= reports[-1] * (1 + 1e-12)
    if stop == 2:
        assert bl.place(graph, CLUSTER, "search", time_limit=None, evaluations=3000, workers=1).order is not None
