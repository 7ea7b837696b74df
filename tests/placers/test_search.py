"""Search: the fast evaluation equals the simulator, and what is found keeps every rule and is never worse than its start."""

import numpy as np
import pytest
from fewer import fast

from baechi_lab import Cluster, Link, OpGraph, Placement, bounds, check, place, simulate
from baechi_lab.errors import ExecutionError, InfeasiblePlacement, InvalidInput, UnknownNameError
from baechi_lab.graph import generators
from baechi_lab.placers import metis
from baechi_lab.placers.auto import fast_placers
from baechi_lab.placers.evaluation.assignment import Limits, make_assignment
from baechi_lab.placers.evaluation.evaluate import evaluate, overflow
from baechi_lab.placers.evaluation.model import make_model
from baechi_lab.placers.evaluation.orders import Candidate
from baechi_lab.placers.evaluation.work import make_work
from baechi_lab.placers.search.coarsen import coarsen
from baechi_lab.placers.search.instance import Instance
from baechi_lab.placers.search.parameters import SEARCH
from baechi_lab.placers.search.placer import error_samples
from baechi_lab.placers.search.starts import Starts, choose, contracted_graph
from baechi_lab.simulator import makespan_and_peak

COMMS = ("parallel", "sequential", "duplex")
COSTS = [((0, 50), (0, 1000)), (5, (10, 1000)), ((1, 100), 4)]
LINKS = (Link(0.0, 0.0), Link(10.0, 0.01), Link(1.0, 0.0))


def random_case(seed):
    rng = np.random.default_rng(seed)
    n, devices = int(rng.integers(1, 40)), int(rng.integers(1, 5))
    duration, size = COSTS[seed % 3]
    graph = generators.random_dag(
        n,
        degree=float(rng.uniform(0, 3)),
        second_output=0.3,
        temp_bytes=(0, 1000),
        persistent_bytes=(0, 1000),
        duration_us=duration,
        size_bytes=size,
        seed=seed,
    )
    if seed % 2:  # whole numbers and zeros make ties
        graph = graph.replace(duration_us=np.where(rng.random(n) < 0.3, 0, np.round(graph.duration_us)))
    if seed % 4 == 3:  # collectives, on a lane of their own
        graph = graph.replace(op_types=tuple("all_reduce" if i % 3 == 1 else "matmul" for i in range(n)))
    cluster = Cluster.uniform(devices, memory_bytes=4000, link=LINKS[seed // 3 % 3], comm=COMMS[seed // 9 % 3])
    return graph, cluster, rng.integers(0, devices, n).astype(np.int32), np.round(10 * rng.random(n))


@pytest.mark.parametrize("seed", fast(range(108), 21))
def test_evaluation_equals_the_simulator(seed):
    graph, cluster, device, rank = random_case(seed)
    model = make_model(graph, cluster)
    work = make_work(model)
    for order in (None, rank):
        makespan, peak = makespan_and_peak(graph, cluster, Placement(device=device, order=order))
        assignment = make_assignment(device, order)
        assert evaluate(model, work, assignment, Limits(True)) == makespan
        assert work.peak.tolist() == peak.tolist()
        assert overflow(model, work) == np.maximum(peak - cluster.memory_bytes, 0).sum()
        assert evaluate(model, work, assignment, Limits(False)) == makespan
        # A cutoff just above changes nothing, one below is noticed.
        assert evaluate(model, work, assignment, Limits(False, makespan + 1e-6)) == makespan
        if makespan > 0:
            assert evaluate(model, work, assignment, Limits(False, 0.999 * makespan)) == np.inf


@pytest.mark.parametrize("seed", range(6))
def test_compiled_and_readable_evaluation_agree(seed):
    graph, cluster, device, rank = random_case(seed)
    model = make_model(graph, cluster)
    compiled, readable = make_work(model), make_work(model)
    arguments = make_assignment(device, rank if seed % 2 else None), Limits(True)
    assert evaluate(model, compiled, *arguments) == evaluate.py_func(model, readable, *arguments)
    assert compiled.start.tolist() == readable.start.tolist()


def two_chains():
    """Two chains of 10, 10 that meet in an op of 10; 3 us per transfer."""
    edges = [(0, 2, 1), (1, 3, 1), (2, 4, 1), (3, 4, 1)]
    return OpGraph.from_edges([10] * 5, edges), Cluster.uniform(2, memory_bytes=100, link=Link(3.0, 0.0))


@pytest.mark.slow
def test_two_chains_meet_after_one_transfer():
    # One device: 50. A chain each: 10 + 10, then 3 for the transfer, then 10.
    graph, cluster = two_chains()
    placement = place(graph, cluster, "search", time_limit=None, evaluations=2000)
    assert simulate(graph, cluster, placement).makespan_us == 33.0


@pytest.mark.slow
@pytest.mark.parametrize("workers", fast([1, 2], 1))
def test_same_seed_and_evaluations_same_placement(workers):
    graph = generators.layered_dag(60, seed=3)
    cluster = Cluster.uniform(3, memory_bytes=1 << 40)
    first, second = (
        place(graph, cluster, "search", time_limit=None, evaluations=3000, seed=5, workers=workers) for _ in range(2)
    )
    assert first == second
    assert simulate(graph, cluster, first).makespan_us <= first.info["start_us"]


@pytest.mark.parametrize("seed", fast(range(8), 3))
def test_keeps_memory_and_colocation_and_improves_on_its_start(seed):
    graph = generators.random_dag(
        30,
        colocation_groups=4,
        persistent_bytes=(10, 100),
        temp_bytes=(10, 100),
        size_bytes=(10, 100),
        duration_us=(1, 50),
        seed=seed,
    )
    _, peak = makespan_and_peak(graph, Cluster.uniform(1, memory_bytes=1 << 30), Placement(device=[0] * 30))
    cluster = Cluster.uniform(2, memory_bytes=int(0.75 * peak[0]), link=Link(5.0, 0.0), comm=COMMS[seed % 3])
    start = place(graph, cluster, "m-etf")
    before = simulate(graph, cluster, start).makespan_us
    placement = place(graph, cluster, "search", time_limit=None, evaluations=1500, start=start)
    timeline = simulate(graph, cluster, placement)
    assert timeline.feasible and not check(graph, cluster, placement, timeline)
    assert bounds(graph, cluster).best - 1e-9 <= timeline.makespan_us <= before


def test_a_time_limit_of_0_returns_the_start():
    graph, cluster = two_chains()
    start = Placement(device=[0, 1, 1, 0, 0])
    assert place(graph, cluster, "search", time_limit=0, start=start).device.tolist() == [0, 1, 1, 0, 0]
    ruled = place(graph, cluster, "search", time_limit=0, start="m-etf")
    assert ruled.device.tolist() == place(graph, cluster, "m-etf").device.tolist()


def test_bug_a_search_whose_time_ended_during_its_first_rule_was_slower_than_one_device_alone():
    """A chain whose ops also read the op before: the first rule cuts them, and no later rule was asked."""
    edges = [(i, j, 1) for i in range(20) for j in range(i + 1, min(i + 3, 20))]
    graph, cluster = OpGraph.from_edges([1] * 20, edges), Cluster.uniform(2, link=Link(100.0, 0.0))
    starts = Starts(Instance(graph, cluster), ("fifo",), seed=0)
    # 20 ops of 1 us on one device; every cut waits for a message of 100 us.
    assert starts.from_rules(enough=lambda: True)[0].makespan_us == 20


def test_a_start_beyond_memory_is_repaired_or_refused_by_name():
    graph = OpGraph.from_edges([1, 1], persistent_bytes=[60, 60])
    start = Placement(device=[0, 0], placer="mine")
    cluster = Cluster.uniform(2, memory_bytes=100)
    assert sorted(place(graph, cluster, "search", time_limit=0.01, start=start).device.tolist()) == [0, 1]
    with pytest.raises(InfeasiblePlacement, match=r"'mine'.*60"):
        place(graph, Cluster.uniform(2, memory_bytes=50), "search", time_limit=0.01, start=start)


def test_bug_a_search_ended_if_the_process_of_metis_did(monkeypatch):
    """`exact` starts from the same rules."""
    pytest.importorskip("pymetis")

    def fail(*arguments, **options):
        raise ExecutionError("METIS runs in a process of its own, which failed: killed")

    graph, cluster = two_chains()
    options = {"time_limit": None, "evaluations": 50}
    expected = place(graph, cluster, "search", **options)
    monkeypatch.setattr(metis, "metis_parts", fail)
    with pytest.warns(UserWarning, match="goes on without METIS: METIS runs"):
        placement = place(graph, cluster, "search", **options)
    assert simulate(graph, cluster, placement).makespan_us == simulate(graph, cluster, expected).makespan_us


@pytest.mark.slow
def test_large_graphs_are_searched_contracted_first():
    graph = generators.layered_dag(1600, seed=1)
    cluster = Cluster.uniform(2, memory_bytes=1 << 40)
    tails = [(i, 1600 + i, 4) for i in range(1600)]  # a short op after each, which nobody reads
    edges = [(u, v, 1000) for u, v in zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True)]
    graph = OpGraph.from_edges([*graph.duration_us, *[0.1] * 1600], [*edges, *tails])
    coarse, member = contracted_graph(graph, cluster)
    assert coarse.n <= 1600 and member[:1600].tolist() == member[1600:].tolist()
    first, second = (place(graph, cluster, "search", time_limit=None, evaluations=200) for _ in range(2))
    assert first == second and simulate(graph, cluster, first).feasible
    assert simulate(graph, cluster, first).makespan_us <= first.info["start_us"]


def test_starts_are_different_and_mostly_have_priorities():
    rank = np.zeros(2)
    starts = [
        Candidate(f"{time}", np.array(device, dtype=np.int32), order, time, 0.0)
        for time, device, order in [
            (1.0, [0, 0], None),
            (2.0, [0, 0], rank),
            (3.0, [0, 0], rank),
            (4.0, [0, 1], None),
            (5.0, [1, 0], rank),
            (6.0, [1, 1], rank),
            (7.0, [0, 1], rank),
        ]
    ]
    assert [c.makespan_us for c in choose(starts, 4)] == [1.0, 2.0, 5.0, 6.0]
    only = [c for c in starts if c.rank is None]
    assert choose(only, 4) == only


@pytest.mark.slow
def test_never_worse_than_the_fast_placers():
    for seed in range(3):
        graph = generators.layered_dag(80, seed=seed)
        cluster = Cluster.uniform(3, memory_bytes=1 << 40, comm=COMMS[seed])
        names = set(fast_placers(graph)) - {"cpu-only", "gpu-only", "expert"}
        best = min(simulate(graph, cluster, place(graph, cluster, name)).makespan_us for name in names)
        placement = place(graph, cluster, "search", time_limit=None, evaluations=2000)
        assert simulate(graph, cluster, placement).makespan_us <= best * (1 + 1e-12)


def test_callback_reports_progress_and_stops():
    graph = generators.layered_dag(50, seed=1)
    reports = []

    def stop_at_second(progress):
        reports.append(progress)
        return len(reports) == 2

    cluster = Cluster.uniform(2, memory_bytes=1 << 40)
    placement = place(graph, cluster, "search", time_limit=None, evaluations=10**9, callback=stop_at_second)
    assert len(reports) >= 2 and "simulations" in str(reports[-1])
    assert simulate(graph, cluster, placement).makespan_us <= reports[0].makespan_us


def test_an_interrupt_returns_the_best_so_far():
    graph = generators.layered_dag(50, seed=1)

    def interrupt(progress):
        raise KeyboardInterrupt

    cluster = Cluster.uniform(2, memory_bytes=1 << 40)
    placement = place(graph, cluster, "search", time_limit=None, evaluations=10**9, callback=interrupt)
    assert placement.interrupted and simulate(graph, cluster, placement).feasible


@pytest.mark.slow
def test_p90_takes_the_placement_that_errors_hurt_less():
    graph = generators.layered_dag(40, seed=2, duration_us=(10, 100), size_bytes=4)
    cluster = Cluster.uniform(2, memory_bytes=1 << 40, link=Link(8.0, 0.0))
    options = {"time_limit": None, "evaluations": 1500, "objective": "p90", "error": 0.5}
    placement, repeated = (place(graph, cluster, "search", **options) for _ in range(2))
    assert placement == repeated
    samples = error_samples(graph, cluster, 0.5, SEARCH.samples, 0)
    model = make_model(graph, cluster)
    work, assignment = make_work(model), make_assignment(placement.device, placement.rank)
    times = []
    for k in range(SEARCH.samples):
        one = model._replace(table=samples.table[k], latency=samples.latency[k], per_byte=samples.per_byte[k])
        times.append(evaluate(one, work, assignment, Limits(False)))
    # The 90th percentile of 16 samples is the 15th of them.
    assert sorted(times)[14] == pytest.approx(placement.info["history"][-1][2])


@pytest.mark.parametrize("comm", COMMS)
@pytest.mark.parametrize("devices", fast([2, 1], 1))
def test_graphs_of_at_most_one_chain_are_placed(devices, comm):
    cluster = Cluster.uniform(devices, memory_bytes=1000, comm=comm)
    for graph in (OpGraph.from_edges([]), OpGraph.from_edges([3]), OpGraph.from_edges([0, 0], [(0, 1, 1)])):
        placement = place(graph, cluster, "search", time_limit=None, evaluations=60)
        assert simulate(graph, cluster, placement).makespan_us == graph.duration_us.sum()


def test_parameters_are_checked():
    graph, cluster = two_chains()
    for bad in (
        {"time_limit": -1},
        {"time_limit": None},
        {"objective": "p50"},
        {"schedulers": ("msr",)},
        {"workers": 0},
        {"evaluations": -1},
        {"seed": -1},
        {"numbers": {"rounds": 3}},
    ):
        with pytest.raises(InvalidInput):
            place(graph, cluster, "search", **bad)
    with pytest.raises(UnknownNameError, match="m-etf"):
        place(graph, cluster, "search", time_limit=0, start="m-etff")


def test_coarsening_merges_along_heavy_edges_within_a_device():
    # 0-1 heavy, 1-2 crosses devices, 2-3 heavy, 3-4 light, 4-5 heavy: one round makes three pairs.
    source, target = np.array([0, 1, 2, 3, 4]), np.array([1, 2, 3, 4, 5])
    device = np.array([0, 0, 1, 1, 1, 1])
    label = coarsen(
        np.arange(6),
        device,
        (source, target, np.array([9.0, 99.0, 9.0, 1.0, 9.0])),
        np.ones(6),
        3,
        np.random.default_rng(0),
    )
    assert label[0] == label[1] and label[2] == label[3] and label[4] == label[5]
    assert len(set(label.tolist())) == 3


def tight_case():
    """11 ops in two groups on 3 devices that hold about half of what one would need; 45.0 us is proven optimal."""
    rng = np.random.default_rng(5)
    n, devices = int(rng.integers(4, 15)), int(rng.integers(2, 4))
    graph = generators.random_dag(
        n,
        degree=float(rng.uniform(0.8, 2.0)),
        second_output=0.3,
        duration_us=(1, 20),
        size_bytes=(10, 100),
        temp_bytes=(1, 50),
        persistent_bytes=(1, 100),
        colocation_groups=2,
        seed=5,
    )
    graph = graph.replace(duration_us=np.round(graph.duration_us))
    link = Link(float(rng.integers(0, 12)), 0.1)
    alone = Cluster.uniform(1, memory_bytes=1 << 40)
    _, peak = makespan_and_peak(graph, alone, Placement(device=[0] * n))
    return graph, Cluster.uniform(devices, memory_bytes=int(rng.uniform(0.5, 0.8) * peak[0]), link=link, comm="duplex")


@pytest.mark.slow
def test_tight_memory_is_passed_through_on_the_way_to_the_optimum():
    graph, cluster = tight_case()
    placement = place(graph, cluster, "search", time_limit=None, evaluations=150_000)
    timeline = simulate(graph, cluster, placement)
    assert timeline.feasible and timeline.makespan_us == pytest.approx(45.0)


def test_of_groups_the_step_of_the_ops_is_never_longer_than_under_the_start():
    """What is best with every group as one op need not be for the ops; the start may be a placement of either."""
    from baechi_lab import optimize

    graph, cluster = generators.gnmt(length=4, layers=2), Cluster.uniform(2)
    groups = optimize(graph, cluster, passes=("colocation", "fusion"))
    for name in ("auto", "m-etf"):
        start = place(groups, cluster, name)
        start_us = simulate(graph, cluster, start).makespan_us
        for placement in (start, start.on(graph)):
            options = {"time_limit": None, "evaluations": 40, "workers": 1}
            best_placement = place(groups, cluster, "search", start=placement, **options)
            assert simulate(graph, cluster, best_placement).makespan_us <= start_us
            assert check(graph, cluster, best_placement, simulate(graph, cluster, best_placement)) == ()
