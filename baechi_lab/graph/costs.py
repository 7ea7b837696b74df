"""Costs of the ops of a graph on the devices of a cluster, and the devices on which they may run, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import CostError, InfeasiblePlacement, in_short
from .cluster import Cluster
from .hardware import HOST, kind_named, known_kind
from .opgraph import OpGraph
from .units import MOST_US


def durations(graph: OpGraph, cluster: Cluster) -> NDArray[np.float64]:
    """Returns float64[n, devices]: `duration_us(op, kind) / speed` in microseconds (docs/simulated-time.md).

    Collectives take `duration_us(op, kind)`, which does not depend on the speed of a device.

    Raises `CostError` if the graph was estimated for named hardware and a device is of another kind, or if all ops
    and transfers in sequence would take longer than floating point can add up. The table is read-only: the graph keeps it.
    """
    for latest_cluster, latest_table in graph.latest_durations:
        if latest_cluster is cluster:
            return latest_table
    check_kinds(graph, cluster)
    table = np.empty((graph.n, cluster.n), dtype=np.float64)
    with np.errstate(over="ignore"):
        for d, device in enumerate(cluster.devices):
            kind = _kind_in_graph(device.kind, graph)
            us = graph.duration_by_kind.get(kind, graph.duration_us)
            table[:, d] = us if device.speed == 1.0 else np.where(graph.on_communication_lane, us, us / device.speed)
        work = float(table.max(axis=1, initial=0.0).sum())
        transfer_us = cluster.latency_us.max() * graph.edge_count
        transfer_us += cluster.us_per_byte.max() * float(
            np.dot(graph.tensor_bytes, np.diff(graph.consumer_ptr).astype(np.float64))
        )
        transfer_us += 2 * cluster.overhead_us.max() * graph.edge_count
        if not work + transfer_us <= MOST_US:
            raise CostError(
                f"at the cluster's lowest speeds the ops take {work:g} us and on its slowest links their "
                f"transfers {transfer_us:g} us; at most {MOST_US:g} can be added up"
            )
    table.flags.writeable = False
    graph.latest_durations[:] = [(cluster, table)]
    return table


def allowed_durations(graph: OpGraph, cluster: Cluster) -> NDArray[np.float64]:
    """Returns float64[n, devices]: `durations`, and infinity where an op may not run (`allowed_devices`)."""
    return np.where(allowed_devices(graph, cluster), durations(graph, cluster), np.inf)


def check_kinds(graph: OpGraph, cluster: Cluster) -> None:
    """Raises `CostError` for devices without durations in a graph that was estimated for hardware by name.

    Durations under kinds that are no hardware ("gpu", "cpu") hold for all devices. The kind "gpu" of a cluster that names no
    hardware means the one device for which the graph was estimated. A host needs no durations, as it only holds bytes.
    """
    has = graph.duration_by_kind
    has_estimates = estimated_hardware(graph)
    if not (has_estimates or any(known_kind(kind) == kind for kind in has)):
        return
    one = bool({"gpu", "cpu", "tpu"} & has.keys())
    for device in cluster.devices:
        if _kind_in_graph(device.kind, graph) not in has and device.kind != HOST and not (one and device.kind == "gpu"):
            raise CostError(
                f"device {device.name!r} is of kind {in_short(device.kind)} and the graph was estimated for "
                f"{', '.join(dict.fromkeys([*has, *has_estimates.values()]))}; "
                "give the device one of these kinds, or profile with hardware= naming all kinds of the cluster"
            )


def _kind_in_graph(kind: str, graph: OpGraph) -> str:
    """Returns the kind under which a graph has durations for a device's kind, in any case; else that kind as it is written.

    It may be a kind for which that hardware was estimated ({"gpu": "a100"}).
    """
    has = graph.duration_by_kind
    if not has or kind in has:
        return kind
    canonical = kind_named(kind)
    hardware = estimated_hardware(graph)
    same = (k for k in has if kind_named(k) == canonical or hardware.get(k) == canonical)
    return next(same, canonical)


def estimated_hardware(graph: OpGraph) -> Mapping[str, str]:
    """Returns the hardware for which a graph was estimated, by device kind; empty if it was not estimated."""
    estimate = graph.info.get("estimate")
    hardware = estimate.get("hardware") if isinstance(estimate, Mapping) else None
    if not isinstance(hardware, Mapping):
        return {}
    return {kind: str(name) for kind, name in hardware.items() if kind in graph.duration_by_kind}


def placed_durations(graph: OpGraph, cluster: Cluster, device: NDArray[np.int32]) -> NDArray[np.float64]:
    """Returns float64[n]: the microseconds of each op on its device, including the processor time of its messages.

    >>> from baechi_lab.graph import Cluster, Link
    >>> g = OpGraph.from_edges([10.0, 20.0], [(0, 1, 8)])
    >>> placed_durations(g, Cluster.uniform(2, link=Link(5.0, 0.0, overhead_us=3.0)), np.array([0, 1])).tolist()
    [13.0, 23.0]
    """
    return durations(graph, cluster)[np.arange(graph.n), device] + message_overheads(graph, cluster, device)


def message_overheads(graph: OpGraph, cluster: Cluster, device: NDArray[np.int32]) -> NDArray[np.float64]:
    """Returns float64[n]: `Link.overhead_us` of the messages that each op sends, and of those that it is the first to read.

    A tensor is one message per device that reads it. "First" refers to the topological order and not to time, so that a
    duration does not depend on the schedule.
    """
    extra = np.zeros(graph.n)
    if not cluster.overhead_us.any():
        return extra
    source, target = device[graph.edge_source], device[graph.consumers]
    edges = np.flatnonzero(source != target)
    edges = edges[np.lexsort((graph.position[graph.consumers[edges]], target[edges], graph.edge_tensor[edges]))]
    message = np.stack([graph.edge_tensor[edges], target[edges]], axis=1)
    is_first = np.ones(len(edges), dtype=np.bool_)
    is_first[1:] = np.any(message[1:] != message[:-1], axis=1)
    first = edges[is_first]
    each = cluster.overhead_us[source[first], target[first]]
    np.add.at(extra, graph.edge_source[first], each)
    np.add.at(extra, graph.consumers[first], each)
    return extra


def allowed_devices(graph: OpGraph, cluster: Cluster) -> NDArray[np.bool_]:
    """Returns bool[n, devices]: whether each op may run on each device, by its own list and those of its colocation group.

    If there are other devices, a device of kind "host" runs only ops whose list names it or its kind.
    Raises `InfeasiblePlacement`, which names the op, if no device of the cluster may run an op.
    """
    mask = np.tile(~cluster.is_host, (graph.n, 1))
    if graph.allowed_sets:
        rows = [
            [(device.name in codes or kind_named(device.kind) in map(kind_named, codes)) for device in cluster.devices]
            for codes in graph.allowed_sets
        ]
        table = np.array([*rows, ~cluster.is_host], dtype=np.bool_)
        mask = table[graph.allowed]
        if len(graph.colocation_names):
            is_colocated = graph.colocation >= 0
            group = np.ones((len(graph.colocation_names), cluster.n), dtype=np.bool_)
            np.logical_and.at(group, graph.colocation[is_colocated], mask[is_colocated])
            mask[is_colocated] &= group[graph.colocation[is_colocated]]
    bad = np.flatnonzero(~mask.any(axis=1))
    if len(bad):
        raise InfeasiblePlacement(
            f"{_limits_of(graph, cluster, int(bad[0]))}; the cluster has {_joined(cluster.names)}"
        )
    return mask


def _limits_of(graph: OpGraph, cluster: Cluster, op: int) -> str:
    """Says where an op may run that no device may run; where its own list allows a device, the lists of its colocation group."""
    group = graph.colocation[op]
    ops = np.flatnonzero(graph.colocation == group) if group >= 0 else [op]
    _, firsts = np.unique(graph.allowed[ops], return_index=True)  # one op of each list of devices
    limits = []
    for member in sorted(int(ops[first]) for first in firsts if graph.allowed[ops[first]] >= 0):
        codes = graph.allowed_sets[graph.allowed[member]]
        only = f"op {graph.names[member]!r} may run only on {_joined(codes)}"
        kinds = {kind_named(code) for code in codes}
        if not any(device.name in codes or kind_named(device.kind) in kinds for device in cluster.devices):
            return only
        limits.append(only)
    if cluster.is_host.any() and (graph.allowed[ops] < 0).any():
        limits.append("ops without a list run on no host")
    return f"colocation group {graph.colocation_names[group]!r} may run on no device: {', '.join(limits)}"


def _joined(names: Sequence[str]) -> str:
    return ", ".join(name if name.isprintable() else repr(name) for name in names)
