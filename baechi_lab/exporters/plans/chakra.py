"""Chakra: an execution trace per device, for simulators such as ASTRA-sim (schema: see `graph/formats/traces/chakra`).

Every op is a COMP node of its duration on its device; a tensor that another device reads is a send there and a receive here,
of its bytes, once per receiver, with a tag of its own. With a cluster the plan is simulated, and nodes have its start times,
so that a replay waits where the simulation did. `files` has the binary form, `NAME.0.et`, `NAME.1.et`, ...; the text is
the JSON form. `bl.load_trace([...])` reads the files back.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph.formats.traces.chakra import SCHEMA, TYPES
from ...graph.formats.traces.protobuf import messages, with_length
from ...graph.timeline import Timeline
from ...simulator import simulate
from .records import Request, Written

VERSION = "0.0.4"
_NUMBER = {name: k for k, name in enumerate(TYPES)}
_Node = dict[str, Any]


def write(request: Request) -> Written:
    """The nodes of every device that the plan uses."""
    timeline = _simulated(request)
    length = request.graph.duration_us if timeline is None else timeline.end_us - timeline.start_us
    rounded = np.rint(length) if timeline is None else np.rint(timeline.end_us) - np.rint(timeline.start_us)
    ranks = _ranks(request, rounded, timeline)
    value = {device: _binary(nodes) for device, nodes in ranks.items()}
    text = "".join(
        json.dumps({"rank": device, "version": VERSION}) + "\n" + _text(nodes) for device, nodes in ranks.items()
    )
    files = {f".{d}.et": data for d, data in value.items()}
    return Written(value, text, request.device, _lost(request, length, rounded), files)


def _simulated(request: Request) -> Timeline | None:
    """The step under the plan, its rows by op index; None without a cluster."""
    if request.cluster is None:
        return None
    timeline = simulate(request.graph, request.cluster, replace(request.placement, replicas=()))
    rows = np.argsort(timeline.op)
    return replace(timeline, **{key: getattr(timeline, key)[rows] for key in ("op", "device", "start_us", "end_us")})


def _ranks(request: Request, length: NDArray[Any], timeline: Timeline | None) -> dict[int, list[_Node]]:
    """Device -> nodes, an op behind all that it depends on: as simulated, else in topological order."""
    graph, device = request.graph, request.device.tolist()
    ranks: dict[int, list[_Node]] = {d: [] for d in sorted(set(device))}
    node_of: dict[int, int] = {}
    received: dict[tuple[int, int], int] = {}
    transfers = _Transfers(request, timeline)
    pointer, tensors = graph.inputs
    order = graph.order if timeline is None else np.lexsort((graph.position, timeline.end_us, timeline.start_us))
    for i in order.tolist():
        here, reads = device[i], tensors[pointer[i] : pointer[i + 1]].tolist()
        before = []
        for t in reads:
            producer = int(graph.tensor_producer[t])
            if device[producer] == here:
                before.append(node_of[producer])
                continue
            if (t, here) not in received:
                received[t, here] = transfers.add(ranks, t, node_of[producer], device[producer], here)
            before.append(received[t, here])
        made = int(graph.tensor_bytes[list(graph.outputs(i))].sum())
        attributes = {"is_cpu_op": False, "tensor_size": made}
        start = 0 if timeline is None else round(float(timeline.start_us[i]))
        node_of[i] = _add(
            ranks[here], graph.names[i], "COMP_NODE", sorted(set(before)), attributes, start, int(length[i])
        )
    transfers.queue()
    return ranks


class _Transfers:
    """A send and a receive per tensor and device that it goes to; a receive begins when the send has ended.

    Where devices have queues for their transfers, a send waits for the one before it besides.
    """

    def __init__(self, request: Request, timeline: Timeline | None):
        self.graph, self.timeline = request.graph, timeline
        self.queues = request.cluster is not None and request.cluster.comm != "parallel"
        rows = () if timeline is None else zip(timeline.transfers.tensor, timeline.transfers.target, strict=True)
        self.row = {(int(tensor), int(target)): k for k, (tensor, target) in enumerate(rows)}
        self.link = None if request.cluster is None else request.cluster.link_between
        self.sends: dict[int, list[tuple[float, _Node]]] = {}

    def add(self, ranks: dict[int, list[_Node]], tensor: int, producer: int, source: int, target: int) -> int:
        """The receive of a tensor; its send is added to the other rank."""
        name, size = self.graph.tensor_label(tensor), int(self.graph.tensor_bytes[tensor])
        attributes = {"is_cpu_op": False, "comm_size": size, "comm_src": source, "comm_dst": target, "comm_tag": tensor}
        begin, sent, taken, end = self._times(tensor, source, target)
        start, ended = round(begin), round(sent)
        _add(ranks[source], f"send {name}", "COMM_SEND_NODE", [producer], attributes, start, ended - start)
        self.sends.setdefault(source, []).append((begin, ranks[source][-1]))
        start, ended = round(taken), round(end)
        return _add(ranks[target], f"receive {name}", "COMM_RECV_NODE", [], attributes, start, ended - start)

    def _times(self, tensor: int, source: int, target: int) -> tuple[float, float, float, float]:
        """When the send begins and ends, when the receive begins and ends."""
        if self.timeline is None or self.link is None:
            return 0.0, 0.0, 0.0, 0.0
        row, sent = self.timeline.transfers, self.row[tensor, target]
        begin, end = float(row.start_us[sent]), float(row.end_us[sent])
        gone = min(end, begin + self.link(source, target).cost_us(int(self.graph.tensor_bytes[tensor])))
        return begin, gone, max(gone, float(row.receive_us[sent])), end

    def queue(self) -> None:
        """Sends of a device depend on each other in the order in which they went."""
        for sends in self.sends.values() if self.queues else ():
            line = [node for _, node in sorted(sends, key=lambda entry: entry[0])]
            for before, node in pairwise(line):
                node["ctrl_deps"] = [before["id"]]


def _add(
    nodes: list[_Node], name: str, kind: str, before: list[int], attributes: dict[str, Any], start: int, length: int
) -> int:
    number = len(nodes) + 1
    nodes.append({
        "id": number, "name": name, "type": kind, "data_deps": before, "ctrl_deps": [], "attr": attributes,
        "start_time_micros": start, "duration_micros": length,
    })  # fmt: skip
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
            "ctrlDeps": [str(d) for d in node["ctrl_deps"]], "startTimeMicros": str(node["start_time_micros"]),
            "durationMicros": str(node["duration_micros"]), "attr": attr,
        }))  # fmt: skip
    return "\n".join(lines) + "\n"


def _lost(request: Request, length: NDArray[Any], rounded: NDArray[Any]) -> tuple[str, ...]:
    graph, lost = request.graph, []
    off = float(np.abs(rounded - length).sum())
    if off:
        lost.append(
            f"times are whole microseconds: {off:.3g} us of {float(length.sum()):.6g} are rounded away or added"
        )
    if graph.persistent_bytes.any() or graph.temp_bytes.any():
        lost.append("nodes have no memory: what ops hold and need while they run is not written")
    crosses = request.device[graph.edge_source] != request.device[graph.consumers]
    if request.cluster is None and crosses.any():
        lost.append(
            "no cluster was given, so sends take 0 us; the simulator that reads the traces has links of its own"
        )
    elif request.cluster is not None and crosses.any():
        lost.append(
            f"how transfers wait for each other ({request.cluster.comm}) is in the simulated start times and the order of sends; "
            "a simulator that does not read them has a way of its own"
        )
    return tuple(lost)
