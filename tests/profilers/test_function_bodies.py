"""Loops, conditionals and their gradients cost what their bodies run."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.hardware import Hardware
from baechi_lab.profilers.programs.estimation import GuessedCosts
from baechi_lab.profilers.tensorflow.function_bodies import Library
from baechi_lab.profilers.tensorflow.structure import read_structure

tf = pytest.importorskip("tensorflow")

FREE_LAUNCH = Hardware("unit", 1e6, 1e6, 1e6, 1e30, 0.0, 10**9, "1 FLOP lasts 1 us, bytes are free")


def profiled(fn, *inputs):
    step = bl.trace(fn, *inputs)
    structure = read_structure(step)
    return structure, Library(structure.graph_def), bl.profile(step, mode="estimated", hardware=FREE_LAUNCH)


def ops(structure, kind):
    return [(i, n) for i, n in enumerate(structure.nodes) if n.op.removeprefix("Stateless") == kind]


def test_a_loop_lasts_its_iterations():
    def step(x):
        for _ in tf.range(5):
            x = tf.matmul(x, x)
        return x

    structure, library, graph = profiled(step, np.ones((4, 4), np.float32))
    ((i, node),) = ops(structure, "While")
    assert library.iterations(node) == 5
    products = [b for b in library.body_ops(node) if b.node.op == "MatMul"]
    assert [(b.inputs, b.times) for b in products] == [([(4, 4), (4, 4)], 5)]
    # per iteration: 2 * 4^3 = 128 FLOPs for the product, one each for the counters and the comparison
    small_op_runs = sum(b.times for b in library.body_ops(node) if b.node.op in ("AddV2", "Less", "LogicalAnd"))
    metadata = 0.25 * sum(b.times for b in library.body_ops(node) if b.node.op == "Identity")
    assert graph.duration_us[i] == pytest.approx(5 * 128 + small_op_runs + metadata)


def test_the_gradient_of_a_loop_runs_as_many_iterations():
    w = tf.Variable(np.eye(4, dtype=np.float32))

    def step(x):
        with tf.GradientTape() as tape:
            for _ in tf.range(3):
                x = tf.matmul(x, w)
            loss = tf.reduce_sum(x)
        return tape.gradient(loss, w)

    structure, library, _ = profiled(step, np.ones((2, 4), np.float32))
    loops = ops(structure, "While")
    assert [library.iterations(node) for _, node in loops] == [3, 3]
    products = [sum(b.times for b in library.body_ops(node) if b.node.op == "MatMul") for _, node in loops]
    assert products == [3, 6]  # x @ w forward; the gradients of x and of w backward


def test_loops_within_loops_multiply():
    def step(x):
        for _ in tf.range(3):
            for _ in tf.range(4):
                x = tf.matmul(x, x)
        return x

    structure, library, _ = profiled(step, np.ones((2, 2), np.float32))
    ((_, node),) = ops(structure, "While")
    assert sum(b.times for b in library.body_ops(node) if b.node.op == "MatMul") == 12


def test_bug_a_loop_without_a_known_bound_counted_one_round_without_a_word():
    def step(x):
        while tf.reduce_sum(x) < 100.0:
            x = x * 2.0
        return x

    with pytest.warns(
        GuessedCosts, match="loops or branches whose number of iterations is not known and counts as one: while"
    ):
        structure, library, _ = profiled(step, np.ones(3, np.float32))
    ((_, node),) = ops(structure, "While")
    assert library.iterations(node) is None


@pytest.mark.parametrize(
    ("start", "goes_on", "change", "iterations"),
    [
        (2, lambda i: i < 10, 3, 3),  # 2, 5, 8
        (2, lambda i: i <= 8, 3, 3),
        (9, lambda i: i > 0, -2, 5),  # 9, 7, 5, 3, 1
        (9, lambda i: tf.less_equal(1, i), -2, 5),
        (3, lambda i: i != 7, 2, 2),
        (0.0, lambda i: tf.logical_and(i < 2.0, i < 1.0), 0.25, 4),
        (5, lambda i: i < 5, 1, 0),
        (0, lambda i: i < 4, -1, None),
        (0, lambda i: tf.logical_or(i < 4, i < 8), 1, None),
    ],
)
def test_bug_counters_were_taken_to_start_at_0_and_grow_by_1(start, goes_on, change, iterations):
    def step(x):
        return tf.while_loop(lambda i, y: goes_on(i), lambda i, y: (i + change, tf.matmul(y, y)), (start, x))[1]

    structure = read_structure(bl.trace(step, np.ones((2, 2), np.float32)))
    ((_, node),) = ops(structure, "While")
    assert Library(structure.graph_def).iterations(node) == iterations


def test_bug_sizes_of_tensors_were_no_bounds_and_open_ones_counted_as_1_inside_loops():
    weight = np.ones((6, 6), np.float32)

    @tf.function(input_signature=[tf.TensorSpec([None, 6])])
    def step(x):
        for _ in tf.range(2, 2 * tf.shape(x)[0], 2):
            x = tf.matmul(x, weight)
        return x

    for traceable in (step, step.get_concrete_function()):
        structure = read_structure(bl.trace(traceable, np.ones((4, 6), np.float32)))
        library = Library(structure.graph_def)
        ((_, node),) = ops(structure, "While")
        products = [(b.inputs[0], b.times) for b in library.body_ops(node) if b.node.op == "MatMul"]
        if traceable is step:
            assert products == [((4, 6), 3)] and not library.guesses
        else:  # nothing is left to trace again
            assert products == [((1, 6), 3)]
            assert any("open sizes that count as 1" in guess for guess in library.guesses)


def test_branches_share_one_run():
    def step(x):
        return tf.matmul(x, x) if tf.reduce_sum(x) > 0 else tf.matmul(tf.matmul(x, x), x)

    structure, library, _ = profiled(tf.function(step), np.ones((2, 2), np.float32))
    ((_, node),) = ops(structure, "If")
    assert sum(b.times for b in library.body_ops(node) if b.node.op == "MatMul") == (1 + 2) / 2


def test_keras_recurrent_layer_that_runs_op_by_op():
    model = tf.keras.Sequential([tf.keras.Input((7, 4)), tf.keras.layers.LSTM(6, use_cudnn=False)])
    model.compile("sgd", "mse")
    step = bl.trace(model, np.ones((5, 7, 4), np.float32), np.ones((5, 6), np.float32))
    structure = read_structure(step)
    library = Library(structure.graph_def)
    forward = next(n for n in structure.nodes if n.op == "While")
    products = [(b.inputs, b.times) for b in library.body_ops(forward) if b.node.op == "MatMul"]
    assert products == [([(5, 4), (4, 24)], 7), ([(5, 6), (6, 24)], 7)]  # input and recurrent kernels, four gates
    named = {f.signature.name for f in structure.graph_def.library.function}
    assert len(named) == 4  # condition and body of the loop and of its gradient; no leftovers of tracing


def test_a_conditional_that_writes_variables_is_an_update():
    """Also where a function within its branch does; the state of a random generator does not count."""
    weight = tf.Variable([1.0, 2.0], name="w")
    generator = tf.random.Generator.from_seed(1)

    @tf.function
    def inner(x):
        weight.assign_sub(x)

    @tf.function
    def step(x):
        if tf.reduce_all(x > 0):
            inner(x)
        y = tf.cond(tf.reduce_any(x > 1), lambda: x + generator.uniform([2]), lambda: x)
        return tf.cond(tf.reduce_any(y > 2), lambda: y * 2, lambda: y)

    graph = bl.profile(step, np.ones(2, np.float32), mode="estimated")
    assert sorted(kind for kind in graph.op_types if "If" in kind) == ["If", "IfUpdate", "StatelessIf"]


def test_bug_lengths_of_shapes_counted_as_sizes_that_depend_on_data():
    """What a gradient of a broadcast reduces depends on shapes alone; every Keras model with attention was warned of."""
    import tensorflow as tf

    weight = tf.Variable(np.ones((1, 32), np.float32))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(x, tf.broadcast_to(weight, (3, 1, 32)), transpose_b=True))
        return tape.gradient(loss, weight)

    step = bl.trace(tf.function(step), np.ones((64, 8, 32), np.float32)[:1])
    assert any(op.endswith("BroadcastGradientArgs") for op in bl.profile(step, mode="estimated").names)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuessedCosts)
        bl.profile(step, mode="estimated", hardware="cpu-core")
