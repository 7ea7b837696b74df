"""The measured Timeline of a traced step. Needs no TensorFlow: it reads the arrays that the worker sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph.opgraph import CONTROL_BYTES, OpGraph
from ...graph.timeline import MemoryLog, Timeline, Transfers
from ...memory_saving.offload import STORED
from .allocations import COPIES, PERSISTENT, given_up
from .lent_state import state_ops, values_given_back
from .sends import CONTROL, LENT
from .trace import Trace

ASSIGNMENT = "AssignVariableOp"
"""The op that keeps its input's memory as the variable's; others write into what the variable has, or say what they took."""
_CONTROL_NAME = "^"
"""How profiles name the tensor that stands for an op's control dependencies."""


def to_timeline(
    trace: Trace,
    graph: OpGraph,
    device_names: Sequence[str],
    memory_bytes: Sequence[int],
    persistent: Sequence[tuple[int, int, int]],
    copied: bool,
) -> Timeline:
    """The measured Timeline. `persistent` has (device, op, bytes) of every variable; `copied` says that a
    received tensor is a copy (between processes) and not the sender's own memory."""
    moves = trace.transfers
    zero = float(min(trace.start_us.min(initial=np.inf), moves[:, 5].min(initial=np.inf)))
    zero = zero if np.isfinite(zero) else 0.0
    tensor, producers, sizes = _tensors(graph, moves)
    transfers = Transfers(
        tensor, moves[:, 3].astype(np.int32), moves[:, 4].astype(np.int32),
        moves[:, 5] - zero, moves[:, 5] - zero, moves[:, 6] - zero,
    )  # fmt: skip
    copies = _copies(trace, zero, _lent_until(trace, graph)) if copied else []
    log = _memory(trace, zero, persistent, copies, _assigned(trace, graph))
    peak = np.array([log.levels(d)[1].sum(axis=1).max(initial=0) for d in range(len(device_names))], dtype=np.int64)
    end = max(trace.end_us.max(initial=zero), moves[:, 6].max(initial=zero)) - zero
    order = np.lexsort((trace.op, trace.device, trace.start_us))
    return Timeline(
        op=trace.op[order], device=trace.device[order], start_us=trace.start_us[order] - zero,
        end_us=trace.end_us[order] - zero, transfers=transfers, memory=log,
        peak_bytes=peak, makespan_us=float(end), origin="measured", op_names=graph.names,
        device_names=tuple(device_names), memory_bytes=np.array(memory_bytes, dtype=np.int64),
        tensor_producer=producers, tensor_bytes=sizes, info={
            "clock_offsets_us": trace.offsets_us.tolist(), "peak": "requested by tensors",
            "allocator_peak_bytes": trace.in_use.tolist(),
        },
    )  # fmt: skip


def _tensors(graph: OpGraph, moves: NDArray[np.float64]) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
    """The graph's tensor behind each transfer; those that the graph does not have are added at the end."""
    tensors: list[int] = []
    extra: dict[tuple[int, int], int] = {}
    producers, sizes = graph.tensor_producer.tolist(), graph.tensor_bytes.tolist()
    given_back = values_given_back(graph)
    for producer, slot, size in moves[:, :3].astype(np.int64).tolist():
        outputs = list(graph.outputs(producer))
        named = [t for t in outputs if graph.tensor_names[t] == (_CONTROL_NAME if slot == CONTROL else str(slot))]
        sized = [t for t in outputs if graph.tensor_bytes[t] == (CONTROL_BYTES if slot == CONTROL else size)]
        if slot == LENT:
            named = [t for t in given_back.get(producer, ()) if not size or graph.tensor_bytes[t] == size]
        if named or sized:
            tensors.append((named or sized)[0])
            continue
        if (producer, slot) not in extra:
            extra[producer, slot] = len(producers)
            producers.append(producer)
            sizes.append(size)
        tensors.append(extra[producer, slot])
    return np.array(tensors, dtype=np.int32), np.array(producers, np.int32), np.array(sizes, np.int64)


def _copies(trace: Trace, zero: float, lent_until: dict[int, float]) -> list[tuple[float, ...]]:
    """A received copy lives from its arrival until the last op that held it on that device has ended."""
    rows: list[tuple[float, ...]] = []
    for op, _, size, _, device, _, arrived, last in trace.transfers.tolist():
        end = max(last, arrived, lent_until.get(int(op), arrived))
        rows += [(device, arrived - zero, COPIES, size, op), (device, end - zero, COPIES, -size, op)]
    return rows


def _lent_until(trace: Trace, graph: OpGraph) -> dict[int, float]:
    """Op that lends a variable's value -> when it was stored again: until then the device that has it keeps it."""
    began = dict(zip(trace.op.tolist(), trace.start_us.tolist(), strict=True))
    lent, stored = state_ops(graph), state_ops(graph, STORED)
    return {op: began[stored[name]] for name, op in lent.items() if stored.get(name) in began}


def _assigned(trace: Trace, graph: OpGraph) -> list[tuple[int, float, int]]:
    """(device, end, bytes) of every assignment to a variable of a value that was made on its device."""
    ran = {
        op: (d, end) for op, d, end in zip(trace.op.tolist(), trace.device.tolist(), trace.end_us.tolist(), strict=True)
    }
    rows = zip(
        graph.edge_source.tolist(),
        graph.consumers.tolist(),
        graph.tensor_bytes[graph.edge_tensor].tolist(),
        strict=True,
    )
    return [
        (ran[reader][0], ran[reader][1], size)
        for source, reader, size in rows
        if graph.op_types[reader] == ASSIGNMENT and size > CONTROL_BYTES
        and source in ran and reader in ran and ran[source][0] == ran[reader][0]
    ]  # fmt: skip


def _memory(
    trace: Trace, zero: float, persistent: Sequence[tuple[int, int, int]], copies: list[tuple[float, ...]],
    assigned: Sequence[tuple[int, float, int]],
) -> MemoryLog:  # fmt: skip
    held = [(device, 0.0, PERSISTENT, size, op) for device, op, size in persistent]
    ran = np.concatenate([trace.memory, np.array(given_up(trace.memory, assigned), dtype=np.float64).reshape(-1, 5)])
    ran[:, 1] = np.maximum(ran[:, 1] - zero, 0.0)
    rows = np.concatenate([np.array([*held, *copies], dtype=np.float64).reshape(-1, 5), ran])
    # The runtime's clock ticks in microseconds: within one, memory counts as taken before other memory is freed.
    rows = rows[np.lexsort((-rows[:, 3], rows[:, 1]))]
    return MemoryLog(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3].astype(np.int64), rows[:, 4])  # type: ignore[arg-type]
