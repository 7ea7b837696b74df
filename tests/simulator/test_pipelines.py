"""Steps of several micro-batches under a schedule: published numbers, memory, stages found in graphs, bad input."""

from pathlib import Path

import numpy as np
import pytest
from fewer import fast
from simulator_reference import simulate_reference

import baechi_lab as bl
from baechi_lab.simulator.pipeline_stages import END, START, B, F, W, find_pipeline_stages
from baechi_lab.simulator.schedules import RULES

DATA = Path(__file__).parents[2] / "data"


def cluster(n, delay=0.0, memory=1 << 50, comm="parallel"):
    return bl.Cluster.uniform(n, memory_bytes=memory, link=bl.Link(delay, 0.0), comm=comm)


def by_stage(graph):
    """A device per stage: op F3, B3, W3 on device 3."""
    return bl.Placement(device=[int(name[1:]) for name in graph.names])


def run(graph, machine, placement, count, schedule):
    timeline = bl.simulate(graph, machine, placement, micro_batches=count, schedule=schedule)
    assert bl.check(bl.unroll(graph, micro_batches=count), machine, placement, timeline) == ()
    return timeline


def longest_span(timeline):
    """From the first to the last unit of the device that takes longest: the cost of a step in the zero-bubble paper."""
    devices = range(len(timeline.device_names))
    return max(
        timeline.end_us[timeline.device == d].max() - timeline.start_us[timeline.device == d].min() for d in devices
    )


@pytest.mark.parametrize(("stages", "count", "idle"), [(4, 8, 3 / 11), (8, 24, 7 / 31), (4, 2, 3 / 5), (1, 5, 0.0)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_equal_stages_idle_for_p_minus_1_of_m_plus_p_minus_1(stages, count, idle, schedule):
    graph = bl.generators.pipeline([3.0] * stages, [6.0] * stages)
    timeline = run(graph, cluster(stages), by_stage(graph), count, schedule)
    assert timeline.makespan_us == pytest.approx((count + stages - 1) * 9.0)
    assert timeline.idle_us / timeline.makespan_us == pytest.approx([idle] * stages)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_gpipe_holds_all_activations_and_1f1b_those_of_later_stages(count):
    p, one = 4, 1000
    graph = bl.generators.pipeline([3.0] * p, [6.0] * p, activation_bytes=one)
    peak = {s: run(graph, cluster(p), by_stage(graph), count, s).peak_bytes.tolist() for s in ("gpipe", "1f1b")}
    assert peak["gpipe"] == [count * one] * p
    assert peak["1f1b"] == [min(count, p - s) * one for s in range(p)]


@pytest.mark.parametrize(
    ("loads", "one_f_one_b", "gpipe"),
    [([8, 14, 18, 20], (600, 1080, 3960), (600, 1080, 3960)), ([21, 19, 5, 15], (573, 1077, 4101), (621, 1125, 4149))],
)
def test_the_smallest_period_is_not_the_shortest_step(loads, one_f_one_b, gpipe):
    graph = bl.generators.pipeline([float(x) for x in loads], [2.0 * x for x in loads])
    placement = by_stage(graph)
    assert bl.throughput(graph, cluster(4), placement).period_us == 3 * max(loads)
    for count, a, b in zip((8, 16, 64), one_f_one_b, gpipe, strict=True):
        assert run(graph, cluster(4), placement, count, "1f1b").makespan_us == a
        assert run(graph, cluster(4), placement, count, "gpipe").makespan_us == b


TABLE_5 = [
    (8, 24, (18.522, 18.086, 9.337), 0.601, (0.2431, 0.1585, 0.1083, 0.0433)),
    pytest.param(16, 48, (11.347, 11.248, 8.132), 0.377, (0.2552, 0.1397, 0.0672, 0.0066), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("p", "count", "us", "delay", "published"), TABLE_5)
def test_zero_bubble_table_5(p, count, us, delay, published):
    """arXiv:2401.10241, Table 5; activations as there: a third of what F leaves stays between B and W."""
    one = 3000
    graph = bl.generators.pipeline(*([x] * p for x in us), activation_bytes=one - 1000, kept_bytes=1000)
    bubbles, peak = [], []
    for schedule, capacity in (("1f1b", p), ("zb-h1", p), ("zb-h2", 2 * p), ("zb-auto", 2 * p)):
        timeline = run(graph, cluster(p, delay, memory=capacity * one), by_stage(graph), count, schedule)
        assert timeline.feasible
        bubbles.append(1 - count * sum(us) / longest_span(timeline))
        peak.append(timeline.peak_bytes.max())
    assert bubbles[:2] == pytest.approx(published[:2], abs=5e-5)
    assert bubbles[2] <= published[2] + 5e-5 and bubbles[3] <= published[3] + 5e-5
    assert peak[0] <= p * one and peak[1] <= p * one and peak[3] <= 2 * p * one


@pytest.mark.slow
def test_zb_auto_keeps_to_memory_that_the_steps_really_take():
    """Outputs under way and received copies count too, not only the activations that the list schedule knows of."""
    us = [[4.0, 7.0, 3.0], [5.0, 2.0, 8.0], [6.0, 1.0, 4.0]]
    graph = bl.generators.pipeline(*us, activation_bytes=1000, kept_bytes=300, output_bytes=700)
    rooms = []
    for memory in (8000, 6000, 4800):
        timeline = run(graph, cluster(3, 0.3, memory=memory), by_stage(graph), 6, "zb-auto")
        assert timeline.feasible
        rooms.append(timeline.makespan_us)
    assert rooms == sorted(rooms)


def test_zero_bubble_where_f_b_and_w_are_equal():
    p, count = 4, 12
    split = bl.generators.pipeline(*([[1.0] * p] * 3))
    work = 3.0 * count
    assert longest_span(run(split, cluster(p), by_stage(split), count, "zb-h2")) == work
    assert run(split, cluster(p), by_stage(split), count, "zb-h2").makespan_us == work + p - 1
    assert run(split, cluster(p), by_stage(split), count, "zb-auto").makespan_us == work + p - 1
    assert run(split, cluster(p), by_stage(split), count, "zb-h1").makespan_us == work + p - 1
    halves = bl.generators.pipeline(*([[1.0] * (2 * p)] * 3))
    there_and_back = bl.Placement(device=[min(s, 2 * p - 1 - s) for s in range(2 * p)] * 3)
    timeline = run(halves, cluster(p), there_and_back, count, "zb-v")
    assert longest_span(timeline) == 2 * work and timeline.makespan_us == 2 * work + p - 1


def test_interleaving_divides_the_bubble():
    p, chunks, count = 4, 2, 8
    stage_graph = bl.generators.pipeline([2.0] * p, [4.0] * p)
    chunk_graph = bl.generators.pipeline([1.0] * (p * chunks), [2.0] * (p * chunks))
    placement = bl.Placement(device=[s % p for s in range(p * chunks)] * 2)
    plain = run(stage_graph, cluster(p), by_stage(stage_graph), count, "1f1b").makespan_us
    makespan_us = run(chunk_graph, cluster(p), placement, count, "interleaved-1f1b").makespan_us
    assert plain - count * 6.0 == (p - 1) * 6.0
    assert makespan_us - count * 6.0 == (p - 1) * 6.0 / chunks


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("comm", fast(["sequential", "parallel", "duplex"], 1))
def test_kernel_twin_and_check_agree(name, comm):
    rng = np.random.default_rng(7)
    for _ in range(4):
        p, count = int(rng.integers(1, 4)), int(rng.integers(1, 6))
        shape = RULES[name].shape
        stages = p if shape == "chain" else 2 * p
        graph = bl.generators.pipeline(
            *rng.integers(1, 9, (3, stages)).astype(float),
            output_bytes=100,
            activation_bytes=50,
            kept_bytes=7,
            parameter_bytes=1000,
        )
        home = [min(s, 2 * p - 1 - s) for s in range(stages)] if shape == "v" else [s % p for s in range(stages)]
        placement = bl.Placement(device=home * 3)
        machine = bl.Cluster.uniform(p, memory_bytes=1 << 20, link=bl.Link(0.5, 0.01), comm=comm)
        timeline = run(graph, machine, placement, count, name)
        step_graph = bl.unroll(graph, count)
        device, unit = placement.on(step_graph).device, timeline.unit
        is_backward = np.array([n[0] == "B" and not RULES[name].splits for n in step_graph.names])
        rank = np.lexsort((np.arange(step_graph.n), is_backward, unit)).argsort()
        twin = simulate_reference(step_graph, machine, device.tolist(), lambda i, _, r=rank: r[i], unit.tolist())
        assert timeline.start_us.tolist() == [twin.start[i] for i in range(step_graph.n)]
        assert timeline.peak_bytes.tolist() == twin.peak


def test_check_finds_a_broken_order():
    graph = bl.generators.pipeline([1.0, 1.0], [2.0, 2.0])
    placement, machine, step_graph = by_stage(graph), cluster(2), bl.unroll(graph, 4)
    timeline = bl.simulate(graph, machine, placement, micro_batches=4, schedule="1f1b")
    eager = bl.simulate(graph, machine, placement, micro_batches=4)
    assert bl.check(step_graph, machine, placement, eager) == ()
    kinds = {v.kind for v in bl.check(step_graph, machine, placement, _with_info(eager, timeline.info))}
    assert "order" in kinds
    kinds = {v.kind for v in bl.check(step_graph, machine, placement, _with_info(timeline, {}))}
    assert kinds == {"idling"}  # without its schedule the timeline waits for no reason
    shifted_info = {**timeline.info, "unit": np.roll(timeline.unit, 1)}
    assert bl.check(step_graph, machine, placement, _with_info(timeline, shifted_info))


def _with_info(timeline, info):
    return bl.Timeline(**{**vars(timeline), "info": info})


def test_the_timeline_says_what_it_followed():
    graph = bl.generators.pipeline([1.0, 1.0], [2.0, 2.0])
    timeline = bl.simulate(graph, cluster(2), by_stage(graph), micro_batches=2, schedule="gpipe")
    assert timeline.schedule_lines == "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1"
    assert [f"{n}:{m}" for n, m in zip(timeline.op_names, timeline.micro_batch, strict=True)] == [
        "F0/mb0:0",
        "F1/mb0:0",
        "B1/mb0:0",
        "B0/mb0:0",
        "F0/mb1:1",
        "F1/mb1:1",
        "B1/mb1:1",
        "B0/mb1:1",
    ]
    replayed = bl.simulate(graph, cluster(2), by_stage(graph), micro_batches=2, schedule=timeline.schedule_lines)
    assert replayed.makespan_us == timeline.makespan_us


def test_fewer_micro_batches_than_stages_report_the_bubble():
    graph = bl.generators.pipeline([1.0] * 6, [2.0] * 6)
    for schedule in ("gpipe", "1f1b", "zb-h1", "zb-h2"):
        timeline = run(graph, cluster(6), by_stage(graph), 2, schedule)
        assert timeline.idle_us / timeline.makespan_us == pytest.approx([5 / 7] * 6)


def test_a_forward_pass_alone_takes_each_schedule_as_long():
    graph = bl.OpGraph.from_edges([2.0, 3.0], [(0, 1, 8)])
    for schedule in ("gpipe", "1f1b", "zb-h1", "zb-auto"):
        assert run(graph, cluster(2), bl.Placement(device=[0, 1]), 4, schedule).makespan_us == 2 + 4 * 3


# -- stages ----------------------------------------------------------------------------------------------------------


def test_b_is_what_the_next_stage_waits_for():
    """Two layers per stage; each has a gradient of its input and one of its weights, and an update."""
    names, fo, edges, types = [], [], [], []
    for kind in "FBWU":
        for layer in range(4):
            names.append(f"{kind}{layer}")
            fo.append({"F": -1, "U": -1}.get(kind, layer))
            types.append({"F": "MatMul", "U": "ResourceApplyAdam"}.get(kind, "MatMulGrad"))
    at = {name: k for k, name in enumerate(names)}
    for layer in range(4):
        edges += [(at[f"F{layer}"], at[f"{g}{layer}"], 16) for g in "BW"]
        edges.append((at[f"W{layer}"], at[f"U{layer}"], 8))
        if layer:
            edges.append((at[f"F{layer - 1}"], at[f"F{layer}"], 12))
            edges += [(at[f"B{layer}"], at[f"{g}{layer - 1}"], 12) for g in "BW"]
    graph = bl.OpGraph.from_edges([1.0] * 16, edges, names=names, forward_of=fo, op_types=types)
    device = np.array([0, 0, 1, 1] * 4)
    stages = find_pipeline_stages(graph, cluster(2), device)
    phase = dict(zip(names, stages.phase.tolist(), strict=True))
    assert {phase[f"F{k}"] for k in range(4)} == {F} and {phase[f"U{k}"] for k in range(4)} == {END}
    assert [phase[f"B{k}"] for k in (3, 2, 1)] == [B, B, B]
    assert {phase[f"W{k}"] for k in range(4)} == {W}
    assert phase["B0"] == B  # as other stages' B by type, and it feeds no update
    assert stages.stage.tolist() == [0, 0, 1, 1] * 3 + [-1] * 4
    for schedule in ("gpipe", "1f1b", "zb-h1", "zb-h2", "zb-auto"):
        run(graph, cluster(2, delay=0.5), bl.Placement(device=device), 5, schedule)


def test_a_shared_weight_is_summed_at_the_end():
    """The last stage adds up the gradients of a weight that the first uses too: nobody waits for that."""
    edges = [(0, 1, 8), (1, 2, 8), (2, 3, 8), (3, 5, 9), (2, 4, 7), (4, 5, 8)]
    graph = bl.OpGraph.from_edges(
        [1.0] * 6, edges, names=["F0", "F1", "B1", "B0", "W1", "sum"], forward_of=[-1, -1, 1, 0, 1, 1]
    )
    placement = bl.Placement(device=[0, 1, 1, 0, 1, 1])
    stages = find_pipeline_stages(graph, cluster(2), placement.device)
    assert stages.phase.tolist() == [F, F, B, B, W, END]
    run(graph, cluster(2), placement, 4, "1f1b")


def test_variables_run_first_and_updates_last():
    graph = bl.generators.unrolled_rnn(4, 2)
    machine = bl.Cluster.uniform(2, memory_bytes=1 << 40)
    device = np.array([int("layer1" in n or "projection" in n or "loss" in n) for n in graph.names])
    device = device[np.where(graph.forward_of >= 0, graph.forward_of, np.arange(graph.n))]
    for g in range(len(graph.colocation_names)):
        members = np.flatnonzero(graph.colocation == g)
        device[members] = device[members[0]]
    stages = find_pipeline_stages(graph, machine, device)
    assert stages.count == 2
    assert {graph.op_types[i] for i in np.flatnonzero(stages.phase == START)} == {"Variable"}
    assert {graph.op_types[i] for i in np.flatnonzero(stages.phase == END)} >= {"Update"}
    placement = bl.Placement(device=device)
    for schedule in ("1f1b", "zb-h1"):
        run(graph, machine, placement, 3, schedule)


def test_several_stages_per_device_are_found():
    graph = bl.generators.pipeline([1.0] * 6, [1.0] * 6, [1.0] * 6)
    loop = find_pipeline_stages(graph, cluster(3), np.array([2, 0, 1, 2, 0, 1] * 3), "loop")
    assert loop.device.tolist() == [2, 0, 1, 2, 0, 1] and loop.line.tolist() == [0, 1, 2, 0, 1, 2]
    assert loop.stage.tolist() == list(range(6)) * 3
    there_and_back = find_pipeline_stages(graph, cluster(3), np.array([0, 1, 2, 2, 1, 0] * 3), "v")
    assert there_and_back.stage.tolist() == list(range(6)) * 3
    assert find_pipeline_stages(graph, cluster(6), np.arange(18) % 6, "loop").count == 6


@pytest.mark.slow
def test_a_profiled_translation_model():
    """Encoder and decoder in contiguous splits: shapes computed from constants cross stages in any direction."""
    graph = bl.load_graph(DATA / "gnmt-length40-batch64.json.gz")
    machine = bl.Cluster.uniform(4, memory_bytes=1 << 40, comm="duplex")
    placement = bl.place(bl.optimize(graph, forward_only=True), machine, "contiguous")
    undivided = bl.simulate(graph, machine, placement)
    for schedule in ("1f1b", "zb-h1"):
        timeline = bl.simulate(graph, machine, placement, micro_batches=3, schedule=schedule)
        assert bl.check(bl.unroll(graph, 3), machine, placement, timeline) == ()
        assert undivided.makespan_us < timeline.makespan_us < 3 * undivided.makespan_us


def test_a_device_with_gradients_alone():
    """Gradients of weights on a device of their own: it has no forward op and stands where its inputs come from."""
    graph = bl.generators.pipeline([1.0, 1.0], [2.0, 2.0], [1.0, 1.0]).replace(colocation=np.full(6, -1))
    placement = bl.Placement(device=[0, 1, 0, 1, 2, 2])
    timeline = run(graph, cluster(3), placement, 3, "1f1b")
    assert np.bincount(timeline.device).tolist() == [6, 6, 6]  # F and B, or both W, of every micro-batch


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_a_placement_whose_stages_form_no_pipeline():
    graph = bl.generators.pipeline([1.0] * 3, [1.0] * 3)
    with pytest.raises(
        bl.InvalidInput, match=r"no pipeline: the forward tensor 'F1:output' turns back from 'F1' \(stage 1"
    ):
        bl.simulate(graph, cluster(2), bl.Placement(device=[0, 1, 0] * 2), micro_batches=2, schedule="1f1b")
    wrong = bl.Placement(device=[0, 1, 2, 1, 2, 0])  # B2, B1, B0 on devices 0, 2, 1
    with pytest.raises(
        bl.InvalidInput, match=r"the backward tensor 'B2:gradient' turns back from 'B2' \(stage 0, gpu:0\)"
    ):
        bl.simulate(graph, cluster(3), wrong, micro_batches=2, schedule="1f1b")


def test_schedules_that_do_not_fit_the_stages():
    graph = bl.generators.pipeline([1.0] * 4, [1.0] * 4)
    with pytest.raises(bl.InvalidInput, match="no pipeline"):
        bl.simulate(graph, cluster(4), by_stage(graph), micro_batches=4, schedule="zb-v")
    with pytest.raises(bl.InvalidInput, match="the schedule has 1 lines; the pipeline has 4 devices"):
        bl.simulate(graph, cluster(4), by_stage(graph), micro_batches=1, schedule="0F0 0B0")


def test_bad_pipelines_are_rejected_with_one_sentence():
    graph, machine = bl.generators.pipeline([1.0], [1.0]), cluster(1)
    placement = bl.Placement(device=[0, 0])
    with pytest.raises(bl.InvalidInput, match="micro_batches is 0"):
        bl.simulate(graph, machine, placement, micro_batches=0, schedule="1f1b")
    with pytest.raises(bl.UnknownNameError, match="unknown schedule 'pipe'; did you mean 'gpipe'"):
        bl.simulate(graph, machine, placement, micro_batches=2, schedule="pipe")
    with pytest.raises(bl.InvalidInput, match="a schedule leaves devices nothing to choose"):
        bl.simulate(graph, machine, placement, "fifo", micro_batches=2, schedule="1f1b")
    with pytest.raises(bl.InvalidInput, match="made for another graph"):
        bl.simulate(graph, machine, bl.Placement(device=[0] * 7), micro_batches=2, schedule="1f1b")


def test_replicas_are_refused_where_only_one_of_them_would_run():
    graph, machine = bl.generators.pipeline([1.0, 1.0], [1.0, 1.0]), cluster(3)
    placement = bl.Placement(device=[0, 2, 0, 2], replicas=[(0, 1)])
    with pytest.raises(
        bl.InvalidInput, match=r"replicas is \(\(0, 1\),\); bl.simulate without micro_batches runs every"
    ):
        bl.simulate(graph, machine, placement)
    with pytest.raises(bl.InvalidInput, match=r"replicas is \(\(0, 1\),\)"):
        bl.robustness(graph, machine, placement)
    assert bl.throughput(graph, machine, placement).period_us == 2.0


def test_labels_are_in_the_stage_that_reads_them():
    """Four stages on two devices; op 4, on device 1, comes from nowhere and is read by the last: not in stage 1."""
    graph = bl.OpGraph.from_edges([1.0] * 5, [(0, 1, 8), (1, 2, 8), (2, 3, 8), (4, 3, 8)])
    device = np.array([0, 1, 0, 1, 1])
    assert find_pipeline_stages(graph, cluster(2), device, "loop").stage.tolist() == [0, 1, 2, 3, 3]


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_bug_a_gradient_that_only_a_sum_after_the_step_reads_is_of_weights(schedule):
    """Both stages read the table. Their gradients meet in a sum that runs once per step, so no micro-batch waits for them.

    `grad/far` was in phase B of the first stage, which `bl.check` refused.
    """
    forward = bl.OpGraph.from_edges(
        [0.0, 2.0, 3.0], [(0, 1, 400), (0, 2, 400)], names=["table", "near", "far"], persistent_bytes=[400, 0, 0]
    )
    graph = bl.generators.with_backward(forward)
    assert graph.names[3:] == ("grad/far", "grad/near", "sum/table:0", "update/table")
    devices = cluster(2)
    placement = bl.Placement(device=[0, 0, 1, 0, 0, 1, 0])
    timeline = bl.simulate(graph, devices, placement, micro_batches=2, schedule=schedule)
    assert not bl.check(bl.unroll(graph, 2), devices, bl.Placement(device=timeline.device), timeline)


def test_bug_a_stage_does_not_wait_for_a_sum_after_the_step():
    """`sum/op0:0` on the first device reads gradients of both devices, so it runs after all micro-batches, in phase END.

    `grad/op4/0` of the last stage, which only that sum reads, was in phase B, which `bl.check` refused.
    """
    edges = [(0, 1, 400), (0, 3, 400), (0, 4, 400), (1, 3, 400), (1, 4, 400), (2, 3, 400), (3, 4, 400)]
    forward = bl.OpGraph.from_edges([1.0] * 5, edges, persistent_bytes=[400, 0, 0, 0, 0])
    graph, devices = bl.generators.with_backward(forward), cluster(2)
    placement = bl.Placement(device=[1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 1])
    timeline = bl.simulate(graph, devices, placement, micro_batches=2, schedule="zb-v")
    step = bl.unroll(graph, 2)
    phases = {name.partition("/mb")[0]: phase for name, phase in zip(step.names, timeline.phase.tolist(), strict=True)}
    assert (phases["grad/op4/0"], phases["sum/op0:0"]) == (W, END)
    assert not bl.check(step, devices, bl.Placement(device=timeline.device), timeline)
