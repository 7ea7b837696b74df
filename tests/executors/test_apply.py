"""`bl.apply`: a placed step in the caller's own loop, its variables saved, loaded and copied back."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors.inputs import checked_batches
from baechi_lab.graph.restoring import copy_back

tf = pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def keras_case():
    """A compiled Keras model, its traced step, a batch, and the same model trained 50 steps without placement."""
    import keras

    def build():
        keras.utils.set_random_seed(11)
        model = keras.Sequential(
            [
                keras.layers.Input((10,)),
                keras.layers.Dense(16, activation="relu", name="hidden"),
                keras.layers.BatchNormalization(name="norm"),
                keras.layers.Dense(3, name="logits"),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss)
        return model

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 10)).astype(np.float32), rng.integers(0, 3, 32)
    model, reference = build(), build()
    step = bl.trace(model, x, y)
    for _ in range(50):
        reference.train_on_batch(x, y)
    return model, step, (x, y), reference.evaluate(x, y, verbose=0)


def halves(step):
    graph = bl.profile(step, mode="estimated")
    return bl.Placement(device=np.arange(graph.n) * 2 // graph.n)


def test_model_evaluates_as_if_it_had_been_trained_unplaced(keras_case):
    model, step, batch, expected = keras_case
    with bl.apply(step, halves(step), kind="cpu") as placed_step:
        losses = [float(placed_step(*batch)) for _ in range(50)]
        assert placed_step.restore(model) == len(step.variables)
    assert losses[-1] < losses[0]
    assert model.evaluate(*batch, verbose=0) == pytest.approx(expected, rel=1e-3)
    assert int(model.optimizer.iterations) == 50


def test_bug_the_values_of_a_model_with_several_outputs_could_not_be_copied_back():
    """Its losses have means, which `model.variables` does not hold. A step leaves them out: training does not read them."""
    import keras

    x = keras.Input((2,))
    model = keras.Model(x, {name: keras.layers.Dense(1, name=name)(x) for name in "ab"})
    model.compile(optimizer="sgd", loss={"a": "mse", "b": "mae"})
    step = bl.trace(model, np.ones((3, 2), np.float32), {name: np.ones((3, 1), np.float32) for name in "ab"})
    assert step.variables and not any("compile_loss" in v.name for v in step.variables)
    assert copy_back({v.name: np.full(v.shape, 7, v.dtype) for v in step.variables}, model) == len(step.variables)
    assert all((weight.numpy() == 7).all() for weight in model.weights)


def test_called_like_the_original(step, placement, unplaced_losses, example_batch):
    with bl.apply(step, placement, kind="cpu") as placed_step:
        assert placed_step.moved_ops == ()
        losses = [float(placed_step(*example_batch)) for _ in range(5)]
    np.testing.assert_allclose(losses, unplaced_losses[:5], rtol=1e-6)


def test_saved_variables_continue_in_another_session(step, placement, example_batch, tmp_path):
    with bl.apply(step, placement, kind="cpu") as first, bl.apply(step, placement, kind="cpu") as second:
        for _ in range(3):
            first(*example_batch)
        first.save(tmp_path / "values.npz")
        second.load(tmp_path / "values.npz")
        for name, value in first.variables.items():
            np.testing.assert_array_equal(second.variables[name], value)
        assert float(first(*example_batch)) == float(second(*example_batch))
    assert [p.name for p in tmp_path.iterdir()] == ["values.npz"]


def test_two_placed_steps_share_nothing(step, placement, example_batch, unplaced_losses):
    with bl.apply(step, placement, kind="cpu") as first, bl.apply(step, placement, kind="cpu") as second:
        first(*example_batch)
        first(*example_batch)
        assert float(second(*example_batch)) == pytest.approx(unplaced_losses[0], rel=1e-6)


def test_inputs_and_variables_that_do_not_match_are_rejected(step, placement, example_batch):
    x, y = example_batch
    with bl.apply(step, placement, kind="cpu") as placed_step:
        with pytest.raises(bl.InvalidInput, match=r"input 'y:0' has shape \(8, 3\)"):
            placed_step(x, y[:, :3])
        with pytest.raises(bl.InvalidInput, match="variable 'w0' of shape \\(16, 16\\) has no counterpart"):
            placed_step.restore([tf.Variable(1.0, name="other")])
        with pytest.raises(bl.InvalidInput, match="no value for variable 'w0'; all 3 variables"):
            placed_step.load({})
        with pytest.raises(bl.InvalidInput, match=r"variable 'w0' has shape \(2,\)"):
            placed_step.load({f"w{i}": np.zeros(2) for i in range(3)})
    with pytest.raises(bl.ExecutionError, match="was closed"):
        placed_step(x, y)
    placed_step.close()


def test_device_that_the_runtime_lacks(step, placement):
    with pytest.raises(bl.ExecutionError, match="'gpu:0' is not attached"):
        bl.apply(step, placement, cluster=bl.Cluster.uniform(2, kind="gpu"), kind="cpu")


def test_returns_a_dict_as_the_step_does_and_takes_composites_and_dicts():
    """[[1, 2], [3]] and then [[1], [2, 4]], whose parts have the same sizes; texts beside them in a dict."""

    def step(rows, texts):
        return {"sums": tf.reduce_sum(rows, axis=1), "length": tf.reduce_sum(tf.strings.length(texts["a"]))}

    first, second = tf.ragged.constant([[1.0, 2.0], [3.0]]), tf.ragged.constant([[1.0], [2.0, 4.0]])
    traced = bl.trace(step, first, {"a": np.array(["x", "yz"], dtype=object)})
    placement = bl.Placement(device=[0] * bl.profile(traced, mode="estimated").n)
    with bl.apply(traced, placement, kind="cpu") as placed_step:
        outputs = placed_step(second, {"a": np.array(["xyz", "yz"], dtype=object)})
        assert sorted(outputs) == ["length", "sums"] and outputs["sums"].tolist() == [1, 6] and outputs["length"] == 5
        with pytest.raises(bl.InvalidInput, match="takes 3 inputs; 2 were given"):
            placed_step(first)
    batches = checked_batches(traced, [[second, {"a": np.array(["xyz", "yz"], dtype=object)}]])
    assert [array.tolist() for array in batches[0]] == [[1, 2, 4], [0, 1, 3], ["xyz", "yz"]]
    batches = checked_batches(traced, [{"rows": first, "texts": np.array(["x", "y"])}] * 2)
    assert [array.tolist() for array in batches[1]] == [[1, 2, 3], [0, 2, 3], ["x", "y"]]


def test_bug_variables_of_one_path_had_a_message_that_helped_nobody():
    """Keras's Adafactor names several of its variables `kernel`: which value belongs to which is not known."""

    class Variable:
        def __init__(self, path, shape):
            self.path, self.shape, self.value = path, shape, None

        def assign(self, value):
            self.value = value

    variables = [Variable("adafactor/kernel", (3,)), Variable("adafactor/kernel", (3,)), Variable("layer/kernel", (3,))]
    values = {name: np.full(3, 7.0) for name in ("layer/kernel", "adafactor/kernel", "adafactor/kernel_1")}
    with pytest.raises(
        bl.InvalidInput, match=r"'adafactor/kernel' of shape \(3,\) cannot be told from others .* yourself"
    ):
        copy_back(values, variables)
    assert all(variable.value is None for variable in variables)
    with pytest.raises(
        bl.InvalidInput, match=r"'lstm/state' of shape \(3,\) has no counterpart .* run.info\['variables'\]"
    ):
        copy_back({"lstm/state": np.ones(3)}, variables)
    assert copy_back({"layer/kernel": np.full(3, 7.0)}, variables) == 1
