"""Choice of the forward ops that keep their outputs for the backward pass; `memory_saving.recompute` repeats the others."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput, UnknownNameError, UnknownOpError, in_short
from ..graph import OpGraph
from ..graph.kernels.csr import Bools
from .training_graph import TrainingGraph

KEEP = ("all", "boundaries", "sqrt")
"""Names of choices."""


def checkpoint_choices(
    training: TrainingGraph, keep: str | Iterable[str] | None, drop: Iterable[str] | None
) -> list[Bools]:
    """Returns masks bool[n] of the ops whose outputs are kept: a choice, then alternatives if it saves no memory.

    At most one of `keep` and `drop` is given. The default is "sqrt".

    Raises:
        UnknownNameError: `keep` is a text but not a choice.
        UnknownOpError: no op of that name.
        InvalidInput: an op in `drop` may not be repeated.
    """
    if drop is not None:
        dropped_ops = _ops_of_names(training.graph, "drop", drop)
        for op in np.flatnonzero(dropped_ops).tolist():
            if reason := training.obstacle(op):
                raise InvalidInput(f"op {training.graph.names[op]!r} in drop cannot be computed again: {reason}")
        return [~dropped_ops]
    if keep is None or keep == "sqrt":
        # Chen et al. 2016: the root of the number of ops that the backward pass reads.
        root = max(round(math.sqrt(np.count_nonzero(is_read_by_backward_op(training)))), 1)
        return [segments(training, max(k, 1)) for k in (root, root // 2, 2 * root, 4 * root)]
    if keep == "all":
        return [np.ones(training.graph.n, dtype=np.bool_)]
    if keep == "boundaries":
        return [boundaries(training)]
    if isinstance(keep, str):
        raise UnknownNameError.of("choice of keep", keep, KEEP)
    return [_ops_of_names(training.graph, "keep", keep)]


def boundaries(training: TrainingGraph) -> Bools:
    """Returns bool[n]: ops whose output another layer reads in the forward pass; `bl.recompute` defines layers."""
    return read_across(training, layers(training.graph))


def segments(training: TrainingGraph, count: int) -> Bools:
    """Returns bool[n]: ops that another of `count` segments of equal bytes reads, and all ops of the last segment.

    Chen et al. 2016, section 4.1: with n equal stages in sqrt(n) segments, sqrt(n) - 1 outputs are kept, and sqrt(n) are live
    at once. The backward pass of the last segment follows at once, so its outputs are not dropped.
    """
    weight = np.where(is_read_by_backward_op(training), training.data_bytes, 0)[training.ordered]
    before = (np.cumsum(weight) - weight).astype(np.float64)
    segment = np.full(training.graph.n, -1, dtype=np.int64)
    segment[training.ordered] = np.minimum(before * count // max(float(weight.sum()), 1.0), count - 1)
    return read_across(training, segment) | (segment == count - 1)


def is_read_by_backward_op(training: TrainingGraph) -> Bools:
    """Returns bool[n]: ops that may be repeated and whose outputs a backward op reads."""
    graph = training.graph
    is_read = np.zeros(graph.n, dtype=np.bool_)
    is_read[graph.edge_source[training.is_backward[graph.consumers]]] = True
    return is_read & training.may_repeat & (training.data_bytes > 0)


def read_across(training: TrainingGraph, part_of_op: NDArray[np.int64]) -> Bools:
    """Returns bool[n]: ops that may be repeated and that such an op of another part reads; `part_of_op` int64[n]."""
    is_read_across = np.zeros(training.graph.n, dtype=np.bool_)
    for op in np.flatnonzero(training.may_repeat).tolist():
        readers = training.readers(op)
        readers = readers[training.may_repeat[readers]]
        is_read_across[op] = bool(np.any(part_of_op[readers] != part_of_op[op]))
    return is_read_across


def layers(graph: OpGraph) -> NDArray[np.int64]:
    """Returns int64[n]: the layer of each op, which is its colocation group, or the scope of its name, or the op alone.

    >>> graph = OpGraph.from_edges([1, 1, 1], names=["a/mul", "a/add", "b"])
    >>> layers(graph).tolist()
    [0, 0, 2]
    """
    number: dict[tuple[str, str | int], int] = {}
    out = np.empty(graph.n, dtype=np.int64)
    for op, (name, group) in enumerate(zip(graph.names, graph.colocation.tolist(), strict=True)):
        scope = name.rpartition("/")[0]
        label = ("group", group) if group >= 0 else ("scope", scope) if scope else ("op", name)
        out[op] = number.setdefault(label, op)
    return out


def _ops_of_names(graph: OpGraph, field: str, names: Iterable[str]) -> Bools:
    is_named = np.zeros(graph.n, dtype=np.bool_)
    for name in names:
        if not isinstance(name, str) or name not in graph.index:
            raise UnknownOpError(f"{field} names op {in_short(name)}, which graph {graph.name!r} does not have")
        is_named[graph.index[name]] = True
    return is_named
