"""Heat of a graph's ops: a cost of each op in a step, which the graph view sums over boxes and draws as colour strength."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..checks import check_text
from ..graph.kernels.csr import grouped_sum
from ..graph.units import format_bytes, format_us
from .compute import Outcome
from .levels import entries_until_peak
from .waiting import waits

TIME, MEMORY, IDLE, MOVED, CRITICAL = "time", "memory", "idle caused", "bytes moved", "critical share"
HEATS = (TIME, MEMORY, IDLE, MOVED, CRITICAL)
MEANINGS = {
    TIME: "time that its ops compute in a step",
    MEMORY: "bytes of its ops and their tensors on each device when that is fullest; all boxes together are the peaks",
    IDLE: "time that devices stand idle in a step for tensors of its ops",
    MOVED: "bytes of its tensors that are sent to other devices in a step",
    CRITICAL: "time of its ops and of the transfers of their tensors on the critical path, as a share of the step",
}


def op_heat(outcome: Outcome, by: str) -> NDArray[np.float64]:
    """Returns float64[n]: the heat of every op of the graph, summed over its copies in a step. O(rows log rows + edges).

    Microseconds for `time` and `idle caused`, bytes for `memory` and `bytes moved`, a share of the step for `critical share`.
    The cause of idle time is the op whose tensor was missing (`waiting.py`); a device that has run all its ops has no cause.

    Raises:
        InvalidInput: `by` is not one of `HEATS`.
    """
    check_text("heat", by, HEATS)
    graph, timeline = outcome.executed_graph, outcome.timeline
    heat = np.zeros(graph.n)
    if by == MEMORY:
        log = timeline.memory
        for device in np.unique(log.device).tolist():
            entries = entries_until_peak(log, device)
            entries = entries[log.op[entries] >= 0]
            np.add.at(heat, log.op[entries], log.delta[entries].astype(np.float64))
    elif by == TIME:
        np.add.at(heat, timeline.op, timeline.end_us - timeline.start_us)
    elif by == IDLE:
        gaps = waits(graph, timeline)
        has_cause = gaps.source >= 0
        np.add.at(heat, gaps.source[has_cause], (gaps.end_us - gaps.start_us)[has_cause])
    elif by == MOVED:
        tensors = timeline.transfers.tensor
        np.add.at(heat, timeline.tensor_producer[tensors], timeline.tensor_bytes[tensors].astype(np.float64))
    else:
        # Each op's part of the step on the critical path; a transfer counts for the producer of its tensor. If two
        # neighbours overlap, as a transfer that begins before its producer's row ends, their overlap counts once.
        timeline, chain = outcome.timeline, outcome.chain
        if timeline.makespan_us > 0:
            row_of = np.full(outcome.executed_graph.n, -1, dtype=np.int64)
            row_of[timeline.op] = np.arange(len(timeline.op))
            rows, transfers = row_of[chain.ops], chain.transfers
            start = np.concatenate([timeline.start_us[rows], timeline.transfers.start_us[transfers]])
            end = np.concatenate([timeline.end_us[rows], timeline.transfers.end_us[transfers]])
            owner = np.concatenate([chain.ops, timeline.tensor_producer[timeline.transfers.tensor[transfers]]])
            order = np.lexsort((end, start))
            covered_us = np.concatenate([[0.0], np.maximum.accumulate(end[order])[:-1]]) if len(order) else np.zeros(0)
            own_us = np.maximum(end[order] - np.maximum(start[order], covered_us), 0.0)
            np.add.at(heat, owner[order], own_us / timeline.makespan_us)
    return grouped_sum(heat, outcome.original_of(np.arange(graph.n)), outcome.graph.n)


def format_heat(by: str, value: float) -> str:
    """Returns a heat as text with its unit.

    >>> format_heat("critical share", 0.25), format_heat("bytes moved", 8)
    ('25.0%', '8 B')
    """
    if by == CRITICAL:
        return f"{value:.1%}"
    return format_bytes(int(value)) if by in (MEMORY, MOVED) else format_us(value)


HeatSource = Callable[[str], NDArray[np.float64]]
"""A function that returns the heat of every op of the shown graph, by one of `HEATS`."""
