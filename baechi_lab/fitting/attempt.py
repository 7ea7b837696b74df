"""Places one graph on one cluster, as a row of the table."""

from __future__ import annotations

from dataclasses import replace

from ..graph import HOST, Cluster, OpGraph
from ..placers.memory_trades.best_of_placers import BestOfPlacers, placement_code
from .record import FitOption


def place_option(
    option: FitOption,
    graph: OpGraph,
    cluster: Cluster,
    placing: BestOfPlacers,
    code: str,
    cluster_code: str = "cluster",
    earlier: FitOption | None = None,
) -> FitOption:
    """Returns `option` with the fastest placement and its timeline, or with the reason why none fits.

    `code` and `cluster_code` are the code of graph and cluster; the placement of `earlier` is one of those compared.
    """
    earlier_placement = None if earlier is None else earlier.placement
    fastest, why = placing.fastest(graph, cluster, earlier_placement)
    if fastest is None:
        return replace(option, graph=graph, cluster=cluster, error=why)
    if earlier is not None and fastest.placement is earlier_placement:
        command = earlier.command
    else:
        command = placement_code(code, cluster_code, fastest, count_computing(cluster))
    return replace(
        option, graph=graph, cluster=cluster, placement=fastest.placement, timeline=fastest.timeline, command=command
    )


def count_computing(cluster: Cluster) -> int:
    """Returns the number of devices that compute: all but hosts, unless all are hosts."""
    hosts = sum(device.kind == HOST for device in cluster.devices)
    return cluster.n - hosts or cluster.n


def has_only_hosts(cluster: Cluster) -> bool:
    """Whether all devices are hosts; then hosts compute."""
    return all(device.kind == HOST for device in cluster.devices)
