"""A worker's processor core, which the thread that runs ops shares with those that receive.

Tensors that are sent at once come over one connection, in turns, a piece of each (HTTP/2): small ones are there first, and large
ones together at the end. Or one after the other: what lies in the connection's buffers already comes first. The threads that
receive them have a part of the core while an op runs, all of it otherwise. Traces of four networks whose second worker gets
hundreds of megabytes within milliseconds show this: 33 and 67 MB arrive last, and what arrives per millisecond halves while
ops run. A small tensor sent 10 ms after one of 67 MB passed it in seven sessions of ten, within 1 to 20 ms of the 25 to 45 that
the large one took, and came right behind it in three.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

Happens = Callable[[float], None]
"""What follows at a time in microseconds."""

_NOTHING_LEFT_US = 1e-7
"""Of what was cut into many shares rounding leaves this."""


@dataclass
class Core:
    """Runs one op at a time, and receives meanwhile; between two calls of `advance` rates do not change.

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
    """Of the core, what receiving has while an op runs; 1 keeps ops waiting."""
    in_turns: bool = True
    """Are tensors received a piece of each after the other, or each as a whole?"""
    ends: Happens | None = None
    left_us: float = 0.0
    since_us: float = 0.0
    served_us: float = 0.0
    """What every tensor that is being received would have by now, had it been there from the beginning; all together where not
    `in_turns`."""
    due_us: float = 0.0
    """What `served_us` is when the tensor is there that began last."""
    receiving: list[tuple[float, int, Happens]] = field(default_factory=list)
    """A heap: what `served_us` is when a tensor is there, its number, what follows."""

    def run(self, takes_us: float, ends: Happens) -> None:
        """Begin an op."""
        self.left_us, self.ends = takes_us, ends

    def receive(self, takes_us: float, number: int, ends: Happens) -> None:
        """Begin to receive a tensor."""
        begins_us = self.served_us if self.in_turns else max(self.due_us, self.served_us)
        self.due_us = begins_us + takes_us
        heapq.heappush(self.receiving, (self.due_us, number, ends))

    def advance(self, now: float) -> None:
        """Do what is done by `now`."""
        op_rate, rate = self._rates()
        self.left_us -= (now - self.since_us) * op_rate
        self.served_us += (now - self.since_us) * rate
        self.since_us = now

    def finish(self, now: float) -> None:
        """Let follow what has ended by `now`, tensors first."""
        while self.receiving and self.receiving[0][0] <= self.served_us + _NOTHING_LEFT_US:
            heapq.heappop(self.receiving)[2](now)
        if self.ends is not None and self.left_us <= _NOTHING_LEFT_US and self._rates()[0] > 0.0:
            ends, self.ends = self.ends, None
            ends(now)

    def next_us(self) -> float:
        """When something ends if nothing else begins; infinity where nothing is done."""
        op_rate, rate = self._rates()
        found = float("inf")
        if self.ends is not None and op_rate > 0.0:
            found = max(self.left_us, 0.0) / op_rate
        if self.receiving:
            found = min(found, max(self.receiving[0][0] - self.served_us, 0.0) / rate)
        return self.since_us + found

    def _rates(self) -> tuple[float, float]:
        """What the op and each tensor get per microsecond."""
        if not self.receiving:
            return 1.0, 0.0
        share = 1.0 if self.ends is None else self.share
        return 1.0 - share, share / (len(self.receiving) if self.in_turns else 1)
