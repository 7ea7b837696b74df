"""Simulated annealing over device assignments and priorities, compiled as one loop.

State: a device per unit (a set of ops that move together: a colocation group, or a cluster of them on a coarser level)
and a rank per op. Cost: `weight[0] * makespan + weight[1] * overflow + weight[2] * transfers` (microseconds, bytes,
microseconds), all from `evaluation.evaluate`. What is remembered as best pays `weight[3]` per byte of overflow: a walk with a
small `weight[1]` may pass through candidates that exceed a limit, on the way between two that do not.

The threshold that a candidate must meet is drawn before it is simulated (Metropolis: accept iff
`cost <= current - temperature * log(u)`), so that a simulation stops as soon as it is bound to exceed it.

Source: Kirkpatrick, Gelatt and Vecchi 1983, doi:10.1126/science.220.4598.671. Complexity: one simulation per step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import offsets
from ...graph.kernels.jit import njit
from ..evaluation.evaluate import Model, evaluate, evaluate_after, overflow, positions
from ..evaluation.marks import PROBE, WORTH, accept_marks, last_mark_before
from ..evaluation.model import apart


class Units(NamedTuple):
    """What moves together: ops of unit `u` are `ops[ptr[u]:ptr[u+1]]`; `of` int32[n] is the unit of each op;
    `allowed` bool[units, D]; units are numbered by their first op in topological order."""

    ptr: Any
    ops: Any
    of: Any
    allowed: Any


class State(NamedTuple):
    """Current and best candidate: int32[n] devices, position of each op in the order of priorities, and its inverse.

    `cost` float64[4]: current cost, best cost, best makespan, best overflow; `undo_op`, `undo_old`: what the last move
    changed, and what it was.
    """

    device: Any
    position: Any
    at: Any
    best_device: Any
    best_position: Any
    cost: Any
    undo_op: Any
    undo_old: Any


class Samples(NamedTuple):
    """Costs to be robust against: `table` float64[K, n, D], `latency` and `per_byte` float64[K, D, D]; the time that
    counts is the one at position `place` of the K sorted ones. With K = 0 the model's own costs count."""

    table: Any
    latency: Any
    per_byte: Any
    place: int


def no_samples(operators: int, devices: int) -> Samples:
    """The model's own costs."""
    links = np.empty((0, devices, devices))
    return Samples(np.empty((0, operators, devices)), links, links, 0)


def make_units(unit: NDArray[Any], position: NDArray[Any], allowed: NDArray[np.bool_]) -> Units:
    """Units from any labels int[n]; `position` int[n] is a topological order, `allowed` bool[n, D] per op."""
    labels = np.unique(unit, return_inverse=True)[1].reshape(-1)
    count = int(labels.max(initial=-1)) + 1
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, labels, position)
    number = np.empty(count, dtype=np.int32)
    number[np.argsort(first, kind="stable")] = np.arange(count, dtype=np.int32)
    of = number[labels].astype(np.int32)
    able = np.ones((count, allowed.shape[1]), dtype=np.bool_)
    np.logical_and.at(able, of, allowed)
    ops = np.lexsort((position, of)).astype(np.int32)
    return Units(offsets(of, count), ops, of, able)


def make_state(device: NDArray[Any], rank: NDArray[Any] | None) -> State:
    """A state whose current and best candidate are the given one, not yet evaluated (costs infinite)."""
    n = len(device)
    now = np.array(device, dtype=np.int32)
    position, at = positions(rank, n)
    undo = (np.empty(n, np.int32) for _ in range(2))
    return apart(State(now, position, at, now.copy(), position.copy(), np.full(4, np.inf), *undo))


@njit(cache=True, nogil=True)
def _sampled(m: Any, w: Any, s: Any, samples: Any, by_rank: bool, track: bool, cutoff: float, most: float) -> Any:
    """Makespan at position `place` among the samples, and the worst overflow; infinite once it must exceed `cutoff`."""
    count = len(samples.table)
    times, worst, late = np.empty(count), 0.0, 0
    for k in range(count):
        sample = Model(
            samples.table[k], m.tail, m.degree, m.sources, m.edge_ptr, m.edge_to, m.edge_tensor, m.ready_to, m.input_ptr,
            m.inputs, m.producer,
            m.size_bytes, m.made, m.unread, m.temp, m.persistent, m.limit, samples.latency[k], samples.per_byte[k], m.comm,
        )  # fmt: skip
        times[k] = evaluate(sample, w, s.device, s.position, s.at, by_rank, track, np.inf, most)
        late += times[k] > cutoff
        if late > count - 1 - samples.place:
            return np.inf, np.inf
        if track:
            worst = max(worst, overflow(m, w))
    return np.sort(times)[samples.place], worst


@njit(cache=True, nogil=True)
def candidate_cost(
    m: Any, w: Any, s: Any, samples: Any, by_rank: bool, track: bool, weight: Any, threshold: float, begin: int, keep: bool
) -> Any:  # fmt: skip
    """Cost, makespan and overflow of the current candidate; infinite cost once it must exceed `threshold`.

    `begin`, `keep`: see `evaluate_after`.
    """
    cutoff = threshold / weight[0] if weight[0] > 0.0 else np.inf
    most = threshold / weight[1] if weight[1] > 0.0 else np.inf
    if len(samples.table) > 0:
        time, over = _sampled(m, w, s, samples, by_rank, track, cutoff, most)
        return weight[0] * time + weight[1] * over, time, over
    time = evaluate_after(m, w, s.device, s.position, s.at, by_rank, track, cutoff, most, begin, keep)
    if time == np.inf:
        return np.inf, time, np.inf
    over = overflow(m, w) if track else 0.0
    return weight[0] * time + weight[1] * over + weight[2] * w.moved[0], time, over


@njit(cache=True, nogil=True)
def settle(m: Any, w: Any, s: Any, samples: Any, by_rank: bool, track: bool, weight: Any) -> None:
    """Evaluate the current candidate and make it the best one where it is."""
    cost, time, over = candidate_cost(m, w, s, samples, by_rank, track, weight, np.inf, -1, False)
    s.cost[0] = cost
    final = cost + (weight[3] - weight[1]) * over
    if final < s.cost[1]:
        remember(s, final, time, over)


@njit(cache=True, nogil=True)
def remember(s: Any, cost: float, time: float, over: float) -> None:
    """The current candidate is the best one; `cost` is its own, with what a best one pays per byte of overflow."""
    s.cost[1], s.cost[2], s.cost[3] = cost, time, over
    s.best_device[:] = s.device
    s.best_position[:] = s.position


@njit(cache=True, nogil=True)
def back_to_best(s: Any) -> None:
    """Continue from the best candidate."""
    s.device[:] = s.best_device
    s.position[:] = s.best_position
    for i in range(len(s.at)):
        s.at[s.position[i]] = i
    s.cost[0] = s.cost[1]


@njit(cache=True, nogil=True)
def _neighbour(op: int, m: Any, rng: Any) -> int:
    """A random producer or consumer of `op`; the op itself where it has none."""
    read = m.input_ptr[op + 1] - m.input_ptr[op]
    count = read + m.edge_ptr[op + 1] - m.edge_ptr[op]
    if count == 0:
        return op
    k = int(rng.random() * count)
    if k < read:
        return m.producer[m.inputs[m.input_ptr[op] + k]]
    return m.edge_to[m.edge_ptr[op] + k - read]


@njit(cache=True, nogil=True)
def reassign(u: int, d: int, count: int, units: Any, s: Any) -> int:
    """Move unit `u` to `d`, remembering how to undo it; returns the number of ops moved so far."""
    for k in range(units.ptr[u], units.ptr[u + 1]):
        op = units.ops[k]
        s.undo_op[count] = op
        s.undo_old[count] = s.device[op]
        s.device[op] = d
        count += 1
    return count


@njit(cache=True, nogil=True)
def _move(m: Any, w: Any, units: Any, s: Any, by_rank: bool, overfull: bool, rng: Any) -> int:
    """Change the candidate at random; returns how many ops got another device or, negative, another position.

    A unit goes to the device of a neighbour, to any device, or a run of units that follow each other in
    topological order goes from one device to another; under priorities, ops also move up or down.
    `overfull`: prefer units of a device that exceeds its memory.
    """
    count, devices = len(units.ptr) - 1, len(m.limit)
    u = int(rng.random() * count)
    op = units.ops[units.ptr[u] + int(rng.random() * (units.ptr[u + 1] - units.ptr[u]))]
    if overfull:
        for _ in range(8):
            if w.peak[s.device[op]] > m.limit[s.device[op]]:
                break
            u = int(rng.random() * count)
            op = units.ops[units.ptr[u]]
    kind = rng.random()
    if by_rank and (kind < 0.35 or devices == 1):
        return _shift(u, op, units, s, rng)
    if devices == 1:
        return 0
    home = s.device[op]
    d = s.device[_neighbour(op, m, rng)]
    if d == home or kind > 0.75:
        d = int(rng.random() * (devices - 1))
        if d >= home:
            d += 1
    changed = 0
    length = 1
    if kind > 0.9:
        length = int(2.0 ** (rng.random() * np.log2(max(count / 4.0, 2.0))))
    for v in range(u, min(u + length, count)):
        if units.allowed[v, d] and s.device[units.ops[units.ptr[v]]] == home:
            changed = reassign(v, d, changed, units, s)
    return changed


@njit(cache=True, nogil=True)
def _put(s: Any, op: int, target: int) -> None:
    """Move `op` to position `target`; those in between move by one."""
    k = s.position[op]
    while k < target:
        other = s.at[k + 1]
        s.at[k] = other
        s.position[other] = k
        k += 1
    while k > target:
        other = s.at[k - 1]
        s.at[k] = other
        s.position[other] = k
        k -= 1
    s.at[target] = op
    s.position[op] = target


@njit(cache=True, nogil=True)
def _shift(u: int, op: int, units: Any, s: Any, rng: Any) -> int:
    """Move one op, or its whole unit, up or down by a number of positions of any magnitude; returns -1 * ops moved."""
    n = len(s.position)
    step = int(2.0 ** (rng.random() * np.log2(max(n, 2.0))))
    if rng.random() < 0.5:
        step = -step
    first, last = units.ptr[u], units.ptr[u + 1]
    whole = rng.random() < 0.5
    count = 0
    for k in range(first, last):
        # Upwards the last one first, so that ops of the unit do not push each other.
        mine = units.ops[last - 1 - (k - first)] if step > 0 else units.ops[k]
        if not whole:
            mine = op
        s.undo_op[count] = mine
        s.undo_old[count] = s.position[mine]
        count += 1
        _put(s, mine, min(max(s.position[mine] + step, 0), n - 1))
        if not whole:
            break
    return -count


@njit(cache=True, nogil=True)
def undo(s: Any, changed: int) -> None:
    """Take the last move back."""
    for k in range(abs(changed) - 1, -1, -1):
        if changed < 0:
            _put(s, s.undo_op[k], s.undo_old[k])
        else:
            s.device[s.undo_op[k]] = s.undo_old[k]


@njit(cache=True, nogil=True)
def anneal(
    m: Any, w: Any, units: Any, s: Any, samples: Any, by_rank: bool, track: bool, weight: Any, hot: float, cold: float,
    steps: int, until_feasible: bool, rng: Any,
) -> int:  # fmt: skip
    """Up to `steps` simulations while the temperature falls from `hot` to `cold` (in units of cost, geometrically).

    Ends early, where `until_feasible`, once no device exceeds its memory. Returns the number of simulations.
    """
    done = 0
    ratio = cold / hot if hot > 0.0 else 1.0
    begin, passed, asked, marked = -1, 0, 0, len(samples.table) == 0 and not track
    if marked:
        candidate_cost(m, w, s, samples, by_rank, track, weight, np.inf, begin, marked)
        accept_marks(w, begin)
    while done < steps:
        if until_feasible and s.cost[3] <= 0.0:
            break
        done += 1
        overfull = weight[1] > 0.0 and s.cost[3] > 0.0
        changed = _move(m, w, units, s, by_rank, overfull, rng)
        if changed == 0:
            continue
        temperature = hot * ratio ** (done / steps)
        threshold = s.cost[0] - temperature * np.log(1.0 - rng.random())
        if marked:
            begin = last_mark_before(m, w, s.device, s.undo_op, changed)
            passed += begin + 1
            asked += 1
            if asked == PROBE and passed < WORTH * len(w.mark_bank) * PROBE:
                begin, marked = -1, False
        cost, time, over = candidate_cost(m, w, s, samples, by_rank, track, weight, threshold, begin, marked)
        if cost <= threshold:
            s.cost[0] = cost
            if marked:
                accept_marks(w, begin)
            final = cost + (weight[3] - weight[1]) * over
            if final < s.cost[1]:
                remember(s, final, time, over)
        else:
            undo(s, changed)
    return done
