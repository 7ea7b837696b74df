"""A candidate placement as arrays for compiled code, and the limits that end its simulation early."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import inverse


class Assignment(NamedTuple):
    """A device for each op, and the order in which devices take ready ops.

    `device` int32[n]. With `by_rank`, a device runs the ready op with the lowest `position` int32[n] first (`at` int32[n]
    is its inverse); otherwise the op that became ready first."""

    device: NDArray[np.int32]
    position: NDArray[np.int32]
    at: NDArray[np.int32]
    by_rank: bool


class Limits(NamedTuple):
    """Conditions under which a simulation ends early.

    It ends once its makespan must exceed `cutoff` microseconds or, where it follows memory (`track`), once the bytes above
    the devices' limits exceed `max_overflow_bytes`."""

    track: bool
    cutoff: float = np.inf
    max_overflow_bytes: float = np.inf


def make_assignment(device: NDArray[np.number], rank: NDArray[np.number] | None) -> Assignment:
    """Makes an assignment of `device` int[n] that runs low `rank` float[n] first (ties by index); None: first in, first out."""
    return Assignment(np.array(device, dtype=np.int32), *positions(rank, len(device)), rank is not None)


def positions(rank: NDArray[np.number] | None, n: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns the position int32[n] of each op by rank (ties by index; None: the order of indices), and its inverse."""
    at = np.arange(n, dtype=np.int32) if rank is None else np.argsort(rank, kind="stable").astype(np.int32)
    return inverse(at).astype(np.int32), at
