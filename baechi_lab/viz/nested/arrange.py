"""Layout of one frame: boxes of given sizes in bands, and the arrows between them.

A long chain is broken into bands. The direction alternates from band to band, so that arrows between bands are short. The
outermost frame of a training step has the forward pass above and the backward pass below, each backward box under the box of
its forward ops. The band and the layer of a box follow from the sizes of closed boxes, so opening a box moves no other box to
another band.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ...graph.kernels.csr import Bools, Floats, Ints
from .layered import longest_path, rows

COLUMN_GAP, BAND_GAP = 26.0, 34.0  # pixels
MOST_BANDS = 8  # into which a long row of boxes is broken
Point = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Boxes:
    """The boxes of one frame: current and closed sizes, topological `order`, backward boxes and their forward twins (or -1)."""

    width: Floats
    height: Floats
    closed_width: Floats
    closed_height: Floats
    order: Floats
    backward: Bools
    twin: Ints


@dataclass(frozen=True, eq=False)
class Arrangement:
    """The middles of the boxes, the size of the frame, and the points of each edge's arrow, `upright` if it leaves vertically."""

    x: Floats
    y: Floats
    width: float
    height: float
    paths: tuple[tuple[Point, ...], ...]
    upright: Bools


def arrange(
    boxes: Boxes, source: Ints, target: Ints, weight: Floats, aspect: float, is_mirrored: bool = False
) -> Arrangement:
    """Positions boxes and arrows; `aspect` is the wanted width per height, and with `is_mirrored` time runs to the left.

    >>> three, flat = np.full(3, 40.0), np.full(3, 20.0)
    >>> boxes = Boxes(three, flat, three, flat, np.arange(3.0), np.zeros(3, bool), np.full(3, -1))
    >>> arrange(boxes, np.array([0, 1]), np.array([1, 2]), np.ones(2), 10.0).x.tolist()
    [20.0, 86.0, 152.0]
    """
    if len(boxes.order) == 0:
        return Arrangement(np.zeros(0), np.zeros(0), 0.0, 0.0, (), np.zeros(0, np.bool_))
    if boxes.backward.any() and not boxes.backward.all():
        band = boxes.backward.astype(np.int64)
        column = np.zeros(len(band), dtype=np.int64)
        ahead = ~boxes.backward
        inside = ahead[source] & ahead[target]
        column[ahead] = longest_path(boxes.order, source[inside], target[inside])[ahead]
        inside = boxes.backward[source] & boxes.backward[target]
        layers = longest_path(boxes.order, source[inside], target[inside])
        last = max(int(column[ahead].max()), int(layers[boxes.backward].max()))
        column[boxes.backward] = np.where(boxes.twin >= 0, column[boxes.twin], last - layers)[boxes.backward]
        column = np.unique(column, return_inverse=True)[1].reshape(-1)
    else:
        column, band = _bands(boxes, longest_path(boxes.order, source, target), aspect)
    return _Frame(boxes, column, band, is_mirrored).arrangement(source, target, weight)


def _bands(boxes: Boxes, layer: Ints, aspect: float) -> tuple[Ints, Ints]:
    """Returns every box's column in its band, and its band, for the number of bands with the largest drawing on the page."""
    layer = np.unique(layer, return_inverse=True)[1].reshape(-1)
    count = int(layer.max()) + 1
    wide, tall = np.zeros(count), np.zeros(count)
    np.maximum.at(wide, layer, boxes.closed_width + COLUMN_GAP)
    np.add.at(tall, layer, boxes.closed_height + 12.0)
    best, best_bands = 0.0, (layer, np.zeros_like(layer))
    for bands in range(1, min(MOST_BANDS, count) + 1):
        per_band = -(-count // bands)
        if bands > 1 and -(-count // per_band) < bands:
            continue
        band = np.arange(count) // per_band
        width = float(np.bincount(band, wide).max())
        height = sum(float(tall[band == b].max()) + BAND_GAP for b in range(bands)) - BAND_GAP
        size = min(aspect / width, 1.0 / height)
        # An arrow to the next band is longer than one to the next column, so that each cut has a cost.
        if size > best * (1.15 if bands > 1 else 1.0):
            best, best_bands = size, ((np.arange(count) % per_band)[layer], band[layer])
    return best_bands


class _Frame:
    """Positions boxes and arrows whose columns and bands are known."""

    def __init__(self, boxes: Boxes, column: Ints, band: Ints, is_mirrored: bool):
        self.boxes, self.column, self.band, self.mirrored = boxes, column, band, is_mirrored
        self.has_both_directions = bool(boxes.backward.any() and not boxes.backward.all())
        self.x, self.y = np.zeros(len(column)), np.zeros(len(column))
        self.left: dict[int, Floats] = {}
        self.right: dict[int, Floats] = {}
        self.through: dict[int, list[Point]] = {}
        self.band_ends: list[tuple[float, float]] = []

    def arrangement(self, source: Ints, target: Ints, weight: Floats) -> Arrangement:
        """Positions the boxes, band below band, and routes the arrows between them."""
        width, spans = self.boxes.width, {}
        for band in range(int(self.band.max()) + 1):
            in_band = np.ones(len(self.band), np.bool_) if self.has_both_directions else self.band == band
            wide = np.zeros(int(self.column[in_band].max()) + 1)
            np.maximum.at(wide, self.column[in_band], width[in_band])
            end = np.cumsum(wide + COLUMN_GAP) - COLUMN_GAP
            spans[band] = (end - wide, end)
        self.total = max(float(end[-1]) for _, end in spans.values())
        for band, (start, end) in spans.items():
            is_mirrored = self.mirrored != (band % 2 == 1 and not self.has_both_directions)
            self.left[band], self.right[band] = (self.total - end, self.total - start) if is_mirrored else (start, end)
        top = 0.0
        for band in range(int(self.band.max()) + 1):
            nodes = np.flatnonzero(self.band == band)
            at = np.full(len(self.band), -1)
            at[nodes] = np.arange(len(nodes))
            edges = np.flatnonzero((at[source] >= 0) & (at[target] >= 0) & (self.column[source] != self.column[target]))
            ordered_rows = rows(
                self.column[nodes],
                self.boxes.height[nodes],
                at[source[edges]],
                at[target[edges]],
                weight[edges],
                self.boxes.order[nodes],
            )
            middle = (self.left[band] + self.right[band]) / 2
            self.x[nodes], self.y[nodes] = middle[self.column[nodes]], ordered_rows.y + top
            for e, points in zip(edges.tolist(), ordered_rows.through, strict=True):
                rising = bool(self.x[target[e]] > self.x[source[e]])
                way_points: list[Point] = []
                for layer, y in points:
                    column_edges = (float(self.left[band][layer]), float(self.right[band][layer]))
                    way_points.extend((x, y + top) for x in (column_edges if rising else column_edges[::-1]))
                self.through[e] = way_points
            band_low = max([top, *(y for e in edges.tolist() for _, y in self.through[e])])
            low = max(band_low, float((self.y[nodes] + self.boxes.height[nodes] / 2).max()))
            self.band_ends.append((top, low))
            # The space below a band grows with the arrows that cross it.
            across = (self.band[source] <= band) != (self.band[target] <= band)
            top = low + (
                BAND_GAP + min(3.0 * np.count_nonzero(across & (self.column[source] != self.column[target])), BAND_GAP)
            )
        paths, upright = self._paths(source, target)
        return Arrangement(self.x, self.y, self.total, self.band_ends[-1][1], paths, upright)

    def _paths(self, source: Ints, target: Ints) -> tuple[tuple[tuple[Point, ...], ...], Bools]:
        """Returns the points of each edge, with ends spread along the sides of the boxes."""
        upright = np.array([e not in self.through for e in range(len(source))], dtype=np.bool_)
        path_ends: list[list[Point]] = [[(0.0, 0.0), (0.0, 0.0)] for _ in range(len(source))]
        sides: dict[tuple[int, int], list[tuple[float, int, int]]] = defaultdict(list)
        for e, (u, v) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
            inner = self.through.get(e, [])
            for end, box, other_box in ((0, u, v), (1, v, u)):
                near = (inner[0] if end == 0 else inner[-1]) if inner else (self.x[other_box], self.y[other_box])
                if upright[e]:
                    below = bool(self.y[other_box] > self.y[box])
                    sides[box, 2 + below].append((float(near[0]) + (end - 0.5) * (1 if below else -1), e, end))
                else:
                    sides[box, int(self.x[other_box] > self.x[box])].append((float(near[1]), e, end))
        for (box, side), arrows in sides.items():
            # Spread the ends of arrows on one side (left, right, top, bottom) of a box, in the order of their other
            # ends.
            w, h = float(self.boxes.width[box]), float(self.boxes.height[box])
            length = w if side >= 2 else h
            reach = min(length / 2 - 7, (7.0 if side >= 2 else 3.0) * (len(arrows) - 1))
            for k, (_, e, end) in enumerate(sorted(arrows)):
                shift = reach * (2 * k / (len(arrows) - 1) - 1) if len(arrows) > 1 else 0.0
                x, y = float(self.x[box]), float(self.y[box])
                if side >= 2:
                    path_ends[e][end] = (x + shift, y + (h / 2 if side == 3 else -h / 2))
                else:
                    path_ends[e][end] = (x + (w / 2 if side == 1 else -w / 2), y + shift)
        paths = [
            (a, *(self._crossing_points(u, v, a, b) if upright[e] else self.through[e]), b)
            for e, ((a, b), u, v) in enumerate(zip(path_ends, source.tolist(), target.tolist(), strict=True))
        ]
        return tuple(paths), upright

    def _crossing_points(self, u: int, v: int, start: Point, end: Point) -> list[Point]:
        """Returns the points of an arrow to another band, which crosses in the space between the bands."""
        if self.band[u] == self.band[v]:
            return []
        downwards = self.band[u] < self.band[v]
        source_edges, target_edges = self.band_ends[self.band[u]], self.band_ends[self.band[v]]
        leaves, arrives = (source_edges[1], target_edges[0]) if downwards else (source_edges[0], target_edges[1])
        return [p for p, at in (((start[0], leaves), start), ((end[0], arrives), end)) if abs(p[1] - at[1]) > 1.0]
