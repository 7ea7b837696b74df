"""The fastest placement within memory that a few placers find, and how much one that exceeds it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import BaechiLabError, InvalidInput
from ...graph import Cluster, OpGraph, Placement, Timeline, allowed_devices
from ...passes.optimize import optimize
from ...simulator import simulate
from ..direct import place_directly
from ..memory.feasible import plans_alone
from ..memory.order import depth_first_order
from ..registry import placer_class
from .ladder import FAST, PLENTY, ladder

MOST_RAW = 2000
"""Ops of a graph for which every placer may repair its plan: on larger ones that takes minutes."""


@dataclass(frozen=True)
class Placing:
    """How `bl.fit` places: every placer on the optimized graph, and where none fits on the graph itself; then perhaps `search`.

    >>> graph = OpGraph.from_edges([5, 10], [(0, 1, 8)])
    >>> found, why = Placing(("single",)).fastest(graph, Cluster.uniform(2))
    >>> found[1].makespan_us, why
    (15.0, '')
    """

    placers: Sequence[str]
    time_limit: float = 0.0
    seed: int = 0
    repairs: bool = True
    """Whether what was only planned, on a large graph, is repaired once where no plan fits."""

    def __post_init__(self) -> None:
        if isinstance(self.placers, str) or not self.placers:
            raise InvalidInput(f"placers is {self.placers!r}; it must be a list of names, for example ['m-etf']")
        for name in self.placers:
            placer_class(name)
        if isinstance(self.time_limit, bool) or not (
            isinstance(self.time_limit, (int, float)) and 0 <= self.time_limit < np.inf
        ):
            raise InvalidInput(f"time_limit is {self.time_limit!r}; it must be a number of seconds of at least 0")

    def fastest(
        self, graph: OpGraph, cluster: Cluster, known: Placement | None = None, *, other_limits: bool = False
    ) -> tuple[tuple[Placement, Timeline] | None, str]:
        """The fastest placement that keeps every rule, and its timeline; else None, and why the last placer found none.

        `known` is a placement that is there already: it counts as one of the tries, and wins ties. So do, with `other_limits`,
        those made for other limits of memory (`giving_up.ladder`), but of large graphs.
        """
        stands = [] if known is None else [(known, simulate(graph, cluster, known))]
        found = [pair for pair in stands if pair[1].feasible]
        if np.count_nonzero(~cluster.is_host) == 1:
            alone, why = on_one_device(graph, cluster)
            found += [alone] if alone else []
            return min(found, key=lambda pair: pair[1].makespan_us, default=None), "" if found else why
        asked, why = self._asked(graph, cluster)
        found += asked
        if other_limits and graph.n <= MOST_RAW:
            found += [
                (placed.replace(info={**placed.info, "form": "ladder", "placers": tuple(self.placers)}), timeline)
                for placed, timeline in ladder(graph, cluster, self.placers)
                if timeline.feasible
            ]
        if not found:
            return None, why
        best = min(found, key=lambda pair: pair[1].makespan_us)
        return self._searched(graph, cluster, best), ""

    def _asked(self, graph: OpGraph, cluster: Cluster) -> tuple[list[tuple[Placement, Timeline]], str]:
        """What placers find on the optimized graph; else on the graph itself, as groups may be too large for any device.

        On large graphs they only plan at first, and what then does not fit is repaired once.
        """
        coarse = optimize(graph, cluster)
        if graph.n <= MOST_RAW:
            found, why = self._placed(graph, coarse, cluster, self.placers)
            return (found, why) if found else self._placed(graph, graph, cluster, self.placers)
        with plans_alone():
            for form in (coarse, graph):
                found, why = self._placed(graph, form, cluster, self.placers)
                if found:
                    return found, ""
        return self._placed(graph, coarse, cluster, self.placers[-1:]) if self.repairs else ([], why)

    def _placed(
        self, graph: OpGraph, form: OpGraph, cluster: Cluster, names: Sequence[str]
    ) -> tuple[list[tuple[Placement, Timeline]], str]:
        found: list[tuple[Placement, Timeline]] = []
        why = ""
        for name in names:
            try:
                placed = place_directly(form, cluster, name).on(graph)
                timeline = simulate(graph, cluster, placed)
            except BaechiLabError as error:
                why = why or str(error)
                continue
            if timeline.feasible:
                found.append((placed.replace(info={**placed.info, "form": "raw" if form is graph else ""}), timeline))
            else:
                why = why or timeline.violations[0].message
        return found, why

    def _searched(
        self, graph: OpGraph, cluster: Cluster, best: tuple[Placement, Timeline]
    ) -> tuple[Placement, Timeline]:
        if not self.time_limit:
            return best
        placed = place_directly(graph, cluster, "search", start=best[0], time_limit=self.time_limit, seed=self.seed)
        timeline = simulate(graph, cluster, placed)
        return (placed, timeline) if timeline.feasible and timeline.makespan_us < best[1].makespan_us else best

    def least_over(self, graph: OpGraph, cluster: Cluster) -> tuple[Placement, Timeline] | None:
        """The placement whose fullest device lacks least memory, of those made for devices with more than they have."""
        roomy = cluster.with_memory(PLENTY)
        coarse, found = optimize(graph, cluster), []
        one = np.count_nonzero(~cluster.is_host) == 1
        for name in ("single",) if one else dict.fromkeys(["m-topo", *self.placers]):
            try:
                placed = place_directly(coarse, roomy, name).on(graph)
                found.append((placed, simulate(graph, cluster, placed)))
            except BaechiLabError:
                continue
        return min(found, key=lambda pair: lacking(pair[1], cluster), default=None)


def on_one_device(graph: OpGraph, cluster: Cluster) -> tuple[tuple[Placement, Timeline] | None, str]:
    """Nothing to place but the order: that of readiness, the topological one, and depth first."""
    able = allowed_devices(graph, cluster)
    tried = []
    orders = {"": None, "position": graph.position.astype(np.float64), "depth first": depth_first_order(graph)}
    for words, order in orders.items():
        placed = Placement(
            device=able.argmax(axis=1), order=order, placer="single", graph_key=graph.key, info={"order": words}
        )
        timeline = simulate(graph, cluster, placed)
        if timeline.feasible:
            tried.append((placed, timeline))
        elif not words:
            why = timeline.violations[0].message
    return (min(tried, key=lambda pair: pair[1].makespan_us), "") if tried else (None, why)


def lacking(timeline: Timeline, cluster: Cluster) -> int:
    """Bytes by which the device that lacks most exceeds its memory; 0 where all are enough."""
    over = np.where(cluster.is_host, 0, timeline.peak_bytes - cluster.memory_bytes)
    return int(max(over.max(initial=0), 0))


def code_of_over(graph: str, cluster: str, placed: Placement) -> str:
    """Code that makes what `Placing.least_over` found."""
    return f"bl.place(bl.optimize(g := {graph}, {cluster}), {cluster}.with_memory(1 << 50), {placed.placer!r}).on(g)"


def code_of(graph: str, cluster: str, placed: Placement, devices: int) -> str:
    """Code that makes a placement which `Placing` found, from code that makes the graph and the cluster; `bl` is all it needs."""
    if placed.info.get("order") or placed.info.get("form") == "ladder":
        asked = tuple(placed.info.get("placers", FAST))
        names = "" if asked == FAST else f", placers={asked!r}"
        return f"bl.fit({graph}, {cluster}{names}, give_up=()).best.placement"
    if placed.placer == "search":
        return f"bl.place({graph}, {cluster}, 'search', time_limit={placed.params.get('time_limit')})"
    if devices == 1 or placed.info.get("form") == "raw":
        return f"bl.place({graph}, {cluster}, {placed.placer!r})"
    return f"bl.place(bl.optimize(g := {graph}, {cluster}), {cluster}, {placed.placer!r}).on(g)"
