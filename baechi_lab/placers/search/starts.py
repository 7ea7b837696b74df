"""Starts of a search: placements of the fast rules, a given placement or a repaired one, each under several orders."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...errors import BaechiLabError, ExecutionError, InfeasiblePlacement, MissingPackage
from ...graph import Cluster, OpGraph, Placement
from ...internal_warnings import outer_stacklevel
from ...simulator.schedulers.pct import path_computation_time
from ..auto import fast_placers, forms_of, parts_of, propose
from ..contiguous import contiguous_splits
from ..evaluation.orders import Candidate, measure, usual_orders
from ..evaluation.work import make_work
from ..memory.packing import packing_proof, raise_if_impossible
from ..memory.repair import repair
from ..metis import metis_partitions
from .contract import contract_short_ops, short_us
from .instance import Instance
from .parameters import SEARCH, SearchParameters

Rule = tuple[str, NDArray[np.int32], NDArray[np.float64] | None]
"""The placement of a rule: its name, the device and the planned position of every op."""


class Starts:
    """Makes start candidates of `instance` under the allowed `schedulers` ("fifo", "planned")."""

    def __init__(self, instance: Instance, schedulers: Sequence[str], seed: int):
        self.instance, self.schedulers, self.seed = instance, schedulers, seed
        self.graph, self.cluster = instance.graph, instance.cluster
        self.work = make_work(instance.model)
        self.upward = usual_orders(self.graph, self.cluster)["upward"]

    def orders(
        self, device: NDArray[np.int32], planned_rank: NDArray[np.float64] | None = None
    ) -> Iterator[tuple[str, NDArray[np.float64] | None]]:
        """Yields the orders to try for `device`: fifo, upward rank, longest path with transfers, and `planned_rank`."""
        if "fifo" in self.schedulers:
            yield "fifo", None
        if "planned" in self.schedulers:
            yield "upward", self.upward
            yield "pct", -path_computation_time(self.graph, self.cluster, Placement(device=device))
            if planned_rank is not None:
                yield "planned", planned_rank

    def measure_orders(
        self,
        name: str,
        device: NDArray[np.int32],
        planned_rank: NDArray[np.float64] | None = None,
        cutoff: float = np.inf,
    ) -> list[Candidate]:
        """Simulates `device` under all orders; returns the candidates within `cutoff` microseconds and memory."""
        measured_orders = [
            measure(self.instance.model, self.work, f"{name}, {order}", device, rank, cutoff)
            for order, rank in self.orders(device, planned_rank)
        ]
        return [c for c in measured_orders if c.overflow_bytes == 0 and np.isfinite(c.makespan_us)]

    def from_rules(self, enough: Callable[[], bool], in_a_hurry: bool = False) -> list[Candidate]:
        """Returns feasible candidates of the rules, best first.

        It stops once there is one and `enough()`, which is called after every rule, is true. One device alone is always tried.
        With `in_a_hurry` the rules place only the given graph, the cheapest rules first.
        """
        if self.instance.track:
            raise_if_impossible(self.graph, self.cluster)
        candidates: list[Candidate] = []
        best = np.inf
        devices_seen: set[bytes] = set()
        # Fast placers on the optimized and the given graph; METIS and cuts also on fewer devices.
        forms = forms_of(self.graph, self.cluster, optimized=not in_a_hurry)
        generators = (self._placed_rules, self._cut_up) if in_a_hurry else (self._cut_up, self._placed_rules)
        rules = (rule for form, graph in forms.items() for generator in generators for rule in generator(form, graph))
        for name, device, planned_rank in rules:
            key = device.tobytes()
            if planned_rank is None and key in devices_seen:
                continue
            devices_seen.add(key)
            candidates += self.measure_orders(name, device, planned_rank, self.instance.parameters.kept_start * best)
            best = min([best, *(c.makespan_us for c in candidates[-4:])])
            if enough() and candidates:
                break
        for name, device, _ in self._placed_rules([*forms][-1], self.graph, ["single"]):
            if device.tobytes() not in devices_seen:
                candidates += self.measure_orders(name, device)
        candidates.sort(key=lambda c: c.key)
        return candidates or [self.repaired_start(None)]

    def _cut_up(self, form: str, graph: OpGraph) -> Iterator[Rule]:
        for name, device in self._cuts(graph):
            device = device if graph is self.graph or graph.group_of is None else device[graph.group_of]
            yield f"{name} on the {parts_of(form)}", device, None

    def _placed_rules(self, form: str, graph: OpGraph, placers: Sequence[str] | None = None) -> Iterator[Rule]:
        for name in fast_placers(graph) if placers is None else placers:
            try:
                placement = propose(name, graph, self.graph, self.cluster)
            except BaechiLabError:  # this rule finds no placement that fits; others may
                continue
            yield f"{name} on the {parts_of(form)}", placement.device, placement.rank

    def _cuts(self, graph: OpGraph) -> Iterator[tuple[str, NDArray[np.int32]]]:
        yield from contiguous_splits(graph, self.cluster)
        for part_count in range(2, self.cluster.n + 1):
            try:
                yield from metis_partitions(graph, self.cluster, seed=self.seed, part_count=part_count)
            except MissingPackage:
                return
            except ExecutionError as error:
                warnings.warn(f"the search goes on without METIS: {error}", stacklevel=outer_stacklevel())
                return

    def from_placement(self, start_placement: Placement) -> Candidate:
        """Returns the candidates of a given placement, or of the repaired placement if it breaks a rule."""
        rank = start_placement.rank if "planned" in self.schedulers else None
        candidate = measure(self.instance.model, self.work, start_placement.placer, start_placement.device, rank)
        group_device = np.full(int(self.instance.group.max()) + 1, -1)
        group_device[self.instance.group] = start_placement.device
        together = np.array_equal(group_device[self.instance.group], start_placement.device)
        lawful = together and self.instance.allowed[np.arange(self.graph.n), start_placement.device].all()
        return candidate if lawful and candidate.overflow_bytes == 0 else self.repaired_start(start_placement)

    def repaired_start(self, placement: Placement | None) -> Candidate:
        """Returns the repaired `placement`; raises `InfeasiblePlacement`, which names it, if no repair fits."""
        repair_result = repair(self.graph, self.cluster, placement, seed=self.seed)
        if repair_result is None:
            why = packing_proof(self.graph, self.cluster) or "no placement that keeps within memory was found"
            needed_bytes, has = int(self.graph.persistent_bytes.sum()), self.cluster.memory_bytes.tolist()
            name = "any rule" if placement is None else f"placement by {placement.placer!r}"
            raise InfeasiblePlacement(f"search cannot start from {name}: {why}", needed_bytes, has)
        return measure(self.instance.model, self.work, "repair", repair_result.device, repair_result.rank)


def choose(starts: Sequence[Candidate], limit: int, fifo_share: float = SEARCH.fifo_share) -> list[Candidate]:
    """Returns up to `limit` different starts, best first; if priorities are searched, a share of them is fifo."""
    distinct_starts: list[Candidate] = []
    keys_seen: set[tuple[bool, bytes]] = set()
    remaining = {True: limit, False: limit}
    if any(c.rank is not None for c in starts):
        remaining[True] = max(round(fifo_share * limit), 1)
    for candidate in starts:
        fifo = candidate.rank is None
        key = (fifo, candidate.device.tobytes())
        if key not in keys_seen and remaining[fifo] > 0 and len(distinct_starts) < limit:
            keys_seen.add(key)
            remaining[fifo] -= 1
            distinct_starts.append(candidate)
    return distinct_starts


def contracted_graph(
    graph: OpGraph, cluster: Cluster, parameters: SearchParameters = SEARCH
) -> tuple[OpGraph, NDArray[np.int64]] | None:
    """Contracts a large `graph`, so that simulations are much faster; returns it, and for each op the one that holds it."""
    if graph.n < parameters.contract_from_ops:
        return None
    coarse, member = contract_short_ops(graph, cluster, short_us(graph, cluster, parameters), parameters)
    return (coarse, member) if coarse.n <= parameters.contracted_share * graph.n else None


def restrict_to_merged(
    member: NDArray[np.int64], candidate: Candidate, cluster: Cluster, work: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.float64] | None]:
    """Returns device and rank per merged op: the device of most `work` of its members, and the rank of the first of them."""
    count = int(member.max()) + 1
    votes = np.zeros((count, cluster.n))
    np.add.at(votes, (member, candidate.device), work)
    rank = None
    if candidate.rank is not None:
        rank = np.full(count, np.inf)
        np.minimum.at(rank, member, candidate.rank)
    return votes.argmax(axis=1).astype(np.int32), rank
