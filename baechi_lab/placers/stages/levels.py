"""Stages and replicas where links have levels: within a machine, between machines, and so on.

PipeDream's optimizer (Narayanan et al. 2019, doi:10.1145/3341301.3359646, section 3.1) solves level by level. With A_0(i, j) the
work of units i .. j on one device, and m components of level k - 1 (devices, machines) joined by links of level k,

    T_k(i, j, m) = max(A_{k-1}(i, j), border of i and j + ring of m over links of level k) / m
    A_k(i, j, m) = min(T_k(i, j, m), min over s, r of max(A_k(i, s, m - r), T_k(s, j, r)))

so that what runs on one machine is itself a pipeline, of which whole copies may run side by side. Such copies are replicas
of each of their stages: micro-batch b goes to copy b mod m, and there to replica (b / m) of the inner stage.

Deviations: the transfers at both borders of a stage load its queues, as in `stages.chain`, where the paper has a stage of
communication; with `sum` they are added to the work. The result is measured as `bl.throughput` does, whose ring goes
round all replicas of a stage over the slowest link between them, where the paper has one ring per level.

Complexity: O(places^3 * m^2) per level, for at most `PLACES` places where the line may be cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster
from ...graph.kernels.jit import njit
from .chain import PARALLEL, SUM, Chain, make_chain
from .plan import Cut
from .units import Units

PLACES = 100
"""Places where a line of units may be cut, evenly by work."""


class Level(NamedTuple):
    """`width` components of the level below, joined by links of so many microseconds and microseconds per byte."""

    width: int
    latency: float
    per_byte: float


def levels(cluster: Cluster) -> tuple[list[Level], list[int]] | None:
    """The levels of a cluster's links, innermost first, and its devices component by component.

    None where there is one level only, or where components differ in size or devices in kind.

    >>> from baechi_lab import Link
    >>> near, far = Link(0.0, 0.1), Link(0.0, 1.0)
    >>> links = [[near if a // 2 == b // 2 else far for b in range(4)] for a in range(4)]
    >>> levels(Cluster(Cluster.uniform(4).devices, link=links))[0]
    [Level(width=2, latency=0.0, per_byte=0.1), Level(width=2, latency=0.0, per_byte=1.0)]
    """
    if cluster.n < 4 or len({(d.kind, d.memory_bytes, d.speed) for d in cluster.devices}) > 1:
        return None
    cost = np.maximum(cluster.us_per_byte, cluster.us_per_byte.T)
    parts, found = [[d] for d in range(cluster.n)], []
    while len(parts) > 1:
        between = np.array([[cost[np.ix_(a, b)].max() if a is not b else np.inf for b in parts] for a in parts])
        near = between <= between.min() * (1 + 1e-9)
        joined, left = [], list(range(len(parts)))
        while left:
            mine = [k for k in left if k == left[0] or near[left[0], k]]
            joined.append(mine)
            left = [k for k in left if k not in mine]
        if len({len(mine) for mine in joined}) > 1 or len(joined) == len(parts):
            return None
        inner = [[parts[k] for k in mine] for mine in joined]
        pairs = [(a, b) for mine in inner for x in mine for y in mine if x is not y for a in x for b in y]
        latency = max(float(cluster.latency_us[a, b]) for a, b in pairs)
        found.append(Level(len(joined[0]), latency, float(between.min())))
        parts = [[d for part in mine for d in part] for mine in inner]
    return (found, parts[0]) if len(found) > 1 else None


def level_cuts(units: Units, cluster: Cluster, name: str, *, sum: bool) -> Iterator[Cut]:
    """The cut that the programme finds along the line of `units`; nothing where links have one level."""
    found = levels(cluster)
    if found is None or not units.n or not (units.able == units.able[:, :1]).all():
        return
    below, order = found
    chain = make_chain(units, cluster, order, sum=sum, replicas=True)
    places = _places(chain.work[:, 0])
    count, size = _crossing(units, places)
    gradient = np.concatenate([[0], np.cumsum(units.gradient)])[places].astype(np.float64)
    cost = _alone(units, chain, places)
    choices = []
    for level in below:
        border = count * level.latency + size * level.per_byte
        rounds = 2.0 * np.arange(level.width)
        ring = rounds[:, None, None] * (
            level.latency * (gradient[None, None, :] > gradient[None, :, None])
            + level.per_byte * (gradient[None, None, :] - gradient[None, :, None]) / np.arange(1, level.width + 1)[:, None, None]
        )  # fmt: skip
        best, choice = _solve(cost, border, ring, level.width, chain.rule)
        choices.append(choice)
        cost = best[:, :, -1].copy()
    if not np.isfinite(cost[0, -1]):
        return
    stages = _stages(choices, [level.width for level in below], 0, len(places) - 1, len(below) - 1)
    stage = np.zeros(units.n, dtype=np.int64)
    for k, (first, end, _) in enumerate(stages):
        stage[places[first] : places[end]] = k
    devices = tuple(tuple(order[d] for d in group) for _, _, group in stages)
    yield Cut(units.unit, stage, devices, f"{name}, level by level", float(cost[0, -1]))


def _places(work: NDArray[np.float64]) -> NDArray[np.int64]:
    """Where the line may be cut: everywhere, or so that about equal work lies between."""
    if len(work) <= PLACES + 1:
        return np.arange(len(work))
    inner = np.searchsorted(work, np.linspace(0, work[-1], PLACES + 1)[1:-1])
    return np.unique(np.concatenate([[0], inner, [len(work) - 1]])).astype(np.int64)


def _crossing(units: Units, places: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Number and bytes of the tensors that cross each place."""
    low, high = units.producer.astype(np.int64), units.producer.astype(np.int64)
    tensor = np.repeat(np.arange(len(low)), np.diff(units.reader_ptr))
    np.minimum.at(low, tensor, units.reader)
    np.maximum.at(high, tensor, units.reader)
    crossed = (low[None, :] < places[:, None]) & (places[:, None] <= high[None, :])
    return crossed.sum(axis=1).astype(np.float64), crossed.astype(np.float64) @ units.size.astype(np.float64)


def _alone(units: Units, chain: Chain, places: NDArray[np.int64]) -> NDArray[np.float64]:
    """[i, j]: work of the units between two places on one device; infinite where they do not fit or may not run."""
    work, barred = chain.work[places, 0], chain.barred[places, 0]
    held = np.concatenate([[0], np.cumsum(units.held)])[places]
    cost: NDArray[np.float64] = work[None, :] - work[:, None]
    fits = (held[None, :] - held[:, None] <= chain.memory[0]) & (barred[None, :] == barred[:, None])
    return np.where(fits, cost, np.inf)


@njit(cache=True)
def _solve(inner: Any, border: Any, ring: Any, most: Any, rule: Any) -> Any:
    """`best[i, j, m - 1]` = A_k, and its choice: (s, r), (j, m) for one stage on all, (j, 0) to leave one idle."""
    places = len(border)
    best = np.full((places, places, most), np.inf)
    choice = np.zeros((places, places, most, 2), np.int64)
    stage = np.full((places, places, most), np.inf)
    for i in range(places):
        for j in range(i + 1, places):
            for m in range(1, most + 1):
                moved = 0.0 if rule == PARALLEL else border[i] + border[j] + ring[m - 1, i, j]
                whole = inner[i, j] + moved if rule == SUM else max(inner[i, j], moved)
                stage[i, j, m - 1] = whole / m
    for length in range(1, places):
        for i in range(places - length):
            j = i + length
            for m in range(1, most + 1):
                best[i, j, m - 1] = stage[i, j, m - 1]
                choice[i, j, m - 1, 0], choice[i, j, m - 1, 1] = j, m
                if m > 1 and best[i, j, m - 2] < best[i, j, m - 1]:
                    best[i, j, m - 1] = best[i, j, m - 2]
                    choice[i, j, m - 1, 0], choice[i, j, m - 1, 1] = j, 0
                for s in range(i + 1, j):
                    for r in range(1, m):
                        cost = max(best[i, s, m - r - 1], stage[s, j, r - 1])
                        if cost < best[i, j, m - 1]:
                            best[i, j, m - 1] = cost
                            choice[i, j, m - 1, 0], choice[i, j, m - 1, 1] = s, r
    return best, choice


def _stages(
    choices: list[Any], counts: list[int], first: int, end: int, level: int, m: int | None = None
) -> list[tuple[int, int, list[int]]]:
    """(first place, end, devices) of the stages on `m` components of a level, devices counted from its first."""
    if level < 0:
        return [(first, end, [0])]
    m, size = counts[level] if m is None else m, int(np.prod(counts[:level]))
    s, r = (int(x) for x in choices[level][first, end, m - 1])
    if r == 0:
        return _stages(choices, counts, first, end, level, m - 1)
    if s == end:
        inner = _stages(choices, counts, first, end, level - 1)
        return [(a, b, [group[p // m] + p % m * size for p in range(len(group) * m)]) for a, b, group in inner]
    before = _stages(choices, counts, first, s, level, m - r)
    inner = _stages(choices, counts, s, end, level - 1)
    shared = [(a, b, [group[p // r] + (m - r + p % r) * size for p in range(len(group) * r)]) for a, b, group in inner]
    return before + shared
