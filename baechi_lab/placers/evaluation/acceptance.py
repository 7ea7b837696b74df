"""The acceptance rule of simulated annealing, as a threshold of cost.

Source: Metropolis et al. 1953, doi:10.1063/1.1699114; Kirkpatrick, Gelatt and Vecchi 1983, doi:10.1126/science.220.4598.671.
"""

from __future__ import annotations

import numpy as np

from ...graph.kernels.jit import njit


@njit(cache=True, nogil=True)
def acceptance_threshold(cost: float, temperature: float, rng: np.random.Generator) -> float:
    """Draw the highest cost at which a candidate replaces the current one: `cost - temperature * log(u)`, `u` in (0, 1].

    A candidate that costs `d` more is accepted with probability `exp(-d / temperature)`. The threshold is drawn before the
    simulation, so that the simulation can stop once its cost must exceed the threshold.

    >>> acceptance_threshold(5.0, 0.0, np.random.default_rng(0))
    5.0
    """
    return cost - temperature * np.log(1.0 - rng.random())
