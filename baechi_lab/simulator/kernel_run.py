"""Runs the event loop once for a placement and a scheduler."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, Placement
from . import kernel
from .schedulers import SchedulerOption, make_scheduler


def run_kernel(
    graph: OpGraph, cluster: Cluster, placement: Placement, scheduler: SchedulerOption | None, keep_log: bool
) -> Any:
    """State, transfers and memory log of one step, as `baechi_lab.simulator.kernel` has them.

    The placement must be one of `graph` (`Placement.checked`). `scheduler` is a name, an object or None.
    """
    prepared_scheduler = make_scheduler(scheduler, placement).prepare(graph, cluster, placement)
    state = kernel.make_state(graph, cluster, placement, prepared_scheduler.rank)
    sends, log = kernel.run(state, cluster.latency_us, cluster.us_per_byte, cluster.comm, prepared_scheduler, keep_log)
    return state._replace(devices=state.devices[: cluster.n]), sends, log


def simulated_peak(
    graph: OpGraph, cluster: Cluster, placement: Placement, scheduler: SchedulerOption | None = None
) -> NDArray[np.int64]:
    """Returns int64[devices]: the peak bytes of every device in one step."""
    state, _, _ = run_kernel(graph, cluster, placement, scheduler, keep_log=False)
    return state.devices["peak"].copy()
