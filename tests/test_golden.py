"""Golden timelines: `tests/golden/NAME.txt` holds the arithmetic, worked out by hand, and the timeline that follows from it.

A changed rule shows as a diff of these files. Whoever changes one checks it by hand again: nothing here writes them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from simulator_reference import simulate_reference

import baechi_lab as bl
from baechi_lab.graph.timeline import MemoryLog

FOLDER = Path(__file__).parent / "golden"
LATENCY = bl.Link(latency_us=1.0, us_per_byte=0.0)

CROSSING = bl.OpGraph.from_edges([2, 2, 3, 5, 1], [(0, 2, 4), (0, 4, 8), (1, 3, 4)], names=list("abcde"))
CHOOSING = bl.OpGraph.from_edges(
    [4, 2, 3, 1, 9, 2, 1], [(0, 3, 1), (1, 4, 1), (2, 5, 1), (2, 6, 1)], names=list("abcxyzw")
)
FILLING = bl.OpGraph.from_edges(
    [2, 3, 1], [(0, 1, 4), (0, 2, 4)], names=list("abc"), persistent_bytes=[10, 1, 3], temp_bytes=[5, 0, 2]
)
FUSING = bl.OpGraph.from_edges(
    [2, 3, 4, 1],
    [(0, 1, 8), (1, 2, 4), (0, 3, 6)],
    names=list("abcd"),
    persistent_bytes=[1, 2, 4, 8],
    colocation=[0, 0, -1, -1],
    colocation_names=("g",),
)


def crossing(comm):
    cluster = bl.Cluster.uniform(2, memory_bytes=100, link=bl.Link(1.0, 0.5), comm=comm)
    return CROSSING, cluster, bl.Placement(device=[0, 1, 1, 0, 1]), None


def choosing(scheduler, **planned):
    cluster = bl.Cluster.uniform(2, memory_bytes=100, link=LATENCY, comm="parallel")
    return CHOOSING, cluster, bl.Placement(device=[0, 0, 0, 1, 0, 1, 1], **planned), scheduler


def filling():
    devices = (bl.Device("gpu:0", "gpu", 20), bl.Device("gpu:1", "gpu", 8))
    return FILLING, bl.Cluster(devices, LATENCY, comm="parallel"), bl.Placement(device=[0, 0, 1]), None


def fusing(on_ops):
    """The placement of the groups, on the groups or on the ops that they hold."""
    coarse = bl.optimize(FUSING, passes=("fusion",))
    cluster = bl.Cluster.uniform(2, memory_bytes=100, link=bl.Link(0.0, 1.0), comm="sequential")
    keys_of_groups = {"graph_key": coarse.key, "group_of": coarse.group_of, "source_key": coarse.source_key}
    return FUSING if on_ops else coarse, cluster, bl.Placement(device=[0, 1, 1], **keys_of_groups), None


CASES = {
    "parallel": crossing("parallel"),
    "sequential": crossing("sequential"),
    "duplex": crossing("duplex"),
    "fifo": choosing("fifo"),
    "pct": choosing("pct"),
    "msr": choosing("msr"),
    "planned": choosing("planned", priority=[1, 3, 2, 0, 0, 0, 0]),
    "memory": filling(),
    "coarse": fusing(on_ops=False),
    "coarse_on_ops": fusing(on_ops=True),
}
WITH_MEMORY = {"memory", "coarse", "coarse_on_ops"}


def golden(name):
    """The timeline's lines of a file, without the arithmetic above them."""
    lines = (FOLDER / f"{name}.txt").read_text("utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("name", CASES)
def test_timeline_is_the_one_worked_out_by_hand(name):
    graph, cluster, placement, scheduler = CASES[name]
    timeline = bl.simulate(graph, cluster, placement, scheduler)
    assert timeline.to_text(memory=name in WITH_MEMORY) == golden(name)
    broken = bl.check(graph, cluster, placement, timeline)
    assert [v.kind for v in broken] == [v.kind for v in timeline.violations]


@pytest.mark.parametrize("name", ["parallel", "sequential", "duplex", "memory"])
def test_the_readable_twin_ends_at_the_same_time(name):
    graph, cluster, placement, _ = CASES[name]
    twin = simulate_reference(graph, cluster, placement.device.tolist())
    assert golden(name).startswith(f"simulated, {max(twin.end.values()):g} us\n")


def test_every_file_is_a_case_with_its_arithmetic():
    assert sorted(path.stem for path in FOLDER.glob("*")) == sorted(CASES)
    for name in CASES:
        text = (FOLDER / f"{name}.txt").read_text("utf-8")
        arithmetic = [line for line in text.splitlines() if line.startswith("#")]
        assert len(arithmetic) >= 3 and text.startswith("# "), name


def test_every_mode_and_scheduler_has_a_file():
    from baechi_lab.graph.cluster import COMMUNICATION_MODES
    from baechi_lab.simulator.schedulers import SCHEDULERS

    assert {*COMMUNICATION_MODES, *SCHEDULERS.names()} <= set(CASES)


def test_the_text_of_a_damaged_memory_log_sums_beyond_64_bits():
    timeline = bl.simulate(bl.OpGraph.from_edges([1.0]), bl.Cluster.uniform(1), bl.Placement([0]))
    log = MemoryLog([0, 0], [0.0, 0.0], [0, 0], [2**63 - 1, 2**63 - 1], [0, 0])
    assert f": {2**64 - 2} B" in dataclasses.replace(timeline, memory=log).to_text(memory=True)
