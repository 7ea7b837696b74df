"""Checks of the sizes and numbers that generators take: what would not fit into memory is refused before it is made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...checks import check_number, check_whole, is_list
from ...errors import InvalidInput, in_short

MOST_OPS = 10_000_000  # of a generated graph, which must fit in memory
MOST_EDGES = 50_000_000
"""Largest generated graph; its arrays and names take a few GB."""
MOST_BYTES = 1 << 60
"""Most bytes of one tensor or op."""


def check_count(field: str, value: object, low: int = 1) -> int:
    """Returns a whole number from `low` to `MOST_OPS`; raises `InvalidInput` otherwise.

    >>> check_count("n", 2**31)
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: n is 2147483648; generated graphs have at most 10000000 ops
    """
    count = check_whole(field, value, low)
    if count > MOST_OPS:
        raise InvalidInput(f"{field} is {in_short(count)}; generated graphs have at most {MOST_OPS} ops")
    return count


def check_size(arguments: str, ops: float, edges: float = 0) -> None:
    """Raises `InvalidInput` if a graph of so many ops and edges is too large; `arguments` names what made it so.

    >>> check_size("degree 1e+300", 10, 1e301)
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: degree 1e+300 makes more than 50000000 edges; a generated graph may have that many
    """
    for noun, count, largest in (("ops", ops, MOST_OPS), ("edges", edges, MOST_EDGES)):
        if count > largest:
            raise InvalidInput(f"{arguments} makes more than {largest} {noun}; a generated graph may have that many")


def check_bytes(field: str, value: object) -> int:
    """Returns a whole number of bytes from 0 to `MOST_BYTES`; raises `InvalidInput` otherwise."""
    size = check_whole(field, value, 0)
    if size > MOST_BYTES:
        raise InvalidInput(f"{field} is {in_short(size)}; it must be at most {MOST_BYTES} bytes")
    return size


def check_numbers(field: str, values: object) -> NDArray[np.float64]:
    """Returns a list of finite numbers of at least 0 as float64; raises `InvalidInput` otherwise."""
    if not isinstance(values, (Sequence, np.ndarray)) or isinstance(values, (str, bytes)) or not is_list(values):
        raise InvalidInput(f"{field} is {in_short(values)}; it must be a list of numbers")
    return np.array([check_number(f"an entry of {field}", value) for value in values], dtype=np.float64)
