"""Chooses offloading and placement together: offloads larger shares until a placement fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...graph import HOST, Cluster, OpGraph
from ...internal_warnings import collected_warnings
from ...memory_saving.offload import extended_placement, offload
from ...simulator import simulate
from .best_of_placers import MAX_REPAIRED_OPS, BestOfPlacers, PlacedTimeline
from .recomputation import PlacedVariant

SHARES = (0.25, 0.5, 0.75, 1.0)  # of the offloadable bytes; every other one for large graphs


def offload_variants(graph: OpGraph, cluster: Cluster, host: str) -> Iterator[tuple[dict[str, Any], OpGraph]]:
    """Arguments of `bl.offload` with the graphs that they make: state, shares of the outputs, or both.

    Arguments that move nothing are left out. Large graphs get fewer shares, since each variant is placed.
    """
    shares = SHARES if graph.n <= MAX_REPAIRED_OPS else SHARES[1::2]
    for share, state in [(0.0, True), *((share, state) for share in shares for state in (False, True))]:
        with collected_warnings():  # that it saves nothing on one device: it is simulated here
            offloaded_graph = offload(graph, cluster, share=share, state=state, host=host)
        if offloaded_graph is not graph:
            yield {"share": share, "state": state, "host": host}, offloaded_graph


def offload_and_place(graph: OpGraph, cluster: Cluster, placing: BestOfPlacers) -> list[PlacedVariant]:
    """Returns the placements that fit of the first offloaded graph that fits, for each host.

    Each graph is placed twice: anew, and by the placement that exceeds memory least without offloading.
    """
    variants: list[PlacedVariant] = []
    overflowing, placing = placing.least_overflowing(graph, cluster), replace(placing, repairs=False)
    for host in (device.name for device in cluster.devices if device.kind == HOST):
        for keyword, offloaded_graph in offload_variants(graph, cluster, host):
            attempts = [placing.fastest(offloaded_graph, cluster)[0]]
            if overflowing is not None:
                placement = extended_placement(overflowing.placement, offloaded_graph, cluster)
                attempts.append(PlacedTimeline(placement, simulate(offloaded_graph, cluster, placement)))
            fits = [
                PlacedVariant(keyword, keyword, f"offloading to {host}", offloaded_graph, pair)
                for pair in attempts
                if pair and pair.timeline.feasible
            ]
            variants += fits
            if fits:
                break
    return variants
