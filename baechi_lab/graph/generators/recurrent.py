"""Unrolled recurrent networks as graphs: LSTM language models, and an encoder-decoder with attention (GNMT).

A block is a template of a few ops; a grid of blocks is one array operation, so that a million ops take seconds. Costs
come from a roofline of a 10 TFLOP/s, 400 GB/s accelerator with 4 us per launch, with a seeded jitter of some percent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...checks import check_flag, check_number, check_whole
from ...errors import InvalidInput, in_short
from ..kernels.csr import distinct, inverse, offsets
from ..opgraph import OpGraph
from .backward import with_backward
from .sizes import MOST_BYTES, check_count, check_size

_LAUNCH_US, _FLOP_PER_US, _BYTES_PER_US = 4.0, 10e6, 4e5  # a GPU of 10 TFLOP/s and 400 GB/s
_SLOTS = 4
"""Most outputs that an op has here (the four gates of an LSTM cell)."""

_OPS_PER_CELL = 15
"""Least number of ops of an LSTM cell at one step."""

Ops = NDArray[np.int64]


@dataclass
class _Net:
    """Ops and edges collected block by block; an edge is (4 * producer + output, consumer)."""

    n: int = 0
    names: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    duration: list[NDArray[np.float64]] = field(default_factory=list)
    size: list[NDArray[np.int64]] = field(default_factory=list)
    persistent: list[NDArray[np.int64]] = field(default_factory=list)
    place: list[NDArray[np.int64]] = field(default_factory=list)
    """(phase, step) of every op: what comes first in the final numbering."""
    phase: int = 0
    tensor: list[Ops] = field(default_factory=list)
    reader: list[Ops] = field(default_factory=list)

    def ops(self, names: list[str], kind: str, flop: float, size: int, *, persistent: int = 0, outputs: int = 1) -> Ops:
        """Adds equal ops; `size` bytes per output, `persistent` bytes throughout."""
        first, count = self.n, len(names)
        self.n += count
        self.names += names
        self.types += [kind] * count
        moved_bytes = 2.0 * size * outputs
        us = 0.0 if persistent else _LAUNCH_US + max(flop / _FLOP_PER_US, moved_bytes / _BYTES_PER_US)
        self.duration.append(np.full(count, us))
        self.size.append(np.full(count, size, dtype=np.int64))
        self.persistent.append(np.full(count, persistent, dtype=np.int64))
        phase = np.full(count, -1 if persistent else self.phase)
        self.place.append(np.stack([phase, np.arange(count)], axis=1))
        return np.arange(first, first + count)

    def edge(self, source: Ops | int, target: Ops | int, output: int = 0) -> None:
        """Connects arrays of ops, element by element (or one to many)."""
        a, b = np.broadcast_arrays(np.asarray(source), np.asarray(target))
        self.tensor.append(_SLOTS * a.ravel() + output)
        self.reader.append(b.ravel())

    def graph(self, name: str, seed: int, jitter: float) -> OpGraph:
        """Numbers the ops topologically (by phase, then step, then block) and draws the jitter."""
        n = self.n
        place = np.concatenate(self.place)
        order = np.lexsort((place[:, 1], place[:, 0]))
        number = inverse(order)
        tensor = np.concatenate(self.tensor)
        pairs = distinct(
            (_SLOTS * number[tensor // _SLOTS] + tensor % _SLOTS) * n + number[np.concatenate(self.reader)]
        )
        producers, tensor_of = np.unique(pairs // n, return_inverse=True)
        producer = producers // _SLOTS
        noise = np.random.default_rng(seed).standard_normal(n)
        return OpGraph(
            names=tuple([self.names[i] for i in order.tolist()]),
            op_types=tuple([self.types[i] for i in order.tolist()]),
            duration_us=np.concatenate(self.duration)[order] * np.exp(jitter * noise),
            tensor_producer=producer.astype(np.int32),
            tensor_bytes=np.concatenate(self.size)[order][producer],
            consumer_ptr=offsets(tensor_of, len(producers)),
            consumers=(pairs % n).astype(np.int32),
            persistent_bytes=np.concatenate(self.persistent)[order],
            name=name,
        )


@dataclass(frozen=True)
class _Shape:
    batch: int
    hidden: int
    vocabulary: int

    @property
    def state(self) -> int:
        """Bytes of one hidden state of the whole batch."""
        return 4 * self.batch * self.hidden


def unrolled_rnn(
    steps: int = 40,
    layers: int = 4,
    *,
    ops: int | None = None,
    batch: int = 128,
    hidden: int = 512,
    vocabulary: int = 10_000,
    training: bool = True,
    jitter: float = 0.05,
    seed: int = 0,
) -> OpGraph:
    """Returns an LSTM language model unrolled over `steps`, `layers` deep; with `training`, its backward pass and updates.

    `ops`: choose `steps` so that the graph has at least that many ops. Sizes follow from `batch`, `hidden` and
    `vocabulary` (float32); `jitter` is the standard deviation of the logarithm of each duration.

    >>> unrolled_rnn(2, 1).n, unrolled_rnn(ops=1000, layers=2).n >= 1000
    (97, True)
    """
    sizes = {"layers": layers, "batch": batch, "hidden": hidden, "vocabulary": vocabulary}
    return _unrolled_graph(_language_model, "rnn", steps, ops, training, {**sizes, "jitter": jitter, "seed": seed})


def gnmt(
    length: int = 40,
    layers: int = 4,
    *,
    ops: int | None = None,
    batch: int = 128,
    hidden: int = 512,
    vocabulary: int = 30_000,
    training: bool = True,
    jitter: float = 0.05,
    seed: int = 0,
) -> OpGraph:
    """Returns an encoder-decoder with attention after Google's NMT: `layers` LSTM layers on each side, `length` positions.

    The decoder attends to the encoder's states from its first layer, residual connections join the upper layers.
    `ops` and the other parameters as in `unrolled_rnn`.

    >>> gnmt(3, 2, training=False).name
    'gnmt-2x3'
    """
    sizes = {"layers": layers, "batch": batch, "hidden": hidden, "vocabulary": vocabulary}
    return _unrolled_graph(_translator, "gnmt", length, ops, training, {**sizes, "jitter": jitter, "seed": seed})


def _unrolled_graph(
    build: Callable[[int, int, _Shape], _Net],
    name: str,
    steps: int,
    ops: int | None,
    training: bool,
    arguments: dict[str, Any],
) -> OpGraph:
    """Returns the graph of `steps` steps, or of the fewest that give `ops` ops."""
    counts = {"steps": steps, **{k: arguments[k] for k in ("layers", "batch", "hidden", "vocabulary")}}
    counts |= {} if ops is None else {"ops": ops}
    for key, value in counts.items():
        check_whole(key, value)
    check_whole("seed", arguments["seed"], low=0)
    check_number("jitter", arguments["jitter"], 0.0, 10.0)
    check_flag("training", training)
    if ops is not None:
        check_count("ops", ops)
    steps, layers = int(steps), int(arguments["layers"])
    blocks = layers * (steps if ops is None else 4)  # graphs of up to four steps tell how many there must be
    check_size(
        f"{in_short(layers)} layers" + (f" of {in_short(steps)} steps" if ops is None else ""), blocks * _OPS_PER_CELL
    )
    batch, hidden, vocabulary = (int(arguments[key]) for key in ("batch", "hidden", "vocabulary"))
    largest = max(32 * hidden**2, 4 * max(batch, hidden) * vocabulary, 16 * batch * hidden * steps)
    if largest > MOST_BYTES // 4:
        raise InvalidInput(
            f"batch {in_short(batch)}, hidden {in_short(hidden)} and vocabulary {in_short(vocabulary)} make a tensor of more "
            f"than {MOST_BYTES // 4} bytes"
        )
    if ops is not None:
        # The number of ops is linear in the steps (from the second on), so two small graphs tell it.
        small = {**arguments, "batch": 1, "hidden": 1, "vocabulary": 1}
        few, longer = (_finish(build, "", k, training, small).n for k in (3, 4))
        steps = max(1, 3 - int(few - int(ops)) // int(longer - few))
    return _finish(build, f"{name}-{layers}x{steps}", steps, training, arguments)


def _finish(
    build: Callable[[int, int, _Shape], _Net], name: str, steps: int, training: bool, arguments: dict[str, Any]
) -> OpGraph:
    shape = _Shape(int(arguments["batch"]), int(arguments["hidden"]), int(arguments["vocabulary"]))
    net = build(steps, int(arguments["layers"]), shape)
    forward = net.graph(name, arguments["seed"], float(arguments["jitter"]))
    return with_backward(forward) if training else forward


def _language_model(steps: int, layers: int, shape: _Shape) -> _Net:
    net = _Net()
    inputs = _embed(net, "embedding", steps, shape)
    top = _stack(net, "lstm", inputs, steps, layers, shape)
    _loss(net, top, steps, shape)
    return net


def _translator(length: int, layers: int, shape: _Shape) -> _Net:
    """Makes an encoder, and a decoder with attention to all encoder states."""
    net = _Net()
    source = _embed(net, "encoder/embedding", length, shape)
    memory = _stack(net, "encoder", source, length, layers, shape)
    net.phase = 1
    keys = net.ops(["attention/keys"], "Pack", 0.0, shape.state * length)
    net.edge(memory, keys)
    net.phase = 2
    words = _embed(net, "decoder/embedding", length, shape)
    scores, weights = 4 * shape.batch * length, 4 * shape.hidden * shape.hidden
    query_kernel = _variable(net, "attention/query_kernel", weights)
    flop = 2.0 * shape.batch * shape.hidden * shape.hidden
    query = net.ops(_at("attention/query", length), "MatMul", flop, shape.state)
    net.edge(query_kernel, query)
    previous = query
    for suffix, kind, size in (
        ("add", "AddV2", shape.state * length),
        ("tanh", "Tanh", shape.state * length),
        ("sum", "Sum", scores),
        ("softmax", "Softmax", scores),
        ("weigh", "Mul", shape.state * length),
        ("context", "Sum", shape.state),
    ):
        current = net.ops(_at(f"attention/{suffix}", length), kind, 0.0, size)
        net.edge(previous, current)
        if suffix in ("add", "weigh"):
            net.edge(keys, current)
        previous = current
    context = previous, query
    top = _stack(net, "decoder", words, length, layers, shape, context)
    _loss(net, top, length, shape)
    return net


def _at(name: str, steps: int) -> list[str]:
    return [f"{name}/{t}" for t in range(steps)]


def _variable(net: _Net, name: str, size: int) -> Ops:
    return net.ops([name], "Variable", 0.0, size, persistent=size)


def _embed(net: _Net, name: str, steps: int, shape: _Shape) -> Ops:
    table = _variable(net, f"{name}/table", 4 * shape.vocabulary * shape.hidden)
    tokens = net.ops(_at(f"{name}/tokens", steps), "Placeholder", 0.0, 8 * shape.batch)
    rows = net.ops(_at(f"{name}/gather", steps), "GatherV2", 0.0, shape.state)
    net.edge(table, rows)
    net.edge(tokens, rows)
    return rows


def _stack(
    net: _Net, name: str, inputs: Ops, steps: int, layers: int, shape: _Shape, context: tuple[Ops, Ops] | None = None
) -> Ops:
    """Adds LSTM layers over all steps; returns the top layer's outputs. `context` is the attention to the first layer."""
    current = inputs
    for layer in range(layers):
        cell = _cells(net, f"{name}/layer{layer}", current, steps, shape)
        if context is not None and layer == 0:
            context_ops, query_ops = context
            net.edge(context_ops, cell["concat"])
            # The query of step t is the first layer's state of step t - 1.
            net.edge(cell["hidden"][:-1], query_ops[1:])
        if layer > 1:
            residual = net.ops(_at(f"{name}/layer{layer}/residual", steps), "AddV2", 0.0, shape.state)
            net.edge(current, residual)
            net.edge(cell["hidden"], residual)
            current = residual
        else:
            current = cell["hidden"]
    return current


def _cells(net: _Net, name: str, inputs: Ops, steps: int, shape: _Shape) -> dict[str, Ops]:
    """Adds one LSTM layer: concat, matmul, bias, split into four gates, and the element-wise state update."""
    wide, state = 4 * shape.state, shape.state
    kernel = _variable(net, f"{name}/kernel", 4 * 2 * shape.hidden * 4 * shape.hidden)
    bias = _variable(net, f"{name}/bias", 4 * 4 * shape.hidden)
    add = lambda gate, kind, size, flop=0.0, outputs=1: net.ops(  # noqa: E731
        _at(f"{name}/{gate}", steps), kind, flop, size, outputs=outputs
    )
    concat = add("concat", "ConcatV2", 2 * state)
    product = add("matmul", "MatMul", wide, 2.0 * shape.batch * 2 * shape.hidden * 4 * shape.hidden)
    bias_sum = add("bias_add", "BiasAdd", wide)
    gates = add("split", "Split", state, outputs=4)
    active = [add(f"gate{k}", "Tanh" if k == 1 else "Sigmoid", state) for k in range(4)]
    input_part, forget_part, cell = add("input", "Mul", state), add("forget", "Mul", state), add("cell", "AddV2", state)
    cell_tanh, hidden = add("tanh", "Tanh", state), add("hidden", "Mul", state)
    pairs = [
        (inputs, concat),
        (concat, product),
        (kernel, product),
        (product, bias_sum),
        (bias, bias_sum),
        (bias_sum, gates),
    ]
    pairs += [
        (active[0], input_part),
        (active[1], input_part),
        (active[2], forget_part),
        (input_part, cell),
        (forget_part, cell),
    ]
    pairs += [(cell, cell_tanh), (cell_tanh, hidden), (active[3], hidden)]
    pairs += [(hidden[:-1], concat[1:]), (cell[:-1], forget_part[1:])]
    for source, target in pairs:
        net.edge(source, target)
    for k in range(4):
        net.edge(gates, active[k], output=k)
    return {"concat": concat, "hidden": hidden}


def _loss(net: _Net, top: Ops, steps: int, shape: _Shape) -> None:
    """Adds the projection to the vocabulary, cross entropy per step, and their sum."""
    logits = 4 * shape.batch * shape.vocabulary
    kernel = _variable(net, "projection/kernel", 4 * shape.hidden * shape.vocabulary)
    product = net.ops(
        _at("projection/matmul", steps), "MatMul", 2.0 * shape.batch * shape.hidden * shape.vocabulary, logits
    )
    losses = net.ops(_at("loss/cross_entropy", steps), "SparseSoftmaxCrossEntropyWithLogits", 0.0, 4 * shape.batch)
    net.phase += 1
    total = net.ops(["loss/total"], "AddN", 0.0, 4)
    for source, target in ((top, product), (kernel, product), (product, losses), (losses, total)):
        net.edge(source, target)
