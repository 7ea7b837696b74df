"""Colours of the timeline's bars: classes of ops with a legend. The colours of devices are used for devices only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..graph import OpGraph, Timeline
from ..graph.device import short_device
from ..passes.roles import BACKWARD, FORWARD, SETUP, UPDATE, roles
from ..viz.colors import CLASSES, LIMIT, OTHER_COLOR
from ..viz.nested.scene import placed_us
from ..viz.nested.tree import ROOT, Tree, build_tree
from ..viz.shades import HATCHED, PHASES, phase_shades, pipeline_phases

DEVICE, TYPE, SCOPE, PASS, CRITICAL, BATCH = "device", "op type", "scope", "pass", "critical path", "micro-batch"
MOST_CLASSES = len(CLASSES)
"""Most classes with a colour of their own; all others are one class, in grey."""


@dataclass(frozen=True, eq=False)
class Coloring:
    """A class per op and its colour: `kind` uint8[n] points into `labels`, `colors` (#RRGGBB) and `time_us` (sums)."""

    kind: NDArray[np.uint8]
    labels: tuple[str, ...]
    colors: tuple[str, ...]
    time_us: tuple[float, ...]


def choices(graph: OpGraph, timeline: Timeline | None = None) -> tuple[str, ...]:
    """Returns the properties by which ops of this graph can be coloured; micro-batches only if it has some."""
    has_batches = _batches(graph, timeline) is not None
    return (DEVICE, TYPE, SCOPE, PASS, CRITICAL, *((BATCH,) if has_batches else ()))


def coloring(
    graph: OpGraph, by: str, critical: Sequence[int] | NDArray[np.int64] = (), timeline: Timeline | None = None
) -> Coloring:
    """Returns the classes of all ops by their type, outermost scope, part in the step, micro-batch, or the critical path.

    Raises:
        InvalidInput: `by` is not one of `choices`, or "device", by which only the timeline can colour.
    """
    duration_us = placed_us(graph, timeline)
    if by == TYPE:
        return _largest(duration_us, np.array(graph.op_types, dtype=object))
    if by == SCOPE:
        tree = build_tree(graph)
        visible_nodes = tree.visible(tree.open_until(MOST_CLASSES))
        label = np.array([_forward_label(tree, int(node)) for node in visible_nodes] or [""], dtype=object)
        return _largest(duration_us, label[tree.owner(visible_nodes)])
    if by == PASS:
        names = {FORWARD: "forward", BACKWARD: "backward", UPDATE: "update", SETUP: "done once before"}
        role = roles(graph)
        if graph.micro_batch is not None:  # sums of gradients over micro-batches come after every backward pass
            role = np.where((np.asarray(graph.micro_batch) < 0) & (role == BACKWARD), UPDATE, role)
        order = [k for k in (FORWARD, BACKWARD, UPDATE, SETUP) if (role == k).any()]
        position = np.zeros(4, dtype=np.int64)
        position[order] = np.arange(len(order))
        colors = {FORWARD: CLASSES[0], BACKWARD: CLASSES[1], UPDATE: CLASSES[2], SETUP: OTHER_COLOR}
        return _coloring_of(
            duration_us, position[role], tuple(names[k] for k in order), tuple(colors[k] for k in order)
        )
    if by == CRITICAL:
        on = np.zeros(graph.n, dtype=np.int64)
        on[np.asarray(critical, dtype=np.int64)] = 1
        return _coloring_of(duration_us, on, ("other ops", "critical path"), (OTHER_COLOR, LIMIT))
    batch = _batches(graph, timeline)
    if by != BATCH or batch is None:
        raise InvalidInput(f"color_by is {by!r}; this graph can be coloured by {', '.join(choices(graph, timeline))}")
    # Colours repeat after the last class, and ops that run once are grey.
    count = min(int(batch.max(initial=-1)) + 1, MOST_CLASSES)
    kind = np.where(batch < 0, count, batch % max(count, 1))
    many = int(batch.max(initial=-1)) + 1
    labels = [", ".join(str(b) for b in range(k, many, count)) for k in range(count)]
    labels = [text if len(text) < 14 else f"{k}, {k + count}, …" for k, text in enumerate(labels)]
    return _coloring_of(duration_us, kind, (*labels, "done once"), (*CLASSES[:count], OTHER_COLOR))


def device_legend(timelines: Sequence[Timeline], colors: Sequence[str]) -> list[dict[str, object]]:
    """Returns the legend of the devices that do anything, with the time for which each computes in the first timeline."""
    if not timelines:
        return []
    active = {
        line.device_names[d]
        for line in timelines
        for column in (line.device, line.transfers.source, line.transfers.target)
        for d in np.unique(column).tolist()
    }
    rows = zip(timelines[0].device_names, colors, timelines[0].busy_us.tolist(), strict=False)
    return [{"label": short_device(name), "color": color, "time": time} for name, color, time in rows if name in active]


def phase_legend(timeline: Timeline) -> list[dict[str, object]]:
    """Returns the legend of a pipeline's phases, with the time of each on all devices; gradients of weights are `hatched`."""
    phases = pipeline_phases(timeline)
    if phases is None:
        return []
    time = np.bincount(phases[timeline.op], timeline.end_us - timeline.start_us, minlength=len(PHASES) + 1)
    greys = phase_shades(OTHER_COLOR)
    return [
        {"label": label, "color": greys[k], "time": float(time[k]), "hatched": k == HATCHED}
        for k, label in enumerate(PHASES, 1)
        if time[k] > 0
    ]


def batches(graph: OpGraph, timeline: Timeline | None = None) -> NDArray[np.int64]:
    """Returns int64[n]: the micro-batch of every op, -1 for ops that run once or if there are no micro-batches."""
    batch_coloring = _batches(graph, timeline)
    return np.full(graph.n, -1, dtype=np.int64) if batch_coloring is None else batch_coloring


def _batches(graph: OpGraph, timeline: Timeline | None) -> NDArray[np.int64] | None:
    micro_batch = graph.micro_batch
    if micro_batch is None and timeline is not None and timeline.op_names == graph.names:
        micro_batch = timeline.micro_batch
    return None if micro_batch is None else np.maximum(np.asarray(micro_batch, dtype=np.int64), -1)


def _forward_label(tree: Tree, node: int) -> str:
    """Returns the label of a box; a backward box has that of its forward box."""
    twin = int(tree.twin[node]) if tree.parent[node] == ROOT else -1
    return tree.labels[twin if twin >= 0 else node] or "graph"


def _largest(duration_us: NDArray[np.float64], label: NDArray[np.object_]) -> Coloring:
    """Makes classes by label, those with the most time first; all beyond the last colour are one class."""
    names, inverse = np.unique(label.astype(str), return_inverse=True)
    time = np.bincount(inverse, duration_us, minlength=len(names))
    order = np.argsort(-time, kind="stable")
    few = len(names) <= MOST_CLASSES
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.minimum(np.arange(len(names)), MOST_CLASSES)
    type_names = [str(names[k]) or "no type" for k in order[:MOST_CLASSES]]
    rest_label = () if few else (f"{len(names) - MOST_CLASSES} others",)
    return _coloring_of(
        duration_us,
        rank[inverse],
        (*type_names, *rest_label),
        (*CLASSES[: len(type_names)], *(() if few else (OTHER_COLOR,))),
    )


def _coloring_of(
    duration_us: NDArray[np.float64], kind: NDArray[np.int64], labels: tuple[str, ...], colors: tuple[str, ...]
) -> Coloring:
    time = np.bincount(kind, duration_us, minlength=len(labels))
    return Coloring(kind.astype(np.uint8), labels, colors, tuple(time.tolist()))
