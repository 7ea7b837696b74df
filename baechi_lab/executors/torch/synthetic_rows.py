"""Times of ops that a measured step does not call: updates share the optimizer's call; parts of a tensor take no time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph import OpGraph, Placement
from ...graph.tensors import NAMED, PARTS_TYPE, RECOMPUTED
from ...torch_steps.records import UPDATE

Spans = dict[int, tuple[float, float]]
"""Start and end in microseconds by op."""


def update_rows(
    graph: OpGraph, placement: Placement, clock: Sequence[int], spans: dict[int, tuple[float, float]]
) -> Spans:
    """Start and end of every update op: one after another on each clock, in proportion to the graph's durations.

    Args:
        graph: its ops of type "Update" are in the order in which they run.
        placement: of its ops.
        clock: of each device, which of `spans` is its own; devices of one host share one, as it updates them in turn.
        spans: of each clock, when the optimizer's call began and ended, measured.

    >>> graph = OpGraph.from_edges([1.0, 3.0, 1.0], op_types=["Linear", "Update", "Update"])
    >>> update_rows(graph, Placement(device=[0, 0, 1]), [-1, -1], {-1: (10.0, 18.0)})
    {1: (10.0, 16.0), 2: (16.0, 18.0)}
    """
    on: dict[int, list[int]] = {}
    for op in (k for k, kind in enumerate(graph.op_types) if kind == UPDATE):
        on.setdefault(clock[int(placement.device[op])], []).append(op)
    spans_of: Spans = {}
    for key, ops in on.items():
        begin_us, end_us = spans[key]
        us = graph.duration_us[ops]
        share = us / us.sum() if us.sum() > 0 else np.full(len(ops), 1.0 / len(ops))
        end_times = begin_us + (end_us - begin_us) * np.cumsum(share)
        starts = [begin_us, *end_times[:-1].tolist()]
        spans_of |= {op: (start, end) for op, start, end in zip(ops, starts, end_times.tolist(), strict=True)}
    return spans_of


def parts_rows(graph: OpGraph, spans: Spans) -> Spans:
    """Returns op -> start and end of the "Parts", "Named" and "Recomputed" ops, which take no time.

    Both are when the last op ends that they wait for.

    >>> graph = OpGraph.from_edges([1.0, 0.0], [(0, 1, 80)], op_types=["Linear", PARTS_TYPE])
    >>> parts_rows(graph, {0: (2.0, 5.0)})
    {1: (5.0, 5.0)}
    """
    pointer, predecessor = graph.predecessors
    input_ends = {
        op: [spans[k][1] for k in predecessor[pointer[op] : pointer[op + 1]].tolist() if k in spans]
        for op, kind in enumerate(graph.op_types)
        if kind in (PARTS_TYPE, NAMED, RECOMPUTED)
    }
    return {op: (max(end_times), max(end_times)) for op, end_times in input_ends.items() if end_times}
