"""The roofline model: turns FLOPs and bytes into microseconds, for all frameworks.

A kernel takes `max(FLOPs / peak, bytes / bandwidth)`, where bytes are its inputs and outputs (S. Williams, A. Waterman,
D. Patterson, "Roofline", CACM 52(4), 2009, doi:10.1145/1498765.1498785). The launch is added, or hidden behind the kernel if
the host runs ahead (`Hardware.launches_hidden`). A roofline is optimistic, because kernels reach only a share of the peak.
These shares are fields of `Hardware`, 1 by default; `bl.calibrate` fits them to measured rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph.hardware import HOST_OP_US, PRECISIONS, Hardware


@dataclass(frozen=True)
class Kernel:
    """The work of one call of an operator, independent of device and framework.

    Args:
        flops: floating-point operations, where a multiply-add counts as two; 0 if unknown, so that its bytes decide.
        moved_bytes: bytes read from and written to memory.
        precision: precision of a matrix product's operands, one of `PRECISIONS`.
        matrix: True if it runs on the matrix units.
        batched: True for a product of many small matrices, as in attention.
        metadata: True if it moves no data, so that only the host is busy.

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
        """Returns the microseconds of one run on `hardware`."""
        return float(estimated_us(work_of(1, [(0, self)]), hardware)[0])


@dataclass(frozen=True, eq=False)
class Work:
    """The work of a step, independent of the device: one row per kernel, each of which belongs to an op and runs `times` times.

    FLOPs and moved bytes are those of one run. `matrix` rows run on the matrix units in `precision` (an index into `PRECISIONS`),
    `metadata` rows move no data, `free` rows take no time, `batched` rows are products of many small matrices, as in attention.
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


def estimated_us(work: Work, hardware: Hardware) -> NDArray[np.float64]:
    """Returns float64[ops], the microseconds of every op on `hardware`.

    >>> rows = [(0, Kernel(312e6, precision="fp16", matrix=True)), (1, Kernel(moved_bytes=2039e3))]
    >>> a100 = Hardware.named("a100")    # 312e12 FLOP/s and 2039e9 bytes/s: 1 us each, and 6.7 us to launch it
    >>> estimated_us(work_of(2, rows), a100).round(6).tolist()
    [7.7, 7.7]
    """
    hardware.validate()
    share = np.full(len(work.op), hardware.matmul_share)
    if work.batched is not None:
        share[work.batched] = hardware.batched_share
    products = np.array([hardware.product_flops(precision) for precision in PRECISIONS])
    peak = np.where(work.matrix, products[work.precision] * share, hardware.peak_flops * hardware.arithmetic_share)
    kernel = 1e6 * np.maximum(work.flops / peak, work.moved_bytes / (hardware.bandwidth * hardware.bandwidth_share))
    launched = np.maximum(hardware.launch_us, kernel) if hardware.launches_hidden else hardware.launch_us + kernel
    once = np.where(work.free, 0.0, np.where(work.metadata, HOST_OP_US, launched))
    total = np.zeros(work.ops)
    np.add.at(total, work.op, work.times * once)
    return total


def work_of(ops: int, rows: Iterable[tuple[int, Kernel]]) -> Work:
    """Builds the `Work` of `ops` ops from pairs of an op's index and a kernel that it runs once."""
    op_kernels = list(rows)
    kernels = [kernel for _, kernel in op_kernels]
    column = lambda key, kind: np.array([getattr(kernel, key) for kernel in kernels], dtype=kind)  # noqa: E731
    return Work(
        ops=ops,
        op=np.array([op for op, _ in op_kernels], dtype=np.int64),
        times=np.ones(len(op_kernels)),
        flops=column("flops", np.float64),
        moved_bytes=column("moved_bytes", np.float64),
        matrix=column("matrix", np.bool_),
        precision=np.array([PRECISIONS.index(kernel.precision) for kernel in kernels], dtype=np.int64),
        metadata=column("metadata", np.bool_),
        free=np.zeros(len(op_kernels), dtype=np.bool_),
        batched=column("batched", np.bool_),
    )
