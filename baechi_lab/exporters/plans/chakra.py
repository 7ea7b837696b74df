"""Chakra: an execution trace per device, for simulators such as ASTRA-sim (schema: see `graph/formats/traces/chakra`).

Every op is a COMP node of its duration on its device; a tensor that another device reads is a send there and a receive here,
of its bytes, once per receiver, with a tag of its own. With a timeline, ops and transfers also wait for each other as in the
simulated step. `files` has the binary form, `NAME.0.et`, `NAME.1.et`, ...; the text is the JSON form. `bl.load_trace([...])`
reads the files back.

In the order of a simulated step, a node waits for the one before it on its device, or in the queue of transfers that it shares,
by a control dependency; where transfers pass each other, they are on streams of their own:

    sequential    one queue of sends and receives per device
    duplex        stream 0 of receives, stream 1 of sends, a queue each
    parallel      receives on stream 0, which take no time; sends that overlap are on streams 1, 2, ...

A send holds the sender's queue from its start on, a receive the receiver's from a time that may lie within the send. Chakra's
receive comes after its send, so that its node begins when both its queue and the send's end let it, and ends with the transfer.
Start and end of every node are rounded, and not its duration: what starts when the last of several ends does so still, and a
replay of the nodes, each as early as it can, ends within rounding of the simulated step.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph.costs import placed_durations
from ...graph.formats.traces.chakra import SCHEMA, TYPES
from ...graph.formats.traces.protobuf import messages, with_length
from .records import Request, Written

VERSION = "0.0.4"
_NUMBER = {name: k for k, name in enumerate(TYPES)}


COMPUTE, SEND, RECEIVE = "COMP_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE"


def write(request: Request) -> Written:
    """Writes the nodes of every device, unused devices included: a file's number is its rank."""
    length = request.graph.duration_us
    if request.cluster is not None:  # with each device's overhead of messages
        length = placed_durations(request.graph, request.cluster, request.device)
    # nodes of each device in topological order: sends follow their op, receives come before their first reader
    graph, device = request.graph, request.device.tolist()
    count = max(device, default=0) + 1 if request.cluster is None else request.cluster.n
    ranks: dict[int, list[Node]] = {d: [] for d in range(count)}
    node_of: dict[int, int] = {}
    receive_node: dict[tuple[int, int], int] = {}
    pointer, tensors = graph.inputs
    for i in graph.order.tolist():
        rank, reads = device[i], tensors[pointer[i] : pointer[i + 1]].tolist()
        before = []
        for t in reads:
            producer = int(graph.tensor_producer[t])
            if device[producer] == rank:
                before.append(node_of[producer])
                continue
            if (t, rank) not in receive_node:
                source, size = device[producer], int(graph.tensor_bytes[t])
                message_attributes = {"comm_size": size, "comm_src": source, "comm_dst": rank, "comm_tag": t}
                attributes = {"is_cpu_op": False, **message_attributes}
                link = None if request.cluster is None else request.cluster.link_between(source, rank)
                duration_us = 0 if link is None else round(link.cost_us(size))
                name = graph.tensor_label(t)
                _add(ranks[source], f"send {name}", SEND, [node_of[producer]], attributes, duration_us, (t, rank))
                receive_node[t, rank] = _add(ranks[rank], f"receive {name}", RECEIVE, [], attributes, 0, (t, rank))
            before.append(receive_node[t, rank])
        output_bytes = int(graph.tensor_bytes[list(graph.outputs(i))].sum())
        attributes = {"is_cpu_op": False, "tensor_size": output_bytes}
        node_of[i] = _add(
            ranks[rank], graph.names[i], COMPUTE, sorted(set(before)), attributes, int(np.rint(length[i])), (i, -1)
        )
    if request.timeline is not None:
        ranks = schedule_nodes(ranks, request)
    value = {device: _binary(nodes) for device, nodes in ranks.items()}
    text = "".join(
        json.dumps({"rank": device, "version": VERSION}) + "\n" + _text(nodes) for device, nodes in ranks.items()
    )
    unsupported_features = (
        _unsupported_sentences(request, length) if request.timeline is None else _unsupported_with_timeline(request)
    )
    return Written(value, text, request.device, unsupported_features, {f".{d}.et": data for d, data in value.items()})


def _add(
    nodes: list[Node],
    name: str,
    kind: str,
    before: list[int],
    attributes: dict[str, object],
    length: int,
    of: tuple[int, int],
) -> int:
    nodes.append(Node(len(nodes) + 1, name, kind, before, attributes, length, of))
    return len(nodes)


def _binary(nodes: list[Node]) -> bytes:
    """Returns the nodes as a Chakra file: messages of protocol buffers, each after its length."""
    message_types = messages(SCHEMA)
    chunks = [with_length(message_types["GlobalMetadata"](version=VERSION).SerializeToString())]
    for node in nodes:
        attr = [
            {"name": key, "bool_val": value}
            if isinstance(value, bool)
            else {"name": key, ("uint64_val" if key.endswith("size") else "int32_val"): value}
            for key, value in node.attributes.items()
        ]
        message = message_types["Node"](
            id=node.id,
            name=node.name,
            type=_NUMBER[node.kind],
            ctrl_deps=node.after,
            data_deps=node.before,
            duration_micros=node.length_us,
            attr=attr,
        )
        chunks.append(with_length(message.SerializeToString()))
    return b"".join(chunks)


def _text(nodes: list[Node]) -> str:
    """Returns the JSON of protocol buffers: names in camel case, numbers of 64 bits as texts."""
    lines = []
    for node in nodes:
        attr = [
            {"name": k, "boolVal": v}
            if isinstance(v, bool)
            else {"name": k, "uint64Val": str(v)}
            if k.endswith("size")
            else {"name": k, "int32Val": v}
            for k, v in node.attributes.items()
        ]
        control = {"ctrlDeps": [str(d) for d in node.after]} if node.after else {}
        lines.append(
            json.dumps(
                {
                    "id": str(node.id),
                    "name": node.name,
                    "type": node.kind,
                    **control,
                    "dataDeps": [str(d) for d in node.before],
                    "durationMicros": str(node.length_us),
                    "attr": attr,
                }
            )
        )
    return "".join(line + "\n" for line in lines)


def _unsupported_sentences(request: Request, length: NDArray[np.float64]) -> tuple[str, ...]:
    """Returns what a Chakra trace cannot say: rounded durations, memory, and how transfers wait."""
    graph, sentences = request.graph, []
    off = float(np.abs(np.rint(length) - length).sum())
    if off:
        sentences.append(
            f"durations are whole microseconds: {off:.3g} us of {float(length.sum()):.6g} are rounded away or added"
        )
    sentences += _unsupported_memory(request)
    crosses = request.device[graph.edge_source] != request.device[graph.consumers]
    if request.cluster is None and crosses.any():
        sentences.append(
            "no cluster was given, so sends take 0 us; the simulator that reads the traces has links of its own"
        )
    elif request.cluster is not None and crosses.any():
        mode = request.cluster.comm
        sentences.append(
            f"how transfers wait for each other ({mode}) is not written without timeline=bl.simulate(graph, cluster, placement); "
            "the simulator that reads the traces has a way of its own"
        )
    return tuple(sentences)


def _unsupported_with_timeline(request: Request) -> tuple[str, ...]:
    timeline, sentences = request.timeline, []
    if timeline is not None and (off := np.rint(timeline.makespan_us) - timeline.makespan_us):
        sentences.append(
            f"times are whole microseconds: the step of {timeline.makespan_us:.6g} us becomes {timeline.makespan_us + off:.0f}"
        )
    sentences.append(
        "ops and transfers keep the order of this step (control dependencies), wherever else they are simulated"
    )
    return (*sentences, *_unsupported_memory(request))


def _unsupported_memory(request: Request) -> list[str]:
    graph = request.graph
    if not (graph.persistent_bytes.any() or graph.temp_bytes.any()):
        return []
    return ["nodes have no memory: what ops hold and need while they run is not written"]


@dataclass(frozen=True)
class Node:
    """A node of one rank. `of`: (op, -1), or (tensor, target) of a send or receive; `before` data, `after` control."""

    id: int
    name: str
    kind: str
    before: list[int]
    attributes: dict[str, object]
    length_us: int
    of: tuple[int, int]
    after: tuple[int, ...] = ()


_Times = dict[tuple[str, tuple[int, int]], tuple[float, float]]


def schedule_nodes(ranks: dict[int, list[Node]], request: Request) -> dict[int, list[Node]]:
    """Returns the nodes of each rank with the times and the order of the request's timeline.

    Raises:
        InvalidInput: the timeline is of another step, was measured, or comes without its cluster.
    """
    timeline, cluster = request.timeline, request.cluster
    if cluster is None or timeline is None:
        raise InvalidInput("timeline was given without cluster; give the cluster that it was simulated on")
    if timeline.origin != "simulated":
        raise InvalidInput(f"timeline is {timeline.origin}; give bl.simulate(graph, cluster, placement)")
    device = np.full(request.graph.n, -1)
    if timeline.op_names == request.graph.names and timeline.device_names == cluster.names:
        device[timeline.op] = timeline.device
    if not np.array_equal(device, request.device):
        raise InvalidInput("timeline is of another step; give bl.simulate(graph, cluster, placement) of this placement")
    # Start and end in microseconds of every node.
    rows = zip(timeline.op.tolist(), timeline.start_us.tolist(), timeline.end_us.tolist(), strict=True)
    times: _Times = {(COMPUTE, (op, -1)): (start, end) for op, start, end in rows}
    transfers = timeline.transfers
    for k, (tensor, source, target) in enumerate(
        zip(transfers.tensor.tolist(), transfers.source.tolist(), transfers.target.tolist(), strict=True)
    ):
        start, receive, end = float(transfers.start_us[k]), float(transfers.receive_us[k]), float(transfers.end_us[k])
        cost = cluster.link_between(source, target).cost_us(int(timeline.tensor_bytes[tensor]))
        sent_at = end if receive == start else min(start + cost, end)
        times[SEND, (tensor, target)] = (start, sent_at)
        times[RECEIVE, (tensor, target)] = (max(sent_at, receive), end)
    return {rank: _ordered_nodes(nodes, times, cluster.comm) for rank, nodes in ranks.items()}


def _ordered_nodes(nodes: Sequence[Node], times: _Times, comm: str) -> list[Node]:
    """Returns nodes by start, renumbered; ties keep the order of `nodes`, which is topological."""
    order = sorted(range(len(nodes)), key=lambda k: (*times[nodes[k].kind, nodes[k].of], k))
    number = {nodes[k].id: position for position, k in enumerate(order, 1)}
    spans = [times[nodes[k].kind, nodes[k].of] for k in order]
    rounded_spans = [(round(start), round(end)) for start, end in spans]
    stream = _streams([nodes[k].kind for k in order], rounded_spans, comm)
    # The position (from 1) before each one in its queue.
    members = defaultdict[int | str, list[int]](list)
    for position, queue in enumerate(stream, 1):
        members[queue].append(position)
    before = {b: (a,) for positions in members.values() for a, b in pairwise(positions)}
    nodes_in_order = []
    for position, k in enumerate(order, 1):
        node, (start, end), lane = nodes[k], rounded_spans[position - 1], stream[position - 1]
        data = sorted(number[d] for d in node.before)
        after = tuple(d for d in before.get(position, ()) if d not in data)
        attributes = node.attributes if isinstance(lane, str) else {**node.attributes, "stream": lane}
        nodes_in_order.append(
            replace(node, id=position, before=data, attributes=attributes, length_us=end - start, after=after)
        )
    return nodes_in_order


def _streams(kinds: Sequence[str], spans: Sequence[tuple[int, int]], comm: str) -> list[int | str]:
    """Returns the queue of each node: "compute", "transfers", or the number of a stream."""
    if comm == "sequential":
        return ["compute" if kind == COMPUTE else "transfers" for kind in kinds]
    streams: list[int | str] = []
    busy_until: list[int] = []
    for kind, (start, end) in zip(kinds, spans, strict=True):
        if kind != SEND or comm == "duplex":
            streams.append("compute" if kind == COMPUTE else int(kind == SEND))
            continue
        free = next((k for k, until in enumerate(busy_until) if until <= start), len(busy_until))
        busy_until[free:] = [end, *busy_until[free + 1 :]]
        streams.append(free + 1)
    return streams
