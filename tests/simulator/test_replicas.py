"""Stages that several devices share, simulated: hand-computed steps, rings, memory, and the steady state."""

import numpy as np
import pytest
from fewer import fast

import baechi_lab as bl
from baechi_lab.passes.all_reduce import ring_us
from baechi_lab.simulator.schedules import RULES, Schedule, Setting, make_rule, make_schedule

COMM = ["parallel", "sequential", "duplex"]


def test_replicas_take_turns_in_inference():
    """12 us on devices 0 and 1 in turns, 4 us on 2: it works at 12-16, 16-20 for the first two, then 24-28, 28-32."""
    graph = bl.OpGraph.from_edges([12.0, 4.0], [(0, 1, 2)])
    cluster = bl.Cluster.uniform(3, link=bl.Link(0.0, 0.0), comm="parallel")
    placement = bl.Placement(device=[0, 2], replicas=[(0, 1)])
    timeline = bl.simulate(graph, cluster, placement, micro_batches=4)
    assert timeline.makespan_us == 32.0
    assert timeline.device.tolist() == [0, 2, 1, 2, 0, 2, 1, 2]
    assert bl.check(bl.unroll(graph, 4, placement), cluster, placement, timeline) == ()


def data_parallel() -> bl.OpGraph:
    """A weight of 40 bytes: forward 2 us, backward 4 us, whose gradient an update of 3 us reads."""
    return bl.OpGraph.from_edges(
        [0.0, 2.0, 4.0, 3.0],
        [(0, 1, 40), (1, 2, 8), (2, 3, 40)],
        names=["w", "forward", "backward", "update"],
        op_types=["Variable", "MatMul", "MatMulGrad", "Update"],
        forward_of=[-1, -1, 1, -1],
        persistent_bytes=[100, 0, 0, 0],
    )


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", None])
@pytest.mark.parametrize("comm", COMM)
def test_data_parallel_step_by_hand(comm, schedule):
    """Two micro-batches each: 12 us; a ring of 2 rounds of half of 40 bytes, 1 + 0.5 * 20 = 11 us each; the update 3 us.

    Where a device's one queue sends and receives, a round takes twice 11 us.
    """
    graph, cluster = data_parallel(), bl.Cluster.uniform(2, memory_bytes=1000, link=bl.Link(1.0, 0.5), comm=comm)
    placement = bl.Placement(device=[0] * 4, replicas=[(0, 1)])
    timeline = bl.simulate(graph, cluster, placement, micro_batches=4, schedule=schedule)
    rounds = 2 * 11.0 * (2 if comm == "sequential" else 1)
    assert timeline.makespan_us == 12.0 + rounds + 3.0
    if comm != "sequential":
        assert rounds == ring_us(cluster, (0, 1), 40)
    assert len(timeline.transfers) == 4
    assert timeline.moved_bytes == 4 * 20
    step_graph = bl.unroll(graph, 4, placement)
    assert bl.check(step_graph, cluster, placement, timeline) == ()
    assert step_graph.names.count("update") == step_graph.names.count("update/replica1") == 1
    # Each replica keeps the weight; the sum of its two gradients is made by one addition.
    assert step_graph.persistent_bytes.sum() == 200
    assert sum(t == "Accumulate" for t in step_graph.op_types) == 2
    assert timeline.peak_bytes.min() >= 100 + 40 + 40 + 40  # the weight, its value, its gradient and the sum


def test_ring_of_three_by_hand():
    """No update in sight: backward ops add in place 30 bytes that their forward op keeps; 4 rounds of 1 + 0.5 * 10 us."""
    graph = bl.OpGraph.from_edges([2.0, 4.0], [(0, 1, 8)], forward_of=[-1, 0], persistent_bytes=[30, 0])
    cluster = bl.Cluster.uniform(3, link=bl.Link(1.0, 0.5), comm="duplex")
    placement = bl.Placement(device=[0, 0], replicas=[(0, 1, 2)])
    timeline = bl.simulate(graph, cluster, placement, micro_batches=3, schedule="1f1b")
    assert timeline.schedule_lines == "0F0 0B0\n0F1 0B1\n0F2 0B2"
    step_graph = bl.unroll(graph, 3, placement)
    ring = [i for i, kind in enumerate(step_graph.op_types) if kind == "AllReduce"]
    assert timeline.end_us[ring].max() == 6.0 + 4 * 6.0 == 6.0 + ring_us(cluster, (0, 1, 2), 30)
    assert len(timeline.transfers) == 12
    assert step_graph.persistent_bytes.tolist().count(30) == 3
    assert bl.check(step_graph, cluster, placement, timeline) == ()


def test_one_forward_one_backward_round_robin():
    """PipeDream's 1F1B-RR with 2 + 1 devices: each of the first two has ceil(3 / 2) = 2 micro-batches under way."""
    setting = Setting((0, 1), 6, *([np.ones(2)] * 3), *([np.zeros(1)] * 2), *([np.zeros(2)] * 3), replicas=(2, 1))
    assert str(make_schedule(make_rule("1f1b"), setting)) == (
        "0F0 0F2 0B0 0F4 0B2 0B4\n0F1 0F3 0B1 0F5 0B3 0B5\n1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3 1F4 1B4 1F5 1B5"
    )


def shared_pipeline(seed: int) -> tuple[bl.OpGraph, bl.Placement, list[int]]:
    """Stages in a row, each on one to three devices, with parameters and updates."""
    rng = np.random.default_rng(seed)
    stages = int(rng.integers(1, 4))
    graph = bl.generators.pipeline(
        rng.uniform(1, 5, stages), rng.uniform(1, 5, stages), rng.uniform(1, 5, stages), output_bytes=10
    )
    persistent = np.zeros(graph.n, dtype=np.int64)
    persistent[:stages] = rng.integers(0, 100, stages)
    width = rng.integers(1, 4, stages).tolist()
    first = np.concatenate([[0], np.cumsum(width)])[:-1]
    groups = tuple(tuple(range(a, a + w)) for a, w in zip(first.tolist(), width, strict=True) if w > 1)
    return graph.replace(persistent_bytes=persistent), bl.Placement(device=np.tile(first, 3), replicas=groups), width


@pytest.mark.parametrize("seed", fast(range(4), 1))
@pytest.mark.parametrize("comm", COMM)
def test_every_schedule_of_shared_stages_is_valid(seed, comm):
    graph, placement, width = shared_pipeline(seed)
    cluster = bl.Cluster.uniform(sum(width), memory_bytes=10_000, link=bl.Link(0.3, 0.05), comm=comm)
    count = max(width) + seed
    step_graph = bl.unroll(graph, count, placement)
    for name in (None, *(name for name, rule in RULES.items() if rule.shape == "chain"), "interleaved-1f1b"):
        timeline = bl.simulate(graph, cluster, placement, micro_batches=count, schedule=name)
        assert bl.check(step_graph, cluster, placement, timeline) == ()
        bound = bl.bounds(graph, cluster, micro_batches=count, placement=placement).best
        load = bl.throughput(graph, cluster, placement, micro_batches=count).loads["compute"].max() * count
        assert max(bound, load * (1 - max(width) / count)) <= timeline.makespan_us * (1 + 1e-9)
        if name is not None:
            replayed = bl.simulate(graph, cluster, placement, micro_batches=count, schedule=timeline.schedule_lines)
            assert replayed.makespan_us == timeline.makespan_us
            assert Schedule.parse(timeline.schedule_lines).orders


@pytest.mark.parametrize("seed", range(8))
def test_long_steps_take_a_period_per_micro_batch(seed):
    """What 60 more micro-batches add is 60 times `bl.throughput`'s period, gradients added up once per step."""
    graph, placement, width = shared_pipeline(seed)
    cluster = bl.Cluster.uniform(sum(width), link=bl.Link(0.0, 0.0), comm="parallel")
    short, long = (
        bl.simulate(graph, cluster, placement, micro_batches=m, schedule="1f1b").makespan_us for m in (60, 120)
    )
    period = bl.throughput(graph, cluster, placement, micro_batches=10**9).period_us
    assert (long - short) / 60 == pytest.approx(period, rel=1e-6)


@pytest.mark.parametrize("placer", ["contiguous", "ideals"])
def test_what_placers_share_can_be_simulated(placer):
    graph = bl.generators.pipeline([6.0, 2.0, 1.0], [12.0, 4.0, 2.0], output_bytes=10)
    cluster = bl.Cluster.uniform(4, link=bl.Link(0.0, 1e-6), comm="duplex")
    placement = bl.place(graph, cluster, placer, objective="throughput", replicas=True)
    assert placement.replicas
    timeline = bl.simulate(graph, cluster, placement, micro_batches=24, schedule="1f1b")
    alone = bl.place(graph, cluster, placer, objective="throughput")
    assert timeline.makespan_us < bl.simulate(graph, cluster, alone, micro_batches=24, schedule="1f1b").makespan_us
    table = bl.compare(
        graph,
        cluster,
        [(placer, {"objective": "throughput", "replicas": True})],
        micro_batches=24,
        schedule="1f1b",
        progress=False,
    )
    assert table["error"].tolist() == [""]
    assert table["gap"][0] >= 0


def test_placements_of_groups_and_shared_weights():
    """A weight read on both stages: its gradients meet on the second, whose update waits for the ring of the first."""
    graph = bl.OpGraph.from_edges(
        [0.0, 1.0, 1.0, 2.0, 2.0, 1.0],
        [(0, 1, 40), (0, 2, 40), (1, 2, 8), (2, 3, 8), (3, 4, 8), (3, 5, 40), (4, 5, 40)],
        names=["w", "f0", "f1", "b1", "b0", "update"],
        op_types=["Variable", "MatMul", "MatMul", "Grad", "Grad", "Update"],
        forward_of=[-1, -1, -1, 2, 1, -1],
        colocation=[0, 1, 0, 0, 1, 0],
        colocation_names=("last", "first"),
    )
    cluster = bl.Cluster.uniform(3, link=bl.Link(0.0, 0.1), comm="duplex")
    coarse = bl.optimize(graph, cluster, passes=("colocation",))
    home = {0: 0, 1: 2}
    by_name = [home["first" not in str(coarse.colocation_names[c])] for c in coarse.colocation]
    placement = bl.Placement(device=by_name, replicas=[(0, 1)], group_of=coarse.group_of, source_key=graph.key)
    timeline = bl.simulate(graph, cluster, placement, micro_batches=4, schedule="gpipe")
    step_graph = bl.unroll(graph, 4, placement)
    assert bl.check(step_graph, cluster, placement, timeline) == ()
    ring = [i for i, kind in enumerate(step_graph.op_types) if kind == "AllReduce"]
    assert len(ring) == 2 * 3
    assert timeline.start_us[step_graph.names.index("update")] >= timeline.end_us[ring].max()


def test_steps_of_replicas_are_kept_in_files(tmp_path):
    graph, placement = data_parallel(), bl.Placement(device=[0] * 4, replicas=[(0, 1)])
    step_graph = bl.unroll(graph, 4, placement)
    bl.save_graph(step_graph, tmp_path / "step.json")
    assert bl.load_graph(tmp_path / "step.json").content_key == step_graph.content_key
    assert bl.OpGraph.from_networkx(step_graph.to_networkx()).content_key == step_graph.content_key


def test_bad_input_is_rejected():
    graph, cluster = data_parallel(), bl.Cluster.uniform(4)
    placement = bl.Placement(device=[0] * 4, replicas=[(0, 1, 2)])
    with pytest.raises(bl.InvalidInput, match="micro_batches is 2; a stage has 3 replicas, each of which needs one"):
        bl.simulate(graph, cluster, placement, micro_batches=2)
    with pytest.raises(bl.InvalidInput, match="was unrolled for one device per stage, the placement has replicas"):
        placement.on(bl.unroll(graph, 4))
    with pytest.raises(bl.InvalidInput, match="replicas names device 9"):
        bl.simulate(graph, cluster, bl.Placement(device=[0] * 4, replicas=[(0, 9)]), micro_batches=2)
    with pytest.raises(bl.InvalidInput, match="the schedule has 1 lines; the pipeline has 3 devices"):
        bl.simulate(graph, cluster, placement, micro_batches=3, schedule="0F0 0F1 0F2 0B0 0B1 0B2")
