"""Runs the event loop once for a placement and a scheduler."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, Placement
from . import kernel
from .schedulers import SchedulerOption, make_scheduler


class KernelRun(NamedTuple):
    """One simulated step: the state after it, its transfers SEND[k], and changes of memory CHANGE[..] (dtypes of `kernel`)."""

    state: kernel.State
    sends: NDArray[np.void]
    log: NDArray[np.void]


def run_kernel(
    graph: OpGraph, cluster: Cluster, placement: Placement, scheduler: SchedulerOption | None, keep_log: bool
) -> KernelRun:
    """Simulates one step. The log is empty without `keep_log`.

    The placement must be one of `graph` (`Placement.checked`). `scheduler` is a name, an object or None.
    """
    prepared_scheduler = make_scheduler(scheduler, placement).prepare(graph, cluster, placement)
    state = kernel.make_state(graph, cluster, placement, prepared_scheduler.rank)
    sends, log = kernel.run(state, cluster.latency_us, cluster.us_per_byte, cluster.comm, prepared_scheduler, keep_log)
    return KernelRun(state._replace(devices=state.devices[: cluster.n]), sends, log)


def simulated_peak(
    graph: OpGraph, cluster: Cluster, placement: Placement, scheduler: SchedulerOption | None = None
) -> NDArray[np.int64]:
    """Returns int64[devices]: the peak bytes of every device in one step."""
    state = run_kernel(graph, cluster, placement, scheduler, keep_log=False).state
    return state.devices["peak"].copy()
