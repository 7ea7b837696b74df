"""`forced-merges`: assume a makespan T, derive what every schedule within T must do, until something is impossible.

Every rule below holds for every schedule with a makespan of at most T on devices as fast as the fastest and with links
as cheap as the cheapest; so a contradiction proves that the optimum is above T. The largest such T, found by bisection,
is the bound. `head` is a lower bound on an op's start, `tail` on the time from its end to the end of the step, `p` its
duration, `c` the cost of an edge (of all its tensors where transfers queue, of the largest where they do not).

1. *Local or paid.* Each producer u of v is on v's device, then it runs there before v, one after the other with the
   other local ones, or it is not, then v starts no earlier than end(u) + c. Let the k producers with the largest end + c
   be local: v starts no earlier than min over k of max(serial time of these k, end + c of the next). Any other choice of
   local producers is no better: it either leaves one of the first k remote, or has to run more. (For tails reversed.)
2. *Together.* If head(u) + p(u) + c + p(v) + tail(v) > T, then u and v share a device (a unit, as colocation groups do).
3. *One machine.* The ops of a unit run one after the other: those before an op delay it, those after it push its tail,
   and the preemptive one-machine bound (Jackson's rule; Carlier 1982, doi:10.1016/S0377-2217(82)80007-6) must be within T.
4. *Apart.* Units that cannot share one machine within T are on different devices; more than D of them are impossible;
   an edge between two of them is paid.
5. *Serial or queue* (`sequential`, `duplex`). Transfers to one device queue there: producers that are not local come in
   one after the other. With x the part that is local, start(v) >= max(min head + sum x p, min end + sum (1 - x) c); the
   smallest value over fractional x is a lower bound.
6. *Work.* The ops of a window [a, T - b] (head >= a, tail >= b) fit D devices: sum p <= D (T - a - b).
7. *Memory.* A unit's persistent bytes fit some device.
8. *Staggered.* Devices start late and stop early by what is derived so far (`bounds.stagger`).

*Shaving.* Where neither "together" nor "paid" is known for an edge, each is assumed in turn and, if it contradicts, the
other is adopted. Complexity: a propagation is O((ops + edges) * rounds) plus units squared; the bisection takes about ten,
the shaving two per edge and round.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph
from ...graph.kernels.compiling import working_seconds
from ...graph.kernels.csr import Bools, Floats, Ints
from ...graph.kernels.heaps import pop, push
from ...graph.kernels.jit import njit
from .energy import GRID, heaviest
from .problem import MergeProblem, merge_problem
from .stagger import staggered_work_us
from .sweep import BIG, Deductions, no_deductions, paid_heads, sweep
from .units import group_units, join, root

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


IMPOSSIBLE, STABLE, OPEN = 0, 1, 2
"""Results of a propagation."""


@njit(cache=True)
def propagate(limit: float, x: MergeProblem, deductions: Deductions, rounds: int) -> int:
    """Apply all rules for some rounds; all of `deductions` but `is_paid` is updated.

    Returns IMPOSSIBLE (no schedule is within `limit`), STABLE (nothing changes any more) or OPEN.
    """
    p, out_ptr, out_near, out_cost, out_edge = x.p, x.after.pointer, x.after.near, x.after.cost, x.after.edge
    unit, is_paid, head, tail = deductions.unit, deductions.is_paid, deductions.head, deductions.tail
    n, state = len(p), OPEN
    limit_with_slack = limit * (1.0 + SLACK)
    for _ in range(rounds):
        units = group_units(unit)
        rose = sweep(x, False, deductions, units)
        rose |= sweep(x, True, deductions, units)
        for i in range(n):
            if head[i] + p[i] + tail[i] > limit_with_slack:
                return IMPOSSIBLE
        has_joined = False
        for u in range(n):
            for e in range(out_ptr[u], out_ptr[u + 1]):
                v = out_near[e]
                if head[u] + p[u] + out_cost[e] + p[v] + tail[v] > limit_with_slack:
                    if is_paid[out_edge[e]]:
                        return IMPOSSIBLE
                    has_joined |= join(unit, u, v)
        if not compare(limit, x, deductions, group_units(unit)):
            return IMPOSSIBLE
        for u in range(n):
            for e in range(out_ptr[u], out_ptr[u + 1]):
                if is_paid[out_edge[e]] and unit[u] == unit[out_near[e]]:
                    return IMPOSSIBLE
        if not rose and not has_joined:
            state = STABLE
            break
    stagger_bound = staggered_work_us(x, unit, head, tail)
    return (
        IMPOSSIBLE
        if stagger_bound > limit_with_slack or heaviest(head, p, tail, n, x.devices, GRID) > limit_with_slack
        else state
    )


__all__ = ["forced_merges", "merge_problem", "paid_heads"]

PRECISION = 0.002  # of the bound, relative
ROUNDS = 30
"""Most rounds of one propagation."""


def forced_merges(
    graph: OpGraph,
    cluster: Cluster,
    low: float,
    high: float,
    time_limit: float = 10.0,
    start: tuple[Floats, Floats] | None = None,
) -> float:
    """Returns the largest makespan in [`low`, `high`] that is proven impossible (`low` where none is).

    `low` must be a valid bound already; `high` any makespan that is known to be reached, or infinity.
    `start`: heads and tails float64[n] that hold for every schedule (default: zeros).
    """
    if graph.n == 0 or cluster.n < 2 or not low < high:
        return low
    problem = merge_problem(graph, cluster)
    everything = float(problem.p.sum() + problem.after[2].sum())  # all ops and all transfers one after the other
    ceiling = high if np.isfinite(high) else everything
    until = working_seconds() + time_limit
    start = start or (np.zeros(graph.n), np.zeros(graph.n))
    none = np.zeros(len(problem.before[1]), dtype=np.int8)
    head, tail = start

    def impossible(limit: float) -> bool:
        return not _propagate(limit, problem, problem.unit.copy(), none, head.copy(), tail.copy(), until)

    low = _bisect(low, ceiling, until, impossible)
    # Raise the proven bound in steps, because probing takes longest if there is no contradiction.
    step = 0.02
    while step >= PRECISION and low < ceiling and working_seconds() < until:
        if _contradiction_by_probing(problem, min(low * (1.0 + step), ceiling), until, start):
            low = min(low * (1.0 + step), ceiling)
            step *= 1.5
        else:
            step *= 0.4
    return low


def _bisect(low: float, high: float, until: float, impossible: Callable[[float], bool]) -> float:
    """Returns the largest makespan from `low` that is found to be impossible before `until`."""
    longest = 0.0  # so far, of one propagation in seconds: none that may take so long is begun too late
    while high - low > PRECISION * high and working_seconds() + longest < until:
        middle, began = 0.5 * (low + high), working_seconds()
        if impossible(middle):
            low = middle
        else:
            high = middle
        longest = max(longest, working_seconds() - began)
    return low


def _propagate(
    limit: float,
    x: MergeProblem,
    unit: NDArray[np.int32],
    is_paid: NDArray[np.int8],
    head: Floats,
    tail: Floats,
    until: float,
) -> bool:
    """False if `limit` is impossible; True also when time or `ROUNDS` run out."""
    deductions, last_seconds = no_deductions(unit, is_paid, head, tail), working_seconds()
    for _ in range(ROUNDS):
        state = propagate(limit, x, deductions, 1)
        now_seconds = working_seconds()
        if state != OPEN or now_seconds + (now_seconds - last_seconds) > until:
            break
        last_seconds = now_seconds
    return state != IMPOSSIBLE


def _contradiction_by_probing(problem: MergeProblem, limit: float, until: float, start: tuple[Floats, Floats]) -> bool:
    """Whether a makespan of `limit` contradicts itself when single edges are probed; False also when time runs out."""
    n, (_, target, cost, _) = len(problem.p), problem.after
    source = np.repeat(np.arange(n, dtype=np.int32), np.diff(problem.after[0]))
    unit, is_paid = problem.unit.copy(), np.zeros(len(target), dtype=np.int8)
    head, tail = start[0].copy(), start[1].copy()
    if not _propagate(limit, problem, unit, is_paid, head, tail, until):
        return True
    has_changed = True
    while has_changed:
        has_changed = False
        tight = head[source] + problem.p[source] + cost + problem.p[target] + tail[target]
        for e in np.argsort(-tight, kind="stable").tolist():
            if working_seconds() > until:
                return False
            u, v = int(source[e]), int(target[e])
            if is_paid[e] or root(unit, u) == root(unit, v):
                continue
            assumed_paid = is_paid.copy()
            assumed_paid[e] = 1
            remote_possible = _propagate(limit, problem, unit.copy(), assumed_paid, head.copy(), tail.copy(), until)
            merged_unit = unit.copy()
            join(merged_unit, u, v)
            local_possible = _propagate(limit, problem, merged_unit, is_paid, head.copy(), tail.copy(), until)
            if not remote_possible and not local_possible:
                return True
            if remote_possible and local_possible:
                continue
            has_changed = True
            if local_possible:
                join(unit, u, v)
            else:
                is_paid[e] = 1
            if not _propagate(limit, problem, unit, is_paid, head, tail, until):
                return True
    return False
