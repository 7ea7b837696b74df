"""A recomputed graph runs for real: the same losses, the ops of the plan twice, random and stateful ops once."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors.tensorflow.allocations import COPIES
from baechi_lab.executors.tensorflow.recomputing import recomputed_step
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
                    kept = tf.cast(tf.random.uniform(tf.shape(hidden), seed=5 + i) > 0.2, tf.float32)
                    hidden = tf.tanh(hidden @ weight) * kept
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
    step, graph, again = case
    found = []
    for one in (graph, again):
        device = np.arange(one.n) * 0
        if devices == 2:  # layers alternate; copies are where their originals are, as their group says
            names = [n.removesuffix("/again") for n in one.names]
            device = np.array([1 if "layer3" in n or "layer4" in n else 0 for n in names])
        found.append(bl.execute(step, bl.Placement(device=device), 2, warmup=1, traced=1, graph=one, worker=worker,
                                kind="cpu", virtual=2, return_variables=True, progress=False))  # fmt: skip
    return found


@pytest.mark.parametrize("devices", [1, 2])
def test_losses_and_weights_are_those_without(case, devices, worker):
    plain, again = runs_on(case, devices, worker)
    assert again.status == "ok", again.message
    assert [float(o[0]) for o in again.outputs] == [float(o[0]) for o in plain.outputs]
    assert len({float(o[0]) for o in plain.outputs}) > 1  # the weights move
    for name, value in plain.info["variables"].items():
        np.testing.assert_array_equal(again.info["variables"][name], value)


def test_copies_ran_and_the_peak_is_lower(case, worker):
    """What the plan repeats ran twice, no random op did; the measured saving is the simulated one within 10 % of the peak."""
    plain, again = runs_on(case, 1, worker)
    names = np.array(again.timeline.op_names)[again.timeline.op].tolist()
    twice = [n for n in names if n.endswith("/again")]
    assert sorted(twice) == sorted(set(case[2].names) - set(case[1].names)) and len(twice) > LAYERS
    assert not any("random" in n.lower() for n in twice)
    alone, peaks = bl.Cluster.uniform(1, kind="cpu"), []
    for graph in case[1:]:
        peaks.append(int(bl.simulate(graph, alone, bl.Placement(device=[0] * graph.n)).peak_bytes[0]))
    before, after = (int(r.timeline.peak_bytes[0]) for r in (plain, again))
    assert after < before
    assert abs((before - after) - (peaks[0] - peaks[1])) <= 0.1 * before


def test_nothing_is_rewritten_away(case):
    from baechi_lab.executors.tensorflow.recomputing import recomputed_step
    from baechi_lab.executors.tensorflow.session import parse_graph

    step, graph, again = case
    nodes = {n.name: n for n in parse_graph(recomputed_step(step, again).graph_def).node}
    copies = [n for n in again.names if n not in graph.names]
    assert copies and all(nodes[c].op == nodes[c.removesuffix("/again")].op for c in copies)
    assert any(ref.startswith("^") for c in copies for ref in nodes[c].input)  # they wait for the backward pass
    assert recomputed_step(step, graph) is step


def test_a_plan_in_its_own_order_runs(case, worker):
    """Control dependencies between all ops, those that read nothing included; variables are set without them."""
    step, graph, _ = case
    again = bl.recompute(graph, "sqrt", ordered=True)
    plain, ordered = runs_on((step, graph, again), 1, worker)
    assert [float(o[0]) for o in ordered.outputs] == [float(o[0]) for o in plain.outputs]
    alone, one = bl.Placement(device=[0] * again.n), bl.Cluster.uniform(1, kind="cpu")
    simulated = int(bl.simulate(again, one, alone).peak_bytes[0])
    assert abs(int(ordered.timeline.peak_bytes[0]) - simulated) <= 0.1 * simulated


def test_an_export_has_the_copies(case, tmp_path):
    step, _, again = case
    folder = bl.export(step, bl.Placement(device=[0] * again.n), tmp_path / "placed", graph=again)
    assert b"/again" in (folder / "placed_graph.pb").read_bytes()


def test_copies_of_other_steps_are_refused(case, step):
    with pytest.raises(bl.InvalidInput, match="none of the step's"):
        bl.execute(step, bl.Placement(device=[0] * case[2].n), 1, graph=case[2])


def test_an_order_without_copies_is_kept_as_well(case):
    """Nothing runs again, but ops wait for those before them in the plan, as the simulator has it."""
    step, graph, _ = case
    runs = OpSequence(TrainingGraph(graph), TrainingGraph(graph).ordered)
    ordered = graph_with_copies(runs, runs.node)
    assert ordered.names == graph.names
    waits = {node.name: sum(name[0] == "^" for name in node.input) for node in parse_graph(step.graph_def).node}
    more = [
        sum(name[0] == "^" for name in node.input) > waits.get(node.name, 0)
        for node in parse_graph(recomputed_step(step, ordered).graph_def).node
    ]
    assert any(more) and recomputed_step(step, graph) is step


@pytest.mark.parametrize("first", ["", "sqrt"])
def test_offloaded_outputs_are_sent_to_a_third_device_and_back(case, first, worker):
    """Dropout included; with copies and without. The host runs what hands the outputs on, and nothing else."""
    step, graph, again = case
    free = bl.Link(0.0, 0.0)
    cluster = bl.Cluster.uniform(1, kind="cpu", link=free).with_host("64GB", link=free)
    moved = bl.offload(again if first else graph, cluster)
    hosted = [name for name in moved.names if name.endswith("/offloaded")]
    assert len(hosted) > LAYERS
    placed = bl.place(moved, cluster, "m-etf")
    more = {"warmup": 1, "kind": "cpu", "worker": worker, "progress": False}
    plain = bl.execute(step, bl.Placement(device=[0] * graph.n), 3, graph=graph, virtual=2, **more)
    run = bl.execute(step, placed, 3, traced=1, graph=moved, virtual=2, **more)
    assert run.status == "ok", run.message
    assert [float(o[0]) for o in run.outputs][:4] == [float(o[0]) for o in plain.outputs][:4]
    timeline = run.timeline
    there = {timeline.op_names[k] for k in timeline.op[timeline.device == 1].tolist()}
    assert set(hosted) >= there and there
    ways = set(zip(timeline.transfers.source.tolist(), timeline.transfers.target.tolist(), strict=True))
    assert ways == {(0, 1), (1, 0)}


def test_a_second_output_goes_to_the_host(worker):
    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            low, high = tf.split(tf.tanh(x), 2, axis=1)
            loss = tf.reduce_sum(tf.tanh(low * high) ** 2)
        return tape.gradient(loss, x)

    value = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    step = bl.trace(both, value, name="halves")
    graph = bl.profile(step, mode="estimated", hardware="cpu-core")
    cluster = bl.Cluster.uniform(1, kind="cpu").with_host("1GB")
    split = next(name for name, kind in zip(graph.names, graph.op_types, strict=True) if kind == "Split")
    late = graph.forward_of.copy()
    late[[k for k, name in enumerate(graph.names) if "gradient" in name.lower()]] = graph.index[split]
    moved = bl.offload(graph.replace(forward_of=late), cluster, [split])
    assert {name for name in moved.names if name.endswith("/offloaded")} >= {f"{split}.1/offloaded"}
    run = bl.execute(step, bl.place(moved, cluster, "single"), 1, graph=moved, kind="cpu", virtual=2, worker=worker,
                     progress=False)  # fmt: skip
    assert run.status == "ok", run.message
    np.testing.assert_array_equal(run.outputs[0][0], both(tf.constant(value)).numpy())


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
    step, graph, cluster, moved = lent
    assert {name for name in moved.names if name.endswith("/state")} == {"slow/state", "speed/state"}
    more = {"steps": 2, "warmup": 1, "traced": 1, "kind": "cpu", "virtual": 2, "worker": worker, "progress": False}
    plain = bl.execute(step, bl.Placement(device=[0] * graph.n), graph=graph, return_variables=True, **more)
    run = bl.execute(step, bl.place(moved, cluster, "m-etf"), graph=moved, return_variables=True, **more)
    assert run.status == "ok" and not run.moved_ops, run.message
    assert [float(o[0]) for o in run.outputs] == [float(o[0]) for o in plain.outputs]
    assert len({float(o[0]) for o in run.outputs}) == 4
    for name, value in plain.info["variables"].items():
        assert np.any(value), name
        np.testing.assert_array_equal(run.info["variables"][name], value)
    timeline = run.timeline
    for name in ("slow", "speed"):
        for part in ("state", "stored"):
            assert timeline.device[timeline.op == moved.index[f"{name}/{part}"]].tolist() == [1]
    for way in ((0, 1), (1, 0)):
        sent = (timeline.transfers.source == way[0]) & (timeline.transfers.target == way[1])
        assert int(timeline.tensor_bytes[timeline.transfers.tensor[sent]].sum()) >= 2 * 64 * 64 * 4


def test_state_between_processes_is_counted_where_it_is(lent):
    """On two workers: persistent where it is between steps, a received copy from its arrival until it was stored again."""
    step, graph, _, moved = lent
    with bl.LocalCluster(2) as local:
        more = {"steps": 1, "warmup": 1, "traced": 3, "cluster": local, "progress": False}
        plain = bl.execute(step, bl.Placement(device=[0] * graph.n), graph=graph, **more)
        run = bl.execute(step, bl.Placement(device=[int(n >= graph.n) for n in range(moved.n)]), graph=moved, **more)
    assert run.status == "ok", run.message
    kept = 2 * 64 * 64 * 4
    first, second = (run.timeline.peak_parts(d)["persistent"] for d in (0, 1))
    assert (first, second) == (plain.timeline.peak_parts(0)["persistent"] - kept, kept)
    sent, lent = run.timeline.transfers, run.timeline.memory
    assert run.timeline.tensor_bytes[sent.tensor[sent.source == 0]].tolist() == [kept // 2] * 2
    assert {moved.names[k] for k in run.timeline.tensor_producer[sent.tensor[sent.source == 0]]} <= set(graph.names)
    there = (lent.device == 0) & (lent.category == COPIES)
    assert sorted(lent.delta[there].tolist()) == [-kept // 2, -kept // 2, kept // 2, kept // 2]
    gone = lent.time_us[there & (lent.delta < 0)]
    stored = [run.timeline.start_us[run.timeline.op == moved.index[f"{name}/stored"]][0] for name in ("slow", "speed")]
    assert sorted(gone.tolist()) == sorted(stored)  # until then the device has what it was lent


def test_an_export_lends_state(lent, tmp_path):
    step, _, cluster, moved = lent
    folder = bl.export(step, bl.place(moved, cluster, "m-etf"), tmp_path / "placed", graph=moved)
    assert b"speed/state/put" in (folder / "placed_graph.pb").read_bytes()


def test_bl_apply_trains_with_lent_state(lent):
    step, _, cluster, moved = lent
    x = np.ones((32, 64), np.float32)
    found = []
    for graph, placed in ((None, bl.Placement(device=[0] * lent[1].n)), (moved, bl.place(moved, cluster, "single"))):
        with bl.apply(step, placed, graph=graph, virtual=2, kind="cpu") as trained:
            found.append([float(trained(x)) for _ in range(3)])
    assert found[0] == found[1] and found[0][0] > found[0][-1]


def test_state_of_no_variable_is_refused(case):
    step, graph, _ = case
    stored = graph.replace(name="mine", names=(*graph.names[:-1], "w/state"), op_types=(*graph.op_types[:-1], "State"))
    with pytest.raises(bl.InvalidInput, match=r"op 'w/state' of graph 'mine' keeps the state of no op of that graph"):
        recomputed_step(step, stored)
    other = next(n for n, kind in zip(graph.names, graph.op_types, strict=True) if kind == "Tanh")
    names = (*graph.names[:-1], f"{other}/state")
    with pytest.raises(bl.InvalidInput, match="is no variable of the step; it has no state to lend"):
        recomputed_step(step, stored.replace(names=names))
