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
from ...graph.kernels.csr import Floats
from .problem import MergeProblem, merge_problem
from .propagate import IMPOSSIBLE, OPEN, propagate
from .sweep import no_deductions, paid_heads
from .units import join, root

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
