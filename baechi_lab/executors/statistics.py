"""Statistics of a series of step times: median with a bootstrap interval, drift, and comparison of two series.

Step times are skewed and have outliers, so the statistic is the median. Its interval is the percentile bootstrap
(Efron 1979, doi:10.1214/aos/1176344552): resample the series with replacement, take the median, repeat; the interval
holds the middle of these medians. A series is not independent when the machine warms up or slows down: the drift
says how far a Theil-Sen line (Sen 1968, doi:10.1080/01621459.1968.10480934) runs from the first step to the last. A
and B are run in turns, so that a drift of the machine meets both, and compared round by round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import check_whole
from ..errors import InvalidInput
from ..graph.step import Run


@dataclass(frozen=True)
class Summary:
    """Seconds of a step: `median` with the interval `low`..`high`, and `drift` over the series as a share of it."""

    count: int
    median: float
    low: float
    high: float
    drift: float
    confidence: float

    def __str__(self) -> str:
        interval = f"{self.confidence:.0%} interval {self.low * 1e3:.4g} to {self.high * 1e3:.4g}"
        return f"{self.median * 1e3:.4g} ms ({interval}, {self.count} steps, drift {self.drift:+.1%})"


@dataclass(frozen=True)
class Comparison:
    """B against A: `ratio` of medians B / A with its interval, from paired rounds; below 1 means that B is faster."""

    a: Summary
    b: Summary
    ratio: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Whether the interval excludes 1."""
        return not self.low <= 1.0 <= self.high

    def __str__(self) -> str:
        verdict = "" if self.differs else " (no difference shown)"
        return f"B takes {self.ratio:.3f} of A's time ({self.low:.3f} to {self.high:.3f}){verdict}"


def summarize(
    seconds: ArrayLike, *, drop: int = 0, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Summary:
    """Returns median, bootstrap interval and drift of step times.

    Args:
        seconds: float[k], one per step in the order in which they ran.
        drop: steps to leave out at the start (`Run.step_seconds` has no warm-up any more).
        confidence: of the interval, between 0 and 1.
        resamples, seed: of the bootstrap; the same seed gives the same interval.

    >>> s = summarize([2.0, 2.0, 2.0, 2.0])
    >>> s.median, s.low, s.high, s.drift
    (2.0, 2.0, 2.0, 0.0)
    """
    series = _series(seconds, drop, "seconds")
    _check(confidence, resamples)
    medians = np.median(_resample(series, resamples, seed), axis=1)
    low, high = _interval(medians, confidence)
    return Summary(len(series), float(np.median(series)), low, high, drift(series), confidence)


def mean_of_rounds(rounds: Sequence[ArrayLike], *, resamples: int = 2000, seed: int = 0) -> tuple[float, float, float]:
    """Returns the mean of the rounds' medians, and its 95 % bootstrap interval (low, high) of steps resampled within rounds.

    Where cores change their pace from round to round the median of all steps would be the time of one pace.

    >>> mean_of_rounds([[2.0, 2.0, 9.0], [4.0, 4.0, 4.0]], resamples=100)[0]
    3.0
    """
    if not len(rounds):
        raise InvalidInput("rounds is empty; give at least one")
    series = [_series(x, 0, f"rounds[{i}]") for i, x in enumerate(rounds)]
    medians = np.mean([np.median(_resample(x, resamples, seed + i), axis=1) for i, x in enumerate(series)], axis=0)
    return (float(np.mean([np.median(x) for x in series])), *_interval(medians, 0.95))


def drift(seconds: ArrayLike) -> float:
    """Returns the change from the first to the last step along a Theil-Sen line, as a share of the median; O(k^2)."""
    series = _series(seconds, 0, "seconds")
    if len(series) < 2:
        return 0.0
    # A few hundred points are plenty for a slope and keep the table of pairs small.
    at = np.unique(np.linspace(0, len(series) - 1, min(len(series), 400)).astype(int))
    i, j = np.triu_indices(len(at), 1)
    slope = float(np.median((series[at[j]] - series[at[i]]) / (at[j] - at[i])))
    middle = float(np.median(series))
    return slope * (len(series) - 1) / middle if middle > 0 else 0.0


def compare_rounds(
    a: Sequence[ArrayLike], b: Sequence[ArrayLike], *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Comparison:
    """Compares two sets of step times that were measured in turns: `a[i]` and `b[i]` are the steps of round `i`.

    Rounds are resampled together, and steps within each, so that what the machine did in a round stays paired.

    >>> c = compare_rounds([[2.0, 2.0]] * 3, [[1.0, 1.0]] * 3)
    >>> c.ratio, c.low, c.high, c.differs
    (0.5, 0.5, 0.5, True)
    """
    if len(a) != len(b) or not len(a):
        raise InvalidInput(f"a has {len(a)} rounds and b has {len(b)}; give as many of both, and at least one")
    _check(confidence, resamples)
    first = [_series(x, 0, f"a[{i}]") for i, x in enumerate(a)]
    second = [_series(x, 0, f"b[{i}]") for i, x in enumerate(b)]
    rng = np.random.default_rng(seed)
    ratios = np.empty(resamples)
    for k in range(resamples):
        rounds = rng.integers(0, len(first), len(first))
        ratios[k] = _pooled_median(second, rounds, rng) / _pooled_median(first, rounds, rng)
    low, high = _interval(ratios, confidence)
    summary_of = partial(summarize, confidence=confidence, resamples=resamples, seed=seed)
    pooled_a, pooled_b = np.concatenate(first), np.concatenate(second)
    ratio = float(np.median(pooled_b) / np.median(pooled_a))
    return Comparison(summary_of(pooled_a), summary_of(pooled_b), ratio, low, high)


def interleaved(run_a: Callable[[], Run], run_b: Callable[[], Run], rounds: int = 5, seed: int = 0) -> Comparison:
    """Runs A and B in turns (A B, B A, A B, ...) and compares their step times.

    `run_a` and `run_b` execute once each time they are called, for example
    `lambda: bl.execute(step, placement, steps=10, worker=warm)`. Raises `InvalidInput` when one does not end `ok`.
    """
    check_whole("rounds", rounds)
    seconds: tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]] = ([], [])
    for index in range(rounds):
        # The order turns, so that neither always comes first.
        for side in (0, 1) if index % 2 == 0 else (1, 0):
            run = (run_a, run_b)[side]()
            if run.status != "ok":
                raise InvalidInput(f"round {index} of {'AB'[side]} ended with status {run.status!r}: {run.message}")
            seconds[side].append(run.step_seconds)
    return compare_rounds(*seconds, seed=seed)


def _series(seconds: ArrayLike, drop: int, name: str) -> NDArray[np.float64]:
    series = np.asarray(seconds, dtype=np.float64)
    if series.ndim != 1 or len(series) <= drop or not np.all(np.isfinite(series)) or np.any(series < 0):
        raise InvalidInput(f"{name} must be a list of more than {drop} finite times that are not negative")
    return series[drop:]


def _check(confidence: float, resamples: int) -> None:
    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence is {confidence!r}; it must be between 0 and 1")
    check_whole("resamples", resamples)


def _resample(series: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    return series[np.random.default_rng(seed).integers(0, len(series), (resamples, len(series)))]


def _pooled_median(
    series: Sequence[NDArray[np.float64]], rounds: NDArray[np.generic], rng: np.random.Generator
) -> float:
    return float(np.median(np.concatenate([rng.choice(series[r], len(series[r])) for r in rounds])))


def _interval(values: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
