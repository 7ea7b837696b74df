"""From FLOPs and bytes to microseconds, whatever the framework that they were counted in.

A kernel lasts `max(FLOPs / peak, bytes / bandwidth)`, bytes being its inputs and outputs (S. Williams, A. Waterman,
D. Patterson, "Roofline", CACM 52(4), 2009, doi:10.1145/1498765.1498785), on top of its launch, or hidden behind it
where the host runs ahead (`Hardware.launches_hidden`). A roofline is optimistic: kernels reach a part of their peak. The
shares that they reach are fields of `Hardware`, 1 by default; `bl.calibrate` fits them to a few measured rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph.hardware import HOST_OP_US, PRECISIONS, Hardware


@dataclass(frozen=True)
class Kernel:
    """What one call of an operator does, whatever the device and the framework.

    Args:
        flops: floating-point operations, a multiply-add being two; 0 where unknown, so that its bytes decide.
        moved_bytes: read from and written to memory.
        precision: of a matrix product's operands, one of `PRECISIONS`.
        matrix: whether it runs on the matrix units.
        batched: a product of many small matrices, as attention's.
        metadata: moves no data; only the host is busy.

    >>> product = Kernel(flops=312e9, precision="fp16", matrix=True)    # a millisecond at 312 TFLOP/s
    >>> round(product.us(Hardware.named("a100")), 1)
    1006.7
    """

    flops: float = 0.0
    moved_bytes: float = 0.0
    precision: str = "fp32"
    matrix: bool = False
    batched: bool = False
    metadata: bool = False

    def us(self, hardware: Hardware) -> float:
        """Microseconds of one run on that hardware."""
        return float(estimated_us(work_of(1, [(0, self)]), hardware)[0])


@dataclass(frozen=True, eq=False)
class Work:
    """What a step does, whatever the device: one row per kernel, each belonging to an op and run `times` times.

    FLOPs and bytes moved of one run; `matrix` rows run on the matrix units, in `precision` (an index into `PRECISIONS`),
    `metadata` rows move no data, `free` rows take no time. `batched` rows are products of many small matrices, as attention's.
    """

    ops: int
    op: NDArray[np.int64]
    times: NDArray[np.float64]
    flops: NDArray[np.float64]
    moved_bytes: NDArray[np.float64]
    matrix: NDArray[np.bool_]
    precision: NDArray[np.int64]
    metadata: NDArray[np.bool_]
    free: NDArray[np.bool_]
    batched: NDArray[np.bool_] | None = None


def estimated_us(done: Work, hardware: Hardware) -> NDArray[np.float64]:
    """float64[ops] microseconds of every op on that hardware.

    >>> rows = [(0, Kernel(312e6, precision="fp16", matrix=True)), (1, Kernel(moved_bytes=2039e3))]
    >>> a100 = Hardware.named("a100")    # 312e12 FLOP/s and 2039e9 bytes/s: 1 us each, and 6.7 us to launch it
    >>> estimated_us(work_of(2, rows), a100).round(6).tolist()
    [7.7, 7.7]
    """
    hardware.validate()
    share = np.full(len(done.op), hardware.matmul_share)
    if done.batched is not None:
        share[done.batched] = hardware.batched_share
    products = np.array([hardware.product_flops(precision) for precision in PRECISIONS])
    peak = np.where(done.matrix, products[done.precision] * share, hardware.peak_flops * hardware.arithmetic_share)
    kernel = 1e6 * np.maximum(done.flops / peak, done.moved_bytes / (hardware.bandwidth * hardware.bandwidth_share))
    launched = np.maximum(hardware.launch_us, kernel) if hardware.launches_hidden else hardware.launch_us + kernel
    once = np.where(done.free, 0.0, np.where(done.metadata, HOST_OP_US, launched))
    total = np.zeros(done.ops)
    np.add.at(total, done.op, done.times * once)
    return total


def work_of(ops: int, rows: Iterable[tuple[int, Kernel]]) -> Work:
    """The `Work` of kernels, each with the index of the op that runs it once, of `ops` ops."""
    found = list(rows)
    kernels = [kernel for _, kernel in found]
    column = lambda key, kind: np.array([getattr(kernel, key) for kernel in kernels], dtype=kind)  # noqa: E731
    return Work(
        ops=ops,
        op=np.array([op for op, _ in found], dtype=np.int64),
        times=np.ones(len(found)),
        flops=column("flops", np.float64),
        moved_bytes=column("moved_bytes", np.float64),
        matrix=column("matrix", np.bool_),
        precision=np.array([PRECISIONS.index(kernel.precision) for kernel in kernels], dtype=np.int64),
        metadata=column("metadata", np.bool_),
        free=np.zeros(len(found), dtype=np.bool_),
        batched=column("batched", np.bool_),
    )
