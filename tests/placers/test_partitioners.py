"""Mayer et al.'s partitioners by hand, against their readable twins, and what must hold for all of them."""

import numpy as np
import pytest
from fewer import fast
from mixed_clusters import mixed_cluster, restricted_graph
from partition_reference import (
    balance_reference,
    batch_split_reference,
    dfs_reference,
    mite_reference,
)

import baechi_lab as bl
from baechi_lab.placers.partition import make_units, units_by_rank

NAMES = ("hash", "batch-split", "critical-path", "mite", "dfs", "heft")
FREE = bl.Link(0.0, 0.0)


def cluster_of(*speeds, memory=1000, link=FREE, comm="parallel"):
    sizes = memory if isinstance(memory, (list, tuple)) else [memory] * len(speeds)
    devices = (bl.Device(f"d{i}", "x", m, s) for i, (m, s) in enumerate(zip(sizes, speeds, strict=True)))
    return bl.Cluster(tuple(devices), link, comm)


# Longest path 0 -> 2 -> 4 (2 + 6 + 2); 1 and 3 hang beside it.
GRAPH = bl.OpGraph.from_edges([2, 1, 6, 4, 2], [(0, 2, 10), (1, 2, 10), (0, 3, 10), (2, 4, 10), (3, 4, 10)])


# -- hash ------------------------------------------------------------------------------------------------


def test_hash_is_in_proportion_to_memory_or_speed():
    graph = bl.OpGraph.from_edges([1] * 4000)
    cluster = cluster_of(1.0, 3.0, memory=[30_000, 10_000])
    # odds 3 : 1 by memory and 1 : 3 by speed; 4000 draws have a standard deviation of 27
    assert np.bincount(bl.place(graph, cluster, "hash").device)[0] == pytest.approx(3000, abs=130)
    assert np.bincount(bl.place(graph, cluster, "hash", capacity="speed").device)[0] == pytest.approx(1000, abs=130)


def test_hash_depends_on_seed_and_name_only():
    cluster = cluster_of(1.0, 1.0, 1.0)
    one = bl.OpGraph.from_edges([1] * 50)
    larger_graph = bl.OpGraph.from_edges([3] * 60, [(0, 1, 5)])
    assert (
        bl.place(one, cluster, "hash").device.tolist() == bl.place(larger_graph, cluster, "hash").device.tolist()[:50]
    )
    assert bl.place(one, cluster, "hash").device.tolist() != bl.place(one, cluster, "hash", seed=1).device.tolist()


def test_hash_leaves_full_and_forbidden_devices_out():
    graph = bl.OpGraph.from_edges(
        [1] * 20, persistent_bytes=[10] * 20, allowed=[0] * 5 + [-1] * 15, allowed_sets=[("d1",)]
    )
    placement = bl.place(graph, cluster_of(1.0, 1.0, memory=[100, 100]), "hash")
    assert np.bincount(placement.device).tolist() == [10, 10]  # exactly full
    assert placement.device[:5].tolist() == [1] * 5


@pytest.mark.parametrize(
    ("params", "text"), [({"seed": -1}, "seed is -1"), ({"capacity": "speeed"}, "did you mean 'speed'")]
)
def test_hash_refuses(params, text):
    with pytest.raises(bl.InvalidInput, match=text):
        bl.place(GRAPH, cluster_of(1.0), "hash", **params)


# -- batch-split -----------------------------------------------------------------------------------------


def test_batch_split_by_hand():
    # Total ranks: 0, 2, 4: 10; 1: 1 + 6 + 2 = 9; 3: 2 + 4 + 2 = 8. Outputs of 10 bytes but for op 4.
    assert bl.total_rank(GRAPH).tolist() == [10, 9, 10, 8, 10]
    # With 10 persistent bytes each, d1 (the fastest) takes 0, 2, 4: 20 + 20 + 10; op 1 would make it 70 > 65.
    graph = GRAPH.replace(persistent_bytes=[10] * 5)
    placement = bl.place(graph, cluster_of(1.0, 4.0, 2.0, memory=[100, 65, 100]), "batch-split")
    assert placement.device.tolist() == [1, 2, 1, 2, 1]


def test_batch_split_with_memory_for_all_uses_the_fastest_only():
    assert bl.place(GRAPH, cluster_of(1.0, 4.0, 2.0), "batch-split").device.tolist() == [1] * 5


def test_batch_split_by_work():
    # 15 us of work at speeds 1 and 2: each is done after 15 / 3 = 5. d1 takes 0, 2, 4 (10 / 2 = 5), d0 the others.
    assert bl.place(GRAPH, cluster_of(1.0, 2.0), "batch-split", batches="work").device.tolist() == [1, 0, 1, 0, 1]


# -- critical-path ---------------------------------------------------------------------------------------


def test_critical_path_and_equation_7_by_hand():
    # d1 gets 0, 2, 4: 10 / 2 = 5. Op 1: d0 0 + 1 / 1 = 1 < 5 + 0.5. Op 3: d0 1 + 4 = 5 < 5 + 4 / 2.
    assert bl.place(GRAPH, cluster_of(1.0, 2.0), "critical-path").device.tolist() == [1, 0, 1, 0, 1]
    # At speed 10: path 1. Op 1: d1 1 + 0.1 against d0 1. Op 3: d1 1 + 0.4 against d0 1 + 4.
    assert bl.place(GRAPH, cluster_of(1.0, 10.0), "critical-path").device.tolist() == [1, 0, 1, 1, 1]


def test_parallel_critical_paths_go_to_the_next_fastest():
    # 0 -> {1, 2, 3} -> 4, all branches 5: the first stays with 0 and 4 on the fastest, the others take the next two.
    graph = bl.OpGraph.from_edges([1, 5, 5, 5, 1], [(0, k, 1) for k in (1, 2, 3)] + [(k, 4, 1) for k in (1, 2, 3)])
    placement = bl.place(graph, cluster_of(1.0, 2.0, 3.0, 4.0), "critical-path")
    assert placement.device.tolist() == [3, 3, 2, 1, 3]
    assert placement.info["critical_paths"] == 3
    # With one path, op 2 goes by equation 7: loads 7 / 4 on d3; 5 / 3 on d2 is the least, then op 3: 5 / 2 on d1.
    one = bl.place(graph, cluster_of(1.0, 2.0, 3.0, 4.0), "critical-path", paths=1)
    assert one.info["critical_paths"] == 1


def test_path_is_divided_over_the_fastest_devices():
    chain = bl.OpGraph.from_edges([1] * 5, [(i, i + 1, 1) for i in range(4)], persistent_bytes=[10] * 5)
    # All of it takes 54 bytes. d2 (fastest) holds two ops with their outputs (22), then d0 two, then d1 the last.
    cluster = cluster_of(2.0, 1.0, 4.0, memory=[24, 50, 24])
    assert bl.place(chain, cluster, "critical-path").device.tolist() == [2, 2, 0, 0, 1]


def test_path_stays_whole_on_the_fastest_device_that_holds_it():
    chain = bl.OpGraph.from_edges([1] * 5, [(i, i + 1, 1) for i in range(4)], persistent_bytes=[10] * 5)
    assert bl.place(chain, cluster_of(2.0, 1.0, 4.0, memory=[60, 100, 24]), "critical-path").device.tolist() == [0] * 5


def test_group_of_a_critical_op_follows_the_path():
    grouped = GRAPH.replace(colocation=[-1, -1, 0, 0, -1], colocation_names=("g",))
    assert bl.place(grouped, cluster_of(1.0, 2.0), "critical-path").device.tolist() == [1, 0, 1, 1, 1]


def test_communication_can_lengthen_the_path():
    # 0 -> 1 (10 us) or 0 -> 2 (1 us, but 100 bytes): with transfers the second is longer.
    graph = bl.OpGraph.from_edges([1, 10, 1], [(0, 1, 1), (0, 2, 100)])
    cluster = cluster_of(1.0, 2.0, link=bl.Link(0.0, 1.0))
    assert bl.place(graph, cluster, "critical-path").device[1] == 1
    placement = bl.place(graph, cluster, "critical-path", communication=True)
    # path 0, 2 on d1 (1 us); op 1: d1 1 + 5 < d0 10
    assert placement.device.tolist() == [1, 1, 1]


# -- mite and dfs ----------------------------------------------------------------------------------------


def test_mite_equations_8_to_10_by_hand():
    """0 -> 2 and 1 -> 2; speeds 1 and 2, memory 100, link 1 us per byte.

    Total ranks: 0: 4 + 2 = 6; 1: 2 + 2 = 4; 2: 6. Order 0, 2, 1 (rank, then topological).
    Op 0 (20 bytes out): no traffic yet, so the product without it decides:
        d0: 20/100 (1 - 1 * 1/2) 1 = 0.1;   d1: 20/100 (1 - 1 * 1) 1/2 = 0  -> d1.
    Op 2 (no bytes): traffic 20 to d0, 0 to d1: 0 utilization gives 0 on d0 as well, so again without traffic:
        d0: 0/100 ... = 0;  d1: (1 - 1) ... = 0; a tie: the faster -> d1.
    Op 1 (30 bytes): no placed inputs. d0: 30/100 (1 - 4/6 * 1/2) 1 = 0.2;  d1: 50/100 (1 - 4/6) 1/2 = 0.0833 -> d1.
    """
    graph = bl.OpGraph.from_edges([4, 2, 2], [(0, 2, 20), (1, 2, 30)])
    assert bl.place(graph, cluster_of(1.0, 2.0, memory=100, link=bl.Link(0, 1)), "mite").device.tolist() == [1, 1, 1]


def test_mite_leaves_full_devices_out():
    """The same with 25 of op 1's 30 bytes persistent, and one for op 0: 21 + 30 = 51 bytes no longer fit on d1."""
    graph = bl.OpGraph.from_edges([4, 2, 2], [(0, 2, 20), (1, 2, 5)], persistent_bytes=[1, 25, 0])
    wide, tight = (cluster_of(1.0, 2.0, memory=[100, m], link=bl.Link(0, 1)) for m in (51, 50))
    assert bl.place(graph, wide, "mite").device.tolist() == [1, 1, 1]
    assert bl.place(graph, tight, "mite").device.tolist() == [1, 0, 1]


def test_mite_traffic_decides_where_inputs_are_apart():
    """Op 2 reads 10 bytes from d0 and 40 from d1 (ops tied there), op 2 itself may go anywhere.

    Total ranks: 0: 1 + 2; 1: 1 + 2; 2: 3. All equal: topological order 0, 1, 2. Utilization before: 10 and 40 of
    100. Op 2 holds 1 byte. d0: 11/100 (1 - 1) ... = 0 on either, as both have full speed and op 2 the full rank; so the
    product without traffic is 0 as well, and the index decides: d0. With a longer path elsewhere (op 3: 6 us) imp = 1/2:
        d0: 0.11 * 0.5 * 40 = 2.2;  d1: 0.41 * 0.5 * 10 = 2.05  -> d1.
    """
    columns = {"allowed": [0, 1, -1], "allowed_sets": [("d0",), ("d1",)], "temp_bytes": [0, 0, 1]}
    edges = [(0, 2, 10), (1, 2, 40)]
    cluster = cluster_of(1.0, 1.0, memory=100, link=bl.Link(0, 1))
    assert bl.place(bl.OpGraph.from_edges([1, 1, 2], edges, **columns), cluster, "mite").device[2] == 0
    columns["allowed"], columns["temp_bytes"] = [0, 1, -1, 0], [0, 0, 1, 0]
    assert bl.place(bl.OpGraph.from_edges([1, 1, 2, 6], edges, **columns), cluster, "mite").device[2] == 1


def test_dfs_equation_11_by_hand():
    """As above: op 2 (2 us) reads 10 bytes from d0 and 40 from d1; d0 is three times as fast.

    d0: traffic 40 * 2/3 = 26.7; d1: traffic 10 * 2 = 20 -> d1. At 5 times: d0 40 * 2/5 = 16 -> d0.
    """
    graph = bl.OpGraph.from_edges(
        [1, 1, 2], [(0, 2, 10), (1, 2, 40)], allowed=[0, 1, -1], allowed_sets=[("d0",), ("d1",)]
    )
    # the walk: 0, then 2 (which sees only op 0), unless op 1 comes first: give it the longer path
    first = graph.replace(duration_us=[1, 3, 2])
    second_graph = bl.OpGraph.from_edges(
        [1, 3, 1, 2], [(0, 3, 10), (1, 2, 1), (2, 3, 40)], allowed=[0, 1, 1, -1], allowed_sets=[("d0",), ("d1",)]
    )
    link = bl.Link(0, 1)
    assert bl.place(first, cluster_of(3.0, 1.0, link=link), "dfs").device.tolist() == [0, 1, 1]
    # Walk of `other`: 1, 2, 3 (traffic 40 to d0, none to d1), 0.
    assert bl.place(second_graph, cluster_of(3.0, 1.0, link=link), "dfs").device.tolist() == [0, 1, 1, 1]


def test_dfs_scores_traffic_times_time_when_all_inputs_are_placed():
    """Groups place op 3's second input early: 0 on d0 and 2 (grouped with 1) on d1 before the walk reaches 3."""
    graph = bl.OpGraph.from_edges(
        [9, 1, 1, 2],
        [(0, 1, 1), (0, 3, 10), (2, 3, 40)],
        colocation=[-1, 0, 0, -1],
        colocation_names=("g",),
        allowed=[0, 1, 1, -1],
        allowed_sets=[("d0",), ("d1",)],
    )
    # total ranks: 1: 10, 3: 11, so the walk is 0, 3 (only op 0 placed: traffic 0 on d0), 1, 2
    assert bl.place(graph, cluster_of(3.0, 1.0, link=bl.Link(0, 1)), "dfs").device.tolist() == [0, 1, 1, 0]
    # with op 1 on the longer path the walk is 0, 1 (and 2 with it), 3: d0 40 * 2/3 = 26.7, d1 10 * 2 = 20
    longer = graph.replace(duration_us=[9, 5, 1, 2])
    assert bl.place(longer, cluster_of(3.0, 1.0, link=bl.Link(0, 1)), "dfs").device.tolist() == [0, 1, 1, 1]
    assert bl.place(longer, cluster_of(5.0, 1.0, link=bl.Link(0, 1)), "dfs").device.tolist() == [0, 1, 1, 0]


# -- twins and properties --------------------------------------------------------------------------------


def attempt(name, graph, cluster):
    """The first plan, before anything is simulated or repaired."""
    from baechi_lab.placers import batch_split, critical_path, dfs, mite

    plans = {
        "batch-split": lambda: batch_split.BatchSplit().first_plan(graph, cluster),
        "critical-path": lambda: critical_path.CriticalPath().first_plan(graph, cluster),
        "mite": lambda: mite.first_plan(graph, cluster),
        "dfs": lambda: dfs.first_plan(graph, cluster),
    }
    return plans[name]().device.tolist()


@pytest.mark.parametrize("seed", fast(range(40), 8))
@pytest.mark.parametrize(
    ("name", "twin"), [("batch-split", batch_split_reference), ("mite", mite_reference), ("dfs", dfs_reference)]
)
def test_kernel_agrees_with_its_readable_twin(name, twin, seed):
    rng = np.random.default_rng(seed)
    for _ in range(5):
        graph, cluster = restricted_graph(rng), mixed_cluster(rng, memory=(0, 200))
        assert attempt(name, graph, cluster) == twin(graph, cluster)


@pytest.mark.parametrize("seed", fast(range(40), 8))
def test_balance_agrees_with_its_readable_twin(seed):
    rng = np.random.default_rng(seed)
    graph, cluster = restricted_graph(rng), mixed_cluster(rng, memory=(0, 200))
    device = attempt("critical-path", graph, cluster)
    units = make_units(graph, cluster)
    length = bl.total_rank(graph)
    critical = set(units.group[length >= length.max(initial=0) * (1 - 1e-12)].tolist())
    device_of_unit = [(g, device[units.group.tolist().index(g)]) for g in sorted(critical)]
    if len(critical) and _paths_placed(graph, cluster) == len(critical):
        assert device == balance_reference(graph, cluster, device_of_unit)


def _paths_placed(graph, cluster):
    """Units that the paths took: all critical ones unless there were more paths than devices."""
    from baechi_lab.placers.critical_path import CriticalPath

    units = make_units(graph, cluster)
    unit_device, total = np.full(len(units.need), -1, np.int32), 0
    for path in CriticalPath().longest_paths(graph, cluster, units, unit_device, cluster.n):
        unit_device[path] = 0
        total += len(path)
    return total


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", fast(range(6), 2))
def test_valid_deterministic_and_not_below_a_bound(name, seed):
    rng = np.random.default_rng(seed)
    for _ in range(4):
        graph, cluster = restricted_graph(rng), mixed_cluster(rng, memory=(5000, 5001))
        placement = bl.place(graph, cluster, name)
        assert placement.device.tolist() == bl.place(graph, cluster, name).device.tolist()
        for scheduler in (None, "fifo", "pct", "msr"):
            timeline = bl.simulate(graph, cluster, placement, scheduler)
            assert bl.check(graph, cluster, placement, timeline) == timeline.violations == ()
            assert timeline.makespan_us >= bl.bounds(graph, cluster).best * (1 - 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_tight_memory_is_kept_or_refused(name):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        graph = restricted_graph(rng)
        cluster = mixed_cluster(rng, memory=(40, 120))
        try:
            placement = bl.place(graph, cluster, name)
        except bl.InfeasiblePlacement as error:
            assert error.available_bytes == tuple(cluster.memory_bytes.tolist())
            continue
        assert bl.simulate(graph, cluster, placement).violations == ()


@pytest.mark.parametrize("name", NAMES)
def test_speeds_scale_the_makespan_when_communication_is_free(name):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        graph = restricted_graph(rng)
        slow = mixed_cluster(rng, memory=(5000, 5001)).replace(link=FREE)
        fast = slow.replace(devices=tuple(bl.Device(d.name, d.kind, d.memory_bytes, 4 * d.speed) for d in slow.devices))
        times = [bl.simulate(graph, c, bl.place(graph, c, name), "pct").makespan_us for c in (slow, fast)]
        assert times[0] == pytest.approx(4 * times[1])


@pytest.mark.parametrize("name", NAMES)
def test_graphs_without_work_are_placed(name):
    cluster = cluster_of(1.0, 2.0)
    assert bl.place(bl.OpGraph.from_edges([]), cluster, name).device.tolist() == []
    if name != "hash":
        assert bl.place(bl.OpGraph.from_edges([3.0]), cluster, name).device.tolist() == [1]
    zero = bl.OpGraph.from_edges([0.0] * 3, [(0, 1, 5), (1, 2, 5)])
    assert bl.simulate(zero, cluster, bl.place(zero, cluster, name)).makespan_us == 0
    single = bl.place(GRAPH, cluster_of(2.0), name)
    assert bl.simulate(GRAPH, cluster_of(2.0), single, "pct").makespan_us == GRAPH.duration_us.sum() / 2


@pytest.mark.parametrize("name", NAMES)
def test_op_without_allowed_device_is_named(name):
    graph = GRAPH.replace(allowed=[-1, 0, -1, -1, -1], allowed_sets=(("tpu",),))
    with pytest.raises(bl.InfeasiblePlacement, match=r"op 'op1' may run only on tpu; the cluster has d0, d1"):
        bl.place(graph, cluster_of(1.0, 1.0), name)


def test_no_speed_and_no_bandwidth_are_refused():
    with pytest.raises(bl.InvalidInput, match="speed of device 'slow' is 0"):
        bl.Device("slow", "x", 10, 0)
    with pytest.raises(bl.InvalidInput, match="link bandwidth is 0"):
        bl.Link.from_bandwidth(0)


def test_units_of_colocated_ops_by_hand():
    graph = GRAPH.replace(
        colocation=[0, -1, -1, 0, -1],
        colocation_names=("g",),
        persistent_bytes=[1, 2, 3, 4, 5],
        temp_bytes=[0, 0, 0, 7, 0],
    )
    units = make_units(graph, cluster_of(1.0, 2.0))
    assert units.group.tolist() == [0, 1, 2, 0, 3]
    assert units.cost.tolist() == [[6, 3], [1, 0.5], [6, 3], [2, 1]]
    assert units.persistent_bytes.tolist() == [5, 2, 3, 5]
    assert units.need.tolist() == [5 + 10 + 10 + 7, 2 + 10, 3 + 10, 5]
    assert units.rank.tolist() == [10, 9, 10, 10]
    assert units.pace.tolist() == [0.5, 1.0]
    assert units_by_rank(units).tolist() == [0, 2, 3, 1]
