"""The peak memory of one device that runs ops in a given order, where outputs may lie in inputs (`OpGraph.reuse`).

The rules are those of docs/simulated-time.md, "Outputs that lie in inputs". The simulator follows them through the events of
a finished timeline; with one device and one order there are neither transfers nor times.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph
from ..graph.opgraph import GROWS, OVERWRITES, OWN, VIEW


def shared_peak(graph: OpGraph, order: NDArray[np.int64]) -> int:
    """Peak bytes of running the ops of a graph with `reuse` in `order`, int64[n]. O(ops + edges).

    >>> graph = OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (1, 2, 30)], reuse=[0, 1, 0])
    >>> shared_peak(graph, graph.order)  # op 1 writes over what it reads
    30
    """
    return _Device(graph).peak_of(order.tolist())


class _Device:
    """What is held: buffers by number, how many uses of the tensors in each are still to end."""

    def __init__(self, graph: OpGraph):
        self.reuse: list[int] = np.asarray(graph.reuse).tolist()
        self.size: list[int] = graph.tensor_bytes.tolist()
        self.readers: list[int] = np.diff(graph.consumer_ptr).tolist()
        self.outputs, (pointer, tensors) = graph.output_ptr.tolist(), graph.inputs
        self.pointer, self.tensors = pointer.tolist(), tensors.tolist()
        self.temporary, self.persistent = graph.temp_bytes.tolist(), graph.persistent_bytes.tolist()
        self.buffer: list[int | None] = [None] * graph.tensor_count  # None: persistent bytes, or gone
        self.uses: list[int] = []
        self.bytes: list[int] = []
        self.held = int(graph.persistent_bytes[np.asarray(graph.reuse) != GROWS].sum())

    def peak_of(self, order: Iterable[int]) -> int:
        peak = self.held
        for op in order:
            read = self.tensors[self.pointer[op] : self.pointer[op + 1]]
            made = range(self.outputs[op], self.outputs[op + 1])
            self.held += self.temporary[op] + (self.persistent[op] if self.reuse[op] == GROWS else 0)
            for tensor in made:
                self._make(op, tensor, read)
            peak = max(peak, self.held)
            self.held -= self.temporary[op]
            for tensor in (*read, *made):
                self._release(tensor)
        return peak

    def _make(self, op: int, tensor: int, read: list[int]) -> None:
        reuse = self.reuse[op]
        reuse = reuse if self.size[tensor] else OWN  # a wait must not keep what the op reads
        found = self._viewed(tensor, read) if reuse == VIEW else None
        if reuse == OVERWRITES:
            found = self._written_over(tensor, read)
        if found is None and not (reuse == VIEW and self._lasting(tensor, read)):
            found = len(self.uses)
            self.uses.append(0)
            self.bytes.append(self.size[tensor])
            self.held += self.size[tensor]
        self.buffer[tensor] = found
        if found is not None:
            self.uses[found] += 1 + self.readers[tensor]  # the op holds it until it ends

    def _viewed(self, tensor: int, read: list[int]) -> int | None:
        large = [(self.size[t], t) for t in read if self.buffer[t] is not None and self.size[t] >= self.size[tensor]]
        return self.buffer[min(large)[1]] if large else None

    def _written_over(self, tensor: int, read: list[int]) -> int | None:
        held = [self.buffer[t] for t in read]
        for t, buffer in zip(read, held, strict=True):
            if buffer is not None and self.size[t] == self.size[tensor] and self.uses[buffer] == held.count(buffer):
                return buffer
        return None

    def _lasting(self, tensor: int, read: list[int]) -> bool:
        """Whether a view of no buffer is one of persistent bytes: it reads such a view, or nothing that is as large."""
        return all(self.buffer[t] is None for t in read if self.size[t] >= self.size[tensor])

    def _release(self, tensor: int) -> None:
        buffer = self.buffer[tensor]
        if buffer is not None:
            self.uses[buffer] -= 1
            if self.uses[buffer] == 0:
                self.held -= self.bytes[buffer]
