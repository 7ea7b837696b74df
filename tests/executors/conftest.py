"""A small training step, traced once: three matrix products, RMS-like updates, two inputs."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import pytest

import baechi_lab as bl


def weights(layers=3, width=16):
    rng = np.random.default_rng(7)
    return [(rng.normal(size=(width, width)) / 4).astype(np.float32) for _ in range(layers)]


def batch(rows=8, width=16, seed=3):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=(rows, width)).astype(np.float32) for _ in range(2))


def train_step(variables):
    import tensorflow as tf

    def step(x, y):
        with tf.GradientTape() as tape:
            hidden = x
            for variable in variables:
                hidden = tf.nn.tanh(hidden @ variable)
            loss = tf.reduce_mean((hidden - y) ** 2)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.5 * gradient)
        return loss

    return step


@pytest.fixture(scope="session")
def example_batch():
    return batch()


@pytest.fixture(scope="session")
def step(example_batch):
    tf = pytest.importorskip("tensorflow")
    variables = [tf.Variable(w, name=f"w{i}") for i, w in enumerate(weights())]
    return bl.trace(train_step(variables), *example_batch, name="three layers")


@pytest.fixture(scope="session")
def unplaced_losses(example_batch):
    """The losses of 12 steps as plain TensorFlow computes them, without placement."""
    tf = pytest.importorskip("tensorflow")
    run = tf.function(train_step([tf.Variable(w) for w in weights()]))
    return [float(run(*example_batch)) for _ in range(12)]


@pytest.fixture(scope="session")
def ops(step):
    """The step's graph, without costs."""
    from baechi_lab.executors.structure import graph_of

    return graph_of(step)


def by_layer(graph, devices=2):
    """A placement that puts each variable, and the ops that touch it, on one device, and alternates the rest."""
    device = np.arange(graph.n) * devices // graph.n
    for i, name in enumerate(graph.names):
        if graph.op_types[i] == "VarHandleOp":
            device[i] = int(name[1:]) % devices
    for edge, source in enumerate(graph.edge_source):
        if graph.op_types[source] == "VarHandleOp":
            device[graph.consumers[edge]] = device[source]
    return bl.Placement(device=device)


@pytest.fixture(scope="session")
def placement(ops):
    return by_layer(ops)


@pytest.fixture(scope="session")
def run(step, placement):
    """One execution over two logical CPU devices, shared by the tests that only look at it."""
    return bl.execute(step, placement, steps=4, warmup=2, traced=2, kind="cpu", return_variables=True)


@pytest.fixture(scope="module")
def worker():
    """A warm worker process, for tests whose runs all succeed."""
    from baechi_lab.executors import Worker

    with Worker() as warm:
        assert warm.pid  # a forked one begins a little later, and tests count processes
        yield warm
