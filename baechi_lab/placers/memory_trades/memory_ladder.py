"""Placements for a fixed series of memory limits that does not depend on the devices' memory.

Placers and repairs are heuristics: a tighter limit may lead them to a faster placement. The same limits are tried for every
cluster, so more memory never makes the result slower. The highest limit is the largest peak of a plan without limits; the
lowest is the proven need of a device; the ratio of neighbouring limits is constant. From the highest limit on, the fastest
placement that fits so far is repaired and improved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import BaechiLabError
from ...graph import Cluster, OpGraph, Placement, Timeline
from ...passes.optimize import optimize
from ...simulator import simulate, simulate_step
from ..direct import place_directly
from ..memory.packing import needed_bytes
from ..memory.repair import repair

LIMIT_COUNT = 9  # memory limits that are tried
SIMULATED_OPS = 200_000
"""Ops simulated in one repair, for graphs with more than `SMALL_GRAPH_OPS` ops. It bounds the time per limit."""
SMALL_GRAPH_OPS = 50
FAST_PLACERS = ("single", "m-topo", "m-etf", "contiguous")
"""Placers that place each graph variant."""
AMPLE_MEMORY = 1 << 50
"""Bytes of a device that never run out. Their sum over all devices does not overflow."""

Pair = tuple[Placement, Timeline]


def place_on_memory_ladder(graph: OpGraph, cluster: Cluster, placers: Sequence[str] = FAST_PLACERS) -> list[Pair]:
    """Returns the placements for all limits, each simulated on `cluster`. Empty if no placer finds a valid plan."""
    ample_cluster = cluster.with_memory(AMPLE_MEMORY)
    # Placements of the optimized graph and of the graph itself, by each placer, with ample memory.
    pairs: list[Pair] = []
    for form in (optimize(graph, ample_cluster), graph):
        for name in placers:
            try:
                placement = place_directly(form, ample_cluster, name).on(graph)
            except BaechiLabError:
                continue
            pairs.append((placement, simulate_step(graph, ample_cluster, placement)))
    if not pairs:
        return []
    computing, start = ~cluster.is_host, _fastest(pairs)
    # Bytes per device, from the largest peak of a plan without limits down to the proven need.
    device_count = int(np.count_nonzero(~ample_cluster.is_host))
    alone, together = needed_bytes(graph)
    low = max(alone, -(-together // device_count), 1)
    high = max(1, *(_largest_peak(pair, computing) for pair in pairs))
    for limit in np.unique(np.geomspace(min(low, high), high, LIMIT_COUNT).astype(np.int64))[::-1].tolist():
        start = _fastest([pair for pair in pairs if _largest_peak(pair, computing) <= limit]) or start
        memory = np.where(computing, limit, ample_cluster.memory_bytes).tolist()
        limited_cluster = ample_cluster.with_memory(memory).without_overhead()
        evaluations = None if graph.n <= SMALL_GRAPH_OPS else max(SIMULATED_OPS // graph.n, 60)
        try:
            repaired_placement = repair(graph, limited_cluster, start[0], evaluations=evaluations)  # type: ignore[index]
        except BaechiLabError:
            break
        if repaired_placement is None:
            break
        pairs.append((repaired_placement, simulate_step(graph, ample_cluster, repaired_placement)))
    return [(placement, simulate(graph, cluster, placement)) for placement, _ in pairs]


def _largest_peak(pair: Pair, computing: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """Returns the peak bytes of the fullest computing device."""
    return int(pair[1].peak_bytes[computing].max(initial=0))


def _fastest(pairs: Sequence[Pair]) -> Pair | None:
    return min(pairs, key=lambda pair: pair[1].makespan_us, default=None)
