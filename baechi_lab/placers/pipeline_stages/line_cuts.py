"""The best cuts of a line of units into pipeline stages, by dynamic programming over all intervals of the line.

Source: the dynamic programs of PipeDream (Narayanan et al. 2019, doi:10.1145/3341301.3359646, section 3.1) and of
Tarnawski et al., NeurIPS 2020, section 5.1.2 (on a linearisation). The units between two neighbouring places where the line
may be cut form a block. The end j moves along the line. The traffic of the intervals [i, j) then changes on ranges of i, of
which only both ends are stored; summing them from j towards the front gives every interval in turn. Several goals share one
sweep.

Complexity: O(units + tensors) for the changes and O(places^2 * devices * replicas) for the program. It is solved with few
places first, those that the fewest bytes cross. The cost there bounds the intervals with all places.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import Integers, distinct, interval_sum, offsets
from ...graph.kernels.jit import njit
from .device_chain import DeviceChain, pipeline_stage_load, prefix_sums
from .dynamic_program import ChainStage, allow_idle_device, least_work, make_tables, relax, trace_pipeline_stages
from .pipeline_units import PipelineUnits

COARSE_PLACES, MAX_PLACES = 200, 4000
"""Places where the line may be cut: in the first pass, and at most."""

LOW_RECEIVED, LOW_SENT, HIGH_RECEIVED, HIGH_SENT = range(0, 8, 2)
"""Columns of an interval's traffic, from and to units before and after it: each a count, followed by bytes."""


def cut_line(units: PipelineUnits, chain: DeviceChain, goal: tuple[float, float]) -> tuple[float, list[ChainStage]]:
    """Returns the least cost and its stages; (inf, []) if none fits.

    `goal` = (ahead, micro_batches), see `dynamic_program`; (0, 1) is the period.
    """
    return cut_lines(units, chain, [goal])[0]


def cut_lines(
    units: PipelineUnits, chain: DeviceChain, goals: Sequence[tuple[float, float]]
) -> list[tuple[float, list[ChainStage]]]:
    """`cut_line` for each goal."""
    solutions: list[tuple[float, list[ChainStage]]] = [(np.inf, [])] * len(goals)
    for max_places in (COARSE_PLACES, MAX_PLACES):
        places = cheapest_places(units, chain.work[:, 0], max_places)
        sums = (
            chain.work[places],
            chain.communication[places],
            chain.barred_units[places],
            prefix_sums(units.persistent_bytes)[places],
            prefix_sums(units.gradient)[places],
        )
        tables = [make_tables(len(places), len(chain.kind), chain.use_all) for _ in goals]
        best, predecessor = (np.stack([table[k] for table in tables]) for k in (0, 1))
        bound = np.array([cost for cost, _ in solutions])
        _sweep_intervals(
            (best, predecessor),
            chain,
            sums,
            _interval_changes(units, places),
            (np.array(goals, dtype=np.float64), bound),
        )
        for k, cost in enumerate(best[:, -1, -1].tolist()):
            if cost <= solutions[k][0] and np.isfinite(cost):
                stages = trace_pipeline_stages(predecessor[k], len(places) - 1, len(chain.kind))
                solutions[k] = cost, [ChainStage(slice(int(places[i]), int(places[j])), d, r) for i, j, d, r in stages]
    return solutions


def cheapest_places(units: PipelineUnits, work: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Returns both ends of the line and, of each of up to `count - 1` stretches of it, the place that the fewest bytes cross.

    Stretches have equal shares of units and work. `work` float64[n + 1] are sums before each place.
    """
    if units.n <= count:
        return np.arange(units.n + 1)
    tensor = units.reader_tensor
    crossing_bytes = sums_across_places(units.producer, tensor, units.reader, units.size, units.n)
    share = np.arange(units.n + 1) / units.n + work / max(work[-1], 1e-300)
    inner = np.arange(1, units.n)
    stretch = np.minimum((share[inner] / share[-1] * (count - 1)).astype(np.int64), count - 2)
    by_stretch = inner[np.lexsort((crossing_bytes[inner], stretch))]
    first = np.diff(np.sort(stretch), prepend=-1) > 0
    return np.concatenate([[0], np.sort(by_stretch[first]), [units.n]])


def sums_across_places(
    producer: Integers, tensor: Integers, reader: Integers, weight: NDArray[np.number], count: int
) -> NDArray[np.float64]:
    """Returns float64[count + 1]: per place, the sum of the weights of the tensors that cross it. Place k is before position k.

    Args:
        producer: position of each tensor's producer, int[T].
        tensor, reader: a tensor and the position of one of its readers, int[readings] each.
        weight: of each tensor, [T].
        count: positions of the line.

    >>> sums_across_places(np.array([0, 1]), np.array([0, 1, 1]), np.array([2, 0, 1]), np.array([4.0, 1.0]), 3).tolist()
    [0.0, 5.0, 4.0, 0.0]
    """
    low, high = producer.astype(np.int64), producer.astype(np.int64)
    np.minimum.at(low, tensor, reader)
    np.maximum.at(high, tensor, reader)
    return np.maximum(interval_sum(weight.astype(np.float64), low + 1, high + 1, count + 1), 0.0)


def _interval_changes(
    units: PipelineUnits, places: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Changes of the intervals' traffic when the block of units before place j + 1 joins them.

    Rows `pointer[j]:pointer[j + 1]`: the blocks i from `first` to `last` change in `column` by `change` bytes and one tensor of
    the same sign. A tensor is received once, from below if its producer lies before the interval. It is sent once, to below if
    any reader lies before the interval. Returns pointer, block_range int64[rows, 2], column, change.
    """
    blocks = len(places) - 1
    block = np.searchsorted(places, np.arange(units.n), side="right") - 1
    tensor = units.reader_tensor
    key = distinct(tensor.astype(np.int64) * max(blocks, 1) + block[units.reader])
    tensor, reader = key // max(blocks, 1), key % max(blocks, 1)
    away = reader != block[units.producer[tensor]]  # what is read in the same block is never sent
    tensor, reader = tensor[away], reader[away]
    producer_block, size = block[units.producer[tensor]], units.size[tensor].astype(np.float64)
    first = np.diff(tensor, prepend=-1) > 0
    last = np.diff(tensor, append=len(units.producer)) > 0
    before = np.where(first, -1, np.concatenate([[-1], reader[:-1]]))  # the reader before it
    read_ahead, read_behind, end = reader > producer_block, reader < producer_block, np.flatnonzero(last)
    lowest_reader, highest_reader = reader[first], reader[last]
    # The last reader below the producer, of tensors that have one.
    below = np.flatnonzero(read_behind & (last | np.concatenate([read_ahead[1:], [False]])))
    source_block, low = producer_block[end], np.minimum(producer_block[end], lowest_reader)
    sent_low, sent_high = np.flatnonzero(lowest_reader < source_block), np.flatnonzero(highest_reader > source_block)
    rows = [
        (
            reader[read_ahead],
            np.maximum(producer_block, before)[read_ahead] + 1,
            reader[read_ahead],
            LOW_RECEIVED,
            size[read_ahead],
        ),
        (reader[read_behind], before[read_behind] + 1, reader[read_behind], HIGH_RECEIVED, size[read_behind]),
        (producer_block[below], 0 * below, reader[below], HIGH_RECEIVED, -size[below]),
        (source_block[sent_low], lowest_reader[sent_low] + 1, source_block[sent_low], LOW_SENT, size[end][sent_low]),
        (source_block[sent_high], 0 * sent_high, low[sent_high], HIGH_SENT, size[end][sent_high]),
        (highest_reader[sent_high], 0 * sent_high, low[sent_high], HIGH_SENT, -size[end][sent_high]),
    ]
    joining_block = np.concatenate([row[0] for row in rows])
    order = np.argsort(joining_block, kind="stable")
    block_range = np.stack([np.concatenate([row[k] for row in rows]) for k in (1, 2)], axis=1)[order]  # type: ignore[misc]
    column = np.concatenate([np.full(len(row[0]), row[3]) for row in rows])[order]
    sign = np.concatenate([np.full(len(row[0]), 1.0 if k not in (2, 5) else -1.0) for k, row in enumerate(rows)])[order]
    change = np.concatenate([row[4] for row in rows])[order]
    return offsets(joining_block, blocks), block_range.astype(np.int64), column, np.stack([sign, change], axis=1)


@njit(cache=True)
def _sweep_intervals(
    tables: tuple[np.ndarray, np.ndarray],
    chain: DeviceChain,
    sums: tuple[NDArray[np.float64], np.ndarray, np.ndarray, NDArray[np.int64], NDArray[np.int64]],
    changes: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]],
    goals_and_bounds: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> None:
    """Fill the `tables` of every goal: `best` and `predecessor`.

    `goals_and_bounds` are the goals, and of each the cost of a known solution; `changes` are those of `_interval_changes`.
    """
    best, predecessor = tables
    pointer, block_range, column, change = changes
    goals, bound = goals_and_bounds
    blocks = best.shape[1] - 1
    edge = np.zeros((blocks, 8))  # what changes from block i + 1 to block i
    cross = np.zeros((blocks + 1, 8))  # of the interval from i on
    useful_devices = np.empty((len(goals), blocks + 1, 2), np.int64)  # of each goal and i, first and last + 1
    for g in range(len(goals)):
        for i in range(blocks + 1):
            useful_devices[g, i, 0] = 0
            useful_devices[g, i, 1] = _last_useful_device(chain, sums[0], i, goals[g, 1], bound[g]) + 1
    # The start of the longest interval up to j whose work is within the bound.
    start = np.zeros(len(goals), np.int64)
    for j in range(1, blocks + 1):
        for k in range(pointer[j - 1], pointer[j]):
            c, first, last = column[k], block_range[k, 0], block_range[k, 1]
            for x in range(2):
                edge[last, c + x] += change[k, x]
                if first > 0:
                    edge[first - 1, c + x] -= change[k, x]
        for g in range(len(goals)):
            start[g] = _first_start(chain, sums[0], start[g], j, goals[g, 1], bound[g])
        cross[j] = 0.0
        for i in range(j - 1, start.min() - 1, -1):
            for x in range(8):
                cross[i, x] = cross[i + 1, x] + edge[i, x]
        for g in range(len(goals)):
            _relax_stages_ending_at(
                best[g], predecessor[g], chain, sums, cross, useful_devices[g], (start[g], j), goals[g], bound[g]
            )
            if not chain.use_all:
                allow_idle_device(best[g], predecessor[g], j)
            while useful_devices[g, j, 0] < useful_devices[g, j, 1] and not (
                best[g, j, useful_devices[g, j, 0]] <= bound[g]
            ):
                useful_devices[g, j, 0] += 1


@njit(cache=True)
def _last_useful_device(chain: DeviceChain, work: NDArray[np.float64], i: int, count: float, bound: float) -> int:
    """The last device from which the units after place `i` fit on the remaining devices with no load above `bound`."""
    devices = len(chain.kind)
    remaining_load = count * least_work(work, i, len(work) - 1) * (1.0 - 1e-9)
    last = devices - 1
    while last > 0 and remaining_load > bound * (devices - last):
        last -= 1
    return last


@njit(cache=True)
def _first_start(chain: DeviceChain, work: NDArray[np.float64], start: int, j: int, count: float, bound: float) -> int:
    """The first place from `start` on from which a stage up to place `j` is not above `bound` by its work alone."""
    run = chain.run
    max_replicas = run.max() if len(run) else 1
    while start < j and count * least_work(work, start, j) / max_replicas > bound:
        start += 1
    return start


@njit(cache=True)
def _have_equal_costs(chain: DeviceChain) -> bool:
    """Whether a stage with neighbours on both sides costs the same on every device, and has one device."""
    latency, per_byte = chain.latency[1:-1], chain.per_byte[1:-1]
    equal_devices = len(chain.kind) >= 3 and chain.run.max() == 1 and chain.kind.max() == 0
    return equal_devices and (latency == latency[0]).all() and (per_byte == per_byte[0]).all()


@njit(cache=True)
def _relax_stages_ending_at(
    best: NDArray[np.float64],
    predecessor: NDArray[np.int64],
    chain: DeviceChain,
    sums: tuple[NDArray[np.float64], np.ndarray, np.ndarray, NDArray[np.int64], NDArray[np.int64]],
    cross: NDArray[np.float64],
    useful_devices: NDArray[np.int64],
    interval: tuple[int, int],
    goal: NDArray[np.float64],
    bound: float,
) -> None:
    """Relaxes all stages that begin at `interval[0]` or later and end with block `interval[1]`, the shortest first.

    The starts of the stages that end with the block before are tried first. The best of them bounds the least costs, so that
    most other starts are skipped; the bound itself is no solution, as among equal costs the shortest stage is taken.

    `relax` is called only if a stage may be better by its work alone. A stage above `bound` is in no better solution, nor is
    one on a device from which, or after which, the remaining work does not fit below `bound`.
    """
    work, kind, run, (start, j), ahead, count = sums[0], chain.kind, chain.run, interval, goal[0], goal[1]
    communication, devices = sums[1], len(kind)
    last_device = devices if j == len(best) - 1 else useful_devices[j, 1] - 1  # the rest fits on those from here on
    are_equal = _have_equal_costs(chain)
    for step in range(-devices, j - start):
        i = j - 1 - step
        if step < 0:
            i = predecessor[j - 1, step, 0]
            if i < start:
                continue
        elif step == 0:
            for e in range(devices + 1):
                best[j, e] = np.nextafter(best[j, e], np.inf)
        least_cost = 0.0
        if are_equal:
            alone, collectives = work[j, 0] - work[i, 0], communication[j, 0] - communication[i, 0]
            load = pipeline_stage_load(chain, 1, 1, alone, collectives, 0.0, cross[i, :4], cross[i, 4:])
            least_cost = (ahead * work[i, 0] + count * load) * (1.0 - 1e-12)
        may_improve = False
        for d in range(useful_devices[i, 0], min(useful_devices[i, 1], last_device)):
            if max(best[i, d], least_cost) < best[j, d + 1] and best[i, d] <= bound:
                alone = work[j, kind[d]] - work[i, kind[d]]
                least = (ahead * work[i, kind[d]] + count * alone / run[d]) * (1.0 - 1e-12)
                if least <= bound:
                    for r in range(1, run[d] + 1):
                        may_improve = may_improve or least < best[j, d + r]
                if may_improve:
                    break
        if may_improve:
            relax(best, predecessor, chain, sums, i, j, cross[i, :4], cross[i, 4:], (ahead, count))
