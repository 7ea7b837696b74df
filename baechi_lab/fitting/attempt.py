"""One attempt: a graph placed on a cluster, as a row of the table."""

from __future__ import annotations

from dataclasses import replace

from ..graph import HOST, Cluster, OpGraph
from ..placers.giving_up.placing import Placing, code_of
from .record import Way


def tried(
    way: Way,
    graph: OpGraph,
    cluster: Cluster,
    placing: Placing,
    code: str,
    where: str = "cluster",
    known: Way | None = None,
) -> Way:
    """`way` with the timeline of the fastest placement, or why none fits; `code` makes the graph, `where` the cluster.

    `known` has a placement that counts as one of the tries.
    """
    there = None if known is None else known.placement
    found, why = placing.fastest(graph, cluster, there)
    if found is None:
        return replace(way, graph=graph, cluster=cluster, error=why)
    same = known is not None and found[0] is there
    command = known.command if known is not None and same else code_of(code, where, found[0], computing(cluster))
    return replace(way, graph=graph, cluster=cluster, placement=found[0], timeline=found[1], command=command)


def computing(cluster: Cluster) -> int:
    """Number of devices that compute: all but hosts, unless there are only hosts."""
    hosts = sum(device.kind == HOST for device in cluster.devices)
    return cluster.n - hosts or cluster.n


def all_hosts(cluster: Cluster) -> bool:
    """Whether there is no device but hosts, which then compute."""
    return all(device.kind == HOST for device in cluster.devices)
