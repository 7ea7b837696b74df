"""The scheduling problem of DESIGN section 4 as a CP-SAT model.

Variables: x[g, d] "group g is on device d"; start of every op; per tensor and receiving device the start of its send and
of its receive; for every pair of ops which one ends first. Constraints:

- devices: an op occupies its device for its duration; no two overlap.
- precedence: an op starts no earlier than each input is there: the producer's end on the same device, otherwise the
  receive's start plus the cost.
- transfers (`sequential`, `duplex`): a send holds the sender's queue and a receive the receiver's for the cost; nothing
  on one queue overlaps; requests are served in the order in which their tensors were produced, ties by producer, tensor.
- memory: outputs, temporaries and received copies as optional intervals, cumulative per device beside the persistent
  bytes. Sizes are rounded down to a common unit, so nothing that fits is excluded.
- colocation groups share x; devices not allowed are left out.

The relaxed model stops here: ops and transfers may also start later than they could, the copies of one tensor may be
sent in any order, and of equal devices only one numbering is looked at. Its optimum is a lower bound for every schedule.
The strict model adds what the simulator does without being asked: a transfer starts as soon as its queues are free, a
device that could start an op does so. Its optimum is the best that any placement and any order can reach in the
simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, allowed_devices, durations
from .problem import groups_of, output_bytes

SCALES = (1, 2, 4, 5, 8, 10, 20, 50, 100, 1000, 10_000)
LARGEST = 10**9
"""Longest horizon in units of the model."""

ROUNDED = 10**6
"""Horizon where the times have no exact scale."""


@dataclass
class Times:
    """Costs as whole numbers: `scale` units per microsecond; `exact` when nothing was rounded."""

    duration: NDArray[np.int64]
    transfer: NDArray[np.int64]
    scale: float
    exact: bool


def scaled_times(graph: OpGraph, cluster: Cluster, horizon_us: float) -> Times:
    """Durations int64[n, D] and transfer costs int64[T, D, D]; exact where a small scale makes all of them whole."""
    table = durations(graph, cluster)
    size = graph.tensor_bytes[:, None, None]
    cost = cluster.latency_us[None] + cluster.us_per_byte[None] * size
    everything = np.concatenate([table.reshape(-1), cost.reshape(-1)])
    for scale in SCALES:
        whole = np.rint(everything * scale)
        if horizon_us * scale <= LARGEST and np.allclose(everything * scale, whole, rtol=0, atol=1e-7):
            exact = True
            break
    else:
        scale, exact = ROUNDED / max(horizon_us, 1e-12), False  # type: ignore[assignment]
    return Times(
        np.rint(table * scale).astype(np.int64), np.rint(cost * scale).astype(np.int64), float(scale), exact
    )  # fmt: skip


@dataclass
class ExactModel:
    """Builds the model; `solution` reads devices and starts out of a solved one."""

    cp_model: Any
    graph: OpGraph
    cluster: Cluster
    times: Times
    horizon: int
    strict: bool
    model: Any = None
    x: list[list[Any]] = field(default_factory=list)
    start: list[Any] = field(default_factory=list)
    end: list[Any] = field(default_factory=list)
    makespan: Any = None

    def build(self) -> ExactModel:
        """All variables and constraints."""
        self.model = self.cp_model.CpModel()
        self.slack = 0 if self.times.exact else self.graph.n + self.graph.edge_count
        self.group = groups_of(self.graph)
        self._devices()
        self._ops()
        self._order()
        self._transfers()
        self._inputs()
        if self._memory_may_run_out():
            self._memory()
        if self.strict:
            self._never_idle()
        elif self._equal_devices():
            self._first_numbering()
        self.model.minimize(self.makespan)
        return self

    def _var(self, low: int, high: int, name: str) -> Any:
        return self.model.new_int_var(low, high, name)

    def _bool(self, name: str) -> Any:
        return self.model.new_bool_var(name)

    def _devices(self) -> None:
        able = np.ones((int(self.group.max()) + 1, self.cluster.n), dtype=bool)
        np.logical_and.at(able, self.group, allowed_devices(self.graph, self.cluster))
        self.x = [[self._bool(f"x{g},{d}") for d in range(self.cluster.n)] for g in range(len(able))]
        for g, row in enumerate(self.x):
            self.model.add_exactly_one(row)
            for d in np.flatnonzero(~able[g]).tolist():
                self.model.add(row[d] == 0)

    def on(self, op: int, d: int) -> Any:
        """Literal: `op` is on device `d`."""
        return self.x[int(self.group[op])][d]

    def _ops(self) -> None:
        model, table = self.model, self.times.duration
        self.start = [self._var(0, self.horizon, f"s{i}") for i in range(self.graph.n)]
        self.end = [self._var(0, self.horizon, f"e{i}") for i in range(self.graph.n)]
        self.makespan = self._var(0, self.horizon, "makespan")
        lanes: list[list[Any]] = [[] for _ in range(self.cluster.n)]
        for i in range(self.graph.n):
            length = table[i].tolist()
            for d in range(self.cluster.n):
                lanes[d].append(
                    model.new_optional_interval_var(self.start[i], length[d], self.end[i], self.on(i, d), "")
                )
            model.add(self.end[i] == self.start[i] + sum(length[d] * self.on(i, d) for d in range(self.cluster.n)))
            model.add(self.makespan >= self.end[i])
        for d, lane in enumerate(lanes):
            model.add_no_overlap(lane)
            load = sum(int(table[i, d]) * self.on(i, d) for i in range(self.graph.n))
            model.add(load <= self.makespan)
        self.same: dict[tuple[int, int], Any] = {}

    def together(self, i: int, k: int) -> Any:
        """Literal (or a constant): `i` and `k` are on one device."""
        a, b = sorted((int(self.group[i]), int(self.group[k])))
        if a == b:
            return self.model.new_constant(1)
        if (a, b) not in self.same:
            same = self._bool(f"same{a},{b}")
            for d in range(self.cluster.n):
                self.model.add_implication(self.x[a][d], self.x[b][d]).only_enforce_if(same)
                self.model.add_bool_or([~self.x[a][d], ~self.x[b][d], same])
            self.same[a, b] = same
        return self.same[a, b]

    def _order(self) -> None:
        """first[i, k]: `i` ends before `k`, or together with it and i < k. Along a path it is known."""
        n = self.graph.n
        after = np.zeros((n, n), dtype=bool)
        for i in self.graph.order[::-1].tolist():
            for t in self.graph.outputs(i):
                for j in self.graph.tensor_consumers(t).tolist():
                    after[i] |= after[j]
                    after[i, j] = True
        self.after = after
        self.first: dict[tuple[int, int], Any] = {}
        for i in range(n):
            for k in range(i + 1, n):
                literal = self._bool(f"first{i},{k}")
                self.model.add(self.end[i] <= self.end[k] + self.slack).only_enforce_if(literal)
                gap = 1 if self.times.exact else -self.slack
                self.model.add(self.end[k] + gap <= self.end[i]).only_enforce_if(~literal)
                if after[i, k] and self.times.exact:
                    self.model.add(literal == 1)
                self.first[i, k] = literal
                self.first[k, i] = ~literal

    # -- transfers -----------------------------------------------------------------------------------------

    def _transfers(self) -> None:
        """One possible transfer per tensor and receiving device, with the literals `sent[t, source, target]`."""
        graph, devices = self.graph, range(self.cluster.n)
        self.send: dict[tuple[int, int], Any] = {}
        self.receive: dict[tuple[int, int], Any] = {}
        self.cost: dict[tuple[int, int], Any] = {}
        self.present: dict[tuple[int, int], Any] = {}
        for t in range(graph.tensor_count):
            producer, readers = int(graph.tensor_producer[t]), graph.tensor_consumers(t).tolist()
            readers = [j for j in readers if self.group[j] != self.group[producer]]
            if not readers:
                continue
            for d in devices:
                self._transfer(t, d, producer, sorted({int(self.group[j]) for j in readers}))
        if self.cluster.comm != "parallel":
            self._queues()

    def _transfer(self, t: int, d: int, producer: int, groups: list[int]) -> None:
        model, key = self.model, (t, d)
        present = self._bool(f"sent{t},{d}")
        home = self.on(producer, d)
        model.add_implication(present, ~home)
        for g in groups:
            model.add_bool_or([present, home, ~self.x[g][d]])
        model.add_bool_or([*(self.x[g][d] for g in groups), ~present])
        costs = self.times.transfer[t, :, d].tolist()
        self.cost[key] = sum(costs[s] * self.on(producer, s) for s in range(self.cluster.n))
        self.present[key] = present
        self.send[key] = self._var(0, self.horizon, f"S{t},{d}")
        model.add(self.send[key] >= self.end[producer]).only_enforce_if(present)
        if self.cluster.comm == "parallel":
            self.receive[key] = self.send[key]
            if self.strict:
                model.add(self.send[key] == self.end[producer]).only_enforce_if(present)
        else:
            self.receive[key] = self._var(0, self.horizon, f"R{t},{d}")
            model.add(self.receive[key] >= self.send[key]).only_enforce_if(present)

    def _queues(self) -> None:
        """Queue ("out" or "in", device) serves its users one after the other, in the order of production."""
        users: list[tuple[tuple[int, int], int, str, Any]] = []  # transfer, queue's device, side, literal
        shared = self.cluster.comm == "sequential"
        for key in self.present:
            t, d = key
            producer = int(self.graph.tensor_producer[t])
            users.append((key, d, "in", self.present[key]))
            for s in range(self.cluster.n):
                if s != d:
                    users.append((key, s, "out", self._both(self.present[key], self.on(producer, s))))
        lanes: dict[tuple[str, int], list[Any]] = {}
        for user in users:
            key, q, side, literal = user
            begin = self.send[key] if side == "out" else self.receive[key]
            stop = self._var(0, 2 * self.horizon, "")
            length = self._var(0, int(self.times.transfer[key[0]].max()), "")
            self.model.add(length == self.cost[key])
            lane = lanes.setdefault(("both" if shared else side, q), [])
            lane.append((user, begin, stop, self.model.new_optional_interval_var(begin, length, stop, literal, "")))
        self.earlier: dict[tuple[str, tuple[int, int]], list[tuple[Any, Any]]] = {}
        for lane in lanes.values():
            self.model.add_no_overlap([entry[3] for entry in lane])
            for a, entry in enumerate(lane):
                for other in lane[a + 1 :]:
                    self._served_in_order(entry, other)
        if self.strict:
            self._served_at_once()

    def _both(self, a: Any, b: Any) -> Any:
        both = self._bool("")
        self.model.add_bool_and([a, b]).only_enforce_if(both)
        self.model.add_bool_or([~a, ~b, both])
        return both

    def _served_in_order(self, one: Any, two: Any) -> None:
        (key, _, side, here), begin, stop, _ = one
        (key2, _, side2, here2), begin2, stop2, _ = two
        if key == key2:
            return
        i, k = int(self.graph.tensor_producer[key[0]]), int(self.graph.tensor_producer[key2[0]])
        if i == k:
            if key[0] == key2[0] and not self.strict:
                return  # copies of one tensor: any order, so that devices may be renumbered
            first = key < key2
            before: Any = self.model.new_constant(int(first))
        else:
            before = self.first[i, k]
        self.model.add(stop <= begin2).only_enforce_if([here, here2, before])
        self.model.add(stop2 <= begin).only_enforce_if([here, here2, ~before])
        if self.strict:
            self.earlier.setdefault((side2, key2), []).append((stop, [here, here2, before]))
            self.earlier.setdefault((side, key), []).append((stop2, [here, here2, ~before]))

    def _served_at_once(self) -> None:
        """A send starts when its tensor is there or an earlier user leaves the queue; a receive, when its send does or ..."""
        for key, present in self.present.items():
            producer = int(self.graph.tensor_producer[key[0]])
            for side, begin, ready in (
                ("out", self.send[key], self.end[producer]),
                ("in", self.receive[key], self.send[key]),
            ):
                reasons = [self._reason(begin, ready, [present])]
                reasons += [self._reason(begin, stop, when) for stop, when in self.earlier.get((side, key), [])]
                self.model.add_bool_or([*reasons, ~present])

    def _reason(self, begin: Any, cause: Any, when: list[Any]) -> Any:
        reason = self._bool("")
        self.model.add(begin == cause).only_enforce_if(reason)
        for literal in when:
            self.model.add_implication(reason, literal)
        return reason

    def _inputs(self) -> None:
        graph = self.graph
        self.arrivals: list[list[Any]] = [[] for _ in range(graph.n)]
        for t in range(graph.tensor_count):
            producer = int(graph.tensor_producer[t])
            for j in graph.tensor_consumers(t).tolist():
                self.model.add(self.start[j] >= self.end[producer])
                arrival = self.end[producer]
                if self.group[j] != self.group[producer]:
                    arrival = self._var(0, self.horizon, f"a{t},{j}") if self.strict else None
                    if self.strict:
                        same = self.together(producer, j)
                        self.model.add(arrival == self.end[producer]).only_enforce_if(same)
                    for d in range(self.cluster.n):
                        key = (t, d)
                        there = self.receive[key] + self.cost[key]
                        when = [self.present[key], self.on(j, d)]
                        self.model.add(self.start[j] >= there).only_enforce_if(when)
                        if self.strict:
                            self.model.add(arrival == there).only_enforce_if(when)
                self.arrivals[j].append(arrival)

    # -- memory --------------------------------------------------------------------------------------------

    def _memory_may_run_out(self) -> bool:
        graph = self.graph
        most = int(graph.persistent_bytes.sum() + graph.temp_bytes.sum() + graph.tensor_bytes.sum())
        return bool(np.any(self.cluster.memory_bytes < most))

    def _memory(self) -> None:
        """Optional intervals of bytes per device; all of them end no earlier than the rules say."""
        graph, made = self.graph, output_bytes(self.graph)
        unit = max(1, int(self.cluster.memory_bytes.max()) // 10**6)
        items: list[list[tuple[Any, int]]] = [[] for _ in range(self.cluster.n)]
        for t in range(graph.tensor_count):
            size = int(graph.tensor_bytes[t]) // unit
            if size:
                self._tensor_memory(t, size, items)
        for i in range(graph.n):
            temp = int(graph.temp_bytes[i]) // unit
            for d in range(self.cluster.n):
                if temp:
                    length = int(self.times.duration[i, d])
                    span = self.model.new_optional_interval_var(self.start[i], length, self.end[i], self.on(i, d), "")
                    items[d].append((span, temp))
        held = np.zeros(len(self.x), dtype=np.int64)
        np.add.at(held, self.group, graph.persistent_bytes)
        for d in range(self.cluster.n):
            room = int(self.cluster.memory_bytes[d])
            self.model.add(sum(int(b) * self.x[g][d] for g, b in enumerate(held.tolist()) if b) <= room)
            kept = [(self.model.new_optional_fixed_size_interval_var(0, 2 * self.horizon, self.x[g][d], ""), b // unit)
                    for g, b in enumerate(held.tolist()) if b // unit]  # fmt: skip
            spans = kept + items[d]
            if spans:
                self.model.add_cumulative([s for s, _ in spans], [b for _, b in spans], room // unit)
            for i in range(graph.n):  # an op alone with what its group keeps
                alone = int(made[i] + graph.temp_bytes[i] + held[self.group[i]])
                if alone > room:
                    self.model.add(self.on(i, d) == 0)

    def _tensor_memory(self, t: int, size: int, items: list[list[tuple[Any, int]]]) -> None:
        graph, model = self.graph, self.model
        producer, readers = int(graph.tensor_producer[t]), graph.tensor_consumers(t).tolist()
        free = self._var(0, 2 * self.horizon, f"free{t}")
        model.add(free >= self.end[producer])
        for j in readers:
            model.add(free >= self.end[j]).only_enforce_if(self.together(producer, j))
        for d in range(self.cluster.n):
            if (t, d) in self.present:
                model.add(free >= self.receive[t, d] + self.cost[t, d]).only_enforce_if(self.present[t, d])
        length = self._var(0, 2 * self.horizon, "")
        for d in range(self.cluster.n):
            items[d].append(
                (model.new_optional_interval_var(self.start[producer], length, free, self.on(producer, d), ""), size)
            )
            if (t, d) not in self.present:
                continue
            gone, span = self._var(0, 2 * self.horizon, ""), self._var(0, 2 * self.horizon, "")
            model.add(gone >= self.receive[t, d] + self.cost[t, d]).only_enforce_if(self.present[t, d])
            for j in readers:
                model.add(gone >= self.end[j]).only_enforce_if([self.present[t, d], self.on(j, d)])
            items[d].append(
                (model.new_optional_interval_var(self.receive[t, d], span, gone, self.present[t, d], ""), size)
            )

    # -- what the simulator does without being asked -------------------------------------------------------

    def _never_idle(self) -> None:
        """If an op that waits (or starts) on the device was ready before `i` starts, another op ends there right then."""
        n, model = self.graph.n, self.model
        ready = []
        for i in range(n):
            at = self._var(0, self.horizon, f"r{i}")
            if self.arrivals[i]:
                model.add_max_equality(at, self.arrivals[i])
            else:
                model.add(at == 0)
            model.add(self.start[i] >= at)
            ready.append(at)
        for i in range(n):
            follows = []
            for j in range(n):
                if j != i and not self.after[i, j]:
                    reason = self._reason(self.start[i], self.end[j], [self.together(i, j), self.first[j, i]])
                    follows.append(reason)
            packed = self._bool(f"packed{i}")
            model.add_bool_or([*follows, ~packed])
            model.add(self.start[i] == ready[i]).only_enforce_if(~packed)
            for k in range(n):
                if k != i and not self.after[k, i]:
                    model.add(ready[k] >= self.start[i]).only_enforce_if(
                        [self.together(i, k), self.first[i, k], ~packed]
                    )

    # -- numbering of equal devices ------------------------------------------------------------------------

    def _equal_devices(self) -> bool:
        cluster = self.cluster
        same = len({(d.kind, d.memory_bytes, d.speed) for d in cluster.devices}) == 1
        off = ~np.eye(cluster.n, dtype=bool)
        links = all(len(np.unique(a[off])) <= 1 for a in (cluster.latency_us, cluster.us_per_byte))
        return same and links and not self.graph.allowed_sets and cluster.n > 1

    def _first_numbering(self) -> None:
        """Group g may open device d only if a group before it is on device d - 1."""
        for g, row in enumerate(self.x):
            for d in range(1, self.cluster.n):
                self.model.add_bool_or([*(self.x[h][d - 1] for h in range(g)), ~row[d]])

    # -- hints and solutions -------------------------------------------------------------------------------

    def hint(self, device: Sequence[int], start_us: Sequence[float], end_us: Sequence[float]) -> None:
        """Start from a known schedule."""
        home = np.empty(len(self.x), dtype=np.int64)
        home[self.group] = np.asarray(device)
        for g, row in enumerate(self.x):
            for d, literal in enumerate(row):
                self.model.add_hint(literal, int(home[g] == d))
        for i in range(self.graph.n):
            self.model.add_hint(self.start[i], round(float(start_us[i]) * self.times.scale))
            self.model.add_hint(self.end[i], round(float(end_us[i]) * self.times.scale))
        for (i, k), literal in self.first.items():
            if i < k:
                self.model.add_hint(literal, int(end_us[i] <= end_us[k]))

    def solution(self, solver: Any) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Device int32[n] and order float64[n] (by start, then topologically) of a solved model."""
        home = np.array([max(range(len(row)), key=lambda d: solver.boolean_value(row[d])) for row in self.x])
        position = np.empty(self.graph.n)
        position[self.graph.order] = np.arange(self.graph.n)
        begins = np.array([solver.value(v) for v in self.start])
        ends = np.array([solver.value(v) for v in self.end])
        order = np.empty(self.graph.n)
        order[np.lexsort((position, ends, begins))] = np.arange(self.graph.n)
        return home[self.group].astype(np.int32), order
