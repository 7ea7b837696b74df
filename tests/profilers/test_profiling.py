"""bl.profile: structure, colocation, pairing, estimated and measured costs of traced steps."""

from __future__ import annotations

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.hardware import HOST_OP_US, Hardware
from baechi_lab.graph.opgraph import OWN, VIEW
from baechi_lab.profilers.dispatch import profile_with_report
from baechi_lab.profilers.tensorflow.measurement import read_traces
from baechi_lab.profilers.tensorflow.structure import read_structure

tf = pytest.importorskip("tensorflow")

GPU_LAUNCH_US = 6.7  # of every GPU in the table


@pytest.fixture(scope="module")
def product():
    """`y = relu(x @ w)` with x float32[4, 8], w float32[8, 16]; and the gradient step on w."""
    w = tf.Variable(np.ones((8, 16), np.float32), name="w")

    def product_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.relu(tf.matmul(x, w)))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return bl.trace(product_step, np.ones((4, 8), np.float32))


def op(graph, op_type, prefix=""):
    (index,) = [i for i, t in enumerate(graph.op_types) if t == op_type and graph.names[i].startswith(prefix)]
    return index


def test_roofline_of_a_matrix_product(product):
    graph = bl.profile(product, mode="estimated", hardware=Hardware.named("v100").as_roofline())
    forward = op(graph, "MatMul", "MatMul")
    # FLOPs: 2 * 4 * 16 * 8 = 1024 at 15.7 TFLOP/s = 0.0000652 us
    # bytes: (4 * 8 + 8 * 16 + 4 * 16) * 4 = 896 at 900 GB/s = 0.000996 us, which is longer
    assert graph.duration_us[forward] == pytest.approx(GPU_LAUNCH_US + 896 / 900e9 * 1e6, rel=1e-12)
    assert graph.duration_us[op(graph, "ReadVariableOp")] == HOST_OP_US
    assert graph.duration_us[op(graph, "VarHandleOp")] == 0
    assert set(graph.duration_by_kind) == {"gpu", "v100"}


def test_tensors_carry_real_bytes(product):
    graph = bl.profile(product, mode="estimated")
    sizes = {graph.tensor_label(t): int(graph.tensor_bytes[t]) for t in range(graph.tensor_count)}
    by_op = {graph.op_types[p]: int(b) for p, b in zip(graph.tensor_producer, graph.tensor_bytes, strict=True)}
    shape_of = dict(zip(graph.op_types, graph.output_shapes, strict=True))
    assert (shape_of["Relu"], shape_of["ReadVariableOp"]) == ("f32[4,16]", "f32[8,16]")
    assert by_op["Relu"] == 4 * 16 * 4 and by_op["VarHandleOp"] == 8, sizes
    assert int(graph.persistent_bytes[op(graph, "VarHandleOp")]) == 8 * 16 * 4 == int(graph.persistent_bytes.sum())


@pytest.mark.parametrize("rows", [1_000, 100_000])
def test_bug_a_sum_of_chosen_rows_read_the_whole_table(rows):
    """4096 indices and segments of 4 bytes; 4096 rows of 64 numbers are read and 512 are written, however many there are."""
    table, segments = tf.Variable(tf.zeros((rows, 64))), tf.repeat(tf.range(512), 8)

    def average(indices):
        return tf.sparse.segment_mean(table, indices, segments, num_segments=512)

    hardware = Hardware.named("v100").as_roofline()
    graph = bl.profile(average, np.zeros(4096, np.int32), mode="estimated", hardware=hardware)
    duration_us = graph.duration_us[graph.op_types.index("SparseSegmentMeanWithNumSegments")]
    assert duration_us == pytest.approx(GPU_LAUNCH_US + (2 * 4096 * 4 + 4 + (4096 + 512) * 64 * 4) / 900e9 * 1e6)


def test_bug_a_product_of_a_sparse_matrix_read_the_dense_one_once():
    """300 entries of 16 bytes for the position and 4 for the value read a row of 32 numbers each; 100 rows are written."""
    entries = tf.sparse.SparseTensor([[i // 3, i % 3] for i in range(300)], tf.ones(300), (100, 50))

    def product(matrix):
        return tf.sparse.sparse_dense_matmul(entries, matrix)

    hardware = Hardware.named("v100").as_roofline()
    graph = bl.profile(product, np.zeros((50, 32), np.float32), mode="estimated", hardware=hardware)
    duration_us = graph.duration_us[graph.op_types.index("SparseTensorDenseMatMul")]
    bytes_moved = 300 * (16 + 4) + 2 * 8 + 300 * 32 * 4 + 100 * 32 * 4
    assert duration_us == pytest.approx(GPU_LAUNCH_US + bytes_moved / 900e9 * 1e6)


def test_bug_arithmetic_on_shapes_counted_as_kernels():
    """TensorFlow has no kernels on GPUs for int32 arithmetic on sizes: it runs on the host."""
    v = tf.Variable(np.ones((8, 4), np.float32))

    def step(x):
        sizes = tf.raw_ops.VariableShape(input=v.handle)
        return tf.tile(x, [1, (sizes[0] + 1) * sizes[1]]) * 2.0

    graph = bl.profile(step, np.ones((3, 2), np.float32), mode="estimated", hardware="a100")
    kernels = [t for t, us in zip(graph.op_types, graph.duration_us, strict=True) if us > HOST_OP_US]
    assert kernels == ["Tile", "Mul"] and {"StridedSlice", "AddV2", "Pack"} <= set(graph.op_types)


@pytest.mark.slow
def test_bug_arithmetic_on_integers_of_the_input_took_no_time():
    """2**24 integers of 4 bytes are read and written: 2**27 bytes of 1555e9 per second."""
    hardware = Hardware.named("a100-40gb").as_roofline()
    graph = bl.profile(lambda x: x + 1, np.zeros(2**24, np.int32), mode="estimated", hardware=hardware)
    assert graph.duration_us[graph.op_types.index("AddV2")] >= 2**27 / 1555e9 * 1e6
    unique = bl.profile(lambda x: tf.unique(x)[0], np.zeros(8192, np.int32), mode="estimated", hardware=hardware)
    sort_us = 4 * 2 * 8192 * (4 + 8) / 1555e9 * 1e6
    assert unique.duration_us[unique.op_types.index("Unique")] == pytest.approx(hardware.launch_us + sort_us)


def test_bug_a_product_of_bytes_ran_as_float32():
    """2 * 2048**3 operations at the 624e12 per second of an A100 for integers of 8 bits, not at 19.5e12."""
    hardware = Hardware.named("a100-40gb").as_roofline()
    operands = [np.zeros((2048, 2048), np.int8)] * 2
    graph = bl.profile(
        lambda a, b: tf.matmul(a, b, output_type=tf.int32), *operands, mode="estimated", hardware=hardware
    )
    product_us = graph.duration_us[graph.op_types.index("BatchMatMulV3")]
    assert product_us == pytest.approx(hardware.launch_us + 2 * 2048**3 / 624e12 * 1e6, rel=0.01)


def test_a_compute_bound_product_lasts_its_flops():
    w = tf.Variable(np.zeros((2048, 2048), np.float32))
    graph = bl.profile(
        lambda x: x @ w,
        np.zeros((2048, 2048), np.float32),
        hardware=Hardware.named("a100").as_roofline(),
        precision="tf32",
    )
    # 2 * 2048^3 FLOPs at 156 TFLOP/s (TF32) = 110.1 us; 3 * 2048^2 * 4 bytes at 2039 GB/s = 24.7 us
    assert graph.duration_us[op(graph, "MatMul")] == pytest.approx(GPU_LAUNCH_US + 2 * 2048**3 / 156e12 * 1e6)


def test_control_dependencies_are_tensors_of_four_bytes():
    v = tf.Variable(np.ones(100, np.float32), name="v")

    def step(x):
        before = v.read_value()
        v.assign(x)
        return before

    graph = bl.profile(step, np.zeros(100, np.float32), mode="estimated")
    read, write = op(graph, "ReadVariableOp"), op(graph, "AssignVariableOp")
    edges = {
        (int(s), int(c)): int(graph.tensor_bytes[t])
        for s, t, c in zip(graph.edge_source, graph.edge_tensor, graph.consumers, strict=True)
    }
    assert edges[read, write] == 4


def test_estimates_for_several_kinds(product):
    graph_of_both = bl.profile(product, mode="estimated", hardware=["k40", "h200"])
    assert set(graph_of_both.duration_by_kind) == {"k40", "h200"}
    np.testing.assert_array_equal(graph_of_both.duration_us, graph_of_both.duration_by_kind["k40"])
    assert np.all(graph_of_both.duration_by_kind["h200"] <= graph_of_both.duration_by_kind["k40"])
    mixed = bl.profile(product, mode="estimated", hardware={"gpu": "a100", "cpu": "cpu-core"})
    assert set(mixed.duration_by_kind) == {"gpu", "cpu"}


@pytest.mark.slow
def test_profile_is_deterministic_and_traces_by_itself(batch, make_mlp):
    model = make_mlp("adam")
    a = bl.profile(model, *batch, mode="estimated")
    b = bl.profile(bl.trace(model, *batch), mode="estimated")
    assert a == b and a.n == b.n > 50


def test_colocation_joins_a_variable_its_slots_and_their_ops(batch, make_mlp):
    step = bl.trace(make_mlp("adam"), *batch)
    graph = bl.profile(step, mode="estimated")
    kernel = graph.index["hidden/kernel" if "hidden/kernel" in graph.index else "mlp/hidden/kernel"]
    group = graph.colocation[kernel]
    members = {graph.names[i] for i in np.flatnonzero(graph.colocation == group)}
    slots = {s for s, v in step.slots.items() if v == graph.names[kernel]}
    assert len(slots) == 2 and slots <= members
    for i, name in enumerate(graph.names):
        if graph.op_types[i] in ("ReadVariableOp", "AssignVariableOp", "AssignSubVariableOp", "AssignAddVariableOp"):
            tensors = graph.inputs[1][graph.inputs[0][i] : graph.inputs[0][i + 1]]
            handles = {p for p in graph.tensor_producer[tensors] if graph.op_types[p] == "VarHandleOp"}
            assert {graph.colocation[h] for h in handles} == {graph.colocation[i]}, name
    assert graph.colocation_names[group] == graph.names[kernel]


def test_an_op_over_two_variables_joins_their_groups():
    a, b = tf.Variable(1.0, name="a"), tf.Variable(2.0, name="b")

    def step(x):
        for _ in tf.range(3):
            a.assign_add(x)
            b.assign_add(a)
        return a + b

    graph = bl.profile(step, np.float32(1), mode="estimated")
    assert graph.colocation[graph.index["a"]] == graph.colocation[graph.index["b"]] >= 0
    assert graph.colocation[op(graph, "WhileUpdate")] == graph.colocation[graph.index["a"]]


def test_gradients_of_called_functions_find_the_right_call():
    w, v = tf.Variable(np.ones((4, 3), np.float32)), tf.Variable(np.ones((3, 2), np.float32))

    @tf.function
    def layer(a, k):
        return tf.nn.relu(a @ k)

    @tf.function
    def net(a):
        return layer(layer(a, w), v)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(net(x))
        return tape.gradient(loss, (w, v))

    graph = bl.profile(step, np.ones((5, 4), np.float32), mode="estimated")
    relus = sorted((i for i, t in enumerate(graph.op_types) if t == "Relu"), key=lambda i: graph.names[i])
    grads = [i for i, t in enumerate(graph.op_types) if t == "ReluGrad"]
    assert len(relus) == len(grads) == 2
    pairs = {int(graph.forward_of[g]): g for g in grads}
    assert set(pairs) == set(relus)
    for forward, backward in pairs.items():
        reads = graph.tensor_producer[graph.inputs[1][graph.inputs[0][backward] : graph.inputs[0][backward + 1]]]
        assert forward in reads  # ReluGrad reads the output of its own Relu


@pytest.mark.slow
def test_ops_that_the_runtime_would_fuse_are_measured_apart():
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input((16, 16, 3)), layers.Conv2D(8, 3), layers.Flatten(), layers.Dense(2)])
    model.compile("sgd", "mse")
    data = (np.ones((2, 16, 16, 3), np.float32), np.ones((2, 2), np.float32))
    graph, report = profile_with_report(model, *data, device="/device:CPU:0", warmup=0, runs=1, progress=False)
    for kind in ("Conv2D", "BiasAdd", "Conv2DBackpropFilter", "BiasAddGrad"):
        assert all(graph.duration_us[i] > 0 for i, t in enumerate(graph.op_types) if t == kind), kind
    assert report.unmeasured_ops == len(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "mesured"}, "did you mean 'measured'"),
        ({"mode": "estimated", "hardware": "v10"}, "unknown hardware 'v10'"),
        ({"mode": "estimated", "hardware": []}, "hardware is empty"),
        ({"mode": "estimated", "hardware": 3}, "hardware is 3"),
        ({"mode": "measured", "runs": 0}, "runs is 0"),
        ({"mode": "measured", "warmup": -1}, "warmup is -1"),
        pytest.param(
            {"mode": "measured", "device": "/device:TPU:7"}, "unknown device '/device:TPU:7'", marks=pytest.mark.slow
        ),
    ],
)
def test_bad_options_are_rejected(product, options, message):
    with pytest.raises(bl.InvalidInput, match=message):
        bl.profile(product, progress=False, **options)


def test_inputs_beside_a_traced_step_are_refused(product):
    with pytest.raises(bl.InvalidInput, match="has its inputs"):
        bl.profile(product, np.ones(3), mode="estimated")


def test_custom_hardware_is_validated(product):
    broken = Hardware("mine", 1e12, 1e12, 1e12, 0.0, 1.0, 10**9)
    with pytest.raises(bl.InvalidInput, match="bandwidth is 0"):
        bl.profile(product, mode="estimated", hardware=broken)


def gpu_trace(entries):
    """RunMetadata with (device, node name, microseconds) entries."""
    metadata = tf.compat.v1.RunMetadata()
    devices = {}
    for device, name, microseconds in entries:
        if device not in devices:
            devices[device] = metadata.step_stats.dev_stats.add(device=device)
        devices[device].node_stats.add(node_name=name, op_end_rel_micros=microseconds)
    return metadata


def test_kernels_of_one_op_are_summed_and_traces_averaged(product):
    structure = read_structure(product)
    host, every, one = (
        "/job:localhost/replica:0/task:0/device:GPU:0",
        "/device:GPU:0/stream:all",
        "/device:GPU:0/stream:7",
    )
    first = gpu_trace(
        [
            (host, "MatMul", 3),
            (every, "MatMul:MatMul", 40),
            (every, "MatMul:MatMul", 60),
            (one, "MatMul", 60),
            (host, "Relu", 2),
            ("/device:GPU:0/memcpy", "Relu", 500),
        ]
    )
    second = gpu_trace([(host, "MatMul", 3), (every, "MatMul:MatMul", 50), (host, "Relu", 4)])
    measurement = read_traces(structure, [first, second], on_gpu=True)
    assert (
        measurement.duration_us[structure.index["MatMul"]] == (40 + 60 + 50) / 2
    )  # kernels, not the 3 us of their launch
    assert measurement.duration_us[structure.index["Relu"]] == (2 + 4) / 2  # no kernel: what the host took
    assert measurement.in_trace.sum() == 2


def test_a_gpu_trace_without_kernels_is_refused(product):
    trace = gpu_trace([("/job:localhost/replica:0/task:0/device:GPU:0", "MatMul", 3)])
    with pytest.raises(bl.ExecutionError, match="no GPU kernel"):
        read_traces(read_structure(product), [trace], on_gpu=True)


@pytest.mark.gpu
def test_measured_on_a_gpu(product):
    graph, report = profile_with_report(product, mode="measured", progress=False)
    assert report.device == "/device:GPU:0" and set(graph.duration_by_kind) == {"gpu"}
    assert graph.duration_us[op(graph, "Relu")] > 0


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("shape", "axis", "kind"), [((3, 16, 16), 0, VIEW), ((16, 3, 16), 1, OWN), ((3, 3), 0, OWN), ((3, 5, 16), 0, VIEW)]
)
def test_aligned_parts_along_the_first_axis_lie_in_the_whole(shape, axis, kind):
    """As the graph says, and as a trace shows: parts of their own are allocated, others are not."""
    tf = pytest.importorskip("tensorflow")
    step = bl.trace(lambda x: tf.add_n(tf.unstack(tf.sin(x), axis=axis)), np.ones(shape, np.float32))
    graph = bl.profile(step, mode="estimated", hardware="cpu-core")
    op = graph.op_types.index("Unpack")
    assert graph.reuse[op] == kind
    run = bl.execute(step, bl.Placement(device=np.zeros(graph.n, dtype=np.int32)), steps=0, warmup=0, traced=1)
    assert run.status == "ok", run.message
    log = run.timeline.memory
    allocated_bytes = int(log.delta[(log.op == op) & (log.delta > 0)].sum())
    assert (allocated_bytes > 0) == (kind == OWN)
