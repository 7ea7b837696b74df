"""Replicas where links have levels: PipeDream's optimizer, level by level."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.placers.pipeline_stages.link_levels import cuts_by_link_level, link_levels
from baechi_lab.placers.pipeline_stages.pipeline_units import make_pipeline_units

VGG = Path(__file__).parents[2] / "data/pipedream/vgg16_graph.txt"


def machines(count: int, each: int, near: bl.Link, far: bl.Link, comm: str = "sequential", memory="16GB") -> bl.Cluster:
    """`count` machines of `each` devices."""
    n = count * each
    links = [[near if a // each == b // each else far for b in range(n)] for a in range(n)]
    return bl.Cluster(bl.Cluster.uniform(n, memory_bytes=memory).devices, link=links, comm=comm)


def layers(work: list[float], sizes: list[int], persistent_bytes: list[int]) -> bl.OpGraph:
    """A chain of layers whose backward op, as long as the forward op, shares its device."""
    n = len(work)
    ahead = [(k, k + 1, sizes[k]) for k in range(n - 1)]
    backward_edges = [(n + k + 1, n + k, sizes[k]) for k in range(n - 1)]
    return bl.OpGraph.from_edges(
        [*work, *work],
        ahead + backward_edges,
        forward_of=[-1] * n + list(range(n)),
        persistent_bytes=[*persistent_bytes, *[0] * n],
        colocation=[*range(n), *range(n)],
        colocation_names=tuple(f"layer{k}" for k in range(n)),
    )


def test_levels_of_links():
    near, middle, far = (bl.Link(float(k), 0.1 * k) for k in (1, 2, 3))
    links = [[near if a // 2 == b // 2 else middle if a // 4 == b // 4 else far for b in range(8)] for a in range(8)]
    hierarchy, order = link_levels(bl.Cluster(bl.Cluster.uniform(8).devices, link=links))
    assert [(level.width, level.latency) for level in hierarchy] == [(2, 1.0), (2, 2.0), (2, 3.0)]
    assert order == list(range(8))
    assert link_levels(bl.Cluster.uniform(8)) is None
    assert link_levels(machines(3, 1, near, far)) is None
    mixed = [[0, 5, 1, 4, 2, 6, 3, 7].index(k) for k in range(8)]
    scattered = [[links[mixed[a]][mixed[b]] for b in range(8)] for a in range(8)]
    hierarchy, order = link_levels(bl.Cluster(bl.Cluster.uniform(8).devices, link=scattered))
    assert [level.width for level in hierarchy] == [2, 2, 2]
    uneven = [[near if (a < 2) == (b < 2) else far for b in range(5)] for a in range(5)]
    assert link_levels(bl.Cluster(bl.Cluster.uniform(5).devices, link=uneven)) is None


def test_two_levels_by_hand():
    """Two machines of two devices; layers of 6 + 6 us, a tensor of 4 bytes; 0.01 us per byte within a machine, 1 between.

    1000 bytes of gradients per layer: each layer on a machine, whose devices take turns: compute 6 us per micro-batch; the queue
    of each carries (4 + 4) * 1 us for its micro-batch and a ring of 2 / 2 * 1000 * 0.01 us for two: (8 + 10) / 2 = 9 us.
    4 bytes of gradients: one layer on each device of a machine, 12 us, and the same on the other machine: 6 us. The ring
    between machines takes 4 us for two micro-batches.
    """
    near, far = bl.Link(0.0, 0.01), bl.Link(0.0, 1.0)
    cluster = machines(2, 2, near, far)
    heavy = bl.place(
        layers([6.0, 6.0], [4], [1000, 1000]), cluster, "contiguous", objective="throughput", replicas=True
    )
    assert heavy.info["period_us"] == pytest.approx(9.0)
    graph = layers([6.0, 6.0], [4], [4, 4])
    units = make_pipeline_units(graph, cluster)
    (cut,) = cuts_by_link_level(units, cluster, "line", sum=False)
    assert cut.cost == pytest.approx(6.0)
    placement = cut.placement()
    assert bl.throughput(graph, cluster, placement).period_us == pytest.approx(6.0)
    light = bl.place(graph, cluster, "contiguous", objective="throughput", replicas=True)
    assert light.info["period_us"] == pytest.approx(6.0)


def test_copies_of_a_pipeline_keep_micro_batches_within_a_machine():
    """Two layers, 2 and 4 us in both passes, on two machines of three devices: one and two devices, on each machine.

    Micro-batch b goes to machine b mod 2, where the second layer's two devices take turns: no tensor leaves a machine.
    """
    cluster = machines(
        2, 3, bl.Link(0.0, 0.0005), bl.Link(0.0, 0.001), memory=150
    )  # one layer of 100 bytes fits on a device, not two
    graph = layers([2.0, 4.0], [4], [100, 100])
    (cut,) = cuts_by_link_level(make_pipeline_units(graph, cluster), cluster, "line", sum=False)
    assert cut.devices == ((0, 3), (1, 4, 2, 5))
    assert cut.cost == pytest.approx(2.0)  # 4 us of the first layer on each machine, 8 on two devices
    timeline = bl.simulate(graph, cluster, cut.placement(), micro_batches=8, schedule="1f1b")
    transfers = timeline.transfers
    between = transfers.source // 3 != transfers.target // 3
    assert len(transfers) - between.sum() >= 2 * 8
    ring = (
        np.array(bl.unroll(graph, 8, cut.placement()).op_types)[timeline.tensor_producer[transfers.tensor]]
        == "AllReduce"
    )
    assert ring[between].all()


@pytest.mark.parametrize("seed", range(4))
def test_never_worse_than_without_levels(seed):
    """All orders of a chain on two machines, as replicas of stages in the order of the devices, are no better."""
    rng = np.random.default_rng(seed)
    graph = layers(
        rng.integers(1, 9, 5).astype(float).tolist(), rng.integers(1, 20, 4).tolist(), rng.integers(1, 40, 5).tolist()
    )
    cluster = machines(2, 2, bl.Link(0.0, 0.02), bl.Link(0.0, 0.3), ("sequential", "duplex")[seed % 2])
    period_us = bl.place(graph, cluster, "contiguous", objective="throughput", replicas=True).info["period_us"]
    for cuts in itertools.combinations(range(1, 5), 1):
        home = np.searchsorted(cuts, np.arange(5), side="right")
        placement = bl.Placement(device=np.tile(home * 2, 2), replicas=[(0, 1), (2, 3)])
        assert period_us <= bl.throughput(graph, cluster, placement).period_us * (1 + 1e-9)


def test_published_numbers_stay_and_machines_of_four_help():
    """One device per machine has no levels: PipeDream's answer. With 4 fast-linked devices on each machine it is faster."""
    graph = bl.load_graph(VGG)
    slow = bl.Link(0.0, 1e-3)
    flat = bl.Cluster.uniform(4, memory_bytes="16GB", link=slow, comm="sequential")
    placement = bl.place(graph, flat, "contiguous", objective="throughput", replicas=True)
    assert placement.info["period_us"] == pytest.approx(205520.896)
    assert link_levels(flat) is None
    deep = machines(4, 4, bl.Link(0.0, 1e-4), slow)
    better = bl.place(graph, deep, "contiguous", objective="throughput", replicas=True)
    assert better.info["period_us"] < 205520.896 / 2
    assert bl.throughput(graph, deep, better).period_us == pytest.approx(better.info["period_us"])
