"""The least work to repeat on a chain of groups, for every amount of memory at once: a dynamic program.

The forward ops that may be repeated, in topological order, are cut into groups 0..m-1; the late ops follow from the
last group to the first, those of stage j reading what group j made (and perhaps group j - 1). For a part i..j of the
chain whose input is held elsewhere, with M bytes for all the rest,

    C(i, j, M)   least microseconds of forward ops until the stages j, ..., i have run, nothing of the part being held
    D(i, j, M)   the same where what stage j reads of group j is held, and counts in M

    C(i, j, M) = min over k < j of  run(i..k) + C(k + 1, j, M - h(i, k)) + D(i, k, M)    hold what group k made
                 or                 run(i..j) + D(i, j, M)
    D(i, j, M) = C(i, j - 1, M)                                                           stage j reads group j only
                 or min over k < j of  run(i..k) + D(k + 1, j, M - h(i, k)) + D(i, k, M)  it reads group j - 1 as well

where h(i, k) are the bytes of groups i..k that later groups read, with those of group k that its stage reads, and a sum is
only possible where M holds what runs: in the forward direction the outputs under way, in the backward one the
stage's gradients and temporaries. For equal stages this is the recursion of Griewank and Walther 2000
(doi:10.1145/347837.347846), whose optimum it meets; for other chains it is that of Beaumont et al. 2019 (arXiv:1911.13214),
the best of plans that hold what they hold until it was read last. Ops may run any number of times.

Memory is counted in units, of which there are at most `CELLS` for all parts together; sizes are rounded up to units. What a plan
really needs is then counted by `Runs.peak`. A value that a stage reads from further down than the group before is
held throughout. O(m^3 units) by array operations.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..graph import CONTROL_BYTES
from .checkpoints import held_for_backward
from .training_graph import Parts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MOST_GROUPS = 200
CELLS = 10**8
"""Of m^3 / 6 times the units of memory: some seconds."""
MOST_UNITS = 1000


class Chain:
    """The groups, the stages of late ops, and what runs and is held, in bytes and microseconds.

    With `pin=False` every op is a group and no value is held throughout for being read further down; there is a stage for every
    late op that reads one, instead of for every group, and there are no tables: then it is no chain. `able`, bool[n], are
    the ops that may be dropped, by default all that may be repeated.
    """

    def __init__(self, parts: Parts, most: int = MOST_GROUPS, *, pin: bool = True, able: Bools | None = None):
        self.parts, graph, self.pin = parts, parts.graph, pin
        self.ops = self._repeated(parts.may_repeat if able is None else able)
        place = np.full(graph.n, -1, dtype=np.int64)
        place[self.ops] = np.arange(len(self.ops))
        self.size, self.us = parts.data_bytes[self.ops], graph.duration_us[self.ops]
        readers = [place[parts.readers(op)] for op in self.ops.tolist()]
        self.readers = [r[r >= 0] for r in readers]
        self.reach = np.array([r.max(initial=-1) for r in self.readers], dtype=np.int64)
        self.ends = self._cuts(most if pin else len(self.ops))  # position after the last op of each group
        self.count = len(self.ends)
        self.group = np.searchsorted(self.ends, np.arange(len(self.ops)), side="right")
        self.place = place
        self._stages()

    def _repeated(self, able: Bools) -> Ints:
        """Ops of those `able` to be repeated that lead to what a late op reads, in topological order."""
        parts = self.parts
        leads = held_for_backward(parts) & able
        for op in parts.ordered[::-1].tolist():
            leads[op] |= bool(able[op] and leads[parts.readers(op)].any())
        return parts.ordered[leads[parts.ordered]]

    def _cuts(self, most: int) -> Ints:
        """Ends of the groups: after every op, or in each of `most` equal windows where least is read across."""
        n = len(self.ops)
        if n <= most:
            return np.arange(1, n + 1)
        crossing = np.zeros(n + 1, dtype=np.int64)
        read = np.flatnonzero(self.reach >= 0)
        np.add.at(crossing, read, self.size[read])
        np.subtract.at(crossing, self.reach[read], self.size[read])
        crossing = np.cumsum(crossing)  # bytes read across the cut after each position
        edges = np.linspace(0, n, most + 1).astype(np.int64)
        ends = [low + int(crossing[low:high].argmin()) + 1 for low, high in pairwise(edges.tolist())]
        return np.unique([*ends[:-1], n])

    def _stages(self) -> None:
        """The stage of every late op, the values that are held throughout, and the bytes of late ops by stage."""
        parts, graph = self.parts, self.parts.graph
        self.late_ops = parts.ordered[parts.late[parts.ordered]]
        pointer, tensors = graph.inputs
        read: list[list[int]] = []  # positions of the forward values that each late op reads
        for op in self.late_ops.tolist():
            mine = tensors[pointer[op] : pointer[op + 1]]
            mine = mine[graph.tensor_bytes[mine] > CONTROL_BYTES]
            found = self.place[graph.tensor_producer[mine]]
            read.append(found[found >= 0].tolist())
        highest = np.array([max((int(self.group[p]) for p in r), default=-1) for r in read], dtype=np.int64)
        still = np.maximum.accumulate(highest[::-1])[::-1] if len(highest) else highest
        self.stage, self.stages = np.maximum(still, 0), self.count
        if not self.pin:
            turn = np.maximum(np.cumsum(highest >= 0), 1)
            self.stages = max(int(np.count_nonzero(highest >= 0)), 1)
            self.stage = self.stages - turn
        self.own, self.input_read = held_for_backward(parts)[self.ops], np.zeros(self.count, dtype=np.bool_)
        self.pinned = np.zeros(len(self.ops), dtype=np.bool_)
        for stage, positions in zip(self.stage.tolist() if self.pin else [], read, strict=False):
            for p in positions:
                self.pinned[p] |= self.group[p] < stage - 1
                self.input_read[stage] |= self.group[p] == stage - 1
        self.own &= ~self.pinned
        self.read = read
        self._late_bytes()
        if self.pin:
            self._tables()

    def _late_bytes(self) -> None:
        """int64[m] each: bytes of late outputs and of values held throughout when a stage is due, and at most in it."""
        parts, graph = self.parts, self.parts.graph
        rank, count = parts.rank, self.stages
        first_late = graph.n - len(self.late_ops)
        last = rank[graph.tensor_producer].copy()
        np.maximum.at(last, graph.edge_tensor, rank[graph.consumers])
        made = rank[graph.tensor_producer]
        late = made >= first_late
        change = np.zeros(graph.n + 1, dtype=np.int64)
        np.add.at(change, made[late], graph.tensor_bytes[late])
        np.add.at(change, last[late] + 1, -graph.tensor_bytes[late])
        live = np.cumsum(change[:-1])
        free = np.zeros(graph.n, dtype=np.bool_)  # forward ops whose outputs the plan does not decide on
        free[parts.ordered[:first_late]] = True
        free[self.ops[~self.pinned]] = False
        data = np.flatnonzero(free[graph.tensor_producer] & (graph.tensor_bytes > CONTROL_BYTES))
        until, self.start_bytes = np.zeros(count, dtype=np.int64), 0  # the latter are read by the first group alone
        self.undecided: dict[tuple[int, tuple[int, ...]], int] = {}
        for t in data.tolist():
            readers = graph.tensor_consumers(t)
            stages = [*self.group[self.place[readers[self.place[readers] >= 0]]].tolist()]
            stages += self.stage[rank[readers[parts.late[readers]]] - first_late].tolist()
            if stages and self.count and self.pin:
                until[min(stages)] += graph.tensor_bytes[t]
            elif stages and self.count:
                self._undecided(t, until)
            if stages and max(stages) == 0 and not parts.late[readers].any():
                self.start_bytes += int(graph.tensor_bytes[t])
        kept = self.kept = np.cumsum(until)  # alive in stage j: what is needed in a stage of at most j
        self.late_bytes = live[first_late:] + graph.temp_bytes[self.late_ops]  # while each late op runs
        self.due, self.backward = kept.copy(), kept.copy()
        for j in range(count):
            ranks = first_late + np.flatnonzero(self.stage == j)
            if len(ranks):
                before = int(live[ranks[0] - 1]) if ranks[0] > first_late else 0
                gone = last[late] == ranks[0] - 1
                self.due[j] += before - int(graph.tensor_bytes[late][gone].sum())
                self.backward[j] += int(self.late_bytes[ranks - first_late].max())

    def _undecided(self, t: int, until: Ints) -> None:
        """Counts tensor `t`, which no plan drops: held for the late ops that read it, and for groups until these run again.

        `undecided` has, by the least of the late ops' stages (`stages` where none reads it) and the groups that read it, bytes.
        """
        parts, readers = self.parts, self.parts.graph.tensor_consumers(t)
        first_late = self.parts.graph.n - len(self.late_ops)
        late = parts.late[readers]
        stage = int(self.stage[parts.rank[readers[late]] - first_late].min(initial=self.stages))
        groups = self.place[readers[~late]]
        groups = np.unique(self.group[groups[groups >= 0]])
        if stage < self.stages:
            until[stage] += self.parts.graph.tensor_bytes[t]
        key = stage, tuple(groups.tolist())
        if key[1]:
            self.undecided[key] = self.undecided.get(key, 0) + int(self.parts.graph.tensor_bytes[t])

    def _tables(self) -> None:
        """[i, k] for runs of groups i..k: bytes held after, bytes under way at most, microseconds; see `_run`."""
        m = self.count
        self.held, self.under_way = np.zeros((3, m, m), dtype=np.int64), np.zeros((3, m, m), dtype=np.int64)
        self.cost = np.zeros((3, m, m))
        self.runs: tuple[list[NDArray[np.bool_]], ...] = ([], [], [])  # by mode and last group: what runs
        self._pinned, self._size, self._us = self.pinned.tolist(), self.size.tolist(), self.us.tolist()
        self._readers = [r.tolist() for r in self.readers]
        for k in range(m):
            for mode in range(3):
                self._run(k, mode)

    def targets(self, k: int, mode: int) -> NDArray[np.bool_]:
        """bool[ops up to the end of group k]: what a run up to group k leaves behind.

        Mode 0: what later groups read; 1: that, and what the stage of group k reads of it; 2: only the latter.
        """
        end = int(self.ends[k])
        left = self.reach[:end] >= end if mode < 2 else np.zeros(end, dtype=np.bool_)
        if mode:
            left |= self.own[:end] & (self.group[:end] == k)
        return left & ~self.pinned[:end]

    def needed(self, first: int, k: int, mode: int) -> NDArray[np.bool_]:
        """bool[ops up to the end of group k]: which ops of groups first..k run for the targets."""
        found = self.runs[mode][k]
        return found & (self.group[: len(found)] >= first)

    def _run(self, k: int, mode: int) -> None:
        """Fills the tables for runs that end with group k; ops are walked through from the last to the first."""
        end = int(self.ends[k])
        target = self.targets(k, mode).tolist()
        needed, pinned, readers, size = list(target), self._pinned, self._readers, self._size
        temp, cost, held = self.parts.graph.temp_bytes[self.ops[:end]], 0.0, 0
        grows = np.zeros(end + 1, dtype=np.int64)  # bytes under way, as changes
        top = end
        for first in range(k, -1, -1):
            start = int(self.ends[first - 1]) if first else 0
            for p in range(top - 1, start - 1, -1):
                last = p
                for reader in readers[p]:
                    if reader < end and needed[reader]:
                        last = reader if reader > last else last
                        needed[p] = needed[p] or not pinned[p]
                if needed[p]:
                    grows[p] += size[p]
                    grows[end if target[p] else last + 1] -= size[p]
                    held += size[p] if target[p] else 0
                    cost += self._us[p]
            running = (temp[start:] + np.cumsum(grows[start:end]))[np.array(needed[start:], dtype=np.bool_)]
            self.held[mode, first, k], self.cost[mode, first, k] = held, cost
            self.under_way[mode, first, k] = running.max(initial=0)
            top = start
        self.runs[mode].append(np.array(needed, dtype=np.bool_))


KEEP_BOUNDARY, KEEP_GROUP, KEEP_OWN = range(3)
"""What a run leaves behind: `Chain.targets`."""


class Table:
    """C and D of a chain for 0..units of memory; `most` bytes are enough to hold everything."""

    def __init__(self, chain: Chain):
        self.chain, m = chain, chain.count
        everything = int(chain.size.sum()) + int(chain.backward.max(initial=0)) + int(chain.due.max(initial=0))
        self.most = everything + int(chain.parts.graph.temp_bytes[chain.ops].max(initial=0))
        sizes = np.concatenate([chain.held.ravel(), chain.under_way.ravel(), chain.due, chain.backward])
        common = int(np.gcd.reduce(sizes)) if len(sizes) else 1
        allowed = min(max(CELLS * 6 // max(m, 1) ** 3, 20), MOST_UNITS)
        self.unit = max(common, 1) if self.most // max(common, 1) <= allowed else -(-self.most // allowed)
        self.units = -(-self.most // self.unit)
        up = lambda sizes: -(-sizes // self.unit)  # noqa: E731
        self.held, self.under_way = up(chain.held), up(chain.under_way)
        self.due, self.backward = up(chain.due), up(chain.backward)
        self.own = self.held[KEEP_OWN].diagonal()
        self.memory = np.arange(self.units + 1)
        # [j, i, M], so that the parts that end at one j lie side by side
        self.nothing = np.full((m, m, self.units + 1), np.inf)
        self.owned = np.full((m, m, self.units + 1), np.inf)
        for j in range(m):
            for i in range(j, -1, -1):
                self.owned[j, i] = self._best(self.owned_ways(i, j, self.memory))
                self.nothing[j, i] = self._best(self.ways(i, j, self.memory))
                if j < m - 1:
                    self.owned[j, i] = np.minimum(self.owned[j, i], self.nothing[j, i])
        self.root = self._root() if m else np.zeros(0)

    def _best(self, ways: list[tuple[int, Floats]]) -> Floats:
        return np.min([cost for _, cost in ways], axis=0)

    def _at(self, table: Floats, memory: Ints) -> Floats:
        """What a table has for these amounts of memory; all of it where they are all."""
        return table if memory is self.memory else table[..., memory]

    def _shifted(self, table: Floats, by: Ints, memory: Ints) -> Floats:
        """table[k, memory - by[k]], infinite where there is not so much."""
        at = memory[None, :] - by[:, None]
        found = np.take_along_axis(table, np.maximum(at, 0), axis=1)
        return np.where(at >= 0, found, np.inf)

    def _root(self) -> Floats:
        """float64[M]: the whole chain; where the first group is held throughout, what it alone reads is free."""
        m = self.chain.count
        if m == 1:
            return self.nothing[0, 0]
        shift = self.first_held
        held = self.nothing[m - 1, 1][np.clip(self.memory - shift, 0, self.units)]
        self.from_second = np.where(self.memory >= shift, held, np.inf)
        return np.minimum(self.nothing[m - 1, 0], self.from_second)

    @property
    def first_held(self) -> int:
        """Units that the first group takes when it is held throughout, less those that it reads."""
        return int(self.held[KEEP_GROUP, 0, 0]) - self.chain.start_bytes // self.unit

    def _split(self, i: int, j: int, mode: int, tables: tuple[Floats, Floats], beside: int, memory: Ints) -> Floats:
        """[k - i, M] for k in i..j-1: run i..k, go on from there by the first table, then by the second."""
        ks, (inner, outer) = slice(i, j), tables
        enough = memory[None, :] >= (self.under_way[mode, i, ks] + self.due[j] + beside)[:, None]
        first = j == self.chain.count - 1 and inner is self.nothing  # the forward pass, which is no repeated work
        total = self._shifted(inner[j, i + 1 : j + 1], self.held[mode, i, ks], memory) + self._at(outer[ks, i], memory)
        return np.where(enough, total + self.chain.cost[mode, i, ks][:, None] * (not first), np.inf)

    def ways(self, i: int, j: int, memory: Ints) -> list[tuple[int, Floats]]:
        """(code, float64[memory]) of every way to do part i..j with nothing held; codes are read by `_Plan`."""
        chain = self.chain
        cost = 0.0 if j == chain.count - 1 else float(chain.cost[KEEP_OWN, i, j])
        enough = memory >= self.under_way[KEEP_OWN, i, j] + self.due[j]
        found = [(self.RUN, np.where(enough, cost + self._at(self.owned[j, i], memory), np.inf))]
        if j > i:
            held = self._split(i, j, KEEP_GROUP, (self.nothing, self.owned), 0, memory)
            found += [(2 * (i + d), row) for d, row in enumerate(held)]
            lacking = chain.held[KEEP_GROUP, i, i:j] > chain.held[KEEP_BOUNDARY, i, i:j]
            if (bare := np.flatnonzero(lacking & ~chain.input_read[i + 1 : j + 1])).size:
                rows = self._split(i, j, KEEP_BOUNDARY, (self.nothing, self.nothing), 0, memory)
                found += [(2 * (i + d) + 1, rows[d]) for d in bare.tolist()]
        return found

    RUN, BACK = -1, -2

    def owned_ways(self, i: int, j: int, memory: Ints) -> list[tuple[int, Floats]]:
        """(code, float64[memory]) of every way to do part i..j while what stage j reads of group j is held."""
        back = np.where(memory >= self.own[j] + self.backward[j], 0.0, np.inf)
        if j == i:
            return [(self.BACK, back)]
        if not self.chain.input_read[j]:
            return [(self.BACK, back + self._at(self.nothing[j - 1, i], memory))]
        rows = self._split(i, j, KEEP_GROUP, (self.owned, self.owned), int(self.own[j]), memory)
        return [(2 * (i + d), row) for d, row in enumerate(rows)]

    def levels(self) -> list[int]:
        """Units of memory at which the work changes, from the most memory to the least that is enough."""
        if self.chain.count == 0:
            return []
        cost = self.root
        fits = np.flatnonzero(np.isfinite(cost))
        changes = [k for k in fits.tolist() if k == fits[0] or cost[k] < cost[k - 1]]
        return changes[::-1]

    def plan(self, units: int) -> Ints:
        """int64[runs]: the sequence of ops of the best plan within so many units."""
        return _Plan(self).sequence(units)


class _Plan:
    """Reads a sequence of ops out of the table."""

    def __init__(self, table: Table):
        self.table, self.chain = table, table.chain
        self.reached, self.sequences = -1, []  # type: int, list[Ints]

    def sequence(self, units: int) -> Ints:
        parts = self.chain.parts
        late = parts.late[parts.ordered]
        self.sequences.append(parts.ordered[~late])
        last, table = self.chain.count - 1, self.table
        todo = [("nothing", 0, last, units)]
        if last and table.from_second[units] < table.nothing[last, 0, units]:
            self._run(0, 0, KEEP_GROUP)
            inside = min(units - table.first_held, table.units)
            todo = [("owned", 0, 0, units), ("nothing", 1, last, inside)]
        while todo:
            kind, i, j, memory = todo.pop()
            if kind == "back":
                self.sequences.append(self.chain.late_ops[self.chain.stage == j])
            elif kind == "nothing":
                todo += self._nothing(i, j, memory)[::-1]
            else:
                todo += self._owned(i, j, memory)[::-1]
        return np.concatenate(self.sequences)

    def _nothing(self, i: int, j: int, memory: int) -> list[tuple[str, int, int, int]]:
        table = self.table
        # Among equals a part that is cut is shorter; one that runs for nothing and begins again would never end.
        code, _ = min(table.ways(i, j, np.array([memory])), key=lambda way: (way[1][0], way[0] == Table.RUN))
        if code == Table.RUN:
            self._run(i, j, KEEP_OWN)
            return [("owned", i, j, memory)]
        k, mode = code // 2, KEEP_BOUNDARY if code % 2 else KEEP_GROUP
        self._run(i, k, mode)
        inside = memory - int(table.held[mode, i, k])
        return [("nothing", k + 1, j, inside), ("nothing" if code % 2 else "owned", i, k, memory)]

    def _owned(self, i: int, j: int, memory: int) -> list[tuple[str, int, int, int]]:
        table = self.table
        code, cost = min(table.owned_ways(i, j, np.array([memory])), key=lambda way: way[1][0])
        if j < self.chain.count - 1 and table.nothing[j, i, memory] < cost[0]:
            return [("nothing", i, j, memory)]
        if code == Table.BACK:
            return [("back", j, j, 0), *([("nothing", i, j - 1, memory)] if j > i else [])]
        k = code // 2
        self._run(i, k, KEEP_GROUP)
        return [("owned", k + 1, j, memory - int(table.held[KEEP_GROUP, i, k])), ("owned", i, k, memory)]

    def _run(self, i: int, k: int, mode: int) -> None:
        """Copies of groups that ran before; what runs for the first time is in the forward pass."""
        again = self.chain.needed(i, k, mode)
        again &= self.chain.group[: len(again)] <= self.reached
        self.sequences.append(self.chain.ops[: len(again)][again])
        self.reached = max(self.reached, k)
