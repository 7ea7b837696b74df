"""Which candidates simulated annealing takes.

Source: Metropolis et al. 1953, doi:10.1063/1.1699114; Kirkpatrick, Gelatt and Vecchi 1983, doi:10.1126/science.220.4598.671.
"""

from __future__ import annotations

import numpy as np

from ...graph.kernels.jit import njit


@njit(cache=True, nogil=True)
def acceptance_threshold(cost: float, temperature: float, rng: np.random.Generator) -> float:
    """The most that a candidate may cost to replace one of `cost`: `cost - temperature * log(u)`, `u` uniform in (0, 1].

    A candidate that costs `d` more is thus taken with probability `exp(-d / temperature)`. Drawn before the candidate is
    simulated, the threshold lets the simulation stop as soon as it is bound to exceed it.

    >>> acceptance_threshold(5.0, 0.0, np.random.default_rng(0))
    5.0
    """
    return cost - temperature * np.log(1.0 - rng.random())
