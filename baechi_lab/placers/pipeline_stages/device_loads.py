"""Loads of devices and queues under an assignment, updated while units move, and annealing of the largest load.

The period of endless micro-batches is the largest load of any resource (`simulator.throughput`). A unit is a set of ops that
share a device. When a unit moves, only the tensors that it makes or reads change their load: their messages are removed and
added again. The annealed energy adds a small part of the root mean square of all loads, so that moves which lower other
loads than the largest count as well.

Complexity: O(tensors of the unit * devices) per move. Source: Kirkpatrick, Gelatt and Vecchi 1983,
doi:10.1126/science.220.4598.671.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph
from ...graph.cluster import COMMUNICATION_MODES
from ...graph.kernels.csr import offsets, transpose
from ...graph.kernels.jit import njit
from ..evaluation.anneal import acceptance_threshold
from ..problem import groups_of
from .device_chain import PARALLEL, SEQUENTIAL, SUM
from .pipeline_units import unit_columns

EVEN = 0.05
"""Weight of the root mean square in the energy."""


class LoadModel(NamedTuple):
    """U units on D devices, and the tensors between units.

    Args:
        unit: int32[n], the unit of every op.
        work, communication: float64[U, D], microseconds of computing and of collectives.
        allowed: bool[U, D].
        persistent_bytes: int64[U].
        producer, size: int64 and float64[tensors], the unit that makes a tensor, and its bytes.
        reader_ptr, reader: in CSR form, the units that read a tensor.
        made_ptr: int64[U + 1]; unit u makes tensors `made_ptr[u]` to `made_ptr[u + 1] - 1`.
        read_ptr, reads: in CSR form, the tensors that a unit reads.
        latency, per_byte, overhead: float64[D, D], of the links.
        limit: int64[D], bytes.
        rule: how loads add up, as in `pipeline_stages.device_chain`.
    """

    unit: NDArray[np.int32]
    work: NDArray[np.float64]
    communication: NDArray[np.float64]
    allowed: NDArray[np.bool_]
    persistent_bytes: NDArray[np.int64]
    producer: NDArray[np.int64]
    size: NDArray[np.float64]
    reader_ptr: NDArray[np.int64]
    reader: NDArray[np.int64]
    made_ptr: NDArray[np.int64]
    read_ptr: NDArray[np.int64]
    reads: NDArray[np.int32]
    latency: NDArray[np.float64]
    per_byte: NDArray[np.float64]
    overhead: NDArray[np.float64]
    limit: NDArray[np.int64]
    rule: int


def load_model(graph: OpGraph, cluster: Cluster, *, sum: bool = False) -> LoadModel:
    """The model of `graph` with its colocation groups as units; `sum`: as in `bl.throughput`."""
    group, none = groups_of(graph), np.zeros(0, dtype=np.int32)
    count = int(group.max(initial=-1)) + 1
    units = unit_columns(graph, cluster, group, none, none, count)
    read_ptr, reads = transpose(units.reader_ptr, units.reader, count)
    return LoadModel(
        unit=group,
        work=units.work,
        communication=units.communication,
        allowed=units.allowed,
        persistent_bytes=units.persistent_bytes,
        producer=units.producer.astype(np.int64),
        size=units.size.astype(np.float64),
        reader_ptr=units.reader_ptr,
        reader=units.reader.astype(np.int64),
        made_ptr=offsets(units.producer, count),
        read_ptr=read_ptr,
        reads=reads,
        latency=cluster.latency_us,
        per_byte=cluster.us_per_byte,
        overhead=cluster.overhead_us,
        limit=cluster.memory_bytes,
        rule=SUM if sum else COMMUNICATION_MODES.index(cluster.comm),
    )


@njit(cache=True, nogil=True)
def charge_tensor(
    m: LoadModel,
    unit_device: NDArray[np.int64],
    t: int,
    load: NDArray[np.float64],
    sign: float,
    device_seen: NDArray[np.bool_],
) -> None:
    """Adds the messages of tensor `t` to the loads (`sign` 1) or removes them (-1); `device_seen` bool[D] is scratch."""
    source, first, end = unit_device[m.producer[t]], m.reader_ptr[t], m.reader_ptr[t + 1]
    largest_cost = 0.0
    for k in range(first, end):
        d = unit_device[m.reader[k]]
        if d == source or device_seen[d]:
            continue
        device_seen[d] = True
        cost = m.latency[source, d] + m.per_byte[source, d] * m.size[t]
        largest_cost = max(largest_cost, cost)
        load[1, source] += 0.0 if m.rule == SUM else sign * cost
        load[2, d] += sign * cost
        load[3, source] += sign * m.overhead[source, d]
        load[3, d] += sign * m.overhead[source, d]
    if m.rule == SUM:
        load[1, source] += sign * largest_cost
    for k in range(first, end):
        device_seen[unit_device[m.reader[k]]] = False


@njit(cache=True, nogil=True)
def loads_of(m: LoadModel, unit_device: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns float64[5, D]: compute, sent, received, message overheads and collectives per device for `unit_device` int64[U].

    >>> graph = OpGraph.from_edges([4.0, 6.0], [(0, 1, 10)])
    >>> from baechi_lab import Link
    >>> model = load_model(graph, Cluster.uniform(2, link=Link(1.0, 0.1)))
    >>> loads_of(model, np.array([0, 1])).tolist()
    [[4.0, 6.0], [2.0, 0.0], [0.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    """
    load, device_seen = np.zeros((5, m.work.shape[1])), np.zeros(m.work.shape[1], np.bool_)
    for u in range(len(unit_device)):
        load[0, unit_device[u]] += m.work[u, unit_device[u]]
        load[4, unit_device[u]] += m.communication[u, unit_device[u]]
    for t in range(len(m.producer)):
        charge_tensor(m, unit_device, t, load, 1.0, device_seen)
    return load


@njit(cache=True, nogil=True)
def largest_load(m: LoadModel, load: NDArray[np.float64]) -> tuple[float, float]:
    """Returns the largest load of any resource, and the root mean square of the devices' loads."""
    largest, squares = 0.0, 0.0
    for d in range(load.shape[1]):
        compute = load[0, d] + load[3, d]
        if m.rule == SUM:
            device_load = compute + load[1, d] + load[2, d]
        elif m.rule == PARALLEL:
            device_load = compute
        elif m.rule == SEQUENTIAL:
            device_load = max(compute, load[1, d] + load[2, d])
        else:
            device_load = max(compute, max(load[1, d], load[2, d]))
        largest = max(largest, max(device_load, load[4, d]))
        squares += (compute + load[1, d] + load[2, d] + load[4, d]) ** 2
    return largest, np.sqrt(squares / load.shape[1])


@njit(cache=True, nogil=True)
def _move_unit(
    m: LoadModel,
    unit_device: NDArray[np.int64],
    u: int,
    to: int,
    load: NDArray[np.float64],
    device_seen: NDArray[np.bool_],
) -> None:
    """Moves unit `u` to device `to`."""
    for sign in (-1.0, 1.0):
        for t in range(m.made_ptr[u], m.made_ptr[u + 1]):
            charge_tensor(m, unit_device, t, load, sign, device_seen)
        for k in range(m.read_ptr[u], m.read_ptr[u + 1]):
            charge_tensor(m, unit_device, m.reads[k], load, sign, device_seen)
        load[0, unit_device[u]] += sign * m.work[u, unit_device[u]]
        load[4, unit_device[u]] += sign * m.communication[u, unit_device[u]]
        if sign < 0:
            unit_device[u] = to


@njit(cache=True, nogil=True)
def _neighbour(m: LoadModel, u: int, rng: np.random.Generator) -> int:
    """Returns a random unit that shares a tensor with `u`, or `u` itself if there is none."""
    made_count, read_count = m.made_ptr[u + 1] - m.made_ptr[u], m.read_ptr[u + 1] - m.read_ptr[u]
    if made_count + read_count == 0:
        return u
    k = int(rng.random() * (made_count + read_count))
    if k >= made_count:
        return m.producer[m.reads[m.read_ptr[u] + k - made_count]]
    t = m.made_ptr[u] + k
    return m.reader[m.reader_ptr[t] + int(rng.random() * (m.reader_ptr[t + 1] - m.reader_ptr[t]))]


@njit(cache=True, nogil=True)
def anneal_loads(
    m: LoadModel,
    unit_device: NDArray[np.int64],
    limit: NDArray[np.int64],
    hot: float,
    cold: float,
    steps: int,
    rng: np.random.Generator,
) -> Any:
    """Anneals `unit_device` int64[U] in place for `steps` moves. Returns the least maximum load within `limit`, and its devices.

    A move takes a random unit to a random device or to that of a neighbour, or exchanges it with a random unit.
    """
    units, devices = m.work.shape
    load, used, device_seen = loads_of(m, unit_device), np.zeros(devices, np.int64), np.zeros(devices, np.bool_)
    for u in range(units):
        used[unit_device[u]] += m.persistent_bytes[u]
    largest, even = largest_load(m, load)
    best, best_unit_device, energy = largest, unit_device.copy(), largest + EVEN * even
    for k in range(steps):
        temperature = hot * (cold / hot) ** (k / steps)
        u = int(rng.random() * units)
        a, v, kind = unit_device[u], u, rng.random()
        if kind < 0.4:
            b = int(rng.random() * devices)
        elif kind < 0.8:
            b = unit_device[_neighbour(m, u, rng)]
        else:
            v = int(rng.random() * units)
            b = unit_device[v]
        if a == b or not m.allowed[u, b] or (v != u and not m.allowed[v, a]):
            continue
        exchanged_bytes = m.persistent_bytes[v] if v != u else 0
        if (
            used[b] + m.persistent_bytes[u] - exchanged_bytes > limit[b]
            or used[a] - m.persistent_bytes[u] + exchanged_bytes > limit[a]
        ):
            continue
        _move_unit(m, unit_device, u, b, load, device_seen)
        if v != u:
            _move_unit(m, unit_device, v, a, load, device_seen)
        largest, even = largest_load(m, load)
        if largest + EVEN * even <= acceptance_threshold(energy, temperature, rng):
            energy = largest + EVEN * even
            used[b] += m.persistent_bytes[u] - exchanged_bytes
            used[a] += exchanged_bytes - m.persistent_bytes[u]
            if largest < best:
                best = largest
                best_unit_device[:] = unit_device
        else:
            if v != u:
                _move_unit(m, unit_device, v, b, load, device_seen)
            _move_unit(m, unit_device, u, a, load, device_seen)
    return best, best_unit_device
