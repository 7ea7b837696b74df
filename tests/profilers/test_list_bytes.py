"""Lists of tensors hold what their items take, and loops hold what an iteration makes."""

from __future__ import annotations

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.profilers.tensorflow.profiling import reuse_of
from baechi_lab.profilers.tensorflow.structure import read_structure

tf = pytest.importorskip("tensorflow")

ROUNDS, WIDTH = 3, 4
STATE_BYTES = 2 * WIDTH * 4


def traced():
    weight = tf.Variable(np.eye(WIDTH, dtype=np.float32), name="w")

    def step(x, sequence):
        with tf.GradientTape() as tape:
            for item in sequence:
                x = tf.tanh(x @ weight) + item
            loss = tf.reduce_sum(x)
        return tape.gradient(loss, weight)

    x = np.ones((2, WIDTH), np.float32)
    return bl.trace(step, x, np.stack([x] * ROUNDS))


def test_bug_what_a_loop_keeps_for_its_gradient_had_no_bytes():
    """Each iteration keeps its state, which the product reads, and the output of tanh; the weight belongs to its variable."""
    structure = read_structure(traced())
    loop, gradient = (i for i, node in enumerate(structure.nodes) if node.op.endswith("While"))
    sizes = [structure.list_bytes.get(t, 0) for t in structure.output_tensors[loop]]
    list_sizes = [size for size in sizes if size > 8]
    assert list_sizes == [ROUNDS * STATE_BYTES] * 2
    assert structure.tensor_bytes[structure.output_tensors[loop][sizes.index(list_sizes[0])]] == list_sizes[0]
    # Forward, the product and tanh are alive at once with counters of 4 bytes; backward, gradients of weights are the largest.
    assert 2 * STATE_BYTES <= structure.iteration_bytes[loop] <= 3 * STATE_BYTES + 16
    assert structure.iteration_bytes[gradient] >= 2 * WIDTH * WIDTH * 4
    (items,) = (i for i, node in enumerate(structure.nodes) if node.op == "TensorListFromTensor")
    assert structure.list_bytes[structure.output_tensors[items][0]] == ROUNDS * STATE_BYTES


def test_peaks_contain_what_loops_keep():
    step = traced()
    graph = bl.profile(step, hardware="a100")
    structure = read_structure(step)
    loop = next(i for i, node in enumerate(structure.nodes) if node.op.endswith("While"))
    timeline = bl.simulate(graph, bl.Cluster.uniform(1), bl.Placement(device=[0] * graph.n))
    assert timeline.peak_bytes[0] >= 3 * ROUNDS * STATE_BYTES + graph.temp_bytes[loop]


def test_arrays_that_are_stacked_hold_one_item_per_round_and_zeros_of_a_list_have_their_own():
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.map_fn(lambda row: row * row, x))
        return tape.gradient(y, x)

    structure = read_structure(bl.trace(step, np.ones((ROUNDS, WIDTH), np.float32)))
    loop = next(i for i, node in enumerate(structure.nodes) if node.op.endswith("While"))
    list_bytes = [structure.list_bytes.get(t, 0) for t in structure.output_tensors[loop]]
    items = [size for size in list_bytes if size > ROUNDS * 4]  # besides a list of indices
    assert items == [ROUNDS * WIDTH * 4] * 2  # what was read and what was made
    reuse = reuse_of(structure)
    zeros = [i for i, node in enumerate(structure.nodes) if node.op == "ZerosLike" and "list" not in node.name]
    for i in zeros:
        assert structure.list_bytes[structure.output_tensors[i][0]] == ROUNDS * WIDTH * 4
        assert reuse[i] == bl.graph.opgraph.OWN


def test_a_product_of_a_tensor_with_itself_takes_memory_of_its_own():
    """Two arguments are two references, and TensorFlow overwrites an input with one reference only."""

    def step(x):
        y = tf.tanh(x)
        return tf.reduce_sum(tf.multiply(y, y, name="square")), tf.multiply(y, 2.0, name="double")

    structure = read_structure(bl.trace(step, np.ones((4, 4), np.float32)))
    reuse = dict(zip([node.name for node in structure.nodes], reuse_of(structure).tolist(), strict=True))
    assert (reuse["square"], reuse["double"]) == (bl.graph.opgraph.OWN, bl.graph.opgraph.OVERWRITES)
