"""HEFT's published example, the list schedulers' space, and the kernel against its readable twin."""

import itertools

import numpy as np
import pytest
from fewer import fast
from insertion_reference import insertion_reference
from mixed_clusters import mixed_cluster, restricted_graph
from random_cases import random_graph
from ten_tasks import CLUSTER, TEN_TASKS

import baechi_lab as bl
from baechi_lab.placers.parametric import CHOICES, POINTS, PRIORITIES
from baechi_lab.placers.problem import make_problem

FREE = bl.Link(0.0, 0.0)


def test_published_example_is_80():
    """Topcuoglu, Hariri, Wu 2002, figure 3a: every task on its published processor at its published time."""
    published = {
        "t1": ("P3", 0, 9),
        "t3": ("P3", 9, 28),
        "t4": ("P2", 18, 26),
        "t2": ("P1", 27, 40),
        "t5": ("P3", 28, 38),
        "t6": ("P2", 26, 42),
        "t9": ("P2", 56, 68),
        "t7": ("P3", 38, 49),
        "t8": ("P1", 57, 62),
        "t10": ("P2", 73, 80),
    }
    plan = bl.ListScheduler.point("heft").plan(TEN_TASKS, CLUSTER)
    assert [TEN_TASKS.names[i] for i in plan.sequence] == list(published)
    for i, name in enumerate(TEN_TASKS.names):
        assert (CLUSTER.names[plan.device[i]], plan.start[i], plan.finish[i]) == published[name]
    placement = bl.place(TEN_TASKS, CLUSTER, "heft")
    assert placement.info["planned_makespan_us"] == 80
    timeline = bl.simulate(TEN_TASKS, CLUSTER, placement)
    assert timeline.makespan_us == 80
    assert timeline.start_us.tolist() == plan.start.tolist()
    assert bl.check(TEN_TASKS, CLUSTER, placement, timeline) == ()


def test_insertion_fills_a_gap():
    """d0 waits for a transfer from 2 to 8; op 3 (rank 3) comes last and takes 3.

    Ops 0 and 1 start at 0 on d0 and d1 (tied there); 2 on d0 reads op 1's tensor, which takes 6: 2 + 6 = 8.
    """
    graph = bl.OpGraph.from_edges(
        [2, 2, 5, 3], [(0, 2, 0), (1, 2, 6)], allowed=[0, 1, 0, 0], allowed_sets=[("d0",), ("d1",)]
    )
    cluster = bl.Cluster((bl.Device("d0", "x", 99), bl.Device("d1", "x", 99)), bl.Link(0, 1), comm="parallel")
    filled = bl.ListScheduler(insertion=True).plan(graph, cluster)
    assert filled.start.tolist() == [0, 0, 8, 2]
    behind = bl.ListScheduler(insertion=False).plan(graph, cluster)
    assert behind.start.tolist() == [0, 0, 8, 8 + 5]
    assert bl.simulate(graph, cluster, bl.place(graph, cluster, "heft")).start_us.tolist() == [0, 0, 8, 2]


def test_group_is_placed_with_its_first_member():
    """Ranks 8 + 1, 8 + 1, ...: op 0 takes d1 (twice as fast); its group mate, op 1, must follow, though d0 is free."""
    graph = bl.OpGraph.from_edges([8, 7], colocation=[0, 0], colocation_names=("g",))
    cluster = bl.Cluster((bl.Device("d0", "x", 99), bl.Device("d1", "x", 99, 2.0)), FREE, comm="parallel")
    plan = bl.ListScheduler().plan(graph, cluster)
    assert plan.device.tolist() == [1, 1]
    assert plan.start.tolist() == [0, 4]
    assert bl.ListScheduler().plan(graph.replace(colocation=[-1, -1]), cluster).device.tolist() == [1, 0]


def test_full_devices_are_left_out():
    graph = bl.OpGraph.from_edges([4, 3, 2], persistent_bytes=[50, 50, 50])
    cluster = bl.Cluster((bl.Device("d0", "x", 50), bl.Device("d1", "x", 100, 9.0)), FREE, comm="parallel")
    assert bl.place(graph, cluster, "heft").device.tolist() == [1, 1, 0]


def test_plan_under_queued_transfers_is_reported():
    """Two tensors of 10 us leave op 0 at 1: side by side they arrive at 11, queued the second arrives at 21."""
    graph = bl.OpGraph.from_edges(
        [1, 5, 5], [(0, 1, 10), (0, 2, 11)], allowed=[0, 1, 2], allowed_sets=[("d0",), ("d1",), ("d2",)]
    )
    cluster = bl.Cluster(tuple(bl.Device(f"d{i}", "x", 99) for i in range(3)), bl.Link(0, 1), comm="sequential")
    placement = bl.place(graph, cluster, "heft")
    assert placement.info["planned_makespan_us"] == 1 + 11 + 5
    assert bl.simulate(graph, cluster, placement).makespan_us == 1 + 10 + 11 + 5


@pytest.mark.parametrize("seed", fast(range(30), 6))
def test_plan_holds_in_simulation_where_it_never_idles(seed):
    """With free transfers HEFT leaves no gap that a ready op could use, so the simulation starts every op as planned."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, zero=False)
    cluster = bl.Cluster.uniform(3, link=FREE, comm="parallel", speed=2.0)
    placement = bl.place(graph, cluster, "heft")
    assert bl.simulate(graph, cluster, placement).makespan_us == placement.info["planned_makespan_us"]


@pytest.mark.parametrize("seed", fast(range(40), 8))
def test_plans_are_schedules(seed):
    """Every plan keeps precedence, transfers and one op at a time, whatever the point of the space."""
    rng = np.random.default_rng(seed)
    graph, cluster = restricted_graph(rng), mixed_cluster(rng, memory=(5000, 5001), comm="parallel")
    for priority, choice, insertion in itertools.product(PRIORITIES, CHOICES, (False, True)):
        plan = bl.ListScheduler(priority, choice, insertion).plan(graph, cluster)
        for e in range(graph.edge_count):
            u, v, t = graph.edge_source[e], graph.consumers[e], graph.edge_tensor[e]
            p, q = plan.device[u], plan.device[v]
            cost = cluster.latency_us[p, q] + cluster.us_per_byte[p, q] * graph.tensor_bytes[t]
            assert plan.start[v] >= plan.finish[u] + cost
        order = np.lexsort((plan.finish, plan.start, plan.device))
        same = plan.device[order][1:] == plan.device[order][:-1]
        assert np.all(plan.start[order][1:][same] >= plan.finish[order][:-1][same])


@pytest.mark.parametrize("seed", fast(range(40), 8))
def test_kernel_agrees_with_its_readable_twin(seed):
    rng = np.random.default_rng(seed)
    graph, cluster = restricted_graph(rng), mixed_cluster(rng, memory=(0, 60))
    problem = make_problem(graph, cluster)
    modes = {"ready-time": "ready-time", "earliest-start": "earliest-start"}
    for priority, choice, insertion in itertools.product(PRIORITIES, CHOICES, (False, True)):
        scheduler, careful = bl.ListScheduler(priority, choice, insertion), bool(rng.integers(0, 2))
        need = problem.promised_bytes.copy()
        if careful:
            np.add.at(need, problem.group, graph.output_bytes + graph.temp_bytes)
        plan = scheduler.plan(graph, cluster, careful)
        key = scheduler.op_keys(graph, cluster).tolist()
        twin = insertion_reference(problem, key, modes.get(priority, "static"), choice, insertion, need.tolist())
        assert plan.sequence.tolist() == twin.sequence
        assert plan.device.tolist() == [twin.device[i] for i in range(graph.n)]
        assert plan.start.tolist() == [twin.start[i] for i in range(graph.n)]
        assert plan.finish.tolist() == [twin.finish[i] for i in range(graph.n)]
        assert plan.overflows == twin.overflows


@pytest.mark.parametrize("seed", fast(range(40), 8))
def test_etf_is_the_point_that_the_etf_placer_is(seed):
    rng = np.random.default_rng(seed)
    graph, cluster = random_graph(rng, zero=False), mixed_cluster(rng, memory=(10**6, 10**6 + 1), comm="parallel")
    ours, theirs = bl.place(graph, cluster, bl.ListScheduler.point("etf")), bl.place(graph, cluster, "etf")
    assert ours.device.tolist() == theirs.device.tolist()
    assert ours.info["planned_makespan_us"] == theirs.info["planned_makespan_us"]


def test_fifo_is_a_point_by_hand():
    """Two devices, ops 0 (3) and 1 (1) ready at 0; 2 reads 1 and is ready at 1, 3 reads 0 and is ready at 3."""
    graph = bl.OpGraph.from_edges([3, 1, 5, 1], [(1, 2, 0), (0, 3, 0)])
    plan = bl.ListScheduler.point("fifo").plan(graph, bl.Cluster.uniform(2, link=FREE))
    assert plan.sequence.tolist() == [0, 1, 2, 3]
    assert plan.start.tolist() == [0, 0, 1, 3]
    assert plan.device.tolist() == [0, 1, 1, 0]


def test_mcp_is_by_latest_start_and_earliest_start():
    """ALAP times: op 0: 8 - 8 = 0, op 1: 8 - 5 = 3, op 2: 8 - 5 = 3, op 3: 8 - 3 = 5. d1 is three times as fast.

    MCP takes the device that can start first, however slow: op 0 goes to d0, which finishes late.
    """
    graph = bl.OpGraph.from_edges([3, 5, 2, 3], [(0, 1, 0), (2, 3, 0)])
    cluster = bl.Cluster((bl.Device("d0", "x", 99), bl.Device("d1", "x", 99, 3.0)), FREE)
    plan = bl.ListScheduler.point("mcp").plan(graph, cluster)
    assert plan.sequence.tolist() == [0, 1, 2, 3]
    # op 0 on d0 0..3; op 1 starts at 3 on either: d0, 3..8; op 2 at 0 on d1, 0..2/3; op 3 there, 2/3..5/3
    assert plan.device.tolist() == [0, 0, 1, 1]
    assert plan.finish == pytest.approx([3, 8, 2 / 3, 5 / 3])


def test_points_have_names_and_unknown_ones_are_rejected():
    for name, (priority, choice, insertion) in POINTS.items():
        assert bl.ListScheduler.point(name) == bl.ListScheduler(priority, choice, insertion)
    with pytest.raises(bl.UnknownNameError, match="did you mean 'heft'"):
        bl.ListScheduler.point("heft2")
    with pytest.raises(bl.UnknownNameError, match="unknown priority 'upward'"):
        bl.place(TEN_TASKS, CLUSTER, bl.ListScheduler(priority="upward"))
    with pytest.raises(bl.UnknownNameError, match="unknown choice 'best'"):
        bl.place(TEN_TASKS, CLUSTER, bl.ListScheduler(choice="best"))
    with pytest.raises(bl.InvalidInput, match="insertion is 'yes'"):
        bl.place(TEN_TASKS, CLUSTER, bl.ListScheduler(insertion="yes"))


def brute_force(graph, devices):
    """The optimum on equal devices with free transfers, by trying every assignment with every priority order."""
    cluster = bl.Cluster.uniform(devices, link=FREE, comm="parallel")
    orders = [np.argsort(p).tolist() for p in itertools.permutations(range(graph.n))]
    return min(
        bl.simulate(graph, cluster, bl.Placement(device=list(devices_of_ops), order=order)).makespan_us
        for devices_of_ops in itertools.product(range(devices), repeat=graph.n)
        for order in orders
    )


@pytest.mark.parametrize("seed", fast(range(4), 1))
def test_within_grahams_ratio_of_the_optimum(seed):
    """Equal devices, free transfers: any list schedule is within 2 - 1/m (Graham 1969, doi:10.1137/0117039)."""
    rng = np.random.default_rng(seed)
    edges = [(i, j, 1) for i in range(4) for j in range(i + 1, 4) if rng.random() < 0.3]
    graph = bl.OpGraph.from_edges(rng.integers(1, 6, 4), edges)
    best = brute_force(graph, 2)
    cluster = bl.Cluster.uniform(2, link=FREE, comm="parallel")
    for point in POINTS:
        assert best <= bl.place(graph, cluster, bl.ListScheduler.point(point)).info["planned_makespan_us"] <= 1.5 * best
