"""`metis`: balance the work and cut the fewest bytes, blind to the order of the ops.

The graph is read as undirected: a vertex per colocation group, weighted by its work (and, where memory is tight, by the
bytes that it keeps); an edge weighted by what it costs to cut. METIS (Karypis and Kumar 1998,
doi:10.1137/S1064827595287997) divides it recursively and by k-way refinement with several tolerances and seeds; the
simulation picks among the partitions. Needs the package `pymetis` (extra `solvers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..errors import InvalidInput, MissingPackage
from ..graph import Cluster, OpGraph, Placement, allowed_devices, durations
from ..workers.metis import metis_parts
from .base import Placer
from .evaluation.orders import Orders, best_of, usual_orders
from .memory.feasible import within_memory
from .problem import allowed_group_devices, both_directions, groups_of, transfer_us

IMBALANCE = (0.03, 0.1, 0.3)  # tolerances that are tried
SMALLEST_SHARE = 0.001
"""The smallest part that a device gets, as a share of the largest."""
_TOP = 1 << 20  # largest integer weight


@dataclass(frozen=True)
class Metis(Placer):
    """METIS: equal work on every device, fewest bytes between them (needs pymetis).

    `imbalance`: the excess over the fair share that a device may have; each is tried.
    """

    name = "metis"
    imbalance: tuple[float, ...] = IMBALANCE
    seed: int = 0

    def validate(self) -> None:
        if not self.imbalance or any(not 0 < x < np.inf for x in self.imbalance):
            raise InvalidInput(f"imbalance is {self.imbalance}; it must hold numbers above 0")
        check_whole("seed", self.seed, 0)

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        load_pymetis()
        if graph.n == 0:
            return Placement(device=np.zeros(0, dtype=np.int32))
        orders = usual_orders(graph, cluster)
        return within_memory(graph, cluster, lambda limits, careful: self._plan(graph, limits, careful, orders))

    def _plan(self, graph: OpGraph, cluster: Cluster, careful: bool, orders: Orders) -> Placement:
        partitions = metis_partitions(graph, cluster, self.imbalance, self.seed, by_bytes=careful)
        best = best_of(graph, cluster, partitions, orders)
        if best is None:
            return Placement(device=allowed_devices(graph, cluster).argmax(axis=1))
        return Placement(device=best.device, order=best.rank, info={"partition": best.name})


def load_pymetis() -> ModuleType:
    """Returns the module; `MissingPackage` names what brings it."""
    try:
        import pymetis
    except ImportError as error:
        raise MissingPackage.of("pymetis", "solvers", "placer 'metis'") from error
    return pymetis


def metis_partitions(
    graph: OpGraph,
    cluster: Cluster,
    imbalance: tuple[float, ...] = IMBALANCE,
    seed: int = 0,
    *,
    by_bytes: bool = False,
    part_count: int | None = None,
) -> Iterator[tuple[str, NDArray[np.int32]]]:
    """Yields (name, device int32[n]) for each tolerance and both of METIS's methods.

    `by_bytes` balances bytes instead of work; `part_count` uses only that many devices, the first ones.
    """
    load_pymetis()
    group = groups_of(graph)
    count = int(group.max()) + 1
    group_allowed = allowed_group_devices(graph, cluster, group)

    def device_of_op(group_device: NDArray[np.int64]) -> NDArray[np.int32]:
        """Moves groups from devices that they may not use to the first that they may."""
        is_allowed = group_allowed[np.arange(count), group_device]
        return np.where(is_allowed, group_device, group_allowed.argmax(axis=1))[group].astype(np.int32)

    pointer, neighbour, cost = cut_costs(graph, cluster, group, count)
    load = graph.persistent_bytes if by_bytes else durations(graph, cluster).min(axis=1)
    weight = scaled_integers(np.bincount(group, load, count), _TOP)
    capacity = cluster.memory_bytes if by_bytes else cluster.speed
    part_count = cluster.n if part_count is None else part_count
    # METIS refuses parts of size 0, and more parts than vertices.
    devices = np.flatnonzero(capacity[:part_count] > 0)
    if not 1 < len(devices) <= count:
        in_turn = np.resize(devices, count) if len(devices) else np.zeros(count, dtype=np.int64)
        yield "one group per device", device_of_op(in_turn)
        return
    share = fair_shares(capacity[devices]).tolist()
    for tolerance in imbalance:
        for recursive in (False, True):
            part_of_group = metis_parts(
                pointer,
                neighbour,
                cost,
                len(devices),
                recursive=recursive,
                seed=seed,
                vertex_weight=weight,
                share=share,
                imbalance=tolerance,
            )
            method = "recursive" if recursive else "k-way"
            yield f"{method}, {part_count} parts, imbalance {tolerance:g}", device_of_op(devices[part_of_group])


def cut_costs(
    graph: OpGraph, cluster: Cluster, group: NDArray[np.int32], count: int
) -> tuple[list[int], list[int], list[int]]:
    """Returns the undirected graph of groups in CSR form (pointer, neighbour), and each edge's scaled time to send its tensors.

    A tensor with several readers is sent once per device: each of its edges carries an equal part of its cost.
    """
    cost = transfer_us(graph, cluster) / np.maximum(np.diff(graph.consumer_ptr), 1)
    a, b = group[graph.edge_source], group[graph.consumers]
    cut = a != b
    pointer, neighbour, (total,) = both_directions(a[cut], b[cut], [cost[graph.edge_tensor][cut]], count)
    return pointer.tolist(), neighbour.tolist(), scaled_integers(total, 1 << 16, lowest=1)


def fair_shares(capacity: NDArray[np.number]) -> NDArray[np.float64]:
    """Returns float64[D]: the share of the work that each device gets, in proportion to its capacity.

    One capacity at least must be above 0. No share is below `SMALLEST_SHARE` of the largest, since partitioners fail on
    parts of next to nothing.

    >>> fair_shares(np.array([3.0, 1.0, 0.0])).round(4).tolist()
    [0.7494, 0.2498, 0.0007]
    """
    share = np.maximum(capacity / capacity.max(), SMALLEST_SHARE)
    return np.asarray(share / share.sum())


def scaled_integers(value: NDArray[np.number], top: int, lowest: int = 0) -> list[int]:
    """Returns the values rounded after scaling, so that the largest becomes `top`; none is below `lowest`."""
    largest = float(value.max(initial=0.0))
    return np.maximum(np.rint(value / (largest or 1.0) * top), lowest).astype(np.int64).tolist()
