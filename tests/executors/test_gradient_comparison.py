"""Gradients of micro-batches of TensorFlow steps, computed beside the undivided batch's before the first step."""

import warnings

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors.inputs import split_batch
from baechi_lab.executors.tensorflow import gradient_comparison
from baechi_lab.executors.tensorflow.pipelined_step import pipelined_step
from baechi_lab.executors.tensorflow.session import parse_graph
from baechi_lab.executors.tensorflow.undivided_graph import undivided_step

pytest.importorskip("tensorflow")

ROWS = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)


def _custom_gradients():
    import tensorflow as tf

    def with_gradient(function):
        return tf.custom_gradient(lambda x: (tf.identity(x), function))

    return {
        "twice": with_gradient(lambda gradient: 2.0 * gradient),
        "scaled": with_gradient(lambda gradient: gradient * tf.cast(tf.shape(gradient)[0], gradient.dtype)),
        "clipped": with_gradient(lambda gradient: tf.clip_by_value(gradient, -0.01, 0.01)),
        "sign": with_gradient(lambda gradient: tf.sign(gradient)),
        "dropout": lambda x: tf.nn.dropout(x, 0.5),
        "stateless dropout": lambda x: tf.nn.experimental.stateless_dropout(x, 0.5, seed=[1, 2]),
        "permuted": lambda x: tf.gather(x, tf.random.shuffle(tf.range(tf.shape(x)[0]))),
    }


def _train(of, rows=False):
    import tensorflow as tf

    weight = tf.Variable(np.linspace(-0.5, 0.5, 15, dtype=np.float32).reshape(5, 3), name="w")

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            outputs = tf.gather(weight, tf.range(5)) if rows else weight
            loss = tf.reduce_mean(of(x @ outputs) ** 2)
        gradient = tape.gradient(loss, weight)
        if rows:
            weight.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
        else:
            weight.assign_sub(0.1 * gradient)
        return loss

    return step, weight


def _messages(step, count=3, inputs=None):
    """The warnings of unrolling a traced step into `count` micro-batches, and the unrolled step."""
    graph = bl.profile(step, mode="estimated", hardware="cpu-core")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        placement = bl.Placement(device=[0] * graph.n)
        unrolled = pipelined_step(step, placement, None, graph, count, "gpipe", None, inputs)
    return [str(warning.message) for warning in caught], unrolled.step


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("name", ["twice", "scaled", "clipped", "sign"])
def test_bug_a_gradient_of_ones_own_that_is_no_multiple_of_what_comes_in_was_silent(name, rows):
    """Times the number of samples: 4 instead of 12, so two thirds are missing. The variable keeps its value."""
    step, weight = _train(_custom_gradients()[name], rows)
    before = weight.numpy()
    messages, _ = _messages(bl.trace(step, ROWS[:4]))
    assert len(messages) == (name != "twice")
    if name == "scaled":
        assert "differs by 66.7%, computed on samples of the example inputs" in messages[0]
    np.testing.assert_array_equal(weight.numpy(), before)


def test_bug_gradients_of_samples_were_taken_for_numbers_of_the_whole_batch():
    """A custom gradient times the number of samples was added up over micro-batches, sample by sample."""
    step, _ = _train(_custom_gradients()["scaled"])
    _, unrolled = _messages(bl.trace(step, ROWS[:4]))
    assert not [node.name for node in parse_graph(unrolled.graph_def).node if "batch/mul" in node.name]


@pytest.mark.parametrize("of", ["all samples", "the first half"])
def test_bug_nothing_was_compared_where_the_first_trace_builds_the_optimizer(of):
    """That trace has its ops in `sgd_1/`; in the trace of the undivided batch they are in `sgd/`.

    In micro-batches the first half of each micro-batch counts, not that of the batch.
    """
    import tensorflow as tf

    weight = tf.Variable(np.linspace(-0.5, 0.5, 15, dtype=np.float32).reshape(5, 3))
    optimizer = tf.keras.optimizers.SGD(0.1)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            losses, count = tf.reduce_sum((x @ weight) ** 2, 1), tf.shape(x)[0]
            if of == "the first half":
                losses = tf.where(tf.range(count) < count // 2, losses, 0.0)
            loss = tf.reduce_mean(losses)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    traced = bl.trace(step, ROWS[:4])
    messages, _ = _messages(traced)
    assert len(messages) == (of == "the first half")
    assert all("are not those of the undivided batch" in message for message in messages)
    undivided = undivided_step(traced, {traced.inputs[0].name: 0}, 3)
    assert [node.name for node in parse_graph(undivided.graph_def).node] == [
        node.name for node in parse_graph(traced.graph_def).node
    ]


def test_the_first_batch_is_what_is_compared():
    """Clipping at 0.01: the gradients of small outputs are below it in the whole batch and in each micro-batch."""
    step, _ = _train(_custom_gradients()["clipped"])
    traced = bl.trace(step, ROWS[:4])
    assert _messages(traced, inputs=(ROWS * 1e-4,))[0] == []
    assert "differs by" in _messages(traced, inputs=(ROWS,))[0][0]
    assert "computed on the first batch" in _messages(traced, inputs=[(ROWS,), (ROWS * 1e-4,)])[0][0]


@pytest.mark.parametrize("kind", ["norm", "maximum", "root", "sum", "clipped", "count", "weights"])
def test_a_returned_scalar_that_is_no_mean_is_named(kind):
    """Norms, maxima and roots of micro-batches have other means than the undivided batch's. The warning states the difference.

    Silent are: a sum over samples; a norm that an update reads, which is that of the joined gradients; numbers without samples.
    """
    import tensorflow as tf

    def numbers(weight, outputs, loss, gradient, norm):
        return {
            "norm": lambda: tf.norm(gradient),
            "maximum": lambda: tf.reduce_max(outputs),
            "root": lambda: tf.sqrt(loss),
            "sum": lambda: tf.reduce_sum(outputs),
            "clipped": lambda: norm,
            "count": lambda: tf.math.count_nonzero(outputs > 0),
            "weights": lambda: tf.norm(weight),
        }[kind]()

    def train():
        weight = tf.Variable(np.linspace(-0.5, 0.5, 15, dtype=np.float32).reshape(5, 3))

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                outputs = x @ weight
                loss = tf.reduce_mean(outputs**2)
            gradient, norm = tape.gradient(loss, weight), tf.zeros(())
            if kind == "clipped":
                (gradient,), norm = tf.clip_by_global_norm([gradient], 0.1)
            number = numbers(weight, outputs, loss, gradient, norm)
            weight.assign_sub(0.1 * gradient)
            return {"loss": loss, "number": number}

        return step

    undivided_number = float(train()(ROWS)["number"])
    micro_batch_numbers = [float(train()(ROWS[k : k + 4])["number"]) for k in (0, 4, 8)]
    messages, _ = _messages(bl.trace(train(), ROWS[:4]), inputs=(ROWS,))
    if kind in ("norm", "maximum", "root"):
        share = abs(undivided_number - np.mean(micro_batch_numbers)) / undivided_number
        assert len(messages) == 1 and "number 'number' that step 'step' returns" in messages[0]
        assert f"differs by {share:.1%}, computed on the first batch" in messages[0]
    else:
        assert messages == []


@pytest.mark.parametrize("name", ["dropout", "stateless dropout", "permuted"])
def test_random_numbers_are_no_difference(name):
    """A permutation mixes samples, but not those of a mean; it cannot be replaced by a constant, and nothing is compared."""
    step, _ = _train(_custom_gradients()[name])
    assert not [message for message in _messages(bl.trace(step, ROWS[:4]))[0] if "differs by" in message]


def test_random_numbers_within_loops_are_no_difference():
    import tensorflow as tf

    def noisy(x):
        for _ in tf.range(3):
            x = tf.nn.dropout(x, 0.1)
        return x

    step, _ = _train(noisy)
    assert not [message for message in _messages(bl.trace(step, ROWS[:4]))[0] if "differs by" in message]


def test_example_inputs_give_micro_batches_that_differ():
    """Of each array the same samples; integers stay values of the example, floats keep their sign and do not grow."""

    class Example:
        example_inputs = np.array([[-1.0], [2.0], [0.0]], np.float32), np.array([7, 8, 9]), np.float32(3)

    first, words, factor, second, second_words, _ = gradient_comparison.draw_micro_batches(
        Example, [0, 0, None], 2, seed=0
    )
    assert factor == 3 and set(words) | set(second_words) <= {7, 8, 9} and not np.array_equal(first, second)
    signs = {7: -1, 8: 1, 9: 0}
    assert np.sign(first[:, 0]).tolist() == [signs[word] for word in words]
    assert np.all(np.abs(second) <= 2)


@pytest.mark.parametrize("padded", range(4))
@pytest.mark.parametrize("name", ["carried", "any"])
def test_bug_a_loss_that_selects_samples_was_called_a_mean_if_one_drawn_batch_agreed(name, padded):
    """A padded sample takes over the loss of the sample before it, or doubles the loss of its micro-batch.

    For two of the four positions the micro-batches of the one batch that was drawn had the undivided batch's gradients.
    """
    import tensorflow as tf

    def carried(losses, labels):
        add = tf.scan(
            lambda sum_, pair: tf.where(pair[1] < 0, sum_ + pair[0], pair[0]), (losses, labels), initializer=0.0
        )
        return tf.reduce_mean(add)

    def doubled(losses, labels):
        factor = tf.where(tf.reduce_max(tf.where(labels < 0, losses, 0.0)) > 0, 2.0, 1.0)
        return tf.reduce_mean(losses) * factor

    weight, of = tf.Variable(np.linspace(-0.5, 0.5, 15, dtype=np.float32).reshape(5, 3)), {"carried": carried}

    @tf.function
    def step(x, labels):
        with tf.GradientTape() as tape:
            loss = of.get(name, doubled)(tf.reduce_sum((x @ weight) ** 2, 1), labels)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    labels = np.where(np.arange(4) == padded, -1, np.arange(4))
    messages, _ = _messages(bl.trace(step, ROWS[:4], labels), count=2)
    assert len(messages) == 1 and "may be neither the mean nor the sum" in messages[0]


def test_a_batch_with_large_tensors_is_not_compared(monkeypatch):
    step, _ = _train(_custom_gradients()["scaled"])
    monkeypatch.setattr("baechi_lab.executors.tensorflow.batch_division.MOST_BYTES", 100)
    assert _messages(bl.trace(step, ROWS[:4]))[0] == []


def test_batches_are_put_together_along_their_axis():
    """Time is the first axis, samples are the second."""
    import tensorflow as tf

    weight = tf.Variable(np.ones((5, 2), np.float32), name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weight) ** 2)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    batch = ROWS.reshape(2, 6, 5)
    traced = bl.trace(step, batch[:, :2])
    assert _messages(traced, inputs=(batch,))[0] == []
    assert [micro_batch.shape for micro_batch in split_batch(traced, 3, batch)] == [(2, 2, 5)] * 3


def _rounds(divisor_inside):
    """A step whose loss adds up the samples in a loop and divides by 6, the number of samples of a micro-batch."""
    import tensorflow as tf

    weight = tf.Variable(np.linspace(-0.5, 0.5, 30, dtype=np.float32).reshape(5, 6), name="w")

    @tf.function
    def step(x):
        def loss_of_row(row):
            loss = tf.reduce_sum((row @ weight) ** 2)
            return loss / x.shape[0] if divisor_inside else loss

        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.map_fn(loss_of_row, x))
            loss = loss if divisor_inside else loss / 6.0
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return bl.trace(step, np.stack([ROWS[:6], 1 - ROWS[6:]], 1))


@pytest.mark.parametrize("divisor_inside", [True, False])
def test_bug_a_mean_or_a_sum_was_called_neither_without_advice(divisor_inside):
    """Divided by `x.shape[0]` in each round, the loss is a mean; divided by the constant 6 it is a sum."""
    step, reduction = _rounds(divisor_inside), "mean" if divisor_inside else "sum"
    messages, _ = _messages(step, 2)
    assert len(messages) == 1
    assert messages[0].endswith(
        f"; in examples it is the {reduction} of the micro-batches' losses: give reduction='{reduction}'"
    )
    graph = bl.profile(step, mode="estimated", hardware="cpu-core")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        pipelined_step(step, bl.Placement(device=[0] * graph.n), None, graph, 2, "gpipe", reduction)
