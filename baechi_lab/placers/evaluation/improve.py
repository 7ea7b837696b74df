"""Improves a placement that fits in memory, by a few annealing steps from a low temperature."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph import Placement
from .anneal import Schedule, anneal
from .cost import Objective
from .moves import Units, make_state
from .parameters import EVALUATION


def improve(
    objective: Objective,
    units: Units,
    device: NDArray[np.int32],
    rank: NDArray[np.number] | None,
    step_us: float,
    steps: int,
    rng: np.random.Generator,
) -> Placement:
    """Returns a placement that costs no more than the one with these devices and this rank, after `steps` simulations.

    Args:
        objective: the cost of a placement.
        units: the sets of ops that move together.
        device, rank: the devices and the planned rank of every op. Without a rank, ops run by readiness, here and in the result.
        step_us: the step time of this placement.
        steps: simulations.
        rng: the source of random moves.
    """
    state = make_state(device, rank)
    temperature_us = max(step_us * EVALUATION.improving_heat, 1e-9)  # the first; the last is a share of it
    schedule = Schedule(temperature_us, temperature_us * EVALUATION.improving_cooling, steps)
    anneal(objective, state, units, schedule, rng)
    order = state.best_position.astype(np.float64) if state.by_rank else None
    return Placement(device=state.best_device, order=order)
