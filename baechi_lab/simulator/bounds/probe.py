"""`probed-path`: heads and tails by probing one op at a time: what would have to hold if it started before H?

Rule 1 of `bounds.merge` asks which producers of an op v are on its device. Here all its nearest ancestors are asked at
once, so that leaving a device and coming back is paid for twice and whole neighbourhoods turn out to be serial.

Assume that v starts before H, on a device d. A *zone* is any set of ancestors of v; here, the last ones in topological order,
up to `zone` of them. u and w are ops of the zone, p(u) is a duration, and c the cost of an edge. Five rules follow:

- P1, starts: L(u) and R(u) (`start_on_device`, `start_elsewhere`) are lower bounds on u's start if it is on d, and if it is
  not. `local` and `remote` say whether either is still possible. A producer w of u that is on u's side of this question
  delays it by L(w) + p(w), or R(w) + p(w) (it may be on the same device); one on the other side delays it by its transfer
  too: R(w) + p(w) + c, or L(w) + p(w) + c. The smaller of what is possible counts. Outside of the zone: head(w) + p(w).
- P2, leaving: tau(u) is the longest path from u's end to v's start. pay(u) is the same if u is not on d: over every reader
  w, either w is on d, then c + p(w) + tau(w), or it is not, then p(w) + pay(w) at least; v itself is on d. An edge of a
  colocation group cannot be cut: c is infinite.
- P3, sides: if R(u) + p(u) + pay(u) >= H, then u is on d: R(u) becomes infinite. If L(u) + p(u) + tau(u) >= H, then it is
  not: L(u) becomes infinite. Neither possible is a contradiction.
- P4, serving: all u that must be on d run there before v, one after the other, so v starts no earlier than they end when
  served by L.
- P5, case split: a *fork* f of the zone is on d, or on another device e. In the second case P1 to P4 are asked of e: own(u)
  and other(u) (`start_with_fork`, `start_without_fork`) are lower bounds on u's start on e and elsewhere. If other(u) +
  p(u) + tau(u) >= H, then u is on e; if own(u) + p(u) + pay(u) >= H, it is not. What must be on e is served there one
  after the other and then paid for. With two devices, what is not on one is on the other. The smaller result of both cases
  counts.

These are repeated until nothing changes. A contradiction, or an end of at least H, proves head(v) >= H. With a smaller H
the same ops and more are forced, so where the ops that H forces end before H, at f say, f is proven as well. The
largest H is found by bisection. Durations are those on the fastest device and costs those of the cheapest link.

Complexity: O(zone edges) per round of a probe, about ten probes per op with slack. Tails are heads of the reversed graph.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.compiling import working_seconds
from ...graph.kernels.csr import Bools, Floats, Ints, inverse
from ...graph.kernels.heaps import pop, push
from ...graph.kernels.jit import njit
from .problem import MergeProblem
from .units import serial_end

STEPS = 8
"""Probes per op."""

ROUNDS = 10
"""Most rounds of a probe."""

FIRST = 1 / 64
"""Part of the range that must be proven before the rest is looked at: most ops have nothing to gain."""

FORKS = 3
"""Ops per zone whose device is asked for separately."""

ANYWHERE, SAME_DEVICE, OTHER_DEVICE = 0, 1, 2  # where a fork is assumed to run

CLOSE = 1e-4
"""Relative width at which the bisection stops."""

CHUNK = 256
"""Ops between two looks at the clock."""


def probe_heads(problem: MergeProblem, head: Floats, tail: Floats, zone: int, until: float = np.inf) -> None:
    """Raise valid heads and tails float64[n] in place, until the time `until` (`working_seconds`) at most.

    >>> from baechi_lab import Cluster, Link, OpGraph
    >>> from baechi_lab.simulator.bounds.problem import merge_problem
    >>> graph = OpGraph.from_edges([1, 9, 9, 1], [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1)])
    >>> problem = merge_problem(graph, Cluster.uniform(2, link=Link(4.0, 0.0)), reach=False)
    >>> head, tail = np.zeros(4), np.zeros(4)
    >>> probe_heads(problem, head, tail, zone=8)
    >>> head.round().tolist(), tail.round().tolist()  # a branch and the fork elsewhere: 1 + 9 + 4; both here: 1 + 9 + 9
    ([0.0, 1.0, 1.0, 14.0], [14.0, 1.0, 1.0, 0.0])
    """
    half = 0.5 * (working_seconds() + until)
    _probe_all(problem, head, zone, half)
    _probe_all(problem.reversed(), tail, zone, until)


def _probe_all(x: MergeProblem, head: Floats, zone: int, until: float) -> None:
    pointer, near, cost, _ = x.before
    reader = np.repeat(np.arange(len(x.order)), np.diff(pointer))
    cost = np.where(x.unit[near] == x.unit[reader], np.inf, cost)  # colocated: never cut
    graph = Upstream(x.order, inverse(x.order), x.p, pointer, near, cost, x.unit, head)
    for first in range(0, len(x.order), CHUNK):
        if working_seconds() > until:
            return
        probe(first, min(first + CHUNK, len(x.order)), graph, zone, x.devices)


class Upstream(NamedTuple):
    """The graph against its edges: `order` and its inverse `position`, the edges into each op, heads to be raised."""

    order: NDArray[np.int32]
    position: Ints
    p: Floats
    pointer: Ints
    near: NDArray[np.int32]
    cost: Floats
    unit: NDArray[np.int32]
    head: Floats


class Zone(NamedTuple):
    """The ops that are asked together: `op` int64[zone], last first; `slot` int64[n], an op's place in it or -1.

    `tau` float64[zone]: longest path from an op's end to the start of the first. `work` float64[7, zone] and `can`
    bool[4, zone] are the values of one probe.
    """

    op: Ints
    slot: Ints
    tau: Floats
    work: Floats
    can: Bools


@njit(cache=True)
def probe(first: int, last: int, graph: Upstream, zone_size: int, devices: int) -> None:
    """Raise the heads of the ops at the positions `first` to `last` - 1 of the order, with zones of `zone_size` ops."""
    order, p, pointer, near, head = graph.order, graph.p, graph.pointer, graph.near, graph.head
    n = len(p)
    slot, zone, forks = np.full(n, -1, np.int64), np.empty(zone_size, np.int64), np.empty(FORKS, np.int64)
    work = np.empty((7, zone_size))
    zone_state = Zone(zone, slot, np.empty(zone_size), work, np.empty((4, zone_size), np.bool_))
    waiting = (np.empty(n), np.empty(n, np.int64), np.full(n, -1, np.int64))
    for k in range(first, last):
        v = order[k]
        for e in range(pointer[v], pointer[v + 1]):
            head[v] = max(head[v], head[near[e]] + p[near[e]])
        size = _fill_zone(k, graph, zone_state, waiting)
        for a in range(1, size):
            work[0, size - 1 - a], work[1, size - 1 - a] = head[zone[a]], p[zone[a]]
        low, high = head[v], serial_end(work[0], work[1], size - 1) if size > 2 else 0.0
        if high - low > CLOSE * high:
            count = 0
            if pointer[v + 1] - pointer[v] > 1:
                count = _choose_forks(size, graph, zone_state, forks)
            head[v] = _bisect(low, high, size, graph, zone_state, forks[:count], devices)
        for a in range(size):
            slot[zone[a]] = -1


@njit(cache=True)
def _bisect(low: float, high: float, size: int, graph: Upstream, zone: Zone, forks: Ints, devices: int) -> float:
    """The largest start in [`low`, `high`] that is proven for the first op of the zone."""
    guess, least = high, low + FIRST * (high - low)
    for step in range(STEPS):
        if high - low <= CLOSE * high or (step > 1 and high <= least):
            break
        proven = _earliest(guess, ANYWHERE, 0, size, graph, zone, devices)
        for f in forks:
            if proven >= guess:
                break
            split = np.inf
            for assumption in (SAME_DEVICE, OTHER_DEVICE):
                if split > proven:
                    split = min(split, _earliest(guess, assumption, f, size, graph, zone, devices))
            proven = max(proven, split)
        low = max(low, min(proven, guess))
        if proven < guess:
            high = guess
        guess = least if step == 0 and least > low else 0.5 * (low + high)
    return low


@njit(cache=True)
def _choose_forks(size: int, graph: Upstream, zone: Zone, forks: Ints) -> int:
    """Choose the forks: ops of the zone with several readers whose transfers cost most."""
    pointer, near, cost, slot = graph.pointer, graph.near, graph.cost, zone.slot
    total, readers = zone.work[0], zone.work[1]
    total[:size] = readers[:size] = 0.0
    for a in range(size):
        w = zone.op[a]
        for e in range(pointer[w], pointer[w + 1]):
            s = slot[near[e]]
            if s >= 0 and cost[e] < np.inf:
                total[s] += cost[e]
                readers[s] += 1.0
    count = 0
    for k in range(len(forks)):
        best = -1
        for a in range(1, size):
            if readers[a] > 1.0 and total[a] > 0.0 and (best < 0 or total[a] > total[best]):
                best = a
        if best < 0:
            break
        forks[k], total[best] = best, 0.0
        count += 1
    return count


@njit(cache=True)
def _fill_zone(k: int, graph: Upstream, zone_state: Zone, heap: tuple[Floats, Ints, Ints]) -> int:
    """The op at position `k` and its last ancestors, last first, with longest paths `tau`; returns how many."""
    order, position, p, pointer, near = graph.order, graph.position, graph.p, graph.pointer, graph.near
    zone, slot, tau, zone_size = zone_state.op, zone_state.slot, zone_state.tau, len(zone_state.op)
    keys, codes, visited_by = heap
    size, waiting = 0, push(keys, codes, 0, 0, float(-k), k)
    visited_by[k] = k
    while waiting > 0 and size < zone_size:
        at = codes[0]
        waiting = pop(keys, codes, 0, waiting)
        w = order[at]
        zone[size], slot[w], tau[size] = w, size, 0.0
        size += 1
        for e in range(pointer[w], pointer[w + 1]):
            at = position[near[e]]
            if visited_by[at] != k:
                visited_by[at] = k
                waiting = push(keys, codes, 0, waiting, float(-at), at)
    for a in range(size):
        w = zone[a]
        end = tau[a] + (p[w] if a > 0 else 0.0)
        for e in range(pointer[w], pointer[w + 1]):
            s = slot[near[e]]
            if s >= 0:
                tau[s] = max(tau[s], end)
    return size


@njit(cache=True)
def _earliest(
    limit: float, assumption: int, fork: int, size: int, graph: Upstream, zone_state: Zone, devices: int
) -> float:
    """Infinite if the first op of the zone cannot start before `limit`, otherwise a proven earliest start below it.

    `assumption` says what else is assumed: `fork` (a place in the zone) is on the same device, or not, or nothing. Each round
    applies the rules P1 to P5 of the module's docstring once, until none of them changes a side. `local`, `remote`: whether
    an op can still be on v's device d, and elsewhere. `with_fork`, `without`: the same of the fork's device e.
    """
    p, unit, zone, tau, work, can = graph.p, graph.unit, zone_state.op, zone_state.tau, zone_state.work, zone_state.can
    start_on_device, start_elsewhere, pay = work[0], work[1], work[2]
    release, length, start_with_fork, start_without_fork = work[3], work[4], work[5], work[6]
    local, remote, with_fork, without = can[0], can[1], can[2], can[3]
    for a in range(size):
        local[a] = with_fork[a] = without[a] = True
        remote[a] = unit[zone[a]] != unit[zone[0]]
    if assumption == SAME_DEVICE:
        remote[fork] = False
    if assumption == OTHER_DEVICE:
        local[fork] = without[fork] = with_fork[0] = False
        if not remote[fork]:
            return np.inf
    proven = 0.0
    for _ in range(ROUNDS):
        _pay(size, graph, zone_state, local, remote, pay)  # P2
        _starts(size, graph, zone_state, local, remote, start_on_device, start_elsewhere)  # P1
        if start_on_device[0] >= limit:
            return np.inf
        has_changed, count, proven = False, 0, max(proven, start_on_device[0])
        # P3: which side each op is on. Ops are taken nearly in the order of their releases, for P4.
        for a in range(size - 1, 0, -1):
            u = zone[a]
            if remote[a] and start_elsewhere[a] + p[u] + pay[a] >= limit:
                remote[a], has_changed = False, True
            if local[a] and start_on_device[a] + p[u] + tau[a] >= limit:
                local[a], has_changed = False, True
            if not remote[a]:
                if not local[a]:
                    return np.inf
                release[count], length[count] = start_on_device[a], p[u]
                count += 1
        proven = max(proven, serial_end(release, length, count))  # P4
        # P5: the fork is on another device e.
        if assumption == OTHER_DEVICE and proven < limit:
            # What is on d is not on e; of two devices, what is not on d is on e.
            for a in range(size - 1, 0, -1):
                if not remote[a]:
                    with_fork[a] = False
                elif not local[a] and devices == 2:
                    without[a] = False
            _starts(size, graph, zone_state, with_fork, without, start_with_fork, start_without_fork)
            count, least = 0, np.inf
            # P3 asked of e, and what it says about d.
            for a in range(size - 1, 0, -1):
                u = zone[a]
                if without[a] and start_without_fork[a] + p[u] + tau[a] >= limit:
                    without[a], has_changed = False, True
                if with_fork[a] and start_with_fork[a] + p[u] + pay[a] >= limit:
                    with_fork[a], has_changed = False, True
                if not with_fork[a]:
                    if not without[a]:
                        return np.inf
                    if devices == 2 and remote[a]:
                        remote[a], has_changed = False, True
                if not without[a]:
                    if local[a]:
                        local[a], has_changed = False, True
                    release[count], length[count] = start_with_fork[a], p[u]
                    least = min(least, pay[a])
                    count += 1
            if count > 0:  # P4 asked of e; the way to d is paid for after it
                proven = max(proven, serial_end(release, length, count) + least)
        if proven >= limit:
            return np.inf
        if not has_changed:
            break
    return proven


@njit(cache=True)
def _pay(size: int, graph: Upstream, zone_state: Zone, local: Bools, remote: Bools, pay: Floats) -> None:
    """Sets pay(u) for the zone's ops, from the last to the first.

    It is the least time from an op's end on another device to the start of the zone's first op.
    """
    p, pointer, near, cost = graph.p, graph.pointer, graph.near, graph.cost
    zone, slot, tau = zone_state.op, zone_state.slot, zone_state.tau
    pay[:size] = 0.0
    for a in range(size):
        w = zone[a]
        work = p[w] if a > 0 else 0.0
        for e in range(pointer[w], pointer[w + 1]):
            s = slot[near[e]]
            if s >= 0:
                least = cost[e] + work + tau[a] if local[a] else np.inf
                if remote[a] and a > 0:
                    least = min(least, work + pay[a])
                pay[s] = max(pay[s], least)


@njit(cache=True)
def _starts(
    size: int, graph: Upstream, zone_state: Zone, local: Bools, remote: Bools, on_device: Floats, elsewhere: Floats
) -> None:
    """Sets `on_device` to L(u) and `elsewhere` to R(u), from the first op of the zone to the last; infinite where impossible."""
    p, head, zone, slot = graph.p, graph.head, zone_state.op, zone_state.slot
    pointer, near, cost = graph.pointer, graph.near, graph.cost
    for a in range(size - 1, -1, -1):
        u = zone[a]
        on_device[a] = elsewhere[a] = head[u]
        for e in range(pointer[u], pointer[u + 1]):
            w = near[e]
            s = slot[w]
            if s < 0:
                on_device[a] = max(on_device[a], head[w] + p[w])
                elsewhere[a] = max(elsewhere[a], head[w] + p[w])
                continue
            end_on_device, end_elsewhere = on_device[s] + p[w], elsewhere[s] + p[w]
            on_device[a] = max(on_device[a], min(end_on_device, end_elsewhere + cost[e]))
            elsewhere[a] = max(elsewhere[a], min(end_elsewhere, end_on_device + cost[e]))
        if not local[a]:
            on_device[a] = np.inf
        if not remote[a]:
            elsewhere[a] = np.inf
