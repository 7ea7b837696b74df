"""Placing, simulating, checking and optimizing large graphs; `bar_s` of each result is what it may take.

Run with: pytest tests/benchmarks/test_speed.py --benchmark-only
On a machine that others use too, add --benchmark-timer=time.process_time.
Medians, warm: the first round, which may compile kernels, does not count.
"""

from __future__ import annotations

import resource
from functools import cache
from pathlib import Path

import pytest

import baechi_lab as bl
from baechi_lab.memory.peak import single_device_peak
from baechi_lab.memory_saving.budget import plans_for
from baechi_lab.placers.sct_program import solver as sct_solver

ROOT = Path(__file__).parents[2]
GNMT_OPS, NMT_OPS, MANY_OPS = 22_800, 83_000, 1_000_000
pytestmark = pytest.mark.timeout(600)


def cluster(devices=4, memory_bytes=16 << 30):
    return bl.Cluster.uniform(devices, memory_bytes=memory_bytes, link=bl.Link(134.0, 0.0001754), comm="sequential")


@cache
def gnmt():
    return bl.generators.gnmt(ops=GNMT_OPS)


@cache
def optimized():
    return bl.optimize(gnmt())


@cache
def gnmt_placement():
    return bl.place(gnmt(), cluster(), "m-etf")


def measure(benchmark, bar_s, work, rounds=5, setup=None):
    """Run `work` `rounds` times after a warm-up."""
    benchmark.extra_info["bar_s"] = bar_s
    return benchmark.pedantic(work, rounds=rounds, warmup_rounds=1, setup=setup)


@pytest.mark.parametrize(("placer", "bar_s", "rounds"), [("m-topo", 0.05, 5), ("m-etf", 0.15, 5), ("m-sct", 2.5, 3)])
def test_place(benchmark, placer, bar_s, rounds):
    gnmt()
    forget = sct_solver._solution_cache.clear  # the LP is part of the work
    result = measure(benchmark, bar_s, lambda: bl.place(gnmt(), cluster(), placer), rounds, forget)
    assert len(result.device) == gnmt().n


def test_place_traced_gnmt_with_m_sct(benchmark):
    """The same on a graph that TensorFlow traced: length 50, 22,239 ops. It has 39,278 edges, the generated one 45,310."""
    graph = bl.load_graph(ROOT / "data" / "gnmt-length50-batch256.json.gz")
    work = lambda: bl.place(graph, cluster(), "m-sct")  # noqa: E731
    result = measure(benchmark, 2.5, work, 3, sct_solver._solution_cache.clear)
    assert len(result.device) == graph.n


def test_auto_on_traced_gnmt(benchmark):
    """The table of all fast placers under all schedulers, the traced graph and its groups: 134 simulations."""
    graph = bl.load_graph(ROOT / "data" / "gnmt-length50-batch256.json.gz")
    result = measure(benchmark, 1.5, lambda: bl.place(graph, cluster(), "auto"), 3, sct_solver._solution_cache.clear)
    assert len(result.device) == graph.n


def test_interleaved_contiguous(benchmark):
    """17,838 ops in up to 16 stages on four devices: 24 dynamic programs over 3,000 places, 70 simulations of eight batches."""
    graph = bl.load_graph(ROOT / "data" / "gnmt-length40-batch128.json.gz")
    options = {"objective": "step", "micro_batches": 8, "schedule": "interleaved-1f1b"}
    result = measure(benchmark, 15.0, lambda: bl.place(graph, cluster(), "contiguous", **options), rounds=1)
    assert len(result.device) == graph.n


def test_fit_with_recomputation(benchmark):
    """17,838 ops on two devices that have 45 % of one device's peak each: no choice of ops fits, all are tried."""
    graph = bl.load_graph(ROOT / "data" / "gnmt-length40-batch128.json.gz")
    small = cluster(2, int(0.45 * single_device_peak(graph)))
    work = lambda: bl.fit(graph, small, give_up=("recompute",))  # noqa: E731
    assert not measure(benchmark, 20.0, work, 1, plans_for.cache_clear).fits


def test_simulate(benchmark):
    gnmt_placement()
    timeline = measure(benchmark, 0.05, lambda: bl.simulate(gnmt(), cluster(), gnmt_placement()))
    assert len(timeline.op) == gnmt().n


def test_check(benchmark):
    timeline = bl.simulate(gnmt(), cluster(), gnmt_placement())
    problems = measure(benchmark, 0.5, lambda: bl.check(gnmt(), cluster(), gnmt_placement(), timeline))
    assert [p for p in problems if p.kind != "memory"] == []


def test_bounds(benchmark):
    bounds = measure(benchmark, 0.1, lambda: bl.bounds(gnmt(), cluster()))
    assert bounds


def test_optimize(benchmark):
    coarse = measure(benchmark, 0.5, lambda: bl.optimize(gnmt()))
    assert coarse.n < gnmt().n


@pytest.mark.parametrize(("placer", "bar_s"), [("m-topo", 0.1), ("m-etf", 0.1), ("m-sct", 0.3)])
def test_slider_move(benchmark, placer, bar_s):
    """Another memory limit each time, on the optimized graph: place and simulate."""
    moves = iter(range(100))

    def move():
        changed_cluster = cluster(memory_bytes=(16 << 30) + (next(moves) << 20))
        return bl.simulate(optimized(), changed_cluster, bl.place(optimized(), changed_cluster, placer))

    assert measure(benchmark, bar_s, move).makespan_us > 0


def test_translation_of_83k_ops_on_8_devices(benchmark):
    graph = bl.generators.gnmt(layers=8, ops=NMT_OPS)  # 16 GB would take eight plans until one fits
    result = measure(benchmark, 1.0, lambda: bl.place(graph, cluster(8, 128 << 30), "m-etf"), rounds=3)
    assert len(result.device) == graph.n


def test_a_million_ops(benchmark):
    graph = bl.generators.layered_dag(MANY_OPS, seed=0)
    graph.order  # noqa: B018 - part of the generation

    def work():
        return bl.simulate(graph, cluster(), bl.place(graph, cluster(), "m-etf"))

    timeline = measure(benchmark, 10.0, work, rounds=1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    benchmark.extra_info["peak_resident_bytes"] = peak
    assert timeline.makespan_us >= graph.duration_us.sum() / 4
    assert peak < 4e9
