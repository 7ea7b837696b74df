"""Sizes that depend on data count at their largest in estimates, and as 1 where nothing bounds them; a warning says which."""

import warnings

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.profilers.programs.estimation import GuessedCosts

tf = pytest.importorskip("tensorflow")

ROWS, COLUMNS = 64, 32
VALUES = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
ENTRIES = ROWS * COLUMNS


def bytes_of_outputs(function):
    """Returns op type -> bytes of its outputs, and the warnings of the estimate."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = bl.profile(bl.trace(tf.function(function), VALUES), mode="estimated", hardware="cpu-core")
    sizes = {
        kind: [int(graph.tensor_bytes[t]) for t in graph.outputs(op) if graph.tensor_names[t] != "^"]
        for op, kind in enumerate(graph.op_types)
    }
    return sizes, [str(w.message) for w in caught if w.category is GuessedCosts]


def selected_entries(x):
    return tf.reduce_sum(tf.tanh(tf.gather_nd(x, tf.where(x > 0.5))))


def boxes(x):
    return tf.reduce_sum(tf.tanh(tf.gather(x, tf.image.non_max_suppression(x[:, :4], x[:, 4], 10))))


@pytest.mark.parametrize(
    ("function", "largest"),
    [
        (
            selected_entries,
            {"Where": [ENTRIES * 2 * 8], "GatherNd": [ENTRIES * 4], "Tanh": [ENTRIES * 4]},
        ),  # two int64 indices per entry
        (boxes, {"NonMaxSuppressionV3": [ROWS * 4], "Tanh": [ROWS * COLUMNS * 4]}),
    ],
)
def test_bug_sizes_that_depend_on_data_counted_as_1(function, largest):
    sizes, messages = bytes_of_outputs(function)
    assert {kind: sizes[kind] for kind in largest} == largest
    assert len(messages) == 1 and "depend on data at their largest" in messages[0] and "may be too large" in messages[0]


def test_the_distinct_entries_and_their_positions():
    sizes, _ = bytes_of_outputs(lambda x: tf.unique(tf.cast(x[:, 0] * 5, tf.int64)))
    assert sizes["Unique"] == [ROWS * 8, ROWS * 4]


def test_a_selection_of_a_selection_has_a_bound():
    def twice(x):
        positive = tf.boolean_mask(x, x[:, 0] > 0)
        return tf.boolean_mask(positive, positive[:, 1] > 0)

    sizes, _ = bytes_of_outputs(twice)
    assert sizes["GatherV2"] == [ROWS * COLUMNS * 4]


def test_parts_count_as_1_where_they_are_joined_to_a_known_size():
    """Each of two parts has at most all rows; both together have as many, and not twice as many."""

    def joined_partitions(x):
        first, second = tf.dynamic_partition(x, tf.cast(x[:, 0] > 0, tf.int32), 2)
        return tf.reduce_sum(tf.concat([first, second], 0) * x)

    sizes, messages = bytes_of_outputs(joined_partitions)
    assert sizes["DynamicPartition"] == [COLUMNS * 4] * 2
    assert len(messages) == 1 and "depend on data as 1, in the outputs of" in messages[0]


def test_bug_rows_that_are_stitched_together_again_counted_as_1():
    """A layer of two experts: each has at most all rows, and both together have as many."""

    def experts(x):
        choice = tf.cast(x[:, 0] > 0, tf.int32)
        numbers = tf.dynamic_partition(tf.range(ROWS), choice, 2)
        first, second = tf.dynamic_partition(x, choice, 2)
        return tf.reduce_sum(tf.dynamic_stitch(numbers, [tf.tanh(first), tf.sigmoid(second)]) * x)

    sizes, messages = bytes_of_outputs(experts)
    assert sizes["DynamicStitch"] == sizes["Tanh"] == sizes["Sigmoid"] == [ENTRIES * 4]
    assert len(messages) == 1 and "depend on data at their largest" in messages[0]


@pytest.mark.parametrize(
    "places",
    [lambda x: tf.cast(x[:, 1] * 1e3, tf.int32) ** 2, lambda x: tf.range(0, 2 * ROWS, 2)],
    ids=["data", "even"],
)
def test_rows_that_are_stitched_to_other_places_count_as_1(places):
    def spread(x):
        places_of_parts = tf.dynamic_partition(places(x), tf.cast(x[:, 0] > 0, tf.int32), 2)
        return tf.reduce_sum(
            tf.dynamic_stitch(places_of_parts, tf.dynamic_partition(x, tf.cast(x[:, 0] > 0, tf.int32), 2))
        )

    sizes, _ = bytes_of_outputs(spread)
    assert sizes["DynamicStitch"] == [COLUMNS * 4]


def test_sizes_that_no_machine_holds_count_as_1():
    """Products of all pairs of 4.9 billion entries have more bytes than a 64-bit number."""

    def pairs(x):
        rows = tf.cast(tf.where(tf.fill([70_000, 70_000], x[0, 0] > 0))[:, :1], tf.float32)
        return tf.reduce_sum(tf.matmul(rows, rows, transpose_b=True))

    sizes, messages = bytes_of_outputs(pairs)
    assert sizes["Where"] == [70_000**2 * 2 * 8] and sizes["MatMul"] == [4] and len(messages) == 2


@pytest.mark.slow
def test_the_peak_of_a_sparse_step_is_not_below_the_measured_one():
    """Previously 40 % below."""
    weight = tf.Variable(np.ones((COLUMNS, COLUMNS), np.float32))

    def train(x):
        with tf.GradientTape() as tape:
            sparse = tf.sparse.from_dense(tf.where(x > 0, x, 0.0))
            loss = tf.reduce_mean(tf.sparse.sparse_dense_matmul(sparse, weight) ** 2)
        weight.assign_sub(tf.convert_to_tensor(tape.gradient(loss, weight)))

    step, cluster = bl.trace(train, VALUES), bl.Cluster.uniform(1, kind="cpu")
    peaks = []
    for mode, hardware in (("estimated", "cpu-core"), ("measured", None)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuessedCosts)
            graph = bl.profile(step, mode=mode, hardware=hardware)
        peaks.append(int(bl.simulate(graph, cluster, bl.place(graph, cluster, "single")).peak_bytes[0]))
    assert peaks[1] <= peaks[0] <= 3 * peaks[1]
