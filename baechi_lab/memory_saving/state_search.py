"""Recomputation with least repeated work in small graphs, by a search through all states of memory.

The ops run for the first time in one order, the forward ones before the backward ones. Between two of them, values of forward
ops may be dropped and ops that may be repeated may run again, any number of times. A state is the set of values that are
held; `cost[state]` is the least work repeated so far. The result is the optimum over all such sequences (Checkmate,
Jain et al. 2020, arXiv:1910.02653, states the same problem as an integer program), and the least budget is proven.
O(runs v^2 2^v) for v values, by array operations on all states at once.
"""

from __future__ import annotations

import numpy as np

from ..graph import CONTROL_BYTES
from ..graph.kernels.csr import Floats, Ints, interval_sum
from ..memory.peak import last_use
from .training_graph import TrainingGraph

MOST_VALUES = 12  # whose subsets are all searched


class MemoryStates:
    """The values of a graph that a plan may drop, and the bytes of all others."""

    def __init__(self, training: TrainingGraph):
        self.training, graph = training, training.graph
        read = np.diff(graph.consumer_ptr) > 0
        forward = ~training.is_backward[graph.tensor_producer] & (graph.tensor_bytes > CONTROL_BYTES) & read
        feeds = np.zeros(graph.tensor_count, dtype=np.bool_)
        feeds[graph.edge_tensor[training.may_repeat[graph.consumers]]] = True
        self.values = np.flatnonzero(forward & (feeds | training.may_repeat[graph.tensor_producer]))
        self.bit = {int(t): 1 << k for k, t in enumerate(self.values.tolist())}
        self.size = graph.tensor_bytes[self.values]
        self.steps = training.ordered.tolist()
        pointer, tensors = graph.inputs
        mask = lambda of: sum(self.bit.get(t, 0) for t in of)  # noqa: E731
        self.reads = [mask(tensors[pointer[op] : pointer[op + 1]].tolist()) for op in range(graph.n)]
        self.makes = [mask(graph.outputs(op)) for op in range(graph.n)]
        decided_bytes = np.array(
            [sum(int(graph.tensor_bytes[t]) for t in graph.outputs(op) if t in self.bit) for op in range(graph.n)]
        )
        # Of every run, without the values that it makes.
        self.transient = graph.temp_bytes + graph.output_bytes - decided_bytes
        # Persistent bytes, and those of tensors that no plan drops, when each step begins.
        rank = training.rank
        last = last_use(graph, rank)
        is_undecided = np.ones(graph.tensor_count, dtype=np.bool_)
        is_undecided[self.values] = False
        # While its maker runs, a tensor is in the transient bytes.
        first, end = rank[graph.tensor_producer] + 1, last + 1
        held_bytes = interval_sum(graph.tensor_bytes * is_undecided, first, end, graph.n)
        self.before = held_bytes + int(graph.persistent_bytes.sum())
        self.repeatable_ops = [int(op) for op in np.flatnonzero(training.may_repeat) if self.makes[op]]

    @property
    def are_few(self) -> bool:
        """Whether the values are few enough to search all states."""
        return len(self.values) <= MOST_VALUES


class StateSearch:
    """The least work for every state after every step within a budget; without a budget, the least peak bytes."""

    def __init__(self, states: MemoryStates, budget: int | None = None):
        self.states, self.budget, graph = states, budget, states.training.graph
        self.masks = np.arange(1 << len(states.values))
        self.bytes = ((self.masks[:, None] >> np.arange(len(states.values))) & 1) @ states.size
        # A run of 0 us costs a little, since a path of free runs could return to its start.
        us = graph.duration_us
        self.us = us + max(float(us.max(initial=0.0)), 1.0) * 1e-9
        cost = np.full(len(self.masks), np.inf)
        cost[0] = 0.0
        self.entry_costs, self.settled_costs = [], []  # type: list[Floats], list[Floats]
        for k, op in enumerate(states.steps):
            self.entry_costs.append(cost)
            settled = self._settle(k, cost.copy())
            self.settled_costs.append(settled)
            cost = np.full(len(self.masks), np.inf)
            states_before, after = self._run(k, op, settled, 0.0)
            cost[states_before | states.makes[op]] = after
        self.best = float(cost.min(initial=np.inf))
        self.last = int(cost.argmin()) if np.isfinite(self.best) else -1

    def _run(self, k: int, op: int, cost: Floats, us: float) -> tuple[Ints, Floats]:
        """Returns the states, without the op's outputs, in which the op can run before step k, and their costs."""
        s = self.states
        state_sets = self.masks[((self.masks & s.reads[op]) == s.reads[op]) & ((self.masks & s.makes[op]) == 0)]
        state_sets = state_sets[np.isfinite(cost[state_sets])]
        need = self.bytes[state_sets] + int(s.before[k] + s.transient[op]) + int(self.bytes[s.makes[op]])
        if self.budget is None:
            return state_sets, np.maximum(cost[state_sets], need)
        state_sets = state_sets[need <= self.budget]
        return state_sets, cost[state_sets] + us

    def _settle(self, k: int, cost: Floats) -> Floats:
        """Drops values and repeats ops before step k until no state gets cheaper."""
        while True:
            before = cost.copy()
            for bit in self.states.bit.values():
                has = np.flatnonzero(self.masks & bit)
                cost[has ^ bit] = np.minimum(cost[has ^ bit], cost[has])
            for op in self._earlier(k):
                state_sets, after = self._run(k, op, cost, float(self.us[op]))
                state_sets = state_sets | self.states.makes[op]
                cost[state_sets] = np.minimum(cost[state_sets], after)
            if np.array_equal(before, cost):
                return cost

    def _earlier(self, k: int) -> list[int]:
        """Returns the ops that may run again before step k."""
        return [op for op in self.states.repeatable_ops if self.states.training.rank[op] < k]

    def sequence(self) -> Ints:
        """Returns int64[runs]: the sequence of ops with the least work."""
        ops: list[int] = []
        state = self.last
        for k in range(len(self.states.steps) - 1, -1, -1):
            op = self.states.steps[k]
            ops.append(op)
            state &= ~self.states.makes[op]
            cost, entry_cost = self.settled_costs[k], self.entry_costs[k]
            while entry_cost[state] != cost[state]:
                state = self._undo_step(k, state, cost, ops)
        return np.array(ops[::-1], dtype=np.int64)

    def _undo_step(self, k: int, state: int, cost: Floats, ops: list[int]) -> int:
        """Returns the state before the last drop or run that led to `state`."""
        for op in self._earlier(k):
            before = state & ~self.states.makes[op]
            if before != state and state & self.states.makes[op] == self.states.makes[op]:
                state_sets, after = self._run(k, op, cost, float(self.us[op]))
                at = np.searchsorted(state_sets, before)
                if at < len(state_sets) and state_sets[at] == before and after[at] == cost[state]:
                    ops.append(op)
                    return before
        bits = self.states.bit.values()
        return next(state | bit for bit in bits if not state & bit and cost[state | bit] == cost[state])
