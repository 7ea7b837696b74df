"""Random moves of a search: units of ops that move together, the state of a search, its moves and how to undo them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import Integers, inverse, offsets
from ...graph.kernels.jit import njit
from .assignment import make_assignment
from .model import Model
from .parameters import EVALUATION, EvaluationParameters, Moves
from .work import pad_arrays


class Units(NamedTuple):
    """Units: sets of ops that move together, numbered by their first op in topological order.

    The ops of unit `u` are `ops[ptr[u]:ptr[u+1]]`; `of` int32[n] is the unit of each op; `allowed` bool[units, D]."""

    ptr: NDArray[np.int64]
    ops: NDArray[np.int32]
    of: NDArray[np.int32]
    allowed: NDArray[np.bool_]


class State(NamedTuple):
    """The current and the best candidate of a search, changed in place.

    Each has int32[n] devices, positions of the ops in the order of priorities, and the inverse of these (`by_rank`: whether
    priorities count, see `Assignment`). `cost` float64[4]: current cost, best cost, best makespan, best overflow.
    `undo_op`, `undo_old`: the ops that the last move changed, and their previous devices or positions.
    """

    device: NDArray[np.int32]
    position: NDArray[np.int32]
    at: NDArray[np.int32]
    by_rank: bool
    best_device: NDArray[np.int32]
    best_position: NDArray[np.int32]
    cost: NDArray[np.float64]
    undo_op: NDArray[np.int32]
    undo_old: NDArray[np.int32]


def make_units(unit: Integers, position: Integers, allowed: NDArray[np.bool_]) -> Units:
    """Make units of the ops with equal labels `unit` int[n]; `position` int[n] is a topological order, `allowed` bool[n, D]."""
    labels = np.unique(unit, return_inverse=True)[1].reshape(-1)
    count = int(labels.max(initial=-1)) + 1
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, labels, position)
    of = inverse(np.argsort(first, kind="stable"))[labels].astype(np.int32)
    allowed_units = np.ones((count, allowed.shape[1]), dtype=np.bool_)
    np.logical_and.at(allowed_units, of, allowed)
    ops = np.lexsort((position, of)).astype(np.int32)
    return Units(offsets(of, count), ops, of, allowed_units)


def make_state(
    device: Integers, rank: NDArray[np.number] | None, parameters: EvaluationParameters = EVALUATION
) -> State:
    """Make a state whose current and best candidate are the given one, not yet evaluated (infinite costs)."""
    assignment, n = make_assignment(device, rank), len(device)
    undo = (np.empty(n, np.int32) for _ in range(2))
    best = assignment.device.copy(), assignment.position.copy(), np.full(4, np.inf)
    return pad_arrays(State(*assignment, *best, *undo), parameters)


@njit(cache=True, nogil=True)
def remember_if_best(s: State, cost: float, time: float, overflow_bytes: float) -> None:
    """Makes the current candidate the best one if it costs less."""
    if cost < s.cost[1]:
        s.cost[1], s.cost[2], s.cost[3] = cost, time, overflow_bytes
        s.best_device[:] = s.device
        s.best_position[:] = s.position


@njit(cache=True, nogil=True)
def back_to_best(s: State) -> None:
    """Make the best candidate the current one."""
    s.device[:] = s.best_device
    s.position[:] = s.best_position
    for i in range(len(s.at)):
        s.at[s.position[i]] = i
    s.cost[0] = s.cost[1]


@njit(cache=True, nogil=True)
def _neighbour(op: int, m: Model, rng: np.random.Generator) -> int:
    """Draw a producer or consumer of `op`; returns the op itself where it has none."""
    read = m.input_ptr[op + 1] - m.input_ptr[op]
    count = read + m.edge_ptr[op + 1] - m.edge_ptr[op]
    if count == 0:
        return op
    k = int(rng.random() * count)
    if k < read:
        return m.producer[m.inputs[m.input_ptr[op] + k]]
    return m.edge_to[m.edge_ptr[op] + k - read]


@njit(cache=True, nogil=True)
def reassign(u: int, d: int, count: int, units: Units, s: State) -> int:
    """Move unit `u` to device `d` and record the previous devices; returns `count` plus the number of ops moved."""
    for k in range(units.ptr[u], units.ptr[u + 1]):
        op = units.ops[k]
        s.undo_op[count] = op
        s.undo_old[count] = s.device[op]
        s.device[op] = d
        count += 1
    return count


@njit(cache=True, nogil=True)
def random_move(objective: Any, s: State, units: Units, overfull: bool, shares: Moves, rng: np.random.Generator) -> int:
    """Change the candidate at random; returns how many ops changed their device or, negative, their position.

    A unit goes to the device of a neighbour, to any device, or a run of units that follow each other in
    topological order goes from one device to another; under priorities, ops also move up or down.
    `overfull`: prefer units of a device that exceeds its memory. `shares`: frequencies of the moves (`parameters.Moves`).
    """
    m, w = objective.model, objective.work
    count, devices = len(units.ptr) - 1, len(m.limit)
    u = int(rng.random() * count)
    op = units.ops[units.ptr[u] + int(rng.random() * (units.ptr[u + 1] - units.ptr[u]))]
    if overfull:
        for _ in range(shares.overfull_tries):
            if w.peak[s.device[op]] > m.limit[s.device[op]]:
                break
            u = int(rng.random() * count)
            op = units.ops[units.ptr[u]]
    kind = rng.random()
    if s.by_rank and (kind < shares.order_share or devices == 1):
        return _shift(u, op, units, s, shares.whole_share, rng)
    if devices == 1:
        return 0
    current_device = s.device[op]
    d = s.device[_neighbour(op, m, rng)]
    if d == current_device or kind > 1.0 - shares.anywhere_share:
        d = int(rng.random() * (devices - 1))
        if d >= current_device:
            d += 1
    changed_count = 0
    length = 1
    if kind > 1.0 - shares.run_share:
        length = int(2.0 ** (rng.random() * np.log2(max(count, 2.0))))
    for v in range(u, min(u + length, count)):
        if units.allowed[v, d] and s.device[units.ops[units.ptr[v]]] == current_device:
            changed_count = reassign(v, d, changed_count, units, s)
    return changed_count


@njit(cache=True, nogil=True)
def _move_to_position(s: State, op: int, target: int) -> None:
    """Move `op` to position `target`; the ops in between shift by one position."""
    k = s.position[op]
    while k < target:
        shifted_op = s.at[k + 1]
        s.at[k] = shifted_op
        s.position[shifted_op] = k
        k += 1
    while k > target:
        shifted_op = s.at[k - 1]
        s.at[k] = shifted_op
        s.position[shifted_op] = k
        k -= 1
    s.at[target] = op
    s.position[op] = target


@njit(cache=True, nogil=True)
def _shift(u: int, op: int, units: Units, s: State, whole_share: float, rng: np.random.Generator) -> int:
    """Move one op, or its whole unit, up or down by a random number of positions; returns minus the number of ops moved."""
    n = len(s.position)
    step = int(2.0 ** (rng.random() * np.log2(max(n, 2.0))))
    if rng.random() < 0.5:
        step = -step
    first, last = units.ptr[u], units.ptr[u + 1]
    whole_unit = rng.random() < whole_share
    count = 0
    for k in range(first, last):
        # Upwards the last one first, so that ops of the unit do not push each other.
        unit_op = units.ops[last - 1 - (k - first)] if step > 0 else units.ops[k]
        if not whole_unit:
            unit_op = op
        s.undo_op[count] = unit_op
        s.undo_old[count] = s.position[unit_op]
        count += 1
        _move_to_position(s, unit_op, min(max(s.position[unit_op] + step, 0), n - 1))
        if not whole_unit:
            break
    return -count


@njit(cache=True, nogil=True)
def undo(s: State, changed_count: int) -> None:
    """Undo the last move, which changed `changed_count` ops."""
    for k in range(abs(changed_count) - 1, -1, -1):
        if changed_count < 0:
            _move_to_position(s, s.undo_op[k], s.undo_old[k])
        else:
            s.device[s.undo_op[k]] = s.undo_old[k]
