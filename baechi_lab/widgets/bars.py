"""Lanes and bars of the timeline view, from a simulated timeline and the timelines below it: measured, or another placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, Timeline
from ..graph.device import short_device
from ..graph.kernels.csr import Integers
from .columns import Columns, pack
from .schedule import Chain, computing, exposed_us, idle

Lane = dict[str, Any]
"""A lane as the view reads it: its device, its kind, its heading, and sums of times."""

_ROW = np.dtype(
    [
        ("start", "f8"),
        ("end", "f8"),
        ("color", "i8"),
        ("label", "i8"),
        ("peer", "i8"),
        ("bytes", "f8"),
        ("critical", "?"),
        ("elsewhere", "i8"),
    ]
)
"""A bar before it is sorted into a column; `label` is a position in the names of all timelines."""


@dataclass(frozen=True, eq=False)
class Bars:
    """Bars sorted by lane, then start: `pointer[k]:pointer[k+1]` are those of lane `k`.

    `op` is the op of the graph (-1: not in it), `label` its position in `names`. `peer` of a transfer is the target
    device of a send, or `-1 - source` of a receive. `color` is the device whose colour a bar has. `elsewhere` is 0, or one
    more than the op's device in the compared timeline, if that is another device.
    """

    lanes: tuple[Lane, ...]
    names: tuple[str, ...]
    pointer: NDArray[np.int64]
    start_us: NDArray[np.float64]
    end_us: NDArray[np.float64]
    color: NDArray[np.int64]
    op: NDArray[np.int64]
    label: NDArray[np.int64]
    peer: NDArray[np.int64]
    size_bytes: NDArray[np.float64]
    critical: NDArray[np.bool_]
    elsewhere: NDArray[np.int64]
    span_us: float

    def __len__(self) -> int:
        return len(self.op)


def build_bars(
    graph: OpGraph,
    timelines: Sequence[Timeline],
    chain: Chain | None = None,
    titles: Sequence[str] = (),
    against: int = -1,
    groups: Sequence[str] = (),
) -> Bars:
    """Makes the lanes of all timelines: per device a lane for compute, one for collectives if there are any, one for transfers.

    Transfers are in both devices' lanes: a send has the colour of its target, a receive that of its source. `chain` marks the
    critical bars of the first timeline. `titles` name the timelines, by default by their origin. Timeline `against` belongs to
    another placement: ops on other devices are marked in it and in the first. `groups` name the machine or replica of each
    device (`lane_groups`). O(rows log rows).
    """
    names, tables, lanes, pointer = list(graph.names), [], [], [0]
    index_of = {name: i for i, name in enumerate(names)}
    headings = tuple(titles) or tuple(t.origin.capitalize() for t in timelines)
    titles = tuple(titles) or tuple(t.origin for t in timelines)
    labels = [_labels(timeline, names, index_of) for timeline in timelines]
    device_elsewhere = _elsewhere(timelines, labels, against, len(names))
    for number, timeline in enumerate(timelines):
        label, title = labels[number], titles[number]
        marked_ops = chain if number == 0 else None
        computes = computing(graph, timeline)
        for d, lane in enumerate(_compute_lanes(timeline, computes, title)):
            # The timeline's title stands above its first device, the name of a group at its start.
            group = groups[d] if d < len(groups) and (d == 0 or groups[d] != groups[d - 1]) else ""
            above = headings[number] if len(timelines) > 1 and d == 0 else ""
            lane["heading"] = ", ".join(filter(None, (above, group)))
            rows_of = partial(_op_rows, timeline, d, label, marked_ops, device_elsewhere.get(number))
            device_tables = [(rows_of(computes), "ops"), (_transfer_rows(timeline, d, label, marked_ops), "transfers")]
            if not computes.all():
                device_tables.insert(1, (rows_of(~computes), "collectives"))
            for table, kind in device_tables:
                lanes.append(lane if kind == "ops" else {**lane, "kind": kind, "heading": "", "fold_label": ""})
                tables.append(table[np.lexsort((table["end"], table["start"]))])
                pointer.append(pointer[-1] + len(table))
    rows = np.concatenate(tables) if tables else np.zeros(0, dtype=_ROW)
    op = np.where(rows["label"] < graph.n, rows["label"], -1)
    span = max((t.makespan_us for t in timelines), default=0.0)
    return Bars(
        lanes=tuple(lanes),
        names=tuple(names),
        pointer=np.array(pointer),
        start_us=rows["start"],
        end_us=rows["end"],
        color=rows["color"],
        op=op,
        label=rows["label"],
        peer=rows["peer"],
        size_bytes=rows["bytes"],
        critical=rows["critical"],
        elsewhere=rows["elsewhere"],
        span_us=max(span, float(rows["end"].max(initial=0.0))),
    )


def _compute_lanes(timeline: Timeline, computes: NDArray[np.bool_], title: str) -> list[Lane]:
    """Returns the lane of each device's ops, with its times of collectives and of waiting."""
    folds, exposed = idle_folds(timeline), exposed_us(timeline, computes)
    us = timeline.end_us - timeline.start_us
    collectives_us = np.bincount(timeline.device[~computes], us[~computes], minlength=len(timeline.device_names))
    return [
        {
            "device": d,
            "label": short_device(timeline.device_names[d]),
            "origin": title,
            "kind": "ops",
            "heading": "",
            "folded": folds[d] is not None,
            "fold_label": folds[d] or "",
            "busy_us": float(timeline.busy_us[d] - collectives_us[d]),
            "collectives_us": float(collectives_us[d]),
            "exposed_us": float(exposed[d]),
            "idle_us": waits.idle_us,
            "idle_share": waits.share,
            "bubbles": waits.bubbles,
            "bubble_us": waits.bubble_us,
            "longest_us": waits.longest_us,
        }
        for d, waits in enumerate(idle(timeline, computes))
    ]


def lane_groups(cluster: Cluster, replicas: int = 1) -> tuple[str, ...]:
    """Returns the name of each device's replica, or else of its machine; no names if there is only one.

    Devices are on one machine if a link between them is faster than the slowest links of the cluster. There are no names if
    the devices of a machine do not follow each other.

    >>> from baechi_lab import Link
    >>> lane_groups(Cluster.machines(4, 2, link=Link(1.0, 1e-4), network=Link(5.0, 1e-2)))
    ('machine 1', 'machine 1', 'machine 2', 'machine 2')
    """
    n = cluster.n
    if replicas > 1:
        return tuple(f"replica {device * replicas // n + 1}" for device in range(n))
    if n < 3:
        return ()
    from scipy.sparse.csgraph import connected_components

    price = np.maximum(cluster.us_per_byte, cluster.us_per_byte.T)
    off_diagonal = ~np.eye(n, dtype=bool)
    count, machine = connected_components((price < price[off_diagonal].max()) & off_diagonal, directed=False)
    is_sorted = bool((np.diff(machine) >= 0).all())
    return tuple(f"machine {k + 1}" for k in machine.tolist()) if 1 < count < n and is_sorted else ()


def idle_folds(timeline: Timeline) -> list[str | None]:
    """Returns per device: None, or a label if it begins a run of idle neighbours, and "" for the others of the run."""
    count = len(timeline.device_names)
    is_used = np.zeros(count, dtype=bool)
    is_used[timeline.device] = is_used[timeline.transfers.source] = is_used[timeline.transfers.target] = True
    folds: list[str | None] = [None] * count
    for first in range(count):
        if is_used[first] or (first and not is_used[first - 1]):
            continue
        used_after = np.flatnonzero(is_used[first:])
        last = first + (int(used_after[0]) if len(used_after) else count - first) - 1
        names = [short_device(timeline.device_names[d]) for d in (first, last)]
        folds[first : last + 1] = [f"{' to '.join(dict.fromkeys(names))} idle", *[""] * (last - first)]
    return folds


def _elsewhere(
    timelines: Sequence[Timeline], labels: Sequence[NDArray[np.int64]], against: int, count: int
) -> dict[int, NDArray[np.int64]]:
    """Returns, for the first timeline and `against`, per label one more than the device in the other one, 0 if it is equal.

    Devices with the same name are the same. Ops that only one of the timelines has get 0, and so do all ops if the placements
    differ only by the names of equal devices.
    """
    if against < 1:
        return {}
    pair, devices = (timelines[0], timelines[against]), []
    names = [short_device(name) for name in dict.fromkeys(n for t in pair for n in t.device_names)]
    for timeline, label in zip(pair, (labels[0], labels[against]), strict=True):
        index = np.array([names.index(short_device(name)) for name in timeline.device_names], dtype=np.int64)
        device = np.full(count, -1, dtype=np.int64)
        device[label[timeline.op]] = index[timeline.device]
        devices.append(device)
    in_both = (devices[0] >= 0) & (devices[1] >= 0)
    differs = (devices[0] != devices[1]) & in_both
    if only_renamed(devices[0][in_both], devices[1][in_both]) and _equal_devices(
        pair, (labels[0], labels[against]), count
    ):
        differs[:] = False
    return {0: np.where(differs, devices[1] + 1, 0), against: np.where(differs, devices[0] + 1, 0)}


def only_renamed(first: Integers, second: Integers) -> bool:
    """Whether two placements differ only by the names of devices: ops share a device in one exactly if they do in the other.

    >>> only_renamed(np.array([0, 0, 1]), np.array([2, 2, 0])), only_renamed(np.array([0, 0]), np.array([0, 1]))
    (True, False)
    """
    pairs = np.unique(np.stack([first, second], axis=1), axis=0)
    return len(pairs) == len(np.unique(first)) == len(np.unique(second))


def _equal_devices(pair: Sequence[Timeline], labels: Sequence[NDArray[np.int64]], count: int) -> bool:
    """Whether every op has devices of equal speed and memory in both timelines."""
    columns = []
    for timeline, label in zip(pair, labels, strict=True):
        column = np.full((count, 2), np.nan)
        column[label[timeline.op], 0] = timeline.end_us - timeline.start_us
        column[label[timeline.op], 1] = timeline.memory_bytes[timeline.device]
        columns.append(column)
    in_both_timelines = ~np.isnan(columns[0]).any(axis=1) & ~np.isnan(columns[1]).any(axis=1)
    return bool(np.allclose(columns[0][in_both_timelines], columns[1][in_both_timelines], rtol=1e-9, atol=1e-9))


def _labels(timeline: Timeline, names: list[str], index_of: dict[str, int]) -> NDArray[np.int64]:
    """Returns the position in `names` of each op of the timeline; ops that the graph does not have are appended."""
    if timeline.op_names == tuple(names[: len(timeline.op_names)]):
        return np.arange(len(timeline.op_names))
    for name in timeline.op_names:
        if name not in index_of:
            index_of[name] = len(names)
            names.append(name)
    return np.array([index_of[name] for name in timeline.op_names], dtype=np.int64)


def _op_rows(
    timeline: Timeline,
    device: int,
    label: NDArray[np.int64],
    chain: Chain | None,
    device_elsewhere: NDArray[np.int64] | None,
    in_lane: NDArray[np.bool_],
) -> NDArray[Any]:
    on_device = np.flatnonzero((timeline.device == device) & in_lane)
    rows = np.zeros(len(on_device), dtype=_ROW)
    rows["start"], rows["end"] = timeline.start_us[on_device], timeline.end_us[on_device]
    rows["color"], rows["label"] = device, label[timeline.op[on_device]] if len(on_device) else 0
    if chain is not None:
        rows["critical"] = np.isin(timeline.op[on_device], chain.ops)
    if device_elsewhere is not None:
        rows["elsewhere"] = device_elsewhere[label[timeline.op[on_device]]]
    return rows


def _transfer_rows(timeline: Timeline, device: int, label: NDArray[np.int64], chain: Chain | None) -> NDArray[np.void]:
    """Returns the transfers that leave `device`, for the duration of the send, and those that arrive at it."""
    transfers = timeline.transfers
    out, into = np.flatnonzero(transfers.source == device), np.flatnonzero(transfers.target == device)
    edges = np.concatenate([out, into])
    rows = np.zeros(len(edges), dtype=_ROW)
    cost = transfers.end_us - transfers.receive_us
    rows["start"] = np.concatenate([transfers.start_us[out], transfers.receive_us[into]])
    rows["end"] = np.concatenate([transfers.start_us[out] + cost[out], transfers.end_us[into]])
    rows["color"] = np.concatenate([transfers.target[out], transfers.source[into]])
    rows["peer"] = np.concatenate([transfers.target[out], -1 - transfers.source[into]])
    rows["label"] = label[timeline.tensor_producer[transfers.tensor[edges]]] if len(edges) else 0
    rows["bytes"] = timeline.tensor_bytes[transfers.tensor[edges]]
    if chain is not None:
        rows["critical"] = np.isin(edges, chain.transfers)
    return rows


def bar_columns(bars: Bars) -> Columns:
    """Returns the bars as bytes for the view; `longest` is the longest bar of each lane, for its search by time."""
    length = bars.end_us - bars.start_us
    longest = [float(length[a:b].max(initial=0.0)) for a, b in zip(bars.pointer[:-1], bars.pointer[1:], strict=True)]
    return pack(
        pointer=("i4", bars.pointer),
        start=("f8", bars.start_us),
        end=("f8", bars.end_us),
        color=("u1", bars.color),
        op=("i4", bars.op),
        label=("i4", bars.label),
        peer=("i4", bars.peer),
        bytes=("f8", bars.size_bytes),
        critical=("u1", bars.critical),
        longest=("f8", longest),
        elsewhere=("u1", bars.elsewhere),
    )
