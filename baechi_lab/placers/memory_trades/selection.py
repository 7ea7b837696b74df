"""Places with memory trades: the fastest of the original graph and of graphs that recompute or offload.

Without a shortage of memory the original graph is placed. Otherwise:

1. The placer places the original graph in half of its time.
2. Fast placers place graphs that recompute (`memory_trades.recomputation`), graphs that offload
   (`memory_trades.offloading`), and graphs that do both where neither fits.
3. The placer places the fastest of these graphs in the other half of its time. It starts from the placement of step 2 if it
   takes a start.

The fastest placement that fits is returned. So it is never slower than the placer alone in half of its time, nor than the
fast placers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...errors import InfeasiblePlacement, InvalidInput, in_short
from ...graph import HOST, Cluster, OpGraph, Placement
from ...simulator import simulate
from ..direct import place_directly
from ..problem import memory_may_run_out
from .best_of_placers import BestOfPlacers
from .memory_ladder import FAST_PLACERS
from .offloading import offload_and_place
from .recomputation import PlacedVariant, recompute_and_place, recompute_variants

GIVE_UP = ("recompute", "offload")


def check_give_up(give_up: object, objective: str) -> None:
    """Raises `InvalidInput` unless `give_up` holds names of `GIVE_UP` and the objective is one step.

    Trades are not compared for periods and for steps of several micro-batches.
    """
    if not isinstance(give_up, list | tuple | set | frozenset) or any(
        not isinstance(name, str) or name not in GIVE_UP for name in give_up
    ):
        raise InvalidInput(f"give_up is {in_short(give_up)}; it must name 'recompute', 'offload' or both")
    if give_up and objective not in ("latency", "makespan"):
        raise InvalidInput(f"give_up is {give_up!r} and objective is {objective!r}; it must be 'latency' or 'makespan'")


def place_with_memory_trades(graph: OpGraph, cluster: Cluster, placer: Any) -> Placement:
    """Places `graph` with a placer that has `give_up`. The result is a placement of its `graph`.

    `gave_up` has the arguments of `bl.recompute` and `bl.offload` that make this graph. It is empty for the original graph.

    Raises:
        InfeasiblePlacement: no placement fits, with any of the allowed trades.
        InvalidInput: "offload" without a device of kind "host"; a coarse graph.
    """
    trades, plain = tuple(placer.give_up), replace(placer, give_up=())
    if "offload" in trades and not any(device.kind == HOST for device in cluster.devices):
        raise InvalidInput(
            "give_up names 'offload' and the cluster has no device of kind 'host'; add one with cluster.with_host"
        )
    if graph.group_of is not None:
        raise InvalidInput(
            f"graph {graph.name!r} is coarse; give the graph that it was made from where something is given up"
        )
    if not memory_may_run_out(graph, cluster):
        return _with_trade(place_directly(graph, cluster, plain), graph, {})
    # A copy of the placer with half of its time limit and half of its evaluations, if it has them.
    time_limit, evaluations = getattr(plain, "time_limit", None), getattr(plain, "evaluations", None)
    half_budget = {} if time_limit is None else {"time_limit": time_limit / 2}
    half = replace(plain, **half_budget, **({} if evaluations is None else {"evaluations": evaluations // 2}))
    try:
        placements = [_with_trade(place_directly(graph, cluster, half), graph, {})]
    except InfeasiblePlacement as error:
        placements, refusal = [], error
    variants = sorted(_place_variants(graph, cluster, trades), key=lambda variant: variant.timeline.makespan_us)
    if variants:
        best = variants[0]
        placements.append(_with_trade(best.placement, best.graph, best.arguments))
        if "start" in type(half).__dataclass_fields__:
            half = replace(half, start=best.placement)
        with suppress(InfeasiblePlacement):
            placements.append(_with_trade(place_directly(best.graph, cluster, half), best.graph, best.arguments))
    if not placements:
        message = f"{refusal}; nor was a graph found that fits and gives up {' or '.join(trades)}"
        raise InfeasiblePlacement(message, refusal.needed_bytes, refusal.available_bytes, is_proof=False) from refusal
    return min(placements, key=lambda placement: _cost(placement, graph, cluster))


def _place_variants(graph: OpGraph, cluster: Cluster, trades: tuple[str, ...]) -> Iterator[PlacedVariant]:
    """Graphs with a memory trade, placed by fast placers."""
    placing = BestOfPlacers(FAST_PLACERS)
    devices = sum(device.kind != HOST for device in cluster.devices)
    variant_count = 0
    if "recompute" in trades:
        for variant in recompute_and_place(graph, cluster, placing, devices):
            variant_count += 1
            yield replace(variant, arguments={"recompute": variant.arguments})
    if "offload" in trades:
        for variant in offload_and_place(graph, cluster, placing):
            variant_count += 1
            yield replace(variant, arguments={"offload": variant.arguments})
    if variant_count == 0 and len(trades) == 2:
        for keyword, recomputed_graph in recompute_variants(graph, cluster, devices):
            for variant in offload_and_place(recomputed_graph, cluster, placing):
                yield replace(variant, arguments={"recompute": keyword, "offload": variant.arguments})


def _cost(placement: Placement, graph: OpGraph, cluster: Cluster) -> tuple[bool, float]:
    """Returns the sort key: feasible placements first, then by step time."""
    timeline = simulate(placement.graph or graph, cluster, placement)
    return not timeline.feasible, timeline.makespan_us


def _with_trade(placement: Placement, graph: OpGraph, gave_up: dict[str, object]) -> Placement:
    """Returns the placement with its graph, which earlier versions had in `info`."""
    info = {**placement.info, "graph": graph, "gave_up": gave_up}
    return placement.replace(graph=graph, gave_up=gave_up, info=info)
