"""Connected components of a list of pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..graph.kernels.csr import Integers


def components(n: int, a: Integers, b: Integers) -> NDArray[np.int64]:
    """Returns int64[n]: the smallest node to which each node is connected by the pairs `(a[k], b[k])`. O(n + pairs)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not len(a):
        return np.arange(n, dtype=np.int64)
    edges = coo_array((np.ones(len(a), dtype=np.int8), (a, b)), shape=(n, n))
    label = connected_components(edges, directed=False)[1]
    smallest = np.full(n, n, dtype=np.int64)
    np.minimum.at(smallest, label, np.arange(n))
    return smallest[label]
