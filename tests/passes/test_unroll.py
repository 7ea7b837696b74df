"""Unrolling: what is copied, what is done once, what is added, and what it costs."""

import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.opgraph import GROWS
from baechi_lab.passes.contraction import contract
from baechi_lab.passes.roles import BACKWARD, FORWARD, SETUP, UPDATE, roles
from baechi_lab.passes.unroll import micro_batch_size, unroll, us_per_byte_moved

DATA = Path(__file__).parents[2] / "data"
W, X, MUL, LOSS, GRAD, SUM, CLIP, RATE, APPLY = range(9)


@pytest.fixture
def step():
    """A weight, a product, its gradient (two parts added up), clipping and the update."""
    edges = [
        (W, MUL, 4000),
        (W, APPLY, 8),
        (X, MUL, 400),
        (MUL, LOSS, 400),
        (LOSS, GRAD, 4),
        (X, GRAD, 400),
        (GRAD, SUM, 4000),
        (SUM, CLIP, 4000),
        (CLIP, APPLY, 4000),
        (RATE, APPLY, 4),
    ]
    return bl.OpGraph.from_edges(
        [0.0, 1.0, 10.0, 2.0, 20.0, 8.0, 3.0, 1.0, 4.0],
        edges,
        names=["w", "x", "mul", "loss", "grad", "sum", "clip", "rate", "apply"],
        op_types=[
            "VarHandleOp",
            "Placeholder",
            "MatMul",
            "Mean",
            "MatMul",
            "AddN",
            "Mul",
            "Const",
            "ResourceApplyAdam",
        ],
        forward_of=[-1, -1, -1, -1, MUL, -1, -1, -1, -1],
        persistent_bytes=[12000, 0, 0, 0, 0, 0, 0, 0, 0],
        temp_bytes=[0, 0, 50, 0, 60, 0, 0, 0, 0],
        colocation=[0, -1, -1, -1, -1, -1, -1, -1, 0],
        colocation_names=("w",),
    )


def test_ops_have_roles_by_what_reads_them(step):
    # Only the gradient reads the loss, so it goes with the backward pass.
    expected = [SETUP, FORWARD, FORWARD, BACKWARD, BACKWARD, BACKWARD, UPDATE, UPDATE, UPDATE]
    assert roles(step).tolist() == expected


def test_what_is_copied_and_what_is_not(step):
    step_graph = unroll(step, 3)
    per_batch = ["x", "mul", "loss", "grad", "sum"]
    assert step_graph.names == (
        "w",
        *(f"{name}/mb0" for name in per_batch),
        *(f"{name}/mb1" for name in per_batch),
        "sum/accumulate0/mb1",
        *(f"{name}/mb2" for name in per_batch),
        "sum/accumulate0/mb2",
        "clip",
        "rate",
        "apply",
    )
    assert step_graph.micro_batch.tolist() == [-1, *[0] * 5, *[1] * 6, *[2] * 6, -1, -1, -1]
    assert step_graph.persistent_bytes.sum() == step.persistent_bytes.sum()
    assert np.array_equal(step_graph.order, np.arange(step_graph.n))
    forward_names = {
        step_graph.names[i]: step_graph.names[step_graph.forward_of[i]]
        for i in np.flatnonzero(step_graph.forward_of >= 0)
    }
    assert forward_names == {f"grad/mb{k}": f"mul/mb{k}" for k in range(3)}


def test_gradients_are_added_one_after_the_other_and_updated_once(step):
    step_graph = unroll(step, 3)
    reads = {
        step_graph.names[i]: sorted(
            step_graph.tensor_label(t)
            for t in step_graph.inputs[1][step_graph.inputs[0][i] : step_graph.inputs[0][i + 1]]
        )
        for i in range(step_graph.n)
    }
    assert reads["sum/accumulate0/mb1"] == ["sum/mb0:0", "sum/mb1:0"]
    assert reads["sum/accumulate0/mb2"] == ["sum/accumulate0/mb1:0", "sum/mb2:0"]
    assert reads["clip"] == ["sum/accumulate0/mb2:0"]
    assert reads["mul/mb2"] == ["w:1", "x/mb2:0"]  # the weight is read where it is, by every micro-batch
    # The graph's own addition reads 4000 and writes 4000 bytes in 8 us; accumulating reads 8000 and writes 4000.
    adding = step_graph.duration_us[step_graph.index["sum/accumulate0/mb1"]]
    assert adding == pytest.approx(8.0 * 12000 / 8000)
    assert step_graph.duration_us.sum() == pytest.approx(3 * (1 + 10 + 2 + 20 + 8) + 2 * adding + 3 + 1 + 4)


def test_bandwidth_comes_from_additions_then_updates_then_the_fastest_op(step):
    assert us_per_byte_moved(step, step.duration_us, roles(step) == UPDATE) == 8.0 / 8000
    plain = step.replace(op_types=tuple("Concat" if t == "AddN" else t for t in step.op_types))
    # clip reads and writes 4000 bytes in 3 us; apply reads 8 + 4000 + 4 in 4 us, and the variable behind the handle, which it
    # writes as well: 8000 more; "sum", read by clip alone and after the gradients, is no addition any more and is done
    # once: 8000 bytes in 8 us
    us_per_byte = us_per_byte_moved(plain, plain.duration_us, roles(plain) == UPDATE)
    assert us_per_byte == (3.0 + 8.0 + 4.0) / (8000 + 8000 + 4012 + 8000)
    chain = bl.OpGraph.from_edges([5.0, 2.0, 9.0], [(0, 1, 8000), (1, 2, 8000)])
    assert us_per_byte_moved(chain, chain.duration_us, np.zeros(3, dtype=bool)) == 2.0 / 16000
    assert us_per_byte_moved(bl.OpGraph.from_edges([1.0]), np.ones(1), np.zeros(1, dtype=bool)) == 0.0


def test_a_placement_of_the_micro_batch_places_every_copy(step):
    cluster = bl.Cluster.uniform(2, link=bl.Link(1.0, 0.001))
    step_graph = unroll(step, 4)
    hand = bl.Placement(device=[0, 1, 1, 1, 1, 0, 0, 0, 0])
    placer = bl.place(step, cluster, "m-etf")
    groups = bl.optimize(step)
    coarse = bl.place(groups, cluster, "m-etf")
    for placement in (hand, placer, coarse):
        device = placement.on(step).device
        assert placement.on(step_graph).device.tolist() == device[step_graph.copy_of].tolist()
        timeline = bl.simulate(step_graph, cluster, placement)
        assert bl.check(step_graph, cluster, placement, timeline) == ()
    assert hand.on(step_graph).device[step_graph.index["sum/accumulate0/mb1"]] == 0  # where the gradient is
    with pytest.raises(bl.InvalidInput, match="made for another graph"):
        bl.Placement(device=[0, 1]).on(step_graph)


def test_one_micro_batch_is_the_graph_itself(step):
    step_graph = unroll(step, 1)
    assert step_graph.names == step.names and step_graph.key == step.key
    assert step_graph.micro_batch.tolist() == [-1, 0, 0, 0, 0, 0, -1, -1, -1]
    assert bl.Placement(device=[1] * 9).on(step_graph).device.tolist() == [1] * 9


def test_weights_kept_by_the_ops_themselves_are_there_once_and_keep_copies_together():
    """As in PyTorch's layer graphs: no variables, no updates."""
    graph = bl.OpGraph.from_edges(
        [1.0, 2.0], [(0, 1, 8)], names=["layer", "layer/backward"], persistent_bytes=[100, 0], forward_of=[-1, 0]
    )
    step_graph = unroll(graph, 3)
    assert step_graph.persistent_bytes.tolist() == [100, 0, 0, 0, 0, 0]
    assert step_graph.colocation.tolist() == [0, -1] * 3 and step_graph.colocation_names == ("layer",)
    assert step_graph.duration_us.sum() == 3 * 3.0


def test_bug_a_gradient_beside_the_sum_that_it_is_added_to_was_not_counted():
    """A weight of 10 and, from the first backward op on, its gradient of 10; the second one's is there while it runs."""
    graph = bl.OpGraph.from_edges(
        [1.0, 2.0],
        [(0, 1, 4)],
        names=["layer", "back"],
        forward_of=[-1, 0],
        persistent_bytes=[10, 10],
        reuse=[0, GROWS],
    )
    twice = unroll(graph, 2)
    added = {name: (int(twice.persistent_bytes[op]), int(twice.temp_bytes[op])) for name, op in twice.index.items()}
    assert added == {"layer/mb0": (10, 0), "back/mb0": (10, 0), "layer/mb1": (0, 0), "back/mb1": (0, 10)}
    line = bl.simulate(twice, bl.Cluster.uniform(1), bl.Placement(device=[0] * 4))
    assert int(line.peak_bytes[0]) == 10 + 10 + 10 + 4  # and the 4 bytes that the second backward op reads


def test_an_inference_graph_and_an_empty_one():
    graph = bl.OpGraph.from_edges([1.0, 2.0], [(0, 1, 8)])
    step_graph = unroll(graph, 2)
    assert step_graph.names == ("op0/mb0", "op1/mb0", "op0/mb1", "op1/mb1")
    assert unroll(bl.OpGraph.from_edges([]), 5).n == 0


def test_moving_averages_are_sums_too():
    """A forward value that an update reads is accumulated like a gradient; the update does not make the rest wait."""
    graph = bl.OpGraph.from_edges(
        [0.0, 5.0, 1.0, 7.0, 6.0],
        [(0, 2, 8), (1, 2, 400), (1, 3, 400), (3, 4, 400), (0, 3, 8)],
        names=["mean", "x", "assign", "layer", "gradient"],
        op_types=["VarHandleOp", "Placeholder", "AssignSubVariableOp", "Relu", "ReluGrad"],
        forward_of=[-1, -1, -1, -1, 3],
    )
    assert roles(graph).tolist() == [SETUP, FORWARD, UPDATE, FORWARD, BACKWARD]
    step_graph = unroll(graph, 2)
    assert "x/accumulate0/mb1" in step_graph.names


def test_bug_a_penalty_within_a_gradient_was_computed_after_the_updates():
    """An optimizer adds a penalty on the weight once, behind the gradients; the sum ran per micro-batch, and waited for it."""
    names = ["w", "x", "matmul", "gradient", "penalty", "sum", "update"]
    types = ["VarHandleOp", "Placeholder", "MatMul", "MatMulGrad", "Mul", "AddV2", "AssignSubVariableOp"]
    edges = [(0, 2, 8), (1, 2, 8), (2, 3, 8), (0, 4, 8), (3, 5, 8), (4, 5, 8), (5, 6, 8)]
    forward_of = [-1, -1, -1, 2, -1, -1, -1]
    graph = bl.OpGraph.from_edges([0, 0, 5, 9, 1, 1, 1], edges, names=names, op_types=types, forward_of=forward_of)
    assert roles(graph).tolist() == [SETUP, FORWARD, FORWARD, BACKWARD, UPDATE, UPDATE, UPDATE]


def test_a_write_that_the_backward_pass_waits_for_belongs_to_the_micro_batch():
    graph = bl.OpGraph.from_edges(
        [1.0] * 4,
        [(0, 1, 8), (1, 2, 8), (2, 3, 8)],
        op_types=["Placeholder", "AssignVariableOp", "Relu", "ReluGrad"],
        forward_of=[-1, -1, -1, 2],
    )
    assert UPDATE not in roles(graph)


@pytest.mark.parametrize(("loss_bytes", "compares"), [(4, UPDATE), (400, FORWARD)])
def test_a_comparison_of_the_loss_that_decides_on_the_update_runs_once(loss_bytes, compares):
    """One of each of 100 samples does not: it has a result per sample."""
    names = ["w", "x", "loss", "gradient", "limit", "less", "update"]
    types = ["VarHandleOp", "Placeholder", "Mean", "MeanGrad", "Const", "Less", "IfUpdate"]
    edges = [(0, 2, 8), (1, 2, 400), (2, 3, 4), (2, 5, loss_bytes), (4, 5, 4), (5, 6, 1), (3, 6, 8), (0, 6, 8)]
    graph = bl.OpGraph.from_edges(
        [0, 0, 5, 9, 0, 1, 1], edges, names=names, op_types=types, forward_of=[-1, -1, -1, 2, -1, -1, -1]
    )
    assert dict(zip(names, roles(graph).tolist(), strict=True))["less"] == compares
    assert ("less" in unroll(graph, 2).names) == (compares == UPDATE)


def test_random_numbers_are_drawn_for_every_micro_batch():
    graph = bl.OpGraph.from_edges(
        [1.0] * 4,
        [(0, 1, 8), (1, 3, 8), (2, 3, 8)],
        op_types=["Const", "RandomUniform", "Placeholder", "Mul"],
    )
    assert roles(graph).tolist() == [SETUP, FORWARD, FORWARD, FORWARD]


def test_a_batch_that_is_a_constant_is_still_a_batch():
    graph = bl.OpGraph.from_edges([1.0] * 3, [(0, 2, 8), (1, 2, 8)], op_types=["Const", "VarHandleOp", "MatMul"])
    assert roles(graph).tolist() == [FORWARD, SETUP, FORWARD]


def test_bug_a_first_layer_that_takes_no_time_made_all_micro_batches_one():
    """The only op without inputs has parameters and takes no time, as a variable does: 4 micro-batches took 10 us, not 4 * 10."""
    graph = bl.OpGraph.from_edges([0.0, 1.0, 9.0], [(0, 1, 8), (1, 2, 8)], persistent_bytes=[40, 0, 5])
    step_graph = bl.unroll(graph, 4)
    assert (step_graph.n, step_graph.persistent_bytes.sum()) == (4 * 3, 45)
    one = bl.Cluster.uniform(1)
    placement = bl.Placement(device=[0, 0, 0])
    assert bl.simulate(graph, one, placement, micro_batches=4).makespan_us == 4 * (1 + 9)
    assert bl.throughput(graph, one, placement).period_us == 1 + 9
    variable = graph.replace(op_types=["VarHandleOp", "MatMul", "MatMul"])
    assert bl.unroll(variable, 4).n == 3  # no batch at all


@pytest.mark.parametrize("name", ["gnmt-length40-batch64", "inception_v3-batch32"])
def test_profiled_tensorflow_graphs_are_unrolled_and_keep_their_parameters(name):
    graph = bl.load_graph(DATA / f"{name}.json.gz")
    role, count = roles(graph), 3
    with pytest.warns(UserWarning, match="statistics") if "inception" in name else nullcontext():
        step_graph = unroll(graph, count)
    each = (role == FORWARD) | (role == BACKWARD)
    sums = [i for i in range(step_graph.n) if step_graph.op_types[i] == "Accumulate"]
    assert step_graph.n == count * each.sum() + (~each).sum() + len(sums)
    assert step_graph.persistent_bytes.sum() == graph.persistent_bytes.sum()
    applied = [i for i, t in enumerate(graph.op_types) if "Apply" in t]
    assert applied and all(role[applied] == UPDATE)
    backward = graph.forward_of >= 0
    constant = np.array([t == "Const" for t in graph.op_types])
    assert np.all(role[backward & ~constant] == BACKWARD) and np.all(role[backward & constant] == SETUP)
    once, per = graph.duration_us[~each].sum(), graph.duration_us[each].sum()
    added = step_graph.duration_us[sums].sum()
    assert step_graph.duration_us.sum() == pytest.approx(count * per + once + added)
    assert 0 < added < 0.1 * per
    single = bl.Placement(device=np.zeros(graph.n, dtype=np.int32))
    cluster = bl.Cluster.uniform(1, memory_bytes=1 << 40)
    assert bl.simulate(step_graph, cluster, single).makespan_us == pytest.approx(step_graph.duration_us.sum())


def test_generated_training_graphs_have_roles_by_type():
    graph = bl.generators.unrolled_rnn(6, 2)
    role = roles(graph)
    kinds = {t: {int(role[i]) for i in range(graph.n) if graph.op_types[i] == t} for t in set(graph.op_types)}
    assert kinds["Variable"] == {SETUP} and kinds["Update"] == {UPDATE}
    assert kinds["MatMulGrad"] == {BACKWARD} and kinds["MatMul"] == {FORWARD}
    assert kinds["AddN"] <= {FORWARD, BACKWARD}


def test_files_keep_the_columns(step, tmp_path):
    step_graph = unroll(step, 2)
    bl.save_graph(step_graph, tmp_path / "unrolled.json")
    assert bl.load_graph(tmp_path / "unrolled.json") == step_graph
    assert bl.OpGraph.from_networkx(step_graph.to_networkx()) == step_graph


def test_bad_input_is_rejected(step):
    for count in (0, -1, 1.5, True, "8", None):
        with pytest.raises(bl.InvalidInput, match=r"micro_batches is .*; it must be a whole number of at least 1"):
            bl.unroll(step, micro_batches=count)
    with pytest.raises(bl.InvalidInput, match="unrolled already"):
        unroll(unroll(step, 2), 2)
    with pytest.raises(bl.InvalidInput, match="graph is of type str; it must be an OpGraph"):
        unroll("graph", 2)
    with pytest.raises(bl.InvalidInput, match="belong together"):
        step.replace(copy_of=np.arange(9))


def test_batch_statistics_are_warned_of():
    graph = bl.OpGraph.from_edges(
        [1.0, 1.0], [(0, 1, 8)], op_types=["BatchNorm2d", "BatchNorm2dBackward"], forward_of=[-1, 0]
    )
    with pytest.warns(UserWarning, match="op 'op0' normalises by the statistics of its batch"):
        bl.unroll(graph, micro_batches=2)
    bl.unroll(graph, micro_batches=1)
    bl.unroll(bl.OpGraph.from_edges([1.0], op_types=["BatchNorm2d"]), micro_batches=2)


def test_bug_frozen_batch_norms_of_other_packages_were_warned_of():
    """Detectors have classes of their own, with stored statistics alone."""
    op_types = ["DetrFrozenBatchNorm2d", "DetrFrozenBatchNorm2dBackward"]
    bl.unroll(bl.OpGraph.from_edges([1.0, 1.0], [(0, 1, 8)], op_types=op_types, forward_of=[-1, 0]), micro_batches=2)


def test_a_batch_that_does_not_divide():
    assert micro_batch_size(24, 8) == 3
    with pytest.raises(bl.InvalidInput, match="batch_size is 30; it must be a multiple of micro_batches, which is 8"):
        micro_batch_size(30, 8)
    with pytest.raises(bl.InvalidInput, match="batch_size is 0"):
        micro_batch_size(0, 8)


def test_a_step_that_would_fill_the_memory_is_refused():
    chain = bl.OpGraph.from_edges([1.0, 2.0], [(0, 1, 4)])
    with pytest.raises(
        bl.InvalidInput, match=r"micro_batches is 10+; a step of the 2 ops .* may have 50000000 at most"
    ):
        bl.unroll(chain, 10**12)


@pytest.mark.parametrize(
    "kind", ["IfUpdate", "StatelessIfUpdate", "CaseUpdate", "WhileUpdate", "ResourceStridedSliceAssign"]
)
def test_bug_conditional_updates_ran_once_per_micro_batch(kind):
    """A conditional that writes a variable runs once; one that writes nothing belongs to the micro-batch."""
    edges = [(0, 1, 4), (1, 2, 4), (2, 3, 4)]
    for op_type, role in ((kind, UPDATE), (kind.removesuffix("Update").removesuffix("StridedSliceAssign"), BACKWARD)):
        graph = bl.OpGraph.from_edges(
            [0, 5, 9, 1], edges, forward_of=[-1, -1, 1, -1], op_types=["VarHandleOp", "MatMul", "MatMulGrad", op_type]
        )
        assert roles(graph).tolist() == [SETUP, FORWARD, BACKWARD, role]


def test_names_of_a_forward_do_not_order_the_stages_of_a_pipeline():
    """What layer a makes has a name until layer b has run; the op that stands for it is on a's device all the same."""
    types = ["Linear", "Linear", "Named", "Grad", "Grad"]
    edges = [(0, 1, 80), (0, 2, 80), (1, 2, 4), (1, 3, 80), (3, 4, 80)]
    graph = bl.OpGraph.from_edges([5, 5, 0, 5, 5], edges, op_types=types, forward_of=[-1, -1, -1, 1, 0])
    cluster = bl.Cluster.uniform(2, link=bl.Link(0.0, 0.0))
    alternating = bl.Placement(device=[0, 1, 0, 1, 0])
    # GPipe, two micro-batches: a at 0 and 5, b at 5 and 10, its gradients from 15, a's from 20 to 30.
    assert bl.simulate(graph, cluster, alternating, micro_batches=2, schedule="gpipe").makespan_us == 30.0
    placement = bl.place(graph, cluster, "contiguous", objective="step", micro_batches=4, schedule="1f1b")
    assert placement.devices == 2 and placement.device[0] == placement.device[2]


def test_bug_a_group_with_a_long_update_ran_once_for_all_micro_batches(step):
    """All ops become one group, whose longest member is the update."""
    step = step.replace(duration_us=np.where(np.arange(9) == APPLY, 40.0, step.duration_us))
    groups = bl.optimize(step)
    assert groups.op_types == ("ResourceApplyAdam",)
    with pytest.warns(bl.errors.StepWarning, match="group 'apply' joins ops of several passes"):
        step_graph = bl.unroll(groups, 3)
    assert step_graph.duration_us.sum() == 3 * step.duration_us.sum()


def test_a_group_of_updates_runs_once(step):
    """The first update is the longest of a group that a gradient may not join; its role is that of its members."""
    group = [0, 1, 2, 3, 4, 5, 6, 6, 6]  # clipping, the rate and the update
    groups = contract(step, np.array(group))
    object.__setattr__(groups, "original", step)  # as `bl.optimize` does
    assert roles(groups).tolist() == [SETUP, FORWARD, FORWARD, BACKWARD, BACKWARD, BACKWARD, UPDATE]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bl.unroll(groups, 2).n == 1 + 2 * 5 + 1 + 1  # one addition


def test_the_choice_among_placements_of_groups_warns_of_nothing(step):
    groups = bl.optimize(step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bl.place(groups, bl.Cluster.uniform(2), "contiguous", objective="step", micro_batches=3)
