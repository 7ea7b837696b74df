"""A placer that may give up time for memory: the fastest of the graph as it is and of graphs that recompute or offload.

Where memory cannot run out there is nothing to give up. Else the placer has one half of its time for the graph as it is. Then
recomputation is chosen in turns with fast placements (`giving_up.recomputing`), offloading by shares
(`giving_up.offloading`), and both together where neither fits. The placer has the other half for the fastest graph that
this gave, from the placement that came with it where it takes a start. What fits and takes least is returned, so it is never
slower than what the placer finds by itself in half of its time, nor than the fast placements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...checks import is_list
from ...errors import InfeasiblePlacement, InvalidInput
from ...graph import HOST, Cluster, OpGraph, Placement
from ...simulator import simulate
from ..base import Placer
from ..direct import place_directly
from ..problem import memory_may_run_out
from .ladder import FAST
from .offloading import offload_and_place
from .placing import Placing
from .recomputing import Joint, choices, recompute_and_place

GIVE_UP = ("recompute", "offload")


def check_give_up(give_up: Any, objective: str) -> None:
    """Refuse what cannot be given up, and periods and steps of several micro-batches, which are not compared here."""
    if isinstance(give_up, str) or not is_list(give_up) or any(way not in GIVE_UP for way in give_up):
        raise InvalidInput(f"give_up is {give_up!r}; it must name 'recompute', 'offload' or both")
    if give_up and objective not in ("latency", "makespan"):
        raise InvalidInput(f"give_up is {give_up!r} and objective is {objective!r}; it must be 'latency' or 'makespan'")


def place_giving_up(graph: OpGraph, cluster: Cluster, made: Any) -> Placement:
    """What the placer `made` finds when it may change the graph: `info["graph"]` is the one that the placement is of.

    `info["gave_up"]` has the arguments of `bl.recompute` and `bl.offload` that make it; empty where it is the given one.

    Raises:
        InfeasiblePlacement: nothing fits, whatever is given up.
        InvalidInput: "offload" without a device of kind "host"; a coarse graph.
    """
    ways, plain = tuple(made.give_up), replace(made, give_up=())
    if "offload" in ways and not any(device.kind == HOST for device in cluster.devices):
        raise InvalidInput(
            "give_up names 'offload' and the cluster has no device of kind 'host'; add one with cluster.with_host"
        )
    if graph.group_of is not None:
        raise InvalidInput(
            f"graph {graph.name!r} is coarse; give the graph that it was made from where something is given up"
        )
    if not memory_may_run_out(graph, cluster):
        return _told(place_directly(graph, cluster, plain), graph, {})
    half = _halved(plain)
    try:
        found = [_told(place_directly(graph, cluster, half), graph, {})]
    except InfeasiblePlacement as error:
        found, refused = [], error
    joints = sorted(_joints(graph, cluster, ways), key=lambda joint: joint.timeline.makespan_us)
    if joints:
        best = joints[0]
        found += [_told(best.placement, best.graph, best.keyword), *_again(best, cluster, half)]
    if not found:
        said = f"{refused}; nor was a graph found that fits and gives up {' or '.join(ways)}"
        raise InfeasiblePlacement(said, refused.needed_bytes, refused.available_bytes) from refused
    return min(found, key=lambda placed: _worth(placed, cluster))


def _joints(graph: OpGraph, cluster: Cluster, ways: tuple[str, ...]) -> Iterator[Joint]:
    """Graphs that give something up, placed by fast rules."""
    placing, devices, found = Placing(FAST), sum(device.kind != HOST for device in cluster.devices), 0
    if "recompute" in ways:
        for joint in recompute_and_place(graph, cluster, placing, devices):
            found += 1
            yield replace(joint, keyword={"recompute": joint.keyword})
    if "offload" in ways:
        for joint in offload_and_place(graph, cluster, placing):
            found += 1
            yield replace(joint, keyword={"offload": joint.keyword})
    if found == 0 and len(ways) == 2:
        for keyword, again in choices(graph, cluster, devices):
            for joint in offload_and_place(again, cluster, placing):
                yield replace(joint, keyword={"recompute": keyword, "offload": joint.keyword})


def _again(joint: Joint, cluster: Cluster, placer: Placer) -> Iterator[Placement]:
    """What the placer makes of the graph, from the placement that there is if it takes one."""
    if "start" in type(placer).__dataclass_fields__:
        placer = replace(placer, start=joint.placement)  # type: ignore[call-arg]
    try:
        yield _told(place_directly(joint.graph, cluster, placer), joint.graph, joint.keyword)
    except InfeasiblePlacement:
        return


def _halved(placer: Any) -> Any:
    """The placer with half of its time and of its evaluations, where it has any."""
    time_limit, evaluations = getattr(placer, "time_limit", None), getattr(placer, "evaluations", None)
    less = {} if time_limit is None else {"time_limit": time_limit / 2}
    return replace(placer, **less, **({} if evaluations is None else {"evaluations": evaluations // 2}))


def _worth(placed: Placement, cluster: Cluster) -> tuple[bool, float]:
    timeline = simulate(placed.info["graph"], cluster, placed)
    return not timeline.feasible, timeline.makespan_us


def _told(placed: Placement, graph: OpGraph, gave_up: dict[str, Any]) -> Placement:
    return placed.replace(info={**placed.info, "graph": graph, "gave_up": gave_up})
