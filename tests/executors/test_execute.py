"""`bl.execute` on logical CPU devices: results, measured timeline, refusals."""

import itertools
import os
from types import SimpleNamespace

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors.structure import graph_of
from baechi_lab.executors.tensorflow import execute_request, session
from baechi_lab.executors.tensorflow.devices import device_options
from baechi_lab.executors.tensorflow.execute_request import replaced_ops
from baechi_lab.executors.tensorflow.trace import Trace
from baechi_lab.workers.messages import Message
from baechi_lab.workers.transport import step_arrays, step_header


def test_losses_equal_the_unplaced_step(run, unplaced_losses):
    assert run.status == "ok"
    assert len(run.step_seconds) == 4 and np.all(run.step_seconds > 0)
    assert len(run.outputs) == 2 + 2 + 4  # warm-up, traced, measured
    np.testing.assert_allclose([float(o[0]) for o in run.outputs], unplaced_losses[:8], rtol=1e-6)


def test_bug_the_limit_of_a_cpu_was_tensorflow_s_placeholder(run):
    """TensorFlow says 256 MiB of every CPU, and enforces nothing: a device has the memory of the machine."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert set(run.timeline.memory_bytes.tolist()) == {machine_bytes}


def test_variables_come_back_trained(run, step):
    import tensorflow as tf

    variables = [tf.Variable(v) for v in step.initial_values]
    x, y = step.example_inputs
    for _ in range(8):
        with tf.GradientTape() as tape:
            hidden = x
            for variable in variables:
                hidden = tf.nn.tanh(hidden @ variable)
            loss = tf.reduce_mean((hidden - y) ** 2)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.5 * gradient)
    for spec, variable in zip(step.variables, variables, strict=True):
        np.testing.assert_allclose(run.info["variables"][spec.name], variable.numpy(), rtol=1e-4, atol=1e-6)


def test_trained_variables_come_back_with_one_call(run, step):
    import tensorflow as tf

    variables = [tf.Variable(v, name=spec.name) for spec, v in zip(step.variables, step.initial_values, strict=True)]
    assert run.restore(variables) == len(variables) == 3
    for spec, variable in zip(step.variables, variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), run.info["variables"][spec.name])
    with pytest.raises(bl.InvalidInput, match=r"no variables; give bl\.execute return_variables=True"):
        bl.Run(None, np.zeros(0), ()).restore(variables)


def test_constants_and_shapes_are_not_told_of_as_moved():
    """All three ops ran on device 1 instead of 0; one of them does what the placement is about."""
    from types import SimpleNamespace

    import tensorflow as tf

    from baechi_lab.executors.tensorflow.execute_request import moved_ops

    planned, executed = tf.compat.v1.GraphDef(), tf.compat.v1.GraphDef()
    for name, kind in (("c", "Const"), ("s", "Shape"), ("m", "MatMul")):
        planned.node.add(name=name, op=kind, device="/device:CPU:0")
        executed.node.add(name=name, op=kind, device="/device:CPU:1")
    metadata = SimpleNamespace(partition_graphs=[executed])
    assert moved_ops(metadata, planned.node) == ["m"]


def test_what_the_runtime_replaced_is_told():
    """One op is another in a divided graph, one is itself; a receive is no op of the step."""
    pytest.importorskip("tensorflow")
    from tensorflow.core.framework.graph_pb2 import GraphDef

    placed_graph, partition = GraphDef(), GraphDef()
    for name, op in (("a", "MatMul"), ("b", "Relu")):
        placed_graph.node.add(name=name, op=op)
    for name, op in (("a", "_MklMatMul"), ("b", "Relu"), ("b_S1", "_Recv")):
        partition.node.add(name=name, op=op)
    metadata = SimpleNamespace(partition_graphs=[partition])
    assert replaced_ops(metadata, placed_graph.node) == {"a": "_MklMatMul"}


@pytest.mark.parametrize(("warmup", "expected"), [(2, ["divided", "plain", "trace", "plain"]), (0, ["both", "plain"])])
def test_a_trace_need_not_tell_how_the_graph_is_divided(step, ops, placement, monkeypatch, warmup, expected):
    """A worker that tells begins later than in other steps, and holds less: only the first step does, if it may warm up."""
    asked_options, run = [], session.PlacedSession._run

    def noted(self, inputs, options=None, **keywords):
        kinds = {(False, False): "plain", (False, True): "divided", (True, False): "trace", (True, True): "both"}
        asked_options.append(
            kinds[options is not None and options.trace_level > 0, getattr(options, "output_partition_graphs", False)]
        )
        return run(self, inputs, **({} if options is None else {"options": options}), **keywords)

    monkeypatch.setattr(session.PlacedSession, "_run", noted)
    messages = served(step, ops, placement, warmup=warmup, traced=1, steps=1)
    assert asked_options == expected
    assert [kind for kind, _, _ in messages].count("step") == len(expected)
    trace = Trace(*next(arrays for kind, _, arrays in messages if kind == "timeline"))
    assert len(trace.op) == ops.n and len(trace.transfers) > 0  # which the divided graphs tell of


def served(step, ops, placement, **counts):
    """What a worker sends for one run: kinds, headers and arrays."""
    header = {
        **step_header(step),
        "op_names": list(ops.names),
        "devices": None,
        "options": device_options(2, None, "cpu", None),
        "return_variables": False,
        **counts,
    }
    messages = []
    arrays = (placement.device, *step_arrays(step), *step.example_inputs)
    execute_request.serve(
        Message("execute", header, arrays), lambda kind, header=None, arrays=(): messages.append((kind, header, arrays))
    )
    return messages


def test_replaced_ops_are_ops_of_the_step(run, ops):
    replaced = run.info["replaced"]
    types = dict(zip(ops.names, ops.op_types, strict=True))
    assert set(replaced) <= set(types) and all(replaced[name] != types[name] for name in replaced)


def test_nothing_moves_when_resources_stay_together(run):
    assert run.moved_ops == () and run.message == ""


def test_timeline_has_every_op_on_its_device(run, ops, placement):
    timeline = run.timeline
    assert timeline.origin == "measured"
    device_of = dict(zip(timeline.op.tolist(), timeline.device.tolist(), strict=True))
    missing = {ops.names[i] for i in range(ops.n) if i not in device_of}
    assert missing == set()
    assert all(placement.device[op] == device for op, device in device_of.items())
    assert np.all(timeline.end_us >= timeline.start_us)
    assert timeline.start_us.min() == 0.0
    assert timeline.makespan_us >= timeline.end_us.max()


def test_timeline_ops_start_after_their_producers(run, ops):
    """A tensor is read after its producer has ended (1 us for the clock's ticks)."""
    start = dict(zip(run.timeline.op.tolist(), run.timeline.start_us.tolist(), strict=True))
    end = dict(zip(run.timeline.op.tolist(), run.timeline.end_us.tolist(), strict=True))
    for source, target in zip(ops.edge_source.tolist(), ops.consumers.tolist(), strict=True):
        # A consumer of a small constant may read a copy on its own device.
        if ops.op_types[source] != "Const":
            assert start[target] >= end[source] - 1.0, (ops.names[source], ops.names[target])


def test_transfers_are_those_that_the_placement_cuts(run, ops, placement):
    """One transfer per tensor and other device that reads it, with the tensor's own bytes."""
    device = placement.device
    cut = {
        (t, int(device[p]), int(device[c]))
        for t, p, c in zip(ops.edge_tensor.tolist(), ops.edge_source.tolist(), ops.consumers.tolist(), strict=True)
        if device[p] != device[c]
    }
    transfers = run.timeline.transfers
    measured = set(zip(transfers.tensor.tolist(), transfers.source.tolist(), transfers.target.tolist(), strict=True))
    # TensorFlow may copy constants of up to 16 bytes instead of sending them, and merges control dependencies.
    free = {
        t
        for t, p in enumerate(ops.tensor_producer.tolist())
        if ops.tensor_names[t] == "^" or (ops.op_types[p] == "Const" and ops.tensor_bytes[t] <= 16)
    }
    assert len(cut) > 5 and {m for m in measured if m[0] not in free} == {c for c in cut if c[0] not in free}
    assert np.all(transfers.end_us >= transfers.start_us)


def test_a_variable_that_is_assigned_a_value_is_held_once():
    """The value's memory becomes the variable's, whose old one goes: after the step there is as much as before."""
    import tensorflow as tf

    variables = [tf.Variable(tf.ones((64, 64))) for _ in range(4)]

    def step(x):
        value = tf.reduce_sum(x)
        for variable in variables:
            variable.assign(variable * 0.5 + value)
            value += tf.reduce_sum(variable)
        return value

    traced = bl.trace(step, np.ones(4, np.float32))
    graph = graph_of(traced)
    run = bl.execute(traced, bl.Placement(device=[0] * graph.n), 1, warmup=1, graph=graph, progress=False)
    log = run.timeline.memory
    persistent, outputs, temporary, copies = log.levels(0)[1][-1].tolist()
    assert (persistent, temporary, copies) == (4 * 64 * 64 * 4, 0, 0)
    assert outputs <= 16  # the value that the step returns


def test_memory_holds_the_variables_throughout(run, ops, placement, step):
    weights_on = np.zeros(2, dtype=np.int64)
    for spec, value in zip(step.variables, step.initial_values, strict=True):
        weights_on[placement.device[ops.index[spec.name]]] += value.nbytes
    for device in range(2):
        _, levels = run.timeline.memory.levels(device)
        assert levels[:, 0].max() == weights_on[device]
        assert run.timeline.peak_bytes[device] >= weights_on[device]
        assert levels.sum(axis=1).min() >= 0


def test_ops_that_touch_a_variable_follow_it_and_are_listed(step, ops, worker):
    """Alternate all ops: those that TensorFlow must keep with their variable move, and the run says so."""
    device = np.arange(ops.n) % 2
    run = bl.execute(step, bl.Placement(device=device), steps=1, warmup=0, kind="cpu", worker=worker)
    expected = {
        ops.names[c]
        for s, c in zip(ops.edge_source.tolist(), ops.consumers.tolist(), strict=True)
        if ops.op_types[s] == "VarHandleOp" and device[s] != device[c]
    }
    assert expected and set(run.moved_ops) == expected
    assert run.message.startswith(f"{len(expected)} ops ran elsewhere than placed: ")


def test_batches_are_used_in_turn(step, placement, example_batch, worker):
    """With the second batch's targets equal to the first's outputs the losses alternate between two series."""
    x, y = example_batch
    run = bl.execute(step, placement, steps=3, warmup=0, traced=0, inputs=[(x, y), (x, -y)], kind="cpu", worker=worker)
    losses = [float(o[0]) for o in run.outputs]
    assert run.timeline is None
    hidden = x
    for value in step.initial_values:
        hidden = np.tanh(hidden @ value)
    assert losses[0] == pytest.approx(float(np.mean((hidden - y) ** 2)), rel=1e-5)
    assert losses[1] != pytest.approx(losses[0], rel=1e-3)


def test_on_step_sees_every_step_as_it_happens(step, placement, worker):
    results = []
    run = bl.execute(step, placement, steps=2, warmup=1, kind="cpu", on_step=results.append, worker=worker)
    assert [s.phase for s in results] == ["warmup", "traced", "traced", "traced", "measured", "measured"]
    assert [s.outputs for s in results] == list(run.outputs)


def test_one_worker_runs_step_after_step(step, placement, worker, unplaced_losses):
    """Each run starts from the step's own values: nothing is left in the worker by the run before."""
    for _ in range(2):
        run = bl.execute(step, placement, steps=1, warmup=0, traced=0, kind="cpu", worker=worker)
        assert float(run.outputs[0][0]) == pytest.approx(unplaced_losses[0], rel=1e-6)


def test_coarse_placement_is_spread_over_its_members(step, ops, worker):
    """Two groups, first and second half: the placement of the groups runs as one of the ops."""
    group = (np.arange(ops.n) >= ops.n // 2).astype(np.int32)
    coarse = bl.Placement(device=[0, 1], group_of=group, source_key=ops.key, graph_key="coarse")
    run = bl.execute(step, coarse, steps=1, warmup=0, kind="cpu", worker=worker)
    moved_ops = {ops.index[name] for name in run.moved_ops}
    for op, device in zip(run.timeline.op.tolist(), run.timeline.device.tolist(), strict=True):
        assert device == group[op] or op in moved_ops


# -- refusals: one clear sentence before anything runs --------------------------------------------------


def test_placement_for_another_graph(step):
    with pytest.raises(bl.InvalidInput, match="placement was made for another graph, of 3 ops"):
        bl.execute(step, bl.Placement(device=[0, 0, 0]))


def test_device_that_the_runtime_lacks(step, ops):
    cluster = bl.Cluster.uniform(1, kind="gpu")
    with pytest.raises(bl.ExecutionError, match="device 'gpu:0' is not attached: this machine has no GPU"):
        bl.execute(step, bl.Placement(device=[0] * ops.n), cluster=cluster)


def test_device_of_a_foreign_name(step, ops, worker):
    cluster = bl.Cluster((bl.Device("tpu:0", "tpu", 1 << 30),))
    with pytest.raises(bl.ExecutionError, match="'tpu:0' is no TensorFlow device; names are cpu:N"):
        bl.execute(step, bl.Placement(device=[0] * ops.n), cluster=cluster, worker=worker)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((np.zeros((8, 16)),), "takes 2 inputs; 1 were given"),
        ((np.zeros((8, 15)), np.zeros((8, 16))), r"input 'x:0' has shape \(8, 15\); the step takes \(8, 16\)"),
        ((np.zeros((8, 16), complex), np.zeros((8, 16))), "input 'x:0' has type complex128; the step takes float32"),
        ([], "inputs is an empty list"),
        (itertools.repeat((0, 0)), "inputs is a repeat; give one batch or a list of batches"),  # it took forever
    ],
)
def test_inputs_that_do_not_match(step, placement, inputs, message):
    with pytest.raises(bl.InvalidInput, match=message):
        bl.execute(step, placement, inputs=inputs)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"steps": -1}, "steps is -1"),
        ({"warmup": 1.5}, "warmup is 1.5"),
        ({"timeout": 0}, "timeout is 0"),
        ({"virtual": 0}, "virtual is 0"),
        ({"workers": 5}, "workers is 5; it must be a list of addresses"),
        ({"workers": "10.0.0.2:7077"}, "it must be a list of addresses"),
        ({"kind": "tpu"}, "kind is 'tpu'"),
        ({"memory_limit": "-3"}, "memory_limit"),
        ({"backend": "jax"}, "unknown backend 'jax'"),
        ({"backend": "tensorflow-cluster"}, "needs the addresses of its workers"),
        ({"backend": "tensorflow", "workers": ["127.0.0.1:1"]}, "'tensorflow' takes none"),
    ],
)
def test_bad_options_are_rejected(step, placement, option, message):
    with pytest.raises(bl.InvalidInput, match=message):
        bl.execute(step, placement, **option)


def test_step_that_is_no_graph(step, placement, ops):
    from dataclasses import replace

    broken = replace(step, graph_def=b"\xff\xff not a graph")
    with pytest.raises(bl.ExecutionError, match="not a serialized TensorFlow GraphDef"):
        bl.execute(broken, placement, graph=ops)


def test_graph_of_a_step_is_the_profile_without_costs(step, ops):
    profile = bl.profile(step, mode="estimated")
    assert graph_of(step).key == profile.key == ops.key


@pytest.mark.parametrize("front", [bl.execute, bl.apply, lambda s, p: bl.export(s, p, "never")])
def test_what_is_no_step_is_refused(front, placement):
    with pytest.raises(bl.InvalidInput, match=r"step is a dict; give what bl\.trace returns"):
        front({}, placement)


def test_a_device_runs_one_op_at_a_time(worker):
    """Two independent products on one of two logical devices follow each other, although the other device is idle."""
    import tensorflow as tf

    a = np.ones((512, 512), np.float32)
    step = bl.trace(lambda x, y: (tf.linalg.matmul(x, x), tf.linalg.matmul(y, y)), a, a)
    graph = bl.profile(step, mode="estimated", progress=False)
    cluster = bl.Cluster.from_tensorflow(virtual=2, kind="cpu")
    on_two, on_one = (bl.Placement(device=np.arange(graph.n) % devices) for devices in (2, 1))
    bl.execute(
        step, on_two, 1, graph=graph, cluster=cluster, progress=False, worker=worker
    )  # its two threads are its own
    run = bl.execute(step, on_one, 2, graph=graph, cluster=cluster, progress=False, worker=worker)
    order = np.argsort(run.timeline.start_us)
    start, end = run.timeline.start_us[order], run.timeline.end_us[order]
    assert run.status == "ok" and (start[1:] >= end[:-1] - 1).all()  # the trace counts whole microseconds


def test_bug_measured_peaks_did_not_say_that_received_tensors_are_missing(worker):
    """Logical CPU devices share memory: the second one measured 0 bytes where 2 times 4 KB are simulated, without a word."""
    tf = pytest.importorskip("tensorflow")
    step = bl.trace(lambda x: tf.reduce_sum(tf.nn.relu(tf.tanh(x @ x))), np.ones((32, 32), np.float32))
    graph = bl.profile(step, hardware="cpu-core")
    placement = bl.Placement(device=[int(kind == "Relu") for kind in graph.op_types])
    run = bl.execute(step, placement, steps=1, warmup=1, kind="cpu", virtual=2, worker=worker)
    simulated = bl.simulate(graph, bl.Cluster.uniform(2, kind="cpu"), placement)
    assert run.timeline.info["peak"] == "requested by tensors, without received ones"
    assert run.timeline.peak_bytes[1] <= 32 * 32 * 4 and simulated.peak_bytes[1] == 2 * 32 * 32 * 4


def test_bug_measured_peaks_lacked_the_inputs(worker):
    """TensorFlow records no input: 64 KB here, and a view of them that the product reads, beside an output of 4 KB."""
    tf = pytest.importorskip("tensorflow")
    rows = np.ones((8, 16, 128), np.float32)
    step = bl.trace(lambda x: tf.reduce_sum(tf.reshape(x, (128, 128)) @ tf.ones((128, 8))), rows)
    graph = bl.profile(step, hardware="cpu-core")
    alone = bl.Placement(device=[0] * graph.n)
    run = bl.execute(step, alone, steps=1, warmup=1, kind="cpu", worker=worker)
    simulated = bl.simulate(graph, bl.Cluster.uniform(1, kind="cpu"), alone)
    assert run.timeline.peak_bytes[0] >= 8 * 16 * 128 * 4 + 128 * 8 * 4
    assert run.timeline.peak_bytes[0] == pytest.approx(simulated.peak_bytes[0], rel=0.07)  # constants are not recorded


def test_bug_measured_peaks_lacked_what_loops_keep(worker):
    """TensorFlow records nothing of the ops inside loops: here 20 outputs of tanh and 20 products of 4 KB each."""
    tf = pytest.importorskip("tensorflow")
    weight = tf.Variable(np.eye(32, dtype=np.float32))

    def keep_states(x):
        with tf.GradientTape() as tape:
            for _ in tf.range(20):
                x = tf.tanh(x @ weight) * 0.5
            loss = tf.reduce_sum(x)
        return tape.gradient(loss, weight)

    step = bl.trace(keep_states, np.ones((32, 32), np.float32))
    graph = bl.profile(step, hardware="cpu-core")
    alone = bl.Placement(device=[0] * graph.n)
    run = bl.execute(step, alone, steps=1, warmup=1, kind="cpu", worker=worker)
    simulated = bl.simulate(graph, bl.Cluster.uniform(1, kind="cpu"), alone)
    assert run.timeline.info["peak"] == "requested by tensors, inside loops as counted from their bodies"
    assert min(run.timeline.peak_bytes[0], simulated.peak_bytes[0]) > 40 * 32 * 32 * 4
