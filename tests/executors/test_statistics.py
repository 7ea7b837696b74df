"""Step-time statistics against values worked out by hand, and the coverage of the interval."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors.statistics import compare_rounds, drift, interleaved, mean_of_rounds, summarize
from baechi_lab.graph import Run


def test_median_ignores_an_outlier():
    summary = summarize([1.0, 1.0, 1.0, 1.0, 9.0])
    assert (summary.median, summary.count) == (1.0, 5)
    assert summary.low == 1.0 and summary.high >= 1.0


def test_drop_leaves_out_the_first_steps():
    assert summarize([50.0, 40.0, 1.0, 1.0], drop=2).median == 1.0


def test_interval_of_two_values():
    """Medians of resamples of {1, 3} of size 2 are 1 (1/4), 2 (1/2), 3 (1/4): the 95% interval is 1 to 3."""
    summary = summarize([1.0, 3.0])
    assert (summary.median, summary.low, summary.high) == (2.0, 1.0, 3.0)


def test_interval_covers_the_true_median_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for k in range(100):
        summary = summarize(rng.lognormal(0.0, 0.3, 40), resamples=400, seed=k)
        hits += summary.low <= 1.0 <= summary.high
    assert 88 <= hits <= 100  # 95 expected, standard deviation 2.2


def test_same_seed_same_interval():
    series = np.random.default_rng(0).random(30)
    assert summarize(series, seed=4) == summarize(series, seed=4)
    assert summarize(series, seed=4) != summarize(series, seed=5)


def test_rounds_count_alike_whatever_their_pace():
    """Two rounds at one pace and one at twice the time: the mean is 4/3, while the median of all steps is that of one pace."""
    rounds = [[1.0, 1.0, 7.0], [2.0, 2.0, 2.0], [1.0, 1.0, 1.0]]
    mean, low, high = mean_of_rounds(rounds)
    assert mean == pytest.approx(4 / 3) and low == pytest.approx(mean)
    assert high == pytest.approx(4 / 3 + 6 / 3)  # of three drawn from the first round two are 7 in 7 of 27 cases
    assert mean_of_rounds(rounds) == (mean, low, high)


def test_drift_of_a_line():
    """10, 11, 12, 13, 14: slope 1 over 4 steps is 4, of a median of 12."""
    assert drift([10, 11, 12, 13, 14]) == pytest.approx(4 / 12)


def test_drift_is_not_moved_by_one_outlier():
    """Of the 10 pairs of 1 1 9 1 1 six have slope 0: the median slope is 0."""
    assert drift([1, 1, 9, 1, 1]) == 0.0


def test_interleaved_rounds_cancel_a_drift_that_hits_both():
    """B is 10% slower in every round while the machine slows down by half over the rounds."""
    speed = np.linspace(1.0, 1.5, 6)
    rng = np.random.default_rng(2)
    a = [s * rng.normal(1.0, 0.01, 20) for s in speed]
    b = [1.1 * s * rng.normal(1.0, 0.01, 20) for s in speed]
    comparison = compare_rounds(a, b, resamples=500)
    assert comparison.differs and comparison.low < 1.1 < comparison.high
    assert "B takes 1." in str(comparison)


def test_no_difference_is_said_to_be_none():
    rng = np.random.default_rng(3)
    comparison = compare_rounds([rng.normal(1, 0.1, 10) for _ in range(4)], [rng.normal(1, 0.1, 10) for _ in range(4)])
    assert not comparison.differs and "no difference shown" in str(comparison)


def a_run(seconds, status="ok"):
    return Run(None, np.array([seconds] * 3), (), status=status, message="it fell over")


def test_interleaved_takes_turns():
    order = []
    comparison = interleaved(lambda: order.append("A") or a_run(2.0), lambda: order.append("B") or a_run(1.0), rounds=3)
    assert order == ["A", "B", "B", "A", "A", "B"]
    assert comparison.ratio == 0.5


def test_interleaved_refuses_a_run_that_failed():
    with pytest.raises(bl.InvalidInput, match="round 0 of B ended with status 'died': it fell over"):
        interleaved(lambda: a_run(1.0), lambda: a_run(1.0, "died"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: summarize([]), "more than 0 finite times"),
        (lambda: summarize([1.0, float("nan")]), "finite times"),
        (lambda: summarize([1.0], confidence=1.0), "confidence is 1.0"),
        (lambda: summarize([1.0], resamples=0), "resamples is 0"),
        (lambda: compare_rounds([[1.0]], []), "a has 1 rounds and b has 0"),
        (lambda: interleaved(lambda: a_run(1.0), lambda: a_run(1.0), rounds=0), "rounds is 0"),
    ],
)
def test_bad_input_is_rejected(call, message):
    with pytest.raises(bl.InvalidInput, match=message):
        call()
