"""The least work to repeat within a budget of bytes: an integer program on the groups of the forward chain.

The forward ops that may be repeated, in topological order, are cut into groups 1..m: single ops, or, where there are
more than `MOST_GROUPS`, runs of ops that end where the next ops read least of them. A plan cuts the groups into segments,
each of which is either kept or computed again when its backward pass is due. Say for groups i..j

    h(i, j)  bytes that are held until the segment's backward pass: what later groups read, and, of a kept segment, what
             the backward pass reads as well
    p(i, j)  bytes held besides those of earlier segments, at most: while the segment runs forward, or when it was
             computed again, with what is read beside the copies or later
    c(i, j)  microseconds to compute the copies
    x(i, j)  1 where the segment is in the plan: the x are a path from group 1 to group m
    H(i)     bytes held by the segments before group i:  H(j + 1) >= H(j) + sum_i h(i, j) x(i, j)

Minimise the sum of c x where H(i) + sum_j p(i, j) x(i, j) <= budget for every i. Every path is such a cut of the
chain, so the program is exact for plans of this kind: every op computed again at most once, segments
one after the other from the last to the first (Checkmate, Jain et al. 2020,
arXiv:1910.02653, solves a larger one, in which ops may be repeated more often). A smaller budget only takes plans away, so
it never gives a faster one. The least budget is found without the program: a path that holds less is as good as any
other, so a shortest path tells whether a budget is enough.

What is counted are outputs of forward ops, those that are always kept included, on one device that runs each pass in
topological order; gradients and temporaries are not. Kept segments that are no better than two shorter ones are left
out. O(m^2) columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BaechiLabError, InfeasiblePlacement
from ..graph.units import format_bytes
from .checkpoints import held_for_backward
from .repeatable import Parts

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST_GROUPS = 60


@dataclass(frozen=True)
class Segment:
    """Groups `first`..`last` (from 0), kept or computed again; bytes and microseconds as in the module's text."""

    first: int
    last: int
    again: bool
    held: int
    peak: int
    cost: float


def within(parts: Parts, budget: int) -> Bools:
    """bool[n]: the ops to keep so that at most `budget` bytes are held for the backward pass, for the least repeated work.

    Raises:
        InfeasiblePlacement: no plan of the program holds so little; `needed_bytes` is the least that one does.
    """
    chain = Chain(parts)
    path = solve(chain.segments, chain.count, budget - chain.fixed)
    if path is None:
        least = chain.fixed + least_peak(chain.segments, chain.count)
        raise InfeasiblePlacement(
            f"budget is {budget}; recomputing every op at most once, the backward pass needs at least {least} bytes "
            f"({format_bytes(least)}) of forward outputs",
            least,
            [budget],
        )
    return chain.kept(path)


class Chain:
    """The groups of the forward chain and their segments."""

    def __init__(self, parts: Parts, most: int = MOST_GROUPS):
        self.parts = parts
        self.ops = parts.ordered[parts.may_repeat[parts.ordered]]
        self.place = np.full(parts.graph.n, -1, dtype=np.int64)
        self.place[self.ops] = np.arange(len(self.ops))
        self.size = parts.data_bytes[self.ops]
        self.us = parts.graph.duration_us[self.ops]
        self.late = held_for_backward(parts)[self.ops]
        self.first_read, self.last_read = self._late_reads()
        self.readers = [self._forward_readers(op) for op in self.ops.tolist()]
        self.reach = np.array([r.max(initial=-1) for r in self.readers], dtype=np.int64)
        self.ends = self._cuts(most)  # position after the last op of each group
        self.count = len(self.ends)
        self.group = np.searchsorted(self.ends, np.arange(len(self.ops)), side="right")
        self.fixed = self._always_kept()
        self.segments = self._segments()

    def kept(self, path: list[Segment]) -> Bools:
        """bool[n]: the ops that a plan keeps."""
        kept = np.ones(self.parts.graph.n, dtype=np.bool_)
        for segment in path:
            if segment.again:
                mine = (self.group >= segment.first) & (self.group <= segment.last)
                kept[self.ops[mine & (self.reach < self.ends[segment.last])]] = False
        return kept

    def _forward_readers(self, op: int) -> Ints:
        """Positions of the readers that may be repeated."""
        found = self.place[self.parts.readers(op)]
        return found[found >= 0]

    def _late_reads(self) -> tuple[Ints, Ints]:
        """int64[ops] each: ranks of the first and the last late op that reads each op."""
        rank, late = self.parts.rank, self.parts.late
        ranks = [rank[r[late[r]]] for r in map(self.parts.readers, self.ops.tolist())]
        never = np.iinfo(np.int64).max
        return (
            np.array([r.min(initial=never) for r in ranks], dtype=np.int64),
            np.array([r.max(initial=-1) for r in ranks], dtype=np.int64),
        )

    def _cuts(self, most: int) -> Ints:
        """Ends of the groups: after every op, or in each of `most` equal windows where least is read across."""
        n = len(self.ops)
        if n <= most:
            return np.arange(1, n + 1)
        crossing = np.zeros(n + 1, dtype=np.int64)
        read = np.flatnonzero(self.reach >= 0)
        np.add.at(crossing, read, self.size[read])
        np.subtract.at(crossing, self.reach[read], self.size[read])
        crossing = np.cumsum(crossing)  # bytes read across the cut after each position
        edges = np.linspace(0, n, most + 1).astype(np.int64)
        ends = [low + int(crossing[low:high].argmin()) + 1 for low, high in pairwise(edges.tolist())]
        return np.unique([*ends[:-1], n])

    def _always_kept(self) -> int:
        """Bytes of forward outputs that are kept by any plan: those that a copy or a late op reads."""
        parts, graph = self.parts, self.parts.graph
        kept = np.flatnonzero(~parts.late & ~parts.setup & ~parts.update & ~parts.may_repeat)
        read = [bool(np.any(parts.late[r] | parts.may_repeat[r])) for r in map(parts.readers, kept.tolist())]
        return int(parts.data_bytes[kept[np.array(read, dtype=np.bool_)]].sum()) if graph.n else 0

    def _segments(self) -> list[Segment]:
        found: list[Segment] = []
        pieces: dict[tuple[int, int], int] = {}  # least bytes of these groups, kept, in one piece or several
        for last in range(self.count):
            for first, kept, again in self._ending(last):
                parts = [pieces[first, k] + pieces[k + 1, last] for k in range(first, last)]
                if not parts or kept.held < min(parts):
                    found.append(kept)
                pieces[first, last] = min([kept.held, *parts])
                if again.cost > 0 or again.held < pieces[first, last]:
                    found.append(again)
        return found

    def _ending(self, last: int) -> list[tuple[int, Segment, Segment]]:
        """The segments that end with group `last`, kept and computed again, from the shortest."""
        end, out = int(self.ends[last]), []
        needed = np.zeros(len(self.ops), dtype=np.bool_)
        live = np.zeros((2, end), dtype=np.int64)  # bytes while each op runs forward: kept, and computed again
        across_ops: list[tuple[int, int, bool]] = []
        held, copies, cost, due = [0, 0], 0, 0.0, np.iinfo(np.int64).max
        for op in range(end - 1, -1, -1):
            across, size = bool(self.reach[op] >= end), int(self.size[op])
            read_again = bool(needed[self.readers[op]].any())
            for again, stays in enumerate((across or bool(self.late[op]), across)):
                held[again] += size if stays else 0
                live[again, op : end if stays else max(op, int(self.reach[op])) + 1] += size
            if across:
                across_ops.append((size, int(self.last_read[op]), read_again))
            elif self.late[op] or read_again:
                needed[op] = True
                copies, cost = copies + size, cost + float(self.us[op])
                due = min(due, int(self.first_read[op]))
            if op == 0 or self.group[op - 1] != self.group[op]:
                first, forward = int(self.group[op]), live[:, op:].max(axis=1).tolist()
                beside = sum(size for size, read, used in across_ops if used or read >= due)
                peak = max(forward[1], copies + beside, held[1])
                kept = Segment(first, last, False, held[0], forward[0], 0.0)
                out.append((first, kept, Segment(first, last, True, held[1], peak, cost)))
        return out


def peak_of(path: list[Segment]) -> int:
    """Most bytes held at once by a plan.

    >>> peak_of([Segment(0, 1, True, 8, 16, 5.0), Segment(2, 2, False, 8, 8, 0.0)])
    16
    """
    before = peak = 0
    for segment in path:
        peak = max(peak, before + segment.peak)
        before += segment.held
    return peak


def least_peak(segments: list[Segment], count: int) -> int:
    """Least bytes held at once by any path over `count` groups; by bisection, since a larger budget admits more paths.

    Within a budget, the path to a group that holds least is as good as any other, so each step is a shortest path.
    """
    low, high = -1, max((s.peak for s in segments), default=0) + sum(s.held for s in segments)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _reaches(segments, count, middle) else (middle, high)
    return high


def _reaches(segments: list[Segment], count: int, budget: int) -> bool:
    """Is there a path within the budget? `segments` are ordered by their last group."""
    held: list[int | None] = [0, *[None] * count]
    for s in segments:
        before, after = held[s.first], held[s.last + 1]
        if before is not None and before + s.peak <= budget and (after is None or before + s.held < after):
            held[s.last + 1] = before + s.held
    return budget >= 0 and held[count] is not None


def solve(segments: list[Segment], count: int, budget: int) -> list[Segment] | None:
    """A path over `count` groups of least cost within the budget; None where there is none."""
    if not _reaches(segments, count, budget):
        return None
    if count == 0:
        return []
    allowed = [s for s in segments if s.peak <= budget]
    limit = budget
    for _ in range(5):
        path = _solve(allowed, count, limit)
        if (excess := peak_of(path) - budget) <= 0:
            return path
        limit -= excess  # within the tolerance of the solver, but bytes are counted exactly
    raise BaechiLabError(f"the program for budget {budget} was not solved exactly; its bytes span too many magnitudes")


def _solve(segments: list[Segment], count: int, budget: int) -> list[Segment]:
    """The program for HiGHS: columns are the x, then H(0..m-1); bytes in units of their common divisor."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    first, last = (np.array([getattr(s, key) for s in segments], dtype=np.int64) for key in ("first", "last"))
    held, peak = (np.array([getattr(s, key) for s in segments], dtype=np.int64) for key in ("held", "peak"))
    unit = float(max(np.gcd.reduce(np.concatenate([held, peak])), 1))
    k, x = len(segments), np.arange(len(segments))
    held_before = k + np.arange(count)
    cells: list[tuple[Any, Any, Any]] = [
        (first, x, 1.0), (last[last < count - 1] + 1, x[last < count - 1], -1.0),  # path: rows 0..m-1
        (count + first, x, peak / unit), (count + np.arange(count), held_before, 1.0),
    ]  # fmt: skip
    # H(g) is at least what all segments that end before g hold: H(g) = H(g - 1) + the held of those that end at g - 1.
    ending = np.flatnonzero(last < count - 1)
    steps = np.arange(1, count)
    cells += [
        (2 * count + last[ending], ending, -held[ending] / unit),
        (2 * count + steps - 1, held_before[steps], 1.0),
        (2 * count + steps - 1, held_before[steps - 1], -1.0),
    ]
    row, column, value = (
        np.concatenate([np.broadcast_to(c[i], np.shape(c[0])).astype(float) for c in cells]) for i in range(3)
    )
    rows = 3 * count - 1
    matrix = coo_array((value, (row.astype(int), column.astype(int))), shape=(rows, k + count)).tocsr()
    low, high = np.zeros(rows), np.zeros(rows)
    high[2 * count :] = np.inf
    low[0] = high[0] = 1.0
    low[count : 2 * count], high[count : 2 * count] = -np.inf, budget / unit
    goal, upper = np.zeros(k + count), np.full(k + count, np.inf)
    goal[:k] = _scaled([s.cost for s in segments])
    upper[:k], upper[k] = 1.0, 0.0
    found = milp(
        goal, integrality=np.r_[np.ones(k), np.zeros(count)], bounds=Bounds(0.0, upper),
        constraints=LinearConstraint(matrix, low, high), options={"mip_rel_gap": 0.0},
    )  # fmt: skip
    if found.x is None or found.status != 0:
        raise BaechiLabError(f"the program of recomputation was not solved: HiGHS says {found.message!r}")
    chosen = {int(first[i]): segments[i] for i in np.flatnonzero(found.x[:k] > 0.5)}
    path, at = [], 0
    while at < count:
        path.append(chosen[at])
        at = path[-1].last + 1
    return path


def _scaled(cost: list[float]) -> NDArray[np.float64]:
    """Costs over their largest, so that the tolerance of the solver means the same for any model."""
    return np.array(cost) / max(max(cost), 1e-300)
