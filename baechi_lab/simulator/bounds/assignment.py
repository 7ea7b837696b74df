"""`assignment`: the best assignment of the heaviest units to devices, a mixed-integer program for HiGHS.

A *unit* is a colocation group, or an op without one. The `BINARY_UNITS` units with most work and traffic get binary variables
x[k, d] (unit k on device d); all other ops are relaxed: their work may be split among devices, their edges cost nothing
and they take no memory. Every schedule within a makespan T satisfies all of the following, so the least T of the program
is a lower bound, and so is the bound that the solver has proven when its time is up.

1. *One device*, an allowed one, for every assigned unit.
2. *Memory.* The persistent bytes of the assigned units on a device are within its memory, since they stay all the time.
3. *Load.* The assigned ops on a device run there one after the other, and the relaxed work, on the devices that are fastest
   for it, is done somewhere: load + share <= T.
4. *Windows.* Ops that start at `a` or later and that `b` must follow have [a, T - b] only: a + their load + b <= T. Where
   none of them is on the device, this says a + b <= T, which holds as some op is in the window.
5. *Transfers.* cut[t, k] = 1 where unit k reads tensor t on another device than its producer's: cut >= x[k, d] -
   x[producer's, d] for every d. Each tensor goes once to each device with such readers: sent[t, d] >= x[k, d] -
   x[producer's, d]. Where transfers queue, those to one device come in one after the other, from the earliest end of
   a producer until what must follow a reader; and they leave one after the other, too, so that all together take at
   most that time on D devices (`duplex`), or half of it (`sequential`: a transfer keeps two devices busy).
6. *Paths.* On any path of the graph, the ops and the cut edges follow each other: sum p + sum cut c <= T. Paths are added
   as the program's solutions break them, the longest one at a time (a separation; the program grows until time is up).

On devices that are all alike, unit k is on one of the first k + 1 devices: they can be renamed in that order.

Durations and costs of paths and transfers are the least over devices and links. Complexity: one program per added path.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph
from ...graph.kernels.compiling import working_seconds
from ...graph.kernels.csr import Floats
from .problem import cheapest_transfer_us

BINARY_UNITS, FOLLOWED_TENSORS = 24, 150
"""Numbers of units that are assigned and of tensors between them that are followed, the most expensive ones."""

WINDOWS = 3
"""Numbers of head levels and of tail levels from which windows are made."""

PATHS = 20
"""Most paths that the program gets."""

MOST_PRICE = 10.0
"""Upper limit for transfers in units of the scale, because the solver's tolerance is 1e-6 of the largest value."""

SAFE = 1.0 - 1e-4
"""Share of a solution that is proven after that tolerance."""


def assignment(
    graph: OpGraph, cluster: Cluster, table: Floats, head: Floats, tail: Floats, low: float, time_limit: float = 2.0
) -> float:
    """Returns a lower bound in microseconds, at least `low`, which is a positive one known already.

    `table` float64[n, D]: durations, infinite where not allowed; `head`, `tail` float64[n]: least times before the start
    and after the end of each op.
    """
    deadline = working_seconds() + time_limit
    if cluster.n < 2 or not 0.0 < low < np.inf:
        return low
    program = _Program(graph, cluster, table, head, tail, low)
    best = low
    for _ in range(PATHS):
        seconds_left = deadline - working_seconds()
        solution = program.solve(seconds_left) if seconds_left > 0.0 else None
        if solution is None:
            break
        value, unit_device, is_proven = solution
        best = max(best, value)
        if not is_proven or not program.add_path(unit_device, best):
            break
    return best


@dataclass
class _Rows:
    """Constraints `low <= row <= high`, gathered as triplets."""

    row: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, columns: Iterable[int], values: Iterable[float], low: float, high: float) -> None:
        columns = [int(c) for c in columns]
        self.row += [len(self.low)] * len(columns)
        self.column += columns
        self.value += [float(v) for v in values]
        self.low.append(low)
        self.high.append(high)


class _Program:
    """The mixed-integer program; times are in units of `scale`. Columns: T, x, shares of relaxed work, sent, cut."""

    def __init__(self, graph: OpGraph, cluster: Cluster, table: Floats, head: Floats, tail: Floats, scale: float):
        self.graph, self.cluster, self.scale = graph, cluster, scale
        self.table, self.fastest = table / scale, table.min(axis=1) / scale
        self.head, self.tail = head / scale, tail / scale
        self.price = np.minimum(cheapest_transfer_us(graph, cluster) / scale, MOST_PRICE)
        # int64[n]: the assigned unit of each op, heaviest first; -1 if the op is relaxed.
        _, unit = np.unique(graph.device_unit, return_inverse=True)
        traffic = np.bincount(graph.edge_source, self.price[graph.edge_tensor], graph.n)
        weight = np.bincount(unit, self.fastest + np.minimum(traffic, self.fastest))
        heavy = np.argsort(-weight, kind="stable")[:BINARY_UNITS]
        number = np.full(len(weight), -1, dtype=np.int64)
        number[heavy] = np.arange(len(heavy))
        self.unit = number[unit]
        self.unit_count = int(self.unit.max()) + 1
        # int64[m, 2]: a tensor and an assigned unit that reads it, other than the assigned unit that produces it.
        source, target = self.unit[graph.edge_source], self.unit[graph.consumers]
        far = (source >= 0) & (target >= 0) & (source != target)
        pairs = np.unique(np.stack([graph.edge_tensor[far].astype(np.int64), target[far]], axis=1), axis=0)
        most_expensive = np.argsort(-self.price[pairs[:, 0]], kind="stable")[:FOLLOWED_TENSORS]
        self.tensor_readers = pairs[np.sort(most_expensive)]
        self.sent_tensors = np.unique(self.tensor_readers[:, 0])
        devices = cluster.n
        self.first_sent = 1 + (self.unit_count + 1) * devices
        self.first_cut = self.first_sent + len(self.sent_tensors) * devices
        self.columns = self.first_cut + len(self.tensor_readers)
        self.rows = _Rows()
        self._add_unit_rows()
        self._add_load_rows()
        self._add_transfer_rows()

    def _unit_column(self, unit: int, device: int) -> int:
        return 1 + unit * self.cluster.n + device

    def _add_unit_rows(self) -> None:
        devices = range(self.cluster.n)
        for k in range(self.unit_count):
            self.rows.add([self._unit_column(k, d) for d in devices], [1.0] * len(devices), 1.0, 1.0)
        unit_bytes = np.bincount(
            self.unit[self.unit >= 0], self.graph.persistent_bytes[self.unit >= 0], self.unit_count
        )
        limit = self.cluster.memory_bytes.astype(np.float64)
        for d in devices:
            if unit_bytes.sum() > limit[d]:
                # Every share above 1 says that the unit is not there, also where the limit is 0.
                share = np.where(unit_bytes > limit[d], 2.0, unit_bytes / max(limit[d], 1.0))
                self.rows.add([self._unit_column(k, d) for k in range(self.unit_count)], share, -np.inf, 1.0)

    def _add_load_rows(self) -> None:
        """Rules 3 and 4; the first window is the whole step, which relaxed work shares."""
        binary, is_relaxed = self.unit >= 0, self.unit < 0
        devices = self.cluster.n
        shares = [self._unit_column(self.unit_count, d) for d in range(devices)]
        self.rows.add(shares, [1.0] * devices, float(self.fastest[is_relaxed].sum()), np.inf)
        levels = [_levels(times[binary]) for times in (self.head, self.tail)]
        for a in levels[0]:
            for b in levels[1]:
                inside = binary & (self.head >= a) & (self.tail >= b)
                if not inside.any():
                    continue
                first, last = self.head[inside].min(), self.tail[inside].min()
                is_whole_step = a == levels[0][0] and b == levels[1][0]
                for d in range(devices):
                    cost = np.where(np.isfinite(self.table[inside, d]), self.table[inside, d], 0.0)
                    load = np.bincount(self.unit[inside], cost, self.unit_count)
                    columns = [self._unit_column(k, d) for k in range(self.unit_count)]
                    self.rows.add([0, *columns], [-1.0, *load], -np.inf, -float(first + last))
                    if is_whole_step:
                        self.rows.add([0, *columns, shares[d]], [-1.0, *load, 1.0], -np.inf, 0.0)

    def _add_transfer_rows(self) -> None:
        """Adds the rows of rule 5."""
        devices = self.cluster.n
        for m, (t, k) in enumerate(self.tensor_readers.tolist()):
            place = int(np.searchsorted(self.sent_tensors, t))
            producer_unit = int(self.unit[self.graph.tensor_producer[t]])
            for d in range(devices):
                reader_and_producer = [self._unit_column(k, d), self._unit_column(producer_unit, d)]
                self.rows.add(
                    [self.first_sent + place * devices + d, *reader_and_producer], [1.0, -1.0, 1.0], 0.0, np.inf
                )
                self.rows.add([self.first_cut + m, *reader_and_producer], [1.0, -1.0, 1.0], 0.0, np.inf)
        if self.cluster.comm == "parallel" or not len(self.sent_tensors):
            return
        producer = self.graph.tensor_producer[self.sent_tensors]
        earliest_end = float((self.head + self.fastest)[producer].min())
        is_sent = np.isin(self.graph.edge_tensor, self.sent_tensors)
        end = float((self.fastest + self.tail)[self.graph.consumers[is_sent]].min())
        cost = self.price[self.sent_tensors]
        sent_columns = self.first_sent + np.arange(len(self.sent_tensors))[:, None] * devices + np.arange(devices)
        for d in range(devices):  # nothing to send: begin + end <= T holds on the path of any of the tensors
            self.rows.add([0, *sent_columns[:, d]], [-1.0, *cost], -np.inf, -(earliest_end + end))
        times = 2.0 if self.cluster.comm == "sequential" else 1.0
        total = times * np.repeat(cost, devices) / devices
        self.rows.add([0, *sent_columns.ravel()], [-1.0, *total], -np.inf, -(earliest_end + end))

    def add_path(self, unit_device: NDArray[np.int64], bound: float) -> bool:
        """Adds rule 6 for the longest path under `unit_device` int64[units]. Returns whether that path exceeds the bound."""
        graph, place = self.graph, {(t, k): m for m, (t, k) in enumerate(self.tensor_readers.tolist())}
        unit, pointer, producers = self.unit, *graph.inputs
        end, via_edge = np.zeros(graph.n), np.full(graph.n, -1, dtype=np.int64)
        for v in graph.order.tolist():
            start = 0.0
            for e in range(pointer[v], pointer[v + 1]):
                t = int(producers[e])
                u = int(graph.tensor_producer[t])
                m = place.get((t, int(unit[v])))
                cut = m is not None and unit_device[unit[u]] != unit_device[unit[v]]
                if (arrival := end[u] + (self.price[t] if cut else 0.0)) > start:
                    start, via_edge[v] = arrival, e
            end[v] = start + self.fastest[v]
        if end.max(initial=0.0) <= bound / self.scale * (1.0 + 1e-6):
            return False
        v, length, cuts = int(end.argmax()), 0.0, []
        while v >= 0:
            length += self.fastest[v]
            t = int(producers[via_edge[v]]) if via_edge[v] >= 0 else -1
            if t >= 0 and (t, int(unit[v])) in place:
                cuts.append((place[t, int(unit[v])], self.price[t]))
            v = int(graph.tensor_producer[t]) if t >= 0 else -1
        self.rows.add(
            [0, *(self.first_cut + m for m, _ in cuts)], [-1.0, *(c for _, c in cuts)], -np.inf, -float(length)
        )
        return True

    def solve(self, seconds: float) -> tuple[float, NDArray[np.int64], bool] | None:
        """Returns the proven bound in microseconds, the device of each assigned unit, and whether it is optimal.

        None if there is no bound.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        rows, devices = self.rows, self.cluster.n
        matrix = coo_array((rows.value, (rows.row, rows.column)), shape=(len(rows.low), self.columns)).tocsr()
        highest = np.ones(self.columns)
        highest[0] = highest[self.first_sent - devices : self.first_sent] = np.inf
        for k in range(self.unit_count):
            is_allowed = np.isfinite(self.table[self.unit == k]).all(axis=0)
            memory = self.cluster.memory_bytes
            highest[self._unit_column(k, 0) : self._unit_column(k, devices)] = is_allowed & (
                (np.arange(devices) <= k)
                | ~bool(np.all(self.table == self.table[:, :1]) and np.all(memory == memory[0]))
            )
        integrality = np.zeros(self.columns)
        integrality[1 : 1 + self.unit_count * devices] = 1
        objective = np.zeros(self.columns)
        objective[0] = 1.0
        solution = milp(
            objective,
            integrality=integrality,
            bounds=Bounds(np.zeros(self.columns), highest),
            constraints=LinearConstraint(matrix, rows.low, rows.high),
            options={"time_limit": seconds},
        )
        proven = getattr(solution, "mip_dual_bound", None)
        if solution.status not in (0, 1) or proven is None or not np.isfinite(proven):
            return None  # infeasible: no packing exists, which placers prove; or no time for a first bound
        if solution.x is None:
            return float(proven) * self.scale * SAFE, np.zeros(self.unit_count, dtype=np.int64), False
        unit_device = solution.x[1 : 1 + self.unit_count * devices].reshape(self.unit_count, devices).argmax(axis=1)
        return float(proven) * self.scale * SAFE, unit_device, solution.status == 0


def _levels(times: Floats) -> Floats:
    """Returns `WINDOWS` of the values of `times`, from the least on."""
    return np.unique(np.quantile(times, np.linspace(0.0, 1.0, WINDOWS, endpoint=False), method="lower"))
