"""Every assignment of few units to devices."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray


def every_assignment(allowed: NDArray[np.bool_], limit: int) -> Iterator[NDArray[np.int64]]:
    """Yields every device int64[units] that `allowed` bool[units, devices] permits; nothing if there are more than `limit`.

    >>> [assignment.tolist() for assignment in every_assignment(np.array([[True, True], [False, True]]), 4)]
    [[0, 1], [1, 1]]
    """
    if np.log(np.maximum(allowed.sum(axis=1), 1)).sum() <= np.log(limit) + 1e-9:
        for assignment in product(*(np.flatnonzero(row).tolist() for row in allowed)):
            yield np.array(assignment, dtype=np.int64)
