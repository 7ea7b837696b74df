"""The tensors that a traced step sent between devices.

The partition graphs show what was sent: every tensor that crosses has a Send node on one device and a Recv node on the
other. Between tasks, the runtime records RecvTensor rows with bytes and times. Between devices of one process it records none,
because the tensor stays in memory. Such a transfer lasts from the producer's end until the first consumer was scheduled, which
is an upper bound of its end because the consumer may have waited for another input.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .kernels import Kernel
from .offloaded_state import DEVICE_ASSIGN, DEVICE_READ
from .session import PREFIX

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.framework.step_stats_pb2 import NodeOutput
    from tensorflow.core.protobuf.config_pb2 import RunMetadata

CONTROL, STATE_VALUE = -1, -2
"""Output slots of a control dependency, and of an offloaded variable's value that goes back to its host."""
_SENDS, _RECEIVES = ("_Send", "_HostSend"), ("_Recv", "_HostRecv")
SUMS = f"{PREFIX}/sum/"
"""Scope of the ops that add up tensors of several micro-batches."""
_ROW = re.compile(r"(?P<edge>edge_\d+_\S+) from (?P<source>\S+) to (?P<target>\S+)")

Edge = tuple[str, int]
"""Name of the edge in the rendezvous, and the target device."""


@dataclass(frozen=True)
class Send:
    """One tensor sent to one device; `consumers` are the nodes that read it there, from the node `receiver`."""

    producer: int
    slot: int
    source: int
    target: int
    consumers: tuple[str, ...]
    receiver: str


def read_sends(metadata: RunMetadata, op_at: Mapping[str, int], device_at: Mapping[str, int]) -> dict[Edge, Send]:
    """Returns the sends from op to op. Fed and fetched values are left out."""
    sources: dict[Edge, tuple[int, int, int]] = {}
    receivers: dict[Edge, str] = {}
    readers: dict[str, list[str]] = {}
    for partition in metadata.partition_graphs:
        nodes = {node.name: node for node in partition.node}
        for node in partition.node:
            for name in node.input:
                readers.setdefault(name.lstrip("^").split(":")[0], []).append(node.name)
            if node.op not in _SENDS and node.op not in _RECEIVES:
                continue
            source, target = (device_at.get(node.attr[k].s.decode()) for k in ("send_device", "recv_device"))
            if source is None or target is None or source == target:
                continue
            edge = (node.attr["tensor_name"].s.decode(), target)
            if node.op in _SENDS:
                sources[edge] = (*_producer(nodes, node.input[0], op_at), source)
            else:
                receivers[edge] = node.name
    sends = {}
    for edge, (op, slot, source) in sources.items():
        receiver = receivers.get(edge, "")
        consumers = tuple(readers.get(receiver, ()))
        if op >= 0 and any(name.removesuffix(DEVICE_ASSIGN) in op_at for name in consumers):
            sends[edge] = Send(op, slot, source, edge[1], consumers, receiver)
    return sends


def _producer(nodes: Mapping[str, NodeDef], tensor: str, op_at: Mapping[str, int]) -> tuple[int, int]:
    """Returns op and output slot of a Send's input. A control edge is sent as a constant that waits for the op."""
    name, _, slot = tensor.partition(":")
    while name.startswith(SUMS) and name not in op_at and name in nodes and nodes[name].input:
        name, _, slot = nodes[name].input[0].partition(":")  # a mean over micro-batches, sent in place of their sum
    if name in op_at:
        return op_at[name], int(slot or 0)
    for node_input in nodes[name].input if name in nodes else ():
        if node_input.startswith("^") and node_input[1:] in op_at:
            return op_at[node_input[1:]], STATE_VALUE if name.endswith(DEVICE_READ) else CONTROL
    return -1, 0


@dataclass(frozen=True)
class ReceivedTensor:
    """A received tensor: its bytes, and start and end by the receiver's clock."""

    edge: Edge
    size: int
    start_us: float
    end_us: float


def received_transfers(
    metadata: RunMetadata, sends: Mapping[Edge, Send], device_at: Mapping[str, int]
) -> Iterator[ReceivedTensor]:
    """Yields every RecvTensor row of `sends`."""
    for rows in metadata.step_stats.dev_stats:
        for stats in rows.node_stats:
            label = _ROW.search(stats.timeline_label) if stats.node_name == "RecvTensor" else None
            edge = (label["edge"], device_at.get(label["target"], -1)) if label else ("", -1)
            if edge in sends:
                size = stats.output[0].tensor_description.allocation_description.requested_bytes if stats.output else 0
                start = float(stats.all_start_micros)
                yield ReceivedTensor(edge, size, start, start + stats.all_end_rel_micros)


def copies_held_until(
    metadata: RunMetadata, sends: Mapping[Edge, Send], device_at: Mapping[str, int], kernels: Sequence[Kernel]
) -> dict[Edge, float]:
    """Returns edge -> end of the last op that read the received copy, or an output in the copy's memory.

    The address of a copy is not recorded. It follows from an op that reads the copy and has an output of the same size that
    it did not allocate and that is not the memory of its other inputs: a view, or a result written over the copy. If several
    copies have that size, it is the one that no later op needs. A loop returns what it read in the same place: all lists
    have handles of one size. Times are by the receiver's clock.
    """
    # (node, device) -> the nodes whose data it reads, (node, output, device) -> its readers, loop -> all that it reads
    inputs: dict[tuple[str, int], list[str]] = {}
    loops: dict[tuple[str, int], list[str]] = {}
    readers: dict[tuple[str, int, int], list[str]] = {}
    for partition in metadata.partition_graphs:
        for node in partition.node:
            device = device_at.get(node.device, -1)
            if node.op.endswith("While"):
                loops[node.name, device] = list(node.input)
            for tensor in {tensor for tensor in node.input if not tensor.startswith("^")}:
                name, _, slot = tensor.partition(":")
                readers.setdefault((name, int(slot or 0), device), []).append(node.name)
                inputs.setdefault((node.name, device), []).append(name)
    kernel_at = {(kernel.node, kernel.device): kernel for kernel in kernels}
    rows = list(received_transfers(metadata, sends, device_at))
    # The copies of a size which a node reads, by (node, device, bytes).
    alike: dict[tuple[str, int, int], list[Edge]] = {}
    for row in rows:
        for name in sends[row.edge].consumers:
            alike.setdefault((name, row.edge[1], row.size), []).append(row.edge)
    held_until = {}
    for row in rows:
        device = row.edge[1]
        waiting: list[tuple[str, set[int]]] = [(name, set()) for name in sends[row.edge].consumers]
        visited, last_us = set[str](), row.end_us
        while waiting:
            name, pointers = waiting.pop()
            kernel = kernel_at.get((name, device))
            if kernel is None or name in visited:
                continue
            visited.add(name)
            last_us = max(last_us, kernel.end_us)
            if not pointers:
                other_producers = (
                    kernel_at[n, device] for n in inputs.get((name, device), ()) if (n, device) in kernel_at
                )
                allocated_sizes = {
                    record.alloc_bytes for used in kernel.stats.memory for record in used.allocation_records
                }
                if row.size not in allocated_sizes:  # outputs of that size in memory of no other input
                    pointers = {p for p, nbytes in _pointers(kernel).items() if nbytes == row.size}
                    pointers -= {p for producer in other_producers for p in _pointers(producer)}
                for output, tensor in zip(kernel.stats.output, loops.get((name, device), ()), strict=False):
                    if tensor != sends[row.edge].receiver:
                        pointers.discard(_pointer(output))
                free_first = sorted(
                    alike[name, device, row.size], key=lambda e: (_needed_after(kernel, sends[e], kernel_at), e)
                )
                pointers = pointers if row.edge in free_first[: len(pointers)] else set()
            for slot in (output.slot for output in kernel.stats.output if _pointer(output) in pointers):
                waiting += [(reader, pointers) for reader in readers.get((name, slot, device), ())]
        held_until[row.edge] = last_us
    return held_until


def _needed_after(kernel: Kernel, send: Send, kernel_at: Mapping[tuple[str, int], Kernel]) -> bool:
    """Whether another reader of the sent tensor ended after the kernel started. The kernel then did not overwrite it."""
    readers = (kernel_at.get((name, kernel.device)) for name in send.consumers if name != kernel.node)
    return any(reader is not None and reader.end_us > kernel.start_us for reader in readers)


def _pointers(kernel: Kernel) -> dict[int, int]:
    """Returns address -> bytes of a kernel's outputs."""
    return {
        pointer: output.tensor_description.allocation_description.requested_bytes
        for output in kernel.stats.output
        if (pointer := _pointer(output))
    }


def _pointer(output: NodeOutput) -> int:
    return int(output.tensor_description.allocation_description.ptr)


def hand_overs(sends: Mapping[Edge, Send], kernels: Sequence[Kernel]) -> Iterator[tuple[Send, int, float, float]]:
    """Yields (send, bytes, start, end) of tensors that stay within a process."""
    scheduled_us = {(kernel.node, kernel.device): kernel.scheduled_us for kernel in kernels}
    end_us = {kernel.op: kernel.end_us for kernel in kernels}
    size = {
        (kernel.op, output.slot): output.tensor_description.allocation_description.requested_bytes
        for kernel in kernels
        for output in kernel.stats.output
    }
    for send in sends.values():
        if send.producer in end_us:
            start = end_us[send.producer]
            used = [scheduled_us[n, send.target] for n in send.consumers if (n, send.target) in scheduled_us]
            yield send, size.get((send.producer, send.slot), 0), start, max(start, min(used, default=start))
