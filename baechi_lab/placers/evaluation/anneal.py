"""Simulated annealing over device assignments and priorities, compiled as one loop.

State: a device per unit (a set of ops that move together: a colocation group, or a cluster of them on a coarser level)
and a rank per op. Cost: time and overflow at their `Prices` (`evaluation.cost`), from `evaluation.evaluate`.

Source: Metropolis et al. 1953, doi:10.1063/1.1699114 (the acceptance rule); Kirkpatrick, Gelatt and Vecchi 1983,
doi:10.1126/science.220.4598.671. Complexity: one simulation per step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...graph.kernels.jit import njit
from .cost import Objective, candidate_cost
from .moves import State, Units, random_move, remember_if_best, undo
from .parameters import EVALUATION, Moves


@njit(cache=True, nogil=True)
def acceptance_threshold(cost: float, temperature: float, rng: np.random.Generator) -> float:
    """Draw the highest cost at which a candidate replaces the current one: `cost - temperature * log(u)`, `u` in (0, 1].

    A candidate that costs `d` more is accepted with probability `exp(-d / temperature)`. The threshold is drawn before the
    simulation, so that the simulation can stop once its cost must exceed the threshold.

    >>> acceptance_threshold(5.0, 0.0, np.random.default_rng(0))
    5.0
    """
    return cost - temperature * np.log(1.0 - rng.random())


class Schedule(NamedTuple):
    """Cooling schedule: the temperature falls geometrically from `hot` to `cold` (units of cost) over `steps` simulations.

    `until_feasible`: stop once no device exceeds its memory. `moves`: how often each kind of move is tried.
    """

    hot: float
    cold: float
    steps: int
    until_feasible: bool = False
    moves: Moves = EVALUATION.moves


NO_STEPS = Schedule(0.0, 0.0, 0)
"""The current candidate is simulated, and remembered if it is the best. A kernel of its own would take seconds to compile."""


@njit(cache=True, nogil=True)
def anneal(objective: Objective, s: State, units: Units, schedule: Schedule, rng: np.random.Generator) -> int:
    """Anneal the state `s` in place, moving `units`; returns the number of moves.

    The current candidate is simulated first, so that a state may be new; without steps that is all.
    """
    hot, steps = schedule.hot, schedule.steps
    accepted_moves = 0
    ratio = schedule.cold / hot if hot > 0.0 else 1.0
    s.cost[0], time, overflow_bytes = candidate_cost(objective, s, np.inf)
    remember_if_best(s, s.cost[0], time, overflow_bytes)
    while accepted_moves < steps:
        if schedule.until_feasible and s.cost[3] <= 0.0:
            break
        accepted_moves += 1
        overfull = objective.prices.overflow > 0.0 and s.cost[3] > 0.0
        changed_count = random_move(objective, s, units, overfull, schedule.moves, rng)
        if changed_count == 0:
            continue
        temperature = hot * ratio ** (accepted_moves / steps)
        threshold = acceptance_threshold(s.cost[0], temperature, rng)
        cost, time, overflow_bytes = candidate_cost(objective, s, threshold)
        if cost <= threshold:
            s.cost[0] = cost
            remember_if_best(s, cost, time, overflow_bytes)
        else:
            undo(s, changed_count)
    return accepted_moves
