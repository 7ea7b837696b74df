"""Convolutions in steps whose order is kept: what TensorFlow would run as one op waits for itself, and must not."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.errors import ExecutionError
from baechi_lab.executors.tensorflow import session
from baechi_lab.executors.tensorflow import unrolled_step as unrolling
from baechi_lab.simulator.pipelined_graph import make_pipelined_graph

tf = pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def convolutions():
    """Two convolutions with bias and ReLU, padding, a loss; its graph, and the losses and weights of three plain steps."""
    rng = np.random.default_rng(0)
    kernels = [tf.Variable(rng.normal(size=(3, 3, 4, 4)).astype("f4") / 6, name=f"k{i}") for i in range(2)]
    biases = [tf.Variable(np.zeros(4, "f4"), name=f"b{i}") for i in range(2)]

    def step(x):
        with tf.GradientTape() as tape:
            hidden = x
            for kernel, bias in zip(kernels, biases, strict=True):
                padded = tf.pad(hidden, [[0, 0], [1, 1], [1, 1], [0, 0]])
                hidden = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(padded, kernel, 1, "VALID"), bias))
            loss = tf.reduce_mean((hidden - 1) ** 2)
        weights = [*kernels, *biases]
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(gradient)
        return loss

    traced = bl.trace(step, rng.normal(size=(2, 6, 6, 4)).astype("f4"))
    return traced, bl.profile(traced, mode="estimated", hardware="cpu-core")


@pytest.fixture(scope="module")
def plain(convolutions, worker):
    return losses(*convolutions, worker)


def losses(step, graph, worker, **options):
    run = bl.execute(
        step,
        bl.Placement(device=[0] * graph.n),
        3,
        warmup=0,
        traced=0,
        graph=graph,
        kind="cpu",
        progress=False,
        worker=worker,
        **options,
    )
    assert run.status == "ok", run.message
    return [float(values[0]) for values in run.outputs]


def test_each_step_lowers_the_loss(plain):
    assert plain[0] > plain[1] > plain[2]


@pytest.mark.parametrize("choice", ["sqrt", "boundaries"])
def test_a_recomputed_step_in_its_order_trains_alike(convolutions, plain, worker, choice):
    step, graph = convolutions
    assert losses(step, bl.recompute(graph, choice, ordered=True), worker) == plain


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_scheduled_step_trains_alike(convolutions, plain, worker, schedule):
    """Both micro-batches are the same example, so that their mean is the plain step's."""
    assert losses(*convolutions, worker, micro_batches=2, schedule=schedule) == pytest.approx(plain, rel=1e-5)


def one_op_of_two():
    """Does TensorFlow run padding and convolution as one op here? oneDNN does; on processors without AVX-512 VNNI it is off."""
    from tensorflow.python.util import _pywrap_util_port

    return _pywrap_util_port.IsMklEnabled()


def test_a_step_that_does_not_run_to_its_end_says_so(convolutions, plain, monkeypatch):
    """With nothing kept apart ops that run as one wait for each other: an error, where there was a loss that never changed."""
    step, graph = convolutions
    for module in (session, unrolling):
        monkeypatch.setattr(module, "prevent_fusion", lambda *arguments, **options: None)
    placement = bl.Placement(device=[0] * graph.n)
    pipe = make_pipelined_graph(graph, bl.Cluster.uniform(1), placement, 2, "gpipe")
    ordered = unrolling.unrolled_step(step, graph, placement, pipe)
    placed_graph = session.place_graph(ordered, dict.fromkeys(pipe.graph.names, "/device:CPU:0"))
    running = session.PlacedSession(placed_graph, session.session_config())
    try:
        running.start(ordered.initial_values)
        if one_op_of_two():
            with pytest.raises(ExecutionError, match="wait for each other"):
                running.call(ordered.example_inputs)
        else:
            assert float(running.call(ordered.example_inputs)[0]) == pytest.approx(plain[0], rel=1e-5)
    finally:
        running.close()
