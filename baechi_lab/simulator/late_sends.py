"""Peak memory of devices if a busy device sends late, as TensorFlow's workers do.

A schedule sends a tensor as soon as its link is free. A worker whose core computes sends when it has nothing left to
compute, and what it has produced until then stays in its memory; the receiver takes what comes at once. So a tensor is held,
here, until the busy time of its sender is over, and a copy from the moment at which its tensor is produced. Ops keep their
times. Measured peaks of workers under placements that keep one device busy lie between both.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, Timeline
from .buffer_reuse import apply_buffer_reuse


def late_send_peaks(graph: OpGraph, cluster: Cluster, timeline: Timeline) -> NDArray[np.int64]:
    """int64[devices]: peak bytes where a device sends only when its ops leave it idle; at least the timeline's own.

    Op `a` is sent while `b` runs; late, it is still there when `c` makes its output:

    >>> from baechi_lab import Link, Placement, simulate
    >>> edges = [(0, 4, 30), (1, 2, 4), (2, 3, 40)]
    >>> graph = OpGraph.from_edges([1, 5, 1, 1, 1], edges, names=["a", "b", "c", "d", "reader"]).replace(reuse=[0] * 5)
    >>> cluster = Cluster.uniform(2, link=Link(1.0, 0.0))
    >>> timeline = simulate(graph, cluster, Placement(device=[0, 0, 0, 0, 1]))
    >>> timeline.peak_bytes.tolist(), late_send_peaks(graph, cluster, timeline).tolist()
    ([44, 30], [74, 30])
    """
    transfers = timeline.transfers
    produced_us = np.zeros(graph.n)
    produced_us[timeline.op] = timeline.end_us
    receive_us = np.minimum(transfers.receive_us, produced_us[graph.tensor_producer[transfers.tensor]])
    end_us = transfers.end_us.copy()
    for device in range(cluster.n):
        sends = np.flatnonzero(transfers.source == device)
        if len(sends):
            time_us = end_us[sends]
            rows = np.flatnonzero(timeline.device == device)
            rows = rows[np.argsort(timeline.start_us[rows], kind="stable")]
            if len(rows):
                start, end = timeline.start_us[rows], np.maximum.accumulate(timeline.end_us[rows])
                pause = np.flatnonzero(start[1:] > end[:-1])
                busy_from, busy_until = start[np.r_[0, pause + 1]], end[np.r_[pause, len(end) - 1]]
                period = np.searchsorted(busy_from, time_us, side="right") - 1
                within = (period >= 0) & (time_us <= busy_until[period])
                end_us[sends] = np.where(within, busy_until[period], time_us)
    delayed = dataclasses.replace(
        timeline, transfers=dataclasses.replace(transfers, receive_us=receive_us, end_us=end_us)
    )
    return np.maximum(timeline.peak_bytes, apply_buffer_reuse(graph, cluster, delayed).peak_bytes)
