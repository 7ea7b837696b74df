"""Credit of each sample: the `R - B` of paper H's equations 4 and 6, per grouping and per placement.

`moving_average` is H's baseline: one number for all samples of all updates. `others` compares a sample with the other
samples of its update (leave one out; Kool, van Hoof and Welling 2019, "Buy 4 REINFORCE samples, get a baseline for free!"):
a placement with those of its own grouping, a grouping with the other groupings. What a grouping makes possible then no
longer hides which of its placements was good. Neither baseline depends on the sample it judges, so both gradients have the
expectation of equations 4 and 6. O(samples).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Credit = tuple[NDArray[np.float64], NDArray[np.float64]]
"""float64[m] of every grouping, float64[m, k] of every placement of every grouping."""


def moving_average(reward: NDArray[np.float64], counts: NDArray[np.bool_], baseline: float) -> Credit:
    """`reward - baseline` per placement, and its mean per grouping; 0 where `counts` bool[m, k] is false."""
    placement = np.where(counts, reward - baseline, 0.0)
    return placement.mean(axis=1), placement


def leave_one_out(reward: NDArray[np.float64], counts: NDArray[np.bool_]) -> Credit:
    """`reward` float64[m, k] minus the mean of the other samples that count; 0 for those that do not, or that have no others.

    The only placement of a grouping is compared with those of the other groupings.
    """
    counted_reward = np.where(counts, reward, 0.0)
    total, number = counted_reward.sum(axis=1), counts.sum(axis=1)
    alone = (number == 1)[:, None]
    sum_of_others = np.where(alone, counted_reward.sum(), total[:, None]) - counted_reward
    size = np.where(alone, number.sum(), number[:, None]) - 1
    placement = np.where(counts & (size > 0), reward - sum_of_others / np.maximum(size, 1), 0.0)
    has_samples = number > 0
    mean = np.where(has_samples, total / np.maximum(number, 1), 0.0)
    other_groupings = int(has_samples.sum()) - 1
    grouping = np.where(has_samples & (other_groupings > 0), mean - (mean.sum() - mean) / max(other_groupings, 1), 0.0)
    return grouping, placement


def standardise(credit: Credit, reward: NDArray[np.float64], counts: NDArray[np.bool_]) -> Credit:
    """Credit in standard deviations of the rewards that count, so that it keeps its size while rewards come closer."""
    rewards = reward[counts]
    deviation = float(rewards.std()) if rewards.size else 0.0
    if deviation <= 1e-9 * float(np.abs(rewards).max(initial=0.0)):  # equal up to rounding: nothing to tell apart
        return np.zeros_like(credit[0]), np.zeros_like(credit[1])
    return credit[0] / deviation, credit[1] / deviation
