"""A model of a worker's processor core, which the thread that runs ops shares with the threads that receive.

Tensors that are sent at the same time share one connection. Either their pieces alternate (HTTP/2), so small tensors arrive
first and large ones together at the end; or they come one after the other, because earlier data is in the connection's buffers.
The receiving threads have a share of the core while an op runs, and the whole core otherwise. Traces of four networks whose
second worker receives hundreds of megabytes within milliseconds show this: 33 and 67 MB arrive last, and the rate halves while
ops run. A small tensor sent 10 ms after one of 67 MB overtook it in seven sessions of ten, within 1 to 20 ms of the 25 to 45 ms
that the large one took. In the other three it arrived right after the large one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

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
