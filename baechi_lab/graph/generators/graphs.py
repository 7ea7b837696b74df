"""Graphs to try things on: every generator takes a `seed` and gives the same graph for the same arguments.

Costs are one number for all ops, or a range `(low, high)` from which they are drawn log-uniformly, as the costs of real
operators spread over orders of magnitude. Ops are numbered in topological order. Everything is built by array
operations: a million ops take a few seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...checks import check_number, check_whole, finite
from ...errors import InvalidInput, in_short
from ..kernels.csr import distinct, offsets
from ..opgraph import OpGraph
from .sizes import MOST_BYTES, check_bytes, check_count, check_numbers, check_size


def pipeline(
    forward_us: Sequence[float],
    backward_us: Sequence[float],
    weight_us: Sequence[float] | None = None,
    *,
    output_bytes: int = 0,
    activation_bytes: int = 0,
    kept_bytes: int = 0,
    parameter_bytes: int = 0,
) -> OpGraph:
    """Returns one micro-batch of a chain of pipeline stages: ops `F0`, `F1`, ..., `B0`, ..., and, with `weight_us`, `W0`, ...

    `B` is the backward pass of a stage; with `weight_us` it is the gradient of its inputs, and `W` that of its weights. Both
    read the gradient of the stage's output; neither waits for the other. The ops of a stage share a colocation group.

    Args:
        forward_us, backward_us, weight_us: float[stages], microseconds of F, B and W.
        output_bytes: what a stage sends to the next, and as gradient to the one before.
        activation_bytes: what F leaves for B.
        kept_bytes: what F leaves for W.
        parameter_bytes: persistent bytes of each stage.

    Raises:
        InvalidInput: the lists differ in length, or an argument is no number of its unit.

    >>> graph = pipeline([1.0, 1.0], [2.0, 2.0])
    >>> graph.names, graph.forward_of.tolist()
    (('F0', 'F1', 'B0', 'B1'), [-1, -1, 0, 1])
    """
    columns_us = [check_numbers("forward_us", forward_us), check_numbers("backward_us", backward_us)]
    columns_us += [] if weight_us is None else [check_numbers("weight_us", weight_us)]
    p, split = len(columns_us[0]), weight_us is not None
    for key, column in zip(("backward_us", "weight_us"), columns_us[1:], strict=False):
        if len(column) != p:
            raise InvalidInput(f"{key} has {len(column)} entries for {p} stages")
    output_bytes = check_bytes("output_bytes", output_bytes)
    activation_bytes = check_bytes("activation_bytes", activation_bytes)
    kept_bytes, parameter_bytes = check_bytes("kept_bytes", kept_bytes), check_bytes("parameter_bytes", parameter_bytes)
    kinds = "FBW" if split else "FB"
    f, b, w = (np.arange(p) + k * p for k in range(3))
    tensors: list[tuple[int, int, str, list[int]]] = []  # producer, bytes, name, readers
    for s in range(p):
        if s + 1 < p:
            tensors.append((f[s], output_bytes, "output", [f[s + 1]]))
        tensors.append((f[s], activation_bytes, "activation", [b[s]]))
        if split:
            tensors.append((f[s], kept_bytes, "kept", [w[s]]))
    tensors += [(b[s], output_bytes, "gradient", [b[s - 1], *([w[s - 1]] if split else [])]) for s in range(1, p)]
    readers = [r for _, _, _, each in tensors for r in sorted(each)]
    row = np.repeat(np.arange(len(tensors)), [len(each) for _, _, _, each in tensors])
    columns: dict[str, Any] = {
        "tensor_producer": np.array([t[0] for t in tensors], dtype=np.int32),
        "tensor_bytes": np.array([t[1] for t in tensors], dtype=np.int64),
        "consumers": np.array(readers, dtype=np.int32),
    }
    stage = np.tile(np.arange(p), len(kinds))
    return OpGraph(
        names=tuple(f"{kind}{s}" for kind in kinds for s in range(p)),
        op_types=tuple(kind for kind in kinds for _ in range(p)),
        duration_us=np.concatenate(columns_us),
        tensor_names=tuple(t[2] for t in tensors),
        consumer_ptr=offsets(row, len(tensors)),
        persistent_bytes=np.where(np.arange(len(stage)) < p, parameter_bytes, 0),
        colocation=stage.astype(np.int32),
        colocation_names=tuple(f"stage{s}" for s in range(p)),
        forward_of=np.where(np.arange(len(stage)) < p, -1, stage),
        name=f"pipeline-{p}",
        **columns,
    )


Range = float | tuple[float, float]

DURATION_US: Range = (2.0, 500.0)  # least and largest, log-uniform
SIZE_BYTES: Range = (1 << 10, 4 << 20)
"""Default range of the bytes of a tensor."""

__all__ = ["chain", "fork_join", "layered_dag", "random_dag"]


def chain(n: int, *, duration_us: Range = DURATION_US, size_bytes: Range = SIZE_BYTES, seed: int = 0) -> OpGraph:
    """Returns `n` ops, each reading the one before it.

    >>> chain(3, duration_us=5.0).edge_count
    2
    """
    n = check_count("n", n, 0)
    rng = np.random.default_rng(_seed(seed))
    ops = np.arange(max(n - 1, 0))
    return _graph(rng, n, ops, ops + 1, duration_us, size_bytes, name=f"chain-{n}")


def fork_join(
    width: int, length: int = 1, *, duration_us: Range = DURATION_US, size_bytes: Range = SIZE_BYTES, seed: int = 0
) -> OpGraph:
    """Returns a source, `width` parallel chains of `length` ops, and a sink: `width * length + 2` ops.

    >>> fork_join(2, duration_us=5.0).n
    4
    """
    width, length = check_count("width", width), check_count("length", length)
    check_size(f"width {width} and length {length}", width * length + 2)
    rng = np.random.default_rng(_seed(seed))
    n = width * length + 2
    inner = 1 + np.arange(width * length).reshape(width, length)
    source = np.concatenate([np.zeros(width, dtype=np.int64), inner[:, :-1].ravel(), inner[:, -1]])
    target = np.concatenate([inner[:, 0], inner[:, 1:].ravel(), np.full(width, n - 1)])
    return _graph(rng, n, source, target, duration_us, size_bytes, name=f"fork-join-{width}x{length}")


def layered_dag(
    n: int,
    *,
    width: int | None = None,
    degree: float = 2.0,
    skip: float = 0.1,
    duration_us: Range = DURATION_US,
    size_bytes: Range = SIZE_BYTES,
    temp_bytes: Range = 0,
    persistent_bytes: Range = 0,
    seed: int = 0,
) -> OpGraph:
    """Returns `n` ops in layers of 1 to `2 * width - 1` ops (default `width`: the square root of `n`).

    Every op below the first layer reads `degree` ops on average, at least one of them from the layer above; each
    further one comes with probability `skip` from any earlier layer.

    >>> layered_dag(100, seed=1) == layered_dag(100, seed=1)
    True
    """
    n = check_count("n", n, 0)
    wide = check_count("width", max(round(math.sqrt(n)), 1) if width is None else width)
    mean, skip = check_number("degree", degree, 1.0), check_number("skip", skip, 0.0, 1.0)
    check_size(f"degree {mean:g} of {n} ops", n, mean * n)
    rng = np.random.default_rng(_seed(seed))
    layer_begin = np.r_[0, np.cumsum(rng.integers(1, 2 * wide, size=n + 1))]
    layer_begin = layer_begin[layer_begin < n] if n else layer_begin[:0]
    layer = np.searchsorted(layer_begin, np.arange(n), side="right") - 1
    first = int(layer_begin[1]) if len(layer_begin) > 1 else n
    target = np.repeat(np.arange(first, n), 1 + rng.poisson(mean - 1.0, size=max(n - first, 0)))
    far = rng.random(len(target)) < skip
    far &= np.r_[False, target[1:] == target[:-1]]
    low = np.where(far, 0, layer_begin[layer[target] - 1] if len(target) else 0)
    source = low + (rng.random(len(target)) * (layer_begin[layer[target]] - low)).astype(np.int64)
    costs: dict[str, Any] = {"temp_bytes": temp_bytes, "persistent_bytes": persistent_bytes}
    return _graph(rng, n, source, target, duration_us, size_bytes, name=f"layered-{n}", **costs)


def random_dag(
    n: int,
    *,
    degree: float = 2.0,
    window: int | None = None,
    second_output: float = 0.0,
    colocation_groups: int = 0,
    grouped: float = 0.2,
    duration_us: Range = DURATION_US,
    size_bytes: Range = SIZE_BYTES,
    temp_bytes: Range = 0,
    persistent_bytes: Range = 0,
    seed: int = 0,
) -> OpGraph:
    """Returns `n` ops and about `degree * n` random edges from lower to higher index (as an Erdos-Renyi graph, oriented).

    `window` bounds how far an edge reaches; `second_output` is the share of ops that produce two tensors;
    a share `grouped` of the ops is spread over `colocation_groups` groups.

    >>> random_dag(50, degree=3.0, seed=2).n
    50
    """
    n, groups = check_count("n", n, 0), check_count("colocation_groups", colocation_groups, 0)
    mean = check_number("degree", degree)
    check_size(f"degree {mean:g} of {n} ops", n, mean * n)
    reach = n if window is None else min(check_whole("window", window, 0), n)
    share = check_number("second_output", second_output, 0.0, 1.0)
    grouped = check_number("grouped", grouped, 0.0, 1.0)
    rng = np.random.default_rng(_seed(seed))
    edges = round(mean * n) if n > 1 and reach > 0 else 0
    target = rng.integers(1, max(n, 2), size=edges)
    source = target - 1 - (rng.random(edges) * np.minimum(target, reach)).astype(np.int64)
    two = rng.random(n) < share
    slot = np.where(two[source], rng.integers(0, 2, size=edges), 0) if edges else source
    columns: dict[str, Any] = {}
    if groups:
        columns["colocation"] = np.where(rng.random(n) < grouped, rng.integers(0, groups, size=n), -1).astype(np.int32)
        columns["colocation_names"] = tuple(f"group{k}" for k in range(groups))
    costs: dict[str, Any] = {"temp_bytes": temp_bytes, "persistent_bytes": persistent_bytes}
    return _graph(rng, n, source, target, duration_us, size_bytes, slot=slot, name=f"random-{n}", **costs, **columns)


def _graph(
    rng: np.random.Generator,
    n: int,
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    duration_us: Range,
    size_bytes: Range,
    slot: NDArray[np.int64] | int = 0,
    **columns: Any,
) -> OpGraph:
    """Draws the costs; `slot` says which of at most two outputs of its source an edge carries."""
    for key in ("temp_bytes", "persistent_bytes"):
        if key in columns:
            columns[key] = _draw(rng, columns[key], n, key).astype(np.int64)
    tensor = 2 * source.astype(np.int64) + slot
    pairs = distinct(tensor * max(n, 1) + target)
    producers, tensor_of = np.unique(pairs // max(n, 1), return_inverse=True)
    return OpGraph(
        names=tuple([f"op{i}" for i in range(n)]),
        duration_us=_draw(rng, duration_us, n, "duration_us"),
        tensor_producer=(producers // 2).astype(np.int32),
        tensor_bytes=_draw(rng, size_bytes, len(producers), "size_bytes").astype(np.int64),
        consumer_ptr=offsets(tensor_of, len(producers)),
        consumers=(pairs % max(n, 1)).astype(np.int32),
        **columns,
    )


def _draw(rng: np.random.Generator, cost: Range, n: int, field: str) -> NDArray[np.float64]:
    cost_range = cost if isinstance(cost, (tuple, list)) and len(cost) == 2 else (cost, cost)
    low, high = finite(cost_range[0]), finite(cost_range[1])
    if low is None or high is None or min(low, high) < 0:
        raise InvalidInput(
            f"{field} is {in_short(cost)}; it must be a number of at least 0, or a range (low, high) of them"
        )
    if low > high:
        raise InvalidInput(f"{field} is {in_short(cost)}; the range must be (low, high)")
    if field != "duration_us" and high > MOST_BYTES:
        raise InvalidInput(f"{field} is {in_short(cost)}; it must be at most {MOST_BYTES} bytes")
    if low == high:
        return np.full(n, low)
    if low == 0:
        return rng.uniform(0.0, high, size=n)
    return np.exp(rng.uniform(math.log(low), math.log(high), size=n))


def _seed(value: object) -> int:
    return check_whole("seed", value, 0)
