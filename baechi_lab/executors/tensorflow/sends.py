"""The tensors that a traced step sent between devices.

The partition graphs say what was sent: every cut tensor has a Send node on one device and a Recv node on the other.
Between tasks the runtime records RecvTensor rows with bytes and times. Between devices of one process it records
none: a send is a hand-over in memory, drawn from the producer's end to the moment at which the first consumer was
scheduled, whichever input it waited for last (an upper bound of the transfer's end).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .kernels import Kernel
from .lent_state import GOT, PUT
from .session import PREFIX

CONTROL, LENT = -1, -2
"""Output slots of a control dependency, and of a variable's value that goes back to a host behind the last op that needed it."""
_SENDS, _RECEIVES = ("_Send", "_HostSend"), ("_Recv", "_HostRecv")
SUMS = f"{PREFIX}/sum/"
"""Scope of the ops that join what several micro-batches give."""
_ROW = re.compile(r"(?P<edge>edge_\d+_\S+) from (?P<source>\S+) to (?P<target>\S+)")

Edge = tuple[str, int]
"""Name of the edge in the rendezvous, and the target device."""


@dataclass(frozen=True)
class Send:
    """One tensor sent to one device; `consumers` are the nodes that read it there."""

    producer: int
    slot: int
    source: int
    target: int
    consumers: tuple[str, ...]


def read_sends(metadata: Any, op_at: Mapping[str, int], device_at: Mapping[str, int]) -> dict[Edge, Send]:
    """What was sent from op to op; values fed by the caller or returned to it are left out."""
    sources: dict[Edge, tuple[int, int, int]] = {}
    receivers: dict[Edge, str] = {}
    readers: dict[str, list[str]] = {}
    for part in metadata.partition_graphs:
        nodes = {node.name: node for node in part.node}
        for node in part.node:
            for name in node.input:
                readers.setdefault(name.lstrip("^").split(":")[0], []).append(node.name)
            if node.op not in _SENDS and node.op not in _RECEIVES:
                continue
            here, there = (device_at.get(node.attr[k].s.decode()) for k in ("send_device", "recv_device"))
            if here is None or there is None or here == there:
                continue
            edge = (node.attr["tensor_name"].s.decode(), there)
            if node.op in _SENDS:
                sources[edge] = (*_producer(nodes, node.input[0], op_at), here)
            else:
                receivers[edge] = node.name
    found = {}
    for edge, (op, slot, here) in sources.items():
        consumers = tuple(readers.get(receivers.get(edge, ""), ()))
        if op >= 0 and any(name.removesuffix(PUT) in op_at for name in consumers):
            found[edge] = Send(op, slot, here, edge[1], consumers)
    return found


def _producer(nodes: Mapping[str, Any], tensor: str, op_at: Mapping[str, int]) -> tuple[int, int]:
    """Op and output slot behind a Send's input; a control edge is sent as a constant that waits for the op."""
    name, _, slot = tensor.partition(":")
    while name.startswith(SUMS) and name not in op_at and name in nodes and nodes[name].input:
        name, _, slot = nodes[name].input[0].partition(":")  # a mean over micro-batches, sent in place of their sum
    if name in op_at:
        return op_at[name], int(slot or 0)
    for waited in nodes[name].input if name in nodes else ():
        if waited.startswith("^") and waited[1:] in op_at:
            return op_at[waited[1:]], LENT if name.endswith(GOT) else CONTROL
    return -1, 0


@dataclass(frozen=True)
class Received:
    """A tensor that arrived: its bytes, and when by the receiver's clock."""

    edge: Edge
    size: int
    start_us: float
    end_us: float


def received(metadata: Any, sends: Mapping[Edge, Send], device_at: Mapping[str, int]) -> Iterator[Received]:
    """Every RecvTensor row of `sends`."""
    for rows in metadata.step_stats.dev_stats:
        for stats in rows.node_stats:
            label = _ROW.search(stats.timeline_label) if stats.node_name == "RecvTensor" else None
            edge = (label["edge"], device_at.get(label["target"], -1)) if label else ("", -1)
            if edge in sends:
                size = stats.output[0].tensor_description.allocation_description.requested_bytes if stats.output else 0
                start = float(stats.all_start_micros)
                yield Received(edge, size, start, start + stats.all_end_rel_micros)


def last_held(
    metadata: Any, sends: Mapping[Edge, Send], device_at: Mapping[str, int], kernels: Sequence[Kernel]
) -> dict[Edge, float]:
    """Edge -> when the last op ended that read the received copy, or an output that lies in the copy's memory.

    Where a copy lies is not recorded. It is known from an op that reads it, gives as many bytes without allocating them, and
    whose other inputs lie elsewhere: a view, or a result written over the copy. Of several copies of that size it is the one
    that no other op needs any more. By the receiver's clock.
    """
    inputs, readers = _edges(metadata, device_at)
    ran = {(kernel.node, kernel.device): kernel for kernel in kernels}
    rows = list(received(metadata, sends, device_at))
    alike = _alike(rows, sends)
    found = {}
    for row in rows:
        device = row.edge[1]
        waiting: list[tuple[str, set[int]]] = [(name, set()) for name in sends[row.edge].consumers]
        seen, last = set[str](), row.end_us
        while waiting:
            name, lies = waiting.pop()
            kernel = ran.get((name, device))
            if kernel is None or name in seen:
                continue
            seen.add(name)
            last = max(last, kernel.end_us)
            if not lies:
                beside = (ran[n, device] for n in inputs.get((name, device), ()) if (n, device) in ran)
                lies = _taken_over(kernel, row.size) - {p for other in beside for p in _pointers(other)}
                free_first = sorted(
                    alike[name, device, row.size], key=lambda e: (_needed_after(kernel, sends[e], ran), e)
                )
                lies = lies if row.edge in free_first[: len(lies)] else set()
            for slot in (output.slot for output in kernel.stats.output if _pointer(output) in lies):
                waiting += [(reader, lies) for reader in readers.get((name, slot, device), ())]
        found[row.edge] = last
    return found


def _alike(rows: Sequence[Received], sends: Mapping[Edge, Send]) -> dict[tuple[str, int, int], list[Edge]]:
    """(node, device, bytes) -> the copies of that size which the node reads."""
    found: dict[tuple[str, int, int], list[Edge]] = {}
    for row in rows:
        for name in sends[row.edge].consumers:
            found.setdefault((name, row.edge[1], row.size), []).append(row.edge)
    return found


def _needed_after(kernel: Kernel, send: Send, ran: Mapping[tuple[str, int], Kernel]) -> bool:
    """Whether another reader of what was sent ended after a kernel had begun, which then cannot have written over it."""
    others = (ran.get((name, kernel.device)) for name in send.consumers if name != kernel.node)
    return any(other is not None and other.end_us > kernel.start_us for other in others)


def _edges(metadata: Any, device_at: Mapping[str, int]) -> tuple[dict[Any, list[str]], dict[Any, list[str]]]:
    """(node, device) -> the nodes whose data it reads; (node, output, device) -> those that read it."""
    inputs: dict[tuple[str, int], list[str]] = {}
    readers: dict[tuple[str, int, int], list[str]] = {}
    for part in metadata.partition_graphs:
        for node in part.node:
            device = device_at.get(node.device, -1)
            for tensor in {tensor for tensor in node.input if not tensor.startswith("^")}:
                name, _, slot = tensor.partition(":")
                readers.setdefault((name, int(slot or 0), device), []).append(node.name)
                inputs.setdefault((node.name, device), []).append(name)
    return inputs, readers


def _pointers(kernel: Kernel) -> dict[int, int]:
    """Where a kernel's outputs lie -> their bytes."""
    return {
        pointer: output.tensor_description.allocation_description.requested_bytes
        for output in kernel.stats.output
        if (pointer := _pointer(output))
    }


def _pointer(output: Any) -> int:
    return int(output.tensor_description.allocation_description.ptr)


def _taken_over(kernel: Kernel, size: int) -> set[int]:
    """Where outputs of `size` bytes lie that the kernel did not allocate."""
    allocated = {record.alloc_bytes for used in kernel.stats.memory for record in used.allocation_records}
    return set() if size in allocated else {p for p, given in _pointers(kernel).items() if given == size}


def handed_over(sends: Mapping[Edge, Send], kernels: Sequence[Kernel]) -> Iterator[tuple[Send, int, float, float]]:
    """(send, bytes, start, end) of tensors sent within a process."""
    scheduled = {(kernel.node, kernel.device): kernel.scheduled_us for kernel in kernels}
    ended = {kernel.op: kernel.end_us for kernel in kernels}
    size = {
        (kernel.op, output.slot): output.tensor_description.allocation_description.requested_bytes
        for kernel in kernels
        for output in kernel.stats.output
    }
    for send in sends.values():
        if send.producer in ended:
            start = ended[send.producer]
            used = [scheduled[n, send.target] for n in send.consumers if (n, send.target) in scheduled]
            yield send, size.get((send.producer, send.slot), 0), start, max(start, min(used, default=start))
