"""The portfolio: never worse than what it asks, feasible wherever something is."""

import numpy as np
import pytest

from baechi_lab import Cluster, Link, OpGraph, list_placers, place, simulate
from baechi_lab.errors import BaechiLabError, InfeasiblePlacement, InvalidInput, UnknownNameError
from baechi_lab.graph import generators
from baechi_lab.placers.auto import LP_OPS, Auto
from baechi_lab.placers.registry import placer_class

CASES = [
    (generators.unrolled_rnn(4, 2), 2, "sequential"),
    (generators.layered_dag(60, seed=1), 3, "parallel"),
    (generators.random_dag(50, colocation_groups=3, persistent_bytes=(10, 100), seed=2), 2, "duplex"),
]


@pytest.mark.parametrize(("graph", "devices", "comm"), CASES, ids=lambda x: getattr(x, "name", str(x)))
def test_never_worse_than_any_fast_placer(graph, devices, comm):
    cluster = Cluster.uniform(devices, memory_bytes=1 << 40, link=Link(20.0, 0.0001), comm=comm)
    best = place(graph, cluster, "auto")
    timeline = simulate(graph, cluster, best)
    assert timeline.feasible
    asked = {row["placer"] for row in best.info["table"]}
    for name in list_placers():
        if placer_class(name).anytime or name in ("auto", "ideals"):  # ideals are for periods, not for one step
            assert name not in asked
            continue
        assert name in asked and graph.n <= LP_OPS
        try:
            rival = simulate(graph, cluster, place(graph, cluster, name))
        except BaechiLabError:
            continue
        assert not rival.feasible or timeline.makespan_us <= rival.makespan_us


@pytest.mark.parametrize(("graph", "devices", "comm"), CASES[:2], ids=lambda x: getattr(x, "name", str(x)))
def test_the_winner_simulates_to_its_row_and_threads_do_not_matter(graph, devices, comm):
    cluster = Cluster.uniform(devices, memory_bytes=1 << 40, link=Link(20.0, 0.0001), comm=comm)
    best, again = (place(graph, cluster, "auto", workers=k) for k in (1, 4))
    assert best == again and best.info["winner"] == again.info["winner"]
    rows = [row for row in best.info["table"] if row["feasible"]]
    assert simulate(graph, cluster, best).makespan_us == min(row["makespan_us"] for row in rows)
    assert {row["graph"] for row in rows} == {"raw", "optimized"} or graph.n == 60
    assert {"fifo", "planned"} <= {row["scheduler"] for row in rows}


@pytest.mark.parametrize("scheduler", ["pct", "msr"])
def test_a_dynamic_schedulers_choices_become_the_plan(scheduler):
    from baechi_lab.placers.auto import _frozen

    for seed in range(10):
        graph = generators.layered_dag(40, seed=seed, duration_us=(1, 50), size_bytes=8)
        cluster = Cluster.uniform(3, memory_bytes=1 << 30, link=Link(5.0, 0.0), comm="sequential")
        placed = place(graph, cluster, "etf")
        timeline = simulate(graph, cluster, placed, scheduler)
        again = simulate(graph, cluster, _frozen(graph, placed, scheduler, timeline))
        assert np.array_equal(again.start_us, timeline.start_us)


def test_tight_memory_is_repaired_or_proven_hopeless():
    graph = OpGraph.from_edges([5, 5, 5], persistent_bytes=[60, 50, 40])
    fits = place(graph, Cluster.uniform(2, memory_bytes=100), "auto", placers=("single", "etf"))
    held = np.bincount(fits.device, graph.persistent_bytes, 2)
    assert held.max() <= 100
    with pytest.raises(InfeasiblePlacement) as error:
        place(graph, Cluster.uniform(2, memory_bytes=80), "auto")
    # 60 + 50 + 40 does not divide into 80 + 80: 60 alone leaves 90.
    assert error.value.needed_bytes == 150 and error.value.available_bytes == (80, 80)


def test_a_coarse_graph_is_placed_as_it_is():
    from baechi_lab import optimize

    graph = generators.unrolled_rnn(4, 2)
    coarse = optimize(graph)
    cluster = Cluster.uniform(2)
    placed = place(coarse, cluster, "auto")
    assert {row["graph"] for row in placed.info["table"]} == {"given"}
    assert simulate(graph, cluster, placed).feasible


def test_parameters_and_degenerate_graphs():
    cluster = Cluster.uniform(2)
    assert place(OpGraph.from_edges([]), cluster, "auto").n == 0
    assert place(OpGraph.from_edges([3]), Cluster.uniform(1), "auto").device.tolist() == [0]
    with pytest.raises(InvalidInput, match="itself"):
        Auto(placers=("auto",)).validate()
    with pytest.raises(UnknownNameError):
        Auto(placers=("m-etff",)).validate()
    with pytest.raises(InvalidInput):
        Auto(workers=0).validate()
