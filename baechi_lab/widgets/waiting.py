"""Reasons of idle time: the input or op for which each device waited in every gap between its ops, and sums over an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph, Timeline
from ..graph.kernels.csr import gather
from .columns import Columns, pack
from .schedule import computing

TRANSFER, QUEUE, OP, ORDER, NOTHING, COLLECTIVE = range(6)
KINDS = ("transfer", "queue", "op", "order", "nothing", "collective")
"""Kinds of idle time. The first three describe the last input of the op after the gap: its transfer was under way, the transfer
waited in the queue of a link, or its producer had not ended. Then: no input was missing (a planned order, or other work of a
real runtime), and the device had no more ops in this step. The last: as `op`, for a producer that is a collective, also one that
ends the step."""

_ROW = np.dtype([("device", "i8"), ("start", "f8"), ("end", "f8"), ("kind", "i8"), ("op", "i8"), ("source", "i8")])


@dataclass(frozen=True, eq=False)
class Waits:
    """Idle intervals with their kind, by device and time: `op` starts after the gap and waits for `source` (-1: none)."""

    device: NDArray[np.int64]
    start_us: NDArray[np.float64]
    end_us: NDArray[np.float64]
    kind: NDArray[np.int64]
    op: NDArray[np.int64]
    source: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.device)

    def sums(self, count: int, first: float, last: float) -> NDArray[np.float64]:
        """Returns float64[count, kinds]: the microseconds of each device and kind between two times."""
        overlap_us = np.clip(np.minimum(self.end_us, last) - np.maximum(self.start_us, first), 0.0, None)
        flat = np.bincount(self.device * len(KINDS) + self.kind, overlap_us, minlength=count * len(KINDS))
        return np.asarray(flat, dtype=np.float64).reshape(count, len(KINDS))


def waits(graph: OpGraph, timeline: Timeline) -> Waits:
    """Returns all idle time of `timeline`, from 0 to its makespan, with its reasons. O(rows log rows + edges).

    Ops are matched by name, since a measured timeline may have other ops, too; for those no reason is known.
    """
    computes = computing(graph, timeline)
    tables = []
    for d in range(len(timeline.device_names)):
        rows = np.flatnonzero((timeline.device == d) & computes)
        rows = rows[np.lexsort((timeline.end_us[rows], timeline.start_us[rows]))]
        free = np.concatenate([[0.0], np.maximum.accumulate(timeline.end_us[rows])])
        table = np.zeros(len(free), dtype=_ROW)
        table["device"], table["start"] = d, free
        table["end"] = np.append(timeline.start_us[rows], timeline.makespan_us)
        table["op"] = np.append(timeline.op[rows], -1)
        tables.append(table[table["end"] - table["start"] > _near(timeline)])
    gaps = np.concatenate(tables) if tables else np.zeros(0, dtype=_ROW)
    number_of = _graph_numbers(graph, timeline)
    op = number_of[gaps["op"]]
    op[gaps["op"] < 0] = -1
    last = last_inputs(graph, timeline, op, gaps["device"])
    # After its last op, a device waits for its last collective.
    for k in np.flatnonzero(gaps["op"] < 0).tolist():
        rows = np.flatnonzero(~computes & (timeline.device == gaps["device"][k]))
        if len(rows):
            latest = rows[int(timeline.end_us[rows].argmax())]
            last.made_us[k], last.producer[k] = timeline.end_us[latest], number_of[timeline.op[latest]]
    # What was missing first is what stands first in the gap.
    cuts = np.stack([gaps["start"], last.made_us, last.begun_us, last.there_us, gaps["end"]], axis=1)
    cuts = np.clip(np.maximum.accumulate(cuts, axis=1), gaps["start"][:, None], gaps["end"][:, None])
    segments = np.zeros((len(gaps), 4), dtype=_ROW)
    for k, kind in enumerate((OP, QUEUE, TRANSFER, ORDER)):
        segments["start"][:, k], segments["end"][:, k], segments["kind"][:, k] = cuts[:, k], cuts[:, k + 1], kind
    segments["kind"][gaps["op"] < 0, 3] = NOTHING
    segments["device"], segments["op"] = gaps["device"][:, None], op[:, None]
    segments["source"] = np.where(segments["kind"] < ORDER, last.producer[:, None], -1)
    is_collective = graph.on_communication_lane[np.maximum(segments["source"], 0)] & (segments["source"] >= 0)
    segments["kind"][is_collective & (segments["kind"] == OP)] = COLLECTIVE
    columns = segments.ravel()
    columns = columns[columns["end"] - columns["start"] > _near(timeline)]
    return Waits(*(np.ascontiguousarray(columns[name]) for name in _ROW.names or ()))


def _near(timeline: Timeline) -> float:
    """Returns the length below which a gap is a rounding error of sums of durations."""
    return 1e-9 * max(timeline.makespan_us, 1.0)


def _graph_numbers(graph: OpGraph, timeline: Timeline) -> NDArray[np.int64]:
    """Returns int64[ops of the timeline]: their indices in the graph, -1 for ops that it does not have."""
    if timeline.op_names == graph.names:
        return np.arange(graph.n)
    return np.array([graph.index.get(name, -1) for name in timeline.op_names], dtype=np.int64)


class LastInputs(NamedTuple):
    """The input of each op that arrived last: times of its arrival, its transfer's start and its producer's end (0: no input),
    its producer and the row of its transfer (-1: none)."""

    there_us: NDArray[np.float64]
    begun_us: NDArray[np.float64]
    made_us: NDArray[np.float64]
    producer: NDArray[np.int64]
    transfer: NDArray[np.int64]


def last_inputs(graph: OpGraph, timeline: Timeline, op: NDArray[np.int64], device: NDArray[np.int64]) -> LastInputs:
    """Returns the inputs that arrived last for ops (of the graph, -1: none) on devices. O(rows log rows + inputs).

    >>> from baechi_lab import Cluster, Link, Placement, simulate
    >>> g = OpGraph.from_edges([5.0, 10.0], [(0, 1, 8)])
    >>> t = simulate(g, Cluster.uniform(2, link=Link(3.0, 0.0)), Placement(device=[0, 1]))
    >>> last_inputs(g, t, np.array([1]), np.array([1])).there_us    # made at 5, sent in 3
    array([8.])
    """
    number_of = _graph_numbers(graph, timeline)
    last_end_us = np.full(graph.n, -1.0)
    inside = number_of[timeline.op] >= 0
    np.maximum.at(last_end_us, number_of[timeline.op[inside]], timeline.end_us[inside])
    known_gaps = np.flatnonzero(op >= 0)
    pointer, tensor = gather(*graph.inputs, op[known_gaps])
    gap = np.repeat(known_gaps, np.diff(pointer))
    producer = graph.tensor_producer[tensor].astype(np.int64)
    transfers = timeline.transfers
    same = np.array_equal(timeline.tensor_producer, graph.tensor_producer) and timeline.op_names == graph.names
    asked_ids, had = (
        (tensor, transfers.tensor) if same else (producer, number_of[timeline.tensor_producer[transfers.tensor]])
    )
    device_count = len(timeline.device_names)
    keys = had.astype(np.int64) * device_count + transfers.target
    order = np.lexsort((transfers.end_us, keys))
    wanted_keys = asked_ids.astype(np.int64) * device_count + device[gap]
    at = np.searchsorted(keys[order], wanted_keys, side="right") - 1
    transfer_rows = np.where(at >= 0, order[np.maximum(at, 0)] if len(order) else -1, -1)
    if len(order):
        row = np.where((transfer_rows >= 0) & (keys[transfer_rows] == wanted_keys), transfer_rows, -1)
    else:
        row = np.full(len(wanted_keys), -1)
    produced_us = last_end_us[producer]
    ready_us, arrival_us = produced_us.copy(), produced_us.copy()
    was_sent = row >= 0
    ready_us[was_sent] = np.maximum(transfers.start_us, transfers.receive_us)[row[was_sent]]
    arrival_us[was_sent] = transfers.end_us[row[was_sent]]
    order = np.lexsort((producer, arrival_us, gap))
    last = order[np.flatnonzero(np.append(gap[order][1:] != gap[order][:-1], True))] if len(order) else order
    inputs = LastInputs(*np.zeros((3, len(op))), *np.full((2, len(op)), -1))
    for column, values in zip(inputs, (arrival_us, ready_us, produced_us, producer, row), strict=True):
        column[gap[last]] = values[last]
    return inputs


@dataclass(frozen=True)
class Statistics:
    """Busy and idle time of one device in an interval, in microseconds; `waited` has the kinds of idle time (`KINDS`).

    `ops` is the number of ops that ran in it; `most` is the op type that ran longest, for `most_us`.
    """

    busy_us: float
    idle_us: float
    waited: dict[str, float]
    ops: int
    most: str
    most_us: float


def statistics(
    graph: OpGraph, timeline: Timeline, lane_waits: Waits, first: float, last: float
) -> tuple[Statistics, ...]:
    """Returns busy and idle time of every device between two times; `lane_waits` are the timeline's `waits`."""
    first, last = max(first, 0.0), min(last, timeline.makespan_us)
    count, span = len(timeline.device_names), max(last - first, 0.0)
    idle, computes = lane_waits.sums(count, first, last), computing(graph, timeline)
    busy_us = np.clip(np.minimum(timeline.end_us, last) - np.maximum(timeline.start_us, first), 0.0, None)
    types = np.array(
        [graph.op_types[k] if k >= 0 else "" for k in _graph_numbers(graph, timeline)[timeline.op]], dtype=object
    )
    rows = []
    for d in range(count):
        in_range = (timeline.device == d) & (busy_us > 0) & computes
        names, inverse = np.unique(types[in_range].astype(str), return_inverse=True)
        by_type = np.bincount(inverse, busy_us[in_range], minlength=len(names))
        longest_type = int(by_type.argmax()) if len(names) else -1
        waited_us = dict(zip(KINDS, idle[d].tolist(), strict=True))
        rows.append(
            Statistics(
                busy_us=span - float(idle[d].sum()),
                idle_us=float(idle[d].sum()),
                waited=waited_us,
                ops=int(in_range.sum()),
                most=str(names[longest_type]) if longest_type >= 0 else "",
                most_us=float(by_type[longest_type]) if longest_type >= 0 else 0.0,
            )
        )
    return tuple(rows)


def lane_columns(waits_by_lane: Sequence[Waits], timelines: Sequence[Timeline], kinds: Sequence[str]) -> Columns:
    """Returns the waits of several timelines as bytes for the view; `pointer` is the first of each lane of the given `kinds`.

    Only lanes of ops have waits.
    """
    of_devices = iter(
        np.concatenate(
            [
                np.zeros(0, np.int64),
                *(
                    np.bincount(w.device, minlength=len(t.device_names))
                    for w, t in zip(waits_by_lane, timelines, strict=True)
                ),
            ]
        ).tolist()
    )
    counts = [next(of_devices) if kind == "ops" else 0 for kind in kinds]
    column = {key: np.concatenate([np.zeros(0), *(getattr(w, key) for w in waits_by_lane)]) for key in _COLUMNS}
    return pack(
        pointer=("i4", np.cumsum([0, *counts])),
        start=("f8", column["start_us"]),
        end=("f8", column["end_us"]),
        kind=("u1", column["kind"]),
        op=("i4", column["op"]),
        source=("i4", column["source"]),
    )


_COLUMNS = ("start_us", "end_us", "kind", "op", "source")
