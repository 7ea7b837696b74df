"""The first four blocks of Inception-V3 as Keras ships it: their traced step trains alike, is whole, estimated and measured."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.profilers.dispatch import profile_with_report
from baechi_lab.profilers.tensorflow.backward_pairing import is_backward

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.slow

_SPEC = importlib.util.spec_from_file_location("step_sessions", Path(__file__).parent / "step_sessions.py")
step_sessions = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(step_sessions)


@pytest.fixture(scope="module")
def inception():
    """The stem and four of eleven blocks of Inception-V3, 75 x 75 pixels, batch 2, RMSprop: model, batch, traced step."""
    tf.keras.utils.set_random_seed(0)
    inception_v3 = tf.keras.applications.InceptionV3(weights=None, input_shape=(75, 75, 3), include_top=False)
    features = tf.keras.layers.GlobalAveragePooling2D()(inception_v3.get_layer("mixed3").output)
    model = tf.keras.Model(inception_v3.input, tf.keras.layers.Dense(10, activation="softmax")(features))
    model.compile("rmsprop", "sparse_categorical_crossentropy", jit_compile=False)
    pixels = np.random.default_rng(0).random((2, 75, 75, 3), dtype=np.float32)
    data = (pixels, np.array([1, 2]))
    return model, data, bl.trace(model, *data)


def test_losses_of_the_traced_step_are_those_of_eager_training(inception):
    model, data, step = inception
    outputs, _ = step_sessions.run_step(step, steps=2)
    np.testing.assert_allclose(outputs[:, 0], step_sessions.eager_losses(model, data, steps=2), rtol=1e-5)
    assert len(step.slots) == len(model.trainable_weights) == 62
    assert step.parameter_bytes >= 4 * model.count_params()


def test_graph_is_inlined_ordered_and_shaped(inception):
    _, _, step = inception
    nodes = step_sessions.nodes_of(step)
    assert not {n.op for n in nodes.values()} & {"PartitionedCall", "StatefulPartitionedCall", "IdentityN"}
    names_so_far = set()
    for node in nodes.values():
        assert {r.lstrip("^").split(":")[0] for r in node.input} <= names_so_far, node.name
        assert "_output_shapes" in node.attr or node.op in ("NoOp", "AssignVariableOp", "AssignSubVariableOp"), (
            node.name
        )
        assert not node.device
        names_so_far.add(node.name)
    convolution = next(n for n in nodes.values() if n.op == "Conv2D")  # Keras numbers layers per process
    first = convolution.attr["_output_shapes"].list.shape[0]
    assert [d.size for d in first.dim] == [2, 37, 37, 32]  # 75 pixels, valid 3 x 3 kernel, stride 2: (75 - 3) // 2 + 1


@pytest.fixture(scope="module")
def estimated(inception):
    """The estimated graph and its report."""
    return profile_with_report(inception[2], mode="estimated")


def test_every_backward_op_has_its_forward_op(estimated):
    graph, report = estimated
    assert report.backward_ops > 1300 and report.paired_ops == report.backward_ops
    assert report.paired_share == 1.0
    assert report.open_shapes == 0
    paired = 0
    for i, name in enumerate(graph.names):
        if graph.op_types[i] in ("Conv2DBackpropInput", "Conv2DBackpropFilter"):
            forward = graph.forward_of[i]
            assert graph.op_types[forward] == "Conv2D"
            assert name.startswith("gradient_tape/" + graph.names[forward] + "/")
            paired += 1
    assert paired == 2 * 30 - 1  # two gradients for each of 30 convolutions, but none for the pixels


def test_only_gradient_ops_are_paired(estimated):
    graph, _ = estimated
    paired = [graph.names[i] for i in np.flatnonzero(graph.forward_of >= 0)]
    assert all(is_backward(name) or name.startswith("AddN") for name in paired)
    assert not any(is_backward(graph.names[f]) for f in graph.forward_of[graph.forward_of >= 0])


def test_a_measured_profile_has_durations_of_the_cpu(inception, estimated):
    graph, report = profile_with_report(
        inception[2], mode="measured", device="/device:CPU:0", warmup=1, runs=2, progress=False
    )
    assert report.mode == "measured" and report.device == "/device:CPU:0"
    assert set(graph.duration_by_kind) == {"cpu"}
    convolutions = [i for i, t in enumerate(graph.op_types) if t == "Conv2D"]
    assert len(convolutions) == 30 and np.all(graph.duration_us[convolutions] > 0)
    assert report.unmeasured_ops <= 2  # the fed inputs
    assert graph.key == estimated[0].key
    np.testing.assert_array_equal(graph.tensor_bytes, estimated[0].tensor_bytes)
    handles = [i for i, t in enumerate(graph.op_types) if t == "VarHandleOp"]
    assert graph.persistent_bytes[handles].sum() == inception[2].parameter_bytes
    assert graph.temp_bytes.sum() > 0
