"""The runtime's overheads as longer durations of the ops that send and receive, which keeps the ops of the graph.

Once per message, its two ends are added to the op that computes the tensor and to the first op that reads it. A message takes
longer, the more kernels the device has run since the previous one (`cooled` of the calibration); here that is the device's mean.
"""

from __future__ import annotations

import numpy as np

from baechi_lab.executors.tensorflow.calibration import Calibration
from baechi_lab.graph import OpGraph, Placement


def charged_graph(graph: OpGraph, placement: Placement, calibration: Calibration) -> OpGraph:
    """Returns `graph` with the runtime's overheads under this placement added to its durations."""
    device = placement.on(graph).device
    kernel_us = np.maximum(graph.duration_us + calibration.op_us, 0.0)
    kernels = np.bincount(device, weights=kernel_us)
    # The first reader of every crossing tensor on each target device.
    rank = graph.position
    first: dict[tuple[int, int], int] = {}
    rows = zip(graph.edge_tensor.tolist(), graph.edge_source.tolist(), graph.consumers.tolist(), strict=True)
    for tensor, source, reader in rows:
        if device[source] == device[reader]:
            continue
        key = (tensor, int(device[reader]))
        if key not in first or rank[reader] < rank[first[key]]:
            first[key] = reader
    rows_of_messages = [(tensor, reader) for (tensor, _), reader in sorted(first.items())]
    messages = np.array(rows_of_messages, dtype=np.int64).reshape(-1, 2)
    size = graph.tensor_bytes[messages[:, 0]]
    duration = kernel_us.copy()
    for op, link in ((graph.tensor_producer[messages[:, 0]], calibration.send), (messages[:, 1], calibration.receive)):
        count = np.maximum(np.bincount(device[op], minlength=len(kernels)), 1)
        cold = np.array([calibration.cold_us(us) for us in (kernels / count).tolist()])
        np.add.at(duration, op, link.latency_us + link.us_per_byte * size + cold[device[op]])
    return graph.replace(duration_us=duration, duration_by_kind={})
