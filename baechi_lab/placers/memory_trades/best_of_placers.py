"""The fastest placement of several placers that fits in memory, and the placement that exceeds memory least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...checks import check_number
from ...errors import BaechiLabError, InvalidInput
from ...graph import Cluster, OpGraph, Placement, Timeline, allowed_devices
from ...passes.optimize import optimize
from ...simulator import simulate
from ..direct import place_directly
from ..memory.depth_first import depth_first_order
from ..memory.feasible import without_repairs
from ..registry import placer_class
from .memory_ladder import AMPLE_MEMORY, FAST_PLACERS, place_on_memory_ladder

MAX_REPAIRED_OPS = 2000
"""Largest graph for which every placer may repair its plan. Repairs of larger graphs take minutes."""
GROUPS, OPS, FIT = "groups", "ops", "fit"
"""What a placement was made of: the optimized graph, the graph itself, or steps that `bl.fit` alone takes."""


class PlacedTimeline(NamedTuple):
    """A placement with its timeline, and how it was made: what the code that makes it again depends on.

    `source` is `GROUPS`, `OPS` or `FIT`; `placers` are those of `bl.fit` where it is `FIT`.
    """

    placement: Placement
    timeline: Timeline
    source: str = GROUPS
    placers: tuple[str, ...] = FAST_PLACERS


@dataclass(frozen=True)
class BestOfPlacers:
    """The placement step of `bl.fit`.

    Every placer places the optimized graph. If none fits, every placer places the graph itself. With a `time_limit`, `search`
    then improves the best placement.

    >>> graph = OpGraph.from_edges([5, 10], [(0, 1, 8)])
    >>> best, why = BestOfPlacers(("single",)).fastest(graph, Cluster.uniform(2))
    >>> best[1].makespan_us, why
    (15.0, '')
    """

    placers: Sequence[str]
    time_limit: float = 0.0
    seed: int = 0
    repairs: bool = True
    """Whether one plan of a large graph is repaired if no plan fits."""

    def __post_init__(self) -> None:
        if isinstance(self.placers, str) or not self.placers:
            raise InvalidInput(f"placers is {self.placers!r}; it must be a list of names, for example ['m-etf']")
        for name in self.placers:
            placer_class(name)
        check_number("time_limit", self.time_limit)

    def fastest(
        self, graph: OpGraph, cluster: Cluster, known_placement: Placement | None = None, *, other_limits: bool = False
    ) -> tuple[PlacedTimeline | None, str]:
        """Returns the fastest feasible placement with its timeline, or None with the reason of the last placer.

        Placements that fit with the margin of their peaks (`Timeline.runtime_peak_bytes`) come first.
        `known_placement` is one more candidate and wins ties. With `other_limits`, so are the placements of
        `memory_trades.memory_ladder`, except for large graphs.
        """
        pairs: list[PlacedTimeline] = []
        if known_placement is not None:
            known_timeline = PlacedTimeline(known_placement, simulate(graph, cluster, known_placement))
            pairs += [known_timeline] if known_timeline.timeline.feasible else []
        if np.count_nonzero(~cluster.is_host) == 1:
            alone, why = order_on_one_device(graph, cluster)
            pairs += [alone] if alone else []
            return min(pairs, key=preference, default=None), "" if pairs else why
        proposals, why = self._ask_placers(graph, cluster)
        pairs += proposals
        if other_limits and graph.n <= MAX_REPAIRED_OPS:
            pairs += [
                PlacedTimeline(placed, timeline, FIT, tuple(self.placers))
                for placed, timeline in place_on_memory_ladder(graph, cluster, self.placers)
                if timeline.feasible
            ]
        if not pairs:
            return None, why
        best = min(pairs, key=preference)
        if self.time_limit:
            placed = place_directly(
                graph, cluster, "search", start=best.placement, time_limit=self.time_limit, seed=self.seed
            )
            candidate = PlacedTimeline(placed, simulate(graph, cluster, placed))
            if candidate.timeline.feasible and preference(candidate) < preference(best):
                best = candidate
        return best, ""

    def _ask_placers(self, graph: OpGraph, cluster: Cluster) -> tuple[list[PlacedTimeline], str]:
        """Placements of the optimized graph, or of the graph itself if none fits: a group may be too large for every device.

        On large graphs the placers only plan, and one plan is repaired if none fits.
        """
        coarse = optimize(graph, cluster)
        if graph.n <= MAX_REPAIRED_OPS:
            pairs, why = self._place_with_each(graph, coarse, cluster, self.placers)
            return (pairs, why) if pairs else self._place_with_each(graph, graph, cluster, self.placers)
        with without_repairs():
            for form in (coarse, graph):
                pairs, why = self._place_with_each(graph, form, cluster, self.placers)
                if pairs:
                    return pairs, ""
        return self._place_with_each(graph, coarse, cluster, self.placers[-1:]) if self.repairs else ([], why)

    def _place_with_each(
        self, graph: OpGraph, form: OpGraph, cluster: Cluster, names: Sequence[str]
    ) -> tuple[list[PlacedTimeline], str]:
        pairs: list[PlacedTimeline] = []
        why = ""
        for name in names:
            try:
                placed = place_directly(form, cluster, name).on(graph)
                timeline = simulate(graph, cluster, placed)
            except BaechiLabError as error:
                why = why or str(error)
                continue
            if timeline.feasible:
                pairs.append(PlacedTimeline(placed, timeline, OPS if form is graph else GROUPS))
            else:
                why = why or timeline.violations[0].message
        return pairs, why

    def least_overflowing(self, graph: OpGraph, cluster: Cluster) -> PlacedTimeline | None:
        """Returns the placement with the smallest `missing_bytes`, among those made for devices with ample memory."""
        ample_cluster = cluster.with_memory(AMPLE_MEMORY)
        coarse, pairs = optimize(graph, cluster), []
        one = np.count_nonzero(~cluster.is_host) == 1
        for name in ("single",) if one else dict.fromkeys(["m-topo", *self.placers]):
            try:
                placed = place_directly(coarse, ample_cluster, name).on(graph)
                pairs.append(PlacedTimeline(placed, simulate(graph, cluster, placed)))
            except BaechiLabError:
                continue
        return min(pairs, key=lambda pair: missing_bytes(pair.timeline, cluster), default=None)


def order_on_one_device(graph: OpGraph, cluster: Cluster) -> tuple[PlacedTimeline | None, str]:
    """Returns the fastest feasible order on one device: order of readiness, topological, or depth first."""
    allowed = allowed_devices(graph, cluster)
    attempts = []
    orders = {"": None, "position": graph.position.astype(np.float64), "depth first": depth_first_order(graph)}
    for words, order in orders.items():
        placed = Placement(
            device=allowed.argmax(axis=1), order=order, placer="single", graph_key=graph.key, info={"order": words}
        )
        timeline = simulate(graph, cluster, placed)
        if timeline.feasible:
            attempts.append(PlacedTimeline(placed, timeline, FIT if words else GROUPS))
        elif not words:
            why = timeline.violations[0].message
    return (min(attempts, key=preference), "") if attempts else (None, why)


def preference(placed: PlacedTimeline) -> tuple[bool, float]:
    """Sort key: placements that fit with the margin of their peaks first, then the fastest."""
    return bool(placed.timeline.devices_in_doubt), placed.timeline.makespan_us


def missing_bytes(timeline: Timeline, cluster: Cluster) -> int:
    """Largest number of bytes by which a device exceeds its memory; 0 if all fit."""
    overflow_bytes = np.where(cluster.is_host, 0, timeline.peak_bytes - cluster.memory_bytes)
    return int(max(overflow_bytes.max(initial=0), 0))


def placement_code(graph: str, cluster: str, placed: PlacedTimeline, devices: int) -> str:
    """Python code that makes a placement of `BestOfPlacers`; `graph` and `cluster` are code, and `bl` is imported."""
    if placed.source == FIT:
        names = "" if placed.placers == FAST_PLACERS else f", placers={placed.placers!r}"
        return f"bl.fit({graph}, {cluster}{names}, give_up=()).best.placement"
    placer, params = placed.placement.placer, placed.placement.params
    if placer == "search":
        return f"bl.place({graph}, {cluster}, 'search', time_limit={params.get('time_limit')})"
    if devices == 1 or placed.source == OPS:
        return f"bl.place({graph}, {cluster}, {placer!r})"
    return f"bl.place(bl.optimize(g := {graph}, {cluster}), {cluster}, {placer!r}).on(g)"
