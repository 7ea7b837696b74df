"""Cost of a candidate: its makespan and its bytes above the limits, from one simulation or from several samples of costs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.jit import njit
from .assignment import Assignment, Limits
from .evaluate import evaluate, overflow
from .model import Model, memory_matters
from .moves import State
from .work import Work, make_work


class Prices(NamedTuple):
    """Weights of the cost: per microsecond of `time` and per byte of `overflow` above a memory limit."""

    time: float
    overflow: float


PROHIBITIVE = 1e30
"""A price per byte so high that no saved time makes up for a byte."""


class Samples(NamedTuple):
    """K samples of the costs, against which a placement should be robust.

    `table` float64[K, n, D]; `latency` and `per_byte` float64[K, D, D]. The makespan of a candidate is the one at position
    `place` of its K sorted makespans. With K = 0 it is simulated with the model's own costs."""

    table: NDArray[np.float64]
    latency: NDArray[np.float64]
    per_byte: NDArray[np.float64]
    place: int


def no_samples(operators: int, devices: int) -> Samples:
    """Returns an empty set of samples: candidates are simulated with the model's own costs."""
    links = np.empty((0, devices, devices))
    return Samples(np.empty((0, operators, devices)), links, links, 0)


class Objective(NamedTuple):
    """The cost function of candidates: the model, its scratch space, and the weights; `track`: follow memory."""

    model: Model
    work: Work
    samples: Samples
    prices: Prices
    track: bool


def make_objective(model: Model, track: bool | None = None) -> Objective:
    """Makes the objective of `model`: the makespan, where no byte above a limit is worth any time.

    `track=None` follows memory where it can run out.
    """
    follow = memory_matters(model) if track is None else track
    return Objective(model, make_work(model), no_samples(*model.table.shape), Prices(1.0, PROHIBITIVE), follow)


@njit(cache=True, nogil=True)
def _sampled_cost(objective: Objective, s: State, cutoff: float, overflow_limit: float) -> tuple[float, float]:
    """Returns the makespan at position `place` of the samples and the worst overflow; infinite if it must exceed `cutoff`."""
    m, w, samples = objective.model, objective.work, objective.samples
    count = len(samples.table)
    times, worst, late_count = np.empty(count), 0.0, 0
    for k in range(count):
        sample = Model(
            samples.table[k],
            m.lane,
            m.tail,
            m.degree,
            m.sources,
            m.edge_ptr,
            m.edge_to,
            m.edge_tensor,
            m.ready_to,
            m.input_ptr,
            m.inputs,
            m.producer,
            m.size_bytes,
            m.output_bytes,
            m.unread,
            m.temp,
            m.persistent,
            m.limit,
            samples.latency[k],
            samples.per_byte[k],
            m.comm,
        )
        assignment = Assignment(s.device, s.position, s.at, s.by_rank)
        limits = Limits(objective.track, np.inf, overflow_limit)
        times[k] = evaluate(sample, w, assignment, limits)
        late_count += times[k] > cutoff
        if late_count > count - 1 - samples.place:
            return np.inf, np.inf
        if objective.track:
            worst = max(worst, overflow(m, w))
    for k in range(count):  # sorting would take a second more to compile
        before = 0
        for j in range(count):
            before += times[j] < times[k] or (times[j] == times[k] and j < k)
        if before == samples.place:
            return times[k], worst
    return np.inf, worst


@njit(cache=True, nogil=True)
def candidate_cost(objective: Objective, s: State, threshold: float) -> tuple[float, float, float]:
    """Returns cost, makespan and overflow of the state's current candidate; infinite if the cost must exceed `threshold`."""
    m, w, prices, track = objective.model, objective.work, objective.prices, objective.track
    cutoff = threshold / prices.time if prices.time > 0.0 else np.inf
    overflow_limit = threshold / prices.overflow if prices.overflow > 0.0 else np.inf
    if len(objective.samples.table) > 0:
        time, overflow_bytes = _sampled_cost(objective, s, cutoff, overflow_limit)
        return prices.time * time + prices.overflow * overflow_bytes, time, overflow_bytes
    assignment, limits = Assignment(s.device, s.position, s.at, s.by_rank), Limits(track, cutoff, overflow_limit)
    time = evaluate(m, w, assignment, limits)
    if time == np.inf:
        return np.inf, time, np.inf
    overflow_bytes = overflow(m, w) if track else 0.0
    return prices.time * time + prices.overflow * overflow_bytes, time, overflow_bytes
