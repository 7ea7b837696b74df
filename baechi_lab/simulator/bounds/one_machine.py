"""Rules 3, 4 and 7 of `bounds.merge`: time and memory of one unit, or of two units, on one device."""

from __future__ import annotations

import numpy as np

from ...graph.kernels.csr import Bools, Floats, Ints
from ...graph.kernels.heaps import pop, push
from ...graph.kernels.jit import njit
from .problem import MergeProblem
from .sweep import BIG, Deductions

SLACK = 1e-9
"""Relative rounding error allowed before a contradiction counts."""


@njit(cache=True)
def compare(limit: float, x: MergeProblem, deductions: Deductions, units: tuple[Ints, Ints]) -> bool:
    """Rules 3, 4 and 7: fills `deductions.big` (root -> row, -1) and `deductions.are_separated`; False on a contradiction."""
    p, persistent_bytes, memory, (pointer, members) = x.p, x.persistent_bytes, x.memory, units
    head, tail, big, are_separated = deductions.head, deductions.tail, deductions.big, deductions.are_separated
    n = len(p)
    load = np.zeros(n)
    for u in range(n):
        big[u] = -1
        for e in range(pointer[u], pointer[u + 1]):
            load[u] += p[members[e]]
    tallest = np.argsort(-load)
    count = 0
    roots, release, finish, size = np.empty(BIG, np.int64), np.empty(BIG), np.empty(BIG), np.empty(BIG)
    for u in tallest:
        if load[u] <= 0.0:
            break
        own_members = members[pointer[u] : pointer[u + 1]]
        if len(own_members) > 1:
            if one_machine(own_members, head, p, tail) > limit * (1.0 + SLACK):
                return False
            if persistent_bytes[own_members].sum() > memory:
                return False
        if count < BIG:
            big[u], roots[count] = count, u
            release[count] = head[own_members].min()
            finish[count] = tail[own_members].min()
            size[count] = persistent_bytes[own_members].sum()
            count += 1
    are_separated[:, :] = False
    for a in range(count):
        for b in range(a + 1, count):
            u, w = roots[a], roots[b]
            work = load[u] + load[w]
            is_separated = work + min(release[a], release[b]) + min(finish[a], finish[b]) > limit * (1.0 + SLACK)
            is_separated = is_separated or size[a] + size[b] > memory
            if not is_separated and work > 0.3 * limit:
                joint_members = np.concatenate(
                    (members[pointer[u] : pointer[u + 1]], members[pointer[w] : pointer[w + 1]])
                )
                is_separated = one_machine(joint_members, head, p, tail) > limit * (1.0 + SLACK)
            are_separated[a, b] = are_separated[b, a] = is_separated
    return not _exceeds_devices(are_separated, count, x.devices)


@njit(cache=True)
def one_machine(members: Ints, head: Floats, p: Floats, tail: Floats) -> float:
    """Preemptive one-machine bound: the op with the longest tail among the released ones runs first."""
    count = len(members)
    by_release = np.argsort(head[members])
    remaining_us = p[members]
    now_us, bound, following, remaining = 0.0, 0.0, 0, count
    keys, codes, waiting = np.empty(count), np.empty(count, np.int64), 0  # heap of the released ops, longest tail first
    while remaining > 0:
        if waiting == 0:
            now_us = max(now_us, head[members[by_release[following]]])
        while following < count and head[members[by_release[following]]] <= now_us:
            a = by_release[following]
            waiting = push(keys, codes, 0, waiting, -tail[members[a]], a)
            following += 1
        a = codes[0]
        until = head[members[by_release[following]]] if following < count else np.inf
        run = min(remaining_us[a], until - now_us)
        now_us += run
        remaining_us[a] -= run
        if now_us < until or remaining_us[a] <= 0.0:
            bound = max(bound, now_us + tail[members[a]])
            remaining -= 1
            waiting = pop(keys, codes, 0, waiting)
    return bound


@njit(cache=True)
def _exceeds_devices(are_separated: Bools, count: int, devices: int) -> bool:
    """Whether a greedy search finds more than `devices` units that are separated pair by pair."""
    clique = np.empty(BIG, np.int64)
    for first in range(count):
        size = 1
        clique[0] = first
        for b in range(count):
            fits = b != first
            for a in range(size):
                fits = fits and are_separated[clique[a], b]
            if fits:
                clique[size] = b
                size += 1
                if size > devices:
                    return True
    return False
