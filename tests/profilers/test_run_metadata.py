"""RunMetadata and XPlane that TensorFlow writes here replay to their own steps."""

from __future__ import annotations

import pytest

import baechi_lab as bl
from baechi_lab.graph.formats.traces import run_metadata
from baechi_lab.graph.formats.traces.protobuf import messages

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def metadata():
    from baechi_lab.profilers.tensorflow.measurement import collect_traces, step_session

    with step_session(bl.models.build("mlp", batch_size=4), "/device:CPU:0") as run:
        return collect_traces(run, 1, 1)[0]


def test_a_traced_step_replays_to_its_own_time(metadata, tmp_path):
    from google.protobuf import text_format

    (tmp_path / "step.pb").write_bytes(metadata.SerializeToString())
    (tmp_path / "step.pbtxt").write_text(text_format.MessageToString(metadata))
    trace = bl.load_trace(tmp_path / "step.pb")
    simulated_us = bl.simulate(trace.graph, trace.cluster, trace.placement).makespan_us
    # Between the work of the busiest device and the step as it was: other programs leave gaps, in which nothing runs.
    assert trace.timeline.busy_us.max() * 0.999 <= simulated_us <= trace.timeline.makespan_us * 1.05
    assert bl.load_trace(tmp_path / "step.pbtxt").graph == trace.graph
    graph = trace.graph
    labels = {
        graph.names[a]
        for a, b in zip(graph.edge_source, graph.consumers, strict=True)
        if graph.names[b].endswith("/Relu")
    }
    assert any(name.endswith("BiasAdd") for name in labels)
    assert not any("inferred" in note for note in trace.notes)
    step = bl.models.build("mlp", batch_size=4)
    assert graph.persistent_bytes.sum() >= step.parameter_bytes
    update = next(i for i, name in enumerate(graph.names) if name.endswith("kernel/ResourceApplyGradientDescent"))
    # Which thread ran it is chance: on another one than its variable's reader it is not tied to that, which a note says.
    assert graph.colocation[update] >= 0 or any("ran on another lane" in note for note in trace.notes)


def test_a_trace_without_gaps_replays_to_its_own_time(metadata, tmp_path):
    """The recorded ops in their recorded order, 10 us each, one after another, as no load of the machine can change."""
    changed = type(metadata)()
    changed.CopyFrom(metadata)
    stats = [node for device in changed.step_stats.dev_stats for node in device.node_stats]
    for k, node in enumerate(sorted(stats, key=lambda node: (node.all_start_nanos, node.all_start_micros))):
        node.all_start_micros, node.all_start_nanos = 1000 + 10 * k, 1000 * (1000 + 10 * k)
        node.op_start_rel_micros = node.op_start_rel_nanos = 0
        node.op_end_rel_micros = node.all_end_rel_micros = 10
        node.op_end_rel_nanos = node.all_end_rel_nanos = 10_000
    (tmp_path / "step.pb").write_bytes(changed.SerializeToString())
    trace = bl.load_trace(tmp_path / "step.pb")
    simulated_us = bl.simulate(trace.graph, trace.cluster, trace.placement).makespan_us
    assert trace.timeline.makespan_us == pytest.approx(10 * trace.graph.n)
    assert simulated_us == pytest.approx(trace.timeline.makespan_us)


def test_where_labels_say_nothing_the_cost_graph_does(metadata, tmp_path):
    changed = type(metadata)()
    changed.CopyFrom(metadata)
    names = []
    for device in changed.step_stats.dev_stats:
        for stats in device.node_stats:
            stats.timeline_label = ""
            names.append(stats.node_name)
    for k, name in enumerate(names[:3]):
        node = changed.cost_graph.node.add(name=name, id=k)
        if k:
            node.input_info.add(preceding_node=k - 1, preceding_port=0)
    (tmp_path / "step.pb").write_bytes(changed.SerializeToString())
    graph = bl.load_trace(tmp_path / "step.pb").graph
    assert graph.edge_count == 2
    del changed.cost_graph.node[:]
    (tmp_path / "step.pb").write_bytes(changed.SerializeToString())
    assert "inferred from the order" in bl.load_trace(tmp_path / "step.pb").notes[0]


def test_outputs_without_allocations_have_the_bytes_of_their_types(tmp_path):
    """Every type that TensorFlow has, and references to variables: 12 elements each, as large as TensorFlow says."""
    import tensorflow as tf
    from google.protobuf import text_format
    from tensorflow.core.framework import types_pb2
    from tensorflow.core.protobuf import config_pb2

    numbers = {name: number for name, number in types_pb2.DataType.items() if number % 100 not in (0, 7, 20, 21)}
    trace = config_pb2.RunMetadata()
    device = trace.step_stats.dev_stats.add(device="/job:localhost/replica:0/task:0/device:CPU:0")
    for k, number in enumerate(numbers.values()):
        for stats, label in ((f"make{k}", f"make{k} = Make()"), (f"read{k}", f"read{k} = Read(make{k})")):
            node = device.node_stats.add(node_name=stats, timeline_label=label)
            node.all_start_micros, node.op_end_rel_micros = 1 + len(device.node_stats), 1
            tensor = node.output.add(slot=0).tensor_description
            tensor.dtype = number
            for size in (3, 4):
                tensor.shape.dim.add(size=size)
    (tmp_path / "step.pb").write_bytes(trace.SerializeToString())
    (tmp_path / "step.pbtxt").write_text(text_format.MessageToString(trace))
    expected = {f"make{k}": 12 * tf.as_dtype(number % 100).size for k, number in enumerate(numbers.values())}
    for file in ("step.pb", "step.pbtxt"):
        graph = bl.load_trace(tmp_path / file).graph
        sizes = {
            graph.names[a]: int(graph.tensor_bytes[t])
            for a, t in zip(graph.edge_source, graph.edge_tensor, strict=True)
        }
        assert {name: sizes[name] for name in expected} == expected


def test_xplane_of_the_profiler(tmp_path):
    import tensorflow as tf

    x, w = tf.ones((64, 64)), tf.Variable(tf.ones((64, 64)))
    call = tf.function(lambda x: tf.nn.relu(x @ w) @ w)
    call(x)
    tf.profiler.experimental.start(str(tmp_path))
    call(x)
    tf.profiler.experimental.stop()
    trace = bl.load_trace(next(tmp_path.rglob("*.xplane.pb")))
    assert bl.simulate(trace.graph, trace.cluster, trace.placement).makespan_us == pytest.approx(
        trace.timeline.makespan_us, rel=0.05
    )
    assert "Relu" in trace.graph.op_types


def step_stats(path, *entries):
    """Writes a RunMetadata of (device, names of its ops) and returns the path."""
    rows = [
        {
            "device": device,
            "node_stats": [{"node_name": n, "all_start_micros": 9, "op_end_rel_micros": 2} for n in names],
        }
        for device, names in entries
    ]
    metadata = messages(run_metadata.SCHEMA)["RunMetadata"](step_stats={"dev_stats": rows})
    path.write_bytes(metadata.SerializeToString())
    return path


LOCAL, WORKER = ("/job:localhost/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:0/device:CPU:0")


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([(LOCAL, "ab"), (LOCAL, "ab")], "op a is in two entries of /job:localhost"),
        ([(LOCAL, ["_SOURCE", "a"]), (LOCAL, ["_SOURCE", "z"])], "op _SOURCE is in two entries"),
        ([(LOCAL, "ab"), (WORKER, "cd")], "some devices are of a session without servers"),
        ([(LOCAL, "abbabb")], "every op ran 2 times or a multiple of it"),
    ],
)
def test_bug_several_steps_in_one_file_were_read_as_one(tmp_path, entries, reason):
    with pytest.raises(bl.errors.FormatError, match=f"holds several steps .{reason}"):
        bl.load_trace(step_stats(tmp_path / "steps.pb", *entries))


def test_ops_of_loops_and_transfers_of_servers_are_one_step(tmp_path):
    second_worker = WORKER.replace("task:0", "task:1")
    entries = (
        (WORKER, ["RecvTensor"] * 2),
        (WORKER, ["enter", *["body"] * 3]),
        (second_worker, "ab"),
        (second_worker, ["RecvTensor"]),
    )
    assert bl.load_trace(step_stats(tmp_path / "step.pb", *entries)).graph.n == 9


def test_a_graph_without_times_is_refused(tmp_path):
    (tmp_path / "graph.pbtxt").write_text('node { name: "x" op: "Placeholder" }\nversions { producer: 2 }\n')
    with pytest.raises(bl.errors.FormatError, match="a GraphDef and a SavedModel have no times"):
        bl.load_trace(tmp_path / "graph.pbtxt")
