"""More devices: the least number of them on which a placement is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..graph import HOST, Cluster, Link
from ..placers.giving_up.placing import Placing
from .attempt import all_hosts, computing, tried
from .proof import Proof
from .record import Way
from .subject import Subject

MOST_DEVICES_TRIED = 64


def more_devices(
    subject: Subject, cluster: Cluster, placing: Placing, proof: Proof, first: Way | None = None
) -> Iterator[Way]:
    """The least number of devices that is enough: doubled until one is, then halved towards it; never fewer than proven.

    Where the step fits as it is (`first`), that placement is valid on more devices too, and none is slower.
    """
    known = first if first is not None and first.fits else None
    have, way = computing(cluster), Way("more devices", "any")
    if not proof.least_devices:
        yield replace(way, error=f"no number of devices is enough, which is proven: {proof.as_it_is}")
        return
    if proof.least_devices > MOST_DEVICES_TRIED:
        least = f"{proof.least_devices} devices at least"
        yield replace(way, choice=least, error=f"{least}, which is proven; up to {MOST_DEVICES_TRIED} are tried")
        return
    enough: Way | None = None
    low = max(have, proof.least_devices - 1)
    high = max(2 * have, proof.least_devices)
    while enough is None and low < MOST_DEVICES_TRIED:
        high = min(high, max(MOST_DEVICES_TRIED, have + 1))
        now = _on_devices(subject, cluster, placing, high, known)
        low, high, enough = (low, high, now) if now.fits else (high, 2 * high, None)
    if enough is None:
        yield replace(way, choice=f"up to {low} devices", error=f"no placement on {low} devices was found that fits")
        return
    while high - low > 1:
        middle = (low + high) // 2
        now = _on_devices(subject, cluster, placing, middle, known)
        low, high, enough = (low, middle, now) if now.fits else (middle, high, enough)
    yield enough


def _on_devices(subject: Subject, cluster: Cluster, placing: Placing, count: int, known: Way | None) -> Way:
    more = count - computing(cluster)
    way = Way(
        "more devices", f"{count} devices", f"{more} more device" + "s" * (more > 1), batch_size=subject.batch_size
    )
    larger = grown(cluster, count)
    return tried(way, subject.graph, larger, placing, subject.original, _code_of(larger, count), known)


def _code_of(cluster: Cluster, count: int) -> str:
    """Code that makes a cluster: of equal devices behind equal links by itself, any other of the one that there is."""
    first = cluster.devices[0]
    if len({(d.kind, d.memory_bytes, d.speed) for d in cluster.devices}) > 1 or not isinstance(cluster.link, Link):
        return f"baechi_lab.fitting.devices.grown(cluster, {count})"
    more = "".join(
        f", {key}={value!r}" for key, value, usual in (("comm", cluster.comm, "sequential"), ("kind", first.kind, "gpu"),
        ("speed", first.speed, 1.0)) if value != usual
    )  # fmt: skip
    return f"bl.Cluster.uniform({cluster.n}, memory_bytes={first.memory_bytes}, link=bl.{cluster.link!r}{more})"


def grown(cluster: Cluster, count: int) -> Cluster:
    """The cluster with copies of its last computing device until `count` devices compute; links are those of that device.

    >>> grown(Cluster.uniform(1), 3).names
    ('gpu:0', 'gpu:1', 'gpu:2')
    """
    last = max(k for k, device in enumerate(cluster.devices) if device.kind != HOST or all_hosts(cluster))
    kind, number, taken = cluster.devices[last].kind, 0, set(cluster.names)
    origin, devices = list(range(cluster.n)), list(cluster.devices)
    for _ in range(count - computing(cluster)):
        while f"{kind}:{number}" in taken:
            number += 1
        taken.add(f"{kind}:{number}")
        devices.append(replace(cluster.devices[last], name=f"{kind}:{number}"))
        origin.append(last)
    if isinstance(cluster.link, Link):
        return cluster.replace(devices=tuple(devices))
    among = cluster.link_between(last, last - 1 if last else min(1, cluster.n - 1))
    link = [[among if a == b else cluster.link_between(a, b) for b in origin] for a in origin]
    return cluster.replace(devices=tuple(devices), link=link)
