"""The best schedule of a small graph, by trying every placement and every order of its ops that no bound rules out.

Idea: a placement is built op by op, in topological order. It is dropped once its longest path, with transfers, or the
work of one device takes as long as the best known schedule. For each complete placement all schedules are tried. Devices
never idle, so a schedule is a choice among ready ops whenever a device is free. Starting from the order by longest path to
the end, each choice is replaced by each other op that was ready then, and the rest is simulated again
(`evaluation.evaluate`). Ops that start before a choice do not depend on it. So a choice is skipped where these ops already
prove that the step is no shorter.

Devices that can be exchanged without changing any schedule are used in the order of their index. With three devices or more
whose transfers queue, this holds only where no tensor has readers in two groups: copies for two devices leave in the order of the
devices' indices.

Complexity: exponential; `max_simulations` simulations end the search. Source: branch and bound over active decisions, as in
Brucker, Jurisch and Sievers 1994, doi:10.1016/0166-218X(94)90204-6.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, Placement
from ...graph.kernels.csr import inverse
from ...graph.kernels.jit import njit
from ...simulator.kernel import PARALLEL, SEQUENTIAL
from ..problem import allowed_group_devices, groups_of
from .assignment import Assignment, Limits, make_assignment
from .evaluate import evaluate
from .model import SURELY, Model, make_model, memory_matters
from .work import Work, make_work


class Enumeration(NamedTuple):
    """The best placement with its order (None: no step is shorter than the known one), and whether all were tried."""

    placement: Placement | None
    makespan_us: float
    complete: bool
    simulations: int


def best_schedule(
    graph: OpGraph, cluster: Cluster, known_us: float = np.inf, max_simulations: int = 20_000
) -> Enumeration:
    """Find the shortest step of all placements and orders that fit the memory, if it is shorter than `known_us`.

    The search ends after `max_simulations` simulations; a device tried for an op counts as an eighth of a simulation.

    >>> from baechi_lab import Link
    >>> graph = OpGraph.from_edges([5, 10, 10, 5], [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1)])
    >>> best = best_schedule(graph, Cluster.uniform(2, link=Link(2.0, 0.0)))
    >>> best.makespan_us, best.complete    # 5, send 2, 10 beside 10 and send 2, 5
    (22.0, True)
    """
    if graph.n == 0:
        return Enumeration(None, known_us, True, 0)
    model = make_model(graph, cluster)
    group = groups_of(graph)
    allowed = allowed_group_devices(graph, cluster, group)
    best_device, best_at = np.full(graph.n, -1, dtype=np.int32), np.zeros(graph.n, dtype=np.int32)
    problem = graph.order.astype(np.int64), group, allowed, _exchangeable(graph, cluster, allowed)
    assignment = make_assignment(np.zeros(graph.n), np.arange(graph.n))
    us, complete, count = _search_placements(
        model,
        make_work(model),
        assignment,
        Limits(memory_matters(model), np.inf, 0.0),
        problem,
        float(known_us),
        best_device,
        best_at,
        float(max_simulations),
    )
    if best_device[0] < 0:
        return Enumeration(None, known_us, bool(complete), int(count))
    placement = Placement(device=best_device, order=inverse(best_at).astype(np.float64))
    return Enumeration(placement, float(us), bool(complete), int(count))


def _exchangeable(graph: OpGraph, cluster: Cluster, allowed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Returns int64[D]: for each device, the lowest device with which it can be exchanged, or itself."""
    partner = np.arange(cluster.n)
    group = groups_of(graph)
    pairs = np.unique(np.stack([graph.edge_tensor, group[graph.consumers]]), axis=1)[0]
    if cluster.n > 2 and cluster.comm != "parallel" and len(np.unique(pairs)) < len(pairs):
        return partner
    table = make_model(graph, cluster).table
    for d in range(1, cluster.n):
        for c in range(d):
            swap = np.arange(cluster.n)
            swap[[c, d]] = d, c
            alike = cluster.memory_bytes[c] == cluster.memory_bytes[d] and np.array_equal(table[:, c], table[:, d])
            links = (cluster.latency_us, cluster.us_per_byte)
            if (
                alike
                and np.array_equal(allowed[:, c], allowed[:, d])
                and all(np.array_equal(a, a[swap][:, swap]) for a in links)
            ):
                partner[d] = partner[c]
                break
    return partner


@njit(cache=True, nogil=True)
def _search_placements(
    m: Model,
    w: Work,
    assignment: Assignment,
    limits: Limits,
    problem: Any,
    best: float,
    best_device: NDArray[np.int32],
    best_at: NDArray[np.int32],
    max_simulations: float,
) -> Any:
    """Search the devices of ops depth first; returns best makespan, whether all placements were tried, simulations."""
    order, group, allowed, alike = problem
    device = assignment.device
    n, devices = len(order), len(alike)
    least = np.empty(n)  # work of each op where it is fastest
    for i in range(n):
        least[i] = np.inf
        for d in range(devices):
            if allowed[group[i], d]:
                least[i] = min(least[i], m.table[i, d])
    remaining_work = np.zeros(n + 1)  # of the ops from each position of the order on
    for k in range(n - 1, -1, -1):
        remaining_work[k] = remaining_work[k + 1] + least[order[k]]
    group_device = np.full(len(allowed), -1, np.int64)
    owner = np.full(len(allowed), -1, np.int64)  # position of the op that chose a group's device
    lanes = len(w.running)
    load, used, head = np.zeros(lanes), np.zeros(devices, np.int64), np.zeros(n)
    choice = np.full(n, -1, np.int64)
    space = (
        np.zeros((n + 1, n), np.int32),
        np.zeros((n + 1, n)),
        np.zeros(n + 1, np.int64),
        np.zeros(n + 1, np.int64),
        np.zeros(n + 1, np.int64),
        np.zeros(n, np.int32),
        np.zeros(n),
        np.zeros(n, np.int64),
        np.zeros((2, lanes)),
        np.zeros((6, devices)),
    )
    count, k = 0.0, 0
    while k >= 0:
        i = order[k] if k < n else 0
        if k == n:
            best, count, complete = _search_schedules(
                m, w, assignment, limits, order, (load, head), space, best, best_device, best_at, count, max_simulations
            )
            if not complete:
                return best, False, count
            k -= 1
            continue
        g = group[i]
        if choice[k] >= 0:  # take back what was chosen last
            d = choice[k]
            load[d + m.lane[i]] -= m.table[i, d]
            used[d] -= 1
        if owner[g] >= 0 and owner[g] < k:
            d = group_device[g] if choice[k] < 0 else devices
        else:
            d = choice[k] + 1
        is_own_device = owner[g] < 0 or owner[g] == k
        has_device = False
        while d < devices:
            count += 0.125
            if allowed[g, d] and not (is_own_device and _has_unused_twin(alike, used, d)):
                head[i] = _ready(m, device, head, i, d)
                end = head[i] + m.table[i, d]
                spread = remaining_work[k + 1] + m.table[i, d]
                for c in range(lanes):
                    spread += load[c]
                if max(end + m.tail[i], max(load[d + m.lane[i]] + m.table[i, d], spread / lanes)) < best * SURELY:
                    has_device = True
                    break
            if not is_own_device:
                break
            d += 1
        if not has_device:
            choice[k] = -1
            if is_own_device:
                owner[g] = -1
                group_device[g] = -1
            k -= 1
            continue
        if count > max_simulations:
            return best, False, count
        choice[k], device[i] = d, d
        load[d + m.lane[i]] += m.table[i, d]
        used[d] += 1
        if is_own_device:
            owner[g], group_device[g] = k, d
        k += 1
    return best, True, count


@njit(cache=True, nogil=True)
def _has_unused_twin(alike: NDArray[np.int64], used: NDArray[np.int64], d: int) -> bool:
    twin = False
    for c in range(d):
        twin = twin or (alike[c] == alike[d] and used[c] == 0)
    return twin


@njit(cache=True, nogil=True)
def _cost(m: Model, t: int, source: int, target: int) -> float:
    if source == target:
        return 0.0
    return m.latency[source, target] + m.per_byte[source, target] * m.size_bytes[t]


@njit(cache=True, nogil=True)
def _ready(m: Model, device: NDArray[np.int32], head: NDArray[np.float64], i: int, d: int) -> float:
    """Returns the earliest start of op `i` on device `d`, if no device or queue is ever busy."""
    at = 0.0
    for e in range(m.input_ptr[i], m.input_ptr[i + 1]):
        p = m.producer[m.inputs[e]]
        at = max(at, head[p] + m.table[p, device[p]] + _cost(m, m.inputs[e], device[p], d))
    return at


@njit(cache=True, nogil=True, inline="always")  # else each of these kernels would optimize `evaluate` anew
def _search_schedules(
    m: Model,
    w: Work,
    assignment: Assignment,
    limits: Limits,
    order: NDArray[np.int64],
    load_and_head: tuple[NDArray[np.float64], NDArray[np.float64]],
    space: Any,
    best: float,
    best_device: NDArray[np.int32],
    best_at: NDArray[np.int32],
    count: float,
    max_simulations: float,
) -> Any:
    """Try all orders of one placement; returns best makespan, simulations, and whether all orders were tried."""
    load, head = load_and_head
    sequence, starts, start_order, place, alternative, default, tail, rank, busy, queue = space
    device, at = assignment.device, assignment.at
    n = len(device)
    _tails(m, device, order, tail)
    if max(_path_bound(m, device, load, head, tail), _queue_bound(m, device, head, tail, queue)) >= best * SURELY:
        return best, count, True
    _by_tail(order, tail, default)
    level, k, decision_us = 0, 0, 0.0
    while level >= 0:
        if k >= 0:  # new at this level: the first k ops are chosen
            count += 1
            if count > max_simulations:
                return best, count, False
            us = _simulate(m, w, assignment, limits, default, sequence[level], starts[level], start_order, level, k)
            if k > 0 and starts[level, sequence[level, k - 1]] != decision_us:  # the last of them was not ready then
                level, k = level - 1, -1
                continue
            if us < best * SURELY:
                best = us
                best_device[:], best_at[:] = device, at
            place[level], alternative[level], k = k, 0, -1
        j = place[level]
        if j >= start_order[level] or (
            alternative[level] == 0
            and _least_step_time(m, device, load, tail, sequence[level], starts[level], j, busy) >= best * SURELY
        ):
            level -= 1
            continue
        x = _next_ready(m, device, sequence[level], starts[level], j, alternative[level], tail, best * SURELY, rank)
        if x >= n:
            place[level] += 1
            alternative[level] = 0
            continue
        alternative[level] = x + 1
        decision_us = starts[level, sequence[level, j]]
        sequence[level + 1, :j] = sequence[level, :j]
        sequence[level + 1, j] = x
        level, k = level + 1, j + 1
    return best, count, True


@njit(cache=True, nogil=True)
def _tails(m: Model, device: NDArray[np.int32], order: NDArray[np.int64], tail: NDArray[np.float64]) -> None:
    """Fill `tail` with the least time from the end of each op to the end of the step under a placement."""
    for k in range(len(order) - 1, -1, -1):
        i = order[k]
        tail[i] = 0.0
        for e in range(m.edge_ptr[i], m.edge_ptr[i + 1]):
            q = m.edge_to[e]
            tail[i] = max(tail[i], _cost(m, m.edge_tensor[e], device[i], device[q]) + m.table[q, device[q]] + tail[q])


@njit(cache=True, nogil=True)
def _path_bound(
    m: Model, device: NDArray[np.int32], load: NDArray[np.float64], head: NDArray[np.float64], tail: NDArray[np.float64]
) -> float:
    """Returns a lower bound of a placement's step time.

    It is the longest path, or the work of a device (or of its communication lane) with what comes before its first op and
    after its last one.
    """
    bound = 0.0
    for i in range(len(device)):
        bound = max(bound, head[i] + m.table[i, device[i]] + tail[i])
    for d in range(len(load)):
        first, last = np.inf, np.inf
        for i in range(len(device)):
            if device[i] + m.lane[i] == d:
                first, last = min(first, head[i]), min(last, tail[i])
        if first < np.inf:
            bound = max(bound, first + load[d] + last)
    return bound


@njit(cache=True, nogil=True)
def _queue_bound(
    m: Model,
    device: NDArray[np.int32],
    head: NDArray[np.float64],
    tail: NDArray[np.float64],
    queue: NDArray[np.float64],
) -> float:
    """Bound of a placement: a queue's first request, its transfers, and the least time after its last transfer.

    `queue` float64[6, D], scratch: of sends, then of receives, the microseconds, the first request, the least time after.
    """
    if m.comm == PARALLEL:
        return 0.0
    queue[0, :] = queue[3, :] = 0.0
    queue[1:3] = queue[4:] = np.inf
    for p in range(len(device)):
        d, end = device[p], head[p] + m.table[p, device[p]]
        for e in range(m.edge_ptr[p], m.edge_ptr[p + 1]):
            t, q = m.edge_tensor[e], device[m.edge_to[e]]
            if q == d:
                continue
            has_repeats = False
            for x in range(m.edge_ptr[p], e):
                has_repeats = has_repeats or (m.edge_tensor[x] == t and device[m.edge_to[x]] == q)
            cost = 0.0 if has_repeats else _cost(m, t, d, q)
            behind = m.table[m.edge_to[e], q] + tail[m.edge_to[e]]
            for row, side in ((0, d), (3, q)):
                queue[row, side] += cost
                queue[row + 1, side] = min(queue[row + 1, side], end)
                queue[row + 2, side] = min(queue[row + 2, side], behind)
    bound = 0.0
    for d in range(queue.shape[1]):
        if m.comm == SEQUENTIAL:
            queue[0, d] += queue[3, d]
            queue[1, d], queue[2, d] = min(queue[1, d], queue[4, d]), min(queue[2, d], queue[5, d])
        for row in (0, 3):
            if queue[row + 1, d] < np.inf:
                bound = max(bound, (queue[row, d] + queue[row + 1, d] + queue[row + 2, d]) * SURELY)
    return bound


@njit(cache=True, nogil=True)
def _by_tail(order: NDArray[np.int64], tail: NDArray[np.float64], default: NDArray[np.int32]) -> None:
    """Fill `default` with the ops by `tail`, longest first; equal ones in topological order."""
    for k in range(len(order)):
        i, j = order[k], k
        while j > 0 and tail[default[j - 1]] < tail[i]:
            default[j] = default[j - 1]
            j -= 1
        default[j] = i


@njit(cache=True, nogil=True, inline="always")
def _simulate(
    m: Model,
    w: Work,
    assignment: Assignment,
    limits: Limits,
    default: NDArray[np.int32],
    sequence: NDArray[np.int32],
    start: NDArray[np.float64],
    start_order: NDArray[np.int64],
    level: int,
    k: int,
) -> float:
    """Simulate with the first `k` ops of `sequence` before all others, then append the others as they started."""
    device, position, at = assignment.device, assignment.position, assignment.at
    n = len(device)
    position[:] = -1
    for x in range(k):
        at[x] = sequence[x]
        position[at[x]] = x
    count = k
    for x in range(n):
        if position[default[x]] < 0:
            at[count] = default[x]
            position[default[x]] = count
            count += 1
    w.start[:] = np.inf
    us = evaluate(m, w, assignment, limits)
    start[:] = w.start
    count = k
    for x in range(k, n):
        i = at[x]
        if start[i] == np.inf:
            continue
        j, end = count, start[i] + m.table[i, device[i]]
        while j > k:
            p = sequence[j - 1]
            if start[p] < start[i] or (start[p] == start[i] and start[p] + m.table[p, device[p]] <= end):
                break
            sequence[j] = p
            j -= 1
        sequence[j] = i
        count += 1
    start_order[level] = count
    return us


@njit(cache=True, nogil=True)
def _least_step_time(
    m: Model,
    device: NDArray[np.int32],
    load: NDArray[np.float64],
    tail: NDArray[np.float64],
    sequence: NDArray[np.int32],
    start: NDArray[np.float64],
    j: int,
    busy: NDArray[np.float64],
) -> float:
    """Bound of all schedules whose first `j` ops start as they do in this one."""
    bound = 0.0
    busy[0, :] = 0.0
    busy[1, :] = load
    for k in range(j):
        i = sequence[k]
        d, us = device[i] + m.lane[i], m.table[i, device[i]]
        busy[0, d] = max(busy[0, d], start[i] + us)
        busy[1, d] -= us
        bound = max(bound, start[i] + us + tail[i])
    for d in range(len(load)):
        bound = max(bound, (busy[0, d] + busy[1, d]) * SURELY)
    return bound


@njit(cache=True, nogil=True)
def _next_ready(
    m: Model,
    device: NDArray[np.int32],
    sequence: NDArray[np.int32],
    start: NDArray[np.float64],
    j: int,
    x: int,
    tail: NDArray[np.float64],
    best: float,
    rank: NDArray[np.int64],
) -> int:
    """Returns the first op from `x` on that may have been ready when the j-th op started; the number of ops if none."""
    n, decision_us, d = len(device), start[sequence[j]], device[sequence[j]]
    rank[:] = n
    for k in range(j + 1):
        rank[sequence[k]] = k
    while x < n:
        if (
            device[x] == d
            and m.lane[x] == m.lane[sequence[j]]
            and rank[x] > j
            and decision_us + m.table[x, d] + tail[x] < best
        ):
            ready = True
            for e in range(m.input_ptr[x], m.input_ptr[x + 1]):
                p = m.producer[m.inputs[e]]
                arrival = start[p] + m.table[p, device[p]] + _cost(m, m.inputs[e], device[p], d)
                ready = ready and rank[p] < j and arrival * SURELY <= decision_us
            if ready:
                return x
        x += 1
    return n
