"""Connected components of a list of pairs, by array operations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..graph.kernels.csr import Integers


def components(n: int, a: Integers, b: Integers) -> NDArray[np.int64]:
    """Returns int64[n]: the smallest node to which each node is connected by the pairs `(a[k], b[k])`.

    Every root with a smaller neighbour hooks onto it, then paths are halved until they are flat. Only roots that are local
    minima remain after a round: O((n + pairs) log n).

    >>> components(5, np.array([3, 4]), np.array([1, 3])).tolist()
    [0, 1, 2, 1, 1]
    """
    label = np.arange(n, dtype=np.int64)
    while True:
        first_label, second_label = label[a], label[b]
        open_pairs = first_label != second_label
        if not open_pairs.any():
            return label
        a, b, first_label, second_label = (
            a[open_pairs],
            b[open_pairs],
            first_label[open_pairs],
            second_label[open_pairs],
        )
        np.minimum.at(label, np.maximum(first_label, second_label), np.minimum(first_label, second_label))
        while True:
            shorter = label[label]
            if np.array_equal(shorter, label):
                break
            label = shorter
