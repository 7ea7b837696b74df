"""Data of the memory view: live bytes per device, category and time, and the parts of each peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..graph import MEMORY_CATEGORIES, MemoryLog, Timeline
from ..graph.device import short_device
from ..graph.kernels.csr import grouped_sum
from .columns import Columns, pack

MOST_ROWS = 30_000
"""Most rows sent per device; of a longer log, each interval of time keeps its fullest and its last row."""


@dataclass(frozen=True, eq=False)
class Row:
    """One row of the memory view: a device of a timeline."""

    timeline: Timeline
    device: int

    @property
    def limit_bytes(self) -> int:
        return int(self.timeline.memory_bytes[self.device])


def memory_rows(timelines: Sequence[Timeline]) -> tuple[Row, ...]:
    """Returns the rows device by device, one per timeline, so that simulated and measured memory are neighbours.

    The first timeline always has rows, a further one only if it has a memory log. A device that holds nothing has none, except
    the first one where all are empty.
    """
    shown_timelines = [t for k, t in enumerate(timelines) if k == 0 or len(t.memory) or t.peak_bytes.any()]
    count = max((len(t.device_names) for t in shown_timelines), default=0)
    rows = tuple(Row(t, d) for d in range(count) for t in shown_timelines if d < len(t.device_names))
    holding = {row.device for row in rows if row.timeline.peak_bytes[row.device] > 0} or {0}
    return tuple(row for row in rows if row.device in holding)


def empty_devices_in_words(rows: Sequence[Row]) -> str:
    """Names the devices of the first row's timeline without rows: "gpu:1 to gpu:3 hold nothing"; empty if there are none."""
    if not rows:
        return ""
    names, shown = rows[0].timeline.device_names, {row.device for row in rows}
    ranges: list[list[str]] = []
    for d, name in enumerate(names):
        if d not in shown:
            continues = d > 0 and d - 1 not in shown
            ranges.append([ranges.pop()[0] if continues else short_device(name), short_device(name)])
    if not ranges:
        return ""
    texts = (" to ".join(dict.fromkeys(first_and_last)) for first_and_last in ranges)
    return f"{', '.join(texts)} {'holds' if len(shown) == len(names) - 1 else 'hold'} nothing"


@dataclass(frozen=True)
class Peak:
    """The peak of a device: its bytes, its time, and the op of the last allocation (-1 for an empty device).

    `parts` are the live bytes at that time, by category. A simulated peak has the measured peak of its device and its parts,
    too; 0 and none if the step was not measured.
    """

    device: int
    bytes: int
    time_us: float
    op: int
    name: str
    parts: tuple[int, ...] = ()
    measured_bytes: int = 0
    measured_parts: tuple[int, ...] = ()


def peaks(rows: Sequence[Row]) -> tuple[Peak, ...]:
    """Returns the peak of every row; `op` is an op of the first row's timeline, -1 if that lacks the op."""
    index = {name: op for op, name in enumerate(rows[0].timeline.op_names)} if rows else {}
    peak_list = [_peak(row.timeline, row.device, index) for row in rows]
    measured_peaks = {
        row.device: peak for row, peak in zip(rows, peak_list, strict=True) if row.timeline.origin == "measured"
    }
    for k, row in enumerate(rows):
        if row.timeline.origin != "measured" and (measured_peak := measured_peaks.get(row.device)) is not None:
            peak_list[k] = replace(peak_list[k], measured_bytes=measured_peak.bytes, measured_parts=measured_peak.parts)
    return tuple(peak_list)


def _peak(timeline: Timeline, device: int, index: dict[str, int]) -> Peak:
    log = timeline.memory
    entries = entries_until_peak(log, device)
    if len(entries) == 0:
        return Peak(device, int(timeline.peak_bytes[device]), 0.0, -1, "")
    at = int(entries[-1])
    op = int(log.op[at])
    name = timeline.op_names[op] if op >= 0 else ""
    part_bytes = tuple(timeline.peak_parts(device).values())
    return Peak(device, int(log.delta[entries].sum()), float(log.time_us[at]), index.get(name, -1), name, part_bytes)


def entries_until_peak(log: MemoryLog, device: int) -> NDArray[np.int64]:
    """Returns the entries of a device up to the first after which it holds most; their deltas add up to its peak."""
    entries = np.flatnonzero(log.device == device)
    return entries[: int(np.cumsum(log.delta[entries]).argmax()) + 1] if len(entries) else entries


@dataclass(frozen=True)
class LiveBytes:
    """Bytes of one category that an op of the timeline holds on a device at one time."""

    op: int
    name: str
    category: str
    bytes: int


def live_bytes(timeline: Timeline, device: int, time_us: float) -> tuple[LiveBytes, ...]:
    """Returns the live bytes of `device` after the last change at or before `time_us`, largest first. O(log).

    Their sum is the level that the view draws at that time.
    """
    log = timeline.memory
    entries = np.flatnonzero((log.device == device) & (log.time_us <= time_us))
    key = log.op[entries].astype(np.int64) * len(MEMORY_CATEGORIES) + log.category[entries]
    keys, inverse = np.unique(key, return_inverse=True)
    held_bytes = grouped_sum(log.delta[entries], inverse, len(keys))
    order = np.argsort(-held_bytes, kind="stable")
    return tuple(
        LiveBytes(op, timeline.op_names[op] if op >= 0 else "", MEMORY_CATEGORIES[category], size)
        for k, size in zip(keys[order].tolist(), held_bytes[order].tolist(), strict=True)
        if size > 0
        for op, category in [divmod(k, len(MEMORY_CATEGORIES))]
    )


def steps(timeline: Timeline, device: int, limit: int = MOST_ROWS) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns times float64[k] and bytes int64[k, 4] per category, with `k` at most about `2 * limit`; no peak is lost."""
    time, levels = timeline.memory.levels(device)
    if len(time) <= limit:
        return time, levels
    # The log is in order of events, so equal numbers of rows are intervals of time.
    stretch = np.arange(len(time)) * limit // len(time)
    total = levels.sum(axis=1)
    last = np.flatnonzero(np.r_[stretch[1:] != stretch[:-1], True])
    order = np.lexsort((total, stretch))
    fullest = order[np.r_[stretch[order][1:] != stretch[order][:-1], True]]
    keep = np.unique(np.concatenate([last, fullest]))
    return time[keep], levels[keep]


def level_columns(rows: Sequence[Row]) -> Columns:
    """Returns the levels of all rows as bytes for the view."""
    step_pairs = [steps(row.timeline, row.device) for row in rows]
    pointer = np.concatenate([[0], np.cumsum([len(t) for t, _ in step_pairs])])
    time = np.concatenate([t for t, _ in step_pairs]) if step_pairs else np.zeros(0)
    held_bytes = np.concatenate([h for _, h in step_pairs]) if step_pairs else np.zeros((0, len(MEMORY_CATEGORIES)))
    columns = pack(pointer=("i4", pointer), time=("f8", time))
    return {**columns, **pack(**{name: ("f8", held_bytes[:, k]) for k, name in enumerate(MEMORY_CATEGORIES)})}
