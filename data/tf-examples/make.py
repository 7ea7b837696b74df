"""Build the three networks of Table 1 in Mayer et al. (2017) anew and store their graphs: `python data/tf-examples/make.py`.

The authors took them from the TensorFlow examples of 2017. Here the same networks are written again from their description:
a two-layer convolutional network on 28 x 28 images, an LSTM that reads an image row by row (28 steps), and an LSTM over
sequences of up to 20 numbers of which each has a length of its own. Every node of the TensorFlow graph is an op, every
data or control input an edge, every `_class` attribute a colocation group. Only the structure is kept: the experiment
draws all costs. Needs TensorFlow; the graphs change with its version (README.md names the one used).
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import tensorflow.compat.v1 as tf

import baechi_lab as bl

HERE = pathlib.Path(__file__).parent


def variable(*shape: int) -> tf.Variable:
    """A variable as the examples make it: random normal start values."""
    return tf.Variable(tf.random_normal(shape))


def train(logits: tf.Tensor, labels: tf.Tensor, optimizer: tf.train.Optimizer) -> None:
    """Loss, optimizer, accuracy and initializer, as at the end of each example."""
    prediction = tf.nn.softmax(logits)
    loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(logits=logits, labels=labels))
    optimizer.minimize(loss)
    correct = tf.equal(tf.argmax(prediction, 1), tf.argmax(labels, 1))
    tf.reduce_mean(tf.cast(correct, tf.float32))
    tf.global_variables_initializer()


def convolutional_network() -> None:
    """Two convolutions with max pooling, a dense layer with dropout, Adam."""
    image, labels = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.float32, [None, 10])
    keep = tf.placeholder(tf.float32)
    layer = tf.reshape(image, [-1, 28, 28, 1])
    for inputs, filters in ((1, 32), (32, 64)):
        layer = tf.nn.conv2d(layer, variable(5, 5, inputs, filters), [1, 1, 1, 1], "SAME")
        layer = tf.nn.relu(tf.nn.bias_add(layer, variable(filters)))
        layer = tf.nn.max_pool(layer, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    dense = variable(7 * 7 * 64, 1024)
    layer = tf.reshape(layer, [-1, dense.get_shape().as_list()[0]])
    layer = tf.nn.relu(tf.add(tf.matmul(layer, dense), variable(1024)))
    layer = tf.nn.dropout(layer, rate=1 - keep)
    train(tf.add(tf.matmul(layer, variable(1024, 10)), variable(10)), labels, tf.train.AdamOptimizer(0.001))


def lstm_cell(units: int, inputs: int) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """The basic LSTM cell: one product for all four gates."""
    kernel, bias = variable(inputs + units, 4 * units), variable(4 * units)

    def step(row: tf.Tensor, output: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        gates = tf.nn.bias_add(tf.matmul(tf.concat([row, output], 1), kernel), bias)
        enter, new, forget, leave = tf.split(gates, 4, axis=1)
        state = tf.add(
            tf.multiply(state, tf.sigmoid(tf.add(forget, 1.0))), tf.multiply(tf.sigmoid(enter), tf.tanh(new))
        )
        return tf.multiply(tf.tanh(state), tf.sigmoid(leave)), state

    return step


def zeros(like: tf.Tensor, units: int) -> tf.Tensor:
    return tf.fill(tf.stack([tf.shape(like)[0], units]), 0.0)


def recurrent_network() -> None:
    """An LSTM of 128 units over 28 rows."""
    image, labels = tf.placeholder(tf.float32, [None, 28, 28]), tf.placeholder(tf.float32, [None, 10])
    rows = tf.unstack(image, 28, 1)
    step, output, state = lstm_cell(128, 28), zeros(rows[0], 128), zeros(rows[0], 128)
    for row in rows:
        output, state = step(row, output, state)
    optimizer = tf.train.AdamOptimizer(0.001)
    train(tf.add(tf.matmul(output, variable(128, 10)), variable(10)), labels, optimizer)


def dynamic_rnn() -> None:
    """An LSTM of 64 units over up to 20 numbers; a step past a sequence's end leaves output and state as they are."""
    numbers, labels = tf.placeholder(tf.float32, [None, 20, 1]), tf.placeholder(tf.float32, [None, 2])
    length = tf.placeholder(tf.int32, [None])
    rows = tf.unstack(numbers, 20, 1)
    step, output, state = lstm_cell(64, 1), zeros(rows[0], 64), zeros(rows[0], 64)
    nothing, shortest, longest = zeros(rows[0], 64), tf.reduce_min(length), tf.reduce_max(length)
    outputs = []
    for time, row in enumerate(rows):

        def through(
            row: tf.Tensor = row, output: tf.Tensor = output, state: tf.Tensor = state, time: int = time
        ) -> list:
            new, kept = step(row, output, state)
            over = tf.greater_equal(time, length)
            return [tf.where(over, nothing, new), tf.where(over, output, new), tf.where(over, state, kept)]

        def call(row: tf.Tensor = row, output: tf.Tensor = output, state: tf.Tensor = state) -> list:
            new, kept = step(row, output, state)
            return [new, new, kept]

        def running(time: int = time, call: Callable = call, through: Callable = through) -> list:
            return tf.cond(tf.less(time, shortest), call, through)

        def past(output: tf.Tensor = output, state: tf.Tensor = state) -> list:
            return [tf.identity(nothing), tf.identity(output), tf.identity(state)]

        shown, output, state = tf.cond(tf.greater_equal(time, longest), past, running)
        outputs.append(shown)
    stacked = tf.transpose(tf.stack(outputs), [1, 0, 2])
    index = tf.range(0, tf.shape(stacked)[0]) * 20 + (length - 1)
    last = tf.gather(tf.reshape(stacked, [-1, 64]), index)
    optimizer = tf.train.GradientDescentOptimizer(0.01)
    train(tf.add(tf.matmul(last, variable(64, 2)), variable(2)), labels, optimizer)


def structure(build: Callable[[], None]) -> bl.OpGraph:
    """The nodes of the graph that `build` makes, with durations of 1 us and tensors of 1 byte."""
    with tf.Graph().as_default() as graph:
        build()
        nodes = graph.as_graph_def().node
    index = {node.name: i for i, node in enumerate(nodes)}
    edges = set()
    for node in nodes:
        for text in node.input:
            producer = text.lstrip("^").split(":")[0]
            edges.add((index[producer], index[node.name], 1))
    groups, names = _groups(nodes, index)
    return bl.OpGraph.from_edges(
        [1.0] * len(nodes), sorted(edges), names=[node.name for node in nodes], name=build.__name__,
        op_types=tuple(node.op for node in nodes), colocation=groups, colocation_names=names,
    )  # fmt: skip


def _groups(nodes: list, index: dict[str, int]) -> tuple[list[int], tuple[str, ...]]:
    """Ops joined by `loc:@other` are one group, named by its first op."""
    parent = list(range(len(nodes)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for i, node in enumerate(nodes):
        for text in node.attr["_class"].list.s:
            a, b = sorted((root(i), root(index[text.decode().removeprefix("loc:@")])))
            parent[b] = a
    roots = [root(i) for i in range(len(nodes))]
    joined = sorted({r for r in roots if roots.count(r) > 1})
    place = {r: k for k, r in enumerate(joined)}
    return [place.get(r, -1) for r in roots], tuple(nodes[r].name for r in joined)


if __name__ == "__main__":
    tf.disable_eager_execution()
    tf.disable_control_flow_v2()
    tf.disable_resource_variables()
    for network in (convolutional_network, recurrent_network, dynamic_rnn):
        made = structure(network)
        bl.save_graph(made, HERE / f"{network.__name__}.json.gz")
        grouped = int((made.colocation >= 0).sum())
        print(
            f"{made.name}: {made.n} nodes, {made.edge_count} edges, {grouped} collocated, TensorFlow {tf.__version__}"
        )
