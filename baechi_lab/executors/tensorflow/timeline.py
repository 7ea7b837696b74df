"""The measured Timeline of a traced step, from the arrays that the worker sent. TensorFlow is not needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...graph import CONTROL_BYTES, MemoryLog, OpGraph, Timeline, Transfers
from ...memory_saving.offload import STORED
from ...profilers.tensorflow.nodes import VIEWS
from .allocations import COPIES, OUTPUTS, PERSISTENT, TEMPORARY, replaced_variable_values
from .offloaded_state import returned_state_tensors, state_ops
from .sends import CONTROL, STATE_VALUE
from .trace import Trace

ASSIGNMENT = "AssignVariableOp"
"""The op that makes its input's memory the variable's. Other updates write in place, or record what they allocate."""
_LISTS = ("TensorListFromTensor", "TensorListScatter", "TensorListSplit")
"""Ops that make lists. The records of their items last as long as lists of loops hold them, which are counted, too."""
_BODIES = ("While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase")
_CONTROL_NAME = "^"
"""Name in profiles of the tensor that represents an op's control dependencies."""


def to_timeline(
    trace: Trace,
    graph: OpGraph,
    device_names: Sequence[str],
    memory_bytes: Sequence[int],
    persistent: Sequence[tuple[int, int, int]],
    has_copies: bool,
    inputs: Sequence[int] = (),
) -> Timeline:
    """Returns the measured Timeline.

    `persistent`: (device, op, bytes) of every variable. `inputs`: ops of the step's inputs on CPU devices, which TensorFlow
    feeds without a record. `has_copies`: received tensors are copies as between processes, and not the sender's memory.
    """
    moves = trace.transfers
    step_start_us = float(min(trace.start_us.min(initial=np.inf), moves[:, 5].min(initial=np.inf)))
    step_start_us = step_start_us if np.isfinite(step_start_us) else 0.0
    tensor, producers, sizes = _tensors(graph, moves)
    transfers = Transfers(
        tensor=tensor,
        source=moves[:, 3].astype(np.int32),
        target=moves[:, 4].astype(np.int32),
        start_us=moves[:, 5] - step_start_us,
        receive_us=moves[:, 5] - step_start_us,
        end_us=moves[:, 6] - step_start_us,
    )
    copies = _copies(trace, step_start_us, _write_back_starts(trace, graph), _list_sizes(graph)) if has_copies else []
    in_bodies = _bytes_of_bodies(trace, step_start_us, graph)
    recorded_rows = trace.memory[[not graph.op_types[op].startswith(_LISTS) for op in trace.memory[:, 4].astype(int)]]
    variable_rows = [(device, 0.0, PERSISTENT, size, op) for device, op, size in persistent]
    freed_rows = replaced_variable_values(recorded_rows, _assignments(trace, graph))
    op_rows = np.concatenate([recorded_rows, np.array(freed_rows, dtype=np.float64).reshape(-1, 5)])
    op_rows[:, 1] = np.maximum(op_rows[:, 1] - step_start_us, 0.0)
    unrecorded_rows = [*variable_rows, *_bytes_of_inputs(trace, step_start_us, graph, inputs), *copies, *in_bodies]
    rows = np.concatenate([np.array(unrecorded_rows, dtype=np.float64).reshape(-1, 5), op_rows])
    # The runtime's clock has microseconds. Within one microsecond, allocations count before releases.
    rows = rows[np.lexsort((-rows[:, 3], rows[:, 1]))]
    log = MemoryLog(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3].astype(np.int64), rows[:, 4])  # type: ignore[arg-type]
    peak = np.array([log.levels(d)[1].sum(axis=1).max(initial=0) for d in range(len(device_names))], dtype=np.int64)
    end = max(trace.end_us.max(initial=step_start_us), moves[:, 6].max(initial=step_start_us)) - step_start_us
    order = np.lexsort((trace.op, trace.device, trace.start_us))
    return Timeline(
        op=trace.op[order],
        device=trace.device[order],
        start_us=trace.start_us[order] - step_start_us,
        end_us=trace.end_us[order] - step_start_us,
        transfers=transfers,
        memory=log,
        peak_bytes=peak,
        makespan_us=float(end),
        origin="measured",
        op_names=graph.names,
        device_names=tuple(device_names),
        memory_bytes=np.array(memory_bytes, dtype=np.int64),
        tensor_producer=producers,
        tensor_bytes=sizes,
        info={
            "clock_offsets_us": trace.offsets_us.tolist(),
            "peak": "requested by tensors"
            + (", without received ones" if len(moves) and not has_copies else "")
            + (", inside loops as counted from their bodies" if in_bodies else ""),
            "allocator_peak_bytes": trace.in_use.tolist(),
        },
    )


def _tensors(
    graph: OpGraph, moves: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """Returns the graph's tensor of each transfer, producers and sizes. Tensors that the graph lacks are appended."""
    tensors: list[int] = []
    extra: dict[tuple[int, int], int] = {}
    producers, sizes = graph.tensor_producer.tolist(), graph.tensor_bytes.tolist()
    returned_tensors = returned_state_tensors(graph)
    for producer, slot, size in moves[:, :3].astype(np.int64).tolist():
        outputs = list(graph.outputs(producer))
        tensors_by_name = [
            t for t in outputs if graph.tensor_names[t] == (_CONTROL_NAME if slot == CONTROL else str(slot))
        ]
        tensors_by_size = [t for t in outputs if graph.tensor_bytes[t] == (CONTROL_BYTES if slot == CONTROL else size)]
        if slot == STATE_VALUE:
            tensors_by_name = [
                t for t in returned_tensors.get(producer, ()) if not size or graph.tensor_bytes[t] == size
            ]
        if tensors_by_name or tensors_by_size:
            tensors.append((tensors_by_name or tensors_by_size)[0])
            continue
        if (producer, slot) not in extra:
            extra[producer, slot] = len(producers)
            producers.append(producer)
            sizes.append(size)
        tensors.append(extra[producer, slot])
    return np.array(tensors, dtype=np.int32), np.array(producers, np.int32), np.array(sizes, np.int64)


def _list_sizes(graph: OpGraph) -> dict[tuple[int, str], int]:
    """Returns (op, output) -> bytes of the outputs of loops, conditionals and lists: a list is recorded as a handle."""
    ops = (op for op in range(graph.n) if graph.op_types[op].startswith((*_BODIES, *_LISTS)))
    return {(op, graph.tensor_names[t]): int(graph.tensor_bytes[t]) for op in ops for t in graph.outputs(op)}


def _copies(
    trace: Trace, step_start_us: float, write_back_us: dict[int, float], list_sizes: dict[tuple[int, str], int]
) -> list[tuple[float, ...]]:
    """Returns memory rows of received copies. A copy is live from its arrival until the last op that used it has ended.

    Offloaded state is live until `write_back_us`, when it is written back.
    """
    rows: list[tuple[float, ...]] = []
    for op, slot, recorded_bytes, _, device, _, arrival_us, last in trace.transfers.tolist():
        size = max(recorded_bytes, list_sizes.get((int(op), str(int(slot))), 0))
        end = max(last, arrival_us, write_back_us.get(int(op), arrival_us))
        rows += [
            (device, arrival_us - step_start_us, COPIES, size, op),
            (device, end - step_start_us, COPIES, -size, op),
        ]
    return rows


def _bytes_of_bodies(trace: Trace, step_start_us: float, graph: OpGraph) -> list[tuple[float, ...]]:
    """Returns memory rows of loops, conditionals and lists: TensorFlow records nothing of what runs inside of them.

    Outputs, lists among them, are live until their last reader on the device has ended; one iteration's bytes while the op runs.
    """
    intervals = _intervals(trace)
    rows: list[tuple[float, ...]] = []
    for op, (device, start, end) in intervals.items():
        if not graph.op_types[op].startswith((*_BODIES, *_LISTS)):
            continue
        rows += _output_rows(graph, op, intervals, step_start_us)
        if graph.op_types[op].startswith(_BODIES) and graph.temp_bytes[op]:
            size = int(graph.temp_bytes[op])
            rows += [
                (device, start - step_start_us, TEMPORARY, size, op),
                (device, end - step_start_us, TEMPORARY, -size, op),
            ]
    return rows


def _bytes_of_inputs(
    trace: Trace, step_start_us: float, graph: OpGraph, inputs: Sequence[int]
) -> list[tuple[float, ...]]:
    """Returns memory rows of the step's inputs. An input is live from the start of its op until its last reader has ended."""
    intervals = _intervals(trace)
    return [row for op in inputs if op in intervals for row in _output_rows(graph, op, intervals, step_start_us)]


def _intervals(trace: Trace) -> dict[int, tuple[int, float, float]]:
    """Returns op -> (device, start, end)."""
    columns = (trace.op.tolist(), trace.device.tolist(), trace.start_us.tolist(), trace.end_us.tolist())
    return {op: (device, start, end) for op, device, start, end in zip(*columns, strict=True)}


def _output_rows(
    graph: OpGraph, op: int, intervals: Mapping[int, tuple[int, float, float]], step_start_us: float
) -> list[tuple[float, ...]]:
    """Returns memory rows of the outputs of an op, from its start until their last readers on the device have ended."""
    device, start, end = intervals[op]
    rows: list[tuple[float, ...]] = []
    for tensor in graph.outputs(op):
        size = int(graph.tensor_bytes[tensor])
        last = max([end, *(intervals[reader][2] for reader in _readers(graph, tensor, device, intervals))])
        if size:
            rows += [
                (device, start - step_start_us, OUTPUTS, size, op),
                (device, last - step_start_us, OUTPUTS, -size, op),
            ]
    return rows


def _readers(
    graph: OpGraph, tensor: int, device: int, intervals: Mapping[int, tuple[int, float, float]]
) -> Iterator[int]:
    """Yields the ops on the device that read the tensor, or a view of it."""
    waiting = [tensor]
    while waiting:
        tensor = waiting.pop()
        for reader in graph.tensor_consumers(tensor).tolist():
            if reader in intervals and intervals[reader][0] == device:
                yield reader
                waiting += graph.outputs(reader) if graph.op_types[reader] in VIEWS else ()


def _write_back_starts(trace: Trace, graph: OpGraph) -> dict[int, float]:
    """Returns op that reads offloaded state -> start of its write-back. The device keeps the value until then."""
    start_us = dict(zip(trace.op.tolist(), trace.start_us.tolist(), strict=True))
    load_ops, store_ops = state_ops(graph), state_ops(graph, STORED)
    return {op: start_us[store_ops[name]] for name, op in load_ops.items() if store_ops.get(name) in start_us}


def _assignments(trace: Trace, graph: OpGraph) -> list[tuple[int, float, int]]:
    """Returns (device, end, bytes) of every assignment of a value that was computed on the variable's device."""
    executed_ops = {
        op: (d, end) for op, d, end in zip(trace.op.tolist(), trace.device.tolist(), trace.end_us.tolist(), strict=True)
    }
    rows = zip(
        graph.edge_source.tolist(),
        graph.consumers.tolist(),
        graph.tensor_bytes[graph.edge_tensor].tolist(),
        strict=True,
    )
    return [
        (executed_ops[reader][0], executed_ops[reader][1], size)
        for source, reader, size in rows
        if graph.op_types[reader] == ASSIGNMENT
        and size > CONTROL_BYTES
        and source in executed_ops
        and reader in executed_ops
        and executed_ops[source][0] == executed_ops[reader][0]
    ]
