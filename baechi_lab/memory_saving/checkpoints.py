"""Which forward ops keep their outputs for the backward pass; the others are computed again (`memory_saving.recompute`)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput, UnknownNameError, UnknownOpError
from ..graph import OpGraph
from .training_graph import Parts

Bools = NDArray[np.bool_]

KEEP = ("all", "boundaries", "sqrt")
"""The choices that have a name."""


def kept_ops(parts: Parts, keep: str | Iterable[str] | None, drop: Iterable[str] | None) -> list[Bools]:
    """bool[n] each: the ops whose outputs are kept, and what to try where that saves no memory.

    At most one of the choices is given, and "sqrt" is made where none is.

    Raises:
        UnknownNameError: `keep` is a text that is no choice.
        UnknownOpError: a name that is no op's.
        InvalidInput: an op in `drop` may not be repeated.
    """
    if drop is not None:
        return [~_droppable(parts, drop)]
    if keep is None or keep == "sqrt":
        root = square_root(parts)
        return [segments(parts, max(k, 1)) for k in (root, root // 2, 2 * root, 4 * root)]
    if keep == "all":
        return [np.ones(parts.graph.n, dtype=np.bool_)]
    if keep == "boundaries":
        return [boundaries(parts)]
    if isinstance(keep, str):
        raise UnknownNameError.of("choice of keep", keep, KEEP)
    return [_named(parts.graph, "keep", keep)]


def boundaries(parts: Parts) -> Bools:
    """bool[n]: ops whose output another layer reads in the forward pass; `bl.recompute` says what a layer is."""
    return read_across(parts, layers(parts.graph))


def square_root(parts: Parts) -> int:
    """The number of segments of Chen et al. 2016: the root of the number of ops whose outputs the backward pass reads."""
    return max(round(math.sqrt(np.count_nonzero(held_for_backward(parts)))), 1)


def segments(parts: Parts, count: int) -> Bools:
    """bool[n]: what a segment reads of another, and all of the last one, of `count` segments of equal bytes.

    Chen et al. 2016, section 4.1: with n equal stages in sqrt(n) segments, sqrt(n) - 1 outputs are kept and sqrt(n) held at
    once. The last segment's backward pass is due at once, so its outputs need not be dropped.
    """
    weight = np.where(held_for_backward(parts), parts.data_bytes, 0)[parts.ordered]
    before = (np.cumsum(weight) - weight).astype(np.float64)
    segment = np.full(parts.graph.n, -1, dtype=np.int64)
    segment[parts.ordered] = np.minimum(before * count // max(float(weight.sum()), 1.0), count - 1)
    return read_across(parts, segment) | (segment == count - 1)


def held_for_backward(parts: Parts) -> Bools:
    """bool[n]: ops that may be repeated and whose outputs a late op reads."""
    graph = parts.graph
    held = np.zeros(graph.n, dtype=np.bool_)
    held[graph.edge_source[parts.late[graph.consumers]]] = True
    return held & parts.may_repeat & (parts.data_bytes > 0)


def read_across(parts: Parts, part: NDArray[np.int64]) -> Bools:
    """bool[n]: ops whose data a forward op of another part (int64[n]) reads that may be repeated."""
    found = np.zeros(parts.graph.n, dtype=np.bool_)
    for op in np.flatnonzero(parts.may_repeat).tolist():
        readers = parts.readers(op)
        readers = readers[parts.may_repeat[readers]]
        found[op] = bool(np.any(part[readers] != part[op]))
    return found


def layers(graph: OpGraph) -> NDArray[np.int64]:
    """int64[n]: the layer of each op: its colocation group, or the scope of its name, or the op alone.

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


def _droppable(parts: Parts, names: Iterable[str]) -> Bools:
    dropped = _named(parts.graph, "drop", names)
    for op in np.flatnonzero(dropped).tolist():
        if reason := parts.why_not(op):
            raise InvalidInput(f"op {parts.graph.names[op]!r} in drop cannot be computed again: {reason}")
    return dropped


def _named(graph: OpGraph, field: str, names: Iterable[str]) -> Bools:
    found = np.zeros(graph.n, dtype=np.bool_)
    for name in names:
        if not isinstance(name, str) or name not in graph.index:
            raise UnknownOpError(f"{field} names op {name!r:.60}, which graph {graph.name!r} does not have")
        found[graph.index[name]] = True
    return found
