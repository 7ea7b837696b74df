"""Chakra: an execution trace per device, for simulators such as ASTRA-sim (schema: see `graph/formats/traces/chakra`).

Every op is a COMP node of its duration on its device; a tensor that another device reads is a send there and a receive here,
of its bytes, once per receiver, with a tag of its own. With a timeline, ops and transfers also wait for each other as in the
simulated step (see `chakra_order`). `files` has the binary form, `NAME.0.et`, `NAME.1.et`, ...; the text is
the JSON form. `bl.load_trace([...])` reads the files back.
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

from ...graph.costs import placed_durations
from ...graph.formats.traces.chakra import SCHEMA, TYPES
from ...graph.formats.traces.protobuf import messages, with_length
from .chakra_order import COMPUTE, RECEIVE, SEND, Node, schedule_nodes
from .records import Request, Written

VERSION = "0.0.4"
_NUMBER = {name: k for k, name in enumerate(TYPES)}


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
