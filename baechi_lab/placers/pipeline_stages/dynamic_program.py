"""The recurrence that all dynamic programs over pipeline stages share.

Let `best[j, e]` be the least cost of placing the units of set `j` on the first `e` devices of the chain:

    best[j, e] = min over subsets i of j and r <= e of  max(best[i, e - r], cost of the stage j - i on r devices before e)

The cost of a stage is its load (for the period), or `ahead * (work of i) + micro_batches * load` (for a step). The largest of
the latter with `ahead` = 1 is a lower bound of a step of M micro-batches if backward ops follow in turn: the previous stages
pass one micro-batch forward and back in addition to the M that the stage computes. One of r replicas (`once` of the chain)
has ceil(M / r) micro-batches, and the ring follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.jit import njit
from .device_chain import DeviceChain, pipeline_stage_load, ring_us


@njit(cache=True, inline="always")
def relax(
    best: NDArray[np.float64],
    predecessor: NDArray[np.int64],
    chain: DeviceChain,
    sums: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    i: int,
    j: int,
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    goal: tuple[float, float],
) -> None:
    """Takes the stage between sets `i` and `j` wherever it lowers `best[j]`; `predecessor[j, e]` = (i, r).

    `sums` over the sets: work and collectives float64[K, kinds] each, barred int64[K, kinds], persistent_bytes int64[K],
    gradient int64[K] bytes; `goal` = (ahead, micro_batches).
    """
    devices = len(chain.kind)
    work, communication, barred_units, persistent_bytes, gradient = sums
    for d in range(devices):
        if not best[i, d] < best[j, d + 1]:
            continue
        kind = chain.kind[d]
        if barred_units[j, kind] > barred_units[i, kind] or persistent_bytes[j] - persistent_bytes[i] > chain.memory[d]:
            continue
        alone = work[j, kind] - work[i, kind]
        for r in range(1, chain.run[d] + 1):
            count = goal[1]
            if chain.once:
                count = np.ceil(goal[1] / r) * r
            before = goal[0] * work[i, kind]
            if (before + count * (alone / r)) * (1.0 - 1e-12) >= best[j, d + r]:
                continue  # by its work alone
            collectives = communication[j, kind] - communication[i, kind]
            cost = before + count * pipeline_stage_load(
                chain, d, r, alone, collectives, gradient[j] - gradient[i], low, high
            )
            if chain.once and r > 1:
                cost += ring_us(chain, d, r, gradient[j] - gradient[i])
            cost = max(best[i, d], cost)
            if cost < best[j, d + r]:
                best[j, d + r] = cost
                predecessor[j, d + r, 0] = i
                predecessor[j, d + r, 1] = r


@njit(cache=True)
def least_work(work: NDArray[np.float64], i: int, j: int) -> float:
    """Microseconds of the units in set `j` but not in set `i`, on the fastest kind of device."""
    least = work[j, 0] - work[i, 0]
    for kind in range(1, work.shape[1]):
        least = min(least, work[j, kind] - work[i, kind])
    return least


@njit(cache=True)
def allow_idle_device(best: NDArray[np.float64], predecessor: NDArray[np.int64], j: int) -> None:
    """Lets a device be idle: `best[j, e]` is at most `best[j, e - 1]`."""
    for e in range(1, best.shape[1]):
        if best[j, e - 1] < best[j, e]:
            best[j, e] = best[j, e - 1]
            predecessor[j, e, 0] = j
            predecessor[j, e, 1] = 1


def trace_pipeline_stages(predecessor: NDArray[np.int64], last: int, devices: int) -> list[tuple[int, int, int, int]]:
    """Returns (set before, set with it, first device, number of devices) of every stage, in order."""
    stages, j, e = [], last, devices
    while e > 0:
        i, r = (int(x) for x in predecessor[j, e])
        if i != j:
            stages.append((i, j, e - r, r))
        j, e = i, e - r
    return stages[::-1]


class ChainStage(NamedTuple):
    """A pipeline stage on a chain of devices: its units (a slice of the line, or bool[units]), first device, and device count."""

    units: slice | NDArray[np.bool_]
    first_device: int
    devices: int


def pack_on_first_devices(stages: Sequence[ChainStage], chain: DeviceChain) -> Iterator[list[ChainStage]]:
    """Moves the stages to the first devices, so that idle devices are the last ones.

    Possible where all devices are equal. If their links differ, the stages follow unchanged as a second candidate.
    """
    end, packed_stages = 0, []
    for stage in stages:
        packed_stages.append(stage._replace(first_device=end))
        end += stage.devices
    equal = len(np.unique(chain.kind)) <= 1 and len(np.unique(chain.memory)) <= 1
    if equal:
        yield packed_stages
    links = np.unique(np.stack([chain.latency[1:-1], chain.per_byte[1:-1]]), axis=1)
    if not equal or (links.shape[1] > 1 and packed_stages != list(stages)):
        yield list(stages)


def make_tables(count: int, devices: int, use_all: bool = False) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Initial `best` and `predecessor`. The empty set 0 costs nothing, on any devices, or only on none if `use_all`."""
    best = np.full((count, devices + 1), np.inf)
    best[0, : 1 if use_all else None] = 0.0
    predecessor = np.zeros((count, devices + 1, 2), dtype=np.int64)
    predecessor[:, :, 1] = 1
    return best, predecessor
