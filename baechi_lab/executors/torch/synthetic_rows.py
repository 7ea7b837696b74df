"""Times of ops that a measured step does not call: updates share the optimizer's call, and parts of a tensor take no time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph import OpGraph, Placement
from ...graph.tensors import NAMED, PARTS_TYPE, RECOMPUTED, TARGETS
from ...torch_steps.records import UPDATE

Spans = dict[int, tuple[float, float]]
"""Start and end in microseconds, by op or by clock."""


def update_rows(graph: OpGraph, placement: Placement, clock: Sequence[int], spans: Spans) -> Spans:
    """Returns start and end of every update op, in microseconds.

    The ops of a clock follow each other, and their durations are in proportion to those of the graph.

    Args:
        graph: its ops of type "Update" are in the order in which they run.
        placement: of its ops.
        clock: per device, the key of its entry of `spans`. Devices of one host share an entry, as it updates them in turn.
        spans: per clock, the measured start and end of the optimizer's call in microseconds.

    >>> graph = OpGraph.from_edges([1.0, 3.0, 1.0], op_types=["Linear", "Update", "Update"])
    >>> update_rows(graph, Placement(device=[0, 0, 1]), [-1, -1], {-1: (10.0, 18.0)})
    {1: (10.0, 16.0), 2: (16.0, 18.0)}
    """
    ops_of_clock: dict[int, list[int]] = {}
    for op in (k for k, kind in enumerate(graph.op_types) if kind == UPDATE):
        ops_of_clock.setdefault(clock[int(placement.device[op])], []).append(op)
    op_spans: Spans = {}
    for clock_number, ops in ops_of_clock.items():
        start_us, end_us = spans[clock_number]
        planned_us = graph.duration_us[ops]
        share = planned_us / planned_us.sum() if planned_us.sum() > 0 else np.full(len(ops), 1.0 / len(ops))
        end_times = start_us + (end_us - start_us) * np.cumsum(share)
        starts = [start_us, *end_times[:-1].tolist()]
        op_spans |= {op: (start, end) for op, start, end in zip(ops, starts, end_times.tolist(), strict=True)}
    return op_spans


def parts_rows(graph: OpGraph, spans: Spans) -> Spans:
    """Returns op -> start and end of the "Parts", "Named", "Recomputed" and "Targets" ops, which take no time.

    They start and end when the last of their producers ends; targets, which nothing produces, when the step starts.

    >>> graph = OpGraph.from_edges([1.0, 0.0, 0.0], [(0, 1, 80)], op_types=["Linear", PARTS_TYPE, TARGETS])
    >>> parts_rows(graph, {0: (2.0, 5.0)})
    {1: (5.0, 5.0), 2: (0.0, 0.0)}
    """
    pointer, predecessor = graph.predecessors
    input_ends = {
        op: [spans[k][1] for k in predecessor[pointer[op] : pointer[op + 1]].tolist() if k in spans]
        for op, kind in enumerate(graph.op_types)
        if kind in (PARTS_TYPE, NAMED, RECOMPUTED)
    }
    rows = {op: (max(end_times), max(end_times)) for op, end_times in input_ends.items() if end_times}
    return rows | {op: (0.0, 0.0) for op, kind in enumerate(graph.op_types) if kind == TARGETS}
