"""A step on TensorFlow workers of one thread each, op by op, as TensorFlow's executor takes them: the last ready one first.

The simulator's rules say nothing of a runtime; a prediction for this one follows what it does:

- A worker's thread takes ops from a stack. What an op makes ready goes on top, later ops of the graph above earlier ones. A
  send is where the first op that reads its tensor elsewhere would be. Ops that oneDNN computes come after all others, sends
  included. Ops that only pass on or describe a tensor are not put on the stack but run at once, the first first.
- A step begins with a stack of the ops that need nothing, and one for each tensor to come, which asks for it: constants, then
  the others, by the place in the graph of the op or of what reads the tensor. Traces show these in runs that go forwards or
  backwards, and come in another order in every session, so that is drawn. What lies below when the first long op
  has begun waits until nothing else is left: handles of an optimizer's variables, or learning rates to ask for, and with them
  all updates.
- What comes from other threads goes to the bottom: requests for tensors, and ops that a received tensor makes ready. Whoever
  has ops of its own thus sends late, which no other order of ops would show.
- Threads of the network receive meanwhile, and share the worker's core with the op that runs (`core`). The receiver begins
  before the sender has put everything away.

That ops which a thread makes ready go to the front of its queue, and those of others to the back, is the rule of the thread
pool under the executor (Eigen's non-blocking one, `Schedule`); requests are put into the same pool by TensorFlow's worker
service. An op's successors are in the order in which its part of the graph was made, and TensorFlow's partitioner, which goes
through the whole graph, adds a send when it comes to its first reader (`Partition`); the last of them runs next. Where a
processor has oneDNN, TensorFlow afterwards replaces ops of the divided graph by its kernels, which are then the last ones.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph, Placement
from .core import Core

INLINE = frozenset((
    "Const", "ExpandDims", "Identity", "IdentityN", "Merge", "NoOp", "PreventGradient", "Rank", "Reshape", "Shape", "ShapeN",
    "Size", "Snapshot", "Squeeze", "StopGradient", "Switch",
))  # fmt: skip
"""Types of ops that a thread runs at once: those whose kernels say that they are not expensive (`IsExpensive` in the headers
that come with TensorFlow)."""
CONSTANT = "Const"
ONEDNN = "_Mkl"
"""What types of ops begin with that oneDNN computes."""
SHARES = (1 / 2, 2 / 3, 4 / 5, 1.0)
"""Parts of a core that receiving has while an op runs, by order: one, two or four threads beside the one that runs ops, or so
many that it waits. How many there are changes from moment to moment; measured peaks lie between the first and the last."""
WAYS = tuple((share, in_turns) for in_turns in (True, False) for share in SHARES)
"""How workers receive, by order."""
PIECES = 8
"""Of what a step begins with, at most; traces have two to five of more than a hundred."""
Begin = Callable[[int], Iterable[int]]
"""A count -> the order in which so many tasks are taken."""


class Task(NamedTuple):
    """What a worker's thread does: microseconds, what follows when it ends, and the op that begins with it, or -1."""

    takes_us: float
    ends: Callable[[float], None]
    op: int = -1


class Ran(NamedTuple):
    """When ops began and ended, float64[n] each: an op that shares its core takes longer than its duration."""

    start_us: NDArray[np.float64]
    end_us: NDArray[np.float64]


def executed(
    both: OpGraph,
    placement: Placement,
    kernels: int,
    wire_us: NDArray[np.float64],
    begin: Begin = range,
    share: float = 1.0,
    in_turns: bool = True,
) -> Ran:
    """When the ops of `both` run: `kernels` ops, then one that sends per message, then one that receives it.

    Types of ops are those that ran, as in `measured_graph`. `wire_us`: float64[messages] between the two; below 0 where
    receiving begins before sending has ended. `begin`: in which order so many tasks are taken that need nothing. `share`,
    `in_turns`: how workers receive, see `Core`.

    >>> both = OpGraph.from_edges([2.0, 5.0, 3.0, 4.0, 1.0], [(0, 1, 0), (0, 3, 0), (3, 4, 0), (4, 2, 0)])
    >>> placed = Placement(device=[0, 0, 1, 0, 1])
    >>> executed(both, placed, 3, np.array([10.0])).end_us.tolist()  # sent after 1
    [2.0, 7.0, 25.0, 11.0, 22.0]
    """
    core = partial(Core, share, in_turns)
    return _Execution(both, placement.device.tolist(), kernels, wire_us.tolist(), core).run(begin)


def in_orders(both: OpGraph, placement: Placement, kernels: int, wire_us: NDArray[np.float64], count: int) -> list[Ran]:
    """`executed` in the first `count` orders in which a step may begin, the next of `WAYS` in each."""
    begins = (partial(in_pieces, np.random.default_rng(i)) for i in range(count))
    return [
        executed(both, placement, kernels, wire_us, begin, *way)
        for begin, way in zip(begins, cycle(WAYS), strict=False)
    ]


def in_pieces(draw: np.random.Generator, count: int) -> list[int]:
    """The numbers below `count`, cut into up to `PIECES` runs that come in any order, forwards or backwards.

    >>> in_pieces(np.random.default_rng(4), 9)
    [7, 6, 5, 0, 1, 2, 3, 4, 8]
    """
    cuts = np.sort(draw.integers(0, count + 1, draw.integers(PIECES)))
    runs = np.split(np.arange(count), cuts)
    turned = (runs[k][:: 1 if draw.integers(2) else -1] for k in draw.permutation(len(runs)).tolist())
    return [number for run in turned for number in run.tolist()]


@dataclass
class _Worker:
    """Its core, its stack, top first, and what comes before that, next first; `turn` counts what was arranged for it."""

    core: Core
    stack: deque[Task] = field(default_factory=deque)
    inline: deque[Task] = field(default_factory=deque)
    turn: int = 0


class _Execution:
    def __init__(
        self, both: OpGraph, device: list[int], kernels: int, wire_us: list[float], core: Callable[[], Core]
    ) -> None:
        self._kernels, self._messages, self._device, self._wire_us = kernels, len(wire_us), device, wire_us
        self._duration = both.duration_us.tolist()
        self._constant = [kind == CONSTANT for kind in both.op_types]
        self._inline = [kind in INLINE for kind in both.op_types]
        self._last = [kind.startswith(ONEDNN) for kind in both.op_types]
        edges = np.unique(np.stack([both.edge_source, both.consumers]), axis=1)
        self._waits = np.bincount(edges[1], minlength=both.n).tolist()
        self._next: list[list[int]] = [[] for _ in range(both.n)]
        for source, reader in edges.T.tolist():
            self._next[source].append(reader)
        self._ran = Ran(np.zeros(both.n), np.zeros(both.n))
        self._workers = [_Worker(core()) for _ in range(max(device, default=-1) + 1)]
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._made_at = count()  # of events of one time the one that was made first happens first
        self._made = [False] * self._messages
        self._asked = [False] * self._messages

    def run(self, begin: Begin) -> Ran:
        """Until nothing is left."""
        for device, worker in enumerate(self._workers):
            worker.stack.extend(self._begins(device, begin))
            self._go_on(worker, 0.0)
        while self._events:
            now, _, happens = heapq.heappop(self._events)
            happens(now)
        return self._ran

    def _begins(self, device: int, begin: Begin) -> list[Task]:
        """What needs nothing there: constants, then the others in the order that `begin` gives."""
        ops = [op for op in range(self._kernels) if self._device[op] == device and self._waits[op] == 0]
        placed = [(op, self._op(op)) for op in ops if not self._constant[op]]
        for message in range(self._messages):
            if self._device[self._receive(message)] == device:
                placed.append((self._place(self._kernels + message)[1], Task(0.0, self._asks(message))))
        others = [task for _, task in sorted(placed, key=lambda row: row[0])]
        return [*(self._op(op) for op in ops if self._constant[op]), *(others[k] for k in begin(len(others)))]

    def _receive(self, message: int) -> int:
        return self._kernels + self._messages + message

    def _at(self, time_us: float, happens: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_us, next(self._made_at), happens))

    def _go_on(self, worker: _Worker, now: float) -> None:
        """Take what lies on top, unless an op runs, and arrange for what ends next."""
        core = worker.core
        core.advance(now)
        tasks = worker.inline or worker.stack
        if core.ends is None and tasks:
            task = tasks.popleft()
            core.run(task.takes_us, task.ends)
            if task.op >= 0:
                self._ran.start_us[task.op] = now
        worker.turn += 1
        turn, then = worker.turn, core.next_us()
        if then < np.inf:
            self._at(then, lambda now: self._ends(worker, turn, now))

    def _ends(self, worker: _Worker, turn: int, now: float) -> None:
        if turn != worker.turn:
            return  # something began meanwhile
        worker.core.advance(now)
        worker.core.finish(now)
        self._go_on(worker, now)

    def _op(self, op: int) -> Task:
        def ends(now: float) -> None:
            self._ran.end_us[op] = now
            worker = self._workers[self._device[op]]
            for x in self._ready(op):
                if self._inline[x]:
                    worker.inline.append(self._op(x))
                else:
                    task = self._op(x) if x < self._kernels else Task(0.0, self._makes(x - self._kernels))
                    worker.stack.appendleft(task)

        return Task(self._duration[op], ends, op)

    def _ready(self, op: int) -> list[int]:
        """What the end of `op` makes ready, in the graph's order; the last is on top."""
        found = []
        for after in self._next[op]:
            self._waits[after] -= 1
            if self._waits[after] == 0:
                found.append(after)
        return sorted(found, key=self._place)

    def _place(self, op: int) -> tuple[bool, int]:
        """Of an op in the divided graph; of a send that of its first reader, before anything was replaced."""
        if op < self._kernels:
            return self._last[op], op
        return False, min(self._next[self._receive(op - self._kernels)], default=op)

    # -- messages ------------------------------------------------------------------------------------------

    def _asks(self, message: int) -> Callable[[float], None]:
        """The receiver's op that asks for a tensor."""
        sender = self._workers[self._device[self._kernels + message]]

        def ends(now: float) -> None:
            sender.stack.append(Task(0.0, self._serves(message)))
            self._go_on(sender, now)

        return ends

    def _serves(self, message: int) -> Callable[[float], None]:
        def ends(now: float) -> None:
            self._asked[message] = True
            self._sends(message)

        return ends

    def _makes(self, message: int) -> Callable[[float], None]:
        def ends(now: float) -> None:
            self._made[message] = True
            self._sends(message)

        return ends

    def _sends(self, message: int) -> None:
        if not (self._asked[message] and self._made[message]):
            return
        op = self._kernels + message
        wire_us, stack = self._wire_us[message], self._workers[self._device[op]].stack
        rest_us = min(max(-wire_us, 0.0), self._duration[op])

        def leaves(now: float) -> None:
            self._at(now + max(wire_us, 0.0), lambda then: self._arrives(message, then))
            stack.appendleft(Task(rest_us, ends))

        def ends(now: float) -> None:
            self._ran.end_us[op] = now

        stack.appendleft(Task(self._duration[op] - rest_us, leaves, op))

    def _arrives(self, message: int, now: float) -> None:
        """What waits for the tensor goes to the bottom once it is received."""
        op = self._receive(message)
        worker = self._workers[self._device[op]]

        def ends(then: float) -> None:
            self._ran.end_us[op] = then
            worker.stack.extend(self._op(x) for x in self._ready(op))

        self._ran.start_us[op] = now
        worker.core.advance(now)
        worker.core.receive(self._duration[op], message, ends)
        self._go_on(worker, now)
