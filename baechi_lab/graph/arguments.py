"""What a public function was given where a record belongs."""

from __future__ import annotations

from ..errors import InvalidInput
from .cluster import Cluster
from .columns import record
from .opgraph import OpGraph
from .placement import Placement
from .timeline import Timeline

_CLASSES = {"graph": OpGraph, "cluster": Cluster, "placement": Placement, "timeline": Timeline}


def check_records(**records: object) -> None:
    """Refuse what is no record, before anything asks for its fields: `check_records(graph=graph, cluster=cluster)`.

    Raises:
        InvalidInput: naming the argument.

    >>> check_records(graph=None)
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: graph is None; it must be an OpGraph
    """
    for name, value in records.items():
        record(name, value, _CLASSES[name])


def check_placed_step(placement: object, graph: object, cluster: object) -> None:
    """Refuse what a step cannot be placed by; `graph` and `cluster` may be None, and `cluster` one of running workers.

    Raises:
        InvalidInput: naming the argument.

    >>> check_placed_step(Placement(device=[0]), None, 5)
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: cluster is of type int; it must be a Cluster
    """
    check_records(placement=placement)
    if graph is not None:
        check_records(graph=graph)
    if cluster is not None and not hasattr(cluster, "addresses"):  # those of a LocalCluster
        check_records(cluster=cluster)


def refuse_replicas(placement: Placement, caller: str) -> None:
    """Refuse a placement of which `caller` ("bl.simulate") would show one replica of each stage and leave out the others.

    Raises:
        InvalidInput: the placement has replicas.

    >>> refuse_replicas(Placement(device=[0], replicas=[(0, 1)]), "bl.simulate")
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: replicas is ((0, 1),); bl.simulate runs every op on one device (a step of micro-batches may)
    """
    if placement.replicas:
        raise InvalidInput(
            f"replicas is {placement.replicas!r:.60}; {caller} runs every op on one device (a step of micro-batches may)"
        )
