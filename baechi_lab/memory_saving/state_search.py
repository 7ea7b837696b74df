"""The least work to repeat in small graphs, by going through all states of memory.

The ops run for the first time in one order, the forward ones before the late ones. Between two of them, values of forward
ops may be dropped and ops that may be repeated may run again, any number of times. A state is the set of values that are
held; `cost[state]` is the least work repeated so far. What is found is the optimum over all such sequences (Checkmate,
Jain et al. 2020, arXiv:1910.02653, poses the same as an integer program), and the least budget is proven. O(runs v^2 2^v) for v
values, by array operations on all states at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..graph import CONTROL_BYTES
from .training_graph import Parts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_VALUES = 12


class States:
    """The values of a graph that a plan decides on, and what all others hold besides them."""

    def __init__(self, parts: Parts):
        self.parts, graph = parts, parts.graph
        read = np.diff(graph.consumer_ptr) > 0
        forward = ~parts.late[graph.tensor_producer] & (graph.tensor_bytes > CONTROL_BYTES) & read
        feeds = np.zeros(graph.tensor_count, dtype=np.bool_)
        feeds[graph.edge_tensor[parts.may_repeat[graph.consumers]]] = True
        self.values = np.flatnonzero(forward & (feeds | parts.may_repeat[graph.tensor_producer]))
        self.bit = {int(t): 1 << k for k, t in enumerate(self.values.tolist())}
        self.size = graph.tensor_bytes[self.values]
        self.steps = parts.ordered.tolist()
        pointer, tensors = graph.inputs
        mask = lambda of: sum(self.bit.get(t, 0) for t in of)  # noqa: E731
        self.reads = [mask(tensors[pointer[op] : pointer[op + 1]].tolist()) for op in range(graph.n)]
        self.makes = [mask(graph.outputs(op)) for op in range(graph.n)]
        outputs = np.zeros(graph.n, dtype=np.int64)
        np.add.at(outputs, graph.tensor_producer, graph.tensor_bytes)
        own = np.array(
            [sum(int(graph.tensor_bytes[t]) for t in graph.outputs(op) if t in self.bit) for op in range(graph.n)]
        )
        self.transient = graph.temp_bytes + outputs - own  # of every run, besides the values that it makes
        self._others()
        self.again = [int(op) for op in np.flatnonzero(parts.may_repeat) if self.makes[op]]

    @property
    def few(self) -> bool:
        """Few enough values to go through all states."""
        return len(self.values) <= MOST_VALUES

    def _others(self) -> None:
        """int64[steps]: persistent bytes and all other tensors that are held when each step begins."""
        graph, rank = self.parts.graph, self.parts.rank
        last = rank[graph.tensor_producer].copy()
        np.maximum.at(last, graph.edge_tensor, rank[graph.consumers])
        other = np.ones(graph.tensor_count, dtype=np.bool_)
        other[self.values] = False
        change = np.zeros(graph.n + 1, dtype=np.int64)
        np.add.at(change, rank[graph.tensor_producer][other] + 1, graph.tensor_bytes[other])
        np.add.at(change, last[other] + 1, -graph.tensor_bytes[other])
        # While its maker runs, a tensor is in the transient bytes.
        self.before = np.cumsum(change)[:-1] + int(graph.persistent_bytes.sum())


class Search:
    """Least work for every state after every step within a budget; without a budget, least bytes in place of work."""

    def __init__(self, states: States, budget: int | None = None):
        self.states, self.budget, graph = states, budget, states.parts.graph
        self.masks = np.arange(1 << len(states.values))
        self.bytes = ((self.masks[:, None] >> np.arange(len(states.values))) & 1) @ states.size
        # Work of 0 us is work as well: without it a path back could run in a circle.
        us = graph.duration_us
        self.us = us + max(float(us.max(initial=0.0)), 1.0) * 1e-9
        cost = np.full(len(self.masks), np.inf)
        cost[0] = 0.0
        self.entered, self.settled = [], []  # type: list[Floats], list[Floats]
        for k, op in enumerate(states.steps):
            self.entered.append(cost)
            settled = self._settle(k, cost.copy())
            self.settled.append(settled)
            cost = np.full(len(self.masks), np.inf)
            able, after = self._run(k, op, settled, 0.0)
            cost[able | states.makes[op]] = after
        self.best = float(cost.min(initial=np.inf))
        self.last = int(cost.argmin()) if np.isfinite(self.best) else -1

    def _run(self, k: int, op: int, cost: Floats, us: float) -> tuple[Ints, Floats]:
        """States in which the op can run before step k, and what they then cost; none that hold what it makes."""
        s = self.states
        able = self.masks[((self.masks & s.reads[op]) == s.reads[op]) & ((self.masks & s.makes[op]) == 0)]
        able = able[np.isfinite(cost[able])]
        need = self.bytes[able] + int(s.before[k] + s.transient[op]) + int(self.bytes[s.makes[op]])
        if self.budget is None:
            return able, np.maximum(cost[able], need)
        able = able[need <= self.budget]
        return able, cost[able] + us

    def _settle(self, k: int, cost: Floats) -> Floats:
        """Drop and run again before step k until nothing gets cheaper."""
        while True:
            before = cost.copy()
            for bit in self.states.bit.values():
                has = np.flatnonzero(self.masks & bit)
                cost[has ^ bit] = np.minimum(cost[has ^ bit], cost[has])
            for op in self._earlier(k):
                able, after = self._run(k, op, cost, float(self.us[op]))
                able = able | self.states.makes[op]
                cost[able] = np.minimum(cost[able], after)
            if np.array_equal(before, cost):
                return cost

    def _earlier(self, k: int) -> list[int]:
        """Ops that may run again before step k."""
        return [op for op in self.states.again if self.states.parts.rank[op] < k]

    def sequence(self) -> Ints:
        """int64[runs]: the sequence of ops with the least work."""
        found: list[int] = []
        state = self.last
        for k in range(len(self.states.steps) - 1, -1, -1):
            op = self.states.steps[k]
            found.append(op)
            state &= ~self.states.makes[op]
            cost, entered = self.settled[k], self.entered[k]
            while entered[state] != cost[state]:
                state = self._back(k, state, cost, found)
        return np.array(found[::-1], dtype=np.int64)

    def _back(self, k: int, state: int, cost: Floats, found: list[int]) -> int:
        """The state before the last drop or run that led to `state`."""
        for op in self._earlier(k):
            before = state & ~self.states.makes[op]
            if before != state and state & self.states.makes[op] == self.states.makes[op]:
                able, after = self._run(k, op, cost, float(self.us[op]))
                at = np.searchsorted(able, before)
                if at < len(able) and able[at] == before and after[at] == cost[state]:
                    found.append(op)
                    return before
        bits = self.states.bit.values()
        return next(state | bit for bit in bits if not state & bit and cost[state | bit] == cost[state])
