"""Rules 3, 4 and 7 of `bounds.merge`: what a unit, or two units together, take on one device."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph.kernels.jit import njit
from .problem import MergeProblem
from .sweep import BIG, Known

SLACK = 1e-9
"""Relative rounding error allowed before a contradiction counts."""


@njit(cache=True)
def compare(limit: float, x: MergeProblem, known: Known, units: Any) -> bool:
    """Rules 3, 4 and 7: fills `known.big` (root -> row, -1) and `known.apart`; False on a contradiction."""
    p, held, memory, (pointer, members) = x.p, x.held, x.memory, units
    head, tail, big, apart = known.head, known.tail, known.big, known.apart
    n = len(p)
    load = np.zeros(n)
    for u in range(n):
        big[u] = -1
        for e in range(pointer[u], pointer[u + 1]):
            load[u] += p[members[e]]
    tallest = np.argsort(-load)
    count = 0
    roots, begin, finish, size = np.empty(BIG, np.int64), np.empty(BIG), np.empty(BIG), np.empty(BIG)
    for u in tallest:
        if load[u] <= 0.0:
            break
        mine = members[pointer[u] : pointer[u + 1]]
        if len(mine) > 1:
            if one_machine(mine, head, p, tail) > limit * (1.0 + SLACK):
                return False
            if held[mine].sum() > memory:
                return False
        if count < BIG:
            big[u], roots[count] = count, u
            begin[count], finish[count], size[count] = head[mine].min(), tail[mine].min(), held[mine].sum()
            count += 1
    apart[:, :] = False
    for a in range(count):
        for b in range(a + 1, count):
            u, w = roots[a], roots[b]
            work = load[u] + load[w]
            far = work + min(begin[a], begin[b]) + min(finish[a], finish[b]) > limit * (1.0 + SLACK)
            far = far or size[a] + size[b] > memory
            if not far and work > 0.3 * limit:
                both = np.concatenate((members[pointer[u] : pointer[u + 1]], members[pointer[w] : pointer[w + 1]]))
                far = one_machine(both, head, p, tail) > limit * (1.0 + SLACK)
            apart[a, b] = apart[b, a] = far
    return not _too_many_apart(apart, count, x.devices)


@njit(cache=True)
def one_machine(members: Any, head: Any, p: Any, tail: Any) -> float:
    """Preemptive one-machine bound: the op with the longest tail among the released ones runs first."""
    count = len(members)
    by_release = np.argsort(head[members])
    left = np.empty(count)
    active = np.zeros(count, np.bool_)
    for a in range(count):
        left[a] = p[members[a]]
    now, bound, following, remaining = 0.0, 0.0, 0, count
    waiting = 0
    heap = np.empty(count, np.int64)
    while remaining > 0:
        if waiting == 0:
            now = max(now, head[members[by_release[following]]])
        while following < count and head[members[by_release[following]]] <= now:
            a = by_release[following]
            active[a] = True
            z = waiting  # heap by longest tail
            waiting += 1
            while z > 0 and tail[members[heap[(z - 1) >> 1]]] < tail[members[a]]:
                heap[z] = heap[(z - 1) >> 1]
                z = (z - 1) >> 1
            heap[z] = a
            following += 1
        a = heap[0]
        until = head[members[by_release[following]]] if following < count else np.inf
        run = min(left[a], until - now)
        now += run
        left[a] -= run
        if now < until or left[a] <= 0.0:
            bound = max(bound, now + tail[members[a]])
            remaining -= 1
            waiting -= 1
            b = heap[waiting]
            z = 0
            while True:
                child = 2 * z + 1
                if child >= waiting:
                    break
                if child + 1 < waiting and tail[members[heap[child + 1]]] > tail[members[heap[child]]]:
                    child += 1
                if tail[members[b]] >= tail[members[heap[child]]]:
                    break
                heap[z] = heap[child]
                z = child
            heap[z] = b
    return bound


@njit(cache=True)
def _too_many_apart(apart: Any, count: int, devices: int) -> bool:
    """Whether greedy search finds more than `devices` units that are apart pair by pair."""
    chosen = np.empty(BIG, np.int64)
    for first in range(count):
        size = 1
        chosen[0] = first
        for b in range(count):
            fits = b != first
            for a in range(size):
                fits = fits and apart[chosen[a], b]
            if fits:
                chosen[size] = b
                size += 1
                if size > devices:
                    return True
    return False
