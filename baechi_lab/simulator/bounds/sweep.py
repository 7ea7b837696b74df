"""One sweep over a graph that raises heads (or, backwards, tails) by rules 1, 3, 4 and 5 of `bounds.merge`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import Bools, Floats, Ints
from ...graph.kernels.heaps import pop, push
from ...graph.kernels.jit import has_few_entries, njit
from .problem import MergeProblem
from .units import group_units, serial_end

BIG = 48
"""Units that are compared pair by pair: the heaviest ones."""


class Deductions(NamedTuple):
    """The facts that were derived from one assumed makespan.

    Args:
        unit: int32[n], a union-find.
        is_paid: int8[E], 1 if an edge must cross devices.
        head, tail: float64[n].
        big: int64[n], the row of each heavy unit in `are_separated`; -1 for others.
        are_separated: bool[BIG, BIG], which units are on different devices.
    """

    unit: NDArray[np.int32]
    is_paid: NDArray[np.int8]
    head: Floats
    tail: Floats
    big: Ints
    are_separated: Bools


def no_deductions(unit: NDArray[np.int32], is_paid: NDArray[np.int8], head: Floats, tail: Floats) -> Deductions:
    """The state before the first round: no pair of units is separated."""
    return Deductions(unit, is_paid, head, tail, np.full(len(unit), -1, np.int64), np.zeros((BIG, BIG), np.bool_))


def paid_heads(problem: MergeProblem) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Heads and tails float64[n] by rules 1 and 5 alone, which hold for every makespan."""
    n, reach = len(problem.p), np.zeros((0, 0), np.uint8)
    unit, is_paid = problem.unit.copy(), np.zeros(len(problem.before.near), np.int8)
    deductions = no_deductions(unit, is_paid, np.zeros(n), np.zeros(n))
    x = problem._replace(ancestors=reach, descendants=reach)
    units = group_units(unit)
    sweep(x, False, deductions, units)
    sweep(x, True, deductions, units)
    return deductions.head, deductions.tail


@njit(cache=True, interpreted_if=has_few_entries)
def sweep(x: MergeProblem, backwards: bool, deductions: Deductions, units: tuple[Ints, Ints]) -> bool:
    """Raise heads (backwards: tails) by rules 1, 3 (ops of the unit before it), 4 and 5; returns whether anything rose.

    `units` are the members of each unit, as `group_units` gives them.
    """
    order, p, has_queues, (mates_ptr, mates) = x.order, x.p, x.has_queues, units
    unit, is_paid, big, are_separated = deductions.unit, deductions.is_paid, deductions.big, deductions.are_separated
    head, reach = (deductions.tail, x.descendants) if backwards else (deductions.head, x.ancestors)
    pointer, near, cost, edge = x.after if backwards else x.before
    n = len(p)
    rose = False
    widest = 1
    for v in range(n):
        size = mates_ptr[unit[v] + 1] - mates_ptr[unit[v]]
        widest = max(widest, pointer[v + 1] - pointer[v] + (size if len(reach) > 0 else 0))
    release, length = np.empty(widest), np.empty(widest)
    open_key, open_node = np.empty(widest), np.empty(widest, np.int64)
    work_r, work_p = np.empty(widest), np.empty(widest)
    for k in range(n):
        v = order[n - 1 - k] if backwards else order[k]
        best, local, free = head[v], 0, 0
        own_unit = unit[v]
        if len(reach) > 0 and mates_ptr[own_unit + 1] - mates_ptr[own_unit] > 1:
            for e in range(mates_ptr[own_unit], mates_ptr[own_unit + 1]):
                u = mates[e]
                if reach[v, u]:
                    release[local], length[local] = head[u], p[u]
                    local += 1
        for e in range(pointer[v], pointer[v + 1]):
            u = near[e]
            end_us = head[u] + p[u]
            best = max(best, end_us)
            if unit[u] == own_unit:
                if len(reach) == 0:
                    release[local], length[local] = head[u], p[u]
                    local += 1
                continue
            a, b = big[unit[u]], big[own_unit]
            if is_paid[edge[e]] or (a >= 0 and b >= 0 and are_separated[a, b]):
                best = max(best, end_us + cost[e])
                continue
            open_key[free], open_node[free] = end_us + cost[e], e
            free += 1
        if local > 0:
            best = max(best, serial_end(release, length, local))
        if free > 0:
            for a in range(1, free):  # largest end + cost first
                key, node = open_key[a], open_node[a]
                b = a - 1
                while b >= 0 and open_key[b] < key:
                    open_key[b + 1], open_node[b + 1] = open_key[b], open_node[b]
                    b -= 1
                open_key[b + 1], open_node[b + 1] = key, node
            choice = max(best, open_key[0])
            for a in range(free):
                if a > 0 and best >= choice:
                    break
                u = near[open_node[a]]
                release[local + a], length[local + a] = head[u], p[u]
                for z in range(local + a + 1):
                    work_r[z], work_p[z] = release[z], length[z]
                serial = serial_end(work_r, work_p, local + a + 1)
                choice = min(choice, max(serial, best, open_key[a + 1] if a + 1 < free else 0.0))
            if has_queues and not backwards and free > 1:
                choice = max(choice, serial_or_queue(free, open_node, near, cost, head, p))
            best = max(best, choice)
        if best > head[v] * (1.0 + 1e-12) + 1e-12:
            head[v] = best
            rose = True
    return rose


@njit(cache=True)
def serial_or_queue(free: int, nodes: Ints, near: NDArray[np.int32], cost: Floats, head: Floats, p: Floats) -> float:
    """Returns rule 5's bound: the smallest max(serial end, queue end) over fractional choices of local producers."""
    start_r, queue_r, serial = np.inf, np.inf, 0.0
    ratio, place, size = np.empty(free), np.empty(free, np.int64), 0
    for a in range(free):
        e = nodes[a]
        u = near[e]
        start_r = min(start_r, head[u])
        queue_r = min(queue_r, head[u] + p[u])
        serial += p[u]
        size = push(ratio, place, 0, size, cost[e] / p[u] if p[u] > 0.0 else np.inf, a)
    queue = 0.0
    while size > 0:  # send first what is cheap to send and long to compute
        e = nodes[place[0]]
        size = pop(ratio, place, 0, size)
        work = p[near[e]]
        if start_r + serial - work >= queue_r + queue + cost[e]:
            serial -= work
            queue += cost[e]
            continue
        # Part x of it is sent: start_r + serial - x work = queue_r + queue + x cost.
        total = work + cost[e]
        x = (start_r + serial - queue_r - queue) / total if total > 0.0 else 0.0
        x = min(max(x, 0.0), 1.0)
        return max(start_r + serial - x * work, queue_r + queue + x * cost[e])
    return max(start_r + serial, queue_r + queue)
