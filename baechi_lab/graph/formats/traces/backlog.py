"""Backlog: the time in which devices still ran earlier steps when a step was launched. It is removed from the step.

A host that never waits runs ahead of its devices, which is normal on a GPU. Each kernel of a step is moved to the start that it
would have had on idle devices: with the measured delays after its launch, after the previous kernel of its stream, and after the
events for which it waited. A stream that was behind at all its launches begins with the step, as in every step; launches of the
host after the start of their kernel belong to the previous step. So a step that its devices limit takes as long as they do, and
one that its host limits as long as the host does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .inference import infer_dependencies
from .recording import CLOCK_US, Event

LATENCY_US = 20.0
"""Longest time from a launch to its kernel on an idle device. A longer delay has another reason."""
BACK_TO_BACK_US = 5.0
"""Longest time between two kernels if the second one waited for the first."""
NEVER = float("-inf")
"""The time until which an event was blocked that no other step blocked."""


def blocked_until(
    events: Sequence[Event], waits: Sequence[tuple[float, int]], foreign_kernels: Sequence[tuple[str, float]]
) -> list[float]:
    """Returns the times until which kernels of other steps blocked each event, minus infinity for none.

    Args:
        events: of the step; the lane of a kernel is `DEVICE/STREAM`.
        waits: (time, event) at which events of the host went on after waiting for a device.
        foreign_kernels: (lane, end) of the kernels of other steps.
    """
    block_end_us = [NEVER] * len(events)
    device_ends = _ends_of_devices(foreign_kernels)
    every_end = sorted(end for _, end in foreign_kernels)
    kernel_ends = sorted(event.end_us for event in events if event.kind == "gpu")
    for k, event in enumerate(events):
        if event.kind == "gpu":
            end = _last_before(device_ends.get(_device(event), []), event.start_us)
            block_end_us[k] = end if event.start_us - end <= BACK_TO_BACK_US else NEVER
    for start, k in waits:
        end = _last_before(every_end, start)
        block_end_us[k] = end if end > _last_before(kernel_ends, start) else NEVER
    return block_end_us


def leave_out_backlog(
    events: Sequence[Event],
    launch_of: Mapping[int, int],
    block_end_us: Sequence[float],
    foreign_kernels: Sequence[tuple[str, float]],
    latency_us: float,
) -> list[str]:
    """Removes the time of other steps from a step's times; returns a sentence that says so, or nothing if there is none.

    Args:
        events: of the step, with what they depend on. Their times are changed in place.
        launch_of: event on a device -> the event on the host that launched it.
        block_end_us: see `blocked_until`.
        foreign_kernels: (lane, end) of the kernels of other steps.
        latency_us: the shortest time from a launch to its kernel in the whole trace.
    """
    if not foreign_kernels:
        return []
    block_end_us, copies = list(block_end_us), [replace(e, reads={}, after=set(e.after)) for e in events]
    infer_dependencies(copies, block_end_us=block_end_us)
    streams_behind = _streams_behind(events, launch_of, min(latency_us, LATENCY_US))
    device_ends = _ends_of_devices(foreign_kernels)
    for k, event in enumerate(events):
        if event.lane in streams_behind:
            copies[k].after.discard(launch_of.get(k, -1))
            if not copies[k].reads and not copies[k].after:
                block_end_us[k] = _last_before(device_ends.get(_device(event), []), event.start_us)
    if all(until == NEVER for until in block_end_us):
        return []
    # An event starts when its lane is free and all that it waits for has ended. Its backlog is how much later that was, as
    # measured, than it would have been if no event before it had waited for earlier steps.
    step_start_us = min(event.start_us for event in copies)
    lane_end_us: dict[str, tuple[float, float]] = {}  # the last end on each lane: as measured, and without backlog
    backlog_us = [0.0] * len(copies)
    for k in sorted(range(len(copies)), key=lambda k: (copies[k].start_us, copies[k].end_us, k)):
        event = copies[k]
        before = [
            j for j in {*(j for j, _ in event.reads), *event.after} if copies[j].end_us <= event.start_us + CLOCK_US
        ]
        measured_us, ready_us = lane_end_us.get(event.lane, (step_start_us, step_start_us))
        measured_us = max([measured_us, block_end_us[k], *(copies[j].end_us for j in before)])
        ready_us = max([ready_us, *(copies[j].end_us - backlog_us[j] for j in before)])
        backlog_us[k] = max(measured_us - ready_us, 0.0)
        if event.lane not in lane_end_us or event.end_us >= lane_end_us[event.lane][0]:
            lane_end_us[event.lane] = (event.end_us, event.end_us - backlog_us[k])
    for event, us in zip(events, backlog_us, strict=True):
        event.start_us, event.end_us = event.start_us - us, event.end_us - us
    for k, launch in launch_of.items():  # a launch that now ends after the start of its kernel is one of the next step
        if events[launch].end_us > events[k].start_us + CLOCK_US:
            events[k].after.discard(launch)
    if max(backlog_us) <= CLOCK_US:
        return []
    return [f"devices still ran earlier steps when this one was launched; up to {max(backlog_us):.6g} us are left out"]


def _streams_behind(events: Sequence[Event], launch_of: Mapping[int, int], host_us: float) -> set[str]:
    """Returns the streams that were behind at every launch of the step, by more than the `host_us` that a launch takes.

    Such a stream still ran earlier steps if all of its kernels were launched before the first one started, or if even the
    shortest delay after a launch is more than half of the time since the step began on the host.
    """
    launches: dict[str, list[tuple[float, float]]] = {}  # (start of the kernel, end of its launch) by stream
    for k, launch in launch_of.items():
        launches.setdefault(events[k].lane, []).append((events[k].start_us, events[launch].end_us))
    host_start_us = min((event.start_us for event in events if event.kind != "gpu"), default=0.0)
    streams_behind = set()
    for stream, times in launches.items():
        stream_start_us = min(start for start, _ in times)
        least_delay_us = min(start - launch for start, launch in times) - host_us
        all_launched = stream_start_us >= max(launch for _, launch in times)
        if least_delay_us > CLOCK_US and (all_launched or 2 * least_delay_us > stream_start_us - host_start_us):
            streams_behind.add(stream)
    return streams_behind


def _device(event: Event) -> str:
    """Returns the device of an event, from its lane `DEVICE/STREAM`."""
    return event.lane.partition("/")[0]


def _ends_of_devices(foreign_kernels: Sequence[tuple[str, float]]) -> dict[str, list[float]]:
    """Returns the ends of the kernels of other steps by device, ascending."""
    device_ends: dict[str, list[float]] = {}
    for lane, end in sorted(foreign_kernels, key=lambda row: row[1]):
        device_ends.setdefault(lane.partition("/")[0], []).append(end)
    return device_ends


def _last_before(sorted_ends: Sequence[float], start: float) -> float:
    """Returns the last of these ends before the start of an event."""
    k = bisect_right(sorted_ends, start + CLOCK_US)
    return min(sorted_ends[k - 1], start) if k else NEVER
