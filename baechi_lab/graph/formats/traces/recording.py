"""Recording: a step that was traced elsewhere, with its ops, their lanes and times, and their dependencies.

Readers of traces make `Event`s; `recording` makes records of them. Every lane of the trace (a thread, a stream) becomes a
device, since it runs one event at a time. Links cost nothing, because the trace contains the times of transfers.

Durations are such that a replay in the measured order gives the measured times. An op starts when its lane is free and its
inputs are there. If it started later for a reason that is not in the trace (other code, a launch), the wait is added to its
duration, and a note gives the share of such waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ....errors import FormatError
from ...cluster import Cluster
from ...device import MOST_DEVICES, Device
from ...link import Link
from ...opgraph import CONTROL_BYTES, OpGraph
from ...placement import Placement
from ...tensors import TensorTable
from ...timeline import MemoryLog, Timeline, Transfers

CLOCK_US = 1.0
"""Tolerance for comparing ends and starts, in microseconds: some traces have no finer clock."""

MOST_BYTES = 2**53
"""Most bytes of one tensor or op; a trace with more is damaged."""


@dataclass
class Event:
    """One op of a trace. `reads`: bytes by (event, label of the tensor); `after`: other events for which it waited.

    `tie_order`: the order of events with the same times.
    """

    name: str
    op_type: str
    lane: str
    start_us: float
    end_us: float
    kind: str = "cpu"
    reads: dict[tuple[int, str], int] = field(default_factory=dict)
    after: set[int] = field(default_factory=set)
    persistent_bytes: int = 0
    group: str = ""
    keeps_device: bool = False
    tie_order: int = 0


@dataclass(frozen=True, eq=False)
class Recording:
    """A traced step as records.

    Args:
        graph: the ops, with measured durations.
        cluster: a device per thread or stream of the trace.
        placement: the device of each op, with the measured order.
        timeline: the measured times.
        notes: sentences on information that the trace lacks, and how it was inferred.

    `bl.simulate(graph, cluster, placement)` replays the step. With another cluster and placer it predicts the step there.
    """

    graph: OpGraph
    cluster: Cluster
    placement: Placement
    timeline: Timeline
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        size = f"{self.graph.n} ops on {self.cluster.n} lanes"
        return f"<Recording {self.graph.name!r}: {size}, {self.timeline.makespan_us:.6g} us>"


def recording(events: Sequence[Event], name: str, notes: Sequence[str] = ()) -> Recording:
    """Makes the records of a step from its events, in any order.

    Raises:
        FormatError: there are no events, more lanes than a cluster may have devices, or times and sizes out of range.
    """
    if not events:
        raise FormatError("the trace holds no operator")
    for event in events:
        if not (-1e15 < event.start_us <= event.end_us < 1e16):
            raise FormatError(
                f"{event.name!r:.80} lasts from {event.start_us} to {event.end_us} us; it must not end before it starts"
            )
        for size in (*event.reads.values(), event.persistent_bytes):
            if not 0 <= size <= MOST_BYTES:
                raise FormatError(f"{event.name!r:.80} has a tensor of {size} bytes; it must be from 0 to {MOST_BYTES}")
    order = sorted(range(len(events)), key=lambda i: (events[i].start_us, events[i].end_us, events[i].tie_order, i))
    place = {i: k for k, i in enumerate(order)}
    in_order = [events[i] for i in order]
    lane, parallel = _lanes(in_order)
    lanes = list(dict.fromkeys(lane))
    if len(lanes) > MOST_DEVICES:
        raise FormatError(f"the trace has {len(lanes)} threads and streams; at most {MOST_DEVICES} can be devices")
    table, waits_for, dropped_count = _dependencies(events, order, place)
    duration, waited_us = _durations(in_order, lane, waits_for, parallel)
    span = max(e.end_us for e in events) - min(e.start_us for e in events)
    group, separated_count = _groups(in_order, lane)
    sentences = [*notes, *_notes(dropped_count, waited_us, len(lanes) * span, separated_count)]
    graph = _graph(in_order, duration, table, group, name)
    number = {x: k for k, x in enumerate(lanes)}
    device = np.array([number[x] for x in lane])
    kinds = {x: event.kind for x, event in zip(reversed(lane), reversed(in_order), strict=True)}
    # Traces do not contain the memory of devices, so it is enough for all.
    capacity_bytes = min(int(graph.persistent_bytes.sum() + 2 * graph.tensor_bytes.sum()) + 1, 2**62 // len(lanes))
    cluster = Cluster(tuple(Device(x, kinds[x], capacity_bytes) for x in lanes), Link(0.0, 0.0), "parallel")
    placement = Placement(
        device=device,
        order=np.arange(graph.n, dtype=np.float64),
        placer="trace",
        graph_key=graph.key,
        info={"notes": tuple(sentences)},
    )
    start = np.array([event.start_us for event in in_order])
    end = np.array([event.end_us for event in in_order])
    first_start = start.min()
    return Recording(
        graph,
        cluster,
        placement,
        Timeline(
            op=np.arange(graph.n),
            device=device,
            start_us=start - first_start,
            end_us=end - first_start,  # type: ignore[arg-type]
            transfers=Transfers.none(),
            memory=MemoryLog.none(),
            peak_bytes=np.zeros(cluster.n, np.int64),
            makespan_us=float(end.max() - first_start),
            origin="measured",
            op_names=graph.names,
            device_names=cluster.names,
            memory_bytes=cluster.memory_bytes,
            tensor_producer=graph.tensor_producer,
            tensor_bytes=graph.tensor_bytes,
            info={"notes": tuple(sentences)},
        ),
        tuple(sentences),
    )


def _lanes(events: Sequence[Event]) -> tuple[list[str], set[int]]:
    """Returns the lane of each event, by start; events that overlap on one lane get further lanes (`thread 1 (2)`).

    Also returns the events of a stream that start or lie within another one of it: their start has no known reason.
    """
    free: dict[str, list[float]] = {}
    lanes, parallel = [], set()
    for i, event in enumerate(events):
        lane_ends = free.setdefault(event.lane, [])
        k = next((k for k, end in enumerate(lane_ends) if end <= event.start_us + CLOCK_US), len(lane_ends))
        if event.kind == "gpu" and (k > 0 or any(end >= event.end_us for end in lane_ends[1:])):
            parallel.add(i)
        if k == len(lane_ends):
            lane_ends.append(0.0)
        lane_ends[k] = event.end_us
        lanes.append(event.lane if k == 0 else f"{event.lane} ({k + 1})")
    return lanes, parallel


def _dependencies(
    events: Sequence[Event], order: list[int], place: dict[int, int]
) -> tuple[TensorTable, list[list[int]], int]:
    """Returns tensors, the ops for which each op waits, and the number of dependencies that the measured times contradict.

    An op that started before the end of a dependency gets the dependencies of that one instead.
    """
    table, dropped_count = TensorTable(), 0
    waits_for: list[list[int]] = [[] for _ in order]
    waits = [{*(j for j, _ in event.reads), *event.after} for event in events]
    for k, i in enumerate(order):
        contradicted_events = []
        rows = [*events[i].reads.items(), *(((j, "control"), CONTROL_BYTES) for j in sorted(events[i].after))]
        for (j, label), size in rows:
            if j == i:
                continue
            if _contradicts_times(events, place, j, i):
                contradicted_events.append(j)
                continue
            table.add(place[j], label, size, [k])
            waits_for[k].append(place[j])
        dropped_count += len(contradicted_events)
        # The dependencies of the contradicted dependencies of `i`, as far as these had ended.
        visited, pending, before = {i, *contradicted_events}, list(contradicted_events), set()
        while pending:
            for j in waits[pending.pop()] - visited:
                visited.add(j)
                if _contradicts_times(events, place, j, i):
                    pending.append(j)
                else:
                    before.add(j)
        for j in sorted(before - waits[i]):
            table.add(place[j], "control", CONTROL_BYTES, [k])
            waits_for[k].append(place[j])
    return table, waits_for, dropped_count


def _contradicts_times(events: Sequence[Event], place: dict[int, int], j: int, i: int) -> bool:
    """Whether `i` started before `j` ended."""
    return place[j] > place[i] or events[j].end_us > events[i].start_us + CLOCK_US


def _durations(
    events: Sequence[Event], lane: list[str], waits_for: list[list[int]], parallel: set[int]
) -> tuple[list[float], float]:
    """Returns the duration of each op in a replay, and the sum of unexplained waits.

    An op that starts or lies within another one of its stream (`parallel`) keeps its measured duration, unless the step ends
    with it: its wait would be as long as the other op.
    """
    first_start, finish = min(e.start_us for e in events), max(e.end_us for e in events)
    free: dict[str, float] = {}
    lane_ends: list[float] = []
    duration, waited_us = [], 0.0
    for k, event in enumerate(events):
        ready = max([free.get(lane[k], first_start), *(lane_ends[j] for j in waits_for[k])])
        wait = max(0.0, event.start_us - ready)
        if k in parallel and event.end_us < finish:
            duration.append(event.end_us - event.start_us)
            lane_ends.append(ready + duration[-1])
        else:
            waited_us += wait
            duration.append(max(0.0, event.end_us - ready))  # clocks are coarse: it may have started before `ready`
            lane_ends.append(max(ready, event.end_us))
        free[lane[k]] = lane_ends[-1]
    return duration, waited_us


def _groups(events: Sequence[Event], lane: list[str]) -> tuple[list[str], int]:
    """Returns the group of each event, none for events on another lane than their group's first, and the number of these."""
    lane_of_group: dict[str, str] = {}
    groups = [e.group if lane_of_group.setdefault(e.group, x) == x else "" for e, x in zip(events, lane, strict=True)]
    return groups, sum(bool(e.group) and not group for e, group in zip(events, groups, strict=True))


def _notes(dropped_count: int, waited_us: float, lanes_us: float, separated_count: int) -> list[str]:
    """Returns sentences about what the recording leaves out of the trace or adds to it."""
    sentences = []
    if separated_count:
        sentences.append(
            f"{separated_count} ops ran on another lane than what they share a variable with; any device may take them"
        )
    if dropped_count:
        sentences.append(
            f"{dropped_count} dependencies of the trace are not kept, as the op that waits had started before; it depends on "
            "what those depended on"
        )
    if lanes_us > 0 and waited_us / lanes_us >= 0.005:
        share = f"{waited_us / lanes_us:.0%} of all lanes' time"
        sentences.append(
            f"waits that nothing in the trace explains add up to {share}; each counts with the op after it"
        )
    return sentences


def _graph(events: Sequence[Event], duration: list[float], table: TensorTable, group: list[str], name: str) -> OpGraph:
    groups = {g: k for k, g in enumerate(dict.fromkeys(filter(None, group)))}
    kinds = sorted({e.kind for e in events if e.keeps_device})
    return OpGraph(
        names=_distinct([e.name for e in events]),
        op_types=tuple(e.op_type or "op" for e in events),
        duration_us=duration,  # type: ignore[arg-type]
        persistent_bytes=[e.persistent_bytes for e in events],  # type: ignore[arg-type]
        colocation=[groups.get(g, -1) for g in group],  # type: ignore[arg-type]
        colocation_names=tuple(groups),
        allowed=[kinds.index(e.kind) if e.keeps_device else -1 for e in events],  # type: ignore[arg-type]
        allowed_sets=tuple((k,) for k in kinds),
        name=name,
        **table.columns(),
    )


def _distinct(names: list[str]) -> tuple[str, ...]:
    """Makes names distinct: the second `a` becomes `a#2`."""
    used_names, distinct, count = set(names), [], dict.fromkeys(names, 0)
    for name in names:
        count[name] += 1
        base = name or "op"
        while count[name] > 1 or not name:
            base = f"{name or 'op'}#{count[name]}"
            if base not in used_names:
                break
            count[name] += 1
        used_names.add(base)
        distinct.append(base)
    return tuple(distinct)
