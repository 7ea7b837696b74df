"""One attempt: a graph placed on a cluster, as a row of the table."""

from __future__ import annotations

from dataclasses import replace

from ..graph import HOST, Cluster, OpGraph
from ..placers.giving_up.placing import Placing, code_of
from .record import FitOption


def place_option(
    option: FitOption,
    graph: OpGraph,
    cluster: Cluster,
    placing: Placing,
    code: str,
    cluster_code: str = "cluster",
    earlier: FitOption | None = None,
) -> FitOption:
    """`option` with the timeline of the fastest placement, or why none fits; `code` makes the graph, `cluster_code` the cluster.

    `earlier` has a placement that counts as one of the tries.
    """
    earlier_placement = None if earlier is None else earlier.placement
    fastest, why = placing.fastest(graph, cluster, earlier_placement)
    if fastest is None:
        return replace(option, graph=graph, cluster=cluster, error=why)
    same = earlier is not None and fastest[0] is earlier_placement
    command = (
        earlier.command
        if earlier is not None and same
        else code_of(code, cluster_code, fastest[0], count_computing(cluster))
    )
    return replace(option, graph=graph, cluster=cluster, placement=fastest[0], timeline=fastest[1], command=command)


def count_computing(cluster: Cluster) -> int:
    """Number of devices that compute: all but hosts, unless there are only hosts."""
    hosts = sum(device.kind == HOST for device in cluster.devices)
    return cluster.n - hosts or cluster.n


def has_only_hosts(cluster: Cluster) -> bool:
    """Whether there is no device but hosts, which then compute."""
    return all(device.kind == HOST for device in cluster.devices)
