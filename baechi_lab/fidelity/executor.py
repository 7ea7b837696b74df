"""Simulates a step on single-threaded TensorFlow workers in the order of TensorFlow's executor: last ready, first run.

The simulator's schedulers do not model a runtime. This prediction follows TensorFlow's rules:

- A worker's thread takes ops from a stack. Ops that become ready by an op go on top, later ops of the graph above earlier ones.
  A send has the position of the first op that reads its tensor elsewhere. oneDNN ops come after all others, including sends.
  Ops that only pass on or describe a tensor are not put on the stack but run at once, in order.
- A step starts with a stack of the ops without inputs and of one request per tensor to receive: constants first, then the
  others by the position in the graph of the op or of the tensor's reader. In traces these form runs that go forwards or
  backwards, in a different order in every session, so the order is drawn at random. Tasks that are still below when the first
  long op starts wait until nothing else is left. Examples are handles of an optimizer's variables, or requests for learning
  rates, and with them all updates.
- Work from other threads goes to the bottom: requests for tensors, and ops that become ready by a received tensor. A worker
  that has ops of its own therefore sends late. No other order of ops shows this.
- Network threads receive meanwhile and share the worker's core with the running op (`Core`). The receiver starts before the
  sender has finished.

The thread pool of the executor (Eigen's non-blocking one, `Schedule`) puts work from its own thread at the front of its queue,
and work from other threads at the back. TensorFlow's worker service puts requests into the same pool. An op's successors are in
the order in which its partition was created. TensorFlow's partitioner goes through the whole graph and adds a send at its first
reader (`Partition`); the last successor runs next. If the processor has oneDNN, TensorFlow then replaces ops of the partitions
by oneDNN kernels, which are therefore last.

Tensors that are sent at the same time share one connection. Either their pieces alternate (HTTP/2), so small tensors arrive
first and large ones together at the end; or they come one after the other, because earlier data is in the connection's buffers.
The receiving threads have a share of the core while an op runs, and the whole core otherwise. Traces of four networks whose
second worker receives hundreds of megabytes within milliseconds show this: 33 and 67 MB arrive last, and the rate halves while
ops run. A small tensor sent 10 ms after one of 67 MB overtook it in seven sessions of ten, within 1 to 20 ms of the 25 to 45 ms
that the large one took. In the other three it arrived right after the large one.
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
from ..simulator.executor_order import INLINE

Callback = Callable[[float], None]
"""Called with the time in microseconds."""

_NOTHING_LEFT_US = 1e-7
"""Work below this is rounding error of many shares."""


@dataclass
class Core:
    """Runs one op at a time and receives tensors meanwhile. Rates are constant between two calls of `advance`.

    >>> core, log = Core(share=0.5), []
    >>> core.run(10.0, lambda now: log.append(("op", now)))
    >>> core.receive(4.0, 0, lambda now: log.append(("large", now)))
    >>> core.receive(1.0, 1, lambda now: log.append(("small", now)))
    >>> while (then := core.next_us()) < float("inf"):
    ...     core.advance(then)
    ...     core.finish(then)
    >>> log  # the small one has a quarter of the core; then the large one half of it; then the op all
    [('small', 4.0), ('large', 10.0), ('op', 15.0)]
    """

    share: float = 1.0
    """The share of the core that receiving has while an op runs. With 1, ops wait."""
    in_turns: bool = True
    """Whether pieces of tensors alternate; otherwise tensors are received one after the other."""
    on_op_end: Callback | None = None
    left_us: float = 0.0
    since_us: float = 0.0
    served_us: float = 0.0
    """Microseconds of receiving that each tensor would have got so far if it had been there from the start. Without `in_turns`,
    those of all tensors together."""
    due_us: float = 0.0
    """Value of `served_us` when the tensor that was started last is complete."""
    receiving: list[tuple[float, int, Callback]] = field(default_factory=list)
    """A heap of (value of `served_us` when the tensor is complete, its number, its callback)."""

    def run(self, takes_us: float, on_end: Callback) -> None:
        """Starts an op."""
        self.left_us, self.on_op_end = takes_us, on_end

    def receive(self, takes_us: float, number: int, on_end: Callback) -> None:
        """Starts to receive a tensor."""
        begins_us = self.served_us if self.in_turns else max(self.due_us, self.served_us)
        self.due_us = begins_us + takes_us
        heapq.heappush(self.receiving, (self.due_us, number, on_end))

    def advance(self, time_us: float) -> None:
        """Advances all work to `time_us`."""
        op_rate, rate = self._rates()
        self.left_us -= (time_us - self.since_us) * op_rate
        self.served_us += (time_us - self.since_us) * rate
        self.since_us = time_us

    def finish(self, time_us: float) -> None:
        """Calls the callbacks of all work that has ended by `time_us`, tensors first."""
        while self.receiving and self.receiving[0][0] <= self.served_us + _NOTHING_LEFT_US:
            heapq.heappop(self.receiving)[2](time_us)
        if self.on_op_end is not None and self.left_us <= _NOTHING_LEFT_US and self._rates()[0] > 0.0:
            on_end, self.on_op_end = self.on_op_end, None
            on_end(time_us)

    def next_us(self) -> float:
        """Returns when the next work ends if no other work starts; infinity if there is none."""
        op_rate, rate = self._rates()
        wait_us = float("inf")
        if self.on_op_end is not None and op_rate > 0.0:
            wait_us = max(self.left_us, 0.0) / op_rate
        if self.receiving:
            wait_us = min(wait_us, max(self.receiving[0][0] - self.served_us, 0.0) / rate)
        return self.since_us + wait_us

    def _rates(self) -> tuple[float, float]:
        """Returns the rates of the op and of each tensor."""
        if not self.receiving:
            return 1.0, 0.0
        share = 1.0 if self.on_op_end is None else self.share
        return 1.0 - share, share / (len(self.receiving) if self.in_turns else 1)


CONSTANT = "Const"
ONEDNN = "_Mkl"
"""Prefix of the types of oneDNN ops."""
SHARES = (1 / 2, 2 / 3, 4 / 5, 1.0)
"""Shares of a core that receiving has while an op runs: one, two or four threads besides the one that runs ops, or so many that
it waits. The number of threads varies over time; measured peaks lie between the first and the last share."""
RECEIVE_MODES = tuple((share, in_turns) for in_turns in (True, False) for share in SHARES)
"""(share, in_turns) of `Core` for successive start orders."""
PIECES = 8
"""Largest number of runs into which a start order is cut. Traces have two to five runs of more than a hundred tasks."""
StartOrder = Callable[[int], Iterable[int]]
"""Returns the start order of the first `n` tasks."""


class Task(NamedTuple):
    """Work of a worker's thread: its duration, its callback at the end, and the op that it runs, or -1."""

    takes_us: float
    on_end: Callable[[float], None]
    op: int = -1


class Execution(NamedTuple):
    """Start and end of every op, float64[n] each. An op that shares its core takes longer than its duration."""

    start_us: NDArray[np.float64]
    end_us: NDArray[np.float64]


def execution_of(
    extended_graph: OpGraph,
    placement: Placement,
    kernels: int,
    wire_us: NDArray[np.float64],
    start_order: StartOrder = range,
    share: float = 1.0,
    in_turns: bool = True,
) -> Execution:
    """Returns when the ops of `extended_graph` run: `kernels` ops, then one that sends per message, then one that receives it.

    Op types are those that ran, as in `measured_graph`. `wire_us`: float64[messages] between the two ends, negative if
    receiving starts before sending has ended. `start_order`: order of the tasks without inputs. `share`, `in_turns`: see `Core`.
    """
    core = partial(Core, share, in_turns)
    return _Executor(extended_graph, placement.device.tolist(), kernels, wire_us.tolist(), core).run(start_order)


def executions_in_orders(
    extended_graph: OpGraph, placement: Placement, kernels: int, wire_us: NDArray[np.float64], count: int
) -> list[Execution]:
    """Returns executions in `count` random start orders, with the next of `RECEIVE_MODES` in each."""
    start_orders = (partial(random_start_order, np.random.default_rng(i)) for i in range(count))
    return [
        execution_of(extended_graph, placement, kernels, wire_us, start_order, *receive_mode)
        for start_order, receive_mode in zip(start_orders, cycle(RECEIVE_MODES), strict=False)
    ]


def random_start_order(draw: np.random.Generator, count: int) -> list[int]:
    """Returns the numbers below `count`, cut into up to `PIECES` runs that are shuffled and reversed at random."""
    cuts = np.sort(draw.integers(0, count + 1, draw.integers(PIECES)))
    pieces = np.split(np.arange(count), cuts)
    pieces_in_either_direction = (
        pieces[k][:: 1 if draw.integers(2) else -1] for k in draw.permutation(len(pieces)).tolist()
    )
    return [number for piece in pieces_in_either_direction for number in piece.tolist()]


@dataclass
class _Worker:
    """A worker's core, its stack (top first), and inline ops that run before the stack. `scheduled_count` counts its events."""

    core: Core
    stack: deque[Task] = field(default_factory=deque)
    inline: deque[Task] = field(default_factory=deque)
    scheduled_count: int = 0


class _Executor:
    """Simulates the executors of the workers, event by event: threads, kernels, and the messages between workers."""

    def __init__(
        self, extended_graph: OpGraph, device: list[int], kernels: int, wire_us: list[float], core: Callable[[], Core]
    ) -> None:
        self._kernels, self._messages, self._device, self._wire_us = kernels, len(wire_us), device, wire_us
        self._duration = extended_graph.duration_us.tolist()
        self._constant = [kind == CONSTANT for kind in extended_graph.op_types]
        self._inline = [kind in INLINE for kind in extended_graph.op_types]
        self._last = [kind.startswith(ONEDNN) for kind in extended_graph.op_types]
        edges = np.unique(np.stack([extended_graph.edge_source, extended_graph.consumers]), axis=1)
        self._waits = np.bincount(edges[1], minlength=extended_graph.n).tolist()
        self._next: list[list[int]] = [[] for _ in range(extended_graph.n)]
        for source, reader in edges.T.tolist():
            self._next[source].append(reader)
        self._execution = Execution(np.zeros(extended_graph.n), np.zeros(extended_graph.n))
        self._workers = [_Worker(core()) for _ in range(max(device, default=-1) + 1)]
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._event_number = count()  # simultaneous events happen in the order of creation
        self._produced = [False] * self._messages
        self._requested = [False] * self._messages

    def run(self, start_order: StartOrder) -> Execution:
        """Runs until no event is left."""
        for device, worker in enumerate(self._workers):
            worker.stack.extend(self._first_tasks(device, start_order))
            self._take_next(worker, 0.0)
        while self._events:
            time_us, _, callback = heapq.heappop(self._events)
            callback(time_us)
        return self._execution

    def _first_tasks(self, device: int, start_order: StartOrder) -> list[Task]:
        """Returns a device's tasks without inputs: constants, then the others in `start_order`."""
        ops = [op for op in range(self._kernels) if self._device[op] == device and self._waits[op] == 0]
        op_tasks = [(op, self._op_task(op)) for op in ops if not self._constant[op]]
        for message in range(self._messages):
            if self._device[self._receive_op(message)] == device:
                op_tasks.append((self._place(self._kernels + message)[1], Task(0.0, self._request_callback(message))))
        remaining = [task for _, task in sorted(op_tasks, key=lambda row: row[0])]
        return [
            *(self._op_task(op) for op in ops if self._constant[op]),
            *(remaining[k] for k in start_order(len(remaining))),
        ]

    def _receive_op(self, message: int) -> int:
        return self._kernels + self._messages + message

    def _schedule(self, time_us: float, callback: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_us, next(self._event_number), callback))

    def _take_next(self, worker: _Worker, time_us: float) -> None:
        """Starts the next task unless an op runs, and schedules the next end."""
        core = worker.core
        core.advance(time_us)
        tasks = worker.inline or worker.stack
        if core.on_op_end is None and tasks:
            task = tasks.popleft()
            core.run(task.takes_us, task.on_end)
            if task.op >= 0:
                self._execution.start_us[task.op] = time_us
        worker.scheduled_count += 1
        scheduled_count, next_us = worker.scheduled_count, core.next_us()
        if next_us < np.inf:
            self._schedule(next_us, lambda time_us: self._finish_scheduled(worker, scheduled_count, time_us))

    def _finish_scheduled(self, worker: _Worker, scheduled_count: int, time_us: float) -> None:
        if scheduled_count != worker.scheduled_count:
            return  # a task started meanwhile
        worker.core.advance(time_us)
        worker.core.finish(time_us)
        self._take_next(worker, time_us)

    def _op_task(self, op: int) -> Task:
        def on_end(time_us: float) -> None:
            self._execution.end_us[op] = time_us
            worker = self._workers[self._device[op]]
            for x in self._ready(op):
                if self._inline[x]:
                    worker.inline.append(self._op_task(x))
                else:
                    sending = Task(0.0, self._send_after(x - self._kernels, self._produced))
                    worker.stack.appendleft(self._op_task(x) if x < self._kernels else sending)

        return Task(self._duration[op], on_end, op)

    def _ready(self, op: int) -> list[int]:
        """Returns the ops that the end of `op` makes ready, in the graph's order. The last one is on top."""
        ready = []
        for reader in self._next[op]:
            self._waits[reader] -= 1
            if self._waits[reader] == 0:
                ready.append(reader)
        return sorted(ready, key=self._place)

    def _place(self, op: int) -> tuple[bool, int]:
        """Returns the position of an op in its partition. A send has that of its first reader."""
        if op < self._kernels:
            return self._last[op], op
        return False, min(self._next[self._receive_op(op - self._kernels)], default=op)

    # -- messages ------------------------------------------------------------------------------------------

    def _request_callback(self, message: int) -> Callable[[float], None]:
        """Returns the callback of the receiver's request for a tensor."""
        sender = self._workers[self._device[self._kernels + message]]

        def on_end(time_us: float) -> None:
            sender.stack.append(Task(0.0, self._send_after(message, self._requested)))
            self._take_next(sender, time_us)

        return on_end

    def _send_after(self, message: int, condition: list[bool]) -> Callable[[float], None]:
        """Returns a callback that meets one of the two conditions of sending: `_requested` or `_produced`."""

        def on_end(time_us: float) -> None:
            condition[message] = True
            if self._requested[message] and self._produced[message]:
                self._send(message)

        return on_end

    def _send(self, message: int) -> None:
        op = self._kernels + message
        wire_us, stack = self._wire_us[message], self._workers[self._device[op]].stack
        rest_us = min(max(-wire_us, 0.0), self._duration[op])

        def on_left(time_us: float) -> None:
            self._schedule(time_us + max(wire_us, 0.0), lambda arrival_us: self._receive_message(message, arrival_us))
            stack.appendleft(Task(rest_us, on_end))

        def on_end(time_us: float) -> None:
            self._execution.end_us[op] = time_us

        stack.appendleft(Task(self._duration[op] - rest_us, on_left, op))

    def _receive_message(self, message: int, time_us: float) -> None:
        """Receives a tensor. Its readers go to the bottom of the stack when it is complete."""
        op = self._receive_op(message)
        worker = self._workers[self._device[op]]

        def on_end(end_us: float) -> None:
            self._execution.end_us[op] = end_us
            worker.stack.extend(self._op_task(x) for x in self._ready(op))

        self._execution.start_us[op] = time_us
        worker.core.advance(time_us)
        worker.core.receive(self._duration[op], message, on_end)
        self._take_next(worker, time_us)
