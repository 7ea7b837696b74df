"""A timeline as text that one can read and diff: a line per op and transfer, in the order in which they start.

    simulated, 8 us
             0 ..          2  gpu:0           a
             2 ..          5  gpu:0 -> gpu:1  a, 4 B
             5 ..          8  gpu:1           b
    gpu:0: computes 2 us, peak 4 B of 1000 B
    gpu:1: computes 3 us, peak 4 B of 1000 B

A transfer whose receiver starts later than its sender says from when it is received. Changes of memory, where asked for,
follow as lines of their own in the order in which they happened, with what the device holds after each. Numbers are exact
to twelve digits, and columns have one width, so that one changed op is one changed line.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...checks import check_flag
from ..timeline import MEMORY_CATEGORIES, Timeline

_PLACE = 10
"""Width of a time, which keeps lines below each other up to a day."""


def timeline_text(timeline: Timeline, memory: bool = False) -> str:
    """Returns the text; with every change of memory where `memory` is true.

    Raises:
        InvalidInput: memory is neither True nor False.

    >>> from baechi_lab import Cluster, Link, OpGraph, Placement, simulate
    >>> graph = OpGraph.from_edges([2, 3], [(0, 1, 4)], names=["a", "b"])
    >>> cluster = Cluster.uniform(2, memory_bytes=1000, link=Link(1.0, 0.5))
    >>> print(timeline_text(simulate(graph, cluster, Placement(device=[0, 1]))), end="")
    simulated, 8 us
             0 ..          2  gpu:0           a
             2 ..          5  gpu:0 -> gpu:1  a, 4 B
             5 ..          8  gpu:1           b
    gpu:0: computes 2 us, peak 4 B of 1000 B
    gpu:1: computes 3 us, peak 4 B of 1000 B
    """
    check_flag("memory", memory)
    # Ops and transfers by start, then end; ops before transfers, and both as the timeline has them.
    events = sorted([*_ops(timeline), *_transfers(timeline)], key=lambda event: event[:2])
    width = max((len(place) for _, _, place, _ in events), default=0)
    lines = [
        f"{timeline.origin}, {_number(timeline.makespan_us)} us",
        *[
            f"{_number(start):>{_PLACE}} .. {_number(end):>{_PLACE}}  {place:{width}}  {text}"
            for start, end, place, text in events
        ],
    ]
    lines += _memory(timeline) if memory else []
    lines += _devices(timeline)
    lines += [f"violation: {violation}" for violation in timeline.violations]
    return "\n".join(lines) + "\n"


def _ops(timeline: Timeline) -> Iterator[tuple[float, float, str, str]]:
    columns = (timeline.start_us, timeline.end_us, timeline.device, timeline.op)
    for start, end, device, op in zip(*(c.tolist() for c in columns), strict=True):
        yield start, end, timeline.device_names[device], timeline.op_names[op]


def _transfers(timeline: Timeline) -> Iterator[tuple[float, float, str, str]]:
    transfers, devices = timeline.transfers, timeline.device_names
    columns = (
        transfers.tensor,
        transfers.source,
        transfers.target,
        transfers.start_us,
        transfers.receive_us,
        transfers.end_us,
    )
    for tensor, source, target, start, receive, end in zip(*(c.tolist() for c in columns), strict=True):
        tensor_text = f"{timeline.op_names[timeline.tensor_producer[tensor]]}, {timeline.tensor_bytes[tensor]} B"
        received_note = f", received from {_number(receive)}" if receive > start else ""
        yield start, end, f"{devices[source]} -> {devices[target]}", tensor_text + received_note


def _memory(timeline: Timeline) -> Iterator[str]:
    log, held_bytes = timeline.memory, [0] * len(timeline.device_names)  # sums of damaged logs may exceed int64
    columns = (log.time_us, log.device, log.category, log.delta, log.op)
    for time_us, device, category, delta, op in zip(*(c.tolist() for c in columns), strict=True):
        held_bytes[device] += delta
        of = f" of {timeline.op_names[op]}" if op >= 0 else ""
        change_text = f"{delta:+} B {MEMORY_CATEGORIES[category]}{of}"
        yield f"{_number(time_us):>{_PLACE}}  {timeline.device_names[device]}  {change_text}: {held_bytes[device]} B"


def _devices(timeline: Timeline) -> Iterator[str]:
    rows = (
        timeline.device_names,
        timeline.busy_us.tolist(),
        timeline.peak_bytes.tolist(),
        timeline.memory_bytes.tolist(),
    )
    for name, busy, peak, limit_bytes in zip(*rows, strict=True):
        yield f"{name}: computes {_number(busy)} us, peak {peak} B of {limit_bytes} B"


def _number(value: float) -> str:
    return f"{value:.12g}"
