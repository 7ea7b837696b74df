"""A timeline as a Chrome trace (Trace Event Format), which Perfetto and chrome://tracing open.

Each device is a process with lanes for computing, sending and receiving, and a counter of its memory by category.
Events that overlap get lanes of their own, since a lane must be a stack. Times are microseconds, as in the timeline.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...errors import FormatError
from ..kernels.csr import Integers
from ..timeline import MEMORY_CATEGORIES, Timeline
from .files import gzip_bytes, write_atomically
from .reading import name_of

_COMPUTE, _SEND, _RECEIVE = "compute", "send", "receive"
_FIRST_LANE = {_COMPUTE: 0, _SEND: 1000, _RECEIVE: 2000}
"""Thread ids of the lanes begin here, so that lanes of one kind lie together."""


def write_chrome_trace(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Writes the trace to `path` (compressed where it ends in `.gz`, which Perfetto opens too).

    Raises `FormatError` when the file cannot be written.
    """
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"origin": timeline.origin, "makespan_us": float(timeline.makespan_us)},
        "traceEvents": list(trace_events(timeline)),
    }
    try:
        data = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:
        raise FormatError(f"{name_of(path)}: the timeline has a time that is not finite; a trace cannot") from error
    write_atomically(path, gzip_bytes(data) if name_of(path).endswith(".gz") else data)


def trace_events(timeline: Timeline) -> Iterator[dict[str, object]]:
    """Yields the events: names of processes and lanes, ops, sends and receives, memory counters."""
    for device, name in enumerate(timeline.device_names):
        yield {"ph": "M", "name": "process_name", "pid": device, "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": device, "tid": 0, "args": {"sort_index": device}}
    yield from _ops(timeline)
    yield from _transfers(timeline, _SEND)
    yield from _transfers(timeline, _RECEIVE)
    for device in range(len(timeline.device_names)):
        yield from _memory(timeline, device)


def _ops(timeline: Timeline) -> Iterator[dict[str, object]]:
    labels = [timeline.op_names[op] for op in timeline.op.tolist()]
    details = [{"op": op} for op in timeline.op.tolist()]
    yield from _lanes(_COMPUTE, timeline.device, timeline.start_us, timeline.end_us, labels, details)


def _transfers(timeline: Timeline, side: str) -> Iterator[dict[str, object]]:
    transfers = timeline.transfers
    device, start = (
        (transfers.source, transfers.start_us) if side == _SEND else (transfers.target, transfers.receive_us)
    )
    # In queued modes each side is held for the cost of the transfer, from its own start; the receive ends last.
    end = start + (transfers.end_us - transfers.receive_us)
    names, devices = timeline.op_names, timeline.device_names
    labels, details = [], []
    for tensor, a, b in zip(
        transfers.tensor.tolist(), transfers.source.tolist(), transfers.target.tolist(), strict=True
    ):
        labels.append(names[timeline.tensor_producer[tensor]])
        size = int(timeline.tensor_bytes[tensor])
        details.append({"tensor": tensor, "from": devices[a], "to": devices[b], "size_bytes": size})
    yield from _lanes(side, device, start, end, labels, details)


def _lanes(
    kind: str,
    device: Integers,
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    labels: list[str],
    details: list[dict[str, object]],
) -> Iterator[dict[str, object]]:
    """Returns complete events, each on the lowest free lane of its kind and device; the lanes' names come first."""
    # For each event the lowest lane of its device that is free when it starts. O(events log events).
    lane = [0] * len(device)
    free: dict[int, list[int]] = {}
    busy: dict[int, list[tuple[float, int]]] = {}
    devices, start_times, finish = device.tolist(), start.tolist(), end.tolist()
    for i in np.lexsort((end, start)).tolist():
        idle, running = free.setdefault(devices[i], []), busy.setdefault(devices[i], [])
        while running and running[0][0] <= start_times[i]:
            heapq.heappush(idle, heapq.heappop(running)[1])
        lane[i] = heapq.heappop(idle) if idle else len(running)
        heapq.heappush(running, (finish[i], lane[i]))
    for device_index, k in sorted({*zip(device.tolist(), lane, strict=True)}):
        name = kind if k == 0 else f"{kind} {k + 1}"
        tid = _FIRST_LANE[kind] + k
        yield {"ph": "M", "name": "thread_name", "pid": device_index, "tid": tid, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": device_index, "tid": tid, "args": {"sort_index": tid}}
    starts, length = start.tolist(), (end - start).tolist()
    for i, device_index in enumerate(device.tolist()):
        yield {
            "ph": "X",
            "cat": kind,
            "name": labels[i],
            "pid": device_index,
            "tid": _FIRST_LANE[kind] + lane[i],
            "ts": starts[i],
            "dur": length[i],
            "args": details[i],
        }


def _memory(timeline: Timeline, device: int) -> Iterator[dict[str, object]]:
    """Yields the bytes held per category whenever they have changed; of several changes at one instant, the last counts."""
    times, levels = timeline.memory.levels(device)
    last = np.append(times[1:] != times[:-1], True) if len(times) else np.zeros(0, dtype=np.bool_)
    for time, category_bytes in zip(times[last].tolist(), levels[last].tolist(), strict=True):
        counts = dict(zip(MEMORY_CATEGORIES, category_bytes, strict=True))
        yield {"ph": "C", "name": "memory", "pid": device, "tid": 0, "ts": time, "args": counts}
