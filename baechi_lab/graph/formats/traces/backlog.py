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

from .inference import chain
from .recording import CLOCK_US, Event

LATENCY_US = 20.0
"""Longest time from a launch to its kernel on an idle device. A longer delay has another reason."""
BACK_TO_BACK_US = 5.0
"""Longest time between two kernels if the second one waited for the first."""
NEVER = float("-inf")  # the time until which an event that did not wait was blocked


def blocked_until(
    events: Sequence[Event], waits: Sequence[tuple[float, int]], foreign_kernels: Sequence[tuple[str, float]]
) -> list[float]:
    """Returns the times until which kernels of other steps blocked each event, minus infinity for none.

    Args:
        events: of the step; lanes of kernels are `DEVICE/...`.
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
    """Removes the time of other steps from a step's times; returns a sentence that says so.

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
    chain(copies, block_end_us=block_end_us)
    # The streams that were behind at every launch of the step, by more than the host's time for its first launch.
    host_us = min(latency_us, LATENCY_US)
    launches: dict[str, list[tuple[float, float]]] = {}
    for k, launch in launch_of.items():
        launches.setdefault(events[k].lane, []).append((events[k].start_us, events[launch].end_us))
    first_start = min((event.start_us for event in events if event.kind != "gpu"), default=0.0)
    behind = set()
    for lane, times in launches.items():
        first, delay = min(times)[0], min(start - launch for start, launch in times) - host_us
        all_launched = first >= max(launch for _, launch in times)
        if delay > CLOCK_US and (all_launched or 2 * delay > first - first_start):
            behind.add(lane)
    device_ends = _ends_of_devices(foreign_kernels)
    for k, event in enumerate(events):
        if event.lane in behind:
            copies[k].after.discard(launch_of.get(k, -1))
            if not copies[k].reads and not copies[k].after:
                block_end_us[k] = _last_before(device_ends.get(_device(event), []), event.start_us)
    if all(until == NEVER for until in block_end_us):
        return []
    first_start = min(event.start_us for event in copies)
    free: dict[str, tuple[float, float]] = {}  # of a lane: as measured, and without waiting
    lead = [0.0] * len(copies)
    for k in sorted(range(len(copies)), key=lambda k: (copies[k].start_us, copies[k].end_us, k)):
        event = copies[k]
        before = [
            j for j in {*(j for j, _ in event.reads), *event.after} if copies[j].end_us <= event.start_us + CLOCK_US
        ]
        measured_us, ready_us = free.get(event.lane, (first_start, first_start))
        measured_us = max([measured_us, block_end_us[k], *(copies[j].end_us for j in before)])
        ready_us = max([ready_us, *(copies[j].end_us - lead[j] for j in before)])
        lead[k] = max(measured_us - ready_us, 0.0)
        if event.lane not in free or event.end_us >= free[event.lane][0]:
            free[event.lane] = (event.end_us, event.end_us - lead[k])
    for event, by in zip(events, lead, strict=True):
        event.start_us, event.end_us = event.start_us - by, event.end_us - by
    for k, launch in launch_of.items():
        if events[launch].end_us > events[k].start_us + CLOCK_US:
            events[k].after.discard(launch)
    longest_lead = max(lead)
    return [f"devices still ran earlier steps when this one was launched; up to {longest_lead:.6g} us are left out"] * (
        longest_lead > CLOCK_US
    )


def _device(event: Event) -> str:
    return event.lane.partition("/")[0]


def _ends_of_devices(foreign_kernels: Sequence[tuple[str, float]]) -> dict[str, list[float]]:
    device_ends: dict[str, list[float]] = {}
    for lane, end in sorted(foreign_kernels, key=lambda row: row[1]):
        device_ends.setdefault(lane.partition("/")[0], []).append(end)
    return device_ends


def _last_before(sorted_ends: Sequence[float], start: float) -> float:
    """Returns the last of these ends before the start of an event."""
    k = bisect_right(sorted_ends, start + CLOCK_US)
    return min(sorted_ends[k - 1], start) if k else NEVER
