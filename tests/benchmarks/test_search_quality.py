"""Search against the best rule, the bounds and the exact optimum; `bar` of each result is what it may be at most.

Run with: pytest tests/benchmarks/test_search_quality.py --benchmark-only
BAECHI_LAB_GRAPHS names a folder with the dnn-partitioning graphs (without it, the project's own profiles count alone);
BAECHI_LAB_FULL=1 runs all graphs, 10 s, three seeds (about an hour), otherwise the small ones, 2 s, one seed.
The last full results are in studies/results: search_quality.json (three seeds), search_quality_fifo.json
and search_quality_60s.json (one seed) and search_exact.json. Nothing here asserts a time.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path

import pytest
from ten_tasks import CLUSTER, TEN_TASKS

import baechi_lab as bl
from studies.search_exact import against_exact
from studies.search_quality import DEVICES, PLENTY, graphs, quality, summary

FULL = os.environ.get("BAECHI_LAB_FULL") == "1"
FOLDER = os.environ.get("BAECHI_LAB_GRAPHS")
DATA = Path(__file__).parents[2] / "data"
pytestmark = pytest.mark.timeout(7200)
needs_ortools = pytest.mark.skipif(importlib.util.find_spec("ortools") is None, reason="OR-tools is not installed")


@cache
def results(fifo, seconds):
    rows = []
    for graph, costs in graphs(FOLDER, DATA, quick=not FULL):
        for devices in DEVICES:
            cluster = bl.Cluster.uniform(devices, memory_bytes=PLENTY, comm="sequential", **costs)
            rows.append(quality(graph, cluster, seconds if FULL else 2.0, range(3 if FULL else 1), fifo))
    return rows


def record(benchmark, work, **extra):
    """Run once; keep the figures with the bar."""
    figures = benchmark.pedantic(work, rounds=1)
    benchmark.extra_info.update(extra)
    return figures


@pytest.mark.parametrize(("fifo", "seconds", "bar"), [(False, 10.0, 0.84), (True, 10.0, 0.82), (False, 60.0, 0.81)])
def test_search_over_best_rule(benchmark, fifo, seconds, bar):
    rows = record(benchmark, lambda: results(fifo, seconds), bar=bar)
    benchmark.extra_info.update(summary(rows))
    assert all(row["search_over_rule"] <= 1.0 + 1e-9 for row in rows if not fifo)


def test_search_over_bound(benchmark):
    rows = record(benchmark, lambda: results(False, 10.0), bar_where_transfers_dominate=1.12, bar=1.25)
    benchmark.extra_info.update(summary(rows))
    assert all(row["search_over_bound"] >= 1.0 - 1e-9 for row in rows)


@needs_ortools
def test_search_equals_exact(benchmark):
    rows = record(benchmark, lambda: [against_exact(seed) for seed in range(100 if FULL else 8)], bar="95 of 100")
    benchmark.extra_info["equal"] = sum(row["equal"] for row in rows)
    assert all(row["search_us"] >= row["exact_us"] * (1 - 1e-9) for row in rows if row["status"] == "OPTIMAL")


@needs_ortools
def test_exact_on_ten_tasks(benchmark):
    placement = record(benchmark, lambda: bl.place(TEN_TASKS, CLUSTER, "exact", time_limit=60.0), bar_s=5.0)
    assert placement.info["status"] == "OPTIMAL"


@needs_ortools
def test_exact_on_thirty_ops(benchmark):
    cluster = bl.Cluster.uniform(2, memory_bytes=1 << 40, link=bl.Link(5.0, 0.0))

    def solve():
        count = 10 if FULL else 1
        drawn = [
            bl.generators.random_dag(30, degree=1.5, duration_us=(1, 20), size_bytes=4, seed=k) for k in range(count)
        ]
        rounded_graphs = [graph.replace(duration_us=graph.duration_us.round()) for graph in drawn]
        return [bl.place(graph, cluster, "exact", time_limit=60.0).info["status"] for graph in rounded_graphs]

    status = record(benchmark, solve, bar="half are optimal in 60 s")
    benchmark.extra_info["optimal"] = status.count("OPTIMAL")
    assert set(status) <= {"OPTIMAL", "FEASIBLE"}


@pytest.mark.parametrize(("devices", "share"), [(2, 0.6), (4, 0.35), (8, 0.35)])
def test_tight_memory(benchmark, devices, share):
    """Of the graphs: placed, proven infeasible, or neither (the bar: none)."""

    def attempt():
        outcomes = {}
        for graph, costs in graphs(FOLDER, DATA, quick=not FULL):
            alone = bl.simulate(graph, bl.Cluster.uniform(1, memory_bytes=PLENTY), bl.Placement(device=[0] * graph.n))
            cluster = bl.Cluster.uniform(
                devices, memory_bytes=int(share * alone.peak_bytes[0]), comm="sequential", **costs
            )
            try:
                placement = bl.place(graph, cluster, "auto")
                outcomes[graph.name] = "placed" if bl.simulate(graph, cluster, placement).feasible else "invalid"
            except bl.InfeasiblePlacement as refused:
                outcomes[graph.name] = "neither" if "neither" in str(refused) else "proven infeasible"
        return outcomes

    benchmark.extra_info["found"] = record(benchmark, attempt, bar="no 'neither'")
    assert "invalid" not in benchmark.extra_info["found"].values()
