"""Mayer et al.'s placers on 22.8 thousand ops and 50 unequal devices: pytest tests/benchmarks/test_critical_path_speed.py
--benchmark-only. Goals, warm, on two cores: heft and critical-path + pct under 1.5 s, mite and dfs under 3 s."""

import numpy as np
import pytest

import baechi_lab as bl

DEVICES = 50


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    graph = bl.generators.gnmt(ops=22800)
    speed, rate = rng.uniform(1, 10, DEVICES), rng.uniform(1e4, 6e4, (DEVICES, DEVICES))
    devices = tuple(bl.Device(f"d{d}", "device", 64 << 30, float(speed[d])) for d in range(DEVICES))
    links = [[bl.Link.from_bandwidth(float(r)) for r in row] for row in rate]
    return graph, bl.Cluster(devices, links, comm="parallel")


@pytest.mark.parametrize("placer", ["hash", "batch-split", "mite", "dfs", "heft"])
def test_place(benchmark, case, placer):
    placement = benchmark.pedantic(bl.place, (*case, placer), rounds=3, warmup_rounds=1)
    assert placement.n == case[0].n


def test_critical_path_with_pct(benchmark, case):
    def place_and_simulate():
        return bl.simulate(*case, bl.place(*case, "critical-path"), "pct")

    assert benchmark.pedantic(place_and_simulate, rounds=3, warmup_rounds=1).makespan_us > 0


@pytest.mark.parametrize("point", ["mcp", "etf", "fifo"])
def test_list_scheduler(benchmark, case, point):
    placement = benchmark.pedantic(bl.place, (*case, bl.ListScheduler.point(point)), rounds=3, warmup_rounds=1)
    assert placement.n == case[0].n


@pytest.mark.parametrize("scheduler", ["fifo", "pct", "msr"])
def test_simulate(benchmark, case, scheduler):
    placement = bl.place(*case, "hash")
    assert benchmark.pedantic(bl.simulate, (*case, placement, scheduler), rounds=3, warmup_rounds=1).makespan_us > 0
