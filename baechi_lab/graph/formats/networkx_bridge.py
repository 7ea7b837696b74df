"""OpGraph to networkx and back, without loss.

A DiGraph whose nodes, in insertion order, are the ops. Node attributes: `duration_us` (required), and where they say something
`name` (default: the node as text), `op_type`, `duration_by_kind` ({kind: us}), `temp_bytes`, `persistent_bytes`,
`colocation_group`, `allowed` (a device name or kind, or a list of them), `forward_of` (a node or an op name), `unread`
({tensor: bytes} that nobody reads), `outputs` (the names of the op's tensors in their order). Edge attributes: `size_bytes`
(required), `tensor` (which output of the producer it is), or `tensors` ({tensor: bytes}, adding up to `size_bytes`) where the
consumer reads several. Without `tensor`, all edges of one producer with one size are one tensor. Graph attributes: `name`,
`colocation_groups`, `allowed_sets`, `group_of`, `source_key`, `copy_of`, `copied_key`, `micro_batch`, `reuse`, `batch_readers`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...checks import finite
from ...errors import CostError, CycleError, InvalidInput, UnknownOpError, in_short
from ..columns import texts, whole_numbers
from ..kernels.csr import offsets
from ..opgraph import OpGraph, default_tensor_names

if TYPE_CHECKING:
    import networkx


def to_networkx(graph: OpGraph) -> networkx.DiGraph:
    """Returns a DiGraph with one node per op, keyed by the op's name, in index order.

    >>> g = OpGraph.from_edges([1.0, 2.0], [(0, 1, 8)], names=["a", "b"])
    >>> dict(to_networkx(g).edges["a", "b"])
    {'size_bytes': 8}
    """
    import networkx as nx

    digraph = nx.DiGraph(name=graph.name)
    for key, value in (
        ("colocation_groups", graph.colocation_names),
        ("allowed_sets", graph.allowed_sets),
        ("batch_readers", graph.batch_readers),
    ):
        if value:
            digraph.graph[key] = [x if isinstance(x, str) else list(x) for x in value]
    for key in ("group_of", "copy_of", "micro_batch", "reuse"):
        if getattr(graph, key) is not None:
            digraph.graph[key] = getattr(graph, key).tolist()
    if graph.info:
        digraph.graph["info"] = dict(graph.info)
    for key in ("source_key", "copied_key"):
        if getattr(graph, key) is not None:
            digraph.graph[key] = getattr(graph, key)
    digraph.add_nodes_from((graph.names[i], _node_attributes(graph, i)) for i in range(graph.n))
    plain = np.diff(graph.output_ptr)[graph.tensor_producer] == 1
    for tensor in range(graph.tensor_count):
        has_name = not plain[tensor] or graph.tensor_names[tensor] != "0"
        producer, size = graph.names[graph.tensor_producer[tensor]], int(graph.tensor_bytes[tensor])
        name, readers = graph.tensor_names[tensor], graph.tensor_consumers(tensor)
        if not len(readers):
            digraph.nodes[producer].setdefault("unread", {})[name] = size
        for reader in readers:
            consumer = graph.names[reader]
            if not digraph.has_edge(producer, consumer):
                digraph.add_edge(producer, consumer, size_bytes=size, **({"tensor": name} if has_name else {}))
                continue
            edge = digraph.edges[producer, consumer]
            if "tensor" in edge:
                edge["tensors"] = {edge.pop("tensor"): edge["size_bytes"]}
            edge["tensors"][name] = size
            edge["size_bytes"] += size
    return digraph


def _node_attributes(graph: OpGraph, op: int) -> dict[str, object]:
    """Returns the attributes of the node of an op, without those that are defaults."""
    out: dict[str, object] = {
        "name": graph.names[op],
        "op_type": graph.op_types[op],
        "duration_us": float(graph.duration_us[op]),
    }
    out |= {"temp_bytes": int(graph.temp_bytes[op]), "persistent_bytes": int(graph.persistent_bytes[op])}
    if graph.output_shapes:
        out["output_shapes"] = graph.output_shapes[op]
    if graph.duration_by_kind:
        out["duration_by_kind"] = {kind: float(values[op]) for kind, values in graph.duration_by_kind.items()}
    if graph.colocation[op] >= 0:
        out["colocation_group"] = graph.colocation_names[graph.colocation[op]]
    if graph.allowed[op] >= 0:
        out["allowed"] = list(graph.allowed_sets[graph.allowed[op]])
    if graph.forward_of[op] >= 0:
        out["forward_of"] = graph.names[graph.forward_of[op]]
    if len(graph.outputs(op)) > 1:
        out["outputs"] = [graph.tensor_names[t] for t in graph.outputs(op)]
    return out


# -- back --------------------------------------------------------------------------------------------------------


def from_networkx(graph: networkx.DiGraph, name: str | None = None) -> OpGraph:
    """Returns the OpGraph of a DiGraph or MultiDiGraph (attributes: see the module).

    Raises:
        InvalidInput: undirected graph, a missing `duration_us` or `size_bytes`, an attribute of the wrong type.
        CycleError, CostError, UnknownOpError, DuplicateNameError, ColocationError: as `OpGraph`.
    """
    if not getattr(graph, "is_directed", lambda: False)():
        raise InvalidInput(f"graph is a {type(graph).__name__}; it must be a networkx DiGraph or MultiDiGraph")
    nodes: dict[Hashable, int] = {node: i for i, node in enumerate(graph.nodes)}
    attributes = [graph.nodes[node] for node in nodes]
    names = [str(a.get("name", node)) for node, a in zip(nodes, attributes, strict=True)]
    groups = {x: k for k, x in enumerate(texts("colocation_groups", graph.graph.get("colocation_groups", ())))}
    sets = {
        _allowed_kinds(x): k for k, x in enumerate(_check_list("allowed_sets", graph.graph.get("allowed_sets", ())))
    }
    columns: dict[str, Any] = {
        "duration_us": [_duration(a, f"node {x!r}") for x, a in zip(names, attributes, strict=True)],
        "duration_by_kind": _by_kind(names, attributes),
        "op_types": tuple(str(a.get("op_type", "op")) for a in attributes),
        "colocation": [_code(a.get("colocation_group"), groups, str) for a in attributes],
        "allowed": [_code(a.get("allowed"), sets, _allowed_kinds) for a in attributes],
        "forward_of": _forward_of(names, attributes, nodes),
    }
    if any("output_shapes" in a for a in attributes):
        columns["output_shapes"] = tuple(str(a.get("output_shapes", "")) for a in attributes)
    for key in ("temp_bytes", "persistent_bytes"):
        sizes = [
            int(_number(a.get(key, 0), f"{key} of node {x!r}", int)) for x, a in zip(names, attributes, strict=True)
        ]
        columns[key] = whole_numbers(key, sizes)
    for key in ("colocation", "allowed"):
        columns[key] = np.array(columns[key], dtype=np.int32)
    for key in ("group_of", "copy_of", "micro_batch", "reuse"):
        if key in graph.graph:
            columns[key] = whole_numbers(key, graph.graph[key], np.int8 if key == "reuse" else np.int32)
    return OpGraph(
        names=tuple(names),
        colocation_names=tuple(groups),
        allowed_sets=tuple(sets),
        source_key=graph.graph.get("source_key"),
        copied_key=graph.graph.get("copied_key"),
        batch_readers=texts("batch_readers", graph.graph.get("batch_readers", ())),
        info=graph.graph.get("info", {}),
        name=name if name is not None else str(graph.graph.get("name") or "graph"),
        **_tensors(graph, nodes, names),
        **columns,
    )


def _tensors(graph: networkx.DiGraph, nodes: Mapping[Hashable, int], names: Sequence[str]) -> dict[str, Any]:
    """Returns the columns of tensors: per producer its outputs in order, and their readers."""
    producer: list[int] = []
    labels: list[str] = []
    sizes: list[int] = []
    readers: list[list[int]] = []
    for node, op in nodes.items():
        edges = [
            (nodes[target], key, size)
            for _, target, data in graph.out_edges(node, data=True)
            for key, size in _edge_tensors(data, f"edge {names[op]!r} -> {names[nodes[target]]!r}")
        ]
        attributes = graph.nodes[node]
        outputs = _outputs(
            edges, attributes.get("unread", {}), _check_list("outputs", attributes.get("outputs", ())), names[op]
        )
        first = len(labels)
        slot = {key: first + k for k, key in enumerate(outputs)}
        by_size = {size: first + k for k, (key, size) in enumerate(outputs.items()) if isinstance(key, int)}
        readers += [[] for _ in outputs]
        for target_op, key, size in edges:
            if target_op == op:
                raise CycleError(f"op {names[op]!r} reads its own output")
            readers[by_size[size] if key is None else slot[key]].append(target_op)
        producer += [op] * len(outputs)
        # Names as given; the unnamed get the first whole numbers that are free.
        used_names = {key for key in outputs if isinstance(key, str)}
        free = (str(k) for k in range(2 * len(outputs)) if str(k) not in used_names)
        labels += [key if isinstance(key, str) else next(free) for key in outputs]
        sizes += outputs.values()
    rows = [sorted(set(row)) for row in readers]
    count = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    producers = np.array(producer, dtype=np.int32)
    default = default_tensor_names(producers)
    return {
        "tensor_producer": producers,
        "tensor_bytes": whole_numbers("size_bytes", sizes),
        "consumer_ptr": offsets(count, len(rows)),
        "consumers": np.array([op for row in rows for op in row], dtype=np.int32),
        "tensor_names": default if tuple(labels) == default else tuple(labels),
    }


def _edge_tensors(data: Mapping[str, object], place: str) -> Iterator[tuple[str | None, int]]:
    """Yields (name, bytes) of every tensor that one edge carries."""
    total = _required_bytes(data, "size_bytes", place)
    several = data.get("tensors")
    if several is None:
        tensor = data.get("tensor")
        yield (None if tensor is None else str(tensor)), total
        return
    if not isinstance(several, Mapping):
        raise InvalidInput(f"tensors of {place} is {in_short(several)}; it must be a mapping of tensor name to bytes")
    tensors = [(str(key), _required_bytes(several, key, place)) for key in several]
    if sum(size for _, size in tensors) != total:
        raise InvalidInput(
            f"size_bytes of {place} is {total}; its tensors add up to {in_short(sum(s for _, s in tensors))}"
        )
    yield from tensors


def _outputs(edges: Sequence[Any], unread: object, order: Sequence[object], producer: str) -> dict[object, int]:
    """Returns the producer's tensors in order: key (a name, or its rank among the unnamed) -> bytes."""
    if not isinstance(unread, Mapping):
        raise InvalidInput(f"unread of node {producer!r} is {in_short(unread)}; it must map tensor names to bytes")
    bytes_by_name: dict[Any, int] = {}
    unread_outputs = [(str(k), _required_bytes(unread, k, f"node {producer!r}, unread")) for k in unread]
    for key, size in [*((k, s) for _, k, s in edges if k is not None), *unread_outputs]:
        if bytes_by_name.setdefault(key, size) != size:
            raise CostError(
                f"tensor {key!r} of op {producer!r} has {bytes_by_name[key]} bytes on one edge and {size} on another"
            )
    rank = {str(key): k for k, key in enumerate(order)}
    sorted_outputs = dict(sorted(bytes_by_name.items(), key=lambda item: rank.get(item[0], len(rank))))
    sizes_without_name = sorted({size for _, k, size in edges if k is None})
    return {**sorted_outputs, **dict(enumerate(sizes_without_name))}


def _forward_of(names: Sequence[str], attributes: Sequence[Any], nodes: Mapping[Hashable, int]) -> object:
    """Returns int32[n]: the forward op of each node, which names it by its node or by its name; -1 without one."""
    index = {name: i for i, name in enumerate(names)}
    forward_of = np.full(len(names), -1, dtype=np.int32)
    for i, attribute in enumerate(attributes):
        target = attribute.get("forward_of")
        if target is None:
            continue
        try:
            at = nodes.get(target, index.get(str(target)))
        except TypeError:  # a list or a mapping: no node
            at = None
        if at is None:
            raise UnknownOpError(
                f"forward_of of node {names[i]!r} is {in_short(target)}; the graph has no such node or name"
            )
        forward_of[i] = at
    return forward_of


def _by_kind(names: Sequence[str], attributes: Sequence[Any]) -> dict[str, object]:
    for name, attribute in zip(names, attributes, strict=True):
        if not isinstance(attribute.get("duration_by_kind", {}), Mapping):
            problem = f"duration_by_kind of node {name!r} is {in_short(attribute['duration_by_kind'])}"
            raise InvalidInput(f"{problem}; it must map device kinds to microseconds")
    kinds = sorted({str(kind) for a in attributes for kind in a.get("duration_by_kind", ())})
    out: dict[str, object] = {}
    for kind in kinds:
        places = [f"duration_by_kind[{kind!r}] of node {x!r}" for x in names]
        attribute = [a.get("duration_by_kind", {}).get(kind, a["duration_us"]) for a in attributes]
        out[kind] = np.array([_number(v, w, float) for v, w in zip(attribute, places, strict=True)], dtype=np.float64)
    return out


def _code(value: object, table: dict[Any, int], convert: Any) -> int:
    """Returns the index of `value` in `table`, added to it when new; -1 for None."""
    if value is None:
        return -1
    return table.setdefault(convert(value), len(table))


def _allowed_kinds(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else texts("allowed", value)


def _check_list(field: str, value: object) -> Sequence[object]:
    if not isinstance(value, (list, tuple)):
        raise InvalidInput(f"{field} is {in_short(value)}; it must be a list")
    return value


def _duration(data: Mapping[str, object], place: str) -> float:
    if data.get("duration_us") is None:
        raise InvalidInput(f"{place} has no duration_us; every node needs its duration in microseconds (0 is legal)")
    return float(_number(data["duration_us"], f"duration_us of {place}", float))


def _required_bytes(data: Mapping[Any, object], key: object, place: str) -> int:
    if data.get(key) is None:
        raise InvalidInput(f"{place} has no {key}; every edge needs its bytes (4 for a control dependency)")
    return int(_number(data[key], f"{key} of {place}", int))


def _number(value: object, place: str, kind: type) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise CostError(f"{place} is {in_short(value)}; it must be a number")
    if kind is int and (value != value or value in (float("inf"), float("-inf")) or value != int(value)):
        raise CostError(f"{place} is {value}; it must be a finite whole number of bytes")
    if kind is float and isinstance(value, int) and finite(value) is None:
        raise CostError(f"{place} is {in_short(value)}; it is too large for a float64")
    return kind(value)
