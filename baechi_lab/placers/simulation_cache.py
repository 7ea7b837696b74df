"""Simulations of a portfolio's placements: equal ones, which placers often find, are simulated once per scheduler."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, Placement
from ..graph.kernels.csr import inverse
from ..simulator import makespan_and_peak, simulate_step
from ..simulator.kernel_run import run_kernel
from ..simulator.validity import constraint_violations


class SimulatedPlan(NamedTuple):
    """The simulation of a placement under one scheduler.

    Args:
        makespan_us: microseconds.
        peak_bytes: int64[devices].
        feasible: whether these fit, and every op is where it may run.
        order: float64 or int64[n], the position of each op in the order that the scheduler chose; None if the placement gives
            the order itself ("planned"), or if it follows from the times at which ops become ready ("fifo").
    """

    makespan_us: float
    peak_bytes: NDArray[np.int64]
    feasible: bool
    order: NDArray[np.number] | None


class SimulationCache:
    """Simulates placements of one graph on one cluster, and stores the results.

    If the original graph of a coarse graph is known, its ops are simulated in the order that the scheduler gave the groups.
    """

    def __init__(self, graph: OpGraph, cluster: Cluster):
        self.graph, self.cluster = graph, cluster
        self._plans: dict[tuple[str | bytes, ...], SimulatedPlan] = {}

    def simulate(self, placement: Placement, scheduler: str) -> tuple[SimulatedPlan, Placement]:
        """Returns the result, and the placement with the order that `scheduler` chose, so that it can be run without it."""
        # All that the simulation reads of a placement.
        columns = placement.device, placement.order, placement.priority, placement.member_order
        digests = (b"" if column is None else hashlib.sha256(column.tobytes()).digest() for column in columns)
        key: tuple[str | bytes, ...] = (scheduler, *digests)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._simulate(placement, scheduler)
        return plan, _with_order(placement, scheduler, plan.order)

    def _simulate(self, placement: Placement, scheduler: str) -> SimulatedPlan:
        graph, cluster = self.graph, self.cluster
        scheduler_chooses = scheduler not in ("fifo", "planned")
        if graph.original is None and graph.reuse is not None:
            timeline = simulate_step(graph, cluster, placement, scheduler)
            order = order_of_starts(graph, timeline.start_us, timeline.end_us) if scheduler_chooses else None
            return SimulatedPlan(timeline.makespan_us, timeline.peak_bytes, timeline.feasible, order)
        op_placement = placement.checked(graph, cluster.n)
        state = run_kernel(graph, cluster, op_placement, scheduler, keep_log=False).state
        start_us, end_us, peak = state.ops["start"][:-1], state.ops["end"][:-1], state.devices["peak"].copy()
        order = order_of_starts(graph, start_us, end_us) if scheduler_chooses else None
        if graph.original is not None:  # `run_kernel` only found the order of the groups; their ops give the times
            ordered_placement = _with_order(placement, scheduler, order)
            return SimulatedPlan(*simulate_ops(graph.original, cluster, ordered_placement), order)
        breaks_constraint = any(True for _ in constraint_violations(graph, cluster, op_placement.device))
        feasible = not breaks_constraint and bool((peak <= cluster.memory_bytes).all())
        return SimulatedPlan(float(end_us.max(initial=0.0)), peak, feasible, order)


def _with_order(placement: Placement, scheduler: str, order: NDArray[np.number] | None) -> Placement:
    return placement if scheduler == "planned" else placement.replace(order=order, priority=None)


def order_of_starts(graph: OpGraph, start_us: NDArray[np.float64], end_us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns int64[n]: the position of each op by its start.

    A device that takes its ready ops in that order makes the same choices: what it ran next started first.
    """
    return inverse(np.lexsort((graph.position, end_us, start_us)))


def simulate_ops(
    graph: OpGraph, cluster: Cluster, placement: Placement, scheduler: str | None = None
) -> tuple[float, NDArray[np.int64], bool]:
    """Returns the makespan in microseconds, peak bytes int64[devices], and whether these fit.

    Outputs share buffers (`graph.reuse`) only if the placement does not fit without.
    """
    makespan_us, peak = makespan_and_peak(graph, cluster, placement, scheduler)
    if graph.reuse is None or (peak <= cluster.memory_bytes).all():
        return makespan_us, peak, bool((peak <= cluster.memory_bytes).all())
    timeline = simulate_step(graph, cluster, placement, scheduler)
    return timeline.makespan_us, timeline.peak_bytes, timeline.feasible
