"""From times to a link and a communication mode, by hand."""

from __future__ import annotations

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.profilers.links import comm_mode, fit_link, vote, waiting_shares


def test_the_line_through_exact_samples_is_found():
    sizes = [4, 1000, 10**6]
    link, residual = fit_link(sizes, [20 + 0.01 * s for s in sizes])
    assert (link.latency_us, link.us_per_byte) == pytest.approx((20, 0.01)) and residual == pytest.approx(0, abs=1e-9)


def test_coefficients_are_never_negative():
    falling, _ = fit_link([10, 20, 30], [3.0, 2.0, 1.0])
    assert falling.us_per_byte == 0 and falling.latency_us > 0
    steep, _ = fit_link([1, 10, 100], [0.1, 10.0, 1000.0])  # grows faster than the size: a line would start below 0
    assert steep.latency_us == 0 and steep.us_per_byte > 0


def test_one_outlier_does_not_move_the_line():
    sizes = np.array([2.0**k for k in range(2, 27, 2)])
    took = 50 + 0.001 * sizes
    took[4] *= 10
    link, residual = fit_link(sizes, took)
    assert link.latency_us == pytest.approx(50, rel=0.15) and link.us_per_byte == pytest.approx(0.001, rel=0.05)
    assert residual > 1  # and the residual says that one sample does not fit


@pytest.mark.parametrize(
    ("sizes", "times", "message"),
    [
        ([1], [1.0], "at least 2"),
        ([1, 2], [1.0], "equal length"),
        ([1, 2], [1.0, 0.0], r"time_us\[1\] is 0\.0; it must be finite and above 0"),
        ([1, 2], [np.nan, 1.0], r"time_us\[0\] is nan"),
        ([1, -2], [1.0, 1.0], r"size_bytes\[1\] is -2\.0; it must be at least 0"),
    ],
)
def test_bad_samples_are_rejected(sizes, times, message):
    with pytest.raises(bl.InvalidInput, match=message):
        fit_link(sizes, times)


def probes(one, one_back, same, opposite, small=1.0):
    """Medians in microseconds above `small`, three samples each."""
    large = [[small + x] * 3 for x in (one, one_back, same, opposite)]
    return np.array([[[small] * 3] * 4, large])


@pytest.mark.parametrize(
    ("times", "expected", "mode"),
    [
        ((10, 10, 10, 10), (0.0, 0.0), "parallel"),
        ((10, 10, 20, 10), (1.0, 0.0), "duplex"),
        ((10, 10, 20, 20), (1.0, 1.0), "sequential"),
        ((10, 20, 14, 25), (0.4, 0.5), "sequential"),  # (14 - 10) / 10; (25 - 20) / 10
        ((10, 10, 5, 50), (0.0, 1.0), "sequential"),  # noise never leaves 0..1
        ((0.1, 0.1, 9, 9), (0.0, 0.0), "parallel"),  # 0.1 beside a message of 1: bytes do not show
    ],
)
def test_how_far_the_second_transfer_waits(times, expected, mode):
    waiting = waiting_shares(probes(*times))
    assert waiting == pytest.approx(expected) and comm_mode(*waiting) == mode


def test_most_pairs_decide_and_a_tie_waits():
    assert vote(["parallel", "duplex", "duplex"]) == "duplex"
    assert vote(["parallel", "sequential"]) == "sequential"
