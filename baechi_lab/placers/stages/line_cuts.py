"""The best cuts of a line of units into stages, by dynamic programming over all its intervals.

Source: the dynamic programmes of PipeDream (Narayanan et al. 2019, doi:10.1145/3341301.3359646, section 3.1) and of
Tarnawski et al., NeurIPS 2020, section 5.1.2 (on a linearisation). What an interval sends and receives is kept up to
date while it grows towards the front of the line, so that no interval is looked at twice.

Complexity: O(places * (units + tensors)) for the intervals and O(places^2 * devices * replicas) for the programme. It is
solved on few places first; what that costs bounds the intervals that are looked at among all places.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import transpose
from ...graph.kernels.jit import njit
from .chain import Chain
from .cut import fresh, least_work, leave_out, relax, stages_of
from .units import Units

COARSE, MOST = 200, 4000
"""Places where the line may be cut: at first, and at most."""


def cut_line(units: Units, chain: Chain, goal: tuple[float, float]) -> tuple[float, list[tuple[int, int, int, int]]]:
    """Least cost and its stages (first unit, last + 1, first device of the chain, devices); (inf, []) if none fits.

    `goal` = (ahead, micro_batches), see `cut`; (0, 1) asks for the period.
    """
    sums = chain.work, chain.barred, _before(units.held), _before(units.gradient)
    readers = transpose(units.reader_ptr, units.reader, units.n)
    outputs = np.searchsorted(units.producer, np.arange(units.n + 1))
    tensors = (units.producer, units.size.astype(np.float64), units.reader_ptr, units.reader, *readers, outputs)
    bound = np.inf
    found: tuple[float, list[tuple[int, int, int, int]]] = (np.inf, [])
    for most in (COARSE, MOST):
        places = np.unique(np.linspace(0, units.n, min(most, units.n) + 1).round().astype(np.int64))
        best, came = fresh(units.n + 1, len(chain.kind))
        _intervals(best, came, chain, sums, tensors, places, goal, bound)
        bound = min(bound, float(best[-1, -1]))
        if best[-1, -1] <= found[0] and np.isfinite(best[-1, -1]):
            found = float(best[-1, -1]), stages_of(came, units.n, len(chain.kind))
    return found


def _before(column: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(column)])


@njit(cache=True)
def _intervals(best: Any, came: Any, chain: Any, sums: Any, tensors: Any, places: Any, goal: Any, bound: Any) -> None:
    producer, size, reader_ptr, reader, input_ptr, inputs, outputs = tensors
    stamp, inside = np.full(len(producer), -1, np.int64), np.zeros(len(producer), np.int64)
    low, high = np.zeros(4), np.zeros(4)
    most = chain.run.max() if len(chain.run) else 1
    for p in range(1, len(places)):
        j, q = places[p], p - 1
        low[:], high[:] = 0.0, 0.0
        for i in range(j - 1, -1, -1):
            for t in range(outputs[i], outputs[i + 1]):
                if stamp[t] != j:
                    stamp[t], inside[t] = j, 0
                if inside[t] > 0:
                    _count(low, 0, size[t], -1)
                if reader_ptr[t + 1] - reader_ptr[t] > inside[t]:
                    _count(low if reader[reader_ptr[t]] < i else high, 2, size[t], 1)
            for k in range(input_ptr[i], input_ptr[i + 1]):
                t = inputs[k]
                if stamp[t] != j:
                    stamp[t], inside[t] = j, 0
                inside[t] += 1
                if i < producer[t] < j:
                    _count(low, 2, size[t], -1)
                    if reader_ptr[t + 1] - reader_ptr[t] > inside[t]:
                        _count(low if reader[reader_ptr[t]] < i else high, 2, size[t], 1)
                elif inside[t] == 1:
                    _count(low if producer[t] < i else high, 0, size[t], 1)
            if goal[1] * least_work(chain.work, i, j) / most > bound:
                break
            if i == places[q]:
                relax(best, came, chain, sums, i, j, low, high, goal)
                q -= 1
        leave_out(best, came, j)


@njit(cache=True)
def _count(side: Any, what: Any, size: Any, sign: Any) -> None:
    side[what] += sign
    side[what + 1] += sign * size
