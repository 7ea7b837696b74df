"""Graphs of the dnn-partitioning set (Tarnawski et al., NeurIPS 2020, "Efficient Algorithms for Device Placement").

A node has `fpgaLatency` (ms on an accelerator), `cpuLatency` (ms on a CPU core), `size` (bytes it holds),
`colorClass` (optional, its colocation group), `isBackwardNode`, `supportedOnFpga`; an edge has `sourceId`, `destId`,
`size` in bytes and `cost` (their transfer time, in units that differ between the files, so it is not read: the
cluster's link decides). What becomes what:

    duration_us          1000 * fpgaLatency (the accelerator is the reference device, kind "gpu")
    duration_by_kind     "cpu": 1000 * cpuLatency
    persistent_bytes     size: their model keeps a node's bytes for the whole step. Outputs come on top of it while
                         they live, so a peak simulated here is never below theirs.
    colocation           one group per colorClass
    allowed              ("cpu",) where supportedOnFpga is false
    tensors              edges of one producer with one size are one tensor (what goes to one device goes once)
    forward_of           the forward node that a backward node names, or the only one of its colour
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DuplicateNameError, FormatError, UnknownOpError, in_short
from ..columns import numbers, whole_numbers
from ..opgraph import OpGraph

_GRADIENT_NAMES = (
    re.compile(r"(?P<forward>.+?)_Grad/.*"),
    re.compile(r"AdamOptimizer_(?P<forward>.+)"),
    re.compile(r"AccumulateGrad_(?P<forward>.+)_grad"),
    re.compile(r"(?P<forward>.+?)_?grad"),
)
"""How the set's graphs name a backward node after its forward node, tried in this order."""


def looks_like_partitioning(document: object) -> bool:
    """Whether this parsed JSON is of that family. (The reader rejects a split of theirs, with `fpgas` and `cpus`.)"""
    return isinstance(document, Mapping) and "format" not in document and ("nodes" in document or "fpgas" in document)


def graph_from_partitioning(document: Mapping[str, object], name: str) -> OpGraph:
    """Returns the graph of a parsed file.

    Raises `FormatError` naming field and place, `DuplicateNameError`, `UnknownOpError`, `CycleError`.
    """
    if "multigraph" in document:
        reader = "adjacency_graph" if "adjacency" in document else "node_link_graph"
        raise FormatError(
            f"a graph as networkx writes it: read it with networkx.{reader} and give that to bl.OpGraph.from_networkx"
        )
    if "nodes" not in document:
        raise FormatError("field nodes is missing: this is a split of a dnn-partitioning graph, not a graph")
    nodes, edges = _objects(document, "nodes"), _objects(document, "edges")
    ids = [_field(x, "id", "nodes", k, (int, str)) for k, x in enumerate(nodes)]
    index = {x: k for k, x in enumerate(ids)}
    if len(index) != len(ids):
        k = next(k for k, x in enumerate(ids) if index[x] != k)
        raise DuplicateNameError(f"nodes[{index[ids[k]]}].id is {ids[k]!r}, which nodes[{k}] has too")
    gpu, cpu = (_milliseconds(nodes, key) for key in ("fpgaLatency", "cpuLatency"))
    colours = [_field(x, "colorClass", "nodes", k, (int, str, type(None))) for k, x in enumerate(nodes)]
    for k, x in enumerate(nodes):
        _field(x, "isBackwardNode", "nodes", k, (bool, int), default=False)
        _field(x, "name", "nodes", k, (str, int, type(None)))
    groups = {c: k for k, c in enumerate(dict.fromkeys(c for c in colours if c is not None))}
    on_cpu = [k for k, x in enumerate(nodes) if not _field(x, "supportedOnFpga", "nodes", k, (bool, int), default=True)]
    allowed = np.full(len(nodes), -1, dtype=np.int32)
    allowed[on_cpu] = 0
    # The nodes' names; where a name is missing or used twice, the id is added.
    names = [str(x.get("name", f"node{x['id']}")) for x in nodes]
    count: dict[str, int] = {}
    for text in names:
        count[text] = count.get(text, 0) + 1
    size = _bytes(edges, "edges")
    end_ids = []
    for k, edge in enumerate(edges):
        for key in ("sourceId", "destId"):
            node = _field(edge, key, "edges", k, (int, str))
            if node not in index:
                raise UnknownOpError(f"edges[{k}].{key} is {node!r}; no node has that id")
            end_ids.append(index[node])
    by_name = {str(x.get("name")): k for k, x in enumerate(nodes)}
    only: dict[object, int] = {}
    for k, (node, colour) in enumerate(zip(nodes, colours, strict=True)):
        if colour is not None and not node.get("isBackwardNode"):
            only[colour] = k if colour not in only else -1
    forward_of = np.full(len(nodes), -1, dtype=np.int32)
    for k, (node, colour) in enumerate(zip(nodes, colours, strict=True)):
        if not node.get("isBackwardNode"):
            continue
        matches = (pattern.fullmatch(str(node.get("name"))) for pattern in _GRADIENT_NAMES)
        forward_ops = [by_name[m["forward"]] for m in matches if m and m["forward"] in by_name]
        if forward_ops and forward_ops[0] != k:
            forward_of[k] = forward_ops[0]
        elif colour in only:
            forward_of[k] = only[colour]
    return OpGraph.from_edges(
        gpu,
        np.column_stack([np.array(end_ids, dtype=np.int64).reshape(-1, 2), size]),
        names=tuple(text if count[text] == 1 else f"{text}#{x['id']}" for text, x in zip(names, nodes, strict=True)),
        duration_by_kind={"cpu": cpu},
        persistent_bytes=_bytes(nodes, "nodes"),
        colocation=np.array([-1 if c is None else groups[c] for c in colours], dtype=np.int32),
        colocation_names=tuple(f"color{c}" for c in groups),
        allowed=allowed,
        allowed_sets=(("cpu",),) if on_cpu else (),
        forward_of=forward_of,
        name=name,
    )


def _objects(document: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    entries = document.get(key)
    if not isinstance(entries, list):
        raise FormatError(f"field {key} is {type(entries).__name__}; it must be a list of objects")
    for k, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise FormatError(f"{key}[{k}] is {in_short(entry)}; it must be an object")
    return entries


def _field(
    entry: Mapping[str, object], key: str, section: str, k: int, types: tuple[type, ...], default: object = None
) -> Any:
    value = entry.get(key, default)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        type_names = " or ".join("null" if t is type(None) else t.__name__ for t in types)
        raise FormatError(f"{section}[{k}].{key} is {in_short(value)}; it must be of type {type_names}")
    if bool in types and value not in (0, 1):
        raise FormatError(f"{section}[{k}].{key} is {in_short(value)}; it must be true or false, or 1 or 0")
    return value


def _milliseconds(nodes: Sequence[Mapping[str, object]], key: str) -> NDArray[np.float64]:
    """Returns float64: the nodes' latencies in microseconds; the graph refuses what is infinite."""
    values = numbers(f"nodes.{key}", [_field(x, key, "nodes", k, (int, float)) for k, x in enumerate(nodes)])
    with np.errstate(over="ignore"):
        return values * 1000.0


def _bytes(entries: Sequence[Mapping[str, object]], section: str) -> NDArray[np.int64]:
    """Returns int64: their sizes, rounded where they are no whole numbers; whole ones are exact."""
    values = [_field(x, "size", section, k, (int, float)) for k, x in enumerate(entries)]
    return whole_numbers(
        f"{section}.size", [round(x) if isinstance(x, float) and abs(x) < 2**53 else x for x in values]
    )
