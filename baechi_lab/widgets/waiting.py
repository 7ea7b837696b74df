"""Idle time explained: what each device waited for in every gap between its ops, and sums over a stretch of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph, Timeline
from .columns import Columns, pack

TRANSFER, QUEUE, OP, ORDER, NOTHING = range(5)
KINDS = ("transfer", "queue", "op", "order", "nothing")
"""Of the input that came last for the op after the gap: it was under way; it stood in the queue of a link; the op that
makes it had not ended. Then: nothing was missing (a planned order, or what a real runtime does besides), and the device
had no more ops in this step."""

_ROW = np.dtype([("device", "i8"), ("start", "f8"), ("end", "f8"), ("kind", "i8"), ("op", "i8"), ("source", "i8")])


@dataclass(frozen=True, eq=False)
class Waits:
    """Gaps cut by reason, by device and time: `op` starts after the gap and waits for `source` (ops of the graph, -1: none)."""

    device: NDArray[np.int64]
    start_us: NDArray[np.float64]
    end_us: NDArray[np.float64]
    kind: NDArray[np.int64]
    op: NDArray[np.int64]
    source: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.device)

    def sums(self, count: int, first: float, last: float) -> NDArray[np.float64]:
        """float64[count, kinds]: microseconds of each device and kind between two times."""
        held = np.clip(np.minimum(self.end_us, last) - np.maximum(self.start_us, first), 0.0, None)
        flat = np.bincount(self.device * len(KINDS) + self.kind, held, minlength=count * len(KINDS))
        return np.asarray(flat, dtype=np.float64).reshape(count, len(KINDS))


def waits(graph: OpGraph, timeline: Timeline) -> Waits:
    """All idle time of `timeline`, from 0 to its makespan, with its reasons. O(rows log rows + edges).

    Ops are matched by name, so that a measured timeline may hold others as well; those wait for nothing that is known.

    >>> from baechi_lab import Cluster, Placement, simulate
    >>> g = OpGraph.from_edges([5.0, 10.0], [(0, 1, 8)])
    >>> found = waits(g, simulate(g, Cluster.uniform(2), Placement(device=[0, 1])))
    >>> [KINDS[k] for k in found.kind]
    ['nothing', 'op', 'transfer']
    """
    gaps = _gaps(timeline)
    op = _known(graph, timeline)[gaps["op"]]
    op[gaps["op"] < 0] = -1
    last = last_inputs(graph, timeline, op, gaps["device"])
    # What was missing first is what stands first in the gap.
    cuts = np.stack([gaps["start"], last.made_us, last.begun_us, last.there_us, gaps["end"]], axis=1)
    cuts = np.clip(np.maximum.accumulate(cuts, axis=1), gaps["start"][:, None], gaps["end"][:, None])
    rows = np.zeros((len(gaps), 4), dtype=_ROW)
    for k, kind in enumerate((OP, QUEUE, TRANSFER, ORDER)):
        rows["start"][:, k], rows["end"][:, k], rows["kind"][:, k] = cuts[:, k], cuts[:, k + 1], kind
    rows["kind"][gaps["op"] < 0, 3] = NOTHING
    rows["device"], rows["op"] = gaps["device"][:, None], op[:, None]
    rows["source"] = np.where(rows["kind"] < ORDER, last.producer[:, None], -1)
    kept = rows.ravel()
    kept = kept[kept["end"] - kept["start"] > _near(timeline)]
    return Waits(*(np.ascontiguousarray(kept[name]) for name in _ROW.names or ()))


def _near(timeline: Timeline) -> float:
    """Shorter gaps are the rounding of sums of durations."""
    return 1e-9 * max(timeline.makespan_us, 1.0)


def _gaps(timeline: Timeline) -> NDArray[Any]:
    """Where a device runs nothing: device, start, end, and the op (of the timeline) that follows, -1 at the end."""
    parts = []
    for d in range(len(timeline.device_names)):
        mine = np.flatnonzero(timeline.device == d)
        mine = mine[np.lexsort((timeline.end_us[mine], timeline.start_us[mine]))]
        free = np.concatenate([[0.0], np.maximum.accumulate(timeline.end_us[mine])])
        part = np.zeros(len(free), dtype=_ROW)
        part["device"], part["start"] = d, free
        part["end"] = np.append(timeline.start_us[mine], timeline.makespan_us)
        part["op"] = np.append(timeline.op[mine], -1)
        parts.append(part[part["end"] - part["start"] > _near(timeline)])
    return np.concatenate(parts) if parts else np.zeros(0, dtype=_ROW)


def _known(graph: OpGraph, timeline: Timeline) -> NDArray[np.int64]:
    """int64[ops of the timeline]: their numbers in the graph, -1 for those that it does not have."""
    if timeline.op_names == graph.names:
        return np.arange(graph.n)
    return np.array([graph.index.get(name, -1) for name in timeline.op_names], dtype=np.int64)


class LastInputs(NamedTuple):
    """Of each op's last input to arrive: when it was there, when its transfer began and when it was made (0: no input),
    its producer and the row of its transfer (-1: none)."""

    there_us: NDArray[np.float64]
    begun_us: NDArray[np.float64]
    made_us: NDArray[np.float64]
    producer: NDArray[np.int64]
    transfer: NDArray[np.int64]


def last_inputs(graph: OpGraph, timeline: Timeline, op: NDArray[np.int64], device: NDArray[np.int64]) -> LastInputs:
    """The last inputs of ops (of the graph, -1: none) on devices. O(rows log rows + inputs).

    >>> from baechi_lab import Cluster, Link, Placement, simulate
    >>> g = OpGraph.from_edges([5.0, 10.0], [(0, 1, 8)])
    >>> t = simulate(g, Cluster.uniform(2, link=Link(3.0, 0.0)), Placement(device=[0, 1]))
    >>> last_inputs(g, t, np.array([1]), np.array([1])).there_us    # made at 5, sent in 3
    array([8.])
    """
    known = _known(graph, timeline)
    ended = np.full(graph.n, -1.0)
    inside = known[timeline.op] >= 0
    np.maximum.at(ended, known[timeline.op[inside]], timeline.end_us[inside])
    pointer, tensors = graph.inputs
    count = np.where(op >= 0, pointer[op + 1] - pointer[op], 0)
    gap = np.repeat(np.arange(len(op)), count)
    at = np.arange(len(gap)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(pointer[op], count)
    tensor = tensors[at]
    producer = graph.tensor_producer[tensor].astype(np.int64)
    row = _transfers(graph, timeline, known, tensor, producer, device[gap])
    moved = timeline.transfers
    made = ended[producer]
    begun, there = made.copy(), made.copy()
    sent = row >= 0
    begun[sent] = np.maximum(moved.start_us, moved.receive_us)[row[sent]]
    there[sent] = moved.end_us[row[sent]]
    order = np.lexsort((producer, there, gap))
    last = order[np.flatnonzero(np.append(gap[order][1:] != gap[order][:-1], True))] if len(order) else order
    found = LastInputs(*np.zeros((3, len(op))), *np.full((2, len(op)), -1))
    for column, values in zip(found, (there, begun, made, producer, row), strict=True):
        column[gap[last]] = values[last]
    return found


def _transfers(
    graph: OpGraph, timeline: Timeline, known: NDArray[np.int64], tensor: NDArray[Any], producer: NDArray[Any],
    target: NDArray[Any],
) -> NDArray[np.int64]:  # fmt: skip
    """The row that brought each tensor to a device, -1 for none; by producer where a measurement numbers tensors anew."""
    moved = timeline.transfers
    same = np.array_equal(timeline.tensor_producer, graph.tensor_producer) and timeline.op_names == graph.names
    asked, had = (tensor, moved.tensor) if same else (producer, known[timeline.tensor_producer[moved.tensor]])
    count = len(timeline.device_names)
    keys = had.astype(np.int64) * count + moved.target
    order = np.lexsort((moved.end_us, keys))
    wanted = asked.astype(np.int64) * count + target
    at = np.searchsorted(keys[order], wanted, side="right") - 1
    found = np.where(at >= 0, order[np.maximum(at, 0)] if len(order) else -1, -1)
    return np.where((found >= 0) & (keys[found] == wanted), found, -1) if len(order) else np.full(len(wanted), -1)


@dataclass(frozen=True)
class Statistics:
    """What one device did in a stretch of time, in microseconds; `waited` has the five kinds of idle time (`KINDS`).

    `ops` ran at least partly in it, most of the time ops of the type `most`, for `most_us`.
    """

    busy_us: float
    idle_us: float
    waited: dict[str, float]
    ops: int
    most: str
    most_us: float


def statistics(graph: OpGraph, timeline: Timeline, found: Waits, first: float, last: float) -> tuple[Statistics, ...]:
    """Busy and idle time of every device between two times; `found` are the timeline's `waits`.

    >>> from baechi_lab import Cluster, Placement, simulate
    >>> g = OpGraph.from_edges([5.0, 10.0], [(0, 1, 8)])
    >>> t = simulate(g, Cluster.uniform(1), Placement(device=[0, 0]))
    >>> statistics(g, t, waits(g, t), 4.0, 10.0)[0].busy_us
    6.0
    """
    first, last = max(first, 0.0), min(last, timeline.makespan_us)
    count, span = len(timeline.device_names), max(last - first, 0.0)
    idle = found.sums(count, first, last)
    ran = np.clip(np.minimum(timeline.end_us, last) - np.maximum(timeline.start_us, first), 0.0, None)
    types = np.array([graph.op_types[k] if k >= 0 else "" for k in _known(graph, timeline)[timeline.op]], dtype=object)
    rows = []
    for d in range(count):
        mine = (timeline.device == d) & (ran > 0)
        names, inverse = np.unique(types[mine].astype(str), return_inverse=True)
        by_type = np.bincount(inverse, ran[mine], minlength=len(names))
        most = int(by_type.argmax()) if len(names) else -1
        waited = dict(zip(KINDS, idle[d].tolist(), strict=True))
        rows.append(Statistics(
            span - float(idle[d].sum()), float(idle[d].sum()), waited, int(mine.sum()),
            str(names[most]) if most >= 0 else "", float(by_type[most]) if most >= 0 else 0.0,
        ))  # fmt: skip
    return tuple(rows)


def lane_columns(found: Sequence[Waits], timelines: Sequence[Timeline]) -> Columns:
    """Waits of several timelines as bytes for the view; `pointer` is the first of each lane (those of transfers are empty)."""
    counts = [n for w, t in zip(found, timelines, strict=True) for n in _per_lane(w, len(t.device_names))]
    column = {key: np.concatenate([np.zeros(0), *(getattr(w, key) for w in found)]) for key in _COLUMNS}
    return pack(
        pointer=("i4", np.cumsum([0, *counts])), start=("f8", column["start_us"]), end=("f8", column["end_us"]),
        kind=("u1", column["kind"]), op=("i4", column["op"]), source=("i4", column["source"]),
    )  # fmt: skip


_COLUMNS = ("start_us", "end_us", "kind", "op", "source")


def _per_lane(found: Waits, count: int) -> list[int]:
    """Of each device the waits in its lane of ops, then none in its lane of transfers."""
    return np.stack([np.bincount(found.device, minlength=count), np.zeros(count, np.int64)], axis=1).ravel().tolist()
