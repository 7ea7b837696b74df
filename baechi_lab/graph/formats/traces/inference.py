"""Inferred dependencies of a trace that has none: an op waits for the previous op on its lane.

An op that starts later than the previous op ended also waits for the op on any lane that ended last. If the trace has the
launches and waits of the host, hosts and devices are treated separately. Such dependencies only explain the measured order: work
can be moved to other devices, but ops that could have run in parallel are not found. The size of a tensor is that of the reader's
largest input, if the trace has shapes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...opgraph import CONTROL_BYTES
from .recording import CLOCK_US, Event


def infer_dependencies(
    events: Sequence[Event], input_bytes: Sequence[int] | None = None, block_end_us: Sequence[float] | None = None
) -> str:
    """Sets what every event depends on, by the order in which they ran; returns the sentence that says so.

    `block_end_us`: the time until which another step blocked each event, so that earlier ends do not explain its start.

    >>> a, b = Event("a", "op", "x", 0.0, 1.0), Event("b", "op", "x", 1.0, 2.0)
    >>> infer_dependencies([a, b])[:38], b.reads
    ('what depends on what is inferred from ', {(0, 'order'): 4})
    """
    by_start = sorted(range(len(events)), key=lambda i: (events[i].start_us, events[i].end_us, i))
    by_end = sorted(range(len(events)), key=lambda i: (events[i].end_us, events[i].start_us, i))
    last_to_end: dict[str, int] = {}  # by side
    last_on_lane: dict[str, int] = {}
    ended_count = 0
    for i in by_start:
        event = events[i]
        while ended_count < len(by_end) and events[by_end[ended_count]].end_us <= event.start_us:
            last_to_end[_side(events[by_end[ended_count]])] = by_end[ended_count]
            ended_count += 1
        on_lane = last_on_lane.get(event.lane)
        before = set() if on_lane is None or events[on_lane].end_us > event.start_us + CLOCK_US else {on_lane}
        anywhere = last_to_end.get(_side(event))
        if (
            anywhere is not None
            and (block_end_us is None or events[anywhere].end_us > block_end_us[i])
            and all(events[anywhere].end_us > events[j].end_us for j in before)
        ):
            before.add(anywhere)
        size = max(CONTROL_BYTES, input_bytes[i] if input_bytes is not None else 0)
        for j in before - {i}:
            event.reads[j, "order"] = size
        if event.lane not in last_on_lane or events[last_on_lane[event.lane]].end_us <= event.end_us:
            last_on_lane[event.lane] = i
    if input_bytes is not None:
        sizes = "of the reader's largest input"
    else:
        sizes = "unknown, and taken for those of control dependencies"
    return (
        "what depends on what is inferred from the order on threads and streams (the trace has no tensors): an op waits "
        f"for the one before it on its lane and for the one that ended last; sizes are {sizes}"
    )


def _side(event: Event) -> str:
    """Returns the kind of the event's device if the trace has the launches of the host, else an empty text."""
    return event.kind if event.keeps_device else ""
