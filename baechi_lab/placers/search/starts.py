"""Where a search starts: what the fast rules say, a given placement, or a repaired one, under the orders that suit them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...errors import BaechiLabError, InfeasiblePlacement, MissingPackage
from ...graph import Cluster, OpGraph, Placement
from ...simulator.schedulers.pct import path_computation_time
from ..auto import fast_placers, forms_of, proposal
from ..contiguous import contiguous_splits
from ..evaluation.evaluate import make_work
from ..evaluation.orders import Candidate, measure, upward_order
from ..memory.packing import packing_proof, refuse_the_impossible
from .contract import contracted, short_us
from .engine import Space

FIFO = 0.25
"""Share of the starts that keep first in, first out where priorities are allowed: those find more."""

NEAR = 1.6
"""Starts slower than this many times the best one are not kept."""


class Starts:
    """Candidates of `space` under the allowed `schedulers` ("fifo", "planned")."""

    def __init__(self, space: Space, schedulers: Sequence[str], seed: int):
        self.space, self.schedulers, self.seed = space, schedulers, seed
        self.graph, self.cluster = space.graph, space.cluster
        self.work = make_work(space.model)
        self.upward = upward_order(self.graph, self.cluster)

    def orders(
        self, device: NDArray[np.int32], planned: NDArray[np.float64] | None = None
    ) -> Iterator[tuple[str, NDArray[np.float64] | None]]:  # fmt: skip
        """Orders to try for `device`: as they come, upward rank, the way to the end with its transfers, and `planned`."""
        if "fifo" in self.schedulers:
            yield "fifo", None
        if "planned" in self.schedulers:
            yield "upward", self.upward
            yield "pct", -path_computation_time(self.graph, self.cluster, Placement(device=device))
            if planned is not None:
                yield "planned", planned

    def measured(
        self, name: str, device: NDArray[np.int32], planned: NDArray[np.float64] | None = None, cutoff: float = np.inf
    ) -> list[Candidate]:  # fmt: skip
        """`device` under all orders, those within `cutoff` microseconds and memory."""
        tried = [
            measure(self.space.model, self.work, f"{name}, {order}", device, rank, cutoff)
            for order, rank in self.orders(device, planned)
        ]
        return [c for c in tried if c.overflow_bytes == 0 and np.isfinite(c.makespan_us)]

    def from_rules(self, enough: Callable[[], bool]) -> list[Candidate]:
        """Feasible candidates, best first; stops once `enough` (asked after every rule) and one is there."""
        if self.space.track:
            refuse_the_impossible(self.graph, self.cluster)
        found: list[Candidate] = []
        best = np.inf
        seen: set[bytes] = set()
        for name, device, planned in self._rules():
            key = device.tobytes()
            if planned is None and key in seen:
                continue
            seen.add(key)
            found += self.measured(name, device, planned, NEAR * best)
            best = min([best, *(c.makespan_us for c in found[-4:])])
            if enough() and found:
                break
        found.sort(key=lambda c: c.key)
        return found or [self.repaired(None)]

    def _rules(self) -> Iterator[tuple[str, NDArray[np.int32], NDArray[np.float64] | None]]:
        """Every fast placer on every form of the graph; METIS and cuts also on fewer devices."""
        for what, form in forms_of(self.graph, self.cluster).items():
            for name, device in self._cuts(form):
                device = device if form is self.graph or form.group_of is None else device[form.group_of]
                yield f"{name} on the {what} graph", device, None
            for name in fast_placers(form):
                try:
                    placed = proposal(name, form, self.graph, self.cluster)
                except BaechiLabError:  # this rule finds nothing that fits; others may
                    continue
                yield f"{name} on the {what} graph", placed.device, placed.rank

    def _cuts(self, form: OpGraph) -> Iterator[tuple[str, NDArray[np.int32]]]:
        from ..metis import metis_partitions

        yield from contiguous_splits(form, self.cluster)
        for parts in range(2, self.cluster.n + 1):
            try:
                yield from metis_partitions(form, self.cluster, seed=self.seed, parts=parts)
            except MissingPackage:
                return

    def given(self, placement: Placement) -> Candidate:
        """A given placement as it is, or repaired where it breaks a rule."""
        rank = placement.rank if "planned" in self.schedulers else None
        candidate = measure(self.space.model, self.work, placement.placer, placement.device, rank)
        homes = np.full(int(self.space.group.max()) + 1, -1)
        homes[self.space.group] = placement.device
        together = np.array_equal(homes[self.space.group], placement.device)
        lawful = together and self.space.allowed[np.arange(self.graph.n), placement.device].all()
        return candidate if lawful and candidate.overflow_bytes == 0 else self.repaired(placement)

    def repaired(self, given: Placement | None) -> Candidate:
        """What the repair makes of `given`; `InfeasiblePlacement` names it where nothing fits."""
        from ..memory.repair import repair

        found = repair(self.graph, self.cluster, given, seed=self.seed)
        if found is None:
            why = packing_proof(self.graph, self.cluster) or "no placement that keeps within memory was found"
            needed, has = int(self.graph.persistent_bytes.sum()), self.cluster.memory_bytes.tolist()
            name = "any rule" if given is None else f"placement by {given.placer!r}"
            raise InfeasiblePlacement(f"search cannot start from {name}: {why}", needed, has)
        return measure(self.space.model, self.work, "repair", found.device, found.rank)


def choose(starts: Sequence[Candidate], most: int) -> list[Candidate]:
    """Up to `most` different starts, best first; where priorities are searched, a quarter of them first in, first out."""
    chosen: list[Candidate] = []
    seen: set[tuple[bool, bytes]] = set()
    left = {True: most, False: most}
    if any(c.rank is not None for c in starts):
        left[True] = max(round(FIFO * most), 1)
    for candidate in starts:
        fifo = candidate.rank is None
        key = (fifo, candidate.device.tobytes())
        if key not in seen and left[fifo] > 0 and len(chosen) < most:
            seen.add(key)
            left[fifo] -= 1
            chosen.append(candidate)
    return chosen


LARGE = 1500
"""Fewest ops for which a contracted form is searched first."""

WORTH = 0.5
"""Most of the ops that such a form may keep."""


def coarse_form(graph: OpGraph, cluster: Cluster) -> tuple[OpGraph, NDArray[np.int64]] | None:
    """A contracted form of a large `graph`, whose simulations are much cheaper, and the op of it that holds each op."""
    if graph.n < LARGE:
        return None
    form, member = contracted(graph, cluster, short_us(graph, cluster))
    return (form, member) if form.n <= WORTH * graph.n else None


def read_for(
    member: NDArray[np.int64], candidate: Candidate, cluster: Cluster, work: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.float64] | None]:
    """Device and rank per merged op: where most of the `work` of its members is, and the rank of the first of them."""
    count = int(member.max()) + 1
    votes = np.zeros((count, cluster.n))
    np.add.at(votes, (member, candidate.device), work)
    rank = None
    if candidate.rank is not None:
        rank = np.full(count, np.inf)
        np.minimum.at(rank, member, candidate.rank)
    return votes.argmax(axis=1).astype(np.int32), rank
