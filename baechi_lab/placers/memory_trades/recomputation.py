"""Chooses recomputation and placement together, in turns.

A graph with recomputed ops is another graph, while the compiled evaluation of `search` moves the units of one graph. So the
two are chosen in turns:

1. The original graph is placed. Each recomputation variant is placed.
2. The placement of the original graph that exceeds memory least is the start. Of the ops that a variant recomputes, only those
   on overfull devices are recomputed. This graph is simulated under the same placement and placed again. Newly overfull
   devices join, at most `ROUNDS` times.

The fastest placement that fits is taken from all of them. So the result is never worse than placing alone, nor than
recomputing first and placing then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import BaechiLabError, InfeasiblePlacement
from ...graph import Cluster, OpGraph, Placement, Timeline
from ...internal_warnings import collected_warnings
from ...memory.peak import readiness_peak
from ...memory_saving.recompute import recompute
from ...simulator import simulate
from .best_of_placers import BestOfPlacers, PlacedTimeline, preference

ROUNDS = 3
SHARES = (0.85, 0.7, 0.55, 0.4)
"""Budgets on several devices, as shares of the peak of one device that runs everything."""


@dataclass(frozen=True, eq=False)
class PlacedVariant:
    """A graph with a memory trade, and its placement.

    Args:
        arguments: the arguments of `bl.recompute` or `bl.offload` that make the graph.
        selection: the arguments that chose the ops: `arguments`, unless only a part of those ops was taken.
        description: the choice as text.
        graph: the graph with the trade.
        placed_timeline: its placement, with the simulated timeline.
    """

    arguments: dict[str, Any]
    selection: dict[str, Any]
    description: str
    graph: OpGraph
    placed_timeline: PlacedTimeline

    @property
    def placement(self) -> Placement:
        """The placement of `graph`."""
        return self.placed_timeline.placement

    @property
    def timeline(self) -> Timeline:
        """Its simulated timeline."""
        return self.placed_timeline.timeline


def recompute_variants(graph: OpGraph, cluster: Cluster, devices: int) -> Iterator[tuple[dict[str, object], OpGraph]]:
    """Arguments of `bl.recompute` with the graphs that they make, if these recompute anything."""
    budgets: list[int] = []
    if devices == 1:
        budgets = [int(cluster.memory_bytes[~cluster.is_host].max())]
    else:
        full_peak = readiness_peak(graph)
        budgets = [int(share * full_peak) for share in SHARES]
    keywords: list[dict[str, Any]] = [{"keep": "sqrt"}, {"keep": "boundaries"}, *({"budget": b} for b in budgets)]
    for arguments in keywords:
        try:
            with collected_warnings():  # that a choice saves nothing on one device: it is simulated here
                recomputed_graph = recompute(graph, **arguments)
        except InfeasiblePlacement as error:
            if "budget" in arguments and error.needed_bytes < min(budgets):
                continue
            if 0 < error.needed_bytes < readiness_peak(graph):  # the smallest feasible budget, where it saves memory
                yield {"budget": error.needed_bytes}, recompute(graph, budget=error.needed_bytes)
            return
        if recomputed_graph is not graph:
            yield arguments, recomputed_graph


def format_arguments(arguments: Mapping[str, object]) -> str:
    """Formats the arguments as Python code."""
    return ", ".join(f"{k}={v!r}" for k, v in arguments.items())


def recompute_and_place(graph: OpGraph, cluster: Cluster, placing: BestOfPlacers, devices: int) -> list[PlacedVariant]:
    """Returns the feasible placements of all recomputation variants, and of turns between both choices.

    Those that fit with the margin of their peaks come first, and of these the fastest.
    """
    variants: list[PlacedVariant] = []
    start, placing = placing.least_overflowing(graph, cluster), replace(placing, repairs=False)
    for arguments, recomputed_graph in recompute_variants(graph, cluster, devices):
        best, _ = placing.fastest(recomputed_graph, cluster)
        if best is not None:
            variants.append(PlacedVariant(arguments, arguments, format_arguments(arguments), recomputed_graph, best))
        if start is not None and devices > 1:
            variants += _recompute_in_turns(graph, cluster, placing, recomputed_graph, start, arguments)
    return sorted(variants, key=lambda variant: preference(variant.placed_timeline))


def _recompute_in_turns(
    graph: OpGraph,
    cluster: Cluster,
    placing: BestOfPlacers,
    recomputed_graph: OpGraph,
    start: PlacedTimeline,
    selection: dict[str, Any],
) -> list[PlacedVariant]:
    """Recomputes those of the variant's ops that are on overfull devices, places again, and repeats."""
    dropped_ops = np.unique(recomputed_graph.forward_of[graph.n :])
    placement, timeline = start.placement, start.timeline
    full = np.zeros(cluster.n, dtype=np.bool_)
    variants: list[PlacedVariant] = []
    for _ in range(ROUNDS):
        full |= timeline.peak_bytes > cluster.memory_bytes
        names = [graph.names[op] for op in dropped_ops[full[placement.device[dropped_ops]]].tolist()]
        if not names or len(names) == len(dropped_ops):
            break
        try:
            with collected_warnings():
                smaller = recompute(graph, drop=names)
        except BaechiLabError:
            break
        follows = placement.device[np.concatenate([np.arange(graph.n), smaller.forward_of[graph.n :]])]
        hand = Placement(device=follows, graph_key=smaller.key, placer=placement.placer)
        timeline = simulate(smaller, cluster, hand)
        words = (
            f"{format_arguments(selection)}, only the {len(names)} ops on "
            f"{', '.join(np.array(cluster.names)[full].tolist())}"
        )
        if timeline.feasible:
            variants.append(PlacedVariant({"drop": names}, selection, words, smaller, PlacedTimeline(hand, timeline)))
            best, _ = placing.fastest(smaller, cluster)
            if best is not None:
                variants.append(PlacedVariant({"drop": names}, selection, words, smaller, best))
            break
    return variants
