"""A recomputed graph runs for real: the same losses, the ops of the plan twice, random and stateful ops once."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors.tensorflow.allocations import COPIES
from baechi_lab.executors.tensorflow.recomputed_step import recomputed_step
from baechi_lab.executors.tensorflow.session import parse_graph
from baechi_lab.memory_saving.op_sequence import OpSequence
from baechi_lab.memory_saving.recompute import graph_with_copies
from baechi_lab.memory_saving.training_graph import TrainingGraph

tf = pytest.importorskip("tensorflow")

ROWS, WIDTH, LAYERS = 2048, 16, 6


def dropout_step():
    """Layers of matrix product, stateless dropout by a counter, tanh; the loss and the update of every weight."""
    rng = np.random.default_rng(1)
    weights = [
        tf.Variable((rng.normal(size=(WIDTH, WIDTH)) / 4).astype(np.float32), name=f"w{i}") for i in range(LAYERS)
    ]

    def step(x):
        with tf.GradientTape() as tape:
            hidden = x
            for i, weight in enumerate(weights):
                with tf.name_scope(f"layer{i}"):
                    mask = tf.cast(tf.random.uniform(tf.shape(hidden), seed=5 + i) > 0.2, tf.float32)
                    hidden = tf.tanh(hidden @ weight) * mask
            loss = tf.reduce_mean(hidden**2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.5 * gradient)
        return loss

    return bl.trace(step, rng.normal(size=(ROWS, WIDTH)).astype(np.float32), name="dropout")


@pytest.fixture(scope="module")
def case():
    step = dropout_step()
    graph = bl.profile(step, mode="estimated", hardware="cpu-core")
    return step, graph, bl.recompute(graph, "sqrt")


def runs_on(case, devices, worker):
    step, graph, recomputed = case
    measured_runs = []
    for variant in (graph, recomputed):
        device = np.arange(variant.n) * 0
        if devices == 2:  # layers alternate; copies are where their originals are, as their group says
            names = [n.removesuffix("/again") for n in variant.names]
            device = np.array([1 if "layer3" in n or "layer4" in n else 0 for n in names])
        measured_runs.append(
            bl.execute(
                step,
                bl.Placement(device=device),
                2,
                warmup=1,
                traced=1,
                graph=variant,
                worker=worker,
                kind="cpu",
                virtual=2,
                return_variables=True,
                progress=False,
            )
        )
    return measured_runs


@pytest.mark.parametrize("devices", [1, 2])
def test_losses_and_weights_are_those_without(case, devices, worker):
    plain, recomputed = runs_on(case, devices, worker)
    assert recomputed.status == "ok", recomputed.message
    assert [float(o[0]) for o in recomputed.outputs] == [float(o[0]) for o in plain.outputs]
    assert len({float(o[0]) for o in plain.outputs}) > 1  # the weights move
    for name, value in plain.info["variables"].items():
        np.testing.assert_array_equal(recomputed.info["variables"][name], value)


def test_copies_ran_and_the_peak_is_lower(case, worker):
    """What the plan repeats ran twice, no random op did; the measured saving is the simulated one within 10 % of the peak."""
    plain, recomputed = runs_on(case, 1, worker)
    names = np.array(recomputed.timeline.op_names)[recomputed.timeline.op].tolist()
    twice = [n for n in names if n.endswith("/again")]
    assert sorted(twice) == sorted(set(case[2].names) - set(case[1].names)) and len(twice) > LAYERS
    assert not any("random" in n.lower() for n in twice)
    alone, peaks = bl.Cluster.uniform(1, kind="cpu"), []
    for graph in case[1:]:
        peaks.append(int(bl.simulate(graph, alone, bl.Placement(device=[0] * graph.n)).peak_bytes[0]))
    before, after = (int(r.timeline.peak_bytes[0]) for r in (plain, recomputed))
    assert after < before
    assert abs((before - after) - (peaks[0] - peaks[1])) <= 0.1 * before


def test_nothing_is_rewritten_away(case):
    from baechi_lab.executors.tensorflow.recomputed_step import recomputed_step
    from baechi_lab.executors.tensorflow.session import parse_graph

    step, graph, recomputed = case
    nodes = {n.name: n for n in parse_graph(recomputed_step(step, recomputed).graph_def).node}
    copies = [n for n in recomputed.names if n not in graph.names]
    assert copies and all(nodes[c].op == nodes[c.removesuffix("/again")].op for c in copies)
    assert any(ref.startswith("^") for c in copies for ref in nodes[c].input)  # they wait for the backward pass
    assert recomputed_step(step, graph) is step


def test_a_plan_in_its_own_order_runs(case, worker):
    """Control dependencies between all ops, those that read nothing included; variables are set without them."""
    step, graph, _ = case
    recomputed = bl.recompute(graph, "sqrt", ordered=True)
    plain, ordered = runs_on((step, graph, recomputed), 1, worker)
    assert [float(o[0]) for o in ordered.outputs] == [float(o[0]) for o in plain.outputs]
    alone, one = bl.Placement(device=[0] * recomputed.n), bl.Cluster.uniform(1, kind="cpu")
    simulated = int(bl.simulate(recomputed, one, alone).peak_bytes[0])
    assert abs(int(ordered.timeline.peak_bytes[0]) - simulated) <= 0.1 * simulated


def test_an_export_has_the_copies(case, tmp_path):
    step, _, recomputed = case
    folder = bl.export(step, bl.Placement(device=[0] * recomputed.n), tmp_path / "placed", graph=recomputed)
    assert b"/again" in (folder / "placed_graph.pb").read_bytes()


def test_copies_of_other_steps_are_refused(case, step):
    with pytest.raises(bl.InvalidInput, match="is no op of the step"):
        bl.execute(step, bl.Placement(device=[0] * case[2].n), 1, graph=case[2])


def test_an_order_without_copies_is_kept_as_well(case):
    """Nothing runs again, but ops wait for those before them in the plan, as the simulator has it."""
    step, graph, _ = case
    sequence = OpSequence(TrainingGraph(graph), TrainingGraph(graph).ordered)
    ordered = graph_with_copies(sequence, sequence.node)
    assert ordered.names == graph.names
    waits = {node.name: sum(name[0] == "^" for name in node.input) for node in parse_graph(step.graph_def).node}
    waits_longer = [
        sum(name[0] == "^" for name in node.input) > waits.get(node.name, 0)
        for node in parse_graph(recomputed_step(step, ordered).graph_def).node
    ]
    assert any(waits_longer) and recomputed_step(step, graph) is step


@pytest.mark.parametrize("first", ["", "sqrt"])
def test_offloaded_outputs_are_sent_to_a_third_device_and_back(case, first, worker):
    """Dropout included; with copies and without. The host runs what hands the outputs on, and nothing else."""
    step, graph, recomputed = case
    free = bl.Link(0.0, 0.0)
    cluster = bl.Cluster.uniform(1, kind="cpu", link=free).with_host("64GB", link=free)
    offloaded = bl.offload(recomputed if first else graph, cluster)
    hosted = [name for name in offloaded.names if name.endswith("/offloaded")]
    assert len(hosted) > LAYERS
    placement = bl.place(offloaded, cluster, "m-etf")
    options = {"warmup": 1, "kind": "cpu", "worker": worker, "progress": False}
    plain = bl.execute(step, bl.Placement(device=[0] * graph.n), 3, graph=graph, virtual=2, **options)
    run = bl.execute(step, placement, 3, traced=1, graph=offloaded, virtual=2, **options)
    assert run.status == "ok", run.message
    assert [float(o[0]) for o in run.outputs][:4] == [float(o[0]) for o in plain.outputs][:4]
    timeline = run.timeline
    on_host = {timeline.op_names[k] for k in timeline.op[timeline.device == 1].tolist()}
    assert set(hosted) >= on_host and on_host
    directions = set(zip(timeline.transfers.source.tolist(), timeline.transfers.target.tolist(), strict=True))
    assert directions == {(0, 1), (1, 0)}


def test_a_second_output_goes_to_the_host(worker):
    def two_outputs(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            low, high = tf.split(tf.tanh(x), 2, axis=1)
            loss = tf.reduce_sum(tf.tanh(low * high) ** 2)
        return tape.gradient(loss, x)

    value = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    step = bl.trace(two_outputs, value, name="halves")
    graph = bl.profile(step, mode="estimated", hardware="cpu-core")
    cluster = bl.Cluster.uniform(1, kind="cpu").with_host("1GB")
    split = next(name for name, kind in zip(graph.names, graph.op_types, strict=True) if kind == "Split")
    forward_of = graph.forward_of.copy()
    forward_of[[k for k, name in enumerate(graph.names) if "gradient" in name.lower()]] = graph.index[split]
    offloaded = bl.offload(graph.replace(forward_of=forward_of), cluster, [split])
    assert {name for name in offloaded.names if name.endswith("/offloaded")} >= {f"{split}.1/offloaded"}
    run = bl.execute(
        step,
        bl.place(offloaded, cluster, "single"),
        1,
        graph=offloaded,
        kind="cpu",
        virtual=2,
        worker=worker,
        progress=False,
    )
    assert run.status == "ok", run.message
    np.testing.assert_array_equal(run.outputs[0][0], two_outputs(tf.constant(value)).numpy())


def trained_with_state():
    """Momentum by TensorFlow's own kernel and by assignments: state that one op alone takes, and that several do."""
    rng = np.random.default_rng(2)
    draw = lambda *shape: (rng.normal(size=shape) / 8).astype(np.float32)  # noqa: E731
    first, second = tf.Variable(draw(64, 64), name="first"), tf.Variable(draw(64, 64), name="second")
    zeros = np.zeros((64, 64), np.float32)
    slow, speed = tf.Variable(zeros, name="slow"), tf.Variable(zeros, name="speed")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ first) @ second) ** 2)
        one, two = tape.gradient(loss, [first, second])
        slow.read_value()  # a handle alone would not tell the function of its variable
        tf.raw_ops.ResourceApplyMomentum(var=first.handle, accum=slow.handle, lr=0.1, grad=one, momentum=0.9)
        speed.assign(0.9 * speed + two)
        second.assign_sub(0.1 * speed)
        return loss

    return bl.trace(step, draw(32, 64), name="trained")


@pytest.fixture(scope="module")
def lent():
    step = trained_with_state()
    graph = bl.profile(step, mode="estimated", hardware="cpu-core")
    free = bl.Link(0.0, 0.0)
    cluster = bl.Cluster.uniform(1, kind="cpu", link=free).with_host("64GB", link=free)
    return step, graph, cluster, bl.offload(graph, cluster, share=0.0, state=True)


def test_state_on_a_host_is_lent_for_the_update(lent, worker):
    """Losses, weights and state bit for bit, the state read on the host and stored there; it comes and goes once per step."""
    step, graph, cluster, offloaded = lent
    assert {name for name in offloaded.names if name.endswith("/state")} == {"slow/state", "speed/state"}
    options = {"steps": 2, "warmup": 1, "traced": 1, "kind": "cpu", "virtual": 2, "worker": worker, "progress": False}
    plain = bl.execute(step, bl.Placement(device=[0] * graph.n), graph=graph, return_variables=True, **options)
    run = bl.execute(step, bl.place(offloaded, cluster, "m-etf"), graph=offloaded, return_variables=True, **options)
    assert run.status == "ok" and not run.moved_ops, run.message
    assert [float(o[0]) for o in run.outputs] == [float(o[0]) for o in plain.outputs]
    assert len({float(o[0]) for o in run.outputs}) == 4
    for name, value in plain.info["variables"].items():
        assert np.any(value), name
        np.testing.assert_array_equal(run.info["variables"][name], value)
    timeline = run.timeline
    for name in ("slow", "speed"):
        for suffix in ("state", "stored"):
            assert timeline.device[timeline.op == offloaded.index[f"{name}/{suffix}"]].tolist() == [1]
    for direction in ((0, 1), (1, 0)):
        in_direction = (timeline.transfers.source == direction[0]) & (timeline.transfers.target == direction[1])
        assert int(timeline.tensor_bytes[timeline.transfers.tensor[in_direction]].sum()) >= 2 * 64 * 64 * 4


def test_state_between_processes_is_counted_where_it_is(lent):
    """On two workers: persistent where it is between steps, a received copy from its arrival until it was stored again."""
    step, graph, _, offloaded = lent
    with bl.LocalCluster(2) as local:
        options = {"steps": 1, "warmup": 1, "traced": 3, "cluster": local, "progress": False}
        plain = bl.execute(step, bl.Placement(device=[0] * graph.n), graph=graph, **options)
        run = bl.execute(
            step, bl.Placement(device=[int(n >= graph.n) for n in range(offloaded.n)]), graph=offloaded, **options
        )
    assert run.status == "ok", run.message
    state_bytes = 2 * 64 * 64 * 4
    first, second = (run.timeline.peak_parts(d)["persistent"] for d in (0, 1))
    assert (first, second) == (plain.timeline.peak_parts(0)["persistent"] - state_bytes, state_bytes)
    transfers, lent = run.timeline.transfers, run.timeline.memory
    assert run.timeline.tensor_bytes[transfers.tensor[transfers.source == 0]].tolist() == [state_bytes // 2] * 2
    assert {offloaded.names[k] for k in run.timeline.tensor_producer[transfers.tensor[transfers.source == 0]]} <= set(
        graph.names
    )
    copies_on_device = (lent.device == 0) & (lent.category == COPIES)
    assert sorted(lent.delta[copies_on_device].tolist()) == [
        -state_bytes // 2,
        -state_bytes // 2,
        state_bytes // 2,
        state_bytes // 2,
    ]
    freed_us = lent.time_us[copies_on_device & (lent.delta < 0)]
    stored = [
        run.timeline.start_us[run.timeline.op == offloaded.index[f"{name}/stored"]][0] for name in ("slow", "speed")
    ]
    assert sorted(freed_us.tolist()) == sorted(stored)  # until then the device has what it was lent


def test_an_export_lends_state(lent, tmp_path):
    step, _, cluster, offloaded = lent
    folder = bl.export(step, bl.place(offloaded, cluster, "m-etf"), tmp_path / "placed", graph=offloaded)
    assert b"speed/state/assign" in (folder / "placed_graph.pb").read_bytes()


def test_bl_apply_trains_with_lent_state(lent):
    step, _, cluster, offloaded = lent
    x = np.ones((32, 64), np.float32)
    losses_by_graph = []
    for graph, placement in (
        (None, bl.Placement(device=[0] * lent[1].n)),
        (offloaded, bl.place(offloaded, cluster, "single")),
    ):
        with bl.apply(step, placement, graph=graph, virtual=2, kind="cpu") as trained:
            losses_by_graph.append([float(trained(x)) for _ in range(3)])
    assert losses_by_graph[0] == losses_by_graph[1] and losses_by_graph[0][0] > losses_by_graph[0][-1]


def test_state_of_no_variable_is_refused(case):
    step, graph, _ = case
    stored = graph.replace(name="mine", names=(*graph.names[:-1], "w/state"), op_types=(*graph.op_types[:-1], "State"))
    with pytest.raises(bl.InvalidInput, match=r"op 'w/state' of graph 'mine' keeps the state of no op of that graph"):
        recomputed_step(step, stored)
    tanh = next(n for n, kind in zip(graph.names, graph.op_types, strict=True) if kind == "Tanh")
    names = (*graph.names[:-1], f"{tanh}/state")
    with pytest.raises(bl.InvalidInput, match="is no variable of the step; it has no state to lend"):
        recomputed_step(step, stored.replace(names=names))
