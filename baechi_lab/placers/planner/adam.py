"""Adam (Kingma and Ba 2015, arXiv:1412.6980) on NumPy arrays, with the gradient's global norm clipped first.

In NumPy so that its whole state is arrays that a checkpoint can hold; O(weights).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

FIRST_DECAY, SECOND_DECAY, EPSILON = 0.9, 0.999, 1e-8
"""The authors' defaults; H names only the learning rate."""


class Adam:
    """Moments of every weight, and how many steps were taken."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], learning_rate: float):
        self.learning_rate = learning_rate
        self.steps = 0
        self.first = {name: np.zeros_like(value) for name, value in weights.items()}
        self.second = {name: np.zeros_like(value) for name, value in weights.items()}

    def step(
        self, weights: dict[str, NDArray[np.float32]], gradient: Mapping[str, NDArray[np.float32]], largest_norm: float
    ) -> None:
        """Replaces `weights` by those after one step along `gradient` scaled to a norm of at most `largest_norm`."""
        self.steps += 1
        norm = float(np.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in gradient.values())))
        scale = np.float32(min(1.0, largest_norm / norm) if norm > 0 else 1.0)
        rate = self.learning_rate * np.sqrt(1 - SECOND_DECAY**self.steps) / (1 - FIRST_DECAY**self.steps)
        for name, g in gradient.items():
            clipped_gradient = g * scale
            self.first[name] += np.float32(1 - FIRST_DECAY) * (clipped_gradient - self.first[name])
            self.second[name] += np.float32(1 - SECOND_DECAY) * (np.square(clipped_gradient) - self.second[name])
            move = rate * self.first[name] / (np.sqrt(self.second[name]) + EPSILON)
            with np.errstate(over="ignore"):  # the trainer looks at what became of them
                weights[name] = (weights[name] - move).astype(np.float32)
