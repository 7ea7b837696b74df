"""The kernels of a traced step: op, device, start and end.

The executor records when it ran each op. On a GPU that is only the launch; CUPTI's rows on the device's streams have the
times of the kernels and replace it. TensorFlow copies constants of up to 16 bytes to every device that reads them instead of
sending them. The copy on the constant's own device represents the op, or any copy if there is none there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tensorflow.core.framework.step_stats_pb2 import NodeExecStats
    from tensorflow.core.protobuf.config_pb2 import RunMetadata

_COPY = re.compile(r"/replicate/_\d+$")
_STREAMS = "/stream:all"


@dataclass(frozen=True)
class Kernel:
    """One op's execution, in microseconds of its task's clock. `stats` is TensorFlow's NodeExecStats."""

    op: int
    device: int
    start_us: float
    end_us: float
    scheduled_us: float
    node: str
    stats: NodeExecStats


def original_name(node: str) -> str:
    """Returns the name of the op of which a partition graph's node is a copy.

    >>> original_name("pow/y/replicate/_1"), original_name("pow")
    ('pow/y', 'pow')
    """
    return _COPY.sub("", node)


def read_kernels(
    metadata: RunMetadata, op_at: Mapping[str, int], device_at: Mapping[str, int], device_of_op: NDArray[np.int32]
) -> list[Kernel]:
    """Returns the kernels of the ops in `op_at` on the devices in `device_at`. `device_of_op` is each op's device."""
    kernels = list(_executor_kernels(metadata, op_at, device_at))
    kernel_of: dict[int, Kernel] = {}
    for kernel in kernels:
        is_copy = original_name(kernel.node) != kernel.node
        if not is_copy or kernel.op not in kernel_of or kernel.device == device_of_op[kernel.op]:
            kernel_of[kernel.op] = kernel
    # First start and last end of the kernels of (op, device) on a GPU's streams.
    device_by_short_name = {name.rsplit("/", 1)[-1]: i for name, i in device_at.items()}  # device:GPU:0
    on_streams: dict[tuple[int, int], tuple[float, float]] = {}
    for rows in metadata.step_stats.dev_stats:
        if not rows.device.endswith(_STREAMS):
            continue  # each kernel is listed under its own stream and again under `all`
        device = device_by_short_name.get(rows.device.removesuffix(_STREAMS).rsplit("/", 1)[-1])
        for stats in rows.node_stats:
            op = op_at.get(stats.node_name.split(":")[0].split("@@")[0])
            if op is None or device is None:
                continue
            start = float(stats.all_start_micros + stats.op_start_rel_micros)
            end = float(stats.all_start_micros + stats.op_end_rel_micros)
            first, last = on_streams.get((op, device), (start, end))
            on_streams[op, device] = min(first, start), max(last, end)
    return [_with_stream_times(kernel, on_streams) for kernel in kernels if kernel_of[kernel.op] is kernel]


def _executor_kernels(
    metadata: RunMetadata, op_at: Mapping[str, int], device_at: Mapping[str, int]
) -> Iterator[Kernel]:
    """Yields the kernels that the executors recorded."""
    for rows in metadata.step_stats.dev_stats:
        device = device_at.get(rows.device)
        if device is None:
            continue
        for stats in rows.node_stats:
            op = op_at.get(original_name(stats.node_name))
            if op is not None:
                base_us = stats.all_start_nanos / 1e3
                start, end = base_us + stats.op_start_rel_nanos / 1e3, base_us + stats.op_end_rel_nanos / 1e3
                yield Kernel(op, device, start, max(start, end), stats.scheduled_nanos / 1e3, stats.node_name, stats)


def _with_stream_times(kernel: Kernel, on_streams: Mapping[tuple[int, int], tuple[float, float]]) -> Kernel:
    if (kernel.op, kernel.device) not in on_streams:
        return kernel
    start, end = on_streams[kernel.op, kernel.device]
    return replace(kernel, start_us=start, end_us=end)
