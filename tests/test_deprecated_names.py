"""Earlier names still work, and warn with the name to use instead."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab import viz
from baechi_lab.fitting import record

GRAPH, CLUSTER = bl.OpGraph.from_edges([5.0]), bl.Cluster.uniform(1)


def test_options_of_a_fit():
    answer = bl.fit(GRAPH, CLUSTER)
    with pytest.warns(DeprecationWarning, match="use options"):
        assert answer.ways == answer.options
    with pytest.warns(DeprecationWarning, match="use kind"):
        assert answer.best.way == "as it is"
    with pytest.warns(DeprecationWarning, match="use FitOption"):
        assert record.Way is record.FitOption
    with pytest.warns(DeprecationWarning, match="use viz.fit_options"):
        assert viz.ways is viz.fit_options
    with pytest.warns(DeprecationWarning, match="use every_option="):
        assert len(bl.fit(GRAPH, CLUSTER, every_way=True, give_up=("recompute",)).options) > 1


def test_method_of_a_native_run():
    with pytest.warns(DeprecationWarning, match="use method"):
        assert bl.NativeRun("eager", np.zeros(1)).way == "eager"


def test_again_is_deprecated_for_recompute():
    pipeline = bl.Place("single") | bl.Simulate()
    pipeline.run(GRAPH, CLUSTER)
    with pytest.warns(DeprecationWarning, match="use recompute="):
        assert pipeline.run(GRAPH, CLUSTER, again=["place"]).recomputed == ("place",)


def test_what_a_plan_leaves_out():
    plan = bl.write_plan(GRAPH, bl.Placement(device=[0]), "dot")
    with pytest.warns(DeprecationWarning, match="use unsupported"):
        assert plan.lost == plan.unsupported == ()
