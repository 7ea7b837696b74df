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
MAX_SEARCHED_OPS = 16
"""Largest graph for which `auto` is asked, too: it tries all placements and orders of graphs as small as this."""
MAX_OPS_OF_OPTIONS = 100
"""Largest graph of an option, such as one that recomputes, for which placers look for other orders on one device."""
GROUPS, OPS, FIT = "groups", "ops", "fit"
"""What a placement comes from: the optimized graph, the graph itself, or steps that only `bl.fit` takes."""


class PlacedTimeline(NamedTuple):
    """A placement with its timeline, and its origin, from which `placement_code` writes code that makes it again.

    `source` is `GROUPS`, `OPS` or `FIT`; `placers` are those of `bl.fit` if it is `FIT`.
    """

    placement: Placement
    timeline: Timeline
    source: str = GROUPS
    placers: tuple[str, ...] = FAST_PLACERS


@dataclass(frozen=True)
class BestOfPlacers:
    """The placement step of `bl.fit`.

    Every placer places the optimized graph. If none fits, every placer places the graph itself. Small graphs are placed as they
    are, also by `auto`. On one device, placers are only asked for an order if none of three simple ones fits. With a
    `time_limit`, `search` then improves the best placement.

    >>> graph = OpGraph.from_edges([5, 10], [(0, 1, 8)])
    >>> best, why = BestOfPlacers(("single",)).fastest(graph, Cluster.uniform(2))
    >>> best.timeline.makespan_us, why
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
        candidates: list[PlacedTimeline] = []
        why = ""
        if known_placement is not None:
            known_result = PlacedTimeline(known_placement, simulate(graph, cluster, known_placement))
            candidates += [known_result] if known_result.timeline.feasible else []
        if np.count_nonzero(~cluster.is_host) == 1:
            alone, why = order_on_one_device(graph, cluster)
            candidates += [alone] if alone else []
            if candidates or graph.n > (MAX_REPAIRED_OPS if other_limits else MAX_OPS_OF_OPTIONS):
                return min(candidates, key=preference, default=None), "" if candidates else why
        proposals, reason = self._ask_placers(graph, cluster)
        candidates, why = candidates + proposals, why or reason
        if other_limits and graph.n <= MAX_REPAIRED_OPS:
            candidates += [
                PlacedTimeline(placement, timeline, FIT, tuple(self.placers))
                for placement, timeline in place_on_memory_ladder(graph, cluster, self.placers)
                if timeline.feasible
            ]
        if not candidates:
            return None, why
        best = min(candidates, key=preference)
        if self.time_limit:
            placement = place_directly(
                graph, cluster, "search", start=best.placement, time_limit=self.time_limit, seed=self.seed
            )
            improvement = PlacedTimeline(placement, simulate(graph, cluster, placement))
            if improvement.timeline.feasible and preference(improvement) < preference(best):
                best = improvement
        return best, ""

    def _ask_placers(self, graph: OpGraph, cluster: Cluster) -> tuple[list[PlacedTimeline], str]:
        """Returns placements of the optimized graph, or of the graph itself if none fits, and the reason if there are none.

        A group may be too large for every device, while its ops are not. On large graphs the placers only plan, and one plan
        is repaired if none fits.
        """
        if graph.n <= MAX_SEARCHED_OPS and tuple(self.placers) == FAST_PLACERS:
            return self._place_with_each(graph, graph, cluster, (*FAST_PLACERS, "auto"))
        coarse = optimize(graph, cluster)
        if graph.n <= MAX_REPAIRED_OPS:
            placements, why = self._place_with_each(graph, coarse, cluster, self.placers)
            return (placements, why) if placements else self._place_with_each(graph, graph, cluster, self.placers)
        with without_repairs():
            for graph_to_place in (coarse, graph):
                placements, why = self._place_with_each(graph, graph_to_place, cluster, self.placers)
                if placements:
                    return placements, ""
        return self._place_with_each(graph, coarse, cluster, self.placers[-1:]) if self.repairs else ([], why)

    def _place_with_each(
        self, graph: OpGraph, graph_to_place: OpGraph, cluster: Cluster, names: Sequence[str]
    ) -> tuple[list[PlacedTimeline], str]:
        """Returns the feasible placements of `graph_to_place` (`graph` or its groups), and the first placer's reason for none."""
        placements: list[PlacedTimeline] = []
        why = ""
        for name in names:
            try:
                placement = place_directly(graph_to_place, cluster, name).on(graph)
                timeline = simulate(graph, cluster, placement)
            except BaechiLabError as error:
                why = why or str(error)
                continue
            if timeline.feasible:
                placements.append(PlacedTimeline(placement, timeline, OPS if graph_to_place is graph else GROUPS))
            else:
                why = why or timeline.violations[0].message
        return placements, why

    def least_overflowing(self, graph: OpGraph, cluster: Cluster) -> PlacedTimeline | None:
        """Returns the placement with the smallest `missing_bytes`, among those made for devices with ample memory."""
        ample_cluster = cluster.with_memory(AMPLE_MEMORY)
        coarse, placements = optimize(graph, cluster), []
        has_one_device = np.count_nonzero(~cluster.is_host) == 1
        for name in ("single",) if has_one_device else dict.fromkeys(["m-topo", *self.placers]):
            try:
                placement = place_directly(coarse, ample_cluster, name).on(graph)
                placements.append(PlacedTimeline(placement, simulate(graph, cluster, placement)))
            except BaechiLabError:
                continue
        return min(
            placements, key=lambda placed_timeline: missing_bytes(placed_timeline.timeline, cluster), default=None
        )


def order_on_one_device(graph: OpGraph, cluster: Cluster) -> tuple[PlacedTimeline | None, str]:
    """Returns the fastest feasible order on one device (of readiness, topological, or depth first), or None and the reason."""
    allowed = allowed_devices(graph, cluster)
    fitting = []
    orders = {"": None, "position": graph.position.astype(np.float64), "depth first": depth_first_order(graph)}
    for order_name, order in orders.items():
        placement = Placement(
            device=allowed.argmax(axis=1), order=order, placer="single", graph_key=graph.key, info={"order": order_name}
        )
        timeline = simulate(graph, cluster, placement)
        if timeline.feasible:
            fitting.append(PlacedTimeline(placement, timeline, FIT if order_name else GROUPS))
        elif not order_name:
            why = timeline.violations[0].message
    return (min(fitting, key=preference), "") if fitting else (None, why)


def preference(placed_timeline: PlacedTimeline) -> tuple[bool, float]:
    """Returns the sort key: placements that fit with the margin of their peaks first, then the fastest."""
    return bool(placed_timeline.timeline.devices_in_doubt), placed_timeline.timeline.makespan_us


def missing_bytes(timeline: Timeline, cluster: Cluster) -> int:
    """Returns the largest number of bytes by which a device exceeds its memory; 0 if all fit."""
    overflow_bytes = np.where(cluster.is_host, 0, timeline.peak_bytes - cluster.memory_bytes)
    return int(max(overflow_bytes.max(initial=0), 0))


def placement_code(graph: str, cluster: str, placed_timeline: PlacedTimeline, devices: int) -> str:
    """Returns Python code that makes a placement of `BestOfPlacers`; `graph` and `cluster` are code, and `bl` is imported."""
    if placed_timeline.source == FIT:
        names = "" if placed_timeline.placers == FAST_PLACERS else f", placers={placed_timeline.placers!r}"
        return f"bl.fit({graph}, {cluster}{names}, give_up=()).best.placement"
    placer, params = placed_timeline.placement.placer, placed_timeline.placement.params
    if placer == "search":
        return f"bl.place({graph}, {cluster}, 'search', time_limit={params.get('time_limit')})"
    if placed_timeline.source == OPS or (devices == 1 and placer == "single"):
        return f"bl.place({graph}, {cluster}, {placer!r})"
    return f"bl.place(bl.optimize(g := {graph}, {cluster}), {cluster}, {placer!r}).on(g)"
