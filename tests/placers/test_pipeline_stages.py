"""Stages of pipelines by dynamic programming: against brute force, and against published optima."""

import json
from itertools import combinations, pairwise, product
from pathlib import Path

import numpy as np
import pytest
from fewer import fast

from baechi_lab import (
    Cluster,
    Device,
    Link,
    OpGraph,
    Placement,
    generators,
    load_graph,
    optimize,
    place,
    simulate,
    throughput,
)
from baechi_lab.errors import InfeasiblePlacement, InvalidInput, UnknownNameError
from baechi_lab.placers.pipeline_stages import line_cuts
from baechi_lab.placers.pipeline_stages.closed_sets import closed_sets, cut_sets
from baechi_lab.placers.pipeline_stages.device_chain import make_device_chain
from baechi_lab.placers.pipeline_stages.device_sequences import device_orders
from baechi_lab.placers.pipeline_stages.line_cuts import (
    HIGH_RECEIVED,
    HIGH_SENT,
    LOW_RECEIVED,
    LOW_SENT,
    _interval_changes,
    cut_line,
)
from baechi_lab.placers.pipeline_stages.objective import Objective
from baechi_lab.placers.pipeline_stages.pipeline_units import make_pipeline_units
from baechi_lab.placers.search.budget import Budget
from baechi_lab.placers.search.stages import Candidate, SharedMoves, search_stages

VGG = Path(__file__).parents[2] / "data" / "pipedream" / "vgg16_graph.txt"
PARTITIONING = Path(__file__).resolve().parents[3] / "shared" / "data" / "dnn-partitioning"


def random_pipeline(rng: np.random.Generator, layers: int, training: bool) -> OpGraph:
    """A small graph of layers; in training every forward op has a backward op in its colocation group."""
    edges = [(i, j, int(rng.integers(1, 9))) for i in range(layers) for j in range(i + 1, layers) if rng.random() < 0.5]
    work = rng.integers(1, 9, layers).astype(float)
    if not training:
        return OpGraph.from_edges(work, edges)
    backward_edges = [(layers + j, layers + i, size) for i, j, size in edges] + [
        (i, layers + i, 20) for i in range(layers)
    ]
    return OpGraph.from_edges(
        np.concatenate([work, 2 * work]),
        edges + backward_edges,
        persistent_bytes=[5] * layers + [0] * layers,
        colocation=np.tile(np.arange(layers, dtype=np.int32), 2),
        colocation_names=tuple(f"layer{k}" for k in range(layers)),
        forward_of=np.concatenate([np.full(layers, -1), np.arange(layers)]).astype(np.int32),
    )


def least_period(graph: OpGraph, cluster: Cluster, layers: int, total: bool) -> float:
    """Over all ways to give layers to stages such that no forward edge goes back, stages being devices in any order."""
    forward = [
        (int(a), int(b)) for a, b in zip(graph.edge_source, graph.consumers, strict=True) if a < layers and b < layers
    ]
    best = np.inf
    for order in device_orders(cluster):
        for stages in product(range(cluster.n), repeat=layers):
            if all(stages[a] <= stages[b] for a, b in forward):
                device = np.array(order)[np.tile(stages, graph.n // layers)]
                best = min(best, throughput(graph, cluster, Placement(device=device), sum=total).period_us)
    return best


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("seed", fast(range(12), 4))
def test_closed_sets_give_the_least_period_of_all_pipelines(seed, training):
    rng = np.random.default_rng(seed)
    layers = 5
    graph = random_pipeline(rng, layers, training)
    devices = [Device("a", "gpu", 1000), Device("b", "gpu", 1000), Device("c", "gpu", 1000, speed=1.0 + seed % 2)]
    cluster = Cluster(devices, link=Link(1.0, 0.5))
    placement = place(graph, cluster, "ideals", sum=True)
    expected = least_period(graph, cluster, layers, total=True)
    assert throughput(graph, cluster, placement, sum=True).period_us == pytest.approx(expected)
    assert placement.info["period_us"] == pytest.approx(expected)


@pytest.mark.parametrize("comm", ["parallel", "sequential", "duplex"])
@pytest.mark.parametrize("placer", ["ideals", "contiguous"])
def test_collectives_load_a_lane_of_their_own(comm, placer):
    """Work of 6, 1, 1 and 6 us, and a collective of 6 us behind the first op: the best cut is 7 | 7.

    Previously the collective counted as work. The least sums are then 12 | 8, whose period is 8.
    """
    types = ["matmul", "all_reduce", "matmul", "matmul", "matmul"]
    graph = OpGraph.from_edges([6.0, 6.0, 1.0, 1.0, 6.0], [(i, i + 1, 4) for i in range(4)], op_types=types)
    cluster = Cluster.uniform(2, link=Link(0.0, 0.0), comm=comm)
    placement = place(graph, cluster, placer, objective="throughput")
    assert placement.device.tolist() == [0, 0, 0, 1, 1]
    assert placement.info["period_us"] == 7.0


@pytest.mark.parametrize("comm", ["parallel", "sequential", "duplex"])
def test_chain_on_two_devices_by_hand(comm):
    """Work 4, 2, 6 us, tensors of 8 and 2 bytes at 0.5 us a byte: cut after the first (sends 4 us) or the second (1 us).

    Compute 4 | 8 or 6 | 6: the second is better whatever the queues carry (1 us).
    """
    graph = OpGraph.from_edges([4.0, 2.0, 6.0], [(0, 1, 8), (1, 2, 2)])
    cluster = Cluster.uniform(2, link=Link(0.0, 0.5), comm=comm)
    for placer in ("ideals", "contiguous"):
        placement = place(graph, cluster, placer, objective="throughput")
        assert placement.device.tolist() == [0, 0, 1]
        assert placement.info["period_us"] == 6.0


@pytest.mark.parametrize("seed", fast(range(20), 6))
def test_both_programmes_agree_on_chains(seed, monkeypatch):
    """A chain of layers has one line, so its closed sets are the places of that line. A first pass loses nothing."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(line_cuts, "COARSE_PLACES", int(rng.choice([4, 200])))
    layers = int(rng.integers(2, 30))
    graph = random_chain(rng, layers)
    cluster = Cluster.uniform(
        int(rng.integers(1, 6)), memory_bytes=400, link=Link(1.0, 0.5), comm=("sequential", "duplex")[seed % 2]
    )
    units = make_pipeline_units(graph, cluster)
    for goal in ((0.0, 1.0), (1.0, 8.0)):
        for replicas in (False, True):
            chain = make_device_chain(units, cluster, range(cluster.n), sum=seed % 3 == 0, replicas=replicas)
            cost, stages = cut_line(units, chain, goal)
            cost_of_sets, sets = cut_sets(units, chain, goal, closed_sets(units, 1000))
            assert cost == pytest.approx(cost_of_sets)
            assert len(stages) == 0 or sum(stage.units.stop - stage.units.start for stage in stages) == layers
            assert len(sets) == 0 or sum(int(stage.units.sum()) for stage in sets) == layers


def test_of_equal_cuts_the_last_stages_are_the_shortest():
    """Seven units of 1 us on four equal devices: a stage has two units at least, and the last stage then needs only one."""
    graph = OpGraph.from_edges([1.0] * 7, [(i, i + 1, 1) for i in range(6)])
    cluster = Cluster.uniform(4, link=Link(0.0, 0.0))
    units = make_pipeline_units(graph, cluster)
    chain = make_device_chain(units, cluster, range(4), sum=False, replicas=False, use_all=True)
    cost, stages = cut_line(units, chain, (0.0, 1.0))
    assert cost == 2 and [stage.units.stop - stage.units.start for stage in stages] == [2, 2, 2, 1]


def random_chain(rng: np.random.Generator, layers: int) -> OpGraph:
    sizes = rng.integers(1, 9, layers).tolist()
    ahead = [(i, j, sizes[i]) for i, j in pairwise(range(layers))]
    backward_edges = [(layers + j, layers + i, size) for i, j, size in ahead] + [
        (i, layers + i, 3) for i in range(layers)
    ]
    work = rng.integers(1, 9, layers).astype(float)
    return OpGraph.from_edges(
        np.concatenate([work, 2 * work]),
        ahead + backward_edges,
        persistent_bytes=[*rng.integers(1, 50, layers).tolist(), *[0] * layers],
        colocation=np.tile(np.arange(layers, dtype=np.int32), 2),
        colocation_names=tuple(f"layer{k}" for k in range(layers)),
        forward_of=np.concatenate([np.full(layers, -1), np.arange(layers)]).astype(np.int32),
    )


def test_the_first_pass_cuts_where_few_bytes_cross():
    """Tensors of 9, 1, 9, 9, 1 and 9 bytes between seven units: in each half of the line one place is crossed by one byte."""
    sizes = [9, 1, 9, 9, 1, 9]
    graph = OpGraph.from_edges([1.0] * 7, [(i, i + 1, size) for i, size in enumerate(sizes)])
    units = make_pipeline_units(graph, Cluster.uniform(2))
    chain = make_device_chain(units, Cluster.uniform(2), range(2), sum=False, replicas=False)
    assert line_cuts.cheapest_places(units, chain.work[:, 0], 3).tolist() == [0, 2, 5, 7]
    assert line_cuts.cheapest_places(units, chain.work[:, 0], 7).tolist() == list(range(8))


@pytest.mark.parametrize("seed", range(10))
def test_programme_with_replicas_says_what_throughput_measures(seed):
    """On a chain every tensor goes from one stage to the next, so that nothing is charged differently."""
    rng = np.random.default_rng(seed)
    graph = random_chain(rng, 8)
    cluster = Cluster.uniform(
        4, memory_bytes=10**6, link=Link(0.5, 0.5), comm=("parallel", "sequential", "duplex")[seed % 3]
    )
    total = seed % 2 == 0
    units = make_pipeline_units(graph, cluster)
    chain = make_device_chain(units, cluster, range(4), sum=total, replicas=True)
    cost, _ = cut_line(units, chain, (0.0, 1.0))
    for placer in ("contiguous", "ideals"):
        placement = place(graph, cluster, placer, objective="throughput", replicas=True, sum=total)
        assert throughput(graph, cluster, placement, sum=total).period_us == pytest.approx(cost)


@pytest.mark.parametrize("seed", range(6))
def test_what_intervals_of_a_line_send_and_receive(seed):
    """The changes, added up, against the definition: every tensor with a reader elsewhere, counted interval by interval."""
    rng = np.random.default_rng(seed)
    units = make_pipeline_units(random_pipeline(rng, 9, seed % 2 == 0), Cluster.uniform(2))
    places = np.unique(np.r_[0, rng.integers(0, units.n, 4), units.n])
    pointer, block_range, column, change = _interval_changes(units, places)
    blocks = len(places) - 1
    cross = np.zeros((blocks, 8))
    for j in range(1, blocks + 1):
        for k in range(pointer[j - 1], pointer[j]):
            cross[block_range[k, 0] : block_range[k, 1] + 1, column[k] : column[k] + 2] += change[k]
        for i in range(j):
            inside = set(range(places[i], places[j]))
            expected = np.zeros(8)
            for t, (p, size) in enumerate(zip(units.producer.tolist(), units.size.tolist(), strict=True)):
                readers = units.reader[units.reader_ptr[t] : units.reader_ptr[t + 1]].tolist()
                if p not in inside and inside & set(readers):
                    at = LOW_RECEIVED if p < places[i] else HIGH_RECEIVED
                    expected[at : at + 2] += 1, size
                if p in inside and set(readers) - inside:
                    at = LOW_SENT if min(readers) < places[i] else HIGH_SENT
                    expected[at : at + 2] += 1, size
            assert cross[i].tolist() == expected.tolist()


def test_replicas_take_turns():
    """One heavy op, 12 us, on three devices: each takes every third micro-batch; a light one of 4 us has its own."""
    graph = OpGraph.from_edges([12.0, 4.0], [(0, 1, 2)])
    cluster = Cluster.uniform(4, link=Link(0.0, 1.0), comm="duplex")
    placement = place(graph, cluster, "ideals", replicas=True)
    assert placement.replicas == ((0, 1, 2),)
    measured = throughput(graph, cluster, placement)
    assert measured.period_us == 4.0
    assert measured.loads["compute"].tolist() == [4.0, 4.0, 4.0, 4.0]
    assert measured.loads["send"] == pytest.approx([2 / 3, 2 / 3, 2 / 3, 0.0])
    assert measured.loads["receive"].tolist() == [0.0, 0.0, 0.0, 2.0]


def steps_of_all_cuts(graph, cluster, layers, micro_batches):
    """Microseconds of the best step over all cuts of a chain into runs, each on any number of devices in a row."""
    best = np.inf
    for used in range(1, cluster.n + 1):
        for stages in range(1, min(used, layers) + 1):
            for cut, device_order in product(
                combinations(range(1, layers), stages - 1), combinations(range(1, used), stages - 1)
            ):
                first, width = [0, *device_order], np.diff([0, *device_order, used])
                if max(width) > micro_batches:
                    continue
                stage_device = np.array(first)[np.searchsorted(cut, np.arange(layers), side="right")]
                groups = [tuple(range(d, d + r)) for d, r in zip(first, width.tolist(), strict=True) if r > 1]
                placement = Placement(device=np.tile(stage_device, 2), replicas=groups)
                best = min(
                    best, simulate(graph, cluster, placement, micro_batches=micro_batches, schedule="1f1b").makespan_us
                )
    return best


@pytest.mark.slow
@pytest.mark.parametrize("seed", fast(range(4), 2))
def test_replicas_for_a_step_against_all_cuts(seed):
    """The programme minimises a bound, so it may miss the best; here it does not."""
    rng = np.random.default_rng(seed)
    graph, count = random_chain(rng, 4), int(rng.integers(2, 6))
    cluster = Cluster.uniform(
        3, memory_bytes=10**6, link=Link(0.2, 0.02), comm=("parallel", "sequential", "duplex")[seed % 3]
    )
    best = steps_of_all_cuts(graph, cluster, 4, count)
    goal = {"objective": "step", "micro_batches": count}
    single = place(graph, cluster, "contiguous", **goal).replace(info={})
    annealed = place(
        graph, cluster, "search", replicas=True, start=single, evaluations=300, time_limit=None, seed=seed, **goal
    )
    assert annealed.info["step_us"] == pytest.approx(best)
    for placer in ("contiguous", "ideals"):
        placement = place(graph, cluster, placer, replicas=True, **goal)
        shown = simulate(graph, cluster, placement, micro_batches=count, schedule="1f1b")
        assert placement.info["step_us"] == shown.makespan_us == pytest.approx(best)
        assert placement.replicas and placement.info["step_us"] < place(graph, cluster, placer, **goal).info["step_us"]
    assert shown.feasible


def test_search_finds_replicas():
    """Three devices for 12 us and one for 4 us: from one stage on one device, and from the answer itself."""
    graph, cluster = OpGraph.from_edges([12.0, 4.0], [(0, 1, 2)]), Cluster.uniform(4, link=Link(0.0, 0.0))
    goal = {"objective": "throughput", "evaluations": 200, "time_limit": None}
    shared = place(graph, cluster, "ideals", replicas=True)
    units = make_pipeline_units(graph, cluster)
    start = Candidate(np.zeros(2, dtype=np.int64), {0: (0,)})
    placement, us, used = search_stages(
        graph,
        cluster,
        Objective("throughput", replicas=True),
        start.placement(units),
        Budget(None, 400),
        0,
        lambda *_: None,
    )
    assert (us, used) == (4.0, 400)
    assert sorted(map(len, placement.replicas)) in ([3], [4])  # or all four share both
    placement = place(graph, cluster, "search", replicas=True, start=shared, **goal)
    assert placement.info["period_us"] == 4.0 == throughput(graph, cluster, placement).period_us
    with pytest.raises(InvalidInput, match=r"replicas is .*; search without replicas=True runs every op on one device"):
        place(graph, cluster, "search", start=shared, **goal)
    with pytest.raises(
        InvalidInput, match=r"replicas is True; 'exact' proves .*: 'ideals', 'contiguous', 'search' and 'auto'"
    ):
        place(graph, cluster, "exact", objective="step", replicas=True)


@pytest.mark.parametrize("seed", range(3))
def test_moves_of_shared_stages_leave_pipelines(seed):
    """Every edge of the units keeps its direction along the stages, and every device is in one group at most."""
    rng = np.random.default_rng(seed)
    graph = random_pipeline(rng, 8, True)
    devices = [Device(f"d{k}", "gpu", 1000, speed=1.0 + k // 3) for k in range(5)]
    cluster = Cluster(devices)
    units = make_pipeline_units(graph, cluster)
    moves, candidate = SharedMoves(units, cluster, rng), Candidate(np.zeros(units.n, dtype=np.int64), {0: (0,)})
    widths = set()
    for _ in range(400):
        neighbour = moves.any(candidate)
        if neighbour is None:
            continue
        candidate = neighbour
        members = [d for group in candidate.groups.values() for d in group]
        assert len(set(members)) == len(members) and set(candidate.unit_device.tolist()) == set(candidate.groups)
        assert all(len({cluster.devices[d].speed for d in group}) == 1 for group in candidate.groups.values())
        line = moves.line(candidate.unit_device)
        place_of = np.array([line.index(d) for d in candidate.unit_device.tolist()])
        assert (place_of[units.source] <= place_of[units.target]).all()
        widths.add(tuple(sorted(map(len, candidate.groups.values()))))
    assert len(widths) > 5


def test_a_step_has_one_ring_and_replicas_only_where_they_pay():
    """Two equal layers, 6 us forward and 12 backward, on two devices: four micro-batches take (4 + 1) 18 = 90 us as a
    pipeline. Data parallel, each device takes two in 36 us each, 72, and a ring of 1000 bytes at 0.01 us 10 more."""
    graph = OpGraph.from_edges(
        [6.0, 6.0, 12.0, 12.0],
        [(0, 1, 4), (1, 3, 4), (3, 2, 4)],
        forward_of=[-1, -1, 0, 1],
        persistent_bytes=[500, 500, 0, 0],
        colocation=[0, 1, 0, 1],
        colocation_names=("a", "b"),
    )
    for per_byte, step in ((0.01, 82.0), (0.1, 90.0)):
        cluster = Cluster.uniform(2, memory_bytes=10**6, link=Link(0.0, per_byte), comm="parallel")
        placement = place(graph, cluster, "contiguous", objective="step", micro_batches=4, replicas=True)
        assert placement.info["step_us"] == pytest.approx(step, abs=4 * 4 * per_byte)
        assert placement.replicas == (((0, 1),) if step < 90 else ())


def test_published_vgg16_on_four_machines():
    """PipeDream's own answer: 3 machines share the first 17 of 40 layers; communication of 2 * 102.76 MB at 1 GB/s.

    Its cost is the transfer of the activation and of its gradient, one after the other: our `sequential` queue.
    """
    graph = load_graph(VGG)
    assert graph.duration_us.sum() == pytest.approx(672535)
    cluster = Cluster.uniform(4, memory_bytes="16GB", link=Link(0.0, 1e-3), comm="sequential")
    for placer in ("ideals", "contiguous"):
        placement = place(graph, cluster, placer, objective="throughput", replicas=True)
        assert placement.info["period_us"] == pytest.approx(205520.896)
        assert placement.replicas == ((0, 1, 2),)
        first = [k for k in range(41) if placement.device[k] == 0 and not graph.op_types[k].startswith("Input")]
        assert len(first) == 17
    assert 672535 / placement.info["period_us"] == pytest.approx(3.2723, abs=1e-4)


def with_costs_of_file(name: str) -> tuple[OpGraph, Link]:
    """A dnn-partitioning graph whose transfers take `cost` as it stands, in ms as `fpgaLatency`: 1 byte is 1 ns."""
    path = PARTITIONING / f"{name}.json"
    if not path.exists():
        pytest.skip("the dnn-partitioning files are not beside this checkout")
    document, graph = json.loads(path.read_text()), load_graph(path)
    index = {node["id"]: k for k, node in enumerate(document["nodes"])}
    edges = [(index[e["sourceId"]], index[e["destId"]], round(e["cost"] * 1e6)) for e in document["edges"]]
    columns = {
        "colocation": graph.colocation,
        "colocation_names": graph.colocation_names,
        "forward_of": graph.forward_of,
    }
    return OpGraph.from_edges(graph.duration_us, edges, **columns), Link(0.0, 1e-3)


def test_published_bert24_inference():
    graph, link = with_costs_of_file("bert24_inference")
    for devices, ms in enumerate((92.4060, 47.4790, 32.2429, 24.9169, 20.0840, 17.7899), 1):
        cluster = Cluster.uniform(devices, memory_bytes="16GB", link=link)
        for placer in ("ideals", "contiguous"):
            placement = place(graph, cluster, placer, objective="throughput", sum=True)
            assert throughput(graph, cluster, placement, sum=True).period_us / 1000 == pytest.approx(ms, abs=6e-5)


@pytest.mark.slow
def test_inception_training_in_six_beats_the_experts_split():
    graph, link = with_costs_of_file("inceptionv3_training")
    cluster = Cluster.uniform(6, memory_bytes="16GB", link=link)
    along_lines = place(graph, cluster, "contiguous", objective="throughput", sum=True)
    best = place(graph, cluster, "ideals", sum=True)
    assert best.info["closed_sets"] == 36596
    assert 710_738 / 6 < best.info["period_us"] <= along_lines.info["period_us"] < 213_654.2
    assert best.info["period_us"] == pytest.approx(125_929, abs=1)


def test_two_kinds_of_devices_in_either_order():
    """3 us and 9 us; the device of speed 3 must get the second op, though it comes first in the cluster."""
    graph = OpGraph.from_edges([3.0, 9.0], [(0, 1, 1)])
    cluster = Cluster([Device("fast", "gpu", 8, speed=3.0), Device("slow", "gpu", 8)], link=Link(0.1, 0.1))
    placement = place(graph, cluster, "ideals")
    assert placement.device.tolist() == [1, 0]
    assert placement.info["period_us"] == 3.0


def test_allowed_devices_and_memory_hold():
    graph = OpGraph.from_edges(
        [1.0, 1.0, 1.0],
        [(0, 1, 1), (1, 2, 1)],
        persistent_bytes=[6, 6, 6],
        allowed=[-1, -1, 0],
        allowed_sets=(("gpu:0",),),
    )
    cluster = Cluster.uniform(3, memory_bytes=10, link=Link(0.0, 0.1))
    placement = place(graph, cluster, "contiguous", objective="throughput")
    assert placement.device[2] == 0
    assert len(set(placement.device.tolist())) == 3
    with pytest.raises(InfeasiblePlacement):
        place(graph, cluster.with_memory(5), "ideals")


def test_empty_graph_and_one_device():
    assert place(OpGraph.from_edges([]), Cluster.uniform(2), "ideals").n == 0
    assert place(OpGraph.from_edges([1.0]), Cluster.uniform(1), "ideals").info["period_us"] == 1.0


def test_bad_input_is_rejected():
    graph, cluster = OpGraph.from_edges([1.0] * 30), Cluster.uniform(2)
    with pytest.raises(InvalidInput, match="30 units of the graph have more closed sets than the 1000"):
        place(graph, cluster, "ideals", most_sets=1000)
    with pytest.raises(UnknownNameError, match="objective"):
        place(graph, cluster, "contiguous", objective="speed")
    with pytest.raises(InvalidInput, match="micro_batches is 0"):
        place(graph, cluster, "contiguous", objective="step", micro_batches=0)


def test_replicas_are_checked():
    with pytest.raises(InvalidInput, match="none of them named twice"):
        Placement(device=[0], replicas=[(0, 1), (1, 2)])
    with pytest.raises(InvalidInput, match="device 1 repeats"):
        Placement(device=[0, 1], replicas=[(0, 1)])
    with pytest.raises(InvalidInput, match="replicas names device 7"):
        throughput(OpGraph.from_edges([1.0]), Cluster.uniform(2), Placement(device=[0], replicas=[(0, 7)]))


def chain_of_layers(loads: list[int]) -> tuple[OpGraph, Cluster]:
    """Layers without transfers, backward twice as long as forward, and four devices."""
    graph = generators.pipeline([float(x) for x in loads], [2.0 * x for x in loads])
    return graph, Cluster.uniform(4, memory_bytes=1 << 30, link=Link(0.0, 0.0), comm="parallel")


@pytest.mark.parametrize("placer", ["contiguous", "ideals"])
@pytest.mark.parametrize(("count", "published"), [(8, (600, 573)), (16, (1080, 1077)), (64, (3960, 4101))])
def test_the_shortest_step_is_found_whether_or_not_its_period_is_the_smallest(placer, count, published):
    """Loads [8, 14, 18, 20] and [21, 19, 5, 15] of these layers give `published` under 1F1B."""
    graph, cluster = chain_of_layers([8, 11, 2, 1, 18, 5, 4, 11])
    placement = place(graph, cluster, placer, objective="step", micro_batches=count)
    step = simulate(graph, cluster, placement, micro_batches=count, schedule="1f1b").makespan_us
    assert step == placement.info["step_us"] <= min(published)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("loads", [[8, 11, 2, 1, 18, 5, 4], [13, 11, 5, 7, 14, 12, 10, 7], [5, 12, 15, 8, 9, 19, 16]])
def test_steps_are_the_shortest_of_all_cuts(loads, schedule):
    graph, cluster = chain_of_layers(loads)
    steps = [
        simulate(graph, cluster, Placement(device=np.tile(stage, 2)), micro_batches=3, schedule=schedule).makespan_us
        for count in range(4)
        for cut in combinations(range(1, len(loads)), count)
        for stage in [np.searchsorted(cut, np.arange(len(loads)), side="right")]
    ]
    placement = place(graph, cluster, "contiguous", objective="step", micro_batches=3, schedule=schedule)
    assert placement.info["step_us"] == min(steps)


def test_a_step_keeps_within_memory_and_allowed_devices():
    """Three stages: 4, 4 and 10 us. The last two ops fit no device together, and the first may only run on gpu:0."""
    graph = OpGraph.from_edges(
        [1.0, 3.0, 4.0, 10.0],
        [(0, 1, 1), (1, 2, 1), (2, 3, 1)],
        persistent_bytes=[1, 1, 60, 60],
        allowed=[0, -1, -1, -1],
        allowed_sets=(("gpu:0",),),
    )
    cluster = Cluster.uniform(3, memory_bytes=100, link=Link(0.0, 0.0), comm="parallel")
    placement = place(graph, cluster, "contiguous", objective="step", micro_batches=4)
    timeline = simulate(graph, cluster, placement, micro_batches=4, schedule="1f1b")
    assert timeline.feasible and placement.device[0] == 0
    assert timeline.makespan_us == 8 + 4 * 10  # every cut into three has 8 us before the last stage


def test_a_schedule_that_no_cut_can_follow_says_why():
    graph, cluster = chain_of_layers([1, 2, 3])
    with pytest.raises(InvalidInput, match="the schedule has 1 lines; the pipeline has 3 devices"):
        place(graph, cluster, "contiguous", objective="step", micro_batches=3, schedule="0F0 0B0")


@pytest.mark.slow
@pytest.mark.parametrize("placer", ["contiguous", "ideals", "auto", "search"])
def test_bug_groups_whose_ops_do_not_fit_under_the_schedule_are_not_returned(placer):
    """One group holds 24 bytes at a time, its ops 16 of each micro-batch when all forward ops have run: 2 * 16 = 32."""
    graph = generators.with_backward(OpGraph.from_edges([1, 1, 1], [(0, 1, 8), (1, 2, 8)]))
    options = {"objective": "step", "micro_batches": 2, "schedule": "gpipe"}
    if placer == "search":
        options |= {"time_limit": None, "evaluations": 20}
    for memory, fits in ((31, False), (32, True)):
        cluster = Cluster.uniform(2, memory_bytes=memory, link=Link(0.0, 1.0))
        groups = optimize(graph, cluster, passes=("colocation", "coplacement", "fusion"))
        assert groups.n == 1
        if fits:
            timeline = simulate(
                graph, cluster, place(groups, cluster, placer, **options), micro_batches=2, schedule="gpipe"
            )
            assert timeline.feasible and timeline.peak_bytes.max() == 32
        else:
            with pytest.raises(InfeasiblePlacement, match="no proof that none exists"):
                place(groups, cluster, placer, **options)


def test_no_cut_that_fits_is_no_proof():
    """1F1B keeps two micro-batches of 60 bytes in the first stage; cuts are all tried, other placements are not."""
    graph = generators.pipeline([1.0, 1.0], [2.0, 2.0], activation_bytes=60)
    with pytest.raises(InfeasiblePlacement, match="which is no proof that none exists"):
        place(graph, Cluster.uniform(2, memory_bytes=100), "ideals", objective="step", micro_batches=4)


@pytest.mark.parametrize("placer", ["contiguous", "ideals"])
def test_replicas_are_for_several_micro_batches(placer):
    with pytest.raises(InvalidInput, match="replicas is True with objective"):
        place(OpGraph.from_edges([1.0]), Cluster.uniform(2), placer, objective="latency", replicas=True)


# -- steps with updates ------------------------------------------------------------------------------------


LAYERS = range(4)
PERIOD = 1 + 2  # forward and backward of a layer; 8 micro-batches on 4 devices: (8 + 4 - 1) * 3
PIPELINED = (8 + 4 - 1) * PERIOD


def trained(update: str) -> OpGraph:
    """Four layers, forward 1 us and backward 2 us, whose parameters one kind of `update` changes at the end of a step."""
    ops = [(f"{k}", "Linear", 1.0, -1) for k in LAYERS] + [(f"{k}/backward", "LinearBackward", 2.0, k) for k in LAYERS]
    edges = [(k, k + 1, 8) for k in LAYERS[:-1]] + [(4 + k + 1, 4 + k, 8) for k in LAYERS[:-1]]
    edges += [(k, 4 + k, 8) for k in LAYERS]
    group = [*LAYERS, *LAYERS]
    if update in ("by layer", "clipped", "scaled"):
        ops += [(f"{k}/update", "Update", 1.0, -1) for k in LAYERS]
        group += LAYERS
    if update == "by layer":  # all of them after the last backward op, as in PyTorch
        edges += [(4, 8 + k, 4) for k in LAYERS]
    elif update == "clipped":  # by the norm of all gradients
        ops.append(("norm", "Norm", 2.0, -1))
        group.append(-1)
        edges += (
            [(4 + k, 12, 16) for k in LAYERS] + [(12, 8 + k, 4) for k in LAYERS] + [(4 + k, 8 + k, 16) for k in LAYERS]
        )
    elif update == "scaled":  # the loss and, the other way round, all gradients
        ops.append(("scale", "VariableV2", 0.0, -1))
        group.append(-1)
        edges += [(12, 3, 4)] + [(12, 8 + k, 4) for k in LAYERS] + [(4 + k, 8 + k, 16) for k in LAYERS]
    elif update == "fused":  # one kernel for all parameters
        ops.append(("update", "ResourceApplyAdam", 1.0, -1))
        group.append(-1)
        edges += [(4 + k, 8, 16) for k in LAYERS]
    names, types, us, forward = zip(*ops, strict=True)
    return OpGraph.from_edges(
        us,
        edges,
        names=names,
        op_types=types,
        forward_of=forward,
        persistent_bytes=[16] * 4 + [0] * (len(ops) - 4),
        colocation=group,
        colocation_names=tuple(f"layer{k}" for k in LAYERS),
    )


UPDATES = {"none": 0, "by layer": 1, "clipped": 2 + 1, "scaled": 1, "fused": 1}
"""Microseconds that each kind of update takes behind the last backward op."""


@pytest.mark.slow
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize(
    ("placer", "objective"),
    [
        ("contiguous", "throughput"),
        ("contiguous", "step"),
        ("ideals", "throughput"),
        ("ideals", "step"),
        ("search", "step"),
    ],
)
def test_updates_do_not_tie_layers_together(update, placer, objective):
    graph, cluster = trained(update), Cluster.uniform(4, link=Link(0.0, 0.0))
    options = {"time_limit": None, "evaluations": 50, "seed": 0, "workers": 1} if placer == "search" else {}
    placement = place(graph, cluster, placer, objective=objective, **options)
    assert placement.device[:8].tolist() == [*LAYERS, *LAYERS]
    step = simulate(graph, cluster, placement, micro_batches=8, schedule="1f1b")
    assert step.makespan_us == PIPELINED + UPDATES[update]


def of_tensorflow() -> OpGraph:
    """Four layers as TensorFlow has them: only a variable, its moment and their updates share groups.

    Forward 1 us, backward 2 us, then a mean of 1 us that updates the moment, and its root of 1 us that updates the variable.
    """
    rows: list[tuple[str, str, float, int, int]] = []  # name, type, us, forward op, group
    for k in LAYERS:
        rows += [(f"w{k}", "VarHandleOp", 0.0, -1, 2 * k), (f"m{k}", "VarHandleOp", 0.0, -1, 2 * k + 1)]
    rows += [(f"f{k}", "MatMul", 1.0, -1, -1) for k in LAYERS]
    rows += [(f"b{k}", "MatMul", 2.0, 8 + k, -1) for k in LAYERS]
    edges = [(f"f{k}", f"f{k + 1}", 8) for k in LAYERS[:-1]] + [(f"b{k + 1}", f"b{k}", 8) for k in LAYERS[:-1]]
    for k in LAYERS:
        rows += [(f"mean{k}", "Mul", 1.0, -1, -1), (f"set_m{k}", "AssignAddVariableOp", 0.0, -1, 2 * k + 1)]
        rows += [(f"root{k}", "Sqrt", 1.0, -1, -1), (f"set_w{k}", "AssignSubVariableOp", 0.0, -1, 2 * k)]
        edges += [(f"w{k}", f"f{k}", 16), (f"w{k}", f"b{k}", 16), (f"f{k}", f"b{k}", 8), (f"b{k}", f"mean{k}", 16)]
        edges += [(f"m{k}", f"mean{k}", 16), (f"mean{k}", f"set_m{k}", 16), (f"mean{k}", f"root{k}", 16)]
        edges += [(f"root{k}", f"set_w{k}", 16), (f"w{k}", f"set_w{k}", 16)]
    names, types, us, forward, group = zip(*rows, strict=True)
    return OpGraph.from_edges(
        us,
        [(names.index(a), names.index(b), size) for a, b, size in edges],
        names=names,
        op_types=types,
        forward_of=forward,
        colocation=group,
        colocation_names=tuple(f"{kind}{k}" for k in LAYERS for kind in "wm"),
    )


@pytest.mark.parametrize("objective", ["throughput", "step"])
@pytest.mark.parametrize("placer", ["contiguous", "ideals"])
def test_bug_backward_ops_of_tensorflow_have_a_device_of_their_own(placer, objective):
    """Each device has a layer, forward and backward; an update of 2 us follows the last of 8 micro-batches."""
    graph, cluster = of_tensorflow(), Cluster.uniform(4, link=Link(0.0, 0.0))
    device = dict(zip(graph.names, place(graph, cluster, placer, objective=objective).device.tolist(), strict=True))
    assert [device[f"f{k}"] for k in LAYERS] == [device[f"b{k}"] for k in LAYERS] == [*LAYERS]
    placement = Placement(device=list(device.values()))
    assert simulate(graph, cluster, placement, micro_batches=8, schedule="1f1b").makespan_us == PIPELINED + 2


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1", "zb-auto", "zb-v", "interleaved-1f1b"])
def test_updates_do_not_tie_layers_together_under_other_schedules(schedule):
    graph, cluster = trained("clipped"), Cluster.uniform(2, link=Link(0.0, 0.0))
    placement = place(graph, cluster, "contiguous", objective="step", schedule=schedule)
    plain = place(trained("none"), cluster, "contiguous", objective="step", schedule=schedule)
    # Each device updates two layers after the norm.
    assert placement.info["step_us"] == plain.info["step_us"] + 2 + 2


def test_work_that_is_done_once_counts_once_per_step():
    # Three layers take 1 + 2 us per micro-batch; the update of the first takes 48, 6 for each of 8 micro-batches.
    graph = OpGraph.from_edges(
        [1, 1, 1, 2, 2, 2, 48],
        [(0, 1, 8), (1, 2, 8), (2, 5, 8), (5, 4, 8), (4, 3, 8), (0, 3, 8), (1, 4, 8), (3, 6, 8)],
        op_types=["Linear"] * 3 + ["LinearBackward"] * 3 + ["Update"],
        forward_of=[-1, -1, -1, 0, 1, 2, -1],
        colocation=[0, 1, 2, 0, 1, 2, 0],
        colocation_names=("a", "b", "c"),
    )
    cluster = Cluster.uniform(2, link=Link(0.0, 0.0))
    step, period = (make_pipeline_units(graph, cluster, micro_batches=count).work[:, 0].tolist() for count in (8, 1))
    assert step == [3 + 6, 3, 3] and period == [3 + 48, 3, 3]


@pytest.mark.parametrize("options", [{}, {"objective": "throughput"}, {"objective": "step"}])
def test_devices_that_are_not_needed_are_the_last_ones(options):
    # A link of 100 us costs more than any division of 4 us saves.
    chain = OpGraph.from_edges([1, 1, 1, 1], [(0, 1, 8), (1, 2, 8), (2, 3, 8)])
    cluster = Cluster.uniform(3, link=Link(100.0, 0.0))
    assert place(chain, cluster, "contiguous", **options).device.tolist() == [0, 0, 0, 0]
    if options:
        assert place(chain, cluster, "ideals", **options).device.tolist() == [0, 0, 0, 0]
    # Two devices hold what three could.
    halves = chain.replace(persistent_bytes=[50, 50, 50, 50])
    assert place(halves, cluster.with_memory(199), "contiguous", **options).device.max() == 1
