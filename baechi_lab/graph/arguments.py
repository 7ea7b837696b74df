"""Type checks for arguments that must be records."""

from __future__ import annotations

from ..errors import InvalidInput, in_short
from .cluster import Cluster
from .columns import check_record
from .opgraph import OpGraph
from .placement import Placement
from .timeline import Timeline

_CLASSES = {"graph": OpGraph, "cluster": Cluster, "placement": Placement, "timeline": Timeline}


def check_records(**records: object) -> None:
    """Checks that arguments are records of their names' types: `check_records(graph=graph, cluster=cluster)`.

    Raises:
        InvalidInput: an argument is no such record; the message names it.

    >>> check_records(graph=None)
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: graph is None; it must be an OpGraph
    """
    for name, value in records.items():
        check_record(name, value, _CLASSES[name])


def check_placed_step(placement: object, graph: object, cluster: object) -> None:
    """Checks the records of a placed step; `graph` and `cluster` may be None, and `cluster` may be one of running workers.

    Raises:
        InvalidInput: an argument is no such record; the message names it.

    >>> check_placed_step(Placement(device=[0]), None, 5)
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: cluster is of type int; it must be a Cluster
    """
    check_records(placement=placement)
    if graph is not None:
        check_records(graph=graph)
    if cluster is not None and not hasattr(cluster, "addresses"):  # of a LocalCluster
        check_records(cluster=cluster)


def refuse_replicas(placement: Placement, caller: str) -> None:
    """Raises for a placement with replicas, because `caller` ("bl.simulate") would use only one replica of each stage.

    Raises:
        InvalidInput: the placement has replicas.

    >>> refuse_replicas(Placement(device=[0], replicas=[(0, 1)]), "bl.simulate")
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: replicas is ((0, 1),); bl.simulate runs every op on one device (a step of micro-batches may)
    """
    if placement.replicas:
        raise InvalidInput(
            f"replicas is {in_short(placement.replicas)}; {caller} runs every op on one device (a step of micro-batches may)"
        )
