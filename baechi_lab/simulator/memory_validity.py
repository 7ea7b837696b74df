"""The rules of memory in `validity`: bytes are rebuilt as intervals, and held against limits, peaks and the log of a timeline.

Intervals are merged where outputs reuse the memory of inputs (`OpGraph.reuse`). This is written from the rules of
docs/simulated-time.md, independently of `simulator.buffer_reuse`, which counts uses event by event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, Placement, Timeline, Transfers, Violation
from ..graph.kernels.csr import Floats, Ints
from ..graph.opgraph import GROWS, OVERWRITES, VIEW

_TOLERANCE = 1e-9  # relative to the makespan: sums of microseconds are floating point


@dataclass(frozen=True, eq=False)
class TimedStep:
    """A timeline with the graph, the cluster and the placement of its simulation."""

    graph: OpGraph
    cluster: Cluster
    placement: Placement
    timeline: Timeline

    @cached_property
    def start(self) -> Floats:
        """float64[n]: start of each op in microseconds."""
        return self._by_op(self.timeline.start_us)

    @cached_property
    def end(self) -> Floats:
        """float64[n]: end of each op in microseconds."""
        return self._by_op(self.timeline.end_us)

    @cached_property
    def lane(self) -> NDArray[np.int64]:
        """int64[n]: device of each op; for a collective, which runs on the lane of communication, `cluster.n` more."""
        return self.placement.device + self.cluster.n * self.graph.on_communication_lane.astype(np.int64)

    @property
    def slack(self) -> float:
        """Allowed rounding error in microseconds."""
        return _TOLERANCE * max(self.timeline.makespan_us, 1.0)

    def _by_op(self, times: Floats) -> Floats:
        time_of_op = np.empty(self.graph.n)
        time_of_op[self.timeline.op] = times
        return time_of_op


_MAX_TURN = 1 << 60  # 2 * turn + 1 fits in 64 bits


def _turn_of_op(
    graph: OpGraph, placement: Placement, timeline: Timeline, start: Floats, end: Floats
) -> NDArray[np.int64] | None:
    """Returns int64[n]: the order of ops that start at one instant, lower ones first; None if `Timeline.turn` is impossible.

    Without `Timeline.turn` it is the topological order, ops with a duration last.
    """
    lasting = end > start
    turn_of_op = timeline.turn
    if turn_of_op is None:
        return np.where(lasting, graph.n, 0) + graph.position
    if turn_of_op.shape != (graph.n,) or np.any((turn_of_op < 0) | (turn_of_op > _MAX_TURN)):
        return None
    order = np.lexsort((turn_of_op, start, graph.on_communication_lane, placement.device))
    first, second = order[:-1], order[1:]
    same_lane = graph.on_communication_lane[first] == graph.on_communication_lane[second]
    together = same_lane & (placement.device[first] == placement.device[second]) & (start[first] == start[second])
    source, reader = graph.edge_source, graph.consumers
    at_once = start[source] == start[reader]
    possible = not np.any(together & ((turn_of_op[first] == turn_of_op[second]) | lasting[first]))
    return turn_of_op if possible and np.all(turn_of_op[source[at_once]] < turn_of_op[reader[at_once]]) else None


def memory_violations(step: TimedStep, transfer: NDArray[np.int64], has_valid_rows: bool) -> Iterator[Violation]:
    """Yields devices whose live bytes exceed their memory. Live bytes are rebuilt as intervals [start, release).

    With `has_valid_rows`, it also yields peaks and logs of the timeline that are not those of the intervals.
    """
    graph, cluster, timeline = step.graph, step.cluster, step.timeline
    is_comparable = has_valid_rows and timeline.info.get("memory_rule", "tensors") == "tensors"
    turn_of_op = _turn_of_op(graph, step.placement, step.timeline, step.start, step.end)
    if turn_of_op is None:
        yield Violation("order", "the turns of the timeline are no order in which ops of one instant can have begun")
        return
    intervals = _live_intervals(step, transfer, turn_of_op)
    for d in range(cluster.n):
        rows = np.flatnonzero((intervals.device == d) & (intervals.size > 0))
        peak, peak_row = _peak_interval(intervals.start[rows], intervals.release[rows], intervals.size[rows])
        if is_comparable and peak != timeline.peak_bytes[d]:
            message = (
                f"device {cluster.names[d]} holds at most {peak} bytes; the timeline says {timeline.peak_bytes[d]}"
            )
            yield Violation("memory", message, d)
        if is_comparable and len(timeline.memory):
            yield from _log_violations(step, d, intervals, rows)
        if peak > cluster.memory_bytes[d]:
            op, at = int(intervals.op[rows[peak_row]]), float(intervals.start_us[rows[peak_row]])
            message = (
                f"device {cluster.names[d]} holds {peak} bytes at {at} us, when op {graph.names[op]!r} takes memory; "
                f"it has {int(cluster.memory_bytes[d])}"
            )
            yield Violation("memory", message, d, at, op)


def _log_violations(
    step: TimedStep, device: int, intervals: _LiveIntervals, rows: NDArray[np.intp]
) -> Iterator[Violation]:
    """Yields the first time at which the log of a device differs from the intervals in `rows`.

    Levels are compared in the middle between two instants, so that rounding of times does not matter.
    """
    log = step.timeline.memory
    on_device = np.flatnonzero(log.device == device)
    released_rows = rows[np.isfinite(intervals.release_us[rows])]
    time = np.concatenate([intervals.start_us[rows], intervals.release_us[released_rows], log.time_us[on_device]])
    change = np.concatenate([intervals.size[rows], -intervals.size[released_rows], -log.delta[on_device]])
    order = np.argsort(time, kind="stable")
    instant, difference = time[order], np.cumsum(change[order])
    # The last change of an instant, unless the next instant follows within the rounding error.
    last_changes = np.flatnonzero(np.diff(instant, append=np.inf) > 2 * step.slack)
    for k in last_changes[difference[last_changes] != 0][:1].tolist():
        message = (
            f"the log of memory of device {step.cluster.names[device]} is {-int(difference[k])} bytes off what is held "
            f"after {instant[k]} us"
        )
        yield Violation("memory", message, device, float(instant[k]))


class _LiveIntervals(NamedTuple):
    """Bytes that `op` takes on `device` at event `start` and that are released at event `release`, and the times of both."""

    device: NDArray[np.int64]
    start: NDArray[np.int64]
    release: NDArray[np.int64]
    size: NDArray[np.int64]
    op: NDArray[np.int64]
    start_us: NDArray[np.float64]
    release_us: NDArray[np.float64]


def _live_intervals(step: TimedStep, transfer: NDArray[np.int64], turn_of_op: NDArray[np.int64]) -> _LiveIntervals:
    """Returns the intervals of persistent bytes, temporaries, outputs and received copies, in this order."""
    graph, placement = step.graph, step.placement
    timeline, start_us, end_us = step.timeline, step.start, step.end
    transfers, producer_device = timeline.transfers, placement.device[graph.tensor_producer]
    producer = graph.tensor_producer[transfers.tensor]
    end_turn = np.where(end_us > start_us, -1, 2 * turn_of_op + 1)
    event_turns = (
        2 * turn_of_op,
        end_turn,
        np.where(transfers.receive_us > end_us[producer], -1, end_turn[producer]),
        np.where(transfers.end_us > end_us[producer], -1, end_turn[producer]),
    )
    pairs = np.stack(
        [np.concatenate([start_us, end_us, transfers.receive_us, transfers.end_us]), np.concatenate(event_turns)]
    )
    moments, moment = np.unique(pairs, axis=1, return_inverse=True)
    moment = moment.reshape(-1)
    n, transfer_count = graph.n, len(transfers)
    start, end, receive_event, receive_end_event = tuple(np.split(moment, [n, 2 * n, 2 * n + transfer_count]))
    release = end[graph.tensor_producer].copy()
    local = transfer == -1
    np.maximum.at(release, graph.edge_tensor[local], end[graph.consumers[local]])
    np.maximum.at(release, transfers.tensor, receive_end_event)
    copy_release = receive_end_event.copy()
    remote = transfer >= 0
    np.maximum.at(copy_release, transfer[remote], end[graph.consumers[remote]])
    device = np.concatenate([placement.device, placement.device, producer_device, transfers.target])
    # Persistent bytes are held throughout: at the first instant too, before anything that starts then.
    throughout = np.full(graph.n, -1), np.full(graph.n, moments.shape[1])
    start_event = np.concatenate([throughout[0], start, start[graph.tensor_producer], receive_event])
    release_event = np.concatenate([throughout[1], end, release, copy_release])
    size = np.concatenate(
        [graph.persistent_bytes, graph.temp_bytes, graph.tensor_bytes, graph.tensor_bytes[transfers.tensor]]
    )
    op = np.concatenate(
        [np.arange(graph.n), np.arange(graph.n), graph.tensor_producer, graph.tensor_producer[transfers.tensor]]
    )
    start_time = np.concatenate([np.zeros(graph.n), start_us, start_us[graph.tensor_producer], transfers.receive_us])
    if graph.reuse is not None:
        grows = graph.reuse == GROWS
        start_event[: graph.n][grows], start_time[: graph.n][grows] = start[grows], start_us[grows]
        transfer_events = Transfers(
            tensor=transfers.tensor,
            source=transfers.source,
            target=transfers.target,
            start_us=transfers.start_us,
            receive_us=receive_event.astype(np.float64),
            end_us=receive_end_event.astype(np.float64),
        )
        first_output = 2 * graph.n
        size[first_output:], release_event[first_output:] = merge_reused_intervals(
            graph, placement, transfer_events, (start, end), size[first_output:], release_event[first_output:]
        )
    release_us = np.append(moments[0], np.inf)[release_event]
    return _LiveIntervals(device, start_event, release_event, size, op, start_time, release_us)


def _peak_interval(start: NDArray[np.int64], release: NDArray[np.int64], size: NDArray[np.int64]) -> tuple[int, int]:
    """Returns the most bytes, and the interval that reaches them. At one event number, releases precede starts."""
    if len(size) == 0:
        return 0, -1
    change, is_start = np.concatenate([-size, size]), np.repeat([False, True], len(size))
    order = np.lexsort((is_start, np.concatenate([release, start])))
    level = np.cumsum(change[order])
    peak_event = int(np.argmax(level))
    return int(level[peak_event]), int(order[peak_event]) - len(size)


def merge_reused_intervals(
    graph: OpGraph, placement: Placement, transfers: Transfers, times: tuple[Ints, Ints], size: Ints, release: Ints
) -> tuple[Ints, Ints]:
    """Returns sizes and release times of tensors and copies; of those in one buffer, all but the first have size 0."""
    (start, end), device = times, placement.device.tolist()
    row = {(t, device[graph.tensor_producer[t]]): t for t in range(graph.tensor_count)}
    copies = zip(transfers.tensor.tolist(), transfers.target.tolist(), strict=True)
    row |= {copy: graph.tensor_count + k for k, copy in enumerate(copies)}
    uses: list[list[tuple[float, int]]] = [[] for _ in size]  # (end, op; -1 for a transfer)
    for (t, d), k in row.items():
        uses[k] += [(float(end[r]), r) for r in graph.tensor_consumers(t).tolist() if device[r] == d]
    for t, end_time in zip(transfers.tensor.tolist(), transfers.end_us.tolist(), strict=True):
        uses[t].append((end_time, -1))
    sent_tensors = set(transfers.tensor.tolist())
    # Rows in the buffer of row k; None: persistent bytes.
    members: list[list[int] | None] = [[k] for k in range(len(size))]
    tensors, size, release = graph.tensor_bytes, size.copy(), release.copy()
    reuse, (pointer, read) = np.asarray(graph.reuse), graph.inputs

    def free_for(tensor: int, op: int) -> bool:
        """Whether no other op than `op` uses the buffer of `tensor` after `op` has started."""
        sharing = members[row[tensor, device[op]]] or ()
        return all(end_time <= start[op] or user == op for k in sharing for end_time, user in uses[k])

    for op in sorted(
        np.flatnonzero((reuse == VIEW) | (reuse == OVERWRITES)).tolist(), key=lambda i: (start[i], graph.position[i])
    ):
        for t in (t for t in graph.outputs(op) if tensors[t]):
            inputs = [
                u for u in read[pointer[op] : pointer[op + 1]].tolist() if members[row[u, device[op]]] is not None
            ]
            if reuse[op] == VIEW:
                reusable = sorted((u for u in inputs if tensors[u] >= tensors[t]), key=lambda u: (tensors[u], u))
            else:
                reusable = [
                    u for u in inputs if tensors[u] == tensors[t] and device[graph.tensor_producer[u]] == device[op]
                ]
                reusable = [u for u in reusable if t not in sent_tensors or u in sent_tensors]
                reusable = [u for u in reusable if free_for(u, op)]
            if reusable:
                members[t] = members[row[reusable[0], device[op]]]
                members[t].append(t)  # type: ignore[union-attr]
            elif reuse[op] == VIEW:
                members[t], size[t] = None, 0
    for buffer_rows in {id(m): m for m in members if m is not None}.values():
        release[buffer_rows[0]], size[buffer_rows[1:]] = release[buffer_rows].max(), 0
    return size, release
