"""Memory of a finished timeline by equation 2 of Mayer et al. 2017, beside the rule of this simulator.

    rule        live bytes of a device                                                             limit
    "tensors"   persistent bytes throughout; temporaries while an op runs; an output from the      peak <= memory
                start of its producer to the last use or transfer; received copies (ours)
    "edges"     for every edge (tensor, consumer) whose consumer has not run, the tensor's bytes,   sum < memory
                once per edge: from the end of the producer to the start of the consumer

Equation 2 requires, for every device j and time l, that the sum of t_e over the active edges e on j at l is below C_j. It
has no persistent bytes, temporaries or bytes being written, counts a tensor with k consumers k times, and frees inputs when
an op starts. The paper does not say which device an edge between two devices belongs to: here it is the producer's until
the transfer ends, then the consumer's. Live bytes never change when ops run, so the rule only recounts a finished timeline,
in O((edges + transfers) log edges).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from ..graph import Cluster, MemoryLog, OpGraph, Timeline, Violation
from ..graph.kernels.csr import Ints
from ..graph.timeline import MEMORY_CATEGORIES
from ..graph.units import format_bytes, format_us

MEMORY_RULES = ("tensors", "edges")

_OUTPUTS, _COPIES = MEMORY_CATEGORIES.index("outputs"), MEMORY_CATEGORIES.index("copies")


def edge_memory(graph: OpGraph, cluster: Cluster, timeline: Timeline) -> Timeline:
    """Returns the timeline with memory, peaks and memory violations by equation 2.

    `timeline` is one of `graph` on `cluster`. The log has edges of a device's own producers as outputs, received ones as copies.
    """
    log = _edge_log(graph, timeline)
    timeline_with_memory = with_memory(
        timeline,
        log,
        cluster.memory_bytes - 1,
        lambda d, time, op, peak: (
            f"the active edges on device {cluster.names[d]} are not below its {format_bytes(int(cluster.memory_bytes[d]))} at "
            f"{format_us(time)}, when a tensor of op {graph.names[op]!r} comes in; their peak is {format_bytes(peak)}"
        ),
    )
    return dataclasses.replace(timeline_with_memory, info={**timeline.info, "memory_rule": "edges"})


def with_memory(
    timeline: Timeline, log: MemoryLog, limit: Ints, message: Callable[[int, float, int, int], str]
) -> Timeline:
    """Returns the timeline with `log`, its peaks, and a violation for each device that takes more than its limit.

    Args:
        timeline: its other violations remain.
        log: changes of the bytes that each device holds.
        limit: int64[devices]: the most bytes that are allowed.
        message: of a violation, from the device, the time at which it first exceeds the limit, the op, and its peak.
    """
    peaks = np.zeros(len(limit), dtype=np.int64)
    violations = [v for v in timeline.violations if v.kind != "memory"]
    for d in range(len(limit)):
        rows = np.flatnonzero(log.device == d)
        level = np.cumsum(log.delta[rows])
        peaks[d] = level.max(initial=0)
        exceeding = rows[(level > limit[d]) & (log.delta[rows] > 0)]
        if len(exceeding):
            time, op = float(log.time_us[exceeding[0]]), int(log.op[exceeding[0]])
            violations.append(Violation("memory", message(d, time, op, int(peaks[d])), d, time, op))
    return dataclasses.replace(timeline, memory=log, peak_bytes=peaks, violations=tuple(violations))


def _edge_log(graph: OpGraph, timeline: Timeline) -> MemoryLog:
    """Returns the start and end of every interval in which an edge is live, in time order, releases first within an instant.

    An edge between two devices has an interval on each. Intervals without duration are left out.
    """
    op_device = np.empty(graph.n, dtype=np.int64)
    op_start, op_end = np.empty(graph.n), np.empty(graph.n)
    op_device[timeline.op] = timeline.device
    op_start[timeline.op], op_end[timeline.op] = timeline.start_us, timeline.end_us
    source, target, edge_bytes = graph.edge_source, graph.consumers, graph.tensor_bytes[graph.edge_tensor]
    source_device, target_device = op_device[source], op_device[target]
    remote, transfers = source_device != target_device, timeline.transfers
    width = len(timeline.device_names)
    copy_arrival = np.full(graph.tensor_count * width, np.nan)
    copy_arrival[transfers.tensor.astype(np.int64) * width + transfers.target] = transfers.end_us
    arrival = copy_arrival[graph.edge_tensor[remote].astype(np.int64) * width + target_device[remote]]
    source_end = op_start[target].copy()
    source_end[remote] = arrival
    device = np.concatenate([source_device, target_device[remote]])
    start = np.concatenate([op_end[source], arrival])
    end = np.concatenate([source_end, op_start[target][remote]])
    size = np.concatenate([edge_bytes, edge_bytes[remote]])
    producer = np.concatenate([source, source[remote]])
    category = np.repeat([_OUTPUTS, _COPIES], [len(source_device), int(remote.sum())])
    lasting = np.flatnonzero((end > start) & (size > 0))
    time = np.concatenate([end[lasting], start[lasting]])
    is_start = np.repeat([0, 1], len(lasting))
    order = np.lexsort((is_start, time))
    interval = np.concatenate([lasting, lasting])[order]
    delta = np.where(is_start[order] == 1, size[interval], -size[interval])
    return MemoryLog(device[interval], time[order], category[interval], delta, producer[interval])
