"""bl.trace: the traced step, run in a plain session, trains exactly as the function that was traced."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from fewer import fast

import baechi_lab as bl
from baechi_lab.profilers.tensorflow.optimizer_slots import keras_slots

tf = pytest.importorskip("tensorflow")
keras = tf.keras

_SPEC = importlib.util.spec_from_file_location("step_sessions", Path(__file__).parent / "step_sessions.py")
step_sessions = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(step_sessions)
run_step, nodes_of = step_sessions.run_step, step_sessions.nodes_of
eager_losses = step_sessions.eager_losses

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "adamw-clipped": lambda: keras.optimizers.AdamW(0.01, clipnorm=1.0, use_ema=True),
    "accumulating": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "loss-scaling": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
}
SLOTS_PER_WEIGHT = {
    "sgd": 0,
    "nesterov": 1,
    "rmsprop": 3,
    "adamw-clipped": 3,
    "accumulating": 3,
    "loss-scaling": 2,
}


@pytest.mark.parametrize("name", fast(OPTIMIZERS, 1))
def test_keras_losses_weights_and_slots(name, batch, make_mlp):
    model = make_mlp(OPTIMIZERS[name](), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3))
    step = bl.trace(model, *batch)
    outputs, values = run_step(step)
    np.testing.assert_allclose(outputs[:, 0], eager_losses(model, batch), rtol=1e-6)
    for weight in model.weights:
        if weight.path in values:
            np.testing.assert_allclose(values[weight.path], weight.numpy(), rtol=1e-5, atol=1e-6, err_msg=weight.path)
    trainable = {w.path for w in model.trainable_weights}
    assert trainable <= set(values) and set(step.slots.values()) <= trainable
    assert Counter(Counter(step.slots.values()).values()) == (
        {SLOTS_PER_WEIGHT[name]: len(trainable)} if SLOTS_PER_WEIGHT[name] else {}
    )


def test_tracing_does_not_train(batch, make_mlp):
    model = make_mlp("adam")
    before = [w.numpy() for w in model.weights]
    bl.trace(model, *batch)
    for value_before, weight in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(value_before, weight.numpy())


def test_model_takes_batch_as_tuple_and_sample_weights(batch, make_mlp):
    x, y = batch
    model = make_mlp("sgd")
    assert len(bl.trace(model, (x, y)).inputs) == 2
    weights = np.linspace(0.0, 1.0, 8, dtype=np.float32)
    outputs, _ = run_step(bl.trace(model, x, y, weights), steps=1)
    assert outputs[0, 0] == pytest.approx(float(model.train_on_batch(x, y, weights)), rel=1e-6)


def test_model_with_its_own_train_step(batch):
    class Counting(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, _ = data
            self.dense.bias.assign_add(tf.ones(3))
            return {"total": tf.reduce_sum(self(x) * 0 + self.dense.bias)}

    model = Counting()
    model.compile("sgd", "mse")
    outputs, _ = run_step(bl.trace(model, *batch), steps=3)
    assert outputs[:, 0].tolist() == [24 * 1, 24 * 2, 24 * 3]  # 8 rows x 3 columns of the bias, which grows by 1


def test_bug_a_model_that_was_built_without_its_layers_trained_nothing(batch):
    """`build` of a subclass marks the model as built; its layers have no variables yet, and the optimizer got none."""

    class Lazy(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    model = Lazy()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.warns(UserWarning, match="does not have a `build"):
        model.build(batch[0].shape)
    step = bl.trace(model, *batch)
    assert len(step.variables) == 4  # kernel, bias, iteration, learning rate


def test_calls_are_inlined_and_orders_kept():
    v = tf.Variable(1.0, name="v")

    @tf.function
    def read():
        return v.read_value() * 1.0

    @tf.function
    def grow(x):
        v.assign_add(x)
        return read()

    def step(x):
        before = read()
        first = grow(x)
        v.assign_add(x)
        return before, first, read()

    step = bl.trace(step, np.float32(10.0))
    outputs, values = run_step(step, steps=2)
    assert outputs.tolist() == [[1, 11, 21], [21, 31, 41]]
    assert values == {"v": 41.0}
    assert not any("Call" in n.op for n in nodes_of(step).values())


def test_loops_and_conditionals_stay_one_op():
    u = tf.Variable(np.eye(6, dtype=np.float32) * 0.5, name="u")
    c = tf.Variable(0, name="c")

    @tf.function
    def step(x):
        c.assign_add(1)
        with tf.GradientTape() as tape:
            h = x
            for _ in tf.range(4):
                h = tf.tanh(h @ u)
            loss = tf.reduce_sum(h**2) * 2.0 if c % 2 == 0 else tf.reduce_sum(h)
        u.assign_sub(0.01 * tape.gradient(loss, u))
        return loss

    x = np.random.default_rng(0).random((3, 6), dtype=np.float32)
    traced = bl.trace(step, x)
    kinds = Counter(n.op.removeprefix("Stateless") for n in nodes_of(traced).values())
    assert kinds["While"] == 2 and kinds["If"] >= 1 and not {"Switch", "Merge", "Enter"} & set(kinds)
    outputs, _ = run_step(traced)
    np.testing.assert_allclose(outputs[:, 0], [float(step(x)) for _ in range(5)], rtol=1e-6)


def test_hand_written_slots_are_found_by_data_flow():
    rng = np.random.default_rng(0)
    w = tf.Variable(rng.random((6, 5), dtype=np.float32), name="w")
    k = tf.Variable(rng.random((5, 6), dtype=np.float32), name="k")
    fast, slow = (tf.Variable(tf.zeros_like(w), name=n) for n in ("fast", "slow"))
    count = tf.Variable(0.0, name="count")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w @ k) ** 2)
        gw, gk = tape.gradient(loss, (w, k))
        count.assign_add(1.0)
        fast.assign(0.9 * fast + gw)
        slow.assign(0.99 * slow + gw * gw)
        w.assign_sub(0.1 * fast / (tf.sqrt(slow) + 1e-3) / count)
        k.assign_sub(0.1 * gk)
        return loss

    traced = bl.trace(step, rng.random((4, 6), dtype=np.float32))
    assert traced.slots == {"fast": "w", "slow": "w"}


def test_open_sizes_are_those_of_the_example():
    w = tf.Variable(np.ones((6, 2), np.float32), name="w")
    fn = tf.function(lambda x: x @ w, input_signature=[tf.TensorSpec((None, 6), tf.float32)])
    step = bl.trace(fn, np.ones((5, 6), np.float32), name="open")
    assert step.name == "open" and step.outputs[0].shape == (5, 2) and step.inputs[0].shape == (5, 6)


def test_variables_made_by_the_first_call():
    class Lazy:
        total = None

        @tf.function
        def step(self, x):
            if self.total is None:
                self.total = tf.Variable(1.0, name="total")
            self.total.assign_add(tf.reduce_sum(x))
            return self.total.read_value()

    lazy = Lazy()
    step = bl.trace(lazy.step, np.ones(3, np.float32))
    outputs, _ = run_step(step, steps=2)
    assert outputs[:, 0].tolist() == [4, 7]


def test_keras_names_reach_plain_functions(batch):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, name="only")], name="net")
    optimizer = keras.optimizers.Adam(0.01)

    def step(x, y):
        with tf.GradientTape() as tape:
            scores = model(x, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores))
        weights = model.trainable_weights
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    traced = bl.trace(step, *batch)
    assert {"net/only/kernel", "net/only/bias"} <= {v.name for v in traced.variables}
    assert sorted(traced.slots.values()) == ["net/only/bias"] * 2 + ["net/only/kernel"] * 2


class Restless(keras.optimizers.SGD):
    """Keeps a list of two numbers that belong to no variable, and the variables in another order."""

    def build(self, variables):
        super().build(variables)
        self.numbers = [self.add_variable((), name=name) for name in ("speed", "patience")]
        self.turned = list(reversed(variables))

    def update_step(self, gradient, variable, learning_rate):
        self.assign_add(self.numbers[0], tf.reduce_sum(gradient))
        self.assign_add(self.numbers[1], self.numbers[0])
        super().update_step(gradient, variable, learning_rate)


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True], ids=["keras", "tf.Variable"])
@pytest.mark.parametrize(
    ("make", "slots"),
    [
        (lambda: keras.optimizers.SGD(0.1), 0),  # its iteration and learning rate are as many as the variables
        (lambda: Restless(0.1), 0),
        (lambda: Restless(0.1, momentum=0.9), 1),
        (lambda: keras.optimizers.Adam(0.1), 2),
        (lambda: keras.optimizers.Adam(0.1, use_ema=True, gradient_accumulation_steps=2), 4),
    ],
)
def test_only_slots_are_taken_for_slots_of_two_variables(make, slots, plain):
    variable = tf.Variable if plain else keras.Variable
    w, b = variable(np.ones((3, 2), np.float32), name="w"), variable(np.zeros(2, np.float32), name="b")
    optimizer = make()
    optimizer.build([w, b])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ tf.convert_to_tensor(w) + tf.convert_to_tensor(b)) ** 2)
        variables = [w, b] if plain else [w.value, b.value]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), [w, b], strict=True))
        return loss

    traced = bl.trace(step, np.ones((4, 3), np.float32))
    shapes = {v.name: v.shape for v in traced.variables}
    names = {shape: name for name, shape in shapes.items() if name.split("/")[-1].rstrip("0123456789_") in ("w", "b")}
    assert Counter(traced.slots.values()) == ({names[3, 2]: slots, names[2,]: slots} if slots else {})
    assert all(shapes[slot] == shapes[owner] for slot, owner in traced.slots.items())


def test_lists_that_contradict_each_other_or_count_steps_tell_of_no_slots():
    w, b = tf.Variable(1.0, name="w"), tf.Variable(2.0, name="b")
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build([w, b])
    assert len(keras_slots(optimizer)) == 2
    optimizer.counted = [optimizer.iterations, optimizer._learning_rate]
    assert len(keras_slots(optimizer)) == 2
    optimizer.turned = optimizer.momentums[::-1]
    assert keras_slots(optimizer) == {}


def test_factored_slots_belong_to_their_variable(batch):
    """Adafactor keeps, for a kernel, a row, a column and a full slot; for a bias a full one and two stand-ins."""
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, name="only")], name="net")
    model.compile(keras.optimizers.Adafactor(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    traced = bl.trace(model, *batch)
    assert Counter(traced.slots.values()) == {"net/only/kernel": 3, "net/only/bias": 1}


def test_a_closure_over_a_name_that_is_not_set_yet():
    def step(x):
        return x * 2.0 if x.shape.rank == 0 else reduce(x)

    traced = bl.trace(step, np.float32(3))
    reduce = tf.reduce_sum
    assert run_step(traced, steps=1)[0].tolist() == [[6]] and reduce is tf.reduce_sum


def test_inputs_may_be_nested():
    step = bl.trace(lambda d, pair: d["a"] + pair[0] * pair[1], {"a": np.float32(1)}, (np.float32(2), np.float32(3)))
    assert len(step.inputs) == 3 and run_step(step, steps=1)[0].tolist() == [[7]]


def test_captured_constants_become_part_of_the_graph():
    table = tf.constant([1.0, 2.0, 3.0])
    step = bl.trace(lambda k: tf.gather(table, k), np.int32(2))
    assert not step.variables and run_step(step, steps=1)[0].tolist() == [[3]]


def _not_built():
    model = tf.keras.Sequential([tf.keras.layers.Conv2D(2, 3)], name="image")
    model.compile("sgd", "mse")
    return model


class Raises(keras.layers.Layer):
    def call(self, x):
        raise RuntimeError("no table of it")


@pytest.mark.parametrize(
    ("make", "inputs", "message"),
    [
        (lambda: lambda x: x.numpy() + 1, (np.ones(2),), "cannot be traced: AttributeError"),
        (
            lambda: lambda x: x @ tf.ones((5, 5)),
            (np.ones((3, 3), np.float32),),
            "Dimensions must be equal, but are 3 and 5",
        ),
        (lambda: lambda a, b: a, (np.ones(2),), "missing a required argument: 'b'"),
        (lambda: lambda x: tf.py_function(lambda a: a, [x], tf.float64), (np.ones(2),), "py_function"),
        (lambda: lambda x: None, (np.ones(2),), "nothing to run"),
        (lambda: 5, (), "give a function"),
        (lambda: keras.Sequential([keras.layers.Dense(2)]), (np.ones((1, 2)), np.ones((1, 2))), "is not compiled"),
        (lambda: _not_built(), (np.ones((2, 8, 8, 3)),), "was given inputs without targets, which its loss needs"),
        (lambda: lambda x: x, (tf.TensorSpec((None, 2), tf.float32),), "leaves a size open"),
        (
            lambda: lambda x: x,
            (np.array([object()]),),
            "Python objects; give numbers or texts, .* a tf.ragged.constant",
        ),
        (lambda: lambda x: x * 2, (tf.Variable(3.0),), "is a ResourceVariable; let the step read it"),
        (lambda: lambda x: x * 2, (keras.Variable(3.0),), "is a Variable; let the step read it"),
        (lambda: lambda x: x, (scipy.sparse.eye(3),), r"is a dia_matrix of SciPy; give a tf\.sparse\.SparseTensor"),
        (
            lambda: Raises(),
            (np.ones(2, np.float32),),
            r"RuntimeError: .* when calling Raises.call\(\): no table of it",
        ),
        (
            lambda: lambda x: next(x),
            (iter(tf.data.Dataset.range(3)),),
            r"is a OwnedIterator; let the step take one batch, and give the first one, next\(iterator\)",
        ),
        (lambda: lambda x: next(x), (iter([np.ones(2)]),), r"is a list_iterator; .* next\(iterator\)"),
        (lambda: lambda x: x, (tf.data.Dataset.range(3),), r"_RangeDataset; .* next\(iter\(dataset\)\)"),
        (lambda: _not_built(), (tf.data.Dataset.range(3),), r"_RangeDataset; .* next\(iter\(dataset\)\)"),
        (
            lambda: _not_built(),
            (np.ones((2, 3)), np.ones(2)),
            "'image' cannot be traced: ValueError: .* expected min_ndim=4",
        ),
    ],
)
def test_untraceable_steps_get_one_sentence(make, inputs, message):
    with pytest.raises(bl.InvalidInput, match=message) as caught:
        bl.trace(make(), *inputs)
    assert "\n" not in str(caught.value)


def test_tables_are_refused():
    values = tf.lookup.KeyValueTensorInitializer([1, 2], [3, 4])
    table = tf.lookup.StaticHashTable(values, 0)
    with pytest.raises(bl.InvalidInput, match="not a variable"):
        bl.trace(lambda k: table.lookup(k), np.array([1, 2], np.int32))


def test_autograph_errors_are_the_user_s():
    def step(x):
        while True:
            x = x + 1
            if tf.reduce_sum(x) > 3:
                break
        return x

    with pytest.raises(bl.InvalidInput, match="while loop started as non-Tensor"):
        bl.trace(step, np.ones(2))


def test_whatever_the_step_raises_is_one_sentence(tmp_path):
    """An error that is neither TensorFlow's nor Keras': the step opens a file that is not there."""

    def reads_a_file(x):
        return x * len((tmp_path / "missing").read_text())

    with pytest.raises(bl.InvalidInput, match=r"cannot be traced: FileNotFoundError"):
        bl.trace(reads_a_file, np.ones(2, np.float32))


def test_ragged_and_sparse_inputs_are_inputs_for_each_of_their_parts():
    """Sums by row of [[1, 2], [3]] are 3 and 3; [[1, 0, 2], [0, 3, 0]] times ones of 3 x 2 adds up to 2 * (1 + 2 + 3)."""
    ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
    step = bl.trace(lambda x: tf.reduce_sum(x, axis=1), ragged)
    assert [list(s.shape) for s in step.inputs] == [[3], [3]]  # the values, and where the rows begin and end
    assert run_step(step, steps=1)[0].tolist() == [[6]]
    sparse = tf.sparse.from_dense([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
    step = bl.trace(lambda x: tf.sparse.sparse_dense_matmul(x, tf.ones((3, 2))), sparse)
    assert len(step.inputs) == 3 and run_step(step, steps=1)[0].tolist() == [[12]]


def test_texts_may_be_an_array_of_objects():
    for texts in (["a", "bcd"], [b"a", b"bcd"]):
        step = bl.trace(tf.strings.length, np.array(texts, dtype=object))
        assert step.inputs[0].dtype == "string" and run_step(step, steps=1)[0].tolist() == [[4]]


def test_columns_and_tables_of_pandas_are_arrays():
    """They are tensors to tf.function, and were no inputs to us: "takes 1 tensors; 0 example inputs were given"."""
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert run_step(bl.trace(tf.reduce_sum, table), steps=1)[0].tolist() == [[10]]
    assert run_step(bl.trace(lambda d: d["a"] * d["b"], dict(table)), steps=1)[0].tolist() == [[11]]
    assert run_step(bl.trace(tf.strings.length, pd.Series(["a", "bcd"])), steps=1)[0].tolist() == [[4]]


def test_outputs_are_called_as_in_the_dict_that_is_returned():
    """An op that is called `x` already stays so; the other names are those of the dict, in TensorFlow's order."""

    def step(x):
        return {"x": x + 1, "loss": tf.reduce_sum(x), "metrics": {"accuracy": x * 2, "all of it": x - 1}}

    traced = bl.trace(step, np.float32(3))
    assert traced.output_names == ("loss", "metrics/accuracy", "metrics/all of it", "x")
    assert [s.name for s in traced.outputs][:3] == ["loss:0", "metrics/accuracy:0", "metrics/all_of_it:0"]
    assert run_step(traced, steps=1)[0].tolist() == [[3, 6, 2, 4]]
    assert bl.trace(lambda x: x + 1, np.float32(3)).output_names == ()


@pytest.mark.slow
@pytest.mark.parametrize("built", [False, True])
def test_keras_models_under_a_mirrored_strategy(batch, make_mlp, built):
    """One replica trains as without a strategy; the optimizer's variables may not be there yet."""
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        model = make_mlp(keras.optimizers.Adam(0.01))
        if built:
            model.optimizer.build(model.trainable_variables)
    step = bl.trace(model, *batch)
    assert len(step.slots) == 2 * len(model.trainable_variables)
    np.testing.assert_allclose(
        run_step(step)[0][:, 0], eager_losses(make_mlp(keras.optimizers.Adam(0.01)), batch), rtol=1e-5
    )


def test_several_replicas_are_refused(monkeypatch, batch, make_mlp):
    """Two replicas need two devices, which TensorFlow makes before its first use: the number alone is two here."""
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        model = make_mlp(keras.optimizers.Adam(0.01))
    monkeypatch.setattr(tf.distribute.MirroredStrategy, "num_replicas_in_sync", 2)

    def custom(x, y):
        return strategy.run(lambda a: model(a), (x,))

    for fn in (model, custom):
        with pytest.raises(
            bl.InvalidInput, match=r"under a MirroredStrategy of 2 replicas; make model and optimizer out"
        ):
            bl.trace(fn, *batch)
