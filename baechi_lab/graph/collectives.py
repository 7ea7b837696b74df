"""Durations of collectives, by algorithm, on the links between the devices that take part.

A ring all-reduce of `b` bytes over `n` devices takes `2 (n - 1)` messages of `b / n` bytes over the slowest link of the ring (P.
Patarasuk, X. Yuan, 2009, doi:10.1016/j.jpdc.2008.09.002); an all-gather or reduce-scatter takes half of them. Where links have
levels, as within a machine and between machines, a hierarchical collective goes level by level: with `m` devices per machine it
reduce-scatters within machines, all-reduces `b / m` between machines, each device with its like, and all-gathers within
machines. Where machines differ in their devices, `m` is that of the smallest. The faster of both is taken, as NCCL's tuner does.
An all-to-all sends `b / n` to every other device, over the link to each. Measured tables replace the formulas
(`MeasuredCollective`).

Where some pairs of devices have no link, a ring passes over the others: the order of the ring is the one whose slowest link is
fastest (among more than `MOST_ORDERED` devices, the given order). An all-to-all needs a link between every two devices.

A link between two devices is what each device has when all of them send at once: of machines that share four network cards
among eight devices, half a card.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_text, check_whole
from ..errors import InvalidInput
from .cluster import Cluster
from .columns import require_entries
from .layout import Layout
from .opgraph import COLLECTIVES

NO_LINK_US_PER_BYTE = 1e3
"""Microseconds per byte from which two devices count as not linked: a thousandth of a megabyte per second."""

MOST_ORDERED = 8
"""Most devices of which all orders of a ring are tried: those of one machine."""

ALIKE = 1.25
"""Links whose microseconds per byte differ by at most this factor are of one level, as measured ones of equal hardware do."""


class MissingLink(InvalidInput):
    """Two devices that send to each other have no link."""


@dataclass(frozen=True, eq=False)
class MeasuredCollective:
    """Measured times of a collective over `devices` devices: `size_bytes` float64[k] ascending and `us` float64[k].

    Between sizes, times are interpolated linearly; above the largest, the last slope goes on.

    >>> MeasuredCollective(2, [1e6, 3e6], [10.0, 20.0]).us_of(2e6)
    15.0
    """

    devices: int
    size_bytes: ArrayLike
    us: ArrayLike
    kind: str = "all_reduce"

    def __post_init__(self) -> None:
        check_whole("devices", self.devices, 2)
        check_text("kind", self.kind, COLLECTIVES)
        sizes, times = np.asarray(self.size_bytes, dtype=np.float64), np.asarray(self.us, dtype=np.float64)
        if sizes.ndim != 1 or sizes.shape != times.shape or not len(sizes):
            raise InvalidInput(
                f"us has {times.size} entries for {sizes.size} sizes; there must be one each, and at least one"
            )
        is_larger = np.diff(sizes, prepend=-1.0) > 0
        require_entries("size_bytes", sizes, is_larger & (sizes >= 0), "at least 0 and larger than the one before it")
        require_entries("us", times, np.isfinite(times) & (times >= 0), "finite and at least 0")
        object.__setattr__(self, "size_bytes", sizes)
        object.__setattr__(self, "us", times)

    def us_of(self, size_bytes: float) -> float:
        """Returns the microseconds for `size_bytes`."""
        sizes, times = np.asarray(self.size_bytes), np.asarray(self.us)
        if len(sizes) == 1:
            return float(times[0] * max(size_bytes / sizes[0], 1.0)) if sizes[0] else float(times[0])
        if size_bytes <= sizes[-1]:
            return float(np.interp(size_bytes, sizes, times))
        slope = max((times[-1] - times[-2]) / (sizes[-1] - sizes[-2]), 0.0)
        return float(times[-1] + slope * (size_bytes - sizes[-1]))


@dataclass(frozen=True, eq=False)
class Collectives:
    """Costs of collectives on a cluster.

    Args:
        cluster: devices and the links between them.
        measured: tables that replace the formulas, for groups of so many devices within a machine.
        bandwidth_share: what collectives reach of the bandwidth of the cluster's fastest links, those within a machine.
        network_share: likewise of slower links.

    >>> from baechi_lab import Cluster, Link
    >>> four = Collectives(Cluster.uniform(4, link=Link(1.0, 0.001)))
    >>> four.us("all_reduce", 4000, range(4))    # 6 messages of 1000 bytes, 1 us each, and 6 latencies of 1 us
    12.0
    """

    cluster: Cluster
    measured: Sequence[MeasuredCollective] = ()
    bandwidth_share: float = 1.0
    network_share: float = 1.0
    _cache: dict[Sequence[int], tuple[Level, ...]] = field(default_factory=dict, repr=False)
    _groups: dict[tuple[object, ...], list[range]] = field(default_factory=dict, repr=False)
    _levels_by_links: dict[bytes, tuple[Level, ...]] = field(default_factory=dict, repr=False)

    def us(self, kind: str, size_bytes: float, devices: Sequence[int]) -> float:
        """Microseconds of one collective.

        Args:
            kind: one of `COLLECTIVES`.
            size_bytes: of the whole tensor: what is reduced on every device, what gathering ends with, what each device holds
                before an all-to-all; of `send_recv` that of which every device has a share, and passes it around the ring.
            devices: that take part, in the order of the ring.

        Raises:
            MissingLink: two devices have no link, and no ring of the others joins all devices.
        """
        check_text("kind", kind, COLLECTIVES)
        members = devices if isinstance(devices, range) else tuple(devices)
        if len(members) == 1 or not size_bytes:
            return 0.0
        levels = self.levels(members)
        table = self._table(kind, len(members), len(levels))
        if table is not None:
            return table.us_of(size_bytes)
        n = len(members)
        latency, per_byte = max(x.latency_us for x in levels), max(x.us_per_byte for x in levels)
        if kind == "send_recv":
            return (n - 1) * latency + (n - 1) / n * size_bytes * per_byte
        if kind == "all_to_all":
            if not all(level.joins_all_pairs for level in levels):
                raise _no_link(self.cluster, np.array(members))
            # Each device sends an equal share to each other: transfers of one level follow one another, levels go on
            # at once.
            return float(max(x.latency_us + x.peers * size_bytes / n * x.us_per_byte for x in levels))
        rounds = 2 if kind == "all_reduce" else 1
        ring = rounds * (n - 1) * (latency + size_bytes / n * per_byte)
        # Level by level, innermost first: the devices of the smallest component have the largest shares left to reduce.
        total, remaining_bytes = 0.0, size_bytes
        for level in levels:
            steps = rounds * (level.width - 1)
            total += steps * (level.latency_us + remaining_bytes / level.width * level.us_per_byte)
            remaining_bytes = size_bytes / level.least_devices
        return float(min(ring, total))

    def levels(self, devices: Sequence[int]) -> tuple[Level, ...]:
        """Returns the levels of links among devices, innermost first; `devices` is a range or a tuple."""
        if devices not in self._cache:
            self._cache[devices] = self._levels_of_links(np.array(devices)) if len(devices) > 1 else ()
        return self._cache[devices]

    def _levels_of_links(self, rows: np.ndarray) -> tuple[Level, ...]:
        """Returns the levels of links among devices; groups with equal links, as most are, share them."""
        square = np.ix_(rows, rows)
        links = self.cluster.us_per_byte[square].tobytes() + self.cluster.latency_us[square].tobytes()
        key = sha256(links).digest()
        if key not in self._levels_by_links:
            self._levels_by_links[key] = _levels(self.cluster, rows, self._share)
        return self._levels_by_links[key]

    def different_groups(self, layout: Layout, axis: str, first: int, count: int) -> list[range]:
        """Returns the groups of `layout.axis_groups` that differ in their links."""
        key = axis, layout.tp, layout.cp, layout.dp, layout.pp, layout.ep, first, count
        if key not in self._groups:
            groups = layout.axis_groups(axis, first, count)
            self._groups[key] = list({self.levels(group): group for group in groups}.values())
        return self._groups[key]

    @cached_property
    def _fastest(self) -> float:
        """Microseconds per byte of the fastest links."""
        per_byte = self.cluster.us_per_byte
        off = ~np.eye(self.cluster.n, dtype=bool)
        return float(per_byte[off].min()) if self.cluster.n > 1 else 0.0

    def _share(self, us_per_byte: float) -> float:
        return self.bandwidth_share if us_per_byte <= 2 * self._fastest else self.network_share

    def check_neighbours(self, source: int, target: int) -> None:
        """Raises `MissingLink` if two devices that send to each other have no link."""
        if self.cluster.us_per_byte[[source, target], [target, source]].max() >= NO_LINK_US_PER_BYTE:
            raise MissingLink(
                f"devices {self.cluster.names[source]} and {self.cluster.names[target]} have no link (bandwidth 0); "
                "neighbouring pipeline stages need one"
            )

    def pair_cost(self, source: int, target: int) -> tuple[float, float]:
        """Returns latency and microseconds per byte of sending from one device to another."""
        per_byte = float(self.cluster.us_per_byte[source, target])
        return float(self.cluster.latency_us[source, target]), per_byte / self._share(per_byte)

    def _table(self, kind: str, devices: int, levels: int) -> MeasuredCollective | None:
        if levels != 1:
            return None
        return next((t for t in self.measured if t.devices == devices and t.kind == kind), None)


@dataclass(frozen=True)
class Level:
    """Links that join components of the level below. Components may differ in size, as machines with eight and four devices.

    Args:
        width: most components of the level below in one component.
        least_devices: devices of the smallest component.
        peers: most devices that a device reaches by these links and not by those of the level below.
        latency_us, us_per_byte: the cost of a message on these links.
        joins_all_pairs: False for the links of a ring past devices that have no link.
    """

    width: int
    least_devices: int
    peers: int
    latency_us: float
    us_per_byte: float
    joins_all_pairs: bool = True


def _no_link(cluster: Cluster, rows: np.ndarray) -> MissingLink:
    """Returns the error that names the first two of some devices that have no link."""
    cost = cluster.us_per_byte[np.ix_(rows, rows)]
    a, b = np.argwhere((np.maximum(cost, cost.T) >= NO_LINK_US_PER_BYTE) & ~np.eye(len(rows), dtype=bool))[0]
    return MissingLink(
        f"devices {cluster.names[rows[a]]} and {cluster.names[rows[b]]} have no link (bandwidth 0); a collective of both "
        "needs one"
    )


def _ring(cost: np.ndarray) -> list[int] | None:
    """Returns the order of a ring over links, whose slowest one is as fast as possible; None if there is no ring."""
    n = len(cost)
    if n > MOST_ORDERED:
        ring = list(range(n))
        return ring if cost[ring, np.roll(ring, -1)].max() < NO_LINK_US_PER_BYTE else None

    def extend(ring: list[int], slowest: float) -> list[int] | None:
        if len(ring) == n:
            return ring if cost[ring[-1], 0] <= slowest else None
        for device in range(1, n):
            if device not in ring and cost[ring[-1], device] <= slowest:
                complete_ring = extend([*ring, device], slowest)
                if complete_ring is not None:
                    return complete_ring
        return None

    prices = np.unique(cost[~np.eye(n, dtype=bool)])
    rings = (extend([0], price) for price in prices[prices < NO_LINK_US_PER_BYTE])
    return next((ring for ring in rings if ring is not None), None)


def _levels(cluster: Cluster, rows: np.ndarray, share: Callable[[float], float]) -> tuple[Level, ...]:
    """Groups devices by their fastest links, then the groups by theirs, and so on."""
    from scipy.sparse.csgraph import connected_components

    cost = np.maximum(cluster.us_per_byte[np.ix_(rows, rows)], cluster.us_per_byte[np.ix_(rows, rows)].T)
    latency = np.maximum(cluster.latency_us[np.ix_(rows, rows)], cluster.latency_us[np.ix_(rows, rows)].T)
    off = ~np.eye(len(rows), dtype=bool)
    if cost[off].max() >= NO_LINK_US_PER_BYTE:
        ring = _ring(cost)
        if ring is None:
            raise _no_link(cluster, rows)
        links = ring, np.roll(ring, -1)
        price, n = float(cost[links].max()), len(rows)
        return (Level(n, n, n - 1, float(latency[links].max()), price / share(price), joins_all_pairs=False),)
    levels: list[Level] = []
    component, size = np.arange(len(rows)), np.ones(len(rows), dtype=np.int64)
    prices, low = np.unique(cost[off]), 0
    while low < len(prices):
        high = int(np.searchsorted(prices, prices[low] * ALIKE, side="right")) - 1
        joined_component = connected_components(cost <= prices[high], directed=False)[1]
        component_size = np.bincount(joined_component)[joined_component]
        if joined_component.max() < component.max():
            width = int(np.bincount(joined_component[np.unique(component, return_index=True)[1]]).max())
            used = off & (cost >= prices[low]) & (cost <= prices[high])
            price = float(prices[high])
            peers = int((component_size - size).max())
            levels.append(
                Level(width, int(component_size.min()), peers, float(latency[used].max()), price / share(price))
            )
            component, size = joined_component, component_size
        low = high + 1
    return tuple(levels)
