"""Placements for schedules with several pipeline stages on each device."""

import numpy as np
import pytest

import baechi_lab as bl

P, COUNT = 4, 8


def free(devices, memory="8GB"):
    return bl.Cluster.uniform(devices, memory_bytes=memory, link=bl.Link(0.0, 0.0))


def stage_devices(graph, cluster, placement, schedule):
    return bl.simulate(graph, cluster, placement, micro_batches=COUNT, schedule=schedule).stage_device.tolist()


@pytest.mark.parametrize("placer", ["contiguous", "ideals"])
def test_interleaved_stages_divide_the_bubble(placer):
    """16 layers of 1 and 2 us on 4 devices: 8 x 12 us, and a bubble of 3 x 12 / 4 us as every device has 4 stages."""
    graph = bl.generators.pipeline([1.0] * 16, [2.0] * 16)
    options = {"objective": "step", "micro_batches": COUNT}
    plain = bl.place(graph, free(P), placer, schedule="1f1b", **options)
    placement = bl.place(graph, free(P), placer, schedule="interleaved-1f1b", **options)
    assert plain.info["step_us"] == pytest.approx(COUNT * 12 + (P - 1) * 12)
    assert placement.info["step_us"] == pytest.approx(COUNT * 12 + (P - 1) * 12 / 4)
    assert stage_devices(graph, free(P), placement, "interleaved-1f1b") == [0, 1, 2, 3] * 4


@pytest.mark.slow
@pytest.mark.parametrize("placer", ["contiguous", "ideals", "search", "auto"])
def test_zb_v_leads_there_and_back(placer):
    """8 layers with F, B and W of 1 us: every device works 8 x 6 us, the last begins p - 1 us after the first."""
    graph = bl.generators.pipeline([1.0] * 8, [1.0] * 8, [1.0] * 8)
    limit = {"evaluations": 50, "time_limit": None} if placer == "search" else {}
    placement = bl.place(graph, free(P), placer, objective="step", micro_batches=COUNT, schedule="zb-v", **limit)
    timeline = bl.simulate(graph, free(P), placement, micro_batches=COUNT, schedule="zb-v")
    assert timeline.makespan_us == pytest.approx(COUNT * 6 + P - 1)
    assert timeline.stage_device.tolist() == [0, 1, 2, 3, 3, 2, 1, 0]


def test_too_few_layers_go_through_fewer_devices():
    """Three layers cannot form eight stages; they form two stages on one device."""
    graph = bl.generators.pipeline([1.0] * 3, [1.0] * 3, [1.0] * 3)
    placement = bl.place(graph, free(P), "contiguous", objective="step", micro_batches=COUNT, schedule="zb-v")
    assert len(set(placement.device.tolist())) == 1
    assert placement.info["step_us"] == pytest.approx(COUNT * 9)


def test_expensive_links_use_fewer_devices():
    """A further device saves less than 16 us, and each further border costs 100 us."""
    graph = bl.generators.pipeline([1.0] * 8, [1.0] * 8)
    slow_links = bl.Cluster.uniform(P, memory_bytes="8GB", link=bl.Link(100.0, 0.0))
    for schedule in ("zb-v", "interleaved-1f1b"):
        placement = bl.place(graph, slow_links, "contiguous", objective="step", micro_batches=COUNT, schedule=schedule)
        assert len(set(placement.device.tolist())) == 1 and placement.info["step_us"] == pytest.approx(COUNT * 16)


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "zb-v"])
def test_stages_of_a_device_share_its_memory(schedule):
    """Layers of 1 GB on devices of 2.5 GB: every device gets two layers, at any position of the round."""
    graph = bl.generators.pipeline([1.0] * 8, [2.0] * 8)
    persistent_bytes = np.zeros(graph.n, dtype=np.int64)
    persistent_bytes[np.flatnonzero([name.startswith("F") for name in graph.names])] = 10**9
    graph = graph.replace(persistent_bytes=persistent_bytes)
    tight = free(P, memory="2.5GB")
    placement = bl.place(graph, tight, "contiguous", objective="step", micro_batches=COUNT, schedule=schedule)
    timeline = bl.simulate(graph, tight, placement, micro_batches=COUNT, schedule=schedule)
    assert timeline.feasible and np.bincount(placement.device, persistent_bytes, P).tolist() == [2e9] * P
    assert (
        timeline.stage_device.tolist()
        == {"interleaved-1f1b": [0, 1, 2, 3] * 2, "zb-v": [0, 1, 2, 3, 3, 2, 1, 0]}[schedule]
    )
