"""The devices that stages are cut over, as arrays: a chain in which a stage takes one device or several in a row.

What a stage costs per micro-batch on devices `d .. d + r - 1` of the chain, each of which takes every r-th micro-batch:

    compute   the work of its units / r
    received  the tensors that it reads from other stages, each once / r
    sent      the tensors that others read from it, each once / r
    ring      2 (r - 1) / r of its gradients over the slowest link among its devices, once for every r micro-batches; for a
              step (`once`) once behind all of its micro-batches, and then no part of the load

and its load is the largest of what its resources carry: `compute + received + sent + ring` where transfers and compute
are added up (`sum`), else the largest of compute and of the queues of the communication mode. Tensors from and to
earlier stages take the link to the device before, others the link to the device after: exact where all links are
equal. PipeDream (Narayanan et al. 2019, doi:10.1145/3341301.3359646, section 3.1) has the same terms, with the
communication between stages as a stage of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...graph import Cluster
from ...graph.cluster import COMMUNICATION_MODES
from ...graph.kernels.jit import njit
from .units import Units

SUM = len(COMMUNICATION_MODES)
"""The rule of loads in which a device's compute and transfers are added up; smaller ones are communication modes."""
PARALLEL, SEQUENTIAL = COMMUNICATION_MODES.index("parallel"), COMMUNICATION_MODES.index("sequential")


class Chain(NamedTuple):
    """D devices in the order of the stages; one that has several stages is there as often.

    `kind` int32[D]: column of `work` of a device; `work` float64[units + 1, kinds] and `barred` int64[units + 1, kinds]
    are sums over the units of what they take, and of whether they may not run; `memory` int64[D]; `latency`,
    `per_byte` float64[D + 1]: the link between the devices before and at a place (0 at the ends); `run` int64[D]: how
    many equal devices follow, itself counted; `ring` float64[D, D]: slowest microseconds per byte among `r` devices
    from `d` on, at [d, r - 1], `ring_latency` likewise; `rule` how loads add up; `once`: gradients are added up once per step;
    `whole`: each must have a stage.
    """

    kind: Any
    work: Any
    barred: Any
    memory: Any
    latency: Any
    per_byte: Any
    run: Any
    ring: Any
    ring_latency: Any
    rule: int
    once: bool
    whole: bool


def make_chain(
    units: Units, cluster: Cluster, devices: Sequence[int], *, sum: bool, replicas: bool, once: bool = False,
    whole: bool = False,
) -> Chain:  # fmt: skip
    """The chain of `devices` (indices into the cluster); without `replicas` no stage takes more than one."""
    chosen = np.asarray(devices, dtype=np.int64)
    columns = np.concatenate([units.work, ~units.able, cluster.memory_bytes[None, :].repeat(1, axis=0)])[:, chosen]
    _, first, kind = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    work, barred = units.work[:, chosen[first]], ~units.able[:, chosen[first]]
    return Chain(
        kind=kind.astype(np.int32),
        work=_sums(work),
        barred=_sums(barred.astype(np.int64)),
        memory=cluster.memory_bytes[chosen],
        latency=_between(cluster.latency_us, chosen),
        per_byte=_between(cluster.us_per_byte, chosen),
        run=_runs(kind) if replicas else np.ones(len(chosen), dtype=np.int64),
        ring=_slowest(cluster.us_per_byte, chosen),
        ring_latency=_slowest(cluster.latency_us, chosen),
        rule=SUM if sum else COMMUNICATION_MODES.index(cluster.comm),
        once=once,
        whole=whole,
    )


def _sums(columns: Any) -> Any:
    return np.concatenate([np.zeros((1, columns.shape[1]), dtype=columns.dtype), np.cumsum(columns, axis=0)])


def _between(matrix: Any, chosen: Any) -> Any:
    """The dearer direction between neighbours; nothing lies before the first and after the last."""
    inner = np.maximum(matrix[chosen[:-1], chosen[1:]], matrix[chosen[1:], chosen[:-1]])
    return np.concatenate([[0.0], inner, [0.0]])


def _runs(kind: Any) -> Any:
    run = np.ones(len(kind), dtype=np.int64)
    for d in range(len(kind) - 2, -1, -1):
        run[d] = run[d + 1] + 1 if kind[d] == kind[d + 1] else 1
    return run


def _slowest(matrix: Any, chosen: Any) -> Any:
    """[d, r - 1]: the largest entry among the devices d .. d + r - 1 and each other."""
    count = len(chosen)
    found = np.zeros((count, count))
    for d in range(count):
        for r in range(2, count - d + 1):
            last, others = chosen[d + r - 1], chosen[d : d + r - 1]
            edge = max(matrix[last, others].max(), matrix[others, last].max())
            found[d, r - 1] = max(found[d, r - 2], edge)
    return found


@njit(cache=True, inline="always")  # a call would count the references to all of the chain's arrays
def ring_us(chain: Any, d: Any, r: Any, gradient: Any) -> Any:
    """Microseconds in which `r` devices from `d` on add up `gradient` bytes."""
    if gradient <= 0:
        return 0.0
    return 2.0 * (r - 1) * (chain.ring_latency[d, r - 1] + gradient / r * chain.ring[d, r - 1])


@njit(cache=True, inline="always")
def stage_load(chain: Any, d: Any, r: Any, work: Any, gradient: Any, low: Any, high: Any) -> Any:
    """Microseconds per micro-batch of a stage of `work` us and `gradient` bytes on `r` devices from `d` on.

    `low`, `high` float64[4]: number and bytes of tensors received, number and bytes sent, below and above the stage.
    """
    received = low[0] * chain.latency[d] + low[1] * chain.per_byte[d]
    received += high[0] * chain.latency[d + r] + high[1] * chain.per_byte[d + r]
    sent = low[2] * chain.latency[d] + low[3] * chain.per_byte[d]
    sent += high[2] * chain.latency[d + r] + high[3] * chain.per_byte[d + r]
    ring = 0.0 if chain.once else ring_us(chain, d, r, gradient)
    if chain.rule == SUM:
        return (work + received + sent + ring) / r
    if chain.rule == PARALLEL:
        return work / r
    if chain.rule == SEQUENTIAL:
        return max(work, received + sent + ring) / r
    return max(work, max(received, sent) + ring) / r
