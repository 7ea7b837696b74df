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

`shave`: where neither "together" nor "paid" is known for an edge, each is assumed in turn and, if it contradicts, the
other is adopted. Complexity: a propagation is O((ops + edges) * rounds) plus units squared; the bisection takes about ten,
the shaving two per edge and round.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, allowed_devices, durations
from ..graph.csr import offsets
from ..graph.jit import njit

SLACK = 1e-9
"""Relative rounding error allowed before a contradiction counts."""

BIG = 48
"""Units that are compared pair by pair: the heaviest ones."""

REACH_OPS = 6000
"""Most ops for which it is stored who comes before whom."""

PRECISION = 0.002
ROUNDS = 30


@dataclass(frozen=True)
class MergeProblem:
    """Distinct edges in both directions with their costs, and what is known of units from the start."""

    order: NDArray[np.int32]
    p: NDArray[np.float64]
    held: NDArray[np.float64]
    before: tuple[Any, Any, Any, Any]
    after: tuple[Any, Any, Any, Any]
    unit: NDArray[np.int32]
    ancestors: NDArray[np.uint8]
    descendants: NDArray[np.uint8]
    devices: int
    memory: float
    queued: bool


def forced_merges(
    graph: OpGraph, cluster: Cluster, low: float, high: float, time_limit: float = 10.0, shave: bool = True
) -> float:
    """The largest makespan in [`low`, `high`] that is proven impossible (`low` where none is).

    `low` must be a valid bound already; `high` any makespan that is known to be reached, or infinity.

    >>> from baechi_lab import Cluster, Link, OpGraph
    >>> graph = OpGraph.from_edges([5, 10, 10, 5], [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1)])
    >>> forced_merges(graph, Cluster.uniform(2, link=Link(100.0, 0.0)), 20.0, 30.0) > 29.9
    True
    """
    if graph.n == 0 or cluster.n < 2 or not low < high:
        return low
    problem = merge_problem(graph, cluster)
    everything = float(problem.p.sum() + problem.after[2].sum())  # all ops and all transfers one after the other
    ceiling = high if np.isfinite(high) else everything
    until = time.perf_counter() + time_limit
    none = np.zeros(len(problem.before[1]), dtype=np.int8)
    proven = _bisect(problem, low, ceiling, until, lambda limit: _contradiction(problem, limit, none))
    if shave:
        proven = _climb(problem, proven, ceiling, until)
    return proven


def _climb(problem: MergeProblem, low: float, high: float, until: float) -> float:
    """Shaving costs most where nothing contradicts, so it climbs from the proven bound in steps."""
    step = 0.02
    while step >= PRECISION and low < high and time.perf_counter() < until:
        if _shaved(problem, min(low * (1.0 + step), high), until):
            low = min(low * (1.0 + step), high)
            step *= 1.5
        else:
            step *= 0.4
    return low


def _bisect(problem: MergeProblem, low: float, high: float, until: float, impossible: Any) -> float:
    while high - low > PRECISION * high and time.perf_counter() < until:
        middle = 0.5 * (low + high)
        if impossible(middle):
            low = middle
        else:
            high = middle
    return low


def paid_heads(problem: MergeProblem) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Heads and tails float64[n] by rules 1 and 5 alone, which hold for every makespan."""
    n = len(problem.p)
    head, tail = np.zeros(n), np.zeros(n)
    unit, big, apart = problem.unit.copy(), np.full(n, -1, np.int64), np.zeros((BIG, BIG), np.bool_)
    paid, reach = np.zeros(len(problem.before[1]), np.int8), np.zeros((0, 0), np.uint8)
    shared = (unit, big, apart, paid, *_group(unit), reach, problem.queued)
    _sweep(problem.order, False, problem.p, *problem.before, *shared, head)
    _sweep(problem.order, True, problem.p, *problem.after, *shared, tail)
    return head, tail


def merge_problem(graph: OpGraph, cluster: Cluster, reach: bool = True) -> MergeProblem:
    """The arrays of `graph` on `cluster`; `reach=False` leaves out who comes before whom, which takes longest."""
    n, off = graph.n, ~np.eye(cluster.n, dtype=bool)
    p = np.where(allowed_devices(graph, cluster), durations(graph, cluster), np.inf).min(axis=1)
    cost = cluster.latency_us[off].min() + cluster.us_per_byte[off].min() * graph.tensor_bytes[graph.edge_tensor]
    pair = graph.edge_source.astype(np.int64) * n + graph.consumers
    unique, place = np.unique(pair, return_inverse=True)
    queued = cluster.comm != "parallel"
    paid = np.zeros(len(unique))
    (np.add if queued else np.maximum).at(paid, place.reshape(-1), cost)
    source, target = (unique // n).astype(np.int32), (unique % n).astype(np.int32)
    first = np.full(len(graph.colocation_names) + 1, -1, dtype=np.int64)
    unit = np.arange(n, dtype=np.int32)
    for i in np.flatnonzero(graph.colocation >= 0).tolist():
        g = graph.colocation[i]
        if first[g] < 0:
            first[g] = i
        unit[i] = first[g]
    before = np.lexsort((source, target))
    edge = np.arange(len(unique), dtype=np.int32)
    ancestors = _reach(graph, source, target) if reach else np.zeros((0, 0), dtype=np.uint8)
    return MergeProblem(
        graph.order, p, graph.persistent_bytes.astype(np.float64),
        (offsets(target, n), source[before], paid[before], edge[before]), (offsets(source, n), target, paid, edge),
        unit, ancestors, np.ascontiguousarray(ancestors.T), cluster.n, float(cluster.memory_bytes.max()), queued,
    )  # fmt: skip


def _reach(graph: OpGraph, source: NDArray[np.int32], target: NDArray[np.int32]) -> NDArray[np.uint8]:
    """uint8[n, n]: 1 where the column's op comes before the row's op; empty for large graphs."""
    n = graph.n
    if n > REACH_OPS:
        return np.zeros((0, 0), dtype=np.uint8)
    found = np.zeros((n, n), dtype=np.uint8)
    pointer, by_target = offsets(target, n), np.argsort(target, kind="stable")
    for v in graph.order.tolist():
        for u in source[by_target[pointer[v] : pointer[v + 1]]].tolist():
            found[v] |= found[u]
            found[v, u] = 1
    return found


def _contradiction(problem: MergeProblem, limit: float, paid: NDArray[np.int8]) -> bool:
    unit = problem.unit.copy()
    n = len(problem.p)
    return not _propagate(limit, problem, unit, paid, np.zeros(n), np.zeros(n))


def _propagate(limit: float, x: MergeProblem, unit: Any, paid: Any, head: Any, tail: Any) -> bool:
    return bool(
        propagate(
            limit, x.order, x.p, x.held, *x.before, *x.after, unit, paid, head, tail, x.ancestors, x.descendants,
            x.devices, x.memory, x.queued, ROUNDS,
        )
    )  # fmt: skip


def _shaved(problem: MergeProblem, limit: float, until: float) -> bool:
    """Contradiction of `limit` with probing of single edges; False also when time runs out."""
    n, (_, target, cost, _) = len(problem.p), problem.after
    source = np.repeat(np.arange(n, dtype=np.int32), np.diff(problem.after[0]))
    unit, paid = problem.unit.copy(), np.zeros(len(target), dtype=np.int8)
    head, tail = np.zeros(n), np.zeros(n)
    if not _propagate(limit, problem, unit, paid, head, tail):
        return True
    changed = True
    while changed:
        changed = False
        tight = head[source] + problem.p[source] + cost + problem.p[target] + tail[target]
        for e in np.argsort(-tight, kind="stable").tolist():
            if time.perf_counter() > until:
                return False
            u, v = int(source[e]), int(target[e])
            if paid[e] or _root(unit, u) == _root(unit, v):
                continue
            assumed = paid.copy()
            assumed[e] = 1
            remote_possible = _propagate(limit, problem, unit.copy(), assumed, head.copy(), tail.copy())
            merged = unit.copy()
            _join(merged, u, v)
            local_possible = _propagate(limit, problem, merged, paid, head.copy(), tail.copy())
            if not remote_possible and not local_possible:
                return True
            if remote_possible and local_possible:
                continue
            changed = True
            if local_possible:
                _join(unit, u, v)
            else:
                paid[e] = 1
            if not _propagate(limit, problem, unit, paid, head, tail):
                return True
    return False


# -- compiled: one propagation -----------------------------------------------------------------------------------


@njit(cache=True)
def _root(unit: Any, i: int) -> int:
    while unit[i] != i:
        unit[i] = unit[unit[i]]
        i = unit[i]
    return i


@njit(cache=True)
def _join(unit: Any, i: int, k: int) -> bool:
    """Put the units of `i` and `k` together; False when they are already."""
    a, b = _root(unit, i), _root(unit, k)
    if a == b:
        return False
    if a < b:
        unit[b] = a
    else:
        unit[a] = b
    return True


@njit(cache=True)
def _serial(release: Any, length: Any, count: int) -> float:
    """Earliest end of `count` jobs on one machine (first come, first served; sorts them by release in place)."""
    end = 0.0
    for a in range(1, count):
        r, p = release[a], length[a]
        b = a - 1
        while b >= 0 and release[b] > r:
            release[b + 1], length[b + 1] = release[b], length[b]
            b -= 1
        release[b + 1], length[b + 1] = r, p
    for a in range(count):
        end = max(end, release[a]) + length[a]
    return end


@njit(cache=True)
def _sweep(
    order: Any, backwards: bool, p: Any, pointer: Any, near: Any, cost: Any, edge: Any, unit: Any, big: Any, apart: Any,
    paid: Any, mates_ptr: Any, mates: Any, reach: Any, queued: bool, head: Any,
) -> bool:  # fmt: skip
    """Raise `head` by rules 1, 3 (ops of the unit before it), 4 and 5; returns whether anything rose."""
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
        mine = unit[v]
        if len(reach) > 0 and mates_ptr[mine + 1] - mates_ptr[mine] > 1:
            for e in range(mates_ptr[mine], mates_ptr[mine + 1]):
                u = mates[e]
                if reach[v, u]:
                    release[local], length[local] = head[u], p[u]
                    local += 1
        for e in range(pointer[v], pointer[v + 1]):
            u = near[e]
            ended = head[u] + p[u]
            best = max(best, ended)
            if unit[u] == mine:
                if len(reach) == 0:
                    release[local], length[local] = head[u], p[u]
                    local += 1
                continue
            a, b = big[unit[u]], big[mine]
            if paid[edge[e]] or (a >= 0 and b >= 0 and apart[a, b]):
                best = max(best, ended + cost[e])
                continue
            open_key[free], open_node[free] = ended + cost[e], e
            free += 1
        if local > 0:
            best = max(best, _serial(release, length, local))
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
                serial = _serial(work_r, work_p, local + a + 1)
                choice = min(choice, max(serial, best, open_key[a + 1] if a + 1 < free else 0.0))
            if queued and not backwards and free > 1:
                choice = max(choice, _serial_or_queue(free, open_node, near, cost, head, p))
            best = max(best, choice)
        if best > head[v] * (1.0 + 1e-12) + 1e-12:
            head[v] = best
            rose = True
    return rose


@njit(cache=True)
def _serial_or_queue(free: int, nodes: Any, near: Any, cost: Any, head: Any, p: Any) -> float:
    """Rule 5: the smallest max(serial end, queue end) over fractional choices of what is local."""
    start_r, queue_r, serial = np.inf, np.inf, 0.0
    ratio = np.empty(free)
    for a in range(free):
        e = nodes[a]
        u = near[e]
        start_r = min(start_r, head[u])
        queue_r = min(queue_r, head[u] + p[u])
        serial += p[u]
        ratio[a] = cost[e] / p[u] if p[u] > 0.0 else np.inf
    queue = 0.0
    for a in np.argsort(ratio):  # send first what is cheap to send and long to compute
        e = nodes[a]
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


@njit(cache=True)
def _one_machine(members: Any, head: Any, p: Any, tail: Any) -> float:
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
def _group(unit: Any) -> Any:
    """Flatten `unit` to roots; CSR of members by root."""
    n = len(unit)
    pointer = np.zeros(n + 1, np.int64)
    for i in range(n):
        unit[i] = _root(unit, i)
    for i in range(n):
        pointer[unit[i] + 1] += 1
    for i in range(n):
        pointer[i + 1] += pointer[i]
    fill = pointer[:-1].copy()
    members = np.empty(n, np.int64)
    for i in range(n):
        members[fill[unit[i]]] = i
        fill[unit[i]] += 1
    return pointer, members


@njit(cache=True)
def _compare(
    limit: float, pointer: Any, members: Any, head: Any, p: Any, tail: Any, devices: int, held: Any, memory: float,
    big: Any, apart: Any,
) -> bool:  # fmt: skip
    """Rules 3, 4 and 7: fills `big` (root -> row, -1) and `apart`; False on a contradiction."""
    n = len(p)
    load = np.zeros(n)
    for u in range(n):
        big[u] = -1
        for e in range(pointer[u], pointer[u + 1]):
            load[u] += p[members[e]]
    tallest = np.argsort(-load)
    count = 0
    roots = np.empty(BIG, np.int64)
    for u in tallest:
        if pointer[u + 1] == pointer[u] or load[u] <= 0.0:
            continue
        if pointer[u + 1] - pointer[u] > 1:
            mine = members[pointer[u] : pointer[u + 1]]
            if _one_machine(mine, head, p, tail) > limit * (1.0 + SLACK):
                return False
            if held[mine].sum() > memory:
                return False
        if count < BIG:
            big[u] = count
            roots[count] = u
            count += 1
    apart[:, :] = False
    for a in range(count):
        for b in range(a + 1, count):
            u, w = roots[a], roots[b]
            both = np.concatenate((members[pointer[u] : pointer[u + 1]], members[pointer[w] : pointer[w + 1]]))
            first, last = head[both].min(), tail[both].min()
            far = load[u] + load[w] + first + last > limit * (1.0 + SLACK)
            if not far and load[u] + load[w] > 0.3 * limit:
                far = _one_machine(both, head, p, tail) > limit * (1.0 + SLACK)
            if not far:
                far = held[both].sum() > memory
            apart[a, b] = apart[b, a] = far
    return not _too_many_apart(apart, count, devices)


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


@njit(cache=True)
def _too_much_work(limit: float, head: Any, p: Any, tail: Any, devices: int) -> bool:
    """Rule 6 for windows whose ends are quantiles of heads and tails."""
    n = len(p)
    by_head, by_tail = np.sort(head), np.sort(tail)
    steps = 24
    for x in range(steps):
        a = by_head[(n - 1) * x // steps]
        for y in range(steps):
            b = by_tail[(n - 1) * y // steps]
            total = 0.0
            for i in range(n):
                if head[i] >= a and tail[i] >= b:
                    total += p[i]
            if total > devices * max(limit - a - b, 0.0) * (1.0 + SLACK) + SLACK:
                return True
    return False


@njit(cache=True)
def propagate(
    limit: float, order: Any, p: Any, held: Any, in_ptr: Any, in_near: Any, in_cost: Any, in_edge: Any, out_ptr: Any,
    out_near: Any, out_cost: Any, out_edge: Any, unit: Any, paid: Any, head: Any, tail: Any, ancestors: Any,
    descendants: Any, devices: int, memory: float, queued: bool, rounds: int,
) -> bool:  # fmt: skip
    """Apply all rules until nothing changes; `unit`, `head` and `tail` are updated. False: `limit` is impossible."""
    n = len(p)
    big, apart = np.full(n, -1, np.int64), np.zeros((BIG, BIG), np.bool_)
    most = limit * (1.0 + SLACK)
    for _ in range(rounds):
        pointer, members = _group(unit)
        rose = _sweep(
            order, False, p, in_ptr, in_near, in_cost, in_edge, unit, big, apart, paid, pointer, members, ancestors,
            queued, head,
        )  # fmt: skip
        rose |= _sweep(
            order, True, p, out_ptr, out_near, out_cost, out_edge, unit, big, apart, paid, pointer, members,
            descendants, queued, tail,
        )  # fmt: skip
        for i in range(n):
            if head[i] + p[i] + tail[i] > most:
                return False
        joined = False
        for u in range(n):
            for e in range(out_ptr[u], out_ptr[u + 1]):
                v = out_near[e]
                if head[u] + p[u] + out_cost[e] + p[v] + tail[v] > most:
                    if paid[out_edge[e]]:
                        return False
                    joined |= _join(unit, u, v)
        pointer, members = _group(unit)
        if not _compare(limit, pointer, members, head, p, tail, devices, held, memory, big, apart):
            return False
        for u in range(n):
            for e in range(out_ptr[u], out_ptr[u + 1]):
                if paid[out_edge[e]] and unit[u] == unit[out_near[e]]:
                    return False
        if not rose and not joined:
            break
    return not _too_much_work(limit, head, p, tail, devices)
