"""What the search family shares: orders to try a device assignment with, and choosing the best of many candidates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, allowed_devices, durations
from ...simulator.paths import heads_and_tails
from .evaluate import Model, Work, evaluate, overflow, positions

Orders = Mapping[str, NDArray[np.float64] | None]


@dataclass(frozen=True)
class Candidate:
    """A device per op, the rank it was simulated with (None: first in, first out), and what came out."""

    name: str
    device: NDArray[np.int32]
    rank: NDArray[np.float64] | None
    makespan_us: float
    overflow_bytes: float

    @property
    def key(self) -> tuple[float, float]:
        """Smaller is better: what fits comes before what does not, then the faster."""
        return (self.overflow_bytes, self.makespan_us)


def upward_order(graph: OpGraph, cluster: Cluster) -> NDArray[np.float64]:
    """float64[n], lowest first: ops by the longest path from their start, transfers at their mean cost (HEFT's rank)."""
    table = np.where(allowed_devices(graph, cluster), durations(graph, cluster), np.nan)
    mean = np.nanmean(table, axis=1) if graph.n else np.zeros(0)
    latency, per_byte = (float(a.sum()) / max(cluster.n**2, 1) for a in (cluster.latency_us, cluster.us_per_byte))
    _, tail = heads_and_tails(graph, mean, latency + per_byte * graph.tensor_bytes[graph.edge_tensor])
    return -(tail + mean)


def topological_position(graph: OpGraph) -> NDArray[np.int64]:
    """int64[n]: where each op stands in `graph.order`."""
    position = np.empty(graph.n, dtype=np.int64)
    position[graph.order] = np.arange(graph.n)
    return position


def usual_orders(graph: OpGraph, cluster: Cluster) -> dict[str, NDArray[np.float64] | None]:
    """First in, first out; by upward rank; by topological position."""
    position = topological_position(graph).astype(np.float64)
    return {"fifo": None, "upward": upward_order(graph, cluster), "topological": position}


def measure(
    model: Model, work: Work, name: str, device: NDArray[Any], rank: NDArray[np.float64] | None, cutoff: float = np.inf
) -> Candidate:
    """Simulate one candidate (an infinite makespan: it exceeds `cutoff`)."""
    where = np.array(device, dtype=np.int32)
    time = float(evaluate(model, work, where, *positions(rank, len(where)), rank is not None, True, cutoff, np.inf))
    over = float(overflow(model, work)) if np.isfinite(time) else np.inf
    return Candidate(name, where, None if rank is None else np.array(rank, dtype=np.float64), time, over)


def best_of(
    model: Model, work: Work, devices: Iterable[tuple[str, NDArray[Any]]], orders: Orders
) -> Candidate | None:  # fmt: skip
    """The best candidate over all device assignments and orders; None when there is none."""
    best: Candidate | None = None
    for name, device in devices:
        for order, rank in orders.items():
            found = measure(model, work, f"{name}, {order}", device, rank)
            if best is None or found.key < best.key:
                best = found
    return best
