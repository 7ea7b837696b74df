"""Recomputation of a chain of groups with least repeated work, for every amount of memory: a dynamic program.

The forward ops that may be repeated are cut into groups 0..m-1 in topological order. The backward ops follow from the last
group to the first: those of stage j read outputs of group j, and perhaps of group j - 1. For a part i..j of the chain
whose input is live anyway, with M bytes for all the rest,

    C(i, j, M)   least microseconds of forward ops until the stages j, ..., i have run, if no output of the part is held
    D(i, j, M)   the same, if the outputs of group j that stage j reads are held; their bytes count in M

    C(i, j, M) = min over k < j of  run(i..k) + C(k + 1, j, M - h(i, k)) + D(i, k, M)    hold the outputs of group k
                 or                 run(i..j) + D(i, j, M)
    D(i, j, M) = C(i, j - 1, M)                                                           stage j reads group j only
                 or min over k < j of  run(i..k) + D(k + 1, j, M - h(i, k)) + D(i, k, M)  it reads group j - 1 as well

where h(i, k) are the bytes of groups i..k that later groups read, with those of group k that its stage reads. A sum is only
possible if M bytes are enough while it runs: for live outputs in the forward direction, for the stage's gradients and
temporaries in the backward direction. For equal stages this is the recursion of Griewank and Walther 2000
(doi:10.1145/347837.347846), and reaches its optimum. For other chains it is that of Beaumont et al. 2019 (arXiv:1911.13214),
the best of the plans that hold an output until its last reader. Ops may run any number of times.

Memory is counted in units, at most `CELLS` for all parts together; sizes are rounded up to units. `OpSequence.peak` then counts
the exact bytes of a plan. A value that a stage reads from a group further back than the previous one is held throughout.
O(m^3 units) by array operations.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..graph import CONTROL_BYTES
from ..graph.kernels.csr import Bools, Floats, Ints, interval_sum
from ..memory.peak import last_use, live_bytes
from .checkpoints import is_read_by_backward_op
from .training_graph import TrainingGraph

MOST_GROUPS = 200
"""Most groups of a chain."""
CELLS = 10**8
"""Most cells of the tables of m groups, which are m^3 / 6 times the units of memory: some seconds."""
MOST_UNITS = 1000
"""Most units in which memory is counted."""


class Chain:
    """Groups of forward ops and stages of backward ops, with the bytes and microseconds of every run of groups.

    With `pin=False` it is no chain: every op is a group, no value is held throughout, every backward op that reads a group is a
    stage, and there are no tables. `repeatable`, bool[n], are the ops that may be dropped, by default all that may be repeated.
    """

    def __init__(
        self,
        training: TrainingGraph,
        max_groups: int = MOST_GROUPS,
        *,
        pin: bool = True,
        repeatable: Bools | None = None,
    ):
        self.training, graph, self.pin = training, training.graph, pin
        # The repeatable ops on which a value that a backward op reads depends, in topological order.
        repeatable = training.may_repeat if repeatable is None else repeatable
        leads = is_read_by_backward_op(training) & repeatable
        for op in training.ordered[::-1].tolist():
            leads[op] |= bool(repeatable[op] and leads[training.readers(op)].any())
        self.ops = training.ordered[leads[training.ordered]]
        place = np.full(graph.n, -1, dtype=np.int64)
        place[self.ops] = np.arange(len(self.ops))
        self.size, self.us = training.data_bytes[self.ops], graph.duration_us[self.ops]
        readers = [place[training.readers(op)] for op in self.ops.tolist()]
        self.readers = [r[r >= 0] for r in readers]
        self.reach = np.array([r.max(initial=-1) for r in self.readers], dtype=np.int64)
        self.group_ends = self._cuts(max_groups if pin else len(self.ops))  # position after the last op of each group
        self.count = len(self.group_ends)
        self.group = np.searchsorted(self.group_ends, np.arange(len(self.ops)), side="right")
        self.place = place
        self._stages()

    def _cuts(self, max_groups: int) -> Ints:
        """Returns the ends of the groups: after every op, or in each of `max_groups` windows where least is read across."""
        n = len(self.ops)
        if n <= max_groups:
            return np.arange(1, n + 1)
        read = np.flatnonzero(self.reach >= 0)
        # Bytes read across the cut after each position.
        crossing = interval_sum(self.size[read], read, self.reach[read], n + 1)
        edges = np.linspace(0, n, max_groups + 1).astype(np.int64)
        last_ops = [low + int(crossing[low:high].argmin()) + 1 for low, high in pairwise(edges.tolist())]
        return np.unique([*last_ops[:-1], n])

    def _stages(self) -> None:
        """Finds the stage of every backward op and the values that are held throughout."""
        training, graph = self.training, self.training.graph
        self.backward_ops = training.ordered[training.is_backward[training.ordered]]
        pointer, tensors = graph.inputs
        read: list[list[int]] = []  # positions of the forward values that each backward op reads
        for op in self.backward_ops.tolist():
            inputs = tensors[pointer[op] : pointer[op + 1]]
            inputs = inputs[graph.tensor_bytes[inputs] > CONTROL_BYTES]
            positions_read = self.place[graph.tensor_producer[inputs]]
            read.append(positions_read[positions_read >= 0].tolist())
        highest = np.array([max((int(self.group[p]) for p in r), default=-1) for r in read], dtype=np.int64)
        highest_later = np.maximum.accumulate(highest[::-1])[::-1] if len(highest) else highest
        self.stage, self.stages = np.maximum(highest_later, 0), self.count
        if not self.pin:
            stage_number = np.maximum(np.cumsum(highest >= 0), 1)
            self.stages = max(int(np.count_nonzero(highest >= 0)), 1)
            self.stage = self.stages - stage_number
        self.is_read_by_backward = is_read_by_backward_op(training)[self.ops]
        self.input_read = np.zeros(self.count, dtype=np.bool_)
        self.is_pinned = np.zeros(len(self.ops), dtype=np.bool_)
        for stage, positions in zip(self.stage.tolist() if self.pin else [], read, strict=False):
            for p in positions:
                self.is_pinned[p] |= self.group[p] < stage - 1
                self.input_read[stage] |= self.group[p] == stage - 1
        self.is_read_by_backward &= ~self.is_pinned
        self.read = read
        self._bytes_of_backward_ops()
        if self.pin:
            # Make tables [i, k] for runs of groups i..k: bytes held after the run, most bytes during it, microseconds.
            m = self.count
            self.live_bytes = np.zeros((3, m, m), dtype=np.int64)
            self.run_peak_bytes = np.zeros((3, m, m), dtype=np.int64)
            self.cost = np.zeros((3, m, m))
            self.runs_by_mode: tuple[list[NDArray[np.bool_]], ...] = ([], [], [])  # by mode and last group: what runs
            self._is_pinned_list, self._size, self._us = self.is_pinned.tolist(), self.size.tolist(), self.us.tolist()
            self._readers = [r.tolist() for r in self.readers]
            for k in range(m):
                for mode in range(3):
                    self._run(k, mode)

    def _bytes_of_backward_ops(self) -> None:
        """Sets `due` and `backward`, int64[m] each: bytes when a stage begins, and at most while it runs.

        They count backward outputs and what the plan does not decide on.
        """
        training, graph = self.training, self.training.graph
        rank, count = training.rank, self.stages
        first_backward = graph.n - len(self.backward_ops)
        is_backward = rank[graph.tensor_producer] >= first_backward
        live, last = live_bytes(graph, rank, graph.tensor_bytes, is_backward), last_use(graph, rank)[is_backward]
        free = np.zeros(graph.n, dtype=np.bool_)  # forward ops whose outputs the plan does not decide on
        free[training.ordered[:first_backward]] = True
        free[self.ops[~self.is_pinned]] = False
        data = np.flatnonzero(free[graph.tensor_producer] & (graph.tensor_bytes > CONTROL_BYTES))
        until, self.start_bytes = np.zeros(count, dtype=np.int64), 0  # the latter are read by the first group alone
        self.undroppable_bytes: dict[tuple[int, tuple[int, ...]], int] = {}
        for t in data.tolist():
            readers = graph.tensor_consumers(t)
            stages = [*self.group[self.place[readers[self.place[readers] >= 0]]].tolist()]
            stages += self.stage[rank[readers[training.is_backward[readers]]] - first_backward].tolist()
            if stages and self.count and self.pin:
                until[min(stages)] += graph.tensor_bytes[t]
            elif stages and self.count:
                self._count_undropped(t, until)
            if stages and max(stages) == 0 and not training.is_backward[readers].any():
                self.start_bytes += int(graph.tensor_bytes[t])
        # Alive in stage j: what is needed in a stage of at most j.
        kept_bytes = self.live_forward_bytes = np.cumsum(until)
        # Bytes while each backward op runs.
        self.backward_op_bytes = live[first_backward:] + graph.temp_bytes[self.backward_ops]
        self.due, self.backward = kept_bytes.copy(), kept_bytes.copy()
        for j in range(count):
            ranks = first_backward + np.flatnonzero(self.stage == j)
            if len(ranks):
                before = int(live[ranks[0] - 1]) if ranks[0] > first_backward else 0
                ends_before = last == ranks[0] - 1
                self.due[j] += before - int(graph.tensor_bytes[is_backward][ends_before].sum())
                self.backward[j] += int(self.backward_op_bytes[ranks - first_backward].max())

    def _count_undropped(self, t: int, until: Ints) -> None:
        """Counts tensor `t`, which no plan drops: it is held for its backward readers, and for groups until they run again.

        `undroppable_bytes` maps (least stage of its backward readers, or `stages` without one; groups that read it) to bytes.
        """
        training, readers = self.training, self.training.graph.tensor_consumers(t)
        first_backward = self.training.graph.n - len(self.backward_ops)
        is_backward = training.is_backward[readers]
        stage = int(self.stage[training.rank[readers[is_backward]] - first_backward].min(initial=self.stages))
        groups = self.place[readers[~is_backward]]
        groups = np.unique(self.group[groups[groups >= 0]])
        if stage < self.stages:
            until[stage] += self.training.graph.tensor_bytes[t]
        key = stage, tuple(groups.tolist())
        if key[1]:
            self.undroppable_bytes[key] = self.undroppable_bytes.get(key, 0) + int(self.training.graph.tensor_bytes[t])

    def targets(self, k: int, mode: int) -> NDArray[np.bool_]:
        """Returns bool[ops up to the end of group k]: the outputs that are held after a run up to group k.

        Mode 0: those that later groups read. Mode 1: also those of group k that its stage reads. Mode 2: only the latter.
        """
        end = int(self.group_ends[k])
        crosses_end = self.reach[:end] >= end if mode < 2 else np.zeros(end, dtype=np.bool_)
        if mode:
            crosses_end |= self.is_read_by_backward[:end] & (self.group[:end] == k)
        return crosses_end & ~self.is_pinned[:end]

    def needed_ops(self, first: int, k: int, mode: int) -> NDArray[np.bool_]:
        """Returns bool[ops up to the end of group k]: the ops of groups first..k that run for the targets."""
        is_needed = self.runs_by_mode[mode][k]
        return is_needed & (self.group[: len(is_needed)] >= first)

    def _run(self, k: int, mode: int) -> None:
        """Fills the tables for runs that end with group k, from the last op to the first."""
        end = int(self.group_ends[k])
        target = self.targets(k, mode).tolist()
        is_needed, is_pinned, readers, size = list(target), self._is_pinned_list, self._readers, self._size
        temp, cost, live_bytes = self.training.graph.temp_bytes[self.ops[:end]], 0.0, 0
        grows = np.zeros(end + 1, dtype=np.int64)  # bytes under way, as changes
        top = end
        for first in range(k, -1, -1):
            start = int(self.group_ends[first - 1]) if first else 0
            for p in range(top - 1, start - 1, -1):
                last = p
                for reader in readers[p]:
                    if reader < end and is_needed[reader]:
                        last = reader if reader > last else last
                        is_needed[p] = is_needed[p] or not is_pinned[p]
                if is_needed[p]:
                    grows[p] += size[p]
                    grows[end if target[p] else last + 1] -= size[p]
                    live_bytes += size[p] if target[p] else 0
                    cost += self._us[p]
            running = (temp[start:] + np.cumsum(grows[start:end]))[np.array(is_needed[start:], dtype=np.bool_)]
            self.live_bytes[mode, first, k], self.cost[mode, first, k] = live_bytes, cost
            self.run_peak_bytes[mode, first, k] = running.max(initial=0)
            top = start
        self.runs_by_mode[mode].append(np.array(is_needed, dtype=np.bool_))


KEEP_BOUNDARY, KEEP_GROUP, KEEP_OWN = range(3)
"""Modes of a run, which say the outputs that are held after it: `Chain.targets`."""


class Table:
    """The tables C[j, i, M] and D[j, i, M] of a chain, for M = 0 to `units` of memory.

    `most` is a number of bytes that is enough to hold everything.
    """

    def __init__(self, chain: Chain):
        self.chain, m = chain, chain.count
        everything = int(chain.size.sum()) + int(chain.backward.max(initial=0)) + int(chain.due.max(initial=0))
        self.most_bytes = everything + int(chain.training.graph.temp_bytes[chain.ops].max(initial=0))
        sizes = np.concatenate([chain.live_bytes.ravel(), chain.run_peak_bytes.ravel(), chain.due, chain.backward])
        common = int(np.gcd.reduce(sizes)) if len(sizes) else 1
        allowed = min(max(CELLS * 6 // max(m, 1) ** 3, 20), MOST_UNITS)
        self.unit = max(common, 1) if self.most_bytes // max(common, 1) <= allowed else -(-self.most_bytes // allowed)
        self.units = -(-self.most_bytes // self.unit)
        in_units = lambda sizes: -(-sizes // self.unit)  # noqa: E731
        self.live_bytes, self.run_peak_bytes = in_units(chain.live_bytes), in_units(chain.run_peak_bytes)
        self.due, self.backward = in_units(chain.due), in_units(chain.backward)
        self.own_bytes = self.live_bytes[KEEP_OWN].diagonal()
        self.memory = np.arange(self.units + 1)
        # [j, i, M], so that the parts that end at one j lie side by side
        self.C = np.full((m, m, self.units + 1), np.inf)
        self.D = np.full((m, m, self.units + 1), np.inf)
        for j in range(m):
            for i in range(j, -1, -1):
                self.D[j, i] = self._least_cost(self.costs_with_own_held(i, j, self.memory))
                self.C[j, i] = self._least_cost(self.costs_with_nothing_held(i, j, self.memory))
                if j < m - 1:
                    self.D[j, i] = np.minimum(self.D[j, i], self.C[j, i])
        self.root = self._root() if m else np.zeros(0)

    def _least_cost(self, costs: list[tuple[int, Floats]]) -> Floats:
        return np.min([cost for _, cost in costs], axis=0)

    def _at(self, table: Floats, memory: Ints) -> Floats:
        """Returns the entries of a table for these amounts of memory."""
        return table if memory is self.memory else table[..., memory]

    def _root(self) -> Floats:
        """Returns float64[M]: the cost of the whole chain; if the first group is held, values that only it reads are free."""
        m = self.chain.count
        if m == 1:
            return self.C[0, 0]
        shift = self.first_held
        second_cost = self.C[m - 1, 1][np.clip(self.memory - shift, 0, self.units)]
        self.from_second = np.where(self.memory >= shift, second_cost, np.inf)
        return np.minimum(self.C[m - 1, 0], self.from_second)

    @property
    def first_held(self) -> int:
        """Units of the first group if it is held throughout, less those of the values that only it reads."""
        return int(self.live_bytes[KEEP_GROUP, 0, 0]) - self.chain.start_bytes // self.unit

    def _split_costs(
        self, i: int, j: int, mode: int, tables: tuple[Floats, Floats], extra_units: int, memory: Ints
    ) -> Floats:
        """Returns float64[k - i, M] for k in i..j-1: run i..k, then k+1..j by the first table, then i..k by the second."""
        ks, (inner, outer) = slice(i, j), tables
        enough = memory[None, :] >= (self.run_peak_bytes[mode, i, ks] + self.due[j] + extra_units)[:, None]
        first = j == self.chain.count - 1 and inner is self.C  # the forward pass, which is no repeated work
        remaining = memory[None, :] - self.live_bytes[mode, i, ks][:, None]
        inner_cost = np.take_along_axis(inner[j, i + 1 : j + 1], np.maximum(remaining, 0), axis=1)
        total = np.where(remaining >= 0, inner_cost, np.inf) + self._at(outer[ks, i], memory)
        return np.where(enough, total + self.chain.cost[mode, i, ks][:, None] * (not first), np.inf)

    def costs_with_nothing_held(self, i: int, j: int, memory: Ints) -> list[tuple[int, Floats]]:
        """Returns (code, float64[memory]) of every alternative in the equation of C(i, j); `_PlanReader` decodes them."""
        chain = self.chain
        cost = 0.0 if j == chain.count - 1 else float(chain.cost[KEEP_OWN, i, j])
        enough = memory >= self.run_peak_bytes[KEEP_OWN, i, j] + self.due[j]
        costs = [(self.RUN_FORWARD, np.where(enough, cost + self._at(self.D[j, i], memory), np.inf))]
        if j > i:
            by_cut = self._split_costs(i, j, KEEP_GROUP, (self.C, self.D), 0, memory)
            costs += [(2 * (i + d), row) for d, row in enumerate(by_cut)]
            lacking = chain.live_bytes[KEEP_GROUP, i, i:j] > chain.live_bytes[KEEP_BOUNDARY, i, i:j]
            if (bare := np.flatnonzero(lacking & ~chain.input_read[i + 1 : j + 1])).size:
                rows = self._split_costs(i, j, KEEP_BOUNDARY, (self.C, self.C), 0, memory)
                costs += [(2 * (i + d) + 1, rows[d]) for d in bare.tolist()]
        return costs

    RUN_FORWARD, RUN_BACKWARD = -1, -2

    def costs_with_own_held(self, i: int, j: int, memory: Ints) -> list[tuple[int, Floats]]:
        """Returns (code, float64[memory]) of every alternative in the equation of D(i, j); `_PlanReader` decodes them."""
        backward_cost = np.where(memory >= self.own_bytes[j] + self.backward[j], 0.0, np.inf)
        if j == i:
            return [(self.RUN_BACKWARD, backward_cost)]
        if not self.chain.input_read[j]:
            return [(self.RUN_BACKWARD, backward_cost + self._at(self.C[j - 1, i], memory))]
        rows = self._split_costs(i, j, KEEP_GROUP, (self.D, self.D), int(self.own_bytes[j]), memory)
        return [(2 * (i + d), row) for d, row in enumerate(rows)]

    def levels(self) -> list[int]:
        """Returns the units of memory at which the work changes, from the most memory to the least that is enough."""
        if self.chain.count == 0:
            return []
        cost = self.root
        fits = np.flatnonzero(np.isfinite(cost))
        changes = [k for k in fits.tolist() if k == fits[0] or cost[k] < cost[k - 1]]
        return changes[::-1]

    def plan(self, units: int) -> Ints:
        """Returns int64[runs]: the sequence of ops of the best plan within `units` of memory."""
        return _PlanReader(self).sequence(units)


class _PlanReader:
    """Reads the sequence of ops of a plan from the tables C and D."""

    def __init__(self, table: Table):
        self.table, self.chain = table, table.chain
        self.last_stage, self.sequences = -1, []  # type: int, list[Ints]

    def sequence(self, units: int) -> Ints:
        training = self.chain.training
        is_backward = training.is_backward[training.ordered]
        self.sequences.append(training.ordered[~is_backward])
        last, table = self.chain.count - 1, self.table
        todo = [("C", 0, last, units)]
        if last and table.from_second[units] < table.C[last, 0, units]:
            self._run(0, 0, KEEP_GROUP)
            inside = min(units - table.first_held, table.units)
            todo = [("D", 0, 0, units), ("C", 1, last, inside)]
        while todo:
            kind, i, j, memory = todo.pop()
            if kind == "back":
                self.sequences.append(self.chain.backward_ops[self.chain.stage == j])
            elif kind == "C":
                todo += self._read_C(i, j, memory)[::-1]
            else:
                todo += self._read_D(i, j, memory)[::-1]
        return np.concatenate(self.sequences)

    def _read_C(self, i: int, j: int, memory: int) -> list[tuple[str, int, int, int]]:
        table = self.table
        # Of equal costs a cut is taken: a part that runs as a whole, for 0 us, and begins again would never end.
        code, _ = min(
            table.costs_with_nothing_held(i, j, np.array([memory])),
            key=lambda choice: (choice[1][0], choice[0] == Table.RUN_FORWARD),
        )
        if code == Table.RUN_FORWARD:
            self._run(i, j, KEEP_OWN)
            return [("D", i, j, memory)]
        k, mode = code // 2, KEEP_BOUNDARY if code % 2 else KEEP_GROUP
        self._run(i, k, mode)
        inside = memory - int(table.live_bytes[mode, i, k])
        return [("C", k + 1, j, inside), ("C" if code % 2 else "D", i, k, memory)]

    def _read_D(self, i: int, j: int, memory: int) -> list[tuple[str, int, int, int]]:
        table = self.table
        code, cost = min(table.costs_with_own_held(i, j, np.array([memory])), key=lambda choice: choice[1][0])
        if j < self.chain.count - 1 and table.C[j, i, memory] < cost[0]:
            return [("C", i, j, memory)]
        if code == Table.RUN_BACKWARD:
            return [("back", j, j, 0), *([("C", i, j - 1, memory)] if j > i else [])]
        k = code // 2
        self._run(i, k, KEEP_GROUP)
        return [("D", k + 1, j, memory - int(table.live_bytes[KEEP_GROUP, i, k])), ("D", i, k, memory)]

    def _run(self, i: int, k: int, mode: int) -> None:
        """Appends copies of the ops that ran before; those that run for the first time are in the forward pass."""
        is_repeated = self.chain.needed_ops(i, k, mode)
        is_repeated &= self.chain.group[: len(is_repeated)] <= self.last_stage
        self.sequences.append(self.chain.ops[: len(is_repeated)][is_repeated])
        self.last_stage = max(self.last_stage, k)
