"""The variables of the CP-SAT model (`exact.model`), and the constraints on ops and devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, durations
from ...graph.kernels.csr import inverse
from ..problem import allowed_group_devices, groups_of

if TYPE_CHECKING:
    from types import ModuleType

    from ortools.sat.python.cp_model import CpModel, CpSolver, IntVar, LinearExprT, LiteralT

SCALES = (1, 2, 4, 5, 8, 10, 20, 50, 100, 1000, 10_000)  # units per microsecond; the first that makes times whole
LARGEST = 10**9
"""Longest horizon in units of the model."""
CLOSE = 1e-6
"""Relative difference below which two times count as equal."""


@dataclass
class Times:
    """Costs as whole numbers: `scale` model units per microsecond. If not `exact`, they are rounded down.

    Every schedule stays one when it is rounded down: floor(start) + floor(p) <= floor(start + p), so whatever follows an end
    still does. The optimum in units is therefore at most that in microseconds. The true end, rounded, is at most one unit later
    than floor(start) + floor(p). This unit is the `tolerance` for everything that the strict model requires of simultaneous
    events.
    """

    duration: NDArray[np.int64]
    transfer: NDArray[np.int64]
    scale: float
    exact: bool

    @property
    def tolerance(self) -> int:
        """Units by which two simultaneous events may differ."""
        return 0 if self.exact else 1


def longest_chain(graph: OpGraph, cluster: Cluster) -> int:
    """Returns the most ops and transfers that can follow one another. Each loses less than a unit by rounding down."""
    return graph.n + graph.tensor_count * (cluster.n - 1)


def scaled_times(graph: OpGraph, cluster: Cluster, horizon_us: float) -> Times:
    """Returns durations int64[n, D] and transfer costs int64[T, D, D], exact if a small scale makes all of them whole.

    Otherwise rounding loses less than half of `CLOSE` of the horizon along a chain.
    """
    table = durations(graph, cluster)
    size = graph.tensor_bytes[:, None, None]
    cost = cluster.latency_us[None] + cluster.us_per_byte[None] * size
    everything = np.concatenate([table.reshape(-1), cost.reshape(-1)])
    for scale in SCALES:
        whole_times = np.rint(everything * scale)
        if horizon_us * scale <= LARGEST and np.allclose(everything * scale, whole_times, rtol=0, atol=1e-7):
            horizon = horizon_us * scale
            return Times(
                _clip_to_horizon(np.rint(table * scale), horizon),
                _clip_to_horizon(np.rint(cost * scale), horizon),
                float(scale),
                True,
            )
    units = min(2 * longest_chain(graph, cluster) / CLOSE, LARGEST)
    fine = units / max(horizon_us, 1e-12)
    return Times(
        _clip_to_horizon(np.floor(table * fine), units), _clip_to_horizon(np.floor(cost * fine), units), fine, False
    )


def _clip_to_horizon(times: NDArray[np.float64], horizon: float) -> NDArray[np.int64]:
    """Clips times above the horizon, which occur in no better schedule."""
    return np.minimum(times, np.ceil(horizon) + 1).astype(np.int64)


Pair = tuple[int, int]


@dataclass
class ExactModel:
    """The model of one problem. `solution` reads devices and starts from a solved model."""

    cp_model: ModuleType
    graph: OpGraph
    cluster: Cluster
    times: Times
    horizon: int
    strict: bool
    model: CpModel = field(init=False)
    x: list[list[IntVar]] = field(default_factory=list)
    start: list[IntVar] = field(default_factory=list)
    end: list[IntVar] = field(default_factory=list)
    makespan: IntVar = field(init=False)
    send: dict[Pair, IntVar] = field(default_factory=dict)
    """Start of the send of tensor t to device d, by (t, d); likewise `receive`, its `cost`, and whether it is `present`."""
    receive: dict[Pair, IntVar] = field(default_factory=dict)
    cost: dict[Pair, LinearExprT] = field(default_factory=dict)
    present: dict[Pair, LiteralT] = field(default_factory=dict)
    arrivals: list[list[LinearExprT]] = field(default_factory=list)
    """Strict model: when each input of an op is there."""
    _same: dict[Pair, IntVar] = field(default_factory=dict)
    _first: dict[Pair, IntVar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = self.cp_model.CpModel()
        self.group = groups_of(self.graph)
        self.after = descendants(self.graph)

    def var(self, high: int, name: str = "") -> IntVar:
        """Returns a new integer variable from 0 to `high`."""
        return self.model.new_int_var(0, high, name)

    def bool(self, name: str = "") -> IntVar:
        """Returns a new literal."""
        return self.model.new_bool_var(name)

    def reason(self, start: object, cause: object, conditions: Sequence[object]) -> IntVar:
        """Returns a literal that implies that `start` happens at `cause` and that all `conditions` hold."""
        literal = self.bool()
        self.at_one_instant(start, cause, literal)
        for condition in conditions:
            self.model.add_implication(literal, condition)
        return literal

    def at_one_instant(self, start: LinearExprT, cause: LinearExprT, *conditions: LiteralT) -> None:
        """Requires that `start` happens at the end `cause`: equal, up to the rounding of the end."""
        equal = self.model.add_linear_constraint(start - cause, 0, self.times.tolerance)
        if conditions:
            equal.only_enforce_if(*conditions)

    # -- devices and ops -----------------------------------------------------------------------------------

    def add_devices(self) -> None:
        allowed = allowed_group_devices(self.graph, self.cluster, self.group)
        self.x = [[self.bool(f"x{g},{d}") for d in range(self.cluster.n)] for g in range(len(allowed))]
        for g, row in enumerate(self.x):
            self.model.add_exactly_one(row)
            for d in np.flatnonzero(~allowed[g]).tolist():
                self.model.add(row[d] == 0)

    def on(self, op: int, d: int) -> IntVar:
        """Returns the literal: `op` is on device `d`."""
        return self.x[int(self.group[op])][d]

    def add_ops(self) -> None:
        n, devices = self.graph.n, range(self.cluster.n)
        self.start = [self.var(self.horizon, f"s{i}") for i in range(n)]
        self.end = [self.var(self.horizon, f"e{i}") for i in range(n)]
        self.makespan = self.var(self.horizon, "makespan")
        table = self.times.duration.tolist()
        for i in range(n):
            self.model.add(self.end[i] == self.start[i] + sum(table[i][d] * self.on(i, d) for d in devices))
            self.model.add(self.makespan >= self.end[i])
        for d in devices:
            self.model.add_no_overlap(
                self.model.new_optional_interval_var(self.start[i], table[i][d], self.end[i], self.on(i, d), "")
                for i in range(n)
            )
            self.model.add(sum(table[i][d] * self.on(i, d) for i in range(n)) <= self.makespan)

    def together(self, i: int, k: int) -> IntVar:
        """Returns the literal (or a constant): `i` and `k` are on one device."""
        a, b = sorted((int(self.group[i]), int(self.group[k])))
        if a == b:
            return self.model.new_constant(1)
        if (a, b) not in self._same:
            same = self.bool(f"same{a},{b}")
            for d in range(self.cluster.n):
                self.model.add_implication(self.x[a][d], self.x[b][d]).only_enforce_if(same)
                self.model.add_bool_or([~self.x[a][d], ~self.x[b][d], same])
            self._same[a, b] = same
        return self._same[a, b]

    def before(self, i: int, k: int) -> LiteralT:
        """Returns the literal: `i` ends before `k`, or together with it and i < k. A path from `i` to `k` fixes it."""
        if i > k:
            return ~self.before(k, i)
        if (i, k) not in self._first:
            literal = self._first[i, k] = self.bool(f"first{i},{k}")
            off = self.times.tolerance
            self.model.add(self.end[i] <= self.end[k] + off).only_enforce_if(literal)
            self.model.add(self.end[k] + 1 <= self.end[i] + 2 * off).only_enforce_if(~literal)
            if self.after[i, k]:
                self.model.add(literal == 1)
        return self._first[i, k]

    def add_inputs(self) -> None:
        graph = self.graph
        self.arrivals = [[] for _ in range(graph.n)]
        for t in range(graph.tensor_count):
            producer = int(graph.tensor_producer[t])
            for j in graph.tensor_consumers(t).tolist():
                self.model.add(self.start[j] >= self.end[producer])
                if self.group[j] == self.group[producer]:
                    self.arrivals[j].append(self.end[producer])
                else:
                    # `j` waits for the copy on its device if its producer is on another device.
                    arrival = self.var(self.horizon, f"a{t},{j}") if self.strict else None
                    if self.strict:
                        self.model.add(arrival == self.end[producer]).only_enforce_if(self.together(producer, j))
                        self.arrivals[j].append(arrival)
                    for d in range(self.cluster.n):
                        copy_end = self.receive[t, d] + self.cost[t, d]
                        conditions = [self.present[t, d], self.on(j, d)]
                        self.model.add(self.start[j] >= copy_end).only_enforce_if(conditions)
                        if self.strict:
                            self.model.add(arrival == copy_end).only_enforce_if(conditions)

    # -- hints and solutions -------------------------------------------------------------------------------

    def hint(self, device: Sequence[int], start_us: Sequence[float], end_us: Sequence[float]) -> None:
        """Gives the solver a known schedule to start from."""
        group_device = np.empty(len(self.x), dtype=np.int64)
        group_device[self.group] = np.asarray(device)
        for g, row in enumerate(self.x):
            for d, literal in enumerate(row):
                self.model.add_hint(literal, int(group_device[g] == d))
        for i in range(self.graph.n):
            start_units = round(float(start_us[i]) * self.times.scale)
            self.model.add_hint(self.start[i], start_units)
            self.model.add_hint(self.end[i], start_units + int(self.times.duration[i, device[i]]))
        for (i, k), literal in self._first.items():
            self.model.add_hint(literal, int(end_us[i] <= end_us[k]))

    def solution(self, solver: CpSolver) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Returns device int32[n] and order float64[n] (by start, then topologically) of a solved model."""
        group_device = np.array([max(range(len(row)), key=lambda d: solver.boolean_value(row[d])) for row in self.x])
        start_times = np.array([solver.value(v) for v in self.start])
        end_times = np.array([solver.value(v) for v in self.end])
        order = inverse(np.lexsort((self.graph.position, end_times, start_times)))
        return group_device[self.group].astype(np.int32), order.astype(np.float64)


def descendants(graph: OpGraph) -> NDArray[np.bool_]:
    """Returns bool[n, n]: whether a path leads from `i` to `k`."""
    after = np.zeros((graph.n, graph.n), dtype=bool)
    for i in graph.order[::-1].tolist():
        for t in graph.outputs(i):
            for j in graph.tensor_consumers(t).tolist():
                after[i] |= after[j]
                after[i, j] = True
    return after
