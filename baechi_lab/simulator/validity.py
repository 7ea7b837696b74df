"""`check`: is a timeline what the rules of docs/simulated-time.md demand? Written from the rules alone.

It shares no code with the event loop: starts and transfers are taken from the timeline and every rule is tested on
them; transfer queues are replayed from the production times, memory is rebuilt as intervals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import HOST, Cluster, OpGraph, Placement, Timeline, Transfers, Violation, allowed_devices, durations
from ..graph.arguments import check_records
from ..graph.columns import whole_numbers
from ..graph.opgraph import GROWS
from .schedules.schedule import Schedule
from .shared_intervals import shared_intervals

_LAST_TURN = 1 << 60
_TOLERANCE = 1e-9  # relative to the makespan: sums of microseconds are floating point


def check(graph: OpGraph, cluster: Cluster, placement: Placement, timeline: Timeline) -> tuple[Violation, ...]:
    """Every broken rule of `timeline` for `placement` of `graph`, an empty tuple when it is valid.

    Tests: each op once, on its device, for its duration; precedence; one op at a time; no idling beside a ready
    op; transfer rules of the cluster's communication mode; memory; colocation; allowed devices. A timeline of several
    micro-batches is checked on the unrolled graph, `bl.unroll(graph, micro_batches)`; where it followed a schedule, an op
    is ready only when all earlier units of its device have ended, and the units are those of the schedule's text.
    Where ops take no time, memory depends on who came first within an instant: that is as `info["turn"]` of the timeline
    says, or else in topological order.

    Args:
        graph, cluster, placement: what was simulated.
        timeline: of `bl.simulate`, or of any other program.

    Returns:
        One `Violation` per broken rule, with device, time and op.

    Raises:
        InvalidInput: placement and graph do not belong together.

    >>> from baechi_lab import Cluster, OpGraph, Placement, simulate
    >>> g, c = OpGraph.from_edges([1, 1], [(0, 1, 4)]), Cluster.uniform(2)
    >>> check(g, c, Placement(device=[0, 1]), simulate(g, c, Placement(device=[0, 1])))
    ()
    """
    check_records(graph=graph, cluster=cluster, placement=placement, timeline=timeline)
    placed = placement.checked(graph, cluster.n)
    slack = _TOLERANCE * max(timeline.makespan_us, 1.0)
    found = list(constraint_violations(graph, cluster, placed.device))
    found += _op_rows(graph, cluster, placed, timeline, slack)
    if any(v.kind == "rows" for v in found):
        return tuple(found)  # without one row per op nothing else can be judged
    start, end = _by_op(graph, timeline)
    found += _one_at_a_time(graph, cluster, placed, start, end, slack)
    transfers = _transfer_of_edge(graph, placed, timeline)
    found += _transfer_rows(graph, cluster, placed, timeline, end, slack)
    found += _precedence(graph, cluster, placed, timeline, start, end, transfers, slack)
    found += _queues(graph, cluster, placed, timeline, end, slack)
    found += _memory(graph, cluster, placed, timeline, start, end, transfers)
    return tuple(found)


def constraint_violations(graph: OpGraph, cluster: Cluster, device: NDArray[Any]) -> Iterator[Violation]:
    """Colocation and allowed devices: the rules that need no timeline."""
    grouped = np.flatnonzero(graph.colocation >= 0)
    home = np.full(len(graph.colocation_names), -1, dtype=np.int64)
    home[graph.colocation[grouped][::-1]] = device[grouped][::-1]  # the first member decides
    for i in grouped[device[grouped] != home[graph.colocation[grouped]]].tolist():
        group = graph.colocation_names[graph.colocation[i]]
        where, there = cluster.names[device[i]], cluster.names[home[graph.colocation[i]]]
        message = f"op {graph.names[i]!r} is on {where} but its colocation group {group!r} is on {there}"
        yield Violation("colocation", message, int(device[i]), op=i)
    if graph.allowed_sets or any(d.kind == HOST for d in cluster.devices):
        mask = allowed_devices(graph, cluster)
        for i in np.flatnonzero(~mask[np.arange(graph.n), device]).tolist():
            able = [name for name, ok in zip(cluster.names, mask[i], strict=True) if ok]
            message = f"op {graph.names[i]!r} is on {cluster.names[device[i]]}; it may run on {', '.join(able)}"
            yield Violation("allowed", message, int(device[i]), op=i)


def _processor_time(graph: OpGraph, cluster: Cluster, placed: Placement) -> NDArray[np.float64]:
    """float64[n]: `Link.overhead_us` of each message, of the op that made the tensor and of its first reader there."""
    spent = np.zeros(graph.n)
    if not cluster.overhead_us.any():
        return spent
    place = {int(op): k for k, op in enumerate(graph.order)}
    for t in range(graph.tensor_count):
        maker = int(graph.tensor_producer[t])
        home = int(placed.device[maker])
        readers = graph.tensor_consumers(t).tolist()
        for there in {int(placed.device[i]) for i in readers} - {home}:
            first = min((i for i in readers if placed.device[i] == there), key=place.__getitem__)
            spent[maker] += cluster.overhead_us[home, there]
            spent[first] += cluster.overhead_us[home, there]
    return spent


def _by_op(graph: OpGraph, timeline: Timeline) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    start, end = np.empty(graph.n), np.empty(graph.n)
    start[timeline.op], end[timeline.op] = timeline.start_us, timeline.end_us
    return start, end


def _op_rows(
    graph: OpGraph, cluster: Cluster, placed: Placement, timeline: Timeline, slack: float
) -> Iterator[Violation]:
    rows = np.bincount(timeline.op, minlength=graph.n)
    for i in np.flatnonzero(rows != 1).tolist():
        yield Violation("rows", f"op {graph.names[i]!r} has {rows[i]} rows in the timeline, not one", op=i)
    if len(timeline.op) != graph.n or np.any(rows != 1):
        return
    expected = (durations(graph, cluster) + _processor_time(graph, cluster, placed)[:, None])[
        timeline.op, timeline.device
    ]
    for k in np.flatnonzero(timeline.device != placed.device[timeline.op]).tolist():
        i = int(timeline.op[k])
        message = f"op {graph.names[i]!r} ran on device {timeline.device[k]}, placed on {placed.device[i]}"
        yield Violation("rows", message, int(timeline.device[k]), float(timeline.start_us[k]), i)
    wrong = np.abs(timeline.end_us - timeline.start_us - expected) > slack
    for k in np.flatnonzero(wrong | (timeline.start_us < 0)).tolist():
        i = int(timeline.op[k])
        message = (
            f"op {graph.names[i]!r} runs {timeline.start_us[k]}..{timeline.end_us[k]} us; it takes {expected[k]} us"
        )
        yield Violation("duration", message, int(timeline.device[k]), float(timeline.start_us[k]), i)
    if abs(timeline.end_us.max(initial=0.0) - timeline.makespan_us) > slack:
        yield Violation(
            "makespan", f"makespan is {timeline.makespan_us} us; the last op ends at {timeline.end_us.max(initial=0.0)}"
        )


def _one_at_a_time(
    graph: OpGraph, cluster: Cluster, placed: Placement, start: NDArray[Any], end: NDArray[Any], slack: float
) -> Iterator[Violation]:
    order = np.lexsort((end, start, placed.device))
    first, second = order[:-1], order[1:]
    bad = (placed.device[first] == placed.device[second]) & (start[second] < end[first] - slack)
    for a, b in zip(first[bad].tolist(), second[bad].tolist(), strict=True):
        d = int(placed.device[b])
        message = f"ops {graph.names[a]!r} and {graph.names[b]!r} overlap on {cluster.names[d]}"
        yield Violation("overlap", message, d, float(start[b]), b)


def _transfer_of_edge(graph: OpGraph, placed: Placement, timeline: Timeline) -> NDArray[np.int64]:
    """int64[E]: the transfer row that brings an edge's tensor to its consumer; -1 on one device, -2 when missing."""
    sent = timeline.transfers
    devices = int(max(placed.device.max(initial=0), sent.target.max(initial=0))) + 1
    have = sent.tensor.astype(np.int64) * devices + sent.target
    order = np.argsort(have, kind="stable")
    remote = placed.device[graph.edge_source] != placed.device[graph.consumers]
    want = graph.edge_tensor.astype(np.int64) * devices + placed.device[graph.consumers]
    at = np.minimum(np.searchsorted(have[order], want), max(len(have) - 1, 0))
    row = np.full(graph.edge_count, -1, dtype=np.int64)
    if len(have):
        row[remote] = np.where(have[order][at] == want, order[at], -2)[remote]
    else:
        row[remote] = -2
    return row


def _transfer_rows(
    graph: OpGraph, cluster: Cluster, placed: Placement, timeline: Timeline, end: NDArray[Any], slack: float
) -> Iterator[Violation]:
    sent = timeline.transfers
    cost = cluster.latency_us[sent.source, sent.target]
    cost = cost + cluster.us_per_byte[sent.source, sent.target] * graph.tensor_bytes[sent.tensor]
    pair = sent.tensor.astype(np.int64) * cluster.n + sent.target
    _, first = np.unique(pair, return_index=True)
    again = np.ones(len(sent), dtype=bool)
    again[first] = False
    used = np.isin(pair, graph.edge_tensor.astype(np.int64) * cluster.n + placed.device[graph.consumers])
    rules = (
        (again, "is sent there twice; the receiver caches it"),
        (sent.source != placed.device[graph.tensor_producer[sent.tensor]], "does not start where it was produced"),
        (sent.source == sent.target, "is sent to its own device"),
        (~used, "is sent to a device where nobody reads it"),
        (sent.start_us < end[graph.tensor_producer[sent.tensor]] - slack, "is sent before it is produced"),
        (sent.receive_us < sent.start_us - slack, "is received before it is sent"),
        (np.abs(sent.end_us - sent.receive_us - cost) > slack, "does not take the time that the link costs"),
    )
    for broken, what in rules:
        for k in np.flatnonzero(broken).tolist():
            label = graph.tensor_label(int(sent.tensor[k]))
            message = f"tensor {label!r} to {cluster.names[sent.target[k]]} {what}"
            yield Violation("transfer", message, int(sent.target[k]), float(sent.start_us[k]))


def _precedence(
    graph: OpGraph, cluster: Cluster, placed: Placement, timeline: Timeline, start: NDArray[Any], end: NDArray[Any],
    transfer: NDArray[Any], slack: float,
) -> Iterator[Violation]:  # fmt: skip
    there = end[graph.edge_source].copy()
    remote = transfer >= 0
    there[remote] = timeline.transfers.end_us[transfer[remote]]
    for e in np.flatnonzero(transfer == -2).tolist():
        label, i = graph.tensor_label(int(graph.edge_tensor[e])), int(graph.consumers[e])
        yield Violation(
            "transfer", f"tensor {label!r} never reaches op {graph.names[i]!r}", int(placed.device[i]), op=i
        )
    for e in np.flatnonzero((start[graph.consumers] < there - slack) & (transfer != -2)).tolist():
        label, i = graph.tensor_label(int(graph.edge_tensor[e])), int(graph.consumers[e])
        message = f"op {graph.names[i]!r} starts at {start[i]} us; its input {label!r} is there at {there[e]} us"
        yield Violation("precedence", message, int(placed.device[i]), float(start[i]), i)
    ready = np.zeros(graph.n)
    np.maximum.at(ready, graph.consumers, there)
    if "unit" in timeline.info:
        yield from _units(graph, cluster, placed, timeline, start, end, ready, slack)
    yield from _idling(graph, cluster, placed, start, end, ready, slack)


def _units(
    graph: OpGraph, cluster: Cluster, placed: Placement, timeline: Timeline, start: NDArray[Any], end: NDArray[Any],
    ready: NDArray[Any], slack: float,
) -> Iterator[Violation]:  # fmt: skip
    """Devices work unit by unit, as the schedule's text says; raises `ready` to the end of all earlier units."""
    unit = np.asarray(timeline.info["unit"])
    if unit.shape != (graph.n,) or graph.micro_batch is None:
        yield Violation("order", f"the timeline has units for {len(unit)} ops; the graph has {graph.n} and is no step")
        return
    lines = Schedule.parse(str(timeline.info["schedule"])).orders
    homes = np.asarray(timeline.info.get("line_device", timeline.info["stage_device"])).tolist()
    homes = list(dict.fromkeys(homes))
    if len(lines) != len(homes):
        yield Violation("order", f"the schedule has {len(lines)} lines; the pipeline has {len(homes)} devices")
        return
    for d in range(cluster.n):
        mine = np.flatnonzero(placed.device == d)
        mine = mine[np.argsort(unit[mine], kind="stable")]
        last = np.maximum.accumulate(np.r_[0.0, end[mine]])
        before = last[np.searchsorted(unit[mine], unit[mine], side="left")]
        for k in np.flatnonzero(start[mine] < before - slack).tolist():
            i = int(mine[k])
            message = (
                f"op {graph.names[i]!r} starts at {start[i]} us; an earlier unit of its device ends at {before[k]} us"
            )
            yield Violation("order", message, d, float(start[i]), i)
        ready[mine] = np.maximum(ready[mine], before)
        line = lines[homes.index(d)] if d in homes else ()
        said = [-1, *(unit.micro_batch for unit in line)]
        for i in mine[(unit[mine] > 0) & (unit[mine] < len(said))].tolist():
            if said[unit[i]] != graph.micro_batch[i]:
                message = f"op {graph.names[i]!r} runs in unit {line[unit[i] - 1]} of another micro-batch"
                yield Violation("order", message, d, float(start[i]), i)


def _idling(
    graph: OpGraph, cluster: Cluster, placed: Placement, start: NDArray[Any], end: NDArray[Any], ready: NDArray[Any],
    slack: float,
) -> Iterator[Violation]:  # fmt: skip
    """A device never idles while it has a ready op: no idle time lies between an op's ready time and its start."""
    for d in range(cluster.n):
        mine = np.flatnonzero(placed.device == d)
        mine = mine[np.lexsort((end[mine], start[mine]))]
        busy_until = np.r_[0.0, np.maximum.accumulate(end[mine])]
        gap = np.maximum(np.r_[start[mine], np.inf] - busy_until, 0.0)[:-1]  # idle time just before each op
        idle_before = np.r_[0.0, np.cumsum(gap)]
        position = np.searchsorted(start[mine], ready[mine], side="left")  # ops that start before it is ready
        until_ready = idle_before[position] + np.clip(ready[mine] - busy_until[position], 0.0, None)
        waited = idle_before[1:] - until_ready
        for k in np.flatnonzero(waited > slack * max(len(mine), 1)).tolist():
            i = int(mine[k])
            message = f"device {cluster.names[d]} idles {waited[k]:.6g} us although op {graph.names[i]!r} is ready"
            yield Violation("idling", message, d, float(ready[i]), i)


def _queues(
    graph: OpGraph, cluster: Cluster, placed: Placement, timeline: Timeline, end: NDArray[Any], slack: float
) -> Iterator[Violation]:
    """Replay the requests in order of (production time, producer, tensor, destination)."""
    sent = timeline.transfers
    producer = graph.tensor_producer[sent.tensor]
    took = durations(graph, cluster)[producer, sent.source] + _processor_time(graph, cluster, placed)[producer]
    order = _service_order(graph, cluster, timeline, end[producer], took == 0)
    out_free = [0.0] * cluster.n
    in_free = out_free if cluster.comm == "sequential" else [0.0] * cluster.n
    size = graph.tensor_bytes
    for k in order:
        a, b, t = int(sent.source[k]), int(sent.target[k]), int(sent.tensor[k])
        start = receive = float(end[producer[k]])
        if cluster.comm != "parallel":
            cost = float(cluster.latency_us[a, b] + cluster.us_per_byte[a, b] * size[t])
            start = max(start, out_free[a])
            out_free[a] = start + cost
            receive = max(start, in_free[b])
            in_free[b] = receive + cost
        if abs(sent.start_us[k] - start) > slack or abs(sent.receive_us[k] - receive) > slack:
            message = (
                f"tensor {graph.tensor_label(t)!r} to {cluster.names[b]} is sent at {sent.start_us[k]} and received "
                f"from {sent.receive_us[k]} us; with {cluster.comm} transfers that is {start} and {receive}"
            )
            yield Violation("transfer", message, b, float(sent.start_us[k]))


def _service_order(
    graph: OpGraph, cluster: Cluster, timeline: Timeline, produced: NDArray[Any], no_time: NDArray[np.bool_]
) -> list[int]:
    """Transfer rows in the order in which their requests were served.

    Ops of no duration may cause each other within one instant, so their requests are not served by index but as the
    ops ran, which depends on the scheduler: among them, the order that the queues themselves show is taken.
    """
    sent = timeline.transfers
    order = np.lexsort((sent.target, sent.tensor, graph.tensor_producer[sent.tensor], no_time, produced))
    if cluster.comm == "parallel":
        return [int(k) for k in order]
    change = np.flatnonzero((np.diff(produced[order]) != 0) | (np.diff(no_time[order]) != 0)) + 1
    served: list[int] = []
    for rows in np.split(order, change):
        served += _as_queued(rows, cluster, timeline) if len(rows) > 1 and no_time[rows[0]] else rows.tolist()
    return served


def _as_queued(rows: NDArray[np.intp], cluster: Cluster, timeline: Timeline) -> list[int]:
    """`rows` so that each comes after those that a queue held before it; as given where no order explains them."""
    sent = timeline.transfers
    held: dict[tuple[str, int], list[tuple[float, float, int]]] = defaultdict(list)
    inward = "out" if cluster.comm == "sequential" else "in"
    for k in rows.tolist():
        cost = float(sent.end_us[k] - sent.receive_us[k])
        held["out", int(sent.source[k])].append((float(sent.start_us[k]), cost, k))
        held[inward, int(sent.target[k])].append((float(sent.receive_us[k]), cost, k))
    before: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(rows.tolist(), ()))
    for queue in held.values():
        for (_, _, first), (_, _, second) in pairwise(sorted(queue)):
            before.add(second, first)
    try:
        return list(before.static_order())
    except CycleError:
        return [int(k) for k in rows]


def _turns(
    graph: OpGraph, placed: Placement, timeline: Timeline, start: NDArray[Any], end: NDArray[Any]
) -> NDArray[np.int64] | None:
    """int64[n]: among ops that begin at one instant, lower ones did so first; None where what the timeline says cannot be.

    A timeline that does not say so had them in topological order, those that last last.
    """
    lasting = end > start
    if "turn" not in timeline.info:
        return np.where(lasting, graph.n, 0) + graph.position
    turn: NDArray[np.int64] = whole_numbers("turn", timeline.info["turn"], np.int64)
    if turn.shape != (graph.n,) or np.any((turn < 0) | (turn > _LAST_TURN)):
        return None
    order = np.lexsort((turn, start, placed.device))
    first, second = order[:-1], order[1:]
    together = (placed.device[first] == placed.device[second]) & (start[first] == start[second])
    early, late = graph.edge_source, graph.consumers
    at_once = start[early] == start[late]
    possible = not np.any(together & ((turn[first] == turn[second]) | lasting[first]))
    return turn if possible and np.all(turn[early[at_once]] < turn[late[at_once]]) else None


def _moments(
    graph: OpGraph, sent: Transfers, start: NDArray[Any], end: NDArray[Any], turn: NDArray[np.int64]
) -> tuple[NDArray[np.int64], ...]:
    """When ops start and end and tensors are received from and until, as whole numbers: 0, 1, ... in order of events.

    What ends or arrives at an instant precedes what starts then, but an op of no time ends after it has started, and
    what that sets going is later still: at an instant comes first what was under way, then turn by turn starts and ends.
    """
    producer = graph.tensor_producer[sent.tensor]
    ended = np.where(end > start, -1, 2 * turn + 1)
    within = (
        2 * turn,
        ended,
        np.where(sent.receive_us > end[producer], -1, ended[producer]),
        np.where(sent.end_us > end[producer], -1, ended[producer]),
    )
    pairs = np.stack([np.concatenate([start, end, sent.receive_us, sent.end_us]), np.concatenate(within)])
    moment = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
    n, moves = graph.n, len(sent)
    return tuple(np.split(moment, [n, 2 * n, 2 * n + moves]))


def _memory(
    graph: OpGraph, cluster: Cluster, placed: Placement, timeline: Timeline, start_us: NDArray[Any], end_us: NDArray[Any],
    transfer: NDArray[Any],
) -> Iterator[Violation]:  # fmt: skip
    """Rebuild what each device holds as intervals [taken, given back) and compare with its limit."""
    sent, home = timeline.transfers, placed.device[graph.tensor_producer]
    turn = _turns(graph, placed, timeline, start_us, end_us)
    if turn is None:
        yield Violation("order", "the turns of the timeline are no order in which ops of one instant can have begun")
        return
    start, end, received, arrived = _moments(graph, sent, start_us, end_us, turn)
    gone = end[graph.tensor_producer].copy()
    local = transfer == -1
    np.maximum.at(gone, graph.edge_tensor[local], end[graph.consumers[local]])
    np.maximum.at(gone, sent.tensor, arrived)
    copy_gone = arrived.copy()
    remote = transfer >= 0
    np.maximum.at(copy_gone, transfer[remote], end[graph.consumers[remote]])
    device = np.concatenate([placed.device, placed.device, home, sent.target])
    # Persistent bytes are held throughout: at the first instant too, before anything that starts then.
    always = np.full(graph.n, -1), np.full(graph.n, len(start) * 2 + len(sent) * 2)
    taken = np.concatenate([always[0], start, start[graph.tensor_producer], received])
    back = np.concatenate([always[1], end, gone, copy_gone])
    size = np.concatenate(
        [graph.persistent_bytes, graph.temp_bytes, graph.tensor_bytes, graph.tensor_bytes[sent.tensor]]
    )
    cause = np.concatenate(
        [np.arange(graph.n), np.arange(graph.n), graph.tensor_producer, graph.tensor_producer[sent.tensor]]
    )
    when = np.concatenate([np.zeros(graph.n), start_us, start_us[graph.tensor_producer], sent.receive_us])
    if graph.reuse is not None:
        grows = graph.reuse == GROWS
        taken[: graph.n][grows], when[: graph.n][grows] = start[grows], start_us[grows]
        moved = Transfers(
            sent.tensor,
            sent.source,
            sent.target,
            sent.start_us,
            received.astype(np.float64),
            arrived.astype(np.float64),
        )
        first = 2 * graph.n
        size[first:], back[first:] = shared_intervals(graph, placed, moved, (start, end), size[first:], back[first:])
    for d in range(cluster.n):
        mine = np.flatnonzero((device == d) & (size > 0))
        peak, who = _peak(taken[mine], back[mine], size[mine])
        if peak > cluster.memory_bytes[d]:
            op, at = int(cause[mine[who]]), float(when[mine[who]])
            message = (
                f"device {cluster.names[d]} holds {peak} bytes at {at} us, when op {graph.names[op]!r} takes memory; "
                f"it has {int(cluster.memory_bytes[d])}"
            )
            yield Violation("memory", message, d, at, op)


def _peak(taken: NDArray[Any], back: NDArray[Any], size: NDArray[Any]) -> tuple[int, int]:
    """Highest level and the interval that reached it; what ends at a moment goes before what starts."""
    if len(size) == 0:
        return 0, -1
    change, starts = np.concatenate([-size, size]), np.repeat([False, True], len(size))
    order = np.lexsort((starts, np.concatenate([back, taken])))
    level = np.cumsum(change[order])
    top = int(np.argmax(level))
    return int(level[top]), int(order[top]) - len(size)
