"""Orders of ops for a device assignment, and the choice of the best among many candidates: shared by search placers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph
from ...graph.kernels.csr import Integers
from ...simulator.ranks import upward_rank
from .assignment import Limits, make_assignment
from .evaluate import evaluate, overflow
from .model import Model, make_model
from .work import Work, make_work

Orders = Mapping[str, NDArray[np.float64] | None]
Simulations = MutableMapping[tuple[bytes, str], tuple[float, NDArray[np.int64]]]
"""(Devices as bytes, name of the order) -> makespan and peak bytes per device. They do not depend on memory limits."""
_ABOVE_ROUNDING = 1.0 + 1e-9  # a candidate as fast as the best one is not cut off


@dataclass(frozen=True)
class Candidate:
    """A device per op, the rank with which it was simulated (None: first in, first out), its makespan and overflow."""

    name: str
    device: NDArray[np.int32]
    rank: NDArray[np.float64] | None
    makespan_us: float
    overflow_bytes: float

    @property
    def key(self) -> tuple[float, float]:
        """Sort key, smaller is better: first the bytes above the limits, then the makespan."""
        return (self.overflow_bytes, self.makespan_us)


def usual_orders(graph: OpGraph, cluster: Cluster) -> dict[str, NDArray[np.float64] | None]:
    """Returns three orders: first in, first out; by upward rank (HEFT's), largest first; by topological position."""
    position = graph.position.astype(np.float64)
    return {"fifo": None, "upward": -upward_rank(graph, cluster), "topological": position}


def measure(
    model: Model,
    work: Work,
    name: str,
    device: Integers,
    rank: NDArray[np.float64] | None,
    cutoff: float = np.inf,
    overflow_limit: float = np.inf,
) -> Candidate:
    """Simulates one candidate; its makespan is infinite if it exceeds `cutoff` microseconds or `overflow_limit` bytes."""
    assignment = make_assignment(device, rank)
    time = float(evaluate(model, work, assignment, Limits(True, cutoff, overflow_limit)))
    overflow_bytes = float(overflow(model, work)) if np.isfinite(time) else np.inf
    return Candidate(
        name, assignment.device, None if rank is None else np.array(rank, dtype=np.float64), time, overflow_bytes
    )


def best_of(
    graph: OpGraph,
    cluster: Cluster,
    devices: Iterable[tuple[str, Integers]],
    orders: Orders | None = None,
    simulations: Simulations | None = None,
) -> Candidate | None:
    """Returns the best candidate of all named device assignments under all `orders`; None if there is no assignment.

    `orders`: as `usual_orders` returns them, which is the default. They do not depend on memory.
    `simulations`: those of earlier calls that differ in memory limits alone; new ones are added, and none ends early.
    """
    model = make_model(graph, cluster)
    work, orders = make_work(model), usual_orders(graph, cluster) if orders is None else orders
    best: Candidate | None = None
    for name, device in devices:
        for order, rank in orders.items():
            if simulations is not None:
                candidate = _simulate_once(model, work, f"{name}, {order}", device, (order, rank), simulations)
                best = candidate if best is None or candidate.key < best.key else best
                continue
            # A simulation ends as soon as it is certain that its candidate is worse.
            overflow_limit = np.inf if best is None else best.overflow_bytes
            cutoff = np.inf if overflow_limit > 0.0 or best is None else best.makespan_us * _ABOVE_ROUNDING
            candidate = measure(model, work, f"{name}, {order}", device, rank, cutoff, overflow_limit)
            if best is None or candidate.key < best.key:
                best = candidate
    return best


def _simulate_once(
    model: Model,
    work: Work,
    name: str,
    device: Integers,
    order: tuple[str, NDArray[np.float64] | None],
    simulations: Simulations,
) -> Candidate:
    """Returns the candidate that `measure` returns, simulated unless `simulations` has it."""
    key = device.tobytes(), order[0]
    if key not in simulations:
        simulations[key] = measure(model, work, name, device, order[1]).makespan_us, work.peak.copy()
    makespan_us, peak_bytes = simulations[key]
    overflow_bytes = float(np.maximum(peak_bytes - model.limit, 0).sum())
    return Candidate(name, device.astype(np.int32), order[1], makespan_us, overflow_bytes)
