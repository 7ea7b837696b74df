"""What the ops of a traced step allocated, from TensorFlow's own records.

Every kernel's allocations are recorded with their times, and so is the release of each, until the end of the step. They
are the bytes that tensors asked for; the device's allocator may take more (`allocator_peaks`): it rounds up, and hands
out a free chunk of up to twice the size. Logical CPU devices of one process share its allocator, which then says nothing
of one device, while records always belong to the op's device. What a kernel on a GPU takes of the host is left out.
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
    """float64[k, 5]: (device, time, category, delta, op) of every allocation and release, in order of time.

    Temporary are those released before the kernel ended. What an op that writes a variable takes and keeps is the
    variable's new value: the old one goes when the op ends, so the bytes are counted until then.
    """
    rows = [
        (kernel.device, time - offset[kernel.device], category, delta, kernel.op)
        for kernel in kernels
        for used in kernel.stats.memory
        if _of_device(used.allocator_name, devices[kernel.device])
        for time, category, delta in _changes(used.allocation_records, kernel)
    ]
    return np.array(sorted(rows, key=lambda row: row[1]), dtype=np.float64).reshape(-1, 5)


def given_up(memory: NDArray[np.float64], assigned: Sequence[tuple[int, float, int]]) -> list[tuple[float, ...]]:
    """Rows like those of `memory`: the old values of variables that took over an op's output.

    An assignment keeps the memory of a value that nobody else needs, and gives back that of the value before, which an
    earlier step's op had allocated: no record of this step tells of it.

    Args:
        memory: rows of `allocations`.
        assigned: (device, end of the assignment, bytes) of every assignment whose value was made on its device.

    >>> made = np.array([(0, 5.0, OUTPUTS, 64, 3), (0, 6.0, OUTPUTS, 64, 4), (0, 8.0, OUTPUTS, -64, 4)])
    >>> given_up(made, [(0, 9.0, 64), (0, 10.0, 32)])  # of op 3's, which is still there at the end
    [(0, 9.0, 1, -64, 3)]
    """
    kept: dict[tuple[int, int], list[tuple[float, int]]] = {}
    for device, time, category, delta, op in memory.tolist():
        there = kept.setdefault((int(device), int(abs(delta))), [])
        if category == OUTPUTS and delta > 0:
            there.append((time, int(op)))
        elif category == OUTPUTS:
            there.remove(next(row for row in there if row[1] == op))
    rows: list[tuple[float, ...]] = []
    for device, end, size in sorted(assigned, key=lambda row: row[1]):
        there = kept.get((device, size), [])
        before = [i for i, (time, _) in enumerate(there) if time <= end]
        if before:
            rows.append((device, end, OUTPUTS, -size, there.pop(before[-1])[1]))
    return rows


def allocator_peaks(kernels: Sequence[Kernel], devices: Sequence[str]) -> NDArray[np.int64]:
    """int64[devices]: the most that each device's allocator had handed out when a kernel ended, and within it.

    0 where the allocator does not say, or serves several devices that ran ops.
    """
    most = np.zeros(len(devices), dtype=np.int64)
    for kernel in kernels:
        for used in kernel.stats.memory:
            if _of_device(used.allocator_name, devices[kernel.device]) and used.allocator_bytes_in_use:
                within = used.allocator_bytes_in_use + used.peak_bytes - used.live_bytes
                most[kernel.device] = max(most[kernel.device], within)
    ran = {kernel.device for kernel in kernels}
    sharing = Counter(_allocator(devices[d]) for d in ran)
    alone = [d in ran and sharing[_allocator(devices[d])] == 1 for d in range(len(devices))]
    return np.where(alone, most, 0)


def _allocator(device: str) -> str:
    """What devices with one allocator have in common: CPU devices their task, a GPU itself."""
    return device.partition("/device:CPU:")[0] if "CPU" in device else device


def _of_device(allocator: str, device: str) -> bool:
    """Whether an allocator's memory is the device's own."""
    return "GPU" not in device or allocator.startswith("GPU")


def _changes(records: Sequence[Any], kernel: Kernel) -> Iterator[tuple[float, int, int]]:
    """(time, category, delta) of a kernel's allocations.

    A record of negative bytes frees the first allocation of that size that is still there.
    """
    freed = [(r.alloc_micros, -r.alloc_bytes) for r in records if r.alloc_bytes < 0]
    replaces = _WRITES.search(kernel.stats.timeline_label) is not None
    for record in records:
        time, size = record.alloc_micros, record.alloc_bytes
        if size <= 0:
            continue
        match = next((f for f in freed if f[1] == size and f[0] >= time), None)
        if match is not None:
            freed.remove(match)
        end = match[0] if match is not None else max(kernel.end_us, time) if replaces else None
        category = TEMPORARY if end is not None and end <= kernel.end_us else OUTPUTS
        yield time, category, size
        if end is not None:
            yield end, category, -size
