"""Offloading and placement chosen together: more and more is offloaded, each graph placed, until one fits."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...graph import HOST, Cluster, OpGraph
from ...memory_saving.offload import offload, offloaded_placement
from ...simulator import simulate
from .placing import MOST_RAW, Placing
from .recomputing import Joint

SHARES = (0.25, 0.5, 0.75, 1.0)


def ways_to_offload(graph: OpGraph, cluster: Cluster, host: str) -> Iterator[tuple[dict[str, Any], OpGraph]]:
    """Arguments of `bl.offload` and the graphs that they give, where anything moves: state, outputs by shares, both.

    Of large graphs fewer shares: each of them is placed.
    """
    shares = SHARES if graph.n <= MOST_RAW else SHARES[1::2]
    for share, state in [(0.0, True), *((share, state) for share in shares for state in (False, True))]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it saves nothing on one device: it is simulated here
            moved = offload(graph, cluster, share=share, state=state, host=host)
        if moved is not graph:
            yield {"share": share, "state": state, "host": host}, moved


def offload_and_place(graph: OpGraph, cluster: Cluster, placing: Placing) -> list[Joint]:
    """What fits of the first graph that fits at all, to each host: as placed where it did not fit, and placed again."""
    found: list[Joint] = []
    over, placing = placing.least_over(graph, cluster), replace(placing, repairs=False)
    for host in (device.name for device in cluster.devices if device.kind == HOST):
        for keyword, moved in ways_to_offload(graph, cluster, host):
            tried = [placing.fastest(moved, cluster)[0]]
            if over is not None:
                placed = offloaded_placement(over[0], moved, cluster)
                tried.append((placed, simulate(moved, cluster, placed)))
            fits = [
                Joint(keyword, f"offloading to {host}", moved, *pair) for pair in tried if pair and pair[1].feasible
            ]
            found += fits
            if fits:
                break
    return found
