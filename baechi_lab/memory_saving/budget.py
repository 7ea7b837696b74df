"""Plans of recomputation within a budget of bytes: the least repeated work that keeps one device's peak below it.

Candidates are plans for all budgets at once, so that a smaller budget never gives less work: what chains of groups admit
(`memory_saving.chain`), for several numbers of groups; sqrt(n) and other numbers of segments; and the step as it is.
Graphs of a few ops are solved exactly over all orders (`memory_saving.order_search`), those of few values in one order
(`memory_saving.state_search`). What a candidate holds is what the simulator counts, in the
order of readiness or in that of the plan, and with what `OpGraph.reuse` says.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from ..errors import InfeasiblePlacement
from ..graph import OpGraph
from ..graph.kernels.csr import inverse
from ..graph.units import format_bytes
from ..memory.peak import least_of_one_op, order_peak, readiness_order, readiness_peak
from .chain import Chain, Table
from .checkpoints import boundaries, segments
from .integer_program import Program
from .op_sequence import Runs, runs_of
from .order_search import MOST_OPS, Orders
from .recompute_groups import Groups
from .recomputed_graph import with_copies
from .state_search import Search, States
from .training_graph import Parts

Bools = NDArray[np.bool_]

GROUPS = (200, 60, 20)
"""Groups of the chains that are tried; above `MANY_OPS` ops only the smaller ones."""
MANY_OPS = 400
MOST_LEVELS = 40
"""Levels of a chain's table whose plans are read first: of more than 100 ops reading one takes a fifth of a second."""
READ_ALL = 100
"""Ops up to which the plans of all levels are read."""
MOST_PROVEN = 40
"""Ops up to which the integer program is asked without a limit of time: it takes seconds there."""
MOST_FREE = 80
"""Ops up to which it is asked for all plans, when a limit of time is given."""
MOST_ENUMERATED = 7
"""Ops that may be repeated of which all subsets are tried, in the order of readiness."""


def within(graph: OpGraph, budget: int, ordered: bool = False, time_limit: float | None = None) -> OpGraph:
    """The graph that repeats least work among those whose peak on one device is at most `budget` bytes.

    With `ordered`, control dependencies keep the order of the plan in any case. `time_limit` is that of the integer program.

    Raises:
        InfeasiblePlacement: no plan needs so little; `needed_bytes` is the least of those found.
    """
    plans = plans_of(graph)
    found = plans.best(budget, ordered, time_limit)
    if found is not None:
        return found
    least, proof = plans.least, plans.lower_bound
    what = (
        f"the least that a plan was found for is {least} bytes ({format_bytes(least)}), and no plan can do with less than "
        f"{proof} ({format_bytes(proof)})"
    )
    if proof == least:
        order = "with its ops in the order in which they run here; that no other order needs less is not proven"
        if plans.least_over_orders is not None:
            order = "in whatever order its ops run"
        what = (
            f"one device needs at least {least} bytes ({format_bytes(least)}) for this step, whatever is "
            f"computed again, {order}"
        )
    sentence = f"budget is {budget}; {what}"
    raise InfeasiblePlacement(sentence, least, [budget])


def _work(runs: Runs) -> float:
    return runs.work_us


@lru_cache(maxsize=4)
def plans_of(graph: OpGraph) -> Plans:
    """The plans of a graph, kept for the next budget."""
    return Plans(graph)


class Plans:
    """All candidates for one graph, from the least work to the most."""

    def __init__(self, graph: OpGraph):
        # One device runs the ops in topological order or in that of readiness, whichever takes less memory.
        parts = [Parts(graph), Parts(graph, inverse(readiness_order(graph)))]
        self.graph, self.parts = graph, min(parts, key=lambda p: Runs(p, p.ordered).peak)
        self.states = States(self.parts)
        self.orders = Orders(self.parts) if graph.n <= MOST_OPS else None
        self._known: dict[tuple[int, int], Runs] = {}  # by number of groups and units of memory
        self._counted: dict[Runs, tuple[int, int]] = {}

    @cached_property
    def least_over_orders(self) -> int | None:
        """Least bytes of any plan in any order; None where there are too many ops or orders to try."""
        return None if self.orders is None else self.orders.least

    @cached_property
    def simple(self) -> list[Runs]:
        """The step as it is, and plans that repeat ops at most once: all of few ops, else layers and segments."""
        able = np.flatnonzero(self.parts.may_repeat & (self.parts.data_bytes > 0))
        plans = [Runs(self.parts, self.parts.ordered)]
        if len(able) <= MOST_ENUMERATED:
            for chosen in range(1, 1 << len(able)):
                kept = np.ones(self.graph.n, dtype=np.bool_)
                kept[able[(chosen >> np.arange(len(able))) & 1 == 1]] = False
                plans.append(runs_of(self.parts, kept))
        elif not self.states.few:
            count = max(int(np.sqrt(np.count_nonzero(self.parts.may_repeat))), 1)
            numbers = sorted({max(count // 2, 1), count, 2 * count})
            kept_ops = [boundaries(self.parts), *(segments(self.parts, k) for k in numbers)]
            plans += [runs_of(self.parts, kept) for kept in kept_ops]
        return plans

    def peak(self, runs: Runs) -> int:
        """Bytes that a plan holds at most as it is simulated, in the better of two orders."""
        return min(self._peaks(runs))

    def _peaks(self, runs: Runs) -> tuple[int, int]:
        """The peaks in the order of readiness and in the plan's own."""
        if runs not in self._counted:
            graph = with_copies(runs)
            self._counted[runs] = readiness_peak(graph), order_peak(graph, runs.node)
        return self._counted[runs]

    @cached_property
    def chains(self) -> list[Table]:
        """A table per number of groups; one is enough where the groups are the ops of a chain."""
        found: list[Table] = []
        for most in GROUPS[1:] if self.many else GROUPS:
            chain = Chain(self.parts, most)
            if chain.count and (not found or chain.count < found[-1].chain.count):
                found.append(Table(chain))
            if chain.count == len(chain.ops) and not chain.pinned.any():
                break
        return found

    def best(self, budget: int, ordered: bool = False, time_limit: float | None = None) -> OpGraph | None:
        """The graph of the best plan within the budget, None if there is none."""
        plans = [runs for runs in self.simple if self.peak(runs) <= budget]
        if not plans or plans[0] is not self.simple[0]:  # the step as it is would do
            plans += self._sequences(budget, time_limit)
        best = min(plans, key=_work, default=None)
        return None if best is None else self._as_graph(best, budget, ordered)

    def _sequences(self, budget: int, time_limit: float | None) -> list[Runs]:
        """Plans in which ops may run any number of times, the best of each kind that keeps within the budget."""
        plans: list[Runs | None] = []
        if self.orders is not None:
            sequence = self.orders.sequence(budget)
            plans.append(None if sequence is None else Runs(self.parts, sequence))
            plans.append(self.leanest_order)
        if self.states.few:
            search = Search(self.states, budget)
            plans.append(Runs(self.parts, search.sequence()) if np.isfinite(search.best) else None)
            plans.append(self.leanest)
        else:
            plans += [self.of_chain(table, budget) for table in self.chains]
            plans += self._programs(budget, time_limit)
        return [runs for runs in plans if runs is not None and self.peak(runs) <= budget]

    def _programs(self, budget: int, time_limit: float | None) -> list[Runs | None]:
        """Plans of the integer program: without a limit of time only where optima are soon proven, else of both its forms."""
        groups = self.groups
        if time_limit is None:
            asked = groups.exact and groups.count <= MOST_PROVEN and not self.plain and budget >= self.least
            return [Program(groups, once=True).solve(budget).runs] if asked else []
        if not groups.exact:  # counted from above, so that plans of a larger budget may keep within this one
            more = max(groups.plain_peak - self.peak(self.simple[0]), 0)
            budgets = sorted({budget, budget + more})
            return [Program(groups, once=True).solve(room, time_limit / len(budgets)).runs for room in budgets]
        solved = [Program(groups, once=True).solve(budget, time_limit)]
        left = time_limit - solved[0].seconds
        if groups.count <= MOST_FREE and left > 0.0:
            solved.append(Program(groups).solve(budget, left, solved[0] if solved[0].values else None))
        return [one.runs for one in solved]

    @cached_property
    def leanest(self) -> Runs:
        """The exact plan of least bytes; where outputs share memory it may hold less than the search counts."""
        return Runs(self.parts, Search(self.states, int(Search(self.states).best)).sequence())

    @cached_property
    def leanest_order(self) -> Runs | None:
        """The plan of least bytes in any order: a search for a larger budget may give up where it finds too much to try."""
        if self.orders is None or self.least_over_orders is None:
            return None
        sequence = self.orders.sequence(self.least_over_orders)
        return None if sequence is None else Runs(self.parts, sequence)

    def _as_graph(self, runs: Runs, budget: int, ordered: bool) -> OpGraph:
        """The plan with control dependencies where it needs them, or where an order is asked for: its own, if that fits."""
        ready, own = self._peaks(runs)
        if ready <= budget and not ordered:
            return with_copies(runs)
        return with_copies(runs, runs.node if own <= budget else readiness_order(with_copies(runs)))

    @cached_property
    def groups(self) -> Groups:
        """The groups of the integer program."""
        return Groups(self.parts)

    @property
    def plain(self) -> bool:
        """Whether the ops that may be repeated are a chain, which the dynamic program solves."""
        chain = self.chains[0].chain if self.chains else None
        return chain is None or (chain.count == len(chain.ops) and not chain.pinned.any())

    def of_chain(self, table: Table, budget: int) -> Runs | None:
        """The plan of least work of a chain whose peak keeps within the budget, of those first read and those just before it."""
        levels, chosen = table.levels(), self._first_read(table)
        for k, before in zip(chosen, [-1, *chosen], strict=False):
            if self.peak(runs := self._read(table, levels[k])) <= budget:
                plans = (self._read(table, level) for level in levels[before + 1 : k])
                return next((less for less in plans if self.peak(less) <= budget), runs)
        return None

    def _first_read(self, table: Table) -> list[int]:
        """Places of the levels that are read first: all of them, or `MOST_LEVELS` that lie evenly, the last one included."""
        count = len(table.levels())
        if count > MOST_LEVELS and self.parts.may_repeat.sum() > READ_ALL:
            return np.linspace(0, count - 1, MOST_LEVELS).astype(np.int64).tolist()
        return list(range(count))

    @property
    def many(self) -> bool:
        """Whether the graph is too large for everything to be tried."""
        return int(self.parts.may_repeat.sum()) > MANY_OPS

    @cached_property
    def least(self) -> int:
        """Least bytes of any plan that was found."""
        plans = [*self.simple, *([] if self.leanest_order is None else [self.leanest_order])]
        if self.states.few:
            plans.append(self.leanest)
        else:
            plans += [self._read(t, t.levels()[k]) for t in self.chains for k in self._first_read(t)]
        return min(self.peak(runs) for runs in plans)

    def _read(self, table: Table, level: int) -> Runs:
        key = (table.chain.count, level)
        if key not in self._known:
            self._known[key] = Runs(self.parts, table.plan(level))
        return self._known[key]

    @cached_property
    def lower_bound(self) -> int:
        """Bytes that every plan needs: those of an exact search (that in one order shares no memory), else of the largest op."""
        if self.least_over_orders is not None:
            return self.least_over_orders
        return self.least if self.states.few and self.graph.reuse is None else least_of_one_op(self.graph)
