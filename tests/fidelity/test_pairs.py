"""Kernels that depend on where another op is: which they are, what they take apart, and where that counts."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors import Worker
from baechi_lab.fidelity.gradient_pairs import Pairs, graph_under_placement, mean_pairs, measured_apart, pairs_in
from baechi_lab.fidelity.message_costs import predicted_us
from baechi_lab.fidelity.profiles import measured_graph

TYPES = ["_MklNativeMaxPool", "MatMul", "_MklNativeMaxPoolGrad", "_MklNativeMaxPool", "_MklNativeMaxPoolGrad"]
EDGES = [(0, 1, 8), (0, 2, 8), (1, 2, 8), (0, 3, 8), (3, 4, 8), (1, 4, 8)]
NAMES = ["pool0", "dense", "back0", "pool1", "back1"]
TWO = SimpleNamespace(n=2)


@pytest.fixture
def graph():
    """Two poolings and their gradients."""
    return bl.OpGraph.from_edges([2.0, 9.0, 3.0, 2.0, 5.0], EDGES, op_types=TYPES, names=NAMES)


def test_pairs_are_of_one_type_and_read_each_other(graph):
    op, forward = pairs_in(graph)
    assert op.tolist() == [2, 4] and forward.tolist() == [0, 3]


def test_without_onednn_there_are_none(graph):
    plain = graph.replace(op_types=tuple(kind.replace("_MklNative", "") for kind in TYPES))
    assert len(pairs_in(plain)[0]) == 0
    assert measured_apart(None, TWO, None, plain, 1) is None


def traced(graph, became, placements):
    """`traced_step` of a worker on which gradients take ten times as long, and become what `became` says."""

    def step(_step, placement, _local, _worker, _graph, _warmup):
        placements.append(placement.device.tolist())
        simulated = bl.simulate(
            graph.replace(duration_us=graph.duration_us * 10), bl.Cluster.uniform(1), bl.Placement(device=[0] * 5)
        )
        return simulated, became

    return step


def test_only_what_became_another_kernel_counts(graph, monkeypatch):
    """The second gradient stays oneDNN's even apart from its pooling."""
    placements = []
    became = {"pool0": TYPES[0], "pool1": TYPES[3], "back1": TYPES[4]}
    monkeypatch.setattr(sys.modules[measured_apart.__module__], "traced_step", traced(graph, became, placements))
    measured = measured_apart(None, TWO, None, graph, 2)
    assert placements == [[1, 0, 0, 1, 0]] * 2
    assert (measured.op.tolist(), measured.forward.tolist()) == ([2], [0])
    assert measured.apart_us.tolist() == [30.0] and measured.kinds == ("MaxPoolGrad",)


def test_one_worker_has_nothing_apart(graph):
    assert measured_apart(None, SimpleNamespace(n=1), None, graph, 1) is None


def pairs(us, temp_bytes):
    return Pairs(np.array([2]), np.array([0]), np.array([us]), np.array([temp_bytes]), ("MaxPoolGrad",))


def test_rounds_are_averaged():
    mean = mean_pairs([pairs(30.0, 64), None, pairs(50.0, 16)])
    assert mean.apart_us.tolist() == [40.0] and mean.temp_bytes.tolist() == [64]
    assert mean_pairs([None]) is None and mean_pairs([]) is None


def test_it_counts_where_the_two_are_apart(graph):
    together, separate = (bl.Placement(device=device) for device in ([0, 1, 0, 1, 1], [0, 1, 1, 0, 0]))
    beside_us = graph.duration_us + 1.0
    same, placement, longer = graph_under_placement(graph, together, pairs(30.0, 64), beside_us)
    assert same.duration_us.tolist() == graph.duration_us.tolist() and longer.tolist() == beside_us.tolist()
    slow, placement, longer = graph_under_placement(graph, separate, pairs(30.0, 64), beside_us)
    assert slow.duration_us.tolist() == [2.0, 9.0, 30.0, 2.0, 5.0] and longer.tolist() == [3.0, 10.0, 31.0, 3.0, 6.0]
    assert slow.temp_bytes.tolist() == [0, 0, 64, 0, 0] and slow.op_types[2] == "MaxPoolGrad"
    assert placement.on(slow).device.tolist() == [0, 1, 1, 0, 0]
    assert graph_under_placement(graph, separate, None, None) == (graph, separate, None)


@pytest.mark.tensorflow
@pytest.mark.subprocess
@pytest.mark.slow
def test_a_pooling_of_a_real_step():
    """With oneDNN the gradient of a pooling is another kernel apart from it; without, nothing is measured."""
    tf = pytest.importorskip("tensorflow")
    kernel = tf.Variable(np.full((3, 3, 3, 8), 0.1, np.float32))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.max_pool2d(tf.nn.conv2d(x, kernel, 1, "SAME"), 2, 2, "SAME") ** 2)
        kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
        return loss

    traced_step = bl.trace(step, np.ones((2, 16, 16, 3), np.float32))
    with bl.LocalCluster(2) as local, Worker(network=local.network) as worker:
        graph = measured_graph(traced_step, local, worker, 1, 1)
        measured = measured_apart(traced_step, local, worker, graph, 1, 1)
    onednn = any(kind.startswith("_Mkl") for kind in graph.op_types)
    assert (measured is not None) == onednn
    if measured is not None:
        assert [graph.op_types[i] for i in measured.op.tolist()] == ["_MklNativeMaxPoolGrad"]
        assert measured.kinds == ("MaxPoolGrad",) and (measured.apart_us > 0).all()
        free = bl.Link(0.0, 0.0)
        costs = SimpleNamespace(
            op_us=0.0, step_us=0.0, send=free, receive=free, wire=free, overlap=free, cooled=(), cold_us=lambda us: 0.0
        )
        slow = measured.apart_us.sum() - graph.duration_us[measured.op].sum()
        split = np.zeros(graph.n, dtype=np.int32)
        split[measured.forward] = 1
        placed_graph, placement, _ = graph_under_placement(graph, bl.Placement(device=split), measured, None)
        before = predicted_us(graph, bl.Placement(device=split), costs)
        assert predicted_us(placed_graph, placement, costs) == pytest.approx(before + slow, rel=0.05)
