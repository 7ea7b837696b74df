"""A chain of devices, as arrays, on which dynamic programs place pipeline stages: one device per stage, or several in a row.

A stage on the devices `d .. d + r - 1` of the chain, each of which takes every r-th micro-batch, costs per micro-batch:

    compute   the work of its units / r
    collectives  of its units / r, on a lane of their own
    received  the tensors that it reads from other stages, each once / r
    sent      the tensors that other stages read from it, each once / r
    ring      2 (r - 1) / r of its gradients over the slowest link among its devices, once per r micro-batches. For a step
              (`once`) it runs once after all micro-batches, and is no part of the load.

The load of a stage is the largest load of its resources. One of them is the lane of its collectives. The others are
`compute + received + sent + ring` where compute and transfers are added (`sum`), otherwise compute and the queues of the
communication mode. Tensors to and from earlier stages take the link to the previous device, all others the link to the next
device. That is exact where all links are equal.
PipeDream (Narayanan et al. 2019, doi:10.1145/3341301.3359646, section 3.1) has the same terms; there, the communication
between two stages is a stage of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster
from ...graph.cluster import COMMUNICATION_MODES
from ...graph.kernels.csr import Scalar
from ...graph.kernels.jit import njit
from .pipeline_units import PipelineUnits

SUM = len(COMMUNICATION_MODES)
"""The load rule that adds a device's compute and transfers. Smaller numbers are communication modes."""
PARALLEL, SEQUENTIAL = COMMUNICATION_MODES.index("parallel"), COMMUNICATION_MODES.index("sequential")


class DeviceChain(NamedTuple):
    """D devices in the order of the pipeline stages. A device with several stages occurs several times.

    Sums before a place are prefix sums over the units in order, [units + 1, kinds].

    Args:
        kind: int32[D], the device's column in the sums.
        work, communication: float64, sums of microseconds of computing and of collectives.
        barred_units: int64, sums of the units that may not run on a device of the kind.
        memory: int64[D], bytes.
        latency, per_byte: float64[D + 1], the link between the devices before and at a place; 0 at both ends.
        run: int64[D], the number of equal devices from here on.
        ring, ring_latency: float64[D, D], at [d, r - 1] the slowest microseconds per byte, and the latency, among the r devices
            from d on.
        rule: how loads add up.
        once: whether gradients are added once per step.
        use_all: whether every device must have a stage.
    """

    kind: NDArray[np.int32]
    work: NDArray[np.float64]
    communication: NDArray[np.float64]
    barred_units: NDArray[np.int64]
    memory: NDArray[np.int64]
    latency: NDArray[np.float64]
    per_byte: NDArray[np.float64]
    run: NDArray[np.int64]
    ring: NDArray[np.float64]
    ring_latency: NDArray[np.float64]
    rule: int
    once: bool
    use_all: bool


def make_device_chain(
    units: PipelineUnits,
    cluster: Cluster,
    devices: Sequence[int],
    *,
    sum: bool,
    replicas: bool,
    once: bool = False,
    use_all: bool = False,
    separate_lanes: bool = True,
) -> DeviceChain:
    """The chain of `devices` (indices into the cluster). Without `replicas`, a stage takes one device only.

    Without `separate_lanes`, collectives count as work.
    """
    work, communication = units.work, units.communication
    if not separate_lanes:
        work, communication = work + communication, np.zeros_like(communication)
    device_indices = np.asarray(devices, dtype=np.int64)
    kind_of_device: dict[bytes, int] = {}
    kinds = [
        kind_of_device.setdefault(
            b"".join(
                column.tobytes()
                for column in (work[:, d], communication[:, d], units.allowed[:, d], cluster.memory_bytes[d])
            ),
            d,
        )
        for d in device_indices.tolist()
    ]
    first, kind = np.unique(kinds, return_inverse=True)
    is_barred = ~units.allowed[:, first]
    run = np.ones(len(device_indices), dtype=np.int64)  # number of equal devices in a row, from each device on
    for d in range(len(kind) - 2, -1, -1) if replicas else ():
        run[d] = run[d + 1] + 1 if kind[d] == kind[d + 1] else 1
    return DeviceChain(
        kind=kind.astype(np.int32),
        work=prefix_sums(work[:, first]),
        communication=prefix_sums(communication[:, first]),
        barred_units=prefix_sums(is_barred.astype(np.int64)),
        memory=cluster.memory_bytes[device_indices],
        latency=_neighbour_link(cluster.latency_us, device_indices),
        per_byte=_neighbour_link(cluster.us_per_byte, device_indices),
        run=run,
        ring=_slowest_link(cluster.us_per_byte, device_indices),
        ring_latency=_slowest_link(cluster.latency_us, device_indices),
        rule=SUM if sum else COMMUNICATION_MODES.index(cluster.comm),
        once=once,
        use_all=use_all,
    )


def prefix_sums(columns: NDArray[Scalar]) -> NDArray[Scalar]:
    """[n + 1, ...], row by row: the sum of the rows before each, and of all of them."""
    sums = np.zeros((len(columns) + 1, *columns.shape[1:]), dtype=columns.dtype)
    np.cumsum(columns, axis=0, out=sums[1:])
    return sums


def _neighbour_link(matrix: NDArray[np.float64], device_indices: NDArray[np.int64]) -> NDArray[np.float64]:
    """The more expensive direction between neighbours; 0 before the first device and after the last."""
    inner = np.maximum(matrix[device_indices[:-1], device_indices[1:]], matrix[device_indices[1:], device_indices[:-1]])
    return np.concatenate([[0.0], inner, [0.0]])


def _slowest_link(matrix: NDArray[np.float64], device_indices: NDArray[np.int64]) -> NDArray[np.float64]:
    """[d, r - 1]: the largest entry of `matrix` among the devices d .. d + r - 1."""
    count = len(device_indices)
    slowest = np.zeros((count, count))
    for d in range(count):
        for r in range(2, count - d + 1):
            last, previous = device_indices[d + r - 1], device_indices[d : d + r - 1]
            edge = max(matrix[last, previous].max(), matrix[previous, last].max())
            slowest[d, r - 1] = max(slowest[d, r - 2], edge)
    return slowest


@njit(cache=True, inline="always")  # a call would count the references to all of the chain's arrays
def ring_us(chain: DeviceChain, d: int, r: int, gradient: float) -> float:
    """Microseconds in which `r` devices from `d` on add up `gradient` bytes."""
    if gradient <= 0:
        return 0.0
    return 2.0 * (r - 1) * (chain.ring_latency[d, r - 1] + gradient / r * chain.ring[d, r - 1])


@njit(cache=True, inline="always")
def pipeline_stage_load(
    chain: DeviceChain,
    d: int,
    r: int,
    work: float,
    communication: float,
    gradient: float,
    low: NDArray[np.float64],
    high: NDArray[np.float64],
) -> float:
    """Microseconds per micro-batch of a stage of `work` and `communication` us and `gradient` bytes on `r` devices from `d` on.

    `low`, `high` float64[4]: number and bytes of tensors received, number and bytes sent, below and above the stage.
    """
    receiving = low[0] * chain.latency[d] + low[1] * chain.per_byte[d]
    receiving += high[0] * chain.latency[d + r] + high[1] * chain.per_byte[d + r]
    sending = low[2] * chain.latency[d] + low[3] * chain.per_byte[d]
    sending += high[2] * chain.latency[d + r] + high[3] * chain.per_byte[d + r]
    ring = 0.0 if chain.once else ring_us(chain, d, r, gradient)
    if chain.rule == SUM:
        return max(work + receiving + sending + ring, communication) / r
    if chain.rule == PARALLEL:
        return max(work, communication) / r
    if chain.rule == SEQUENTIAL:
        return max(work, communication, receiving + sending + ring) / r
    return max(work, communication, max(receiving, sending) + ring) / r
