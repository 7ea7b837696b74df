"""Memory of a finished timeline when outputs may lie in the memory of inputs (`OpGraph.reuse`).

Runtimes do not give every output bytes of its own: a reshape or the read of a variable is a view, and an elementwise op
writes over an input that nobody else needs. The rules of docs/simulated-time.md stay, tensor by tensor, but bytes are
counted once per *buffer*, and a buffer is given back with the last of the tensors in it:

- A `VIEW` lies in the buffer of its smallest input, on that device, that is at least as large as the output; without one in
  the persistent bytes.
- An op that `OVERWRITES` takes over the buffer of an input of the same size where it is the only one that still needs it
  when it starts; not that of a received copy, and for an output that is sent only that of an input that was sent.
- A tensor without bytes, as a wait between two ops, lies nowhere: it must not keep an input.
- An op that `GROWS` takes its persistent bytes when it starts, not at the start of the step.

Placers count by the plain rules. Their peak is lower only where a view is smaller than what it keeps. What is held does
not change when ops run, so this is a view of a finished timeline, O((ops + edges + transfers) log).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, MemoryLog, OpGraph, Timeline, Violation
from ..graph.opgraph import GROWS, OVERWRITES, VIEW
from ..graph.timeline import MEMORY_CATEGORIES
from ..graph.units import format_bytes, format_us

_PERSISTENT, _OUTPUTS, _TEMPORARY, _COPIES = range(len(MEMORY_CATEGORIES))


def shared_memory(graph: OpGraph, cluster: Cluster, timeline: Timeline) -> Timeline:
    """The same ops and transfers with memory, peaks and memory violations by the buffers that `graph.reuse` tells of.

    >>> from baechi_lab import Placement, simulate
    >>> graph = OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (1, 2, 30)]).replace(reuse=[0, 1, 0])
    >>> simulate(graph, Cluster.uniform(1), Placement(device=[0, 0, 0])).peak_bytes.tolist()  # not 60
    [30]
    """
    log = _Walk(graph, timeline).log()
    peaks = np.zeros(cluster.n, dtype=np.int64)
    violations = [v for v in timeline.violations if v.kind != "memory"]
    for d in range(cluster.n):
        mine = np.flatnonzero(log.device == d)
        level = np.cumsum(log.delta[mine])
        peaks[d] = level.max(initial=0)
        over = np.flatnonzero((level > cluster.memory_bytes[d]) & (log.delta[mine] > 0))
        if len(over):
            violations.append(_violation(graph, cluster, d, log, int(mine[over[0]]), int(peaks[d])))
    return dataclasses.replace(timeline, memory=log, peak_bytes=peaks, violations=tuple(violations))


@dataclass
class _Buffer:
    """Bytes on a device, and how many uses of the tensors in it are still to end."""

    device: int
    size: int
    category: int
    uses: int = 0


class _Walk:
    """Goes through a timeline's events and counts the uses of buffers."""

    def __init__(self, graph: OpGraph, timeline: Timeline):
        self.graph, self.timeline = graph, timeline
        self.device = np.zeros(graph.n, dtype=np.int64)
        self.device[timeline.op] = timeline.device
        self.place: list[int] = self.device.tolist()
        self.size: list[int] = graph.tensor_bytes.tolist()
        self.producer: list[int] = graph.tensor_producer.tolist()
        self.sent: dict[int, int] = {}
        for t in timeline.transfers.tensor.tolist():
            self.sent[t] = self.sent.get(t, 0) + 1
        self.buffers: dict[tuple[int, int], _Buffer | None] = {}  # (tensor, device); None: persistent bytes
        self.rows: list[tuple[int, float, int, int, int]] = []

    def log(self) -> MemoryLog:
        """The changes, in order of events."""
        self._persistent()
        for time, what, index in self._events():
            (self._start, self._end, self._receive, self._arrived)[what](time, index)
        columns = zip(*self.rows, strict=True) if self.rows else [()] * 5
        return MemoryLog(*(np.array(c) for c in columns))

    def _persistent(self) -> None:
        for op in np.flatnonzero((self.graph.persistent_bytes > 0) & (self.graph.reuse != GROWS)).tolist():
            self.rows.append((self.place[op], 0.0, _PERSISTENT, int(self.graph.persistent_bytes[op]), op))

    def _events(self) -> list[tuple[float, int, int]]:
        """(time, what, index) in order. At one instant: what ends or arrives, then turn by turn what starts.

        What takes no time ends with its turn, and its messages begin with that end.
        """
        line, sent = self.timeline, self.timeline.transfers
        turn, producer = self._turns(), self.graph.tensor_producer[sent.tensor]
        start, end = np.zeros(self.graph.n), np.zeros(self.graph.n)
        start[line.op], end[line.op] = line.start_us, line.end_us
        late = np.where(end > start, -1.0, turn + 0.5)  # when an op gives back, within the instant at which it ends
        ops, moves = len(line.op), len(sent)
        time = np.concatenate([line.start_us, line.end_us, sent.receive_us, sent.end_us])
        what = np.repeat([0, 1, 2, 3], [ops, ops, moves, moves])
        index = np.concatenate([line.op, line.op, np.arange(moves), np.arange(moves)])
        sent_at, made_at = late[producer], end[producer]
        within = np.concatenate([
            turn[line.op], late[line.op], np.where(sent.receive_us > made_at, -1.0, sent_at),
            np.where(sent.end_us > made_at, -1.0, sent_at),
        ])  # fmt: skip
        gives = np.concatenate([np.full(ops, 3), np.zeros(ops), np.full(moves, 2), np.ones(moves)])
        order = np.lexsort((what, gives, within, time))
        return list(zip(time[order].tolist(), what[order].tolist(), index[order].tolist(), strict=True))

    def _turns(self) -> NDArray[Any]:
        """Per op: among those that begin at one instant, lower ones did so first."""
        line, graph = self.timeline, self.graph
        if "turn" in line.info:
            return np.asarray(line.info["turn"])
        lasting = np.zeros(graph.n, dtype=bool)
        lasting[line.op] = line.end_us > line.start_us
        return np.where(lasting, graph.n, 0) + graph.position

    # -- events --------------------------------------------------------------------------------------

    def _start(self, time: float, op: int) -> None:
        here, reuse = self.place[op], int(self.graph.reuse[op])  # type: ignore[index]
        if temporary := int(self.graph.temp_bytes[op]):
            self.rows.append((here, time, _TEMPORARY, temporary, op))
        if reuse == GROWS and (growth := int(self.graph.persistent_bytes[op])):
            self.rows.append((here, time, _PERSISTENT, growth, op))
        first, end = (int(x) for x in self.graph.output_ptr[op : op + 2])
        for t in range(first, end):
            readers = self.graph.tensor_consumers(t).tolist()
            uses = (
                1 + self.sent.get(t, 0) + sum(self.place[r] == here for r in readers)
            )  # the op holds it until it ends
            buffer = self._shared(op, t, reuse)
            if buffer is None and not (reuse == VIEW and self._lasting(op, t)):
                buffer = _Buffer(here, self.size[t], _OUTPUTS)
                self._take(time, buffer, op)
            self.buffers[t, here] = buffer
            if buffer is not None:
                buffer.uses += uses

    def _end(self, time: float, op: int) -> None:
        here = self.place[op]
        if temporary := int(self.graph.temp_bytes[op]):
            self.rows.append((here, time, _TEMPORARY, -temporary, op))
        first, end = (int(x) for x in self.graph.output_ptr[op : op + 2])
        for t in (*self._read(op), *range(first, end)):
            self._release(time, t, here, op)

    def _receive(self, time: float, move: int) -> None:
        t, here = int(self.timeline.transfers.tensor[move]), int(self.timeline.transfers.target[move])
        readers = self.graph.tensor_consumers(t).tolist()
        self.buffers[t, here] = buffer = _Buffer(
            here, self.size[t], _COPIES, sum(self.place[r] == here for r in readers)
        )
        self._take(time, buffer, self.producer[t])

    def _arrived(self, time: float, move: int) -> None:
        t = int(self.timeline.transfers.tensor[move])
        self._release(time, t, self.place[self.producer[t]], self.producer[t])

    # -- buffers -------------------------------------------------------------------------------------

    def _read(self, op: int) -> list[int]:
        pointer, tensors = self.graph.inputs
        read: list[int] = tensors[pointer[op] : pointer[op + 1]].tolist()
        return read

    def _shared(self, op: int, tensor: int, reuse: int) -> _Buffer | None:
        """The buffer of an input in which an output lies."""
        if reuse not in (VIEW, OVERWRITES) or not self.size[tensor]:
            return None
        held = [(t, buffer) for t in self._read(op) if (buffer := self.buffers.get((t, self.place[op]))) is not None]
        if reuse == VIEW:
            large = [(self.size[t], t, buffer) for t, buffer in held if self.size[t] >= self.size[tensor]]
            return min(large)[2] if large else None
        for t, buffer in held:
            alone = buffer.uses == sum(other is buffer for _, other in held)
            if alone and self.size[t] == self.size[tensor] and self._writable(op, t, tensor):
                return buffer
        return None

    def _writable(self, op: int, t: int, output: int) -> bool:
        """Whether tensor `t` may be written over: made here, and in memory to send from where `output` is sent."""
        return self.place[self.producer[t]] == self.place[op] and (output not in self.sent or t in self.sent)

    def _lasting(self, op: int, tensor: int) -> bool:
        """Whether a view of no buffer is one of persistent bytes: it reads such a view, or nothing that is as large."""
        as_large = [t for t in self._read(op) if self.size[t] >= self.size[tensor]]
        return all(self.buffers.get((t, self.place[op])) is None for t in as_large)

    def _take(self, time: float, buffer: _Buffer, op: int) -> None:
        if buffer.size:
            self.rows.append((buffer.device, time, buffer.category, buffer.size, op))

    def _release(self, time: float, tensor: int, device: int, op: int) -> None:
        buffer = self.buffers.get((tensor, device))
        if buffer is None:
            return
        buffer.uses -= 1
        if buffer.uses == 0 and buffer.size:
            self.rows.append((device, time, buffer.category, -buffer.size, op))


def _violation(graph: OpGraph, cluster: Cluster, d: int, log: MemoryLog, at: int, peak: int) -> Violation:
    op, time = int(log.op[at]), float(log.time_us[at])
    message = (
        f"device {cluster.names[d]} exceeds its {format_bytes(int(cluster.memory_bytes[d]))} at {format_us(time)} "
        f"when op {graph.names[op]!r} takes memory; its peak is {format_bytes(peak)}"
    )
    return Violation("memory", message, d, time, op)
