"""Plans of recomputation within a budget of bytes: least repeated work with a peak on one device of at most the budget.

Candidates are plans for all budgets at once, so a smaller budget never gives less work. Graphs in code order are an exception:
candidates that exceed the budget in that order are left out, and no others are searched for in their place. Candidates are:
plans for chains of groups (`memory_saving.chain`), for several numbers of groups; sqrt(n) and other numbers of segments; and
the step without recomputation. Graphs of a few ops are solved exactly over all orders (`memory_saving.order_search`), those of
few values in one order (`memory_saving.state_search`). The peak of a candidate is that of the simulator, in the order of
readiness or in that of the plan, with outputs that lie in inputs (`OpGraph.reuse`).
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np

from ..errors import InfeasiblePlacement
from ..graph import Cluster, OpGraph, Placement
from ..graph.kernels.csr import inverse
from ..graph.units import format_bytes
from ..internal_warnings import warn
from ..memory.code_order import code_order, has_code_order
from ..memory.peak import least_of_one_op, order_peak, readiness_order, readiness_peak
from ..simulator import simulate
from .chain import Chain, Table
from .checkpoints import boundaries, segments
from .integer_program import Program
from .op_sequence import OpSequence, recompute_sequence
from .order_search import MOST_OPS, OrderSearch
from .recompute_groups import RecomputeGroups
from .recomputed_graph import graph_with_copies
from .state_search import MemoryStates, StateSearch
from .training_graph import TrainingGraph

GROUPS = (200, 60, 20)
"""Numbers of groups into which chains are cut; above `MANY_OPS` ops only the smaller numbers."""
MANY_OPS = 400
"""Ops that may be repeated, above which a graph counts as large."""
MOST_LEVELS = 40
"""Levels of a chain's table whose plans are read first. Above 100 ops, reading a plan takes about 0.2 s."""
READ_ALL = 100
"""Most ops for which the plans of all levels are read."""
MOST_SOLVED = 40
"""Most ops for which the integer program is solved without a time limit."""
MOST_NODES = 200
"""Most nodes of branch and bound without a time limit; they take seconds.

Few programs need as many. The proof for a WaveNet of 40 such ops took four minutes.
"""
MOST_FREE = 80
"""Most ops for which it is solved over all plans, if a time limit is given."""
MOST_ENUMERATED = 7
"""Most ops that may be repeated for which all subsets are tried, in the order of readiness."""


def best_graph_within(graph: OpGraph, budget: int, ordered: bool = False, time_limit: float | None = None) -> OpGraph:
    """Returns the graph that repeats least work among those with a peak on one device of at most `budget` bytes.

    With `ordered`, control dependencies always keep the order of the plan. `time_limit` is that of the integer program.

    Raises:
        InfeasiblePlacement: no plan fits; `needed_bytes` is the least peak of those found.
    """
    plans = plans_for(graph)
    if has_code_order(graph):
        graph_within = plans_for(graph, in_code_order=True).best(budget, ordered, time_limit)
        if graph_within is not None:
            return graph_within
    graph_within = plans.best(budget, ordered, time_limit)
    if graph_within is not None:
        if has_code_order(graph) and (peak := order_peak(graph_within, code_order(graph_within))) > budget * 1.001:
            warn(
                f"the plan for budget {format_bytes(budget)} keeps to it in the order of its ops; PyTorch runs them in the "
                f"order of the code and may need {format_bytes(peak)}, {peak / max(budget, 1) - 1:.1%} more"
            )
        return graph_within
    least, proof = plans.least_bytes, plans.lower_bound
    reason = (
        f"the least that a plan was found for is {least} bytes ({format_bytes(least)}), and no plan can do with less than "
        f"{proof} ({format_bytes(proof)})"
    )
    if proof == least:
        order = "with its ops in the order in which they run here; that no other order needs less is not proven"
        if plans.least_bytes_in_any_order is not None:
            order = "in whatever order its ops run"
        reason = (
            f"one device needs at least {least} bytes ({format_bytes(least)}) for this step, whatever is "
            f"computed again, {order}"
        )
    sentence = f"budget is {budget}; {reason}"
    raise InfeasiblePlacement(sentence, least, [budget])


@lru_cache(maxsize=4)
def plans_for(graph: OpGraph, in_code_order: bool = False) -> RecomputePlans:
    """Returns the plans of a graph, cached for the next budget."""
    return RecomputePlans(graph, in_code_order)


class RecomputePlans:
    """All candidate plans for one graph.

    With `in_code_order`, a peak is the larger one of those in the order of readiness and in the order of the code, in which
    PyTorch runs ops, whatever the order of the plan is.
    """

    def __init__(self, graph: OpGraph, in_code_order: bool = False):
        self.in_code_order = in_code_order
        # One device runs the ops in topological order or in that of readiness, whichever takes less memory.
        candidates = [TrainingGraph(graph), TrainingGraph(graph, inverse(readiness_order(graph)))]
        self.graph, self.training = graph, min(candidates, key=lambda p: OpSequence(p, p.ordered).peak)
        self.states = MemoryStates(self.training)
        self.orders = OrderSearch(self.training) if graph.n <= MOST_OPS else None
        self._plan_of_level: dict[tuple[int, int], OpSequence] = {}  # by number of groups and units of memory
        self._peaks_of_plan: dict[OpSequence, tuple[int, int]] = {}

    @cached_property
    def least_bytes_in_any_order(self) -> int | None:
        """The least peak in bytes of all plans in all orders; None if there are too many ops or orders to try."""
        return None if self.orders is None else self.orders.least_bytes

    @cached_property
    def simple_plans(self) -> list[OpSequence]:
        """The step without recomputation, and plans that repeat ops at most once: all subsets, or layers and segments."""
        repeatable = np.flatnonzero(self.training.may_repeat & (self.training.data_bytes > 0))
        plans = [OpSequence(self.training, self.training.ordered)]
        if len(repeatable) <= MOST_ENUMERATED:
            for subset in range(1, 1 << len(repeatable)):
                is_kept = np.ones(self.graph.n, dtype=np.bool_)
                is_kept[repeatable[(subset >> np.arange(len(repeatable))) & 1 == 1]] = False
                plans.append(recompute_sequence(self.training, is_kept))
        elif not self.states.are_few:
            count = max(int(np.sqrt(np.count_nonzero(self.training.may_repeat))), 1)
            numbers = sorted({max(count // 2, 1), count, 2 * count})
            masks = [boundaries(self.training), *(segments(self.training, k) for k in numbers)]
            plans += [recompute_sequence(self.training, is_kept) for is_kept in masks]
        return plans

    def peak(self, plan: OpSequence) -> int:
        """Returns the simulated peak bytes of a plan, in the better of two orders."""
        return min(self._peaks(plan))

    def _peaks(self, plan: OpSequence) -> tuple[int, int]:
        """Returns the peaks in the order of readiness and in the order of the plan."""
        if plan not in self._peaks_of_plan:
            graph = graph_with_copies(plan)
            peak, peak_in_plan_order = readiness_peak(graph), order_peak(graph, plan.node)
            if graph.on_communication_lane.any():  # collectives run beside other ops
                placement = Placement(device=np.zeros(graph.n, dtype=np.int32))
                peak = max(peak, int(simulate(graph, Cluster.uniform(1), placement, "fifo").peak_bytes[0]))
            if self.in_code_order:
                peak = peak_in_plan_order = max(peak, order_peak(graph, code_order(graph)))
            self._peaks_of_plan[plan] = peak, peak_in_plan_order
        return self._peaks_of_plan[plan]

    @cached_property
    def chains(self) -> list[Table]:
        """A table per number of groups; one is enough if the groups are the ops of a chain."""
        tables: list[Table] = []
        is_large = int(self.training.may_repeat.sum()) > MANY_OPS  # too large to try everything
        for group_count in GROUPS[1:] if is_large else GROUPS:
            chain = Chain(self.training, group_count)
            if chain.count and (not tables or chain.count < tables[-1].chain.count):
                tables.append(Table(chain))
            if chain.count == len(chain.ops) and not chain.is_pinned.any():
                break
        return tables

    def best(self, budget: int, ordered: bool = False, time_limit: float | None = None) -> OpGraph | None:
        """Returns the graph of the best plan within the budget, or None."""
        plans = [plan for plan in self.simple_plans if self.peak(plan) <= budget]
        if not plans or plans[0] is not self.simple_plans[0]:  # the step fits without recomputation
            # The best plan of each kind, in which ops may run any number of times.
            candidates: list[OpSequence | None] = []
            if self.orders is not None:
                sequence = self.orders.sequence(budget)
                candidates.append(None if sequence is None else OpSequence(self.training, sequence))
                candidates.append(self.leanest_plan_in_any_order)
            if self.states.are_few:
                search = StateSearch(self.states, budget)
                candidates.append(OpSequence(self.training, search.sequence()) if np.isfinite(search.best) else None)
                candidates.append(self.leanest_plan)
            else:
                candidates += [self.best_of_chain(table, budget) for table in self.chains]
                candidates += self._programs(budget, time_limit)
            plans += [plan for plan in candidates if plan is not None and self.peak(plan) <= budget]
        plan = min(plans, key=lambda plan: plan.work_us, default=None)
        if plan is None:
            return None
        graph, (readiness_peak_bytes, own_peak) = graph_with_copies(plan), self._peaks(plan)
        if readiness_peak_bytes <= budget and not ordered:
            return graph
        # Control dependencies keep an order that fits.
        return graph_with_copies(plan, plan.node if own_peak <= budget else readiness_order(graph))

    def _programs(self, budget: int, time_limit: float | None) -> list[OpSequence | None]:
        """Returns plans of the integer program; without a time limit only for small graphs, and for few nodes."""
        groups = self.groups
        if time_limit is None:
            is_used = (
                groups.is_exact and groups.count <= MOST_SOLVED and not self.is_chain and budget >= self.least_bytes
            )
            return [Program(groups, once=True).solve(budget, node_limit=MOST_NODES).plan] if is_used else []
        if not groups.is_exact:  # counted from above, so that plans of a larger budget may keep within this one
            overcount = max(groups.peak_without_recompute - self.peak(self.simple_plans[0]), 0)
            budgets = sorted({budget, budget + overcount})
            return [
                Program(groups, once=True).solve(budget_bytes, time_limit / len(budgets)).plan
                for budget_bytes in budgets
            ]
        solutions = [Program(groups, once=True).solve(budget, time_limit)]
        seconds_left = time_limit - solutions[0].seconds
        if groups.count <= MOST_FREE and seconds_left > 0.0:
            solutions.append(Program(groups).solve(budget, seconds_left, solutions[0] if solutions[0].values else None))
        return [one.plan for one in solutions]

    @cached_property
    def leanest_plan(self) -> OpSequence:
        """Returns the plan of least bytes; if outputs reuse memory, its peak may be below the one that the search counts."""
        return OpSequence(self.training, StateSearch(self.states, int(StateSearch(self.states).best)).sequence())

    @cached_property
    def leanest_plan_in_any_order(self) -> OpSequence | None:
        """Returns the plan of least bytes in any order: a fallback, since a search for a larger budget may give up."""
        if self.orders is None or self.least_bytes_in_any_order is None:
            return None
        sequence = self.orders.sequence(self.least_bytes_in_any_order)
        return None if sequence is None else OpSequence(self.training, sequence)

    @cached_property
    def groups(self) -> RecomputeGroups:
        """Groups of ops for the integer program."""
        return RecomputeGroups(self.training)

    @property
    def is_chain(self) -> bool:
        """Whether the ops that may be repeated form a chain, which the dynamic program solves exactly."""
        chain = self.chains[0].chain if self.chains else None
        return chain is None or (chain.count == len(chain.ops) and not chain.is_pinned.any())

    def best_of_chain(self, table: Table, budget: int) -> OpSequence | None:
        """Returns the plan of least work of a chain within the budget, among the first levels and those just before."""
        levels, first_levels = table.levels(), self._first_read(table)
        for k, before in zip(first_levels, [-1, *first_levels], strict=False):
            if self.peak(plan := self._plan_at_level(table, levels[k])) <= budget:
                plans = (self._plan_at_level(table, level) for level in levels[before + 1 : k])
                return next((cheaper for cheaper in plans if self.peak(cheaper) <= budget), plan)
        return None

    def _first_read(self, table: Table) -> list[int]:
        """Returns the positions of the first levels to read: all, or `MOST_LEVELS` evenly spaced ones and the last."""
        count = len(table.levels())
        if count > MOST_LEVELS and self.training.may_repeat.sum() > READ_ALL:
            return np.linspace(0, count - 1, MOST_LEVELS).astype(np.int64).tolist()
        return list(range(count))

    @cached_property
    def least_bytes(self) -> int:
        """The least peak of the plans that were found."""
        plans = [
            *self.simple_plans,
            *([] if self.leanest_plan_in_any_order is None else [self.leanest_plan_in_any_order]),
        ]
        if self.states.are_few:
            plans.append(self.leanest_plan)
        else:
            plans += [self._plan_at_level(t, t.levels()[k]) for t in self.chains for k in self._first_read(t)]
        return min(self.peak(plan) for plan in plans)

    def _plan_at_level(self, table: Table, level: int) -> OpSequence:
        key = (table.chain.count, level)
        if key not in self._plan_of_level:
            self._plan_of_level[key] = OpSequence(self.training, table.plan(level))
        return self._plan_of_level[key]

    @cached_property
    def lower_bound(self) -> int:
        """A lower bound of the bytes of every plan: from an exact search where there is one, else from the largest op."""
        if self.least_bytes_in_any_order is not None:
            return self.least_bytes_in_any_order
        return self.least_bytes if self.states.are_few and self.graph.reuse is None else least_of_one_op(self.graph)
