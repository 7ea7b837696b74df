"""Recomputation and placement chosen together, in turns.

A unit that is recomputed is another graph, while the compiled evaluation of `search` moves the units of one; so the two are
chosen in turns instead of by one kind of move:

1. The step as it is, placed; and for every choice of recomputation the graph it gives, placed.
2. From the placement that lacks least memory: what a choice would drop is dropped only on the devices that are too full,
   the rest is kept; that graph is simulated under the same placement, and placed again. The devices that are too full now
   join those before, at most `ROUNDS` times.

The fastest that fits is taken from all of them, so the result is never worse than placing alone or recomputing alone and
placing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import BaechiLabError, InfeasiblePlacement
from ...graph import Cluster, OpGraph, Placement, Timeline
from ...memory.peak import readiness_peak
from ...memory_saving.recompute import recompute
from ...simulator import simulate
from .placing import Placing

ROUNDS = 3
SHARES = (0.85, 0.7, 0.55, 0.4)
"""Budgets that are tried on several devices, as shares of the peak of one device that runs everything."""


@dataclass(frozen=True, eq=False)
class Joint:
    """A graph that recomputes, placed.

    Args:
        keyword: the arguments of `bl.recompute` that make the graph.
        what: the same in words.
    """

    keyword: dict[str, Any]
    what: str
    graph: OpGraph
    placement: Placement
    timeline: Timeline


def choices(graph: OpGraph, cluster: Cluster, devices: int) -> Iterator[tuple[dict[str, Any], OpGraph]]:
    """Arguments of `bl.recompute` and the graphs that they give, where something is computed again."""
    budgets: list[int] = []
    if devices == 1:
        budgets = [int(cluster.memory_bytes[~cluster.is_host].max())]
    else:
        whole = readiness_peak(graph)
        budgets = [int(share * whole) for share in SHARES]
    keywords: list[dict[str, Any]] = [{"keep": "sqrt"}, {"keep": "boundaries"}, *({"budget": b} for b in budgets)]
    for keyword in keywords:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a choice saves nothing on one device: it is simulated here
                found = recompute(graph, **keyword)
        except InfeasiblePlacement as error:
            if "budget" in keyword and error.needed_bytes < min(budgets):
                continue
            yield from _least(graph, error.needed_bytes)
            return
        if found is not graph:
            yield keyword, found


def words_of(keyword: Mapping[str, Any]) -> str:
    """The arguments as code."""
    return ", ".join(f"{k}={v!r}" for k, v in keyword.items())


def _least(graph: OpGraph, needed: int) -> Iterator[tuple[dict[str, Any], OpGraph]]:
    """The least budget that there is a plan for, where that saves anything."""
    if 0 < needed < readiness_peak(graph):
        yield {"budget": needed}, recompute(graph, budget=needed)


def recompute_and_place(graph: OpGraph, cluster: Cluster, placing: Placing, devices: int) -> list[Joint]:
    """What fits of all choices, and of turns between recomputing and placing; the fastest is first."""
    found: list[Joint] = []
    start, placing = placing.least_over(graph, cluster), replace(placing, repairs=False)
    for keyword, again in choices(graph, cluster, devices):
        what = words_of(keyword)
        best, _ = placing.fastest(again, cluster)
        if best is not None:
            found.append(Joint(keyword, what, again, *best))
        if start is not None and devices > 1:
            found += _in_turns(graph, cluster, placing, again, start, what)
    return sorted(found, key=lambda joint: joint.timeline.makespan_us)


def _in_turns(
    graph: OpGraph, cluster: Cluster, placing: Placing, again: OpGraph, start: tuple[Placement, Timeline], what: str
) -> list[Joint]:
    """Drop, of what `again` drops, what lies on devices that are too full; place again; repeat."""
    dropped = np.unique(again.forward_of[graph.n :])
    placed, timeline = start
    full, found = np.zeros(cluster.n, dtype=np.bool_), []  # type: Any, list[Joint]
    for _ in range(ROUNDS):
        full |= timeline.peak_bytes > cluster.memory_bytes
        names = [graph.names[op] for op in dropped[full[placed.device[dropped]]].tolist()]
        if not names or len(names) == len(dropped):
            break
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                smaller = recompute(graph, drop=names)
        except BaechiLabError:
            break
        follows = placed.device[np.concatenate([np.arange(graph.n), smaller.forward_of[graph.n :]])]
        hand = Placement(device=follows, graph_key=smaller.key, placer=placed.placer)
        timeline = simulate(smaller, cluster, hand)
        words = f"of {what} the {len(names)} ops on {', '.join(np.array(cluster.names)[full].tolist())}"
        if timeline.feasible:
            found.append(Joint({"drop": names}, words, smaller, hand, timeline))
            best, _ = placing.fastest(smaller, cluster)
            if best is not None:
                found.append(Joint({"drop": names}, words, smaller, *best))
            break
    return found
