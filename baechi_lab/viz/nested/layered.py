"""Layered drawing of boxes of any size: time runs to the right, and arrows run around boxes.

Idea (Sugiyama, Tagawa, Toda 1981, doi:10.1109/TSMC.1981.4308636): boxes are layered by longest path. A long arrow has a point
in every layer that it crosses. Repeated barycentres order each layer, and the order with fewest crossings is used. Heights
then make arrows straight. Deviations: an arrow against the given order is reversed, without a search for a minimum feedback
set. Long arrows of one box share their points, because they mostly carry the same tensors. Heights solve, layer by layer, the
least-squares problem "near the neighbours, in this order, with these distances" exactly (pool adjacent violators).
O(sweeps (E log E + V log V)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import Floats, Ints

SWEEPS, ORDERINGS = 8, 24
"""Sweeps that improve heights, and sweeps that improve the orders of layers."""
GAP = 12.0
"""Pixels between two boxes of a layer."""
THIN = 6.0
"""Height of a point of a long arrow, in pixels."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The middle `y` of every box, and the points `(layer, y)` of each edge between its ends, from source to target."""

    y: Floats
    through: tuple[tuple[tuple[int, float], ...], ...]


def longest_path(order: Floats, source: Ints, target: Ints) -> Ints:
    """Returns int64[n]: a layer per box, so that every edge goes to a later layer; boxes without inputs get the latest one.

    >>> longest_path(np.array([0.0, 1.0, 3.0, 2.0]), np.array([0, 1, 3]), np.array([1, 2, 2])).tolist()
    [0, 1, 2, 1]
    """
    layer = np.zeros(len(order), dtype=np.int64)
    swap = (order[source] > order[target]) | ((order[source] == order[target]) & (source > target))
    u, v = np.where(swap, target, source), np.where(swap, source, target)
    for k in np.argsort(order[u], kind="stable").tolist():
        layer[v[k]] = max(layer[v[k]], layer[u[k]] + 1)
    has_inputs = np.zeros(len(order), dtype=np.bool_)
    has_inputs[v] = True
    first_reader_layer = np.full(len(order), np.iinfo(np.int64).max)
    np.minimum.at(first_reader_layer, u, layer[v])
    is_delayed = ~has_inputs & (first_reader_layer < np.iinfo(np.int64).max)
    return np.where(is_delayed, first_reader_layer - 1, layer)


def rows(layer: Ints, height: Floats, source: Ints, target: Ints, weight: Floats, order: Floats) -> Rows:
    """Returns the positions of boxes in given layers. Edges may have any direction; those within a layer are ignored.

    Args:
        layer, height, order: per box; `order` breaks ties within a layer at the start.
        source, target, weight: per edge; heavier edges are made straighter.
    """
    graph = _with_points(layer, height, source, target, weight, order)
    best_order = _order_layers(graph)
    y = _heights(graph, best_order)
    y -= float((y - graph.height / 2).min(initial=np.inf)) if len(y) else 0.0
    through = tuple(tuple((int(graph.layer[p]), float(y[p])) for p in chain) for chain in graph.chains)
    return Rows(y[: len(layer)], through)


@dataclass(frozen=True, eq=False)
class _LayersWithPoints:
    """Boxes, followed by the points of long arrows. Links join neighbouring layers from `left` to `right`."""

    layer: Ints
    height: Floats
    order: Floats
    left: Ints
    right: Ints
    weight: Floats
    chains: tuple[tuple[int, ...], ...]


def _with_points(
    layer: Ints, height: Floats, source: Ints, target: Ints, weight: Floats, order: Floats
) -> _LayersWithPoints:
    """Adds a point on every layer that an edge passes, so that edges join neighbours; edges from one box share points."""
    layers, heights, orders = layer.tolist(), height.tolist(), order.tolist()
    links: dict[tuple[int, int], float] = {}
    point_of: dict[tuple[int, int, bool], int] = {}
    chains = []
    for source_box, target_box, edge_weight in zip(source.tolist(), target.tolist(), weight.tolist(), strict=True):
        forward = layers[source_box] < layers[target_box]
        left_end, right_end = (source_box, target_box) if forward else (target_box, source_box)
        chain, previous = [], left_end
        for crossed_layer in range(layers[left_end] + 1, layers[right_end]):
            key = (source_box, crossed_layer, forward)
            if key not in point_of:
                point_of[key] = len(layers)
                layers.append(crossed_layer)
                heights.append(THIN)
                orders.append(orders[source_box])
            point = point_of[key]
            links[previous, point] = links.get((previous, point), 0.0) + 3 * edge_weight
            chain.append(point)
            previous = point
        if layers[left_end] < layers[right_end]:
            links[previous, right_end] = links.get((previous, right_end), 0.0) + edge_weight
        chains.append(tuple(chain if forward else chain[::-1]))
    link_ends = np.array(list(links), dtype=np.int64).reshape(-1, 2)
    return _LayersWithPoints(
        layer=np.array(layers),
        height=np.array(heights),
        order=np.array(orders),
        left=link_ends[:, 0],
        right=link_ends[:, 1],
        weight=np.array(list(links.values())),
        chains=tuple(chains),
    )


def _order_layers(graph: _LayersWithPoints) -> list[Ints]:
    """Returns the boxes and points of each layer from top to bottom, after the sweep with fewest crossings."""
    rank = _ranks(graph.layer, graph.order)
    best_rank, fewest = rank, crossings(graph.layer, rank, graph.left, graph.right)
    for sweep in range(ORDERINGS):
        moved_end, fixed_end = (graph.right, graph.left) if sweep % 2 == 0 else (graph.left, graph.right)
        degree: NDArray[np.int64] = np.bincount(moved_end, minlength=len(rank))
        # Ranks relative to the middle of their layer can be compared between layers of different size.
        centre_rank = rank - (np.bincount(graph.layer)[graph.layer] - 1) / 2.0
        mean = np.bincount(moved_end, centre_rank[fixed_end], minlength=len(rank)) / np.maximum(degree, 1)
        rank = _ranks(graph.layer, np.where(degree > 0, mean, centre_rank))
        count = crossings(graph.layer, rank, graph.left, graph.right)
        if count < fewest:
            best_rank, fewest = rank, count
    order = np.lexsort((best_rank, graph.layer))
    return np.split(order, np.flatnonzero(np.diff(graph.layer[order])) + 1) if len(order) else []


def _ranks(layer: Ints, value: Floats) -> Floats:
    """Returns the rank of every box or point in its layer by `value`, from 0."""
    order = np.lexsort((np.arange(len(layer)), value, layer))
    first = np.searchsorted(layer[order], layer[order], side="left")
    rank = np.empty(len(layer))
    rank[order] = np.arange(len(layer)) - first
    return rank


def crossings(layer: Ints, rank: Floats, left: Ints, right: Ints) -> int:
    """Counts the pairs of links between the same two layers that cross.

    >>> crossings(np.array([0, 0, 1, 1]), np.array([0.0, 1, 0, 1]), np.array([0, 1]), np.array([3, 2]))
    1
    """
    total = 0
    for k in np.unique(layer[left]).tolist():
        in_layer = layer[left] == k
        a, b = rank[left[in_layer]], rank[right[in_layer]]
        total += int(np.count_nonzero((a[:, None] < a[None, :]) & (b[:, None] > b[None, :])))
    return total


def _heights(graph: _LayersWithPoints, layers: Sequence[Ints]) -> Floats:
    """Returns the middle of every box and point, after sweeps that move each layer towards its neighbours in its order."""
    y = np.zeros(len(graph.layer))
    for column in layers:
        y[column] = _pack(np.zeros(len(column)), np.ones(len(column)), _least_distances(graph.height[column]))
    n = len(y)
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        is_last = sweep >= SWEEPS - 2
        for column in layers if forward else layers[::-1]:
            pull, total = np.zeros(n), np.zeros(n)
            for moved_end, fixed_end in ((graph.right, graph.left), (graph.left, graph.right)):
                if is_last or (moved_end is graph.right) == forward:
                    pull += np.bincount(moved_end, graph.weight * y[fixed_end], minlength=n)
                    total += np.bincount(moved_end, graph.weight, minlength=n)
            wanted_y = np.where(total > 0, pull / np.maximum(total, 1e-300), y)[column]
            y[column] = _pack(wanted_y, np.maximum(total[column], 1e-3), _least_distances(graph.height[column]))
    return y


def _least_distances(height: Floats) -> Floats:
    """Returns the least distances between the middles of neighbours; points may be closer together than boxes."""
    is_point = height <= THIN
    gap = np.where(is_point[:-1] & is_point[1:], 2.0, GAP)
    return (height[:-1] + height[1:]) / 2 + gap


def _pack(wish: Floats, weight: Floats, distances: Floats) -> Floats:
    """Returns the values nearest to `wish` (least squares) that grow by at least `distances`: isotonic regression, O(n).

    >>> _pack(np.array([0.0, 0.0]), np.ones(2), np.array([4.0])).tolist()
    [-2.0, 2.0]
    """
    offset = np.concatenate([[0.0], np.cumsum(distances)]) if len(wish) else np.zeros(0)
    blocks: list[tuple[float, float, int]] = []
    for value, value_weight in zip((wish - offset).tolist(), weight.tolist(), strict=True):
        mean, total, size = value, value_weight, 1
        while blocks and blocks[-1][0] >= mean:
            mean_above, weight_above, count = blocks.pop()
            mean = (mean_above * weight_above + mean * total) / (weight_above + total)
            total = total + weight_above
            size = size + count
        blocks.append((mean, total, size))
    return np.repeat([b[0] for b in blocks], [b[2] for b in blocks]) + offset
