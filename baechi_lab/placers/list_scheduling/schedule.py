"""From records to the list-scheduling kernel and back: what ETF, SCT and their memory-aware forms share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, Placement
from ..problem import make_problem

_NOBODY: NDArray[np.int32] = np.zeros(0, dtype=np.int32)


def schedule(
    graph: OpGraph,
    cluster: Cluster,
    *,
    child: NDArray[Any] | None = None,
    parent: NDArray[Any] | None = None,
    limited: bool = True,
    reservation: bool = False,
    explain: bool = False,
) -> Placement:
    """Plan with `earliest_start`; `child` and `parent` int32[n] are favourites (-1: none).

    `info` of the result: `planned_makespan_us`, `overflows` (ops put where memory is lacking) and, where `explain`,
    `decisions`: the log made by the readable twin, which takes far longer.
    """
    problem = make_problem(graph, cluster, limited=limited, reservation=reservation)
    info: dict[str, Any] = {}
    if explain:
        from .earliest_start_reference import earliest_start_reference

        none = np.full(graph.n, -1, dtype=np.int32)
        favourites = (none if child is None else child, none if parent is None else parent)
        device, _, finish, position, overflows, info["decisions"] = earliest_start_reference(problem, *favourites, True)
    else:
        from .earliest_start import earliest_start

        favourites = (_NOBODY if child is None else child, _NOBODY if parent is None else parent)
        device, _, finish, position, overflows = earliest_start(problem, *favourites)
    info |= {"planned_makespan_us": float(finish.max(initial=0.0)), "overflows": int(overflows)}
    return Placement(device=device, order=position, info=info)
