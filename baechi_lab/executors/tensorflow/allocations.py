"""Memory that the ops of a traced step allocated, from TensorFlow's records.

TensorFlow records every allocation of a kernel and its release, with times, until the end of the step. The sizes are the
bytes that tensors requested. The device's allocator may take more (`allocator_peaks`): it rounds up, and returns free chunks
of up to twice the size. Logical CPU devices of one process share an allocator, so its figures belong to no single device;
records always belong to the op's device. Host memory of kernels on a GPU is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kernels import Kernel

PERSISTENT, OUTPUTS, TEMPORARY, COPIES = range(4)
"""Positions in `graph.timeline.MEMORY_CATEGORIES`."""

_WRITES = re.compile(r"= \w*(Apply|Assign|Scatter)\w*\(")
"""An op that writes a variable, in the label of its kernel (`name = Type(inputs)`)."""


def allocations(kernels: Sequence[Kernel], devices: Sequence[str], offset: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns float64[k, 5]: (device, time, category, delta, op) of every allocation and release, in order of time.

    Allocations that are released before the kernel ends are temporary. An op that writes a variable may allocate the new
    value: the old value is freed when the op ends, so the bytes are counted until then.
    """
    rows = [
        (kernel.device, time - offset[kernel.device], category, delta, kernel.op)
        for kernel in kernels
        for used in kernel.stats.memory
        if _of_device(used.allocator_name, devices[kernel.device])
        for time, category, delta in _changes(used.allocation_records, kernel)
    ]
    return np.array(sorted(rows, key=lambda row: row[1]), dtype=np.float64).reshape(-1, 5)


def replaced_variable_values(
    memory: NDArray[np.float64], assignments: Sequence[tuple[int, float, int]]
) -> list[tuple[float, ...]]:
    """Returns rows like those of `memory` that free the old values of assigned variables.

    An assignment takes over the memory of its input if nobody else needs it, and frees the variable's old value. An op of
    an earlier step allocated that value, so no record of this step shows its release.

    Args:
        memory: rows of `allocations`.
        assignments: (device, end of the assignment, bytes) of every assignment of a value that was computed on its device.

    >>> memory = np.array([(0, 5.0, OUTPUTS, 64, 3), (0, 6.0, OUTPUTS, 64, 4), (0, 8.0, OUTPUTS, -64, 4)])
    >>> replaced_variable_values(memory, [(0, 9.0, 64), (0, 10.0, 32)])  # frees op 3's output, which is still live
    [(0, 9.0, 1, -64, 3)]
    """
    live_outputs: dict[tuple[int, int], list[tuple[float, int]]] = {}
    for device, time, category, delta, op in memory.tolist():
        same_size = live_outputs.setdefault((int(device), int(abs(delta))), [])
        if category == OUTPUTS and delta > 0:
            same_size.append((time, int(op)))
        elif category == OUTPUTS:
            same_size.remove(next(row for row in same_size if row[1] == op))
    rows: list[tuple[float, ...]] = []
    for device, end, size in sorted(assignments, key=lambda row: row[1]):
        same_size = live_outputs.get((device, size), [])
        candidates = [i for i, (time, _) in enumerate(same_size) if time <= end]
        if candidates:
            rows.append((device, end, OUTPUTS, -size, same_size.pop(candidates[-1])[1]))
    return rows


def allocator_peaks(kernels: Sequence[Kernel], devices: Sequence[str]) -> NDArray[np.int64]:
    """Returns int64[devices]: the most bytes that each device's allocator had handed out during or after a kernel.

    0 if the allocator reports nothing, or serves several devices that ran ops.
    """
    peaks = np.zeros(len(devices), dtype=np.int64)
    for kernel in kernels:
        for used in kernel.stats.memory:
            if _of_device(used.allocator_name, devices[kernel.device]) and used.allocator_bytes_in_use:
                in_use = used.allocator_bytes_in_use + used.peak_bytes - used.live_bytes
                peaks[kernel.device] = max(peaks[kernel.device], in_use)
    active_devices = {kernel.device for kernel in kernels}
    sharing = Counter(_allocator(devices[d]) for d in active_devices)
    has_own_allocator = [d in active_devices and sharing[_allocator(devices[d])] == 1 for d in range(len(devices))]
    return np.where(has_own_allocator, peaks, 0)


def _allocator(device: str) -> str:
    """Identifies a device's allocator: CPU devices of a task share one, a GPU has its own."""
    return device.partition("/device:CPU:")[0] if "CPU" in device else device


def _of_device(allocator: str, device: str) -> bool:
    """Whether an allocator manages the device's own memory."""
    return "GPU" not in device or allocator.startswith("GPU")


def _changes(records: Sequence[Any], kernel: Kernel) -> Iterator[tuple[float, int, int]]:
    """Yields (time, category, delta) of a kernel's allocations.

    A record of negative bytes frees the first allocation of that size that is still there.
    """
    releases = [(r.alloc_micros, -r.alloc_bytes) for r in records if r.alloc_bytes < 0]
    replaces = _WRITES.search(kernel.stats.timeline_label) is not None
    for record in records:
        time, size = record.alloc_micros, record.alloc_bytes
        if size <= 0:
            continue
        match = next((f for f in releases if f[1] == size and f[0] >= time), None)
        if match is not None:
            releases.remove(match)
        end = match[0] if match is not None else max(kernel.end_us, time) if replaces else None
        category = TEMPORARY if end is not None and end <= kernel.end_us else OUTPUTS
        yield time, category, size
        if end is not None:
            yield end, category, -size
