"""Details of one op of an outcome: type, memory, times, cause of its start, neighbours, and its cost on every device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..graph.costs import allowed_devices, durations
from .causes import cause
from .compute import Outcome

MOST_TENSORS, MOST_OPS = 12, 20
"""Most tensors listed on each side of an op, and most ops listed of a selection."""


@dataclass(frozen=True)
class TensorEnd:
    """A tensor that an op reads or produces: the op at its other end (-1: none), its size, and the device of that op."""

    op: int
    name: str
    size_bytes: int
    device: str


@dataclass(frozen=True)
class DeviceCost:
    """The duration of an op on a device; NaN if it may not run there. `chosen`: the op runs there."""

    device: str
    duration_us: float
    chosen: bool


@dataclass(frozen=True)
class OpDetails:
    """One op of the executed graph; `copies` of it run in a step. `why` is the reason for its start, empty for none.

    `shapes` are types and shapes of what it makes, empty where they are not known.

    Tensors beyond `MOST_TENSORS` are counted in `more_inputs` and `more_outputs`. `output_sizes` are the tensors it makes:
    name and bytes.
    """

    op: int
    name: str
    op_type: str
    shapes: str
    device: str
    start_us: float
    end_us: float
    step_us: float
    copies: int
    why: str
    critical: bool
    persistent_bytes: int
    temp_bytes: int
    output_sizes: tuple[tuple[str, int], ...]
    inputs: tuple[TensorEnd, ...]
    more_inputs: int
    outputs: tuple[TensorEnd, ...]
    more_outputs: int
    costs: tuple[DeviceCost, ...]


@dataclass(frozen=True)
class SelectionDetails:
    """Several selected ops of the graph: how many, their time and memory, the longest of them (op, name, microseconds)."""

    count: int
    duration_us: float
    persistent_bytes: int
    longest: tuple[tuple[int, str, float], ...]


def op_details(outcome: Outcome, op: int) -> OpDetails:
    """Returns the details of `op` of the executed graph. O(n devices + rows log rows).

    Times are those of the simulated timeline, costs those of `durations`; start and end are NaN if it does not run.
    """
    graph, timeline, cluster = outcome.executed_graph, outcome.timeline, outcome.setting.cluster
    rows = np.flatnonzero(timeline.op == op)
    row = int(rows[0]) if len(rows) else -1
    device_of = np.full(graph.n, -1, dtype=np.int64)
    device_of[timeline.op] = timeline.device
    names = timeline.device_names

    def end(neighbour: int, tensor: int) -> TensorEnd:
        place = names[int(device_of[neighbour])] if device_of[neighbour] >= 0 else ""
        return TensorEnd(neighbour, graph.names[neighbour], int(graph.tensor_bytes[tensor]), place)

    pointer, tensors = graph.inputs
    read = tensors[pointer[op] : pointer[op + 1]].tolist()
    output_tensors = graph.outputs(op)
    readers = [(reader, tensor) for tensor in output_tensors for reader in graph.tensor_consumers(tensor).tolist()]
    start_cause = cause(graph, timeline, op)
    original = int(outcome.originals([op])[0])
    cost_row, allowed_row = durations(graph, cluster)[op], allowed_devices(graph, cluster)[op]
    return OpDetails(
        op=op,
        name=graph.names[op],
        op_type=graph.op_types[op],
        shapes=graph.output_shapes[op] if graph.output_shapes else "",
        device=names[int(timeline.device[row])] if row >= 0 else "",
        start_us=float(timeline.start_us[row]) if row >= 0 else float("nan"),
        end_us=float(timeline.end_us[row]) if row >= 0 else float("nan"),
        step_us=timeline.makespan_us,
        copies=len(outcome.copies([original])),
        why="" if start_cause is None else start_cause.sentence,
        critical=bool(np.isin(op, outcome.chain.ops)),
        persistent_bytes=int(graph.persistent_bytes[op]),
        temp_bytes=int(graph.temp_bytes[op]),
        output_sizes=tuple((graph.tensor_names[t], int(graph.tensor_bytes[t])) for t in output_tensors),
        inputs=tuple(end(int(graph.tensor_producer[t]), t) for t in read[:MOST_TENSORS]),
        more_inputs=max(len(read) - MOST_TENSORS, 0),
        outputs=tuple(end(reader, t) for reader, t in readers[:MOST_TENSORS]),
        more_outputs=max(len(readers) - MOST_TENSORS, 0),
        costs=tuple(
            DeviceCost(name, float(cost_row[d]) if allowed_row[d] else float("nan"), bool(d == device_of[op]))
            for d, name in enumerate(cluster.names)
        ),
    )


def selection_details(outcome: Outcome, ops: Iterable[int]) -> SelectionDetails:
    """Returns sums over ops of the graph, and the longest of them."""
    graph, selected, duration_us = outcome.graph, np.unique(np.fromiter(ops, dtype=np.int64)), outcome.op_us
    longest = selected[np.argsort(-duration_us[selected], kind="stable")][:MOST_OPS].tolist()
    return SelectionDetails(
        len(selected),
        float(duration_us[selected].sum()),
        int(graph.persistent_bytes[selected].sum()),
        tuple((op, graph.names[op], float(duration_us[op])) for op in longest),
    )
