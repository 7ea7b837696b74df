"""Searches the smallest number of devices on which a placement is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..graph import Cluster
from ..placers.memory_trades.best_of_placers import BestOfPlacers
from .attempt import count_computing, place_option
from .proof import Proof
from .record import FitOption
from .subject import Subject

MAX_DEVICES = 64
"""Most devices that are tried."""


def try_more_devices(
    subject: Subject, cluster: Cluster, placing: BestOfPlacers, proof: Proof, first: FitOption | None = None
) -> Iterator[FitOption]:
    """Tries the smallest number of devices that is enough: doubles the number, then bisects, from the proven minimum on.

    Where the step fits as it is (`first`), its placement is compared too: it is valid on more devices.
    """
    earlier = first if first is not None and first.fits else None
    available, template = count_computing(cluster), FitOption("more devices", "any")
    if not proof.least_devices:
        yield replace(template, error=f"no number of devices is enough, which is proven: {proof.as_it_is}")
        return
    if available >= MAX_DEVICES:
        yield replace(template, error=f"{available} devices are there already; up to {MAX_DEVICES} are tried")
        return
    if proof.least_devices > MAX_DEVICES:
        least = f"{proof.least_devices} devices at least"
        yield replace(template, choice=least, error=f"{least}, which is proven; up to {MAX_DEVICES} are tried")
        return
    enough: FitOption | None = None
    low = max(available, proof.least_devices - 1)
    high = max(2 * available, proof.least_devices)
    while enough is None and low < MAX_DEVICES:
        high = min(high, max(MAX_DEVICES, available + 1))
        option = _try_devices(subject, cluster, placing, high, earlier)
        low, high, enough = (low, high, option) if option.fits else (high, 2 * high, None)
    if enough is None:
        yield replace(
            template, choice=f"up to {low} devices", error=f"no placement on {low} devices was found that fits"
        )
        return
    while high - low > 1:
        middle = (low + high) // 2
        option = _try_devices(subject, cluster, placing, middle, earlier)
        low, high, enough = (low, middle, option) if option.fits else (middle, high, enough)
    yield enough


def _try_devices(
    subject: Subject, cluster: Cluster, placing: BestOfPlacers, count: int, earlier: FitOption | None
) -> FitOption:
    added_count = count - count_computing(cluster)
    option = FitOption(
        "more devices",
        f"{count} devices",
        f"{added_count} more device" + "s" * (added_count > 1),
        batch_size=subject.batch_size,
    )
    larger, code = cluster.with_devices(count), f"cluster.with_devices({count})"
    return place_option(option, subject.graph, larger, placing, subject.original, code, earlier)
