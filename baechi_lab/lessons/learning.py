"""Exercises of `40_hierarchical_planner.ipynb`: learning where to place."""

from __future__ import annotations

import math

import numpy as np

from .exercise import function, number


def softmax(logits: list[float]) -> list[float]:
    """Returns probabilities in proportion to `exp(logit)`.

    >>> [round(p, 3) for p in softmax([1.0, 0.0])]
    [0.731, 0.269]
    """
    weight = np.exp(np.asarray(logits, dtype=np.float64) - max(logits))
    return (weight / weight.sum()).tolist()


def reinforce(logits: list[float], action: int, advantage: float, rate: float) -> list[float]:
    """Returns the logits after one step of REINFORCE: rate * advantage along the gradient of the action's log-probability.

    >>> [round(x, 3) for x in reinforce([0.0, 0.0], 1, 0.5, 1.0)]
    [-0.25, 0.25]
    """
    is_action = np.arange(len(logits)) == action
    return (np.asarray(logits) + rate * advantage * (is_action - np.asarray(softmax(logits)))).tolist()


def _cases() -> list[tuple[list[float], int, float, float]]:
    return [([0.0, 0.0], 1, 0.5, 1.0), ([1.0, 0.0, -1.0], 0, -0.2, 0.5), ([0.3, 0.1, 0.2, 0.0], 2, 1.0, 0.1)]


CHECKS = {
    1: number(
        5.0**12,
        "placements",
        {12.0**5: "every group chooses a device, not every device a group", 60.0: "the choices of the groups multiply"},
        within=0.0,
    ),
    2: number(
        1 / (1 + math.exp(-1)),
        "probability",
        {
            1 / (1 + math.exp(1)): "that is the other device",
            math.e: "those are the odds; what share is that?",
            0.5: "the logits differ",
        },
    ),
    # -sqrt(0.25) = -0.5, which is 0.1 more than -0.6.
    3: number(
        0.1,
        "reward",
        {
            -0.5: "that is the reward; how much better is it than the baseline?",
            -0.1: "was the sample better or worse than the baseline?",
            0.35: "the reward is the root of the step time, with a minus",
        },
    ),
    4: function(reinforce, _cases),
}
