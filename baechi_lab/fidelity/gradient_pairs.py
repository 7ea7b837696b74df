"""Kernels that depend on the device of another op: oneDNN gradients that use a workspace of their forward op.

The gradient of a pooling is an example. If the forward op is on another worker, TensorFlow computes the gradient without oneDNN,
which may take several times as long. Traces of one worker do not show this. So the step is traced once more with the forward
ops of all such pairs on the other worker, which is not one of the predicted placements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..executors import LocalCluster, Worker
from ..graph import OpGraph, Placement, Step
from .executor import ONEDNN
from .profiles import SETTLED, temporary_bytes, traced_step


@dataclass(frozen=True)
class Pairs:
    """Kernel types and costs of gradients whose forward ops are on another device.

    Args:
        op, forward: int64[k], gradients and their forward ops.
        apart_us, temp_bytes, kinds: duration (float64[k]), temporary bytes (int64[k]) and op type if they are apart.
    """

    op: NDArray[np.int64]
    forward: NDArray[np.int64]
    apart_us: NDArray[np.float64]
    temp_bytes: NDArray[np.int64]
    kinds: tuple[str, ...]


def pairs_in(graph: OpGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns oneDNN gradients and their forward ops, which match by type and are connected by an edge."""
    types = graph.op_types
    rows = {
        reader: source
        for source, reader in zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True)
        if types[source].startswith(ONEDNN) and types[reader] == f"{types[source]}Grad"
    }
    return np.array(list(rows), dtype=np.int64), np.array(list(rows.values()), dtype=np.int64)


def measured_apart(
    step: Step, local: LocalCluster, worker: Worker, graph: OpGraph, traces: int, warmup: int = SETTLED
) -> Pairs | None:
    """Returns the pairs of a `measured_graph` whose gradient ran as another kernel when apart; None if there are none.

    Raises `ExecutionError` when the step does not run.
    """
    op, forward = pairs_in(graph)
    if not len(op) or local.n < 2:
        return None
    device = np.zeros(graph.n, dtype=np.int32)
    device[forward] = 1
    duration_us, temporary = np.zeros((traces, graph.n)), np.zeros(graph.n, dtype=np.int64)
    replacing_types: dict[str, str] = {}
    for row in duration_us:
        timeline, replacing_types = traced_step(step, Placement(device=device), local, worker, graph, warmup)
        row[timeline.op] = timeline.end_us - timeline.start_us
        temporary = np.maximum(temporary, temporary_bytes(timeline, graph.n))
    has_other_type = np.array([replacing_types.get(graph.names[i]) != graph.op_types[i] for i in op.tolist()])
    op, forward = op[has_other_type], forward[has_other_type]
    kinds = tuple(
        replacing_types.get(graph.names[i], graph.op_types[i].removeprefix(ONEDNN).removeprefix("Native"))
        for i in op.tolist()
    )
    return Pairs(op, forward, np.median(duration_us, axis=0)[op], temporary[op], kinds) if len(op) else None


def mean_pairs(measurements: Sequence[Pairs | None]) -> Pairs | None:
    """Combines measurements of the same pairs: mean durations and largest temporary bytes."""
    present = [pairs for pairs in measurements if pairs is not None]
    if not present:
        return None
    return replace(
        present[0],
        apart_us=np.mean([pairs.apart_us for pairs in present], axis=0),
        temp_bytes=np.max([pairs.temp_bytes for pairs in present], axis=0),
    )


def graph_under_placement(
    graph: OpGraph, placement: Placement, pairs: Pairs | None, beside_us: NDArray[np.float64] | None
) -> tuple[OpGraph, Placement, NDArray[np.float64] | None]:
    """Returns `graph` with the kernels that run under a placement, the placement, and the matching `beside_us`."""
    device = placement.on(graph).device
    if pairs is None:
        return graph, placement, beside_us
    split = np.flatnonzero(device[pairs.op] != device[pairs.forward])
    duration, temporary, types = graph.duration_us.copy(), graph.temp_bytes.copy(), list(graph.op_types)
    duration[pairs.op[split]], temporary[pairs.op[split]] = pairs.apart_us[split], pairs.temp_bytes[split]
    for i in split.tolist():
        types[pairs.op[i]] = pairs.kinds[i]
    placed_graph = graph.replace(duration_us=duration, temp_bytes=temporary, op_types=tuple(types), duration_by_kind={})
    longer = None if beside_us is None else beside_us + (duration - graph.duration_us)
    return placed_graph, Placement(device=device), longer
