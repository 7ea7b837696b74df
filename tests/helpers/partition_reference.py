"""Readable twins of the partitioners: the equations of Mayer et al. 2017 with lists and dicts. Slow, for tests.

Each returns the device of every op. The feasibility rule is that of `partition.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from baechi_lab.graph import Cluster, OpGraph
from baechi_lab.placers.partition import Units, make_units, units_by_rank


class _Devices:
    """The units on each device, and the devices that are feasible for a unit."""

    def __init__(self, units: Units):
        self.units, self.count = units, len(units.limit)
        self.on: list[list[int]] = [[] for _ in range(self.count)]
        self.unit_device: dict[int, int] = {}

    def assign_unit(self, g: int, d: int) -> None:
        self.on[d].append(g)
        self.unit_device[g] = d

    def bytes_on(self, d: int, column: str) -> int:
        return sum(int(getattr(self.units, column)[g]) for g in self.on[d])

    def utilization(self, d: int, extra: int = 0) -> float:
        limit = int(self.units.limit[d])
        return (self.bytes_on(d, "need") + extra) / limit if limit else float("inf")

    def choose(self, g: int, score: Callable[[int], tuple[float, ...]]) -> None:
        """Places unit `g` on the feasible device of the least score, or on the emptiest if no device has room for all bytes."""
        allowed = [d for d in range(self.count) if self.units.allowed[g, d]]
        fits = {
            column: [
                d
                for d in allowed
                if self.bytes_on(d, column) + int(getattr(self.units, column)[g]) <= self.units.limit[d]
            ]
            for column in ("persistent_bytes", "need")
        }
        feasible_devices = [d for d in fits["persistent_bytes"] if d in fits["need"]]
        if feasible_devices:
            self.assign_unit(g, min(feasible_devices, key=lambda d: (*score(d), d)))
        else:
            self.assign_unit(g, min(fits["persistent_bytes"] or allowed, key=lambda d: (self.utilization(d), d)))

    def traffic(self, graph: OpGraph, cluster: Cluster, g: int, d: int) -> float:
        """Returns the time of the transfers to unit `g` on device `d` (equation 10)."""
        total = 0.0
        for e in range(graph.edge_count):
            source = int(self.units.group[graph.edge_source[e]])
            p = self.unit_device.get(source, d)
            if self.units.group[graph.consumers[e]] == g and source != g and p != d:
                size = int(graph.tensor_bytes[graph.edge_tensor[e]])
                total += float(cluster.latency_us[p, d] + cluster.us_per_byte[p, d] * size)
        return total

    def per_op(self) -> list[int]:
        return [self.unit_device[g] for g in self.units.group.tolist()]


def batch_split_reference(graph: OpGraph, cluster: Cluster) -> list[int]:
    """Places each unit, by total rank, on the fastest feasible device."""
    units = make_units(graph, cluster)
    state = _Devices(units)
    for g in units_by_rank(units).tolist():
        state.choose(g, lambda d, g=g: (float(units.cost[g, d]), -float(units.pace[d])))  # type: ignore[misc]
    return state.per_op()


def balance_reference(graph: OpGraph, cluster: Cluster, fixed: Iterable[tuple[int, int]]) -> list[int]:
    """Places every unit that is not among `fixed` (unit, device) by equation 7."""
    units = make_units(graph, cluster)
    state = _Devices(units)
    for g, d in fixed:
        state.assign_unit(g, d)

    def finish_time(g: int, d: int) -> float:
        return sum(float(units.cost[j, d]) for j in state.on[d]) + float(units.cost[g, d])

    for g in units_by_rank(units).tolist():
        if g not in state.unit_device:
            state.choose(g, lambda d, g=g: (finish_time(g, d),))  # type: ignore[misc]
    return state.per_op()


def mite_reference(graph: OpGraph, cluster: Cluster) -> list[int]:
    """Places units by equations 8 to 10."""
    units = make_units(graph, cluster)
    state = _Devices(units)
    longest = max(units.rank.tolist(), default=0.0)

    def score(g: int, d: int) -> tuple[float, ...]:
        slowest = max(float(units.cost[g, p]) for p in range(cluster.n) if units.allowed[g, p])
        memory = state.utilization(d, int(units.need[g])) if units.limit[d] else 1.0
        importance = 1 - (float(units.rank[g]) / longest if longest else 0.0) * float(units.pace[d])
        time = float(units.cost[g, d]) / slowest if slowest else 1.0
        product = memory * importance * time
        return product * state.traffic(graph, cluster, g, d), product, -float(units.pace[d])

    for g in units_by_rank(units).tolist():
        state.choose(g, lambda d, g=g: score(g, d))  # type: ignore[misc]
    return state.per_op()


def dfs_reference(graph: OpGraph, cluster: Cluster) -> list[int]:
    """Places units by equation 11, in a recursive walk."""
    from baechi_lab.simulator.ranks import total_rank

    units, rank = make_units(graph, cluster), total_rank(graph).tolist()
    state, visited = _Devices(units), set()
    pointer, successor = graph.successors

    def visit(i: int) -> None:
        visited.add(i)
        g = int(units.group[i])
        if g not in state.unit_device:
            cost = units.cost[g].tolist()
            state.choose(g, lambda d: (state.traffic(graph, cluster, g, d) * cost[d], cost[d], -float(units.pace[d])))
        for j in sorted(successor[pointer[i] : pointer[i + 1]].tolist(), key=lambda j: (-rank[j], j)):
            if j not in visited:
                visit(j)

    sources = [i for i in range(graph.n) if len(graph.inputs[1][graph.inputs[0][i] : graph.inputs[0][i + 1]]) == 0]
    for i in sorted(sources, key=lambda i: (-rank[i], i)):
        if i not in visited:
            visit(i)
    return state.per_op()
