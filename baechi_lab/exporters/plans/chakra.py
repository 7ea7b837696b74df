"""Chakra: an execution trace per device, for simulators such as ASTRA-sim (schema: see `graph/formats/traces/chakra`).

Every op is a COMP node of its duration on its device; a tensor that another device reads is a send there and a receive here,
of its bytes, once per receiver, with a tag of its own. `files` has the binary form, `NAME.0.et`, `NAME.1.et`, ...; the text is
the JSON form. `bl.load_trace([...])` reads the files back.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph.costs import durations
from ...graph.formats.traces.chakra import SCHEMA, TYPES
from ...graph.formats.traces.protobuf import messages, with_length
from .records import Request, Written

VERSION = "0.0.4"
_NUMBER = {name: k for k, name in enumerate(TYPES)}
_Node = dict[str, Any]


def write(request: Request) -> Written:
    """The nodes of every device that the plan uses."""
    length = _durations(request)
    ranks = _ranks(request, np.rint(length))
    value = {device: _binary(nodes) for device, nodes in ranks.items()}
    text = "".join(
        json.dumps({"rank": device, "version": VERSION}) + "\n" + _text(nodes) for device, nodes in ranks.items()
    )
    return Written(value, text, request.device, _lost(request, length), {f".{d}.et": data for d, data in value.items()})


def _durations(request: Request) -> NDArray[np.float64]:
    """float64[n] microseconds of every op on its device."""
    if request.cluster is None:
        return request.graph.duration_us
    table = durations(request.graph, request.cluster)
    return np.asarray(table)[np.arange(request.graph.n), request.device]


def _ranks(request: Request, length: NDArray[Any]) -> dict[int, list[_Node]]:
    """Device -> nodes in topological order; sends follow their op, receives come before their first reader."""
    graph, device = request.graph, request.device.tolist()
    ranks: dict[int, list[_Node]] = {d: [] for d in sorted(set(device))}
    node_of: dict[int, int] = {}
    received: dict[tuple[int, int], int] = {}
    pointer, tensors = graph.inputs
    for i in graph.order.tolist():
        here, reads = device[i], tensors[pointer[i] : pointer[i + 1]].tolist()
        before = []
        for t in reads:
            producer = int(graph.tensor_producer[t])
            if device[producer] == here:
                before.append(node_of[producer])
                continue
            if (t, here) not in received:
                received[t, here] = _transfer(request, ranks, t, node_of[producer], device[producer], here)
            before.append(received[t, here])
        made = int(graph.tensor_bytes[list(graph.outputs(i))].sum())
        attributes = {"is_cpu_op": False, "tensor_size": made}
        node_of[i] = _add(ranks[here], graph.names[i], "COMP_NODE", sorted(set(before)), attributes, int(length[i]))
    return ranks


def _transfer(
    request: Request, ranks: dict[int, list[_Node]], tensor: int, producer: int, source: int, target: int
) -> int:
    """The receive of a tensor; its send is added to the other rank."""
    graph = request.graph
    name, size = graph.tensor_label(tensor), int(graph.tensor_bytes[tensor])
    attributes = {"is_cpu_op": False, "comm_size": size, "comm_src": source, "comm_dst": target, "comm_tag": tensor}
    link = None if request.cluster is None else request.cluster.link_between(source, target)
    took = 0 if link is None else round(link.cost_us(size))
    _add(ranks[source], f"send {name}", "COMM_SEND_NODE", [producer], attributes, took)
    return _add(ranks[target], f"receive {name}", "COMM_RECV_NODE", [], attributes, 0)


def _add(nodes: list[_Node], name: str, kind: str, before: list[int], attributes: dict[str, Any], length: int) -> int:
    number = len(nodes) + 1
    nodes.append(
        {"id": number, "name": name, "type": kind, "data_deps": before, "attr": attributes, "duration_micros": length}
    )
    return number


def _binary(nodes: list[_Node]) -> bytes:
    made = messages(SCHEMA)
    parts = [with_length(made["GlobalMetadata"](version=VERSION).SerializeToString())]
    for node in nodes:
        attr = [
            {"name": key, "bool_val": value} if isinstance(value, bool) else {"name": key, _kind(key): value}
            for key, value in node["attr"].items()
        ]
        message = made["Node"](**{**node, "type": _NUMBER[node["type"]], "attr": attr})
        parts.append(with_length(message.SerializeToString()))
    return b"".join(parts)


def _kind(key: str) -> str:
    return "uint64_val" if key.endswith("size") else "int32_val"


def _text(nodes: list[_Node]) -> str:
    """As the JSON of protocol buffers: names in camel case, numbers of 64 bits as texts."""
    lines = []
    for node in nodes:
        attr = [
            {"name": k, "boolVal": v} if isinstance(v, bool) else {"name": k, "uint64Val": str(v)} if k.endswith("size") else
            {"name": k, "int32Val": v} for k, v in node["attr"].items()
        ]  # fmt: skip
        lines.append(json.dumps({
            "id": str(node["id"]), "name": node["name"], "type": node["type"], "dataDeps": [str(d) for d in node["data_deps"]],
            "durationMicros": str(node["duration_micros"]), "attr": attr,
        }))  # fmt: skip
    return "\n".join(lines) + "\n"


def _lost(request: Request, length: NDArray[np.float64]) -> tuple[str, ...]:
    graph, lost = request.graph, []
    off = float(np.abs(np.rint(length) - length).sum())
    if off:
        lost.append(
            f"durations are whole microseconds: {off:.3g} us of {float(length.sum()):.6g} are rounded away or added"
        )
    if graph.persistent_bytes.any() or graph.temp_bytes.any():
        lost.append("nodes have no memory: what ops hold and need while they run is not written")
    crosses = request.device[graph.edge_source] != request.device[graph.consumers]
    if request.cluster is None and crosses.any():
        lost.append(
            "no cluster was given, so sends take 0 us; the simulator that reads the traces has links of its own"
        )
    elif request.cluster is not None and crosses.any():
        mode = request.cluster.comm
        lost.append(
            f"how transfers wait for each other ({mode}) is not written; the simulator that reads the traces has a way of its own"
        )
    return tuple(lost)
