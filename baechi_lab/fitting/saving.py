"""What recomputation and offloading save: the peak of the same placement without them."""

from __future__ import annotations

from ..errors import BaechiLabError
from ..graph import Placement
from ..simulator import simulate
from .record import FitOption, fullest_device_bytes

SAVING_KINDS = ("recomputation", "offloading", "recomputation + offloading")
"""Options whose graphs have the ops of the step as it is, and after them ops that save memory."""


def unsaved_peak_bytes(option: FitOption, as_it_is: FitOption) -> int | None:
    """Returns the peak of the fullest device if the placement of an option runs the step without the option.

    Args:
        option: with a placement of a graph that saves memory.
        as_it_is: the step without the option.

    Returns:
        Bytes; None for another kind of option, and where the step as it is cannot be run so.
    """
    graph, placement, cluster = as_it_is.graph, option.placement, option.cluster
    if option.kind not in SAVING_KINDS or option.timeline is None or option.timeline.micro_batch is not None:
        return None
    if graph is None or placement is None or cluster is None or option.graph is None:
        return None
    if option.graph.names[: graph.n] != graph.names or len(placement.device) != option.graph.n:
        return None
    order = None if placement.rank is None else placement.rank[: graph.n]
    try:
        timeline = simulate(graph, cluster, Placement(device=placement.device[: graph.n], order=order))
    except BaechiLabError:
        return None
    return fullest_device_bytes(FitOption(option.kind, cluster=cluster, timeline=timeline))
