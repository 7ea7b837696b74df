"""Placements made for a fixed ladder of memory limits, whatever the devices have: what fits of them can only grow with memory.

Rules and repairs for one limit are no optimum, and a tighter limit may lead them to a faster placement. So the same limits are
tried whichever is asked for: from the least that one device needs, as far as the graph proves it, to what the greediest plan
without limits holds, in equal ratios. From the highest on, each is repaired and improved from the fastest that fits it so far.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import BaechiLabError
from ...graph import Cluster, OpGraph, Placement, Timeline
from ...passes.optimize import optimize
from ...simulator import simulate
from ..direct import place_directly
from ..memory.needs import alone_bytes, most_across
from ..memory.packing import beside
from ..memory.repair import repair

LIMITS = 9
WORK = 200_000
"""Simulations of one repair times ops, of graphs with more than `FEW` ops: no limit takes longer than of those."""
FEW = 50
FAST = ("single", "m-topo", "m-etf", "contiguous")
"""Who places the graphs among which is chosen."""

PLENTY = 1 << 50
"""Bytes of a device that are never short, and can be added up over all devices."""

Pair = tuple[Placement, Timeline]


def ladder(graph: OpGraph, cluster: Cluster, placers: Sequence[str] = FAST) -> list[Pair]:
    """Placements that do not depend on the devices' memory, simulated on the cluster as it is; none where no plan is lawful."""
    roomy = cluster.with_memory(PLENTY)
    found = _unlimited(graph, roomy, placers)
    if not found:
        return []
    able, start = ~cluster.is_host, _fastest(found)
    for limit in _limits(graph, roomy, [_held(pair, able) for pair in found]):
        start = _fastest([pair for pair in found if _held(pair, able) <= limit]) or start
        memory = np.where(able, limit, roomy.memory_bytes).tolist()
        made = _repaired(graph, roomy.with_memory(memory), start[0])  # type: ignore[index]
        if made is None:
            break
        found.append((made, simulate(graph, roomy, made)))
    return [(placed, simulate(graph, cluster, placed)) for placed, _ in found]


def _unlimited(graph: OpGraph, roomy: Cluster, placers: Sequence[str]) -> list[Pair]:
    """What each rule makes of the optimized graph and of the graph itself where nothing is scarce."""
    found: list[Pair] = []
    for form in (optimize(graph, roomy), graph):
        for name in placers:
            try:
                placed = place_directly(form, roomy, name).on(graph)
            except BaechiLabError:
                continue
            found.append((placed, simulate(graph, roomy, placed)))
    return found


def _limits(graph: OpGraph, roomy: Cluster, peaks: Sequence[int]) -> list[int]:
    """Bytes of a device, from the most that a plan without limits holds down to what is proven to be needed."""
    able = int(np.count_nonzero(~roomy.is_host))
    alone = int((alone_bytes(graph, shared=True) + beside(graph, shared=True)).max(initial=0))
    together = max(most_across(graph, shared=True)[0], int(graph.persistent_bytes.sum()))
    low, high = max(alone, -(-together // able), 1), max(*peaks, 1)
    return np.unique(np.geomspace(min(low, high), high, LIMITS).astype(np.int64))[::-1].tolist()


def _repaired(graph: OpGraph, cluster: Cluster, start: Placement) -> Placement | None:
    evaluations = None if graph.n <= FEW else max(WORK // graph.n, 60)
    try:
        return repair(graph, cluster.without_overhead(), start, evaluations=evaluations)
    except BaechiLabError:
        return None


def _held(pair: Pair, able: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    return int(pair[1].peak_bytes[able].max(initial=0))


def _fastest(found: Sequence[Pair]) -> Pair | None:
    return min(found, key=lambda pair: pair[1].makespan_us, default=None)
