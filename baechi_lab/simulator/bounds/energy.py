"""`energy`: heads and tails by the work of all ancestors and descendants, on all devices together.

Let tau(u, v) be the longest path from the end of u to the start of v, transfers free. The ancestors u of v with head(u) >= a
and tau(u, v) >= b all run between a and start(v) - b, on at most D devices, so

    start(v) >= a + b + (sum of their durations) / D

for every a and b. Going through the ops in topological order with the raised heads makes this see points where the graph
is narrow: what comes after one starts at least when everything before it has been shared out fairly. Tails are heads of the
reversed graph. The same over all ops with head(u) >= a and tail(u) >= b bounds the makespan (`window_bound`). Sums of
durations on the fastest device are used, which no D devices exceed in less time.

a and b are tried on a grid of `GRID` by `GRID` cells; the ops of a cell and of all after it are summed up, and their
smallest head and smallest tau taken. Complexity: O(ops * (ops + edges)) time, O(ops) memory.
Source: heads and tails of m identical machines, Carlier 1987, doi:10.1016/S0377-2217(87)80186-6.
"""

from __future__ import annotations

import numpy as np

from ...graph.kernels.compiling import working_seconds
from ...graph.kernels.csr import Floats, Ints, inverse
from ...graph.kernels.jit import njit
from .problem import MergeProblem

GRID = 32
"""Cells of the grid in each direction."""
CHUNK = 256
"""Ops between two looks at the clock."""


def energy_heads(problem: MergeProblem, head: Floats, tail: Floats, until: float = np.inf) -> None:
    """Raises valid heads and tails float64[n] in place, until the time `until` (`working_seconds`) at most.

    >>> from baechi_lab import Cluster, OpGraph
    >>> from baechi_lab.simulator.bounds.problem import merge_problem
    >>> wide = OpGraph.from_edges([4, 4, 4, 4, 1], [(k, 4, 1) for k in range(4)])
    >>> head, tail = np.zeros(5), np.zeros(5)
    >>> energy_heads(merge_problem(wide, Cluster.uniform(2), reach=False), head, tail)
    >>> float(head[4])  # four of 4 on two devices
    8.0
    """
    half = 0.5 * (working_seconds() + until)
    for one_way, raised, end in ((problem, head, half), (problem.reversed(), tail, until)):
        position = inverse(one_way.order)
        for first in range(0, len(one_way.order), CHUNK):
            if working_seconds() > end:
                break
            raise_heads(first, min(first + CHUNK, len(one_way.order)), one_way, position, raised)


def window_bound(problem: MergeProblem, head: Floats, tail: Floats) -> float:
    """Returns a lower bound on the makespan in microseconds from the work between heads and tails."""
    return float(heaviest(head, problem.p, tail, len(problem.p), problem.devices, 8 * GRID))


@njit(cache=True)
def raise_heads(first: int, last: int, x: MergeProblem, position: Ints, head: Floats) -> None:
    """Raises the heads of the ops at the positions `first` to `last` - 1 of the order."""
    order, p, devices, n = x.order, x.p, x.devices, len(x.p)
    in_ptr, in_near, _, _ = x.before
    out_ptr, out_near, _, _ = x.after
    path = np.empty(n)  # by position; negative: no ancestor
    release, work, after = np.empty(n), np.empty(n), np.empty(n)
    for k in range(first, last):
        v = order[k]
        for e in range(in_ptr[v], in_ptr[v + 1]):
            head[v] = max(head[v], head[in_near[e]] + p[in_near[e]])
        path[k] = 0.0
        count, total = 0, 0.0
        for i in range(k - 1, -1, -1):
            u, longest = order[i], -1.0
            for e in range(out_ptr[u], out_ptr[u + 1]):
                j = position[out_near[e]]
                if j == k:
                    longest = max(longest, 0.0)
                elif j < k and path[j] >= 0.0:
                    longest = max(longest, path[j] + p[out_near[e]])
            path[i] = longest
            if longest >= 0.0 and p[u] > 0.0:
                release[count], work[count], after[count] = head[u], p[u], longest
                total += p[u]
                count += 1
        if count > devices:
            head[v] = max(head[v], heaviest(release, work, after, count, devices, GRID))


@njit(cache=True)
def heaviest(release: Floats, work: Floats, after: Floats, count: int, devices: int, grid: int) -> float:
    """Returns the largest a + b + (work with begin >= a and after >= b) / devices over the cells of a grid."""
    if count == 0:
        return 0.0
    mass, row, column = np.zeros((grid, grid)), np.full(grid, np.inf), np.full(grid, np.inf)
    row_scale = grid / max(release[:count].max() * (1.0 + 1e-9), 1e-300)
    column_scale = grid / max(after[:count].max() * (1.0 + 1e-9), 1e-300)
    for i in range(count):
        if work[i] <= 0.0:
            continue
        a, b = min(int(release[i] * row_scale), grid - 1), min(int(after[i] * column_scale), grid - 1)
        mass[a, b] += work[i]
        row[a], column[b] = min(row[a], release[i]), min(column[b], after[i])
    for a in range(grid - 2, -1, -1):
        row[a], column[a] = min(row[a], row[a + 1]), min(column[a], column[a + 1])
    best = 0.0
    for a in range(grid - 1, -1, -1):
        run = 0.0
        for b in range(grid - 1, -1, -1):
            run += mass[a, b]
            mass[a, b] = run + (mass[a + 1, b] if a + 1 < grid else 0.0)
            if mass[a, b] > 0.0:
                best = max(best, row[a] + column[b] + mass[a, b] / devices)
    return best
