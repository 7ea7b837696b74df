"""The best cuts of units into convex stages, by dynamic programming over all downward-closed sets.

A set of units is *closed* (an ideal) when it holds all that comes before its members. The first k stages of a pipeline
always are one, and the difference of two nested ones is a stage; so a programme over all pairs of nested sets finds the
best of all pipelines, not only of those along one line (Tarnawski et al., NeurIPS 2020, section 5.1.1). Graphs that are
nearly chains have few closed sets, wide ones too many.

Complexity: O(pairs of nested sets * (words of a set + tensors across its border + devices * replicas)); a pair whose
stage alone exceeds the bound of a known solution is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph.kernels.csr import offsets
from ...graph.kernels.jit import njit
from .chain import Chain
from .cut import fresh, least_work, leave_out, relax, stages_of
from .units import Units


def closed_sets(units: Units, most: int) -> NDArray[np.uint64]:
    """uint64[sets, words]: every closed set as bits, smaller ones first.

    Raises InvalidInput when there are more than `most`.

    >>> from baechi_lab import Cluster, OpGraph
    >>> from baechi_lab.placers.stages.units import make_units
    >>> fork = OpGraph.from_edges([1, 1, 1, 1], [(0, 1, 4), (0, 2, 4), (1, 3, 4), (2, 3, 4)])
    >>> len(closed_sets(make_units(fork, Cluster.uniform(2)), 100))    # {}, a, ab, ac, abc, abcd
    6
    """
    before = [0] * units.n
    for source, target in zip(units.source.tolist(), units.target.tolist(), strict=True):
        before[target] |= 1 << source
    after: list[list[int]] = [[] for _ in range(units.n)]
    for source, target in zip(units.source.tolist(), units.target.tolist(), strict=True):
        after[source].append(target)
    layer = {0: frozenset(u for u in range(units.n) if not before[u])}
    found = [0]
    while layer:
        grown: dict[int, frozenset[int]] = {}
        for held, ready in layer.items():
            for u in ready:
                larger = held | 1 << u
                if larger not in grown:
                    grown[larger] = ready - {u} | {v for v in after[u] if before[v] & ~larger == 0}
            if len(found) + len(grown) > most:
                raise InvalidInput(
                    f"the {units.n} units of the graph have more closed sets than the {most} that are looked at: optimize "
                    "the graph first, allow more (most_sets) or use the placer 'contiguous'"
                )
        found += sorted(grown)
        layer = grown
    return _as_words(found, units.n)


def _as_words(sets: list[int], count: int) -> NDArray[np.uint64]:
    words = max(1, -(-count // 64))
    raw = b"".join(s.to_bytes(words * 8, "little") for s in sets)
    return np.frombuffer(raw, dtype="<u8").reshape(len(sets), words).astype(np.uint64)


def cut_sets(
    units: Units, chain: Chain, goal: tuple[float, float], sets: NDArray[np.uint64], bound: float = np.inf
) -> tuple[float, list[tuple[NDArray[np.bool_], int, int]]]:
    """Least cost and its stages (bool[units] members, first device of the chain, devices); (inf, []) if none fits.

    `bound`: the cost of a solution that is known; nothing above it is looked at.
    """
    bits = _as_bits(sets, units.n)
    sets, bits = _by_work(sets, bits, chain)
    step = (np.diff(column, axis=0) for column in (chain.work, chain.barred))
    work, barred = (np.ascontiguousarray(bits @ column) for column in step)
    held, gradient = (bits.astype(np.int64) @ column for column in (units.held, units.gradient))
    readers = np.zeros((len(units.producer), sets.shape[1]), dtype=np.uint64)
    tensor = np.repeat(np.arange(len(units.producer)), np.diff(units.reader_ptr))
    one = np.uint64(1) << (units.reader % 64).astype(np.uint64)
    np.bitwise_or.at(readers, (tensor, units.reader // 64), one)
    crossing = _crossing(units, bits, tensor)
    best, came = fresh(len(sets), len(chain.kind), chain.whole)
    sums, tensors = (work, barred, held, gradient), (units.producer, units.size.astype(np.float64), readers)
    _pairs(best, came, chain, sums, sets, tensors, crossing, goal, bound * (1 + 1e-9))
    if not np.isfinite(best[-1, -1]):
        return np.inf, []
    stages = stages_of(came, len(sets) - 1, len(chain.kind))
    return float(best[-1, -1]), [(bits[j] & ~bits[i], d, r) for i, j, d, r in stages]


def _as_bits(sets: NDArray[np.uint64], count: int) -> NDArray[np.bool_]:
    raw = np.unpackbits(sets.astype("<u8").view(np.uint8), axis=1, bitorder="little")
    return raw[:, :count].astype(np.bool_)


def _by_work(sets: NDArray[Any], bits: NDArray[Any], chain: Chain) -> tuple[NDArray[Any], NDArray[Any]]:
    """The sets by their work, of equal ones the smaller first: a set still comes after all that it holds."""
    each = np.diff(chain.work[:, 0])
    largest = each.max(initial=0.0) or 1.0
    whole = np.rint(each / largest * 2.0**40).astype(np.int64)  # exact sums: no rounding misorders
    order = np.lexsort((bits.sum(axis=1), bits.astype(np.int64) @ whole))
    return np.ascontiguousarray(sets[order]), bits[order]


def _crossing(units: Units, bits: NDArray[np.bool_], tensor: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """CSR set -> tensors that have a producer or reader in it and one outside."""
    inside, outside = bits[:, units.producer].copy(), ~bits[:, units.producer]
    for t, r in zip(tensor.tolist(), units.reader.tolist(), strict=True):
        inside[:, t] |= bits[:, r]
        outside[:, t] |= ~bits[:, r]
    row, column = np.nonzero(inside & outside)
    return offsets(row, len(bits)), column.astype(np.int64)


@njit(cache=True)
def _pairs(
    best: Any,
    came: Any,
    chain: Any,
    sums: Any,
    sets: Any,
    tensors: Any,
    crossing: Any,
    goal: Any,
    bound: Any,
) -> None:
    work, most = sums[0], chain.run.max() if len(chain.run) else 1
    low, high = np.zeros(4), np.zeros(4)
    for j in range(1, len(sets)):
        for i in range(j - 1, -1, -1):
            if goal[1] * least_work(work, i, j) / most > bound:
                if work.shape[1] == 1:  # sets are sorted by it: all that follow are as far away
                    break
                continue
            if not _improves(best, i, j, bound) or not _within(sets, i, j):
                continue
            _border(sets, i, j, tensors, crossing, low, high)
            relax(best, came, chain, sums, i, j, low, high, goal)
        if not chain.whole:
            leave_out(best, came, j)


@njit(cache=True)
def _improves(best: Any, i: Any, j: Any, bound: Any) -> Any:
    better = False
    for d in range(best.shape[1] - 1):
        better |= best[i, d] <= bound and best[i, d] < best[j, d + 1]
    return better


@njit(cache=True)
def _within(sets: Any, i: Any, j: Any) -> Any:
    outside = np.uint64(0)
    for w in range(sets.shape[1]):
        outside |= sets[i, w] & ~sets[j, w]
    return outside == 0


@njit(cache=True)
def _member(sets: Any, i: Any, u: Any) -> Any:
    return (sets[i, u >> 6] >> np.uint64(u & 63)) & np.uint64(1) != 0


@njit(cache=True)
def _border(sets: Any, i: Any, j: Any, tensors: Any, crossing: Any, low: Any, high: Any) -> None:
    """What the stage between sets i and j receives and sends, below (through set i) and above."""
    producer, size, readers = tensors
    pointer, crossed = crossing
    low[:], high[:] = 0.0, 0.0
    for k in range(pointer[i], pointer[i + 1]):
        t = crossed[k]
        below = _member(sets, i, producer[t])
        if not below and _member(sets, j, producer[t]):
            low[2] += 1.0
            low[3] += size[t]
        elif _read_between(readers[t], sets, i, j):
            side = low if below else high
            side[0] += 1.0
            side[1] += size[t]
    for k in range(pointer[j], pointer[j + 1]):
        t = crossed[k]
        if _member(sets, i, producer[t]) or _touches(readers[t], sets, i):
            continue
        if _member(sets, j, producer[t]):
            high[2] += 1.0
            high[3] += size[t]
        else:
            high[0] += 1.0
            high[1] += size[t]


@njit(cache=True)
def _read_between(reader: Any, sets: Any, i: Any, j: Any) -> Any:
    between = np.uint64(0)
    for w in range(len(reader)):
        between |= reader[w] & sets[j, w] & ~sets[i, w]
    return between != 0


@njit(cache=True)
def _touches(reader: Any, sets: Any, i: Any) -> Any:
    touched = np.uint64(0)
    for w in range(len(reader)):
        touched |= reader[w] & sets[i, w]
    return touched != 0
