"""Gate: lets layers submit in the planned order. A layer that must wait does so in its own thread.

Idea (Shetty 2022, section 1.3.2): the host reaches the ops in code order. It submits an op itself if the op is not waiting (see
`Settled`); at most it waits for ops that are certain to be submitted. Any other op waits in a thread until all of its
blockers are submitted, and the host goes on.

Why this cannot deadlock: an op runs on the host only if all that it needs has been reached and is not waiting itself. By
induction over the submission order, it is submitted without the host. The blockers of a waiting op are reached later by the
host, or wait for ops that are earlier in the (acyclic) submission order. If the host needs a result early, or leaves the
forward without having reached an op, `release` drops the order. Then only dependencies on reached ops remain, and these point
backwards in code order.

Complexity: O(n + e) per forward, one lock operation per submission.
"""

from __future__ import annotations

import threading

from .order import Order, Settled


class _Waiter:
    __slots__ = ("lock", "unsubmitted")

    def __init__(self, unsubmitted: set[int]):
        self.unsubmitted = unsubmitted
        self.lock = threading.Lock()
        self.lock.acquire()


class Gate:
    """The state of one forward.

    >>> from baechi_lab.torch_runtime.order import make_order
    >>> gate = Gate(make_order([(), ()], None, [0, 0]))
    >>> gate.reach(0), gate.reach(1)
    (True, True)
    """

    def __init__(self, order: Order):
        self.order = order
        self.settled_ops = Settled(order.blockers, order.dependents)
        self.is_reached = [False] * order.n
        self.submitted = [False] * order.n
        self.free = False  # the order is dropped; dependencies on reached ops stay
        self.lock = threading.Lock()
        self.waiters: dict[int, _Waiter] = {}

    def reach(self, op: int) -> bool:
        """Notes that the host has reached `op`. Returns whether the host may submit it."""
        self.is_reached[op] = True
        return self.settled_ops.reach(op) or self.free

    def wait(self, op: int) -> None:
        """Blocks until every blocker of `op` is submitted or the order is dropped."""
        with self.lock:
            blockers = self.unsubmitted_blockers(op)
            if not blockers:
                return
            waiter = self.waiters[op] = _Waiter(blockers)
        waiter.lock.acquire()

    def submit(self, op: int) -> None:
        """Notes that `op` is submitted, and wakes the ops that waited for it last."""
        with self.lock:
            self.submitted[op] = True
            # Once the order is dropped, an op may wait for an op before a call that the code left out.
            near = self.order.dependents[op] if self.waiters else ()
            for dependent in list(self.waiters) if self.free else near:
                waiter = self.waiters.get(dependent)
                if waiter is not None:
                    waiter.unsubmitted.discard(op)
                    self._wake_if_ready(dependent)

    def release(self) -> None:
        """Drops the order for the rest of this forward. Ops still wait for the reached ops that they depend on."""
        with self.lock:
            self.free = True
            for op in list(self.waiters):
                self.waiters[op].unsubmitted = self.unsubmitted_blockers(op)
                self._wake_if_ready(op)

    def unsubmitted_blockers(self, op: int) -> set[int]:
        if not self.free:
            return {b for b in self.order.blockers[op] if not self.submitted[b]}
        blockers: set[int] = set()
        stack, visited = list(self.order.parents[op]), set(self.order.parents[op])
        while stack:
            parent = stack.pop()
            if self.is_reached[parent]:
                if not self.submitted[parent]:
                    blockers.add(parent)
                continue
            # The code left this op out: its successors still come after its predecessors.
            above = [p for p in self.order.parents[parent] if p not in visited]
            visited.update(above)
            stack += above
        return blockers

    def _wake_if_ready(self, op: int) -> None:
        if not self.waiters[op].unsubmitted:
            self.waiters.pop(op).lock.release()
