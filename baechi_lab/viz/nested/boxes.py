"""Nested boxes. If a box would hold too many, levels are put in between: repeated blocks, or intervals of time.

Items of such levels are in topological order, each with a label for its kind. If the sequence of labels equals itself shifted by
`p` over a long run, the graph repeats a block of `p` items (as layers of a network do), and the borders are put where
fewest tensors cross them. Otherwise the sequence is cut into equal segments, also where fewest tensors cross. Deviation from
graph isomorphism: a block is recognized by the order and kinds of its items, with a few mismatches, and not by its edges; a
wrong guess only makes the picture less clear.
O(m^2 / 2) comparisons of bytes for m items, in one pass of NumPy per shift.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...graph import OpGraph
from ...graph.kernels.csr import Ints
from .scopes import timed_ops

SCOPE, OP, LEVEL = 0, 1, 2  # kinds of boxes


@dataclass(eq=False, slots=True)
class Box:
    """A box: a scope, a level in between, or an op (`op`, else -1). `count` is the number of ops inside."""

    # Graphs have a box per op. What is not stored need not be found by the garbage collector.
    name: str
    label: str
    kind: int
    items: Sequence[Box]
    op: int = -1
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = 1 if self.kind == OP else sum(item.count for item in self.items)

    @property
    def ops(self) -> Ints:
        """The ops inside, in the order of the items."""
        return np.array(self._op_list(), dtype=np.int64)

    def _op_list(self) -> list[int]:
        if self.kind == OP:
            return [self.op]
        ops: list[int] = []
        for item in self.items:
            if item.kind == OP:
                ops.append(item.op)
            else:
                ops += item._op_list()
        return ops

    @property
    def most_items(self) -> int:
        """The largest number of items in this box or in any box inside it."""
        return max([len(self.items), *(item.most_items for item in self.items if item.items)], default=0)


def with_levels(graph: OpGraph, forward: Box, backward: Box, limit: int, outermost: int) -> None:
    """Puts levels into both boxes until no box holds more than `limit` items, and these two at most `outermost`.

    The backward box is cut as the forward box of its forward ops is. O(edges x depth + items^2 / 2).
    """
    levels = _Levels(graph, limit)
    pairs = np.stack([graph.edge_source, graph.consumers], axis=1).astype(np.int64)
    levels.visit(forward, (), pairs, outermost)
    levels.visit(backward, (), pairs, outermost, is_mirrored=True)


class _Levels:
    """Divides boxes with too many items into levels of boxes, from the outermost inwards."""

    def __init__(self, graph: OpGraph, limit: int):
        self.graph, self.limit = graph, limit
        self.item_of = np.full(graph.n, -1, dtype=np.int64)
        self.cuts: dict[tuple[str, ...], tuple[NDArray[np.int64], list[str]]] = {}
        reads, readers = np.diff(graph.predecessors[0]), np.diff(graph.successors[0])
        self.timed = timed_ops(graph)
        # What ops of repeated blocks have in common, numbered.
        numbers: dict[tuple[object, ...], int] = {}
        kinds = zip(
            graph.op_types, reads.tolist(), np.minimum(readers, 4).tolist(), graph.output_bytes.tolist(), strict=True
        )
        self.kind_of_op = [numbers.setdefault(kind, len(numbers)) for kind in kinds]

    def visit(self, box: Box, key: tuple[str, ...], pairs: Ints, limit: int, is_mirrored: bool = False) -> None:
        """Cuts `box` if it holds too many items; of `pairs`, edges between ops, those inside the box count."""
        if max(len(box.items), box.most_items) <= min(limit, self.limit) or not box.items:
            return
        ops = box.ops
        owner = np.repeat(np.arange(len(box.items)), [item.count for item in box.items])
        self.item_of[ops] = owner
        edges = self.item_of[pairs]
        inside = (edges[:, 0] >= 0) & (edges[:, 1] >= 0)
        pairs, edges = pairs[inside], edges[inside]
        self.item_of[ops] = -1
        place_of_item = self._sort(box, ops, owner, edges)
        owner, edges = place_of_item[owner], place_of_item[edges]
        part_of_item: Ints = np.arange(len(box.items))
        if len(box.items) > limit:
            cut = self._mirror(box, key, edges) if is_mirrored and key in self.cuts else None
            part_of_item, labels = cut if cut is not None else self._cut_box(box, edges, limit)
            if not is_mirrored:
                position_of_op = np.full(self.graph.n, -1, dtype=np.int64)
                position_of_op[ops] = part_of_item[owner]
                self.cuts[key] = (position_of_op, labels)
            children = []
            part_numbers, part_of_item = np.unique(part_of_item, return_inverse=True)
            for k, members in zip(part_numbers.tolist(), _divided(box.items, part_of_item), strict=True):
                name = f"{box.name}/{labels[k]}" if box.name else labels[k]
                children.append(members[0] if len(members) == 1 else Box(name, labels[k], LEVEL, members))
            box.items = children
        # Each child gets the edges within it, so that a level takes the time of its edges and not of all edges per child.
        part_of_edge = part_of_item[edges]
        within = np.flatnonzero(part_of_edge[:, 0] == part_of_edge[:, 1])
        within = within[np.argsort(part_of_edge[within, 0], kind="stable")]
        pair_ends = np.cumsum(np.bincount(part_of_edge[within, 0], minlength=len(box.items)))
        for item, pairs_of_item in zip(box.items, np.split(pairs[within], pair_ends[:-1]), strict=True):
            if item.items:
                self.visit(item, (*key, item.label), pairs_of_item, self.limit, is_mirrored)

    def _sort(self, box: Box, ops: Ints, owner: Ints, edges: Ints) -> Ints:
        """Sorts items topologically, by the mean position of their ops; items without inputs come just before their reader.

        `owner` is the item of every op. Returns the new place of each item.
        """
        count = len(box.items)
        position = self.graph.position[ops]
        # The positions of variables and updates say little about the time.
        op_weight: NDArray[np.float64] = np.where(self.timed[ops], 1.0, 1e-6)
        mean: NDArray[np.float64] = np.bincount(owner, op_weight * position, minlength=count) / np.bincount(
            owner, op_weight, minlength=count
        )
        edges = edges[edges[:, 0] != edges[:, 1]]
        has_input = np.zeros(count, dtype=np.bool_)
        has_input[edges[:, 1]] = True
        first = np.full(count, np.inf)
        np.minimum.at(first, edges[:, 0], mean[edges[:, 1]])
        reads_nothing = ~has_input & np.isfinite(first)
        place = np.where(reads_nothing, first, mean)
        order = np.lexsort((np.arange(count), ~reads_nothing, place))
        box.items = [box.items[k] for k in order.tolist()]
        place_of_item = np.empty(count, dtype=np.int64)
        place_of_item[order] = np.arange(count)
        return place_of_item

    def _cut_box(self, box: Box, edges: Ints, limit: int) -> tuple[Ints, list[str]]:
        """Cuts the items of a box into segments; returns the segment of each item's block and the blocks' labels."""
        kinds: dict[object, int] = {}
        candidates = []
        for item in box.items:
            is_op = item.kind == OP
            kind = self.kind_of_op[item.op] if is_op else (re.sub(r"[\d_]+$", "", item.label), len(item.items))
            candidates.append(kinds.setdefault(kind, len(kinds)))
        cut = segments(np.array(candidates), edges[:, 0], edges[:, 1], limit)
        labels = []
        segment_items = _divided(box.items, cut.segment_of)
        scopes = [[item for item in items if item.kind != OP] for items in segment_items]
        is_named = [len(boxes) > len(items) / 2 for boxes, items in zip(scopes, segment_items, strict=True)]
        for k in range(len(segment_items)):
            block = k - cut.first
            if is_named[k]:
                labels.append(_range(scopes[k]))
            elif cut.repeated and 0 <= block < cut.repeated:
                labels.append(f"block {block + 1} of {cut.repeated}")
            elif cut.repeated:
                labels.append("start" if block < 0 else "end")  # with numbers if there are several
            else:
                labels.append("other ops" if any(is_named) else f"part {k + 1} of {cut.count}")
        return cut.segment_of, [
            label if labels.count(label) == 1 else f"{label} ({labels[: k + 1].count(label)})"
            for k, label in enumerate(labels)
        ]

    def _mirror(self, box: Box, key: tuple[str, ...], edges: Ints) -> tuple[Ints, list[str]] | None:
        """Returns the parts of a backward box: each item has the part of its forward ops, or else of its neighbours."""
        twin_parts, labels = self.cuts[key]
        part_of_item = np.full(len(box.items), -1, dtype=np.int64)
        for k, item in enumerate(box.items):
            twins = self.graph.forward_of[item.ops]
            twin_part = twin_parts[twins[twins >= 0]]
            if len(twin_part := twin_part[twin_part >= 0]):
                part_of_item[k] = np.bincount(twin_part).argmax()
        if (part_of_item < 0).all():
            return None
        for near, end in ((edges[:, 0], edges[:, 1]), (edges[:, 1], edges[:, 0])) * 4:
            is_reached = (part_of_item[end] < 0) & (part_of_item[near] >= 0)
            part_of_item[end[is_reached]] = part_of_item[near[is_reached]]
        return np.where(part_of_item < 0, part_of_item.max(), part_of_item), labels


def _divided(items: Sequence[Box], part_of_item: Ints) -> list[list[Box]]:
    """Returns the items of each part, in order; parts are numbered from 0."""
    members: list[list[Box]] = [[] for _ in range(int(part_of_item.max()) + 1)]
    for item, part_number in zip(items, part_of_item.tolist(), strict=True):
        members[part_number].append(item)
    return members


def _range(items: list[Box]) -> str:
    """Returns `t0 to t9` for items that are numbered in order, else `to` and the last one."""
    first, last = items[0].label, items[-1].label
    stem = re.sub(r"\d+$", "", first)
    if stem == re.sub(r"\d+$", "", last) and first != last:
        return f"{first} to {last}"
    return f"to {last}" if first != last else first


SHORTLIST = 40  # shifts that are compared in full
MISMATCH = 4
"""Cost of a mismatch, in matches: a run still grows if four of five items match."""


@dataclass(frozen=True)
class Cut:
    """`segment_of`: the segment of every item, ascending; `repeated`: the number of equal blocks, `first`: the first of them."""

    segment_of: Ints
    count: int
    repeated: int = 0
    first: int = 0


def segments(labels: Ints, source: Ints, target: Ints, limit: int) -> Cut:
    """Cuts `m` items, numbered in topological order, into at most `limit` parts; edges are pairs of items."""
    m = len(labels)
    width = crossings(m, source, target)
    repeat = repeats(labels)
    if repeat is not None:
        start, period, count = repeat
        padded_width = np.concatenate([[0], width, [0]])
        costs = []
        for shift in range(-(period // 2), period - period // 2):
            borders = start + shift + period * np.arange(count + 1)
            inside = borders[(borders > 0) & (borders < m)]
            outside = np.count_nonzero((borders < 0) | (borders > m))
            costs.append(
                (outside, float(padded_width[inside].mean()) if len(inside) else 0.0, abs(shift), start + shift)
            )
        start = max(0, min(costs)[3])
        while count > 1 and start + count * period > m:
            count -= 1
        if 1 < count <= limit - 2:
            blocks = [start + k * period for k in range(count + 1) if start + k * period < m]
            before = _pieces(0, start, period, (limit - count) // 2, width)
            after = _pieces(start + count * period, m, period, (limit - count) // 2, width)
            inner = np.array(sorted({*before, *(b for b in blocks if b > 0), *after}))
            part_of_label = np.searchsorted(inner, np.arange(m), side="right")
            return Cut(part_of_label, len(inner) + 1, count, len(before) + int(start > 0))
        if count > limit - 2:
            return _even_cut(m, limit, width, np.array([start + k * period for k in range(count + 1)]))
    return _even_cut(m, limit, width)


def crossings(m: int, source: Ints, target: Ints) -> Ints:
    """Returns int64[m - 1]: the number of items up to `i` that have an edge to an item after `i`."""
    last = np.arange(m)
    np.maximum.at(last, source, target)
    change = np.zeros(m + 1, dtype=np.int64)
    change[np.arange(m)] += 1
    np.subtract.at(change, last, 1)
    return np.cumsum(change)[: m - 1]


def repeats(labels: Ints) -> tuple[int, int, int] | None:
    """Returns start, period and number of the repetitions that cover most items, or None if there are none.

    A period below 3, or a run of equal labels, does not count.
    """
    m = len(labels)
    if m < 8:
        return None
    kinds = (np.unique(labels, return_inverse=True)[1] % 251).astype(np.uint8)
    shifts = np.arange(1, m // 2 + 1)
    equal = np.array([np.count_nonzero(kinds[p:] == kinds[:-p]) for p in shifts.tolist()])
    scores: list[tuple[float, int, int, int]] = []
    for p in shifts[np.argsort(-equal, kind="stable")[:SHORTLIST]].tolist():
        # Of a run that is counted below, four in five items match, and with `p` more it covers 0.4 of all and two periods.
        if p < 3 or equal[p - 1] < MISMATCH / (MISMATCH + 1) * max(p, 0.4 * m - p):
            continue
        total = np.concatenate([[0], np.cumsum(np.where(kinds[p:] == kinds[:-p], 1, -MISMATCH))])
        lowest = np.minimum.accumulate(total)
        end = int(np.argmax(total - lowest))
        start, end = int(np.argmin(total[: end + 1])), end
        covered_length = end - start + p
        if covered_length >= 2 * p and covered_length >= 0.4 * m and not _is_monotonous(kinds[start : start + p]):
            scores.append((covered_length - p * 1e-3, -p, start, covered_length // p))
    if not scores:
        return None
    top = max(scores)[0]
    # The shortest period of those that cover about as much: two blocks at a time cover no more than one.
    _, period, start, count = max((s for s in scores if s[0] >= 0.9 * top), key=lambda s: s[1])
    return start, -period, count


def _is_monotonous(kinds: NDArray[np.uint8]) -> bool:
    """Whether nearly all items are of one kind, as in a chain or a generated graph."""
    return bool(np.bincount(kinds).max() > 0.9 * len(kinds))


def _even_cut(m: int, limit: int, width: Ints, allowed: Ints | None = None) -> Cut:
    """Returns the borders of parts of about equal size where fewest edges cross, at most `limit` parts per level."""
    levels = max(1, int(np.ceil(np.log(max(m, 2)) / np.log(limit) - 1e-9)))
    count = int(np.clip(np.ceil(m ** (1 / levels)), 2, limit)) if levels > 1 else min(limit, max(2, m // 6))
    if allowed is not None:
        ideal = np.linspace(0, len(allowed) - 1, min(count, len(allowed) - 1) + 1)[1:-1]
        borders = allowed[np.round(ideal).astype(np.int64)]
    else:
        slack = m // (4 * count)
        borders = np.array([_narrowest(width, k * m // count, slack) for k in range(1, count)])
    borders = np.unique(borders[(borders > 0) & (borders < m)])
    part_of_label: NDArray[np.int64] = np.searchsorted(borders, np.arange(m), side="right")
    return Cut(part_of_label, len(borders) + 1)


def _pieces(low: int, high: int, period: int, limit: int, width: Ints) -> list[int]:
    """Returns borders before or after the repeated blocks, for parts of about their size."""
    count = min((high - low) // period, limit)
    return [_narrowest(width, low + k * (high - low) // count, period // 3) for k in range(1, count)]


def _narrowest(width: Ints, ideal: int, slack: int) -> int:
    """Returns the border near `ideal` that fewest edges cross; ties: the nearest."""
    low, high = max(ideal - slack, 1), min(ideal + slack, len(width))
    near = np.arange(low, high + 1)
    return int(near[np.lexsort((abs(near - ideal), width[near - 1]))[0]])
