"""From FLOPs and bytes to microseconds, whatever the framework that they were counted in.

A kernel lasts `max(FLOPs / peak, bytes / bandwidth)`, bytes being its inputs and outputs (S. Williams, A. Waterman,
D. Patterson, "Roofline", CACM 52(4), 2009, doi:10.1145/1498765.1498785), on top of its launch, or hidden behind it
where the host runs ahead (`Hardware.launches_hidden`). A roofline is optimistic: kernels reach a part of their peak. The
shares that they reach are fields of `Hardware`, 1 by default; `bl.calibrate` fits them to a few measured rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .hardware import HOST_OP_US, Hardware


@dataclass(frozen=True, eq=False)
class Work:
    """What a step does, whatever the device: one row per kernel, each belonging to an op and run `times` times.

    FLOPs and bytes moved of one run; `matrix` rows run on the matrix units, `half` rows in half precision, `metadata`
    rows move no data, `free` rows take no time. `batched` rows are products of many small matrices, as attention's.
    """

    ops: int
    op: NDArray[np.int64]
    times: NDArray[np.float64]
    flops: NDArray[np.float64]
    moved_bytes: NDArray[np.float64]
    matrix: NDArray[np.bool_]
    half: NDArray[np.bool_]
    metadata: NDArray[np.bool_]
    free: NDArray[np.bool_]
    batched: NDArray[np.bool_] | None = None


def estimated_us(done: Work, hardware: Hardware) -> NDArray[np.float64]:
    """float64[ops] microseconds of every op on that hardware.

    >>> one = {"matrix": [True], "half": [True], "metadata": [False], "free": [False]}
    >>> work = Work(1, np.zeros(1, int), np.ones(1), np.array([312e6]), np.zeros(1), *map(np.array, one.values()))
    >>> a100 = Hardware.named("a100")    # 312e12 FLOP/s: 1 us, and 6.7 us to launch it
    >>> estimated_us(work, a100).round(6).tolist()
    [7.7]
    """
    hardware.validate()
    share = np.full(len(done.op), hardware.matmul_share)
    if done.batched is not None:
        share[done.batched] = hardware.batched_share
    peak = np.where(
        done.matrix, np.where(done.half, hardware.half_flops, hardware.matmul_flops) * share, hardware.peak_flops
    )
    kernel = 1e6 * np.maximum(done.flops / peak, done.moved_bytes / (hardware.bandwidth * hardware.bandwidth_share))
    launched = np.maximum(hardware.launch_us, kernel) if hardware.launches_hidden else hardware.launch_us + kernel
    once = np.where(done.free, 0.0, np.where(done.metadata, HOST_OP_US, launched))
    total = np.zeros(done.ops)
    np.add.at(total, done.op, done.times * once)
    return total
