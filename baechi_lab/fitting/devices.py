"""More devices: the least number of them on which a placement is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..graph import Cluster
from ..placers.giving_up.placing import Placing
from .attempt import computing, tried
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
    larger, code = cluster.with_devices(count), f"cluster.with_devices({count})"
    return tried(way, subject.graph, larger, placing, subject.original, code, known)
