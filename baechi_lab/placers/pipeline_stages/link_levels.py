"""Stages and replicas where links have levels: within a machine, between machines, and so on.

PipeDream's optimizer (Narayanan et al. 2019, doi:10.1145/3341301.3359646, section 3.1) solves level by level. With A_0(i, j) the
work of units i .. j on one device, and m components of level k - 1 (devices, machines) joined by links of level k,

    T_k(i, j, m) = max(A_{k-1}(i, j), border of i and j + ring of m over links of level k) / m
    A_k(i, j, m) = min(T_k(i, j, m), min over s, r of max(A_k(i, s, m - r), T_k(s, j, r)))

so that what runs on one machine is itself a pipeline, of which whole copies may run side by side. Such copies are replicas
of each of their stages: micro-batch b goes to copy b mod m, and there to replica (b / m) of the inner stage.

Deviations: the transfers at both borders of a stage load its queues, as in `pipeline_stages.device_chain`, where the paper has a
stage of communication; with `sum` they are added to the work. The result is measured as `bl.throughput` does, whose ring goes
round all replicas of a stage over the slowest link between them, where the paper has one ring per level.

Complexity: O(places^3 * m^2) per level, for at most `MAX_PLACES` places where the line may be cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster
from ...graph.kernels.jit import njit
from .device_chain import PARALLEL, SUM, make_device_chain, prefix_sums
from .line_cuts import sums_across_places
from .pipeline_cuts import PipelineCut
from .pipeline_units import PipelineUnits

MAX_PLACES = 100
"""Places where a line of units may be cut, evenly by work."""


class LinkLevel(NamedTuple):
    """`width` components of the level below, joined by links of `latency` microseconds and `per_byte` microseconds per byte."""

    width: int
    latency: float
    per_byte: float


def link_levels(cluster: Cluster) -> tuple[list[LinkLevel], list[int]] | None:
    """Returns the levels of a cluster's links, innermost first, and its devices component by component.

    Returns None if there is only one level, or if components differ in size or devices in kind.

    >>> from baechi_lab import Link
    >>> near, far = Link(0.0, 0.1), Link(0.0, 1.0)
    >>> links = [[near if a // 2 == b // 2 else far for b in range(4)] for a in range(4)]
    >>> link_levels(Cluster(Cluster.uniform(4).devices, link=links))[0]
    [LinkLevel(width=2, latency=0.0, per_byte=0.1), LinkLevel(width=2, latency=0.0, per_byte=1.0)]
    """
    if cluster.n < 4 or len({(d.kind, d.memory_bytes, d.speed) for d in cluster.devices}) > 1:
        return None
    cost = np.maximum(cluster.us_per_byte, cluster.us_per_byte.T)
    components, hierarchy = [[d] for d in range(cluster.n)], []
    while len(components) > 1:
        between = np.array(
            [[cost[np.ix_(a, b)].max() if a is not b else np.inf for b in components] for a in components]
        )
        is_near = between <= between.min() * (1 + 1e-9)
        # The components of this level, as lists of those of the level below.
        joined_components: list[list[list[int]]] = []
        remaining = list(range(len(components)))
        while remaining:
            first = remaining[0]
            joined_components.append([components[k] for k in remaining if k == first or is_near[first, k]])
            remaining = [k for k in remaining if k != first and not is_near[first, k]]
        if len({len(inner) for inner in joined_components}) > 1 or len(joined_components) == len(components):
            return None
        latency = max(
            float(cluster.latency_us[np.ix_(a, b)].max())
            for inner in joined_components
            for a in inner
            for b in inner
            if a is not b
        )
        hierarchy.append(LinkLevel(len(joined_components[0]), latency, float(between.min())))
        components = [[d for component in inner for d in component] for inner in joined_components]
    return (hierarchy, components[0]) if len(hierarchy) > 1 else None


def cuts_by_link_level(units: PipelineUnits, cluster: Cluster, name: str, *, sum: bool) -> Iterator[PipelineCut]:
    """Yields the cut along the line of `units` by PipeDream's program; nothing if links have one level."""
    levels_and_devices = link_levels(cluster)
    if levels_and_devices is None or not units.n or not (units.allowed == units.allowed[:, :1]).all():
        return
    hierarchy, order = levels_and_devices
    chain = make_device_chain(units, cluster, order, sum=sum, replicas=True)
    places = np.arange(units.n + 1)
    if units.n > MAX_PLACES:  # about equal work lies between them
        line = chain.work[:, 0]
        inner = np.searchsorted(line, np.linspace(0, line[-1], MAX_PLACES + 1)[1:-1])
        places = np.unique(np.concatenate([[0], inner, [units.n]])).astype(np.int64)
    # Number and bytes of the tensors that cross each place.
    tensor = units.reader_tensor
    weights = np.ones(len(units.producer)), units.size.astype(np.float64)
    count, size = (sums_across_places(units.producer, tensor, units.reader, w, units.n)[places] for w in weights)
    gradient = prefix_sums(units.gradient)[places].astype(np.float64)
    # [i, j]: load of one device by the units between two places; infinite if they do not fit or may not run there.
    work, communication = chain.work[places, 0], chain.communication[places, 0]
    barred_units = chain.barred_units[places, 0]
    parameter_bytes = prefix_sums(units.persistent_bytes)[places]
    cost = np.maximum(work[None, :] - work[:, None], communication[None, :] - communication[:, None])
    fits = parameter_bytes[None, :] - parameter_bytes[:, None] <= chain.memory[0]
    cost = np.where(fits & (barred_units[None, :] == barred_units[:, None]), cost, np.inf)
    choices = []
    for level in hierarchy:
        border = count * level.latency + size * level.per_byte
        rounds = 2.0 * np.arange(level.width)
        ring = rounds[:, None, None] * (
            level.latency * (gradient[None, None, :] > gradient[None, :, None])
            + level.per_byte
            * (gradient[None, None, :] - gradient[None, :, None])
            / np.arange(1, level.width + 1)[:, None, None]
        )
        best, choice = _solve(cost, border, ring, level.width, chain.rule)
        choices.append(choice)
        cost = best[:, :, -1].copy()
    if not np.isfinite(cost[0, -1]):
        return
    stages = _trace_stages(choices, [level.width for level in hierarchy], 0, len(places) - 1, len(hierarchy) - 1)
    stage = np.zeros(units.n, dtype=np.int64)
    for k, (first, end, _) in enumerate(stages):
        stage[places[first] : places[end]] = k
    devices = tuple(tuple(order[d] for d in group) for _, _, group in stages)
    yield PipelineCut(units.unit, stage, devices, f"{name}, level by level", float(cost[0, -1]))


@njit(cache=True)
def _solve(
    inner: NDArray[np.float64], border: NDArray[np.float64], ring: NDArray[np.float64], width: int, rule: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns `best[i, j, m - 1]`, which is A_k of places i to j on m devices, and the choice that gives it.

    A choice is (s, r): places s to j are one stage on r devices. (j, m) is one stage on all, (j, 0) leaves a device idle.
    """
    places = len(border)
    best = np.full((places, places, width), np.inf)
    choice = np.zeros((places, places, width, 2), np.int64)
    stage = np.full((places, places, width), np.inf)
    for i in range(places):
        for j in range(i + 1, places):
            for m in range(1, width + 1):
                transfer = 0.0 if rule == PARALLEL else border[i] + border[j] + ring[m - 1, i, j]
                load = inner[i, j] + transfer if rule == SUM else max(inner[i, j], transfer)
                stage[i, j, m - 1] = load / m
    for length in range(1, places):
        for i in range(places - length):
            j = i + length
            for m in range(1, width + 1):
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


class TracedStage(NamedTuple):
    """The units between two places on a list of devices, which are counted from the first of their component."""

    first: int
    end: int
    devices: list[int]


def _trace_stages(
    choices: list[NDArray[np.int64]], counts: list[int], first: int, end: int, level: int, m: int | None = None
) -> list[TracedStage]:
    """Returns the stages of places `first` to `end` on `m` components of a level (None: all), as `choices` say."""
    if level < 0:
        return [TracedStage(first, end, [0])]
    m, size = counts[level] if m is None else m, int(np.prod(counts[:level]))
    s, r = (int(x) for x in choices[level][first, end, m - 1])
    if r == 0:
        return _trace_stages(choices, counts, first, end, level, m - 1)
    if s == end:
        inner = _trace_stages(choices, counts, first, end, level - 1)
        return [
            TracedStage(a, b, [group[p // m] + p % m * size for p in range(len(group) * m)]) for a, b, group in inner
        ]
    earlier = _trace_stages(choices, counts, first, s, level, m - r)
    inner = _trace_stages(choices, counts, s, end, level - 1)
    copies = [
        TracedStage(a, b, [group[p // r] + (m - r + p % r) * size for p in range(len(group) * r)])
        for a, b, group in inner
    ]
    return earlier + copies
