"""Layered drawing of a graph that may have cycles (closed name scopes can form some), time flowing to the right.

Idea (Sugiyama, Tagawa, Toda 1981, doi:10.1109/TSMC.1981.4308636): layers by longest path, then the order within a
layer by repeated barycentres. Deviations: edges against the given topological position are ignored for the layering
instead of searching a minimum feedback set; sources move next to their first consumer; no dummy nodes; a layer that is
much taller than the drawing is broken into columns, and a drawing much longer than its box into bands that are read
like lines of text, so that wide and deep models stay readable. O(sweeps (E + V log V)).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SWEEPS = 12
BAND_GAP = 2.0
"""Empty rows between two bands."""


def layered(
    position: Array, source: NDArray[np.int32], target: NDArray[np.int32], aspect: float = 1.7
) -> tuple[Array, Array]:
    """Column and row (float64[n] each, in units of one cell) for nodes with a topological `position` and edges.

    `aspect` is columns per row of the box to fill (cells are wider than tall).

    >>> x, y = layered(np.arange(3.0), np.array([0, 0]), np.array([1, 2]))
    >>> x.tolist(), y.tolist()
    ([0.0, 1.0, 1.0], [0.0, -0.5, 0.5])
    """
    n = len(position)
    if n == 0:
        return np.zeros(0), np.zeros(0)
    forward = position[source] < position[target]
    source, target = source[forward], target[forward]
    layer = _late_sources(_longest_path(n, position, source, target), source, target)
    rank = _ordered(layer, position, source, target)
    return _cells(layer, rank, aspect)


def _longest_path(n: int, position: Array, source: NDArray[np.int32], target: NDArray[np.int32]) -> NDArray[np.int64]:
    order = np.argsort(position[source], kind="stable")
    layer = [0] * n
    # Edges sorted by their source's position: a source is final before any of its edges is relaxed.
    for u, v in zip(source[order].tolist(), target[order].tolist(), strict=True):
        if layer[v] <= layer[u]:
            layer[v] = layer[u] + 1
    return np.array(layer, dtype=np.int64)


def _late_sources(layer: NDArray[np.int64], source: NDArray[np.int32], target: NDArray[np.int32]) -> NDArray[np.int64]:
    """Variables and constants have no predecessors; drawn in layer 0 they would pile up far from their use."""
    has_input = np.zeros(len(layer), dtype=bool)
    has_input[target] = True
    first_use = np.full(len(layer), np.iinfo(np.int64).max)
    np.minimum.at(first_use, source, layer[target])
    move = ~has_input & (first_use < np.iinfo(np.int64).max)
    return np.where(move, np.maximum(first_use - 1, 0), layer)


def _ordered(layer: NDArray[np.int64], position: Array, source: NDArray[np.int32], target: NDArray[np.int32]) -> Array:
    """Rank of every node within its layer, after alternating barycentre sweeps over all edges at once."""
    n = len(layer)
    rank = _rank_within(layer, position)
    size = np.bincount(layer)[layer]
    for sweep in range(SWEEPS if len(source) else 0):
        here, there = (target, source) if sweep % 2 == 0 else (source, target)
        height = (rank - (size - 1) / 2.0)[there]
        degree = np.bincount(here, minlength=n)
        mean = np.bincount(here, height, minlength=n) / np.maximum(degree, 1)
        wanted = np.where(degree > 0, mean, rank - (size - 1) / 2.0)
        rank = _rank_within(layer, wanted)
    return rank


def _rank_within(layer: NDArray[np.int64], value: Array) -> Array:
    order = np.lexsort((np.arange(len(layer)), value, layer))
    first = np.searchsorted(layer[order], layer[order], side="left")
    rank = np.empty(len(layer))
    rank[order] = np.arange(len(layer)) - first
    return rank


def _cells(layer: NDArray[np.int64], rank: Array, aspect: float) -> tuple[Array, Array]:
    """Break tall layers into columns of at most `height` rows, and a long drawing into bands, as text into lines."""
    height = max(6, int(np.ceil(np.sqrt(len(layer) / aspect))))
    size = np.bincount(layer)
    columns = -(-size // height)
    per_column = -(-size // np.maximum(columns, 1))
    column = (np.cumsum(columns) - columns)[layer] + (rank // per_column[layer]).astype(np.int64)
    order = np.lexsort((rank, column))
    row = np.empty(len(layer))
    row[order] = np.arange(len(layer)) - np.searchsorted(column[order], column[order], side="left")
    tall = np.bincount(column)
    wide, tops = _bands(tall, aspect)
    return (column % wide).astype(np.float64), row - (tall[column] - 1) / 2.0 + tops[column // wide]


def _bands(tall: NDArray[np.int64], aspect: float) -> tuple[int, Array]:
    """Columns per band, and the middle row of every band, such that the drawing fits a box of that aspect largest."""
    best: tuple[float, int, Array] = (0.0, len(tall), np.zeros(1))
    for count in range(1, 13):
        wide = -(-len(tall) // count)
        padded = np.zeros(count * wide, dtype=np.int64)
        padded[: len(tall)] = tall
        heights = padded.reshape(count, wide).max(axis=1) + BAND_GAP
        size = min(aspect / wide, 1.0 / (heights.sum() - BAND_GAP))
        # Cutting costs: edges from one band to the next are long, so a cut must pay.
        if size > best[0] * 1.2:
            best = (size, wide, np.cumsum(heights) - heights / 2 - (heights[0] - BAND_GAP) / 2 - BAND_GAP / 2)
    return best[1], best[2]
