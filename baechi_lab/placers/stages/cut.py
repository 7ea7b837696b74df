"""One step of the dynamic programmes over stages: the best way to end a stage at a set of units.

With `best[j, e]` the least possible cost of giving the units of set `j` to the first `e` devices of the chain,

    best[j, e] = min over subsets i of j and r <= e of  max(best[i, e - r], cost of the stage j - i on r devices before e)

where the cost of a stage is its load (the period), or `ahead * (work of i) + micro_batches * load`: no schedule in which
backward ops follow in turn ends a step of M micro-batches sooner than the largest of these (with `ahead` = 1), since
the stages before it pass one micro-batch forward and back outside of the M that the stage computes. Of r replicas (`once` of
the chain) one has ceil(M / r) micro-batches, and the ring follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...graph.kernels.jit import njit
from .chain import Chain, ring_us, stage_load


@njit(cache=True, inline="always")
def relax(best: Any, came: Any, chain: Any, sums: Any, i: Any, j: Any, low: Any, high: Any, goal: Any) -> None:
    """Take the stage between sets `i` and `j` wherever it makes `best[j]` smaller; `came[j, e]` = (i, r).

    `sums` of the sets: work float64[K, kinds], barred int64[K, kinds], held int64[K], gradient int64[K] bytes;
    `goal` = (ahead, micro_batches).
    """
    devices = len(chain.kind)
    work, barred, held, gradient = sums
    for d in range(devices):
        if not best[i, d] < best[j, d + 1]:
            continue
        kind = chain.kind[d]
        if barred[j, kind] > barred[i, kind] or held[j] - held[i] > chain.memory[d]:
            continue
        alone = work[j, kind] - work[i, kind]
        for r in range(1, chain.run[d] + 1):
            count = goal[1]
            if chain.once:
                count = np.ceil(goal[1] / r) * r
            before = goal[0] * work[i, kind]
            if (before + count * (alone / r)) * (1.0 - 1e-12) >= best[j, d + r]:
                continue  # by its work alone
            cost = before + count * stage_load(chain, d, r, alone, gradient[j] - gradient[i], low, high)
            if chain.once and r > 1:
                cost += ring_us(chain, d, r, gradient[j] - gradient[i])
            cost = max(best[i, d], cost)
            if cost < best[j, d + r]:
                best[j, d + r] = cost
                came[j, d + r, 0] = i
                came[j, d + r, 1] = r


@njit(cache=True)
def least_work(work: Any, i: Any, j: Any) -> Any:
    """Microseconds that the units of set `j` beyond those of set `i` take where they are fastest."""
    least = work[j, 0] - work[i, 0]
    for kind in range(1, work.shape[1]):
        least = min(least, work[j, kind] - work[i, kind])
    return least


@njit(cache=True)
def leave_out(best: Any, came: Any, j: Any) -> None:
    """A device may be left idle: `best[j, e]` is at most `best[j, e - 1]`."""
    for e in range(1, best.shape[1]):
        if best[j, e - 1] < best[j, e]:
            best[j, e] = best[j, e - 1]
            came[j, e, 0] = j
            came[j, e, 1] = 1


def stages_of(came: Any, last: int, devices: int) -> list[tuple[int, int, int, int]]:
    """(set before, set with it, first device, number of devices) of every stage, in order."""
    found, j, e = [], last, devices
    while e > 0:
        i, r = (int(x) for x in came[j, e])
        if i != j:
            found.append((i, j, e - r, r))
        j, e = i, e - r
    return found[::-1]


def on_first_devices(stages: Sequence[tuple[Any, ...]], chain: Chain) -> Iterator[list[tuple[Any, ...]]]:
    """The stages, each of which ends with its first device and number of devices, so that idle devices are the last ones.

    That is possible where all devices are equal; where their links differ, the stages as they are come after that.
    """
    end, packed = 0, []
    for stage in stages:
        packed.append((*stage[:-2], end, stage[-1]))
        end += stage[-1]
    equal = len(np.unique(chain.kind)) <= 1 and len(np.unique(chain.memory)) <= 1
    if equal:
        yield packed
    links = np.unique(np.stack([chain.latency[1:-1], chain.per_byte[1:-1]]), axis=1)
    if not equal or (links.shape[1] > 1 and packed != list(stages)):
        yield list(stages)


def fresh(count: int, devices: int, whole: bool = False) -> tuple[Any, Any]:
    """`best` and `came` before the first stage: the empty set, 0, costs nothing; on no device, if all take part (`whole`)."""
    best = np.full((count, devices + 1), np.inf)
    best[0, : 1 if whole else None] = 0.0
    came = np.zeros((count, devices + 1, 2), dtype=np.int64)
    came[:, :, 1] = 1
    return best, came
