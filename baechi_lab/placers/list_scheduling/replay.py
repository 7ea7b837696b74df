"""A placement of any placer as a list of decisions: for each op, where it could have started and where it was put.

The readable list scheduler (`earliest_start_reference.py`) schedules the ops one after the other as the placement says. So
each step knows which devices are free, the transfer queues and the bytes in use. A step is computed only on access, from the
nearest stored state before it: a log of 20,000 ops opens at once. O((ops + edges) x devices) for all steps, and (ready ops x
devices) per step on access.

A replay does not know why a rule chose a device. Placers with a parameter `explain` log their own reasons.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, Placement
from ...graph.kernels.csr import inverse
from ...graph.units import format_us
from ..problem import make_problem
from .earliest_start_reference import Candidate, Decision, Pair, ReferenceState, startable_pairs

SNAPSHOTS = 24
"""How many states are stored: a step is at most a twenty-fourth of the ops after one."""


class Replay(Sequence[Decision]):
    """The decisions of `placement` (of `graph` itself, one device per op), op by op in `order` int64[n].

    `order` must be topological. Candidates of a step are all (op, device) pairs that were open then.

    >>> from baechi_lab.graph import OpGraph, Cluster, Link, Placement
    >>> graph = OpGraph.from_edges([5.0, 10.0], [(0, 1, 8)])
    >>> cluster = Cluster.uniform(2, link=Link(2.0, 0.0))
    >>> log = Replay(graph, cluster, Placement(device=[0, 1]), [0, 1])
    >>> log[1].chosen
    Candidate(op=1, device=1, start_us=7.0, excluded='')
    >>> log[1].reason
    'It went to gpu:1 although gpu:0 could have started it 2.00 us earlier.'
    """

    def __init__(self, graph: OpGraph, cluster: Cluster, placement: Placement, order: object):
        self.cluster, self.device = cluster, placement.device.tolist()
        self.order: NDArray[np.int64] = np.asarray(order, dtype=np.int64)
        self.problem = make_problem(graph, cluster)
        none = np.full(graph.n, -1, dtype=np.int32)
        self._states: dict[int, ReferenceState] = {0: ReferenceState(self.problem, none, none)}
        self._stride = max(1, -(-graph.n // SNAPSHOTS))
        self._step_of = inverse(self.order)
        # The step from which on each op is ready: the one after its last input's producer.
        problem, self._ready_from = self.problem, np.zeros(len(self), dtype=np.int64)
        reader = np.repeat(np.arange(len(self)), np.diff(problem.input_ptr))
        np.maximum.at(self._ready_from, reader, self._step_of[problem.producer[problem.inputs]] + 1)
        self._last: Decision | None = None

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, step: int) -> Decision: ...
    @overload
    def __getitem__(self, step: slice) -> Sequence[Decision]: ...
    def __getitem__(self, step: int | slice) -> Decision | Sequence[Decision]:
        if isinstance(step, slice):
            return [self[k] for k in range(*step.indices(len(self)))]
        number = step + len(self) if step < 0 else step
        if not 0 <= number < len(self):
            raise IndexError(f"step {step} of {len(self)}")
        if self._last is None or self._last.step != number:
            op = int(self.order[number])
            state, p = self._state_before(number), self.device[op]
            ready = np.flatnonzero((self._ready_from <= number) & (self._step_of >= number)).tolist()
            pairs = startable_pairs(state, ready)
            open_pairs = [Candidate(pair.op, pair.device, pair.start_us) for pair in pairs]
            decision = Candidate(op, p, state.earliest(op, p))
            of_this_op = [
                Candidate(op, d, state.earliest(op, d), self._why_not(state, op, d)) for d in range(self.cluster.n)
            ]
            excluded_pairs = {(c.op, c.device): c for c in of_this_op if c.excluded and c.device != p}
            candidates = [excluded_pairs.pop((c.op, c.device), c) for c in open_pairs]
            reason = self._reason(decision, pairs, of_this_op)
            self._last = Decision(number, (*candidates, *excluded_pairs.values()), decision, reason)
        return self._last

    def _why_not(self, state: ReferenceState, op: int, d: int) -> str:
        """Says why device `d` is excluded for `op`; empty if it is not."""
        q = self.problem
        group_device = state.group_device[q.group[op]]
        if not q.allowed[op, d]:
            return "not allowed there"
        if group_device not in (-1, d):
            return f"colocated with ops on {self.cluster.names[group_device]}"
        return _copy(state).lacks_memory(op, d)  # a copy, since the check releases bytes

    def _reason(self, decision: Candidate, pairs: list[Pair], of_this_op: list[Candidate]) -> str:
        """Compares the decision with all startable pairs, and with the chosen op on the other devices."""
        name = self.cluster.names[decision.device]
        if pairs and decision.start_us <= pairs[0].start_us:
            return "Nothing could start earlier, on any device."
        earlier_candidates = [
            c for c in of_this_op if c.device != decision.device and not c.excluded and c.start_us < decision.start_us
        ]
        if not earlier_candidates:
            return f"No device could start it earlier than {name}."
        best = min(earlier_candidates, key=lambda c: (c.start_us, c.device))
        sooner = format_us(decision.start_us - best.start_us)
        return f"It went to {name} although {self.cluster.names[best.device]} could have started it {sooner} earlier."

    def _state_before(self, step: int) -> ReferenceState:
        """Returns the state before `step`, and stores some of the states that lead to it."""
        at = max(k for k in self._states if k <= step)
        state = _copy(self._states[at])
        for k in range(at, step):
            op = int(self.order[k])
            state.commit(op, self.device[op])
            if (k + 1) % self._stride == 0 and k + 1 not in self._states:
                self._states[k + 1] = _copy(state)
        return state


def _copy(state: ReferenceState) -> ReferenceState:
    """Returns the state with lists and tables of its own; the problem is shared."""
    state_copy = copy.copy(state)
    for key, value in vars(state).items():
        if isinstance(value, (list, dict)):
            setattr(state_copy, key, copy.copy(value))
    state_copy.queues = [list(queue) for queue in state.queues]
    return state_copy
