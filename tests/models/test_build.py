"""Every benchmark model traces, trains, and refuses parameters that make no sense."""

from functools import cache

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import baechi_lab as bl
from baechi_lab.models.registry import make_model

pytestmark = [pytest.mark.slow]

TINY = {
    "mlp": {"batch_size": 8},
    "inception_v3": {"batch_size": 4, "image_size": 75, "classes": 10},
    "resnet": {"batch_size": 8, "image_size": 64, "classes": 10},
    "gnmt": {"layers": 3, "units": 8, "vocabulary": 20, "sequence_length": 3, "batch_size": 4},
    "nmt": {"layers": 2, "units": 8, "vocabulary": 20, "sequence_length": 3, "batch_size": 4},
    "rnnlm": {"layers": 2, "units": 8, "vocabulary": 20, "sequence_length": 3, "batch_size": 4},
    "transformer": {
        "layers": 2,
        "units": 8,
        "heads": 2,
        "inner": 16,
        "vocabulary": 20,
        "sequence_length": 5,
        "batch_size": 4,
    },
}


def run(step, steps):
    """The step's first output over `steps` runs of its own graph, from its own initial values."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString(step.graph_def), name="")
        find = graph.get_operation_by_name
        init = [
            tf.raw_ops.AssignVariableOp(resource=graph.get_tensor_by_name(v.name + ":0"), value=value)
            for v, value in zip(step.variables, step.initial_values, strict=True)
        ]
        feed = {spec.name: value for spec, value in zip(step.inputs, step.example_inputs, strict=True)}
        config = tf.compat.v1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.compat.v1.Session(config=config) as session:
            session.run(init)
            fetch = [step.outputs[0].name, [find(u) for u in step.updates]]
            return [float(session.run(fetch, feed)[0]) for _ in range(steps)]


@cache
def built(name):
    return bl.models.build(name, **TINY[name])


@pytest.fixture
def small_networks(monkeypatch):
    """In place of Keras' deep networks, whose trace takes 8 s: one whose layers Keras names and numbers in the same way."""
    from tensorflow import keras

    def network(weights, input_shape, classes):
        tensor = images = keras.Input(input_shape)
        convolutions = [keras.layers.Conv2D(4, 3, strides=4) for _ in range(2)]
        for layer in (*convolutions, keras.layers.Flatten(), keras.layers.Dense(classes, "softmax")):
            tensor = layer(tensor)
        return keras.Model(images, tensor, name="network")

    for name in ("InceptionV3", "ResNet50"):
        monkeypatch.setattr(keras.applications, name, network)


@pytest.fixture
def plain_runtime():
    """TensorFlow without graph rewrites, which round differently in a function and in a session.

    After one update of a ResNet in batches of 8 a last-bit difference in the gradients is 10% of the next loss.
    """
    import tensorflow as tf

    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


# Of the two deep convolutional networks, whose first eager step takes 10 s, blocks of Inception-V3 are compared with Keras' own
# training loop in tests/profilers/test_inception.py.
@pytest.mark.parametrize("name", sorted(set(TINY) - {"inception_v3", "resnet"}))
def test_traced_step_trains_as_the_eager_one(name, plain_runtime):
    training = make_model(name, **TINY[name]).training_step()
    eager = [training() for _ in range(2)]
    np.testing.assert_allclose(run(built(name), 2), eager, rtol=1e-5)
    assert eager[1] < eager[0]


@pytest.mark.parametrize("name", sorted(set(TINY) - {"inception_v3", "resnet"}))
def test_build_names_the_step_and_its_parameters(name):
    assert built(name).name == name
    assert built(name).info["params"] == built(name).built_from.params == make_model(name, **TINY[name]).get_params()


@pytest.mark.parametrize("name", ["mlp", "gnmt"])
def test_same_seed_same_step_and_another_seed_other_weights(name):
    one, two, other_seed = (bl.models.build(name, **TINY[name], seed=seed) for seed in (3, 3, 4))
    assert one.key == two.key
    assert all(np.array_equal(a, b) for a, b in zip(one.initial_values, two.initial_values, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(one.initial_values, other_seed.initial_values, strict=True))


@pytest.mark.parametrize("name", ["inception_v3", "resnet"])
def test_keras_layers_are_numbered_per_model_not_per_process(name, small_networks):
    first, second = (bl.models.build(name, **TINY[name]) for _ in range(2))
    assert first.graph_def == second.graph_def
    assert first.name == name
    assert first.info["params"] == first.built_from.params == make_model(name, **TINY[name]).get_params()


def test_projection_per_step_changes_the_graph_and_not_the_loss():
    one, two = built("gnmt"), bl.models.build("gnmt", **TINY["gnmt"], projection="steps")
    assert one.key != two.key
    np.testing.assert_allclose(run(two, 3), run(one, 3), rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["momentum", "rmsprop", "adam"])
def test_slots_belong_to_their_variables(optimizer):
    slots = {"momentum": 1, "rmsprop": 2, "adam": 2}[optimizer]
    step = bl.models.build("mlp", layers=1, optimizer=optimizer)
    assert len(step.slots) == slots * 4  # two kernels and two biases
    assert all(slot.startswith(variable + "/") for slot, variable in step.slots.items())
    losses = run(step, 8)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("name", "params", "field"),
    [
        ("gnmt", {"layers": 0}, "layers"),
        ("gnmt", {"units": 511}, "units"),
        ("gnmt", {"units": 512.0}, "units"),
        ("gnmt", {"sequence_length": 0}, "sequence_length"),
        ("gnmt", {"batch_size": 0}, "batch_size"),
        ("gnmt", {"batch_size": True}, "batch_size"),
        ("gnmt", {"vocabulary": 1}, "vocabulary"),
        ("gnmt", {"optimizer": "sdg"}, "optimizer"),
        ("gnmt", {"seed": -1}, "seed"),
        ("inception_v3", {"image_size": 74}, "image_size"),
        ("inception_v3", {"batch_size": -1}, "batch_size"),
        ("resnet", {"depth": 51}, "depth"),
        ("gnmt", {"projection": "some"}, "projection"),
        ("nmt", {"layers": 0}, "layers"),
        ("rnnlm", {"units": -2}, "units"),
        ("transformer", {"units": 510}, "units"),
        ("transformer", {"heads": 0}, "heads"),
        ("mlp", {"layers": 0}, "layers"),
    ],
)
def test_senseless_parameter_is_refused_by_name(name, params, field):
    with pytest.raises(
        bl.InvalidInput, match=rf"^{field} of model '{name}' is {next(iter(params.values()))!r}; it must be"
    ):
        bl.models.build(name, **params)


def test_unknown_model_and_parameter_suggest_the_nearest():
    with pytest.raises(bl.UnknownNameError, match="unknown model 'gmnt'; did you mean 'gnmt'"):
        bl.models.build("gmnt")
    with pytest.raises(bl.UnknownNameError, match="'sequence_len'; did you mean 'sequence_length'"):
        bl.models.build("gnmt", sequence_len=40)
