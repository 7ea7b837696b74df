"""Reads profiles of TensorFlow and JAX: `.xplane.pb`, an XSpace of planes, lines and events.

    plane /host:CPU     lines are threads; ops are the events named `op:Type` (others are the profiler's own)
    planes of devices   lines are streams (`Stream #n`) on GPUs and `XLA Ops` on TPUs; other lines repeat these by name,
                        module or step
    offset, duration    picoseconds from the line's start

The format has no tensors: dependencies are inferred from the order on threads and streams, and a kernel waits for the op on the
host with its name (`tf_op`) or its `correlation_id`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from statistics import median_low
from typing import Any

from ....errors import FormatError
from .inference import infer_dependencies
from .protobuf import messages, parse_message
from .recording import Event, Recording, recording

SCHEMA = """
Stat: int64 metadata_id = 1; double double_value = 2; uint64 uint64_value = 3; int64 int64_value = 4; string str_value
    = 5; uint64 ref_value = 7
Happening: int64 metadata_id = 1; int64 offset_ps = 2; int64 duration_ps = 3; repeated Stat stats = 4
Line: int64 id = 1; string name = 2; int64 timestamp_ns = 3; repeated Happening events = 4; string display_name = 11
EventMetadata: int64 id = 1; string name = 2; string display_name = 4
EventEntry: int64 key = 1; EventMetadata value = 2
StatMetadata: int64 id = 1; string name = 2
StatEntry: int64 key = 1; StatMetadata value = 2
Plane: int64 id = 1; string name = 2; repeated Line lines = 3; repeated EventEntry event_metadata = 4; repeated
    StatEntry stat_metadata = 5
XSpace: repeated Plane planes = 1
"""
"""The fields of tensorflow/tsl's `xplane.proto` that are read."""

_HOST_OP = re.compile(r"^[\w./>-]+:[A-Z_]\w*$")
_DEVICE = re.compile(r"^/device:(?P<kind>[A-Z]+):(?P<number>\d+)")


def graph_from_xplane(data: bytes, name: str) -> Recording:
    """Makes the recording of an XSpace, with all its ops.

    Raises:
        FormatError: the file is cut off, has another format, or no ops.
    """
    space = parse_message(messages(SCHEMA)["XSpace"], data, "an XSpace")
    origin = min((line.timestamp_ns for plane in space.planes for line in plane.lines if line.events), default=0)
    rows = [row for plane in space.planes for row in _rows(plane, origin)]
    if not rows:
        raise FormatError(
            "the profile has no op: its planes hold neither events `op:Type` on the host nor streams of a device"
        )
    events = [event for event, _ in rows]
    note = infer_dependencies(events)
    launch_of_key = {key: k for k, (event, keys) in enumerate(rows) if event.kind == "cpu" for key in keys}
    for event, keys in rows:
        if event.kind == "cpu":
            continue
        for k in {launch_of_key[key] for key in keys if key in launch_of_key}:
            if events[k].end_us <= event.start_us:
                event.after.add(k)
    return recording(events, name, [*_describe_repeats(events), note])


def _describe_repeats(events: Iterable[Event]) -> list[str]:
    """Returns a sentence if most ops of the host ran several times: the format does not say where a step ends."""
    times_run = Counter(event.name for event in events if event.kind == "cpu")
    usual = median_low(times_run.values()) if times_run else 1
    if usual == 1:
        return []
    return [
        f"most ops ran {usual} times; if these are steps, all are read, and the time is theirs together: trace one step"
    ]


def _rows(plane: Any, origin: int) -> Iterator[tuple[Event, list[str]]]:
    """Yields the events of a plane, with the key of the launch to which each belongs."""
    names = {e.key: e.value for e in plane.event_metadata}
    stats = {e.key: e.value.name for e in plane.stat_metadata}
    device = _DEVICE.match(plane.name)
    if not device and not plane.name.startswith("/host:CPU"):
        return
    for line in plane.lines:
        if device and not (line.name.startswith("Stream") or line.name == "XLA Ops"):
            continue
        lane = f"{device['kind']}:{device['number']}/{line.name}" if device else f"CPU/{line.name}"
        kind = device["kind"].lower() if device else "cpu"
        for event, metadata in _innermost(
            [(e, names[e.metadata_id]) for e in line.events if e.metadata_id in names], bool(device)
        ):
            stat_of = {stats.get(s.metadata_id, ""): s for s in event.stats}
            op, _, op_type = metadata.name.rpartition(":") if not device else (metadata.name, "", "kernel")
            start = (line.timestamp_ns - origin) / 1e3 + event.offset_ps / 1e6
            correlation = stat_of.get("correlation_id")
            keys = [] if correlation is None else [f"#{correlation.uint64_value or correlation.int64_value}"]
            if not device:
                keys.append(op)
            elif "tf_op" in stat_of:
                keys.append(_text(stat_of["tf_op"], stats).split(":")[0])
            yield Event(op or metadata.name, op_type, lane, start, start + max(event.duration_ps, 0) / 1e6, kind), keys


def _innermost(rows: list[Any], device: bool) -> Iterator[Any]:
    """Yields the ops of the host that contain no other op, since a call of a function lasts as long as its ops."""
    ops = rows if device else [row for row in rows if _HOST_OP.match(row[1].name)]
    ops.sort(key=lambda row: (row[0].offset_ps, -row[0].duration_ps))
    for k, (event, metadata) in enumerate(ops):
        following = ops[k + 1][0] if k + 1 < len(ops) else None
        if device or following is None or following.offset_ps >= event.offset_ps + max(event.duration_ps, 1):
            yield event, metadata


def _text(stat: Any, names: dict[int, str]) -> str:
    return stat.str_value or names.get(stat.ref_value, "")
