"""Orders of a cluster's devices, and sequences that the stages of a pipeline pass: once, in several rounds, or there and back.

Interleaved 1F1B passes the devices several times (Narayanan et al., SC 2021, doi:10.1145/3458817.3476209, section 2.2.2).
ZB-V passes them there and back (Qi et al. 2024, arXiv:2405.15362, section 3). In the dynamic programs a device with several
stages occurs several times in the chain, and each occurrence must have a stage. Sequences of fewer devices are tried as well:
transfers between stages may cost more than the additional devices save. Only the measurement counts that the stages of a
device share its memory (`pipeline_cuts.place_best_cut`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster
from ...simulator.pipelined_graph import schedule_shape
from .device_chain import DeviceChain, make_device_chain
from .objective import Objective
from .pipeline_units import PipelineUnits

ROUNDS = (2, 4)
"""Stages per device in an interleaved pipeline. One stage per device is 1F1B."""
MAX_KIND_ORDERS = 24
"""Most orders of different kinds of devices that are tried."""


def device_orders(cluster: Cluster, allowed: NDArray[np.bool_] | None = None) -> list[tuple[int, ...]]:
    """Returns the cluster's own order first, then every order of its kinds of devices, then orders across its islands.

    `allowed` bool[units, devices]: devices that differ in it are of different kinds.

    >>> from baechi_lab import Device
    >>> device_orders(Cluster.uniform(3))
    [(0, 1, 2)]
    >>> device_orders(Cluster([Device("a", "gpu", 8), Device("b", "gpu", 8, speed=2.0)]))
    [(0, 1), (1, 0)]
    """
    cluster_order = tuple(range(cluster.n))
    kind = [
        (d.kind, d.memory_bytes, d.speed, b"" if allowed is None else allowed[:, k].tobytes())
        for k, d in enumerate(cluster.devices)
    ]
    kinds = list(dict.fromkeys(kind))
    orders = [cluster_order]
    for ranks in islice(permutations(range(len(kinds))), MAX_KIND_ORDERS):
        rank = dict(zip(kinds, ranks, strict=True))
        orders.append(tuple(sorted(cluster_order, key=lambda d: rank[kind[d]])))
    islands = _islands(cluster)
    if 1 < len(islands) < cluster.n:
        orders.append(tuple(d for island in islands for d in island))
        longest = max(map(len, islands))
        orders.append(tuple(island[k] for k in range(longest) for island in islands if k < len(island)))
    return list(dict.fromkeys(orders))


def _islands(cluster: Cluster) -> list[list[int]]:
    """Returns groups of devices that the cheapest links (per byte) join, such as those of one machine."""
    from scipy.sparse.csgraph import connected_components

    if cluster.n < 2:
        return [list(range(cluster.n))]
    is_pair = ~np.eye(cluster.n, dtype=bool)
    is_cheapest = cluster.us_per_byte <= cluster.us_per_byte[is_pair].min() * (1 + 1e-9)
    if is_cheapest[is_pair].all():
        return [list(range(cluster.n))]
    count, island = connected_components(is_cheapest & is_pair, directed=False)
    return [np.flatnonzero(island == k).tolist() for k in range(count)]


class DeviceSequence(NamedTuple):
    """`devices` in the order of the stages; `with_replicas`: equal devices may share a stage; `use_all`: each has a stage."""

    devices: tuple[int, ...]
    with_replicas: bool
    use_all: bool


def device_sequences(objective: Objective, order: tuple[int, ...]) -> Iterator[DeviceSequence]:
    """Yields the sequences of the objective's schedule, for devices that follow each other in `order`.

    >>> [sequence.devices for sequence in device_sequences(Objective("step", schedule="zb-v"), (0, 1, 2))]
    [(0, 1, 2, 2, 1, 0), (0, 0)]
    >>> [sequence.devices for sequence in device_sequences(Objective("step", schedule="interleaved-1f1b"), (0, 1))]
    [(0, 1), (0, 1, 0, 1), (0, 1, 0, 1, 0, 1, 0, 1)]
    """
    shape = "chain"
    if objective.name == "step" and objective.schedule is not None:
        shape = schedule_shape(objective.schedule)
    if shape != "v":
        # A step is tried with and without replicas, since its dynamic program minimises bounds only.
        with_and_without = objective.replicas and objective.name == "step"
        for with_replicas in (False, True) if with_and_without else (objective.replicas,):
            yield DeviceSequence(order, with_replicas, False)
    count = len(order) if shape != "chain" else 0  # of devices, halved until none is left
    while count:
        first_devices = order[:count]
        if shape == "v":
            yield DeviceSequence(first_devices + first_devices[::-1], False, True)
        elif count > 1:
            yield from (DeviceSequence(first_devices * rounds, False, True) for rounds in ROUNDS)
        count //= 2


def chain_along(sequence: DeviceSequence, units: PipelineUnits, cluster: Cluster, objective: Objective) -> DeviceChain:
    """Returns the device chain of a sequence, for the dynamic programs."""
    return make_device_chain(
        units,
        cluster,
        sequence.devices,
        sum=objective.sum,
        replicas=sequence.with_replicas,
        once=objective.name == "step",
        use_all=sequence.use_all,
        separate_lanes=objective.name == "throughput",
    )
