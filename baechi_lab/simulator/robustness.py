"""`robustness`: the step of a placement under errors of the profile (Jeon et al. 2020, Figure 8, for any placement).

Every duration is multiplied by its own factor and every link by one, drawn uniformly from `1 - error` to `1 + error`; the
placement stays, the simulation runs again. The factors of one sample are the same ones at every error, scaled, so that
the curve over the error is smooth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..errors import InvalidInput, in_short
from ..graph import Cluster, OpGraph, Placement, durations
from ..graph.arguments import check_records
from ..graph.columns import numbers
from ..graph.costs import message_overheads
from . import kernel
from .schedulers import SchedulerOption, make_scheduler
from .simulation import makespan_and_peak

if TYPE_CHECKING:
    import pandas

MOST_COSTS = 1 << 29
"""Most sampled costs: 4 GB of them."""

ERRORS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Relative errors of costs: 0.05 is 5 %."""


@dataclass(frozen=True, eq=False, repr=False)
class Robustness:
    """Makespans under sampled profile errors, simulated.

    `errors` float64[e]; `makespan_us` float64[e, samples]; `nominal_us` without an error.
    """

    errors: NDArray[np.float64]
    makespan_us: NDArray[np.float64]
    nominal_us: float

    def quantile(self, q: float, error: float | None = None) -> float:
        """Returns the `q` quantile of the makespan in microseconds at one error (default: the largest)."""
        row = len(self.errors) - 1 if error is None else self._row(error)
        return float(np.quantile(self.makespan_us[row], q, method="inverted_cdf"))

    def _row(self, error: float) -> int:
        """Returns the position of an error among those sampled."""
        matches = np.flatnonzero(np.isclose(self.errors, error))
        if not len(matches):
            raise InvalidInput(f"error is {error}; sampled were {', '.join(f'{e:g}' for e in self.errors)}")
        return int(matches[0])

    def to_pandas(self) -> pandas.DataFrame:
        """Returns one row per error: mean, p10, p50, p90 and worst makespan, each relative to the one without an error."""
        import pandas as pd

        scale = self.nominal_us if self.nominal_us > 0 else 1.0
        percentile = lambda q: np.quantile(self.makespan_us, q / 100, axis=1, method="inverted_cdf") / scale  # noqa: E731
        columns = {f"p{q}": percentile(q) for q in (10, 50, 90)}
        worst, mean = self.makespan_us.max(axis=1) / scale, self.makespan_us.mean(axis=1) / scale
        return pd.DataFrame({"error": self.errors, "mean": mean, **columns, "worst": worst})

    def __repr__(self) -> str:
        scale = self.nominal_us if self.nominal_us > 0 else 1.0
        ratios = ", ".join(f"+-{e:.0%}: x{self.quantile(0.9, e) / scale:.3g}" for e in self.errors)
        return f"<Robustness: {self.nominal_us:.6g} us; 90th percentile at {ratios}>"


def robustness(
    graph: OpGraph,
    cluster: Cluster,
    placement: Placement,
    *,
    error: float | Sequence[float] = ERRORS,
    samples: int = 100,
    seed: int = 0,
    scheduler: SchedulerOption | None = None,
) -> Robustness:
    """Returns makespans of `placement` when durations and links differ from the profile by up to `error`.

    Args:
        graph, cluster, placement: what is simulated; the placement stays as it is.
        error: one number or several, each from 0 to below 1.
        samples: simulations per error.
        seed: of the factors.
        scheduler: as in `bl.simulate`.

    Raises:
        InvalidInput: a parameter out of range, or a placement of another graph.

    >>> from baechi_lab import Cluster, OpGraph, Placement
    >>> graph = OpGraph.from_edges([10, 10], [(0, 1, 8)])
    >>> result = robustness(graph, Cluster.uniform(1), Placement(device=[0, 0]), error=0.1, samples=50)
    >>> result.nominal_us, bool(18 <= result.makespan_us.min() <= result.makespan_us.max() <= 22)
    (20.0, True)
    """
    check_records(graph=graph, cluster=cluster, placement=placement)
    errors = np.atleast_1d(numbers("error", error))
    if errors.ndim > 1:
        raise InvalidInput(f"error has {errors.ndim} dimensions; it must be a number or a list of numbers")
    check_whole("samples", samples)
    most_samples = MOST_COSTS // max(graph.n * cluster.n + 2 * cluster.n**2, len(errors), 1)
    if samples > most_samples:
        raise InvalidInput(
            f"samples is {in_short(samples)}; with {graph.n} ops on {cluster.n} devices it must be at most {most_samples}"
        )
    check_whole("seed", seed, low=0)
    op_placement = placement.checked(graph, cluster.n)
    nominal, _ = makespan_and_peak(graph, cluster, op_placement, scheduler)
    device_choice = make_scheduler(scheduler, op_placement).prepare(graph, cluster, op_placement)
    state = kernel.make_state(graph, cluster, op_placement, device_choice.rank)
    overheads = message_overheads(graph, cluster, op_placement.device)
    makespans = np.empty((len(errors), samples))
    for e, size in enumerate(errors.tolist()):
        table, latency, per_byte = sample_costs(graph, cluster, size, samples, seed)
        for links in (latency, per_byte):  # as those of a cluster: the kernel is compiled for one signature
            links.flags.writeable = False
        for k in range(samples):
            state.ops["duration"][:-1] = table[k, np.arange(graph.n), op_placement.device] + overheads
            kernel.run(state, latency[k], per_byte[k], cluster.comm, device_choice, keep_log=False)
            makespans[e, k] = state.ops["end"].max(initial=0.0)
    return Robustness(errors, makespans, nominal)


def sample_costs(
    graph: OpGraph, cluster: Cluster, error: float, samples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Returns durations float64[samples, n, D], latencies and costs per byte float64[samples, D, D] under profile errors."""
    if not 0 <= error < 1:
        raise InvalidInput(f"error is {error}; it must be at least 0 and below 1")
    rng = np.random.default_rng(seed)
    op_factors = 1.0 + error * rng.uniform(-1.0, 1.0, size=(samples, graph.n, 1))
    link_factors = 1.0 + error * rng.uniform(-1.0, 1.0, size=(samples, cluster.n, cluster.n))
    return durations(graph, cluster) * op_factors, cluster.latency_us * link_factors, cluster.us_per_byte * link_factors
