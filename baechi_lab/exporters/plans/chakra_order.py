"""The order of a simulated step as Chakra nodes: which node waits for which on a device and in its transfer queues.

A node waits for the one before it on its device, or in the queue of transfers that it shares, by a control dependency;
where transfers pass each other, they are on streams of their own:

    sequential    one queue of sends and receives per device
    duplex        stream 0 of receives, stream 1 of sends, a queue each
    parallel      receives on stream 0, which take no time; sends that overlap are on streams 1, 2, ...

A send holds the sender's queue from its start on, a receive the receiver's from a time that may lie within the send. Chakra's
receive comes after its send, so that its node begins when both its queue and the send's end let it, and ends with the transfer.
Start and end of every node are rounded, and not its duration: what starts when the last of several ends does so still, and a
replay of the nodes, each as early as it can, ends within rounding of the simulated step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ...errors import InvalidInput
from .records import Request

COMPUTE, SEND, RECEIVE = "COMP_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE"


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
