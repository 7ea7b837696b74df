"""A cluster with more devices like the last one that computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .cluster import Cluster, Link
from .costs import hosts_beside


def grown(cluster: Cluster, count: int) -> Cluster:
    """What `Cluster.with_devices` gives; at least as many devices compute as before."""
    computing = np.flatnonzero(~hosts_beside(cluster)).tolist()
    last, taken, number = computing[-1], set(cluster.names), 0
    origin, devices = list(range(cluster.n)), list(cluster.devices)
    kind = devices[last].kind
    for _ in range(count - len(computing)):
        while f"{kind}:{number}" in taken:
            number += 1
        taken.add(f"{kind}:{number}")
        devices.append(replace(devices[last], name=f"{kind}:{number}"))
        origin.append(last)
    if isinstance(cluster.link, Link):
        return cluster.replace(devices=tuple(devices))
    among = _among(cluster, computing)
    link = [
        [among if a == b and i != j else cluster.link_between(a, b) for j, b in enumerate(origin)]
        for i, a in enumerate(origin)
    ]
    return cluster.replace(devices=tuple(devices), link=link)


def _among(cluster: Cluster, computing: list[int]) -> Link:
    """The link between copies of the last device: that to the one before it; of a device alone the one that it keeps to its like.

    `Cluster.with_host` leaves that on the diagonal; where there is none, a copy is as far as the host.
    """
    last = computing[-1]
    own = cluster.link_between(last, last)
    if len(computing) > 1:
        return cluster.link_between(last, computing[-2])
    return (
        own
        if own != Link(0.0, 0.0)
        else cluster.link_between(last, next((k for k in range(cluster.n) if k != last), last))
    )
