"""The best cuts of units into convex pipeline stages, by dynamic programming over all downward-closed sets.

A set of units is *closed* (an ideal) if it contains all predecessors of its members. The first k stages of a pipeline form a
closed set, and the difference of two nested closed sets is a stage. So a dynamic program over all pairs of nested sets finds
the best of all pipelines, not only of those along one line (Tarnawski et al., NeurIPS 2020, section 5.1.1). Graphs that are
nearly chains have few closed sets, wide graphs too many.

Complexity: O(pairs of nested sets * (words of a set + tensors across its border + devices * replicas)). Pairs whose stage
alone exceeds the cost of a known solution are skipped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph.kernels.csr import offsets
from ...graph.kernels.jit import njit
from .device_chain import DeviceChain
from .dynamic_program import ChainStage, allow_idle_device, least_work, make_tables, relax, trace_pipeline_stages
from .pipeline_units import PipelineUnits


def closed_sets(units: PipelineUnits, max_sets: int) -> NDArray[np.uint64]:
    """Returns every closed set as bits, uint64[sets, words], smaller sets first.

    Raises InvalidInput if there are more than `max_sets`.

    >>> from baechi_lab import Cluster, OpGraph
    >>> from baechi_lab.placers.pipeline_stages.pipeline_units import make_pipeline_units
    >>> fork = OpGraph.from_edges([1, 1, 1, 1], [(0, 1, 4), (0, 2, 4), (1, 3, 4), (2, 3, 4)])
    >>> len(closed_sets(make_pipeline_units(fork, Cluster.uniform(2)), 100))    # {}, a, ab, ac, abc, abcd
    6
    """
    before = [0] * units.n
    for source, target in zip(units.source.tolist(), units.target.tolist(), strict=True):
        before[target] |= 1 << source
    after: list[list[int]] = [[] for _ in range(units.n)]
    for source, target in zip(units.source.tolist(), units.target.tolist(), strict=True):
        after[source].append(target)
    layer = {0: frozenset(u for u in range(units.n) if not before[u])}
    sets = [0]
    while layer:
        larger_sets: dict[int, frozenset[int]] = {}
        for members, ready in layer.items():
            for u in ready:
                larger = members | 1 << u
                if larger not in larger_sets:
                    larger_sets[larger] = ready - {u} | {v for v in after[u] if before[v] & ~larger == 0}
            if len(sets) + len(larger_sets) > max_sets:
                raise InvalidInput(
                    f"the {units.n} units of the graph have more closed sets than the {max_sets} that are looked at: optimize "
                    "the graph first, allow more (most_sets) or use the placer 'contiguous'"
                )
        sets += sorted(larger_sets)
        layer = larger_sets
    words = max(1, -(-units.n // 64))
    raw = b"".join(s.to_bytes(words * 8, "little") for s in sets)
    return np.frombuffer(raw, dtype="<u8").reshape(len(sets), words).astype(np.uint64)


def cut_sets(
    units: PipelineUnits, chain: DeviceChain, goal: tuple[float, float], sets: NDArray[np.uint64], bound: float = np.inf
) -> tuple[float, list[ChainStage]]:
    """Returns the least cost and its stages; (inf, []) if none fits.

    `bound` is the cost of a known solution. More expensive stages are skipped.
    """
    raw = np.unpackbits(sets.astype("<u8").view(np.uint8), axis=1, bitorder="little")
    bits = raw[:, : units.n].astype(np.bool_)
    # The sets by work, and sets of equal work by size: every set comes after its subsets.
    each = np.diff(chain.work[:, 0])
    largest = each.max(initial=0.0) or 1.0
    scaled_work = np.rint(each / largest * 2.0**40).astype(np.int64)  # exact sums: no rounding misorders
    order = np.lexsort((bits.sum(axis=1), bits.astype(np.int64) @ scaled_work))
    sets, bits = np.ascontiguousarray(sets[order]), bits[order]
    step = (np.diff(column, axis=0) for column in (chain.work, chain.communication, chain.barred_units))
    work, communication, barred_units = (np.ascontiguousarray(bits @ column) for column in step)
    persistent_bytes, gradient = (bits.astype(np.int64) @ column for column in (units.persistent_bytes, units.gradient))
    readers = np.zeros((len(units.producer), sets.shape[1]), dtype=np.uint64)
    tensor = units.reader_tensor
    one = np.uint64(1) << (units.reader % 64).astype(np.uint64)
    np.bitwise_or.at(readers, (tensor, units.reader // 64), one)
    # CSR set -> tensors with a producer or reader inside and one outside.
    inside, outside = bits[:, units.producer].copy(), ~bits[:, units.producer]
    for t, r in zip(tensor.tolist(), units.reader.tolist(), strict=True):
        inside[:, t] |= bits[:, r]
        outside[:, t] |= ~bits[:, r]
    row, column = np.nonzero(inside & outside)
    crossing = offsets(row, len(bits)), column.astype(np.int64)
    best, predecessor = make_tables(len(sets), len(chain.kind), chain.use_all)
    sums = work, communication, barred_units, persistent_bytes, gradient
    tensors = units.producer, units.size.astype(np.float64), readers
    _relax_nested_pairs(best, predecessor, chain, sums, sets, tensors, crossing, goal, bound * (1 + 1e-9))
    if not np.isfinite(best[-1, -1]):
        return np.inf, []
    stages = trace_pipeline_stages(predecessor, len(sets) - 1, len(chain.kind))
    return float(best[-1, -1]), [ChainStage(bits[j] & ~bits[i], d, r) for i, j, d, r in stages]


@njit(cache=True)
def _relax_nested_pairs(
    best: NDArray[np.float64],
    predecessor: NDArray[np.int64],
    chain: DeviceChain,
    sums: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    sets: NDArray[np.uint64],
    tensors: tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.uint64]],
    crossing: tuple[NDArray[np.int64], NDArray[np.int64]],
    goal: tuple[float, float],
    bound: float,
) -> None:
    """Fills the dynamic program's tables: every pair of nested sets i < j makes the stage between them."""
    work, max_replicas = sums[0], chain.run.max() if len(chain.run) else 1
    low, high = np.zeros(4), np.zeros(4)
    for j in range(1, len(sets)):
        for i in range(j - 1, -1, -1):
            if goal[1] * least_work(work, i, j) / max_replicas > bound:
                if work.shape[1] == 1:  # sets are sorted by it: all that follow are as far away
                    break
                continue
            if not _may_improve(best, i, j, bound) or not _is_subset(sets, i, j):
                continue
            _border_traffic(sets, i, j, tensors, crossing, low, high)
            relax(best, predecessor, chain, sums, i, j, low, high, goal)
        if not chain.use_all:
            allow_idle_device(best, predecessor, j)


@njit(cache=True)
def _may_improve(best: NDArray[np.float64], i: int, j: int, bound: float) -> bool:
    better = False
    for d in range(best.shape[1] - 1):
        better |= best[i, d] <= bound and best[i, d] < best[j, d + 1]
    return better


@njit(cache=True)
def _is_subset(sets: NDArray[np.uint64], i: int, j: int) -> bool:
    outside = np.uint64(0)
    for w in range(sets.shape[1]):
        outside |= sets[i, w] & ~sets[j, w]
    return outside == 0


@njit(cache=True)
def _member(sets: NDArray[np.uint64], i: int, u: int) -> bool:
    return (sets[i, u >> 6] >> np.uint64(u & 63)) & np.uint64(1) != 0


@njit(cache=True)
def _border_traffic(
    sets: NDArray[np.uint64],
    i: int,
    j: int,
    tensors: tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.uint64]],
    crossing: tuple[NDArray[np.int64], NDArray[np.int64]],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
) -> None:
    """Sets `low` and `high` to the traffic of the stage between sets i and j: tensors and bytes received, then sent.

    `low` is the traffic with the stages before it (set i), `high` that with the stages after it.
    """
    producer, size, readers = tensors
    pointer, crossing_tensors = crossing
    low[:], high[:] = 0.0, 0.0
    for k in range(pointer[i], pointer[i + 1]):
        t = crossing_tensors[k]
        below = _member(sets, i, producer[t])
        if not below and _member(sets, j, producer[t]):
            low[2] += 1.0
            low[3] += size[t]
        elif _read_between(readers[t], sets, i, j):
            side = low if below else high
            side[0] += 1.0
            side[1] += size[t]
    for k in range(pointer[j], pointer[j + 1]):
        t = crossing_tensors[k]
        if _member(sets, i, producer[t]) or _is_read_in(readers[t], sets, i):
            continue
        if _member(sets, j, producer[t]):
            high[2] += 1.0
            high[3] += size[t]
        else:
            high[0] += 1.0
            high[1] += size[t]


@njit(cache=True)
def _read_between(reader: NDArray[np.uint64], sets: NDArray[np.uint64], i: int, j: int) -> bool:
    between = np.uint64(0)
    for w in range(len(reader)):
        between |= reader[w] & sets[j, w] & ~sets[i, w]
    return between != 0


@njit(cache=True)
def _is_read_in(reader: NDArray[np.uint64], sets: NDArray[np.uint64], i: int) -> bool:
    common_bits = np.uint64(0)
    for w in range(len(reader)):
        common_bits |= reader[w] & sets[i, w]
    return common_bits != 0
