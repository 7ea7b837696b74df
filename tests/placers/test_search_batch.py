"""Many placements at once: step times equal the simulator's."""

import numpy as np
import pytest
from fewer import fast
from random_cases import random_cluster, random_graph

from baechi_lab import Cluster, Device, Link, OpGraph, Placement
from baechi_lab.placers.planner.reward import Batch
from baechi_lab.placers.problem import groups_of
from baechi_lab.simulator import makespan_and_peak


def simulated(graph, cluster, row):
    makespan, peak = makespan_and_peak(graph, cluster, Placement(device=row))
    return makespan * 1e-6 if np.all(peak <= cluster.memory_bytes) else np.inf


@pytest.mark.parametrize("seed", fast(range(90), 18))
def test_a_batch_takes_what_the_simulator_says(seed):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, most=40, groups=seed % 3 > 0)
    if seed % 5 == 4:
        graph = graph.replace(op_types=tuple("all_reduce" if i % 3 == 1 else "matmul" for i in range(graph.n)))
    cluster = random_cluster(rng, memory_bytes=int(rng.choice([10**6, 200, 80])))
    unit = groups_of(graph)
    rows = rng.integers(0, cluster.n, (6, int(unit.max(initial=0)) + 1))[:, unit]
    rows[5] = rng.integers(0, cluster.n, graph.n)  # separates groups: a search may ask for that, too
    expected = [simulated(graph, cluster, row) for row in rows]
    assert Batch(graph, cluster).seconds(rows).tolist() == expected


def test_unequal_devices_and_links():
    rng = np.random.default_rng(0)
    graph = random_graph(rng, most=30, groups=True)
    devices = (Device("cpu:0", "cpu", 10**6, 0.125), Device("gpu:0", "gpu", 10**6), Device("gpu:1", "gpu", 10**6))
    links = [[Link(float(i), float(j)) for j in range(3)] for i in range(3)]
    cluster = Cluster(devices, links)
    rows = rng.integers(0, 3, (20, graph.n))
    assert Batch(graph, cluster).seconds(rows).tolist() == [simulated(graph, cluster, row) for row in rows]


def test_memory_of_a_batch_by_hand():
    # Op 0 keeps 10 and makes 30; op 1 reads it and needs 50 more while it runs. Together: 10 + 30 + 50 = 90. Apart: 40 on
    # the first device, a copy of 30 and 50 on the second, 80.
    graph = OpGraph.from_edges([1e6, 1e6], [(0, 1, 30)], persistent_bytes=[10, 0], temp_bytes=[0, 50])
    together, separate = [0, 0], [0, 1]
    for memory, expected in ((90, [2.0, 2.0]), (89, [np.inf, 2.0]), (80, [np.inf, 2.0]), (79, [np.inf, np.inf])):
        cluster = Cluster.uniform(2, memory_bytes=memory, link=Link(0.0, 0.0))
        assert Batch(graph, cluster).seconds(np.array([together, separate])).tolist() == expected


def test_memory_that_the_bound_cannot_tell_is_followed():
    # Each op makes 60 bytes that only the next one reads: 120 at a time, 180 in all.
    graph = OpGraph.from_edges([1e6] * 4, [(0, 1, 60), (1, 2, 60), (2, 3, 60)])
    one = np.zeros((1, 4), dtype=np.int32)
    seconds = {m: Batch(graph, Cluster.uniform(1, memory_bytes=m)).seconds(one)[0] for m in (180, 120, 119)}
    assert seconds == {180: 4.0, 120: 4.0, 119: np.inf}


def test_a_batch_without_ops_takes_no_time():
    assert (
        Batch(OpGraph.from_edges([]), Cluster.uniform(2)).seconds(np.zeros((3, 0), dtype=np.int32)).tolist()
        == [0.0] * 3
    )
