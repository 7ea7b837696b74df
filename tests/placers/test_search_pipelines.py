"""`search` for the period of endless micro-batches and for steps of several: brute force, memory, other devices and links."""

import itertools

import numpy as np
import pytest
from fewer import fast

import baechi_lab as bl
from baechi_lab.placers.pipeline_stages.device_loads import largest_load, load_model, loads_of

COMM = ("parallel", "sequential", "duplex")


def uneven_cluster(count: int, comm: str, memory: int = 10**9) -> bl.Cluster:
    """Devices of different speeds, and links that are slower the further apart they are."""
    devices = [bl.Device(f"gpu:{k}", "gpu", memory, speed=1.0 + k) for k in range(count)]
    links = {(a, b): bl.Link(0.3, 0.02 * abs(a - b)) for a in range(count) for b in range(count) if a != b}
    return bl.Cluster(
        devices, link=[[links.get((a, b), bl.Link(0.0, 0.0)) for b in range(count)] for a in range(count)], comm=comm
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", fast(range(6), 2))
@pytest.mark.parametrize("comm", COMM)
def test_period_of_every_assignment_and_the_smallest(seed, comm):
    """The loads are those of `bl.throughput` for all assignments; the search finds the best of them."""
    graph = bl.generators.random_dag(6, degree=1.5, duration_us=(1, 9), size_bytes=(1, 50), seed=seed)
    if seed >= 3:
        graph = graph.replace(op_types=("matmul", "all_reduce", "matmul", "all_gather", "matmul", "matmul"))
    cluster, total = uneven_cluster(2 + seed % 2, comm), seed % 2 == 1
    model, best = load_model(graph, cluster, sum=total), np.inf
    for home in itertools.product(range(cluster.n), repeat=graph.n):
        us = bl.throughput(graph, cluster, bl.Placement(device=list(home)), sum=total).period_us
        assert largest_load(model, loads_of(model, np.array(home)))[0] == pytest.approx(us)
        best = min(best, us)
    placement = bl.place(
        graph, cluster, "search", objective="throughput", sum=total, time_limit=None, evaluations=40_000, workers=2
    )
    assert bl.throughput(graph, cluster, placement, sum=total).period_us == pytest.approx(best)
    assert placement.info["period_us"] == pytest.approx(best)


def test_bug_the_best_of_sixteen_assignments_was_missed():
    """Four layers on two devices, whose collectives and transfers leave one good assignment behind bad ones.

    Layers 0 and 2 on the first device, at speed 1, and 1 and 3 on the other, at 2: compute 2 + 16 + 1 = 19 us there and
    (5 + 17 + 12) / 2 = 17 us here, collectives 16 and 18 us. All neighbours have a device with at least 20 us.
    """
    types = ["matmul"] * 6 + ["all_gather", "all_reduce"]
    edges = [(0, 1, 1), (1, 2, 1), (2, 3, 1), (7, 6, 1), (6, 5, 1), (5, 4, 1)]
    graph = bl.OpGraph.from_edges(
        [2.0, 5.0, 1.0, 12.0, 16.0, 17.0, 16.0, 18.0],
        edges,
        op_types=types,
        colocation=np.tile(np.arange(4, dtype=np.int32), 2),
        colocation_names=tuple("abcd"),
        forward_of=[-1] * 4 + [0, 1, 2, 3],
    )
    devices = [bl.Device("gpu:0", "gpu", 10**9), bl.Device("gpu:1", "gpu", 10**9, speed=2.0)]
    cluster = bl.Cluster(devices, link=bl.Link(0.0, 0.0))
    placement = bl.place(graph, cluster, "search", objective="throughput", time_limit=None, evaluations=100, workers=1)
    assert placement.info["period_us"] == 19.0 and placement.device.tolist() == [0, 1, 0, 1] * 2


def training(seed: int, layers: int = 5) -> bl.OpGraph:
    """Layers whose forward and backward ops share a device."""
    rng = np.random.default_rng(seed)
    graph = bl.generators.pipeline(rng.uniform(1, 9, layers), rng.uniform(1, 9, layers), output_bytes=10)
    return graph.replace(
        colocation=np.tile(np.arange(layers, dtype=np.int32), 2),
        colocation_names=tuple(f"layer{k}" for k in range(layers)),
        persistent_bytes=np.array([*rng.integers(10, 30, layers), *[0] * layers]),
    )


def least_step(graph: bl.OpGraph, cluster: bl.Cluster, **step) -> float:
    """The shortest step of all assignments of layers that fit and that the schedule can work on."""
    best, layers = np.inf, graph.n // 2
    for home in itertools.product(range(cluster.n), repeat=layers):
        try:
            timeline = bl.simulate(graph, cluster, bl.Placement(device=list(home) * 2), **step)
        except bl.InvalidInput:
            continue
        if timeline.feasible:
            best = min(best, timeline.makespan_us)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_shortest_step_of_tiny_pipelines(seed):
    graph, cluster = training(seed), uneven_cluster(2 + seed % 2, COMM[seed % 3])
    step = {"micro_batches": 4, "schedule": ("1f1b", "gpipe")[seed % 2]}
    placement = bl.place(graph, cluster, "search", objective="step", time_limit=None, evaluations=400, seed=1, **step)
    assert bl.simulate(graph, cluster, placement, **step).makespan_us == placement.info["step_us"]
    assert placement.info["step_us"] == pytest.approx(least_step(graph, cluster, **step))
    assert placement.info["step_us"] <= placement.info["start_us"]


@pytest.mark.parametrize("objective", ["throughput", "step"])
def test_memory_and_allowed_devices_hold(objective):
    """Of 5 layers of 10 bytes and outputs of 10 a device holds two or three; the last may run on the first device alone."""
    graph = training(0).replace(persistent_bytes=np.array([10] * 5 + [0] * 5))
    graph = graph.replace(allowed=np.array([-1] * 4 + [0] + [-1] * 5), allowed_sets=(("gpu:0",),))
    cluster = uneven_cluster(3, "duplex", memory=110)
    placement = bl.place(
        graph, cluster, "search", objective=objective, micro_batches=2, time_limit=None, evaluations=300, workers=1
    )
    assert placement.device[4] == 0
    step = {"micro_batches": 2, "schedule": "1f1b"} if objective == "step" else {}
    assert bl.simulate(graph, cluster, placement, **step).feasible
    with pytest.raises(bl.InfeasiblePlacement):
        bl.place(graph, cluster.with_memory(12), "search", objective=objective, time_limit=0)


@pytest.mark.slow
def test_never_worse_than_the_start_and_the_same_every_time():
    graph, cluster = training(3, 8), uneven_cluster(3, "sequential")
    for objective in ("throughput", "step"):
        start = bl.place(graph, cluster, "contiguous", objective=objective)
        options = {"objective": objective, "time_limit": None, "evaluations": 60, "workers": 1, "start": start}
        first, second = (bl.place(graph, cluster, "search", **options) for _ in range(2))
        assert first == second
        key = "period_us" if objective == "throughput" else "step_us"
        assert first.info[key] <= start.info[key]
        none = bl.place(graph, cluster, "search", **{**options, "evaluations": 0})
        assert np.array_equal(none.device, start.device)
        heard = []
        bl.place(graph, cluster, "search", **{**options, "callback": lambda p, heard=heard: heard.append(p) or True})
        assert len(heard) == 1


def test_auto_asks_search_for_pipelines():
    graph, cluster = training(1), uneven_cluster(2, "duplex")
    best = bl.place(graph, cluster, "auto", objective="throughput")
    rows = {row["placer"]: row["period_us"] for row in best.info["table"] if row["feasible"]}
    assert best.info["period_us"] == min(rows.values())
    assert rows["search"] <= rows["contiguous"]


def test_bad_input_is_rejected():
    graph, cluster = training(0), uneven_cluster(2, "duplex")
    with pytest.raises(bl.InvalidInput, match="objective is 'speed'"):
        bl.place(graph, cluster, "search", objective="speed")
    with pytest.raises(bl.UnknownNameError, match="unknown schedule"):
        bl.place(graph, cluster, "search", objective="step", schedule="1f2b")
    assert bl.place(bl.OpGraph.from_edges([]), cluster, "search", objective="step").n == 0
    alone = bl.place(graph, bl.Cluster.uniform(1), "search", objective="throughput", time_limit=0.1)
    assert alone.info["period_us"] == pytest.approx(graph.duration_us.sum())


@pytest.mark.parametrize("placer", ["search", "exact", "auto"])
def test_bug_pipelines_of_few_ops_that_no_cut_fits_were_refused(placer):
    """6 + 3 and 5 + 4 bytes fit on two devices of 9, as no cut of the line 6, 5, 4, 3 does: 2 ops twice on each take 4."""
    graph = bl.OpGraph.from_edges([1, 1, 1, 1], [], persistent_bytes=[6, 5, 4, 3])
    cluster = bl.Cluster.uniform(2, memory_bytes=9, link=bl.Link(0.0, 0.0))
    options = {"time_limit": None, "evaluations": 20} if placer == "search" else {}
    placement = bl.place(graph, cluster, placer, objective="step", micro_batches=2, schedule="gpipe", **options)
    timeline = bl.simulate(graph, cluster, placement, micro_batches=2, schedule="gpipe")
    assert timeline.feasible and timeline.makespan_us == 4
    with pytest.raises(bl.InfeasiblePlacement, match="the graph keeps 18 B"):
        bl.place(
            graph, cluster.with_memory([9, 8]), placer, objective="step", micro_batches=2, schedule="gpipe", **options
        )
