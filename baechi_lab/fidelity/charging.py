"""The costs that a kernel profile lacks, put into the simulator's inputs.

Sending and receiving take processor time from workers without transfer engines: LogGP's model (o on the processors, L and
G between them), expressed in a graph and a cluster, without a factor fitted to the answers. `with_messages` makes ops of
both ends of every message; in which order a worker takes them and its ops is told in `executor`. `charged_graph` adds the
ends to the ops that make and first read a tensor, which leaves the graph as it is; `Link.overhead_us` says the same with one
figure for both ends, so that a cluster measured by `bl.measure_cluster` simulates it without a calibration.

The more kernels a device has run since it last sent or received, the less of what that needs is left in its caches, and the
more it takes: the calibration's `cooled`. How long that was is read off a simulation without it; where messages are no ops
of their own, it is the device's mean. And workers share caches and memory bandwidth: a kernel takes the longer the more of
its time another device works (`beside_us`: what it takes when one always does).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..executors.tensorflow.calibration import Calibration
from ..graph import OpGraph, Placement
from .executor import in_orders

PASSES = 2
"""How often a step is simulated again with what messages took in the simulation before."""
DRAWS = 5
"""Orders of what a step begins with, over which a prediction averages."""


def charged_graph(graph: OpGraph, placement: Placement, calibration: Calibration) -> OpGraph:
    """`graph` with the runtime's overheads under this placement added to its durations.

    >>> from baechi_lab.graph import Link
    >>> free, a = Link(0.0, 0.0), Link(5.0, 0.5)
    >>> g = OpGraph.from_edges([10.0, 10.0], [(0, 1, 8)])
    >>> costs = Calibration(op_us=1.0, step_us=0.0, send=a, receive=Link(2.0, 0.0), wire=free, busy_share=1.0)
    >>> charged_graph(g, Placement(device=[0, 1]), costs).duration_us.tolist()  # 10 + 1 + 5 + 4, 10 + 1 + 2
    [20.0, 13.0]
    """
    device = placement.on(graph).device
    own = np.maximum(graph.duration_us + calibration.op_us, 0.0)
    kernels = np.bincount(device, weights=own)
    messages = np.array(_first_readers(graph, device), dtype=np.int64).reshape(-1, 2)
    size = graph.tensor_bytes[messages[:, 0]]
    duration = own.copy()
    for op, link in ((graph.tensor_producer[messages[:, 0]], calibration.send), (messages[:, 1], calibration.receive)):
        count = np.maximum(np.bincount(device[op], minlength=len(kernels)), 1)
        cold = np.array([calibration.cold_us(us) for us in (kernels / count).tolist()])
        np.add.at(duration, op, link.latency_us + link.us_per_byte * size + cold[device[op]])
    return graph.replace(duration_us=duration, duration_by_kind={})


def with_messages(graph: OpGraph, placement: Placement, calibration: Calibration) -> tuple[OpGraph, Placement]:
    """`graph` with an op that sends and an op that receives for every message under this placement, and where all are.

    Only times: nothing has bytes but what is on the wire.

    >>> from baechi_lab.graph import Link
    >>> free = Link(0.0, 0.0)
    >>> costs = Calibration(op_us=1.0, step_us=0.0, send=Link(5.0, 0.5), receive=Link(2.0, 0.0), wire=free, busy_share=1.0)
    >>> both, placed = with_messages(OpGraph.from_edges([10.0, 10.0], [(0, 1, 8)]), Placement(device=[0, 1]), costs)
    >>> both.duration_us.tolist(), placed.device.tolist()
    ([11.0, 11.0, 9.0, 2.0], [0, 1, 0, 1])
    """
    device = placement.on(graph).device.astype(np.int64)
    crosses = device[graph.edge_source] != device[graph.consumers]
    message, of = np.unique(_messages(graph, device, crosses), return_inverse=True)
    tensor, target = message // _count(device), message % _count(device)
    producer, size = graph.tensor_producer[tensor], graph.tensor_bytes[tensor]
    send, receive = graph.n + np.arange(len(message)), graph.n + len(message) + np.arange(len(message))
    ends = [link.latency_us + link.us_per_byte * size for link in (calibration.send, calibration.receive)]
    own = np.maximum(graph.duration_us + calibration.op_us, 0.0)
    edges: list[tuple[Any, Any, Any]] = [
        (graph.edge_source[~crosses], graph.consumers[~crosses], 0), (producer, send, 0), (send, receive, size),
        (receive[of], graph.consumers[crosses], 0),
    ]  # fmt: skip
    rows = np.concatenate([np.stack(np.broadcast_arrays(*edge), axis=1) for edge in edges])
    types = (*graph.op_types, *("_Send",) * len(message), *("_Recv",) * len(message))
    both = OpGraph.from_edges(np.concatenate([own, *ends]), rows, op_types=types)
    return both, Placement(device=np.concatenate([device, device[producer], target]))


def crossing(graph: OpGraph, device: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tensor and receiving device of every message, in the order of `with_messages`."""
    where = device.astype(np.int64)
    message = np.unique(_messages(graph, where, where[graph.edge_source] != where[graph.consumers]))
    return message // _count(where), message % _count(where)


def _count(device: NDArray[np.int64]) -> int:
    return int(device.max(initial=0)) + 1


def _messages(graph: OpGraph, device: NDArray[np.int64], crosses: NDArray[np.bool_]) -> NDArray[np.int64]:
    """A number per edge that crosses: the same for readers of one tensor on one device."""
    return np.asarray(graph.edge_tensor[crosses] * _count(device) + device[graph.consumers[crosses]])


def predicted_us(
    graph: OpGraph, placement: Placement, calibration: Calibration, beside_us: NDArray[np.float64] | None = None
) -> float:
    """The step's time in microseconds on TensorFlow workers of one thread, with the runtime's overheads.

    The mean over `DRAWS` orders in which a step begins (see `executor`). `beside_us`: float64[n], what each op takes
    while another device works; by default its duration.
    """
    both, placed = with_shared_caches(graph, placement, calibration, beside_us)
    wire = wire_us(both, graph.n, calibration)
    times = [ran.end_us.max(initial=0.0) for ran in in_orders(both, placed, graph.n, wire, DRAWS)]
    return float(np.mean(times)) + calibration.step_us


def with_shared_caches(
    graph: OpGraph, placement: Placement, calibration: Calibration, beside_us: NDArray[np.float64] | None = None
) -> tuple[OpGraph, Placement]:
    """`with_messages`, with what messages take more after kernels and kernels beside others, and where all are."""
    warm, placed = with_messages(graph, placement, calibration)
    both, wire = warm, wire_us(warm, graph.n, calibration)
    longer = np.zeros(warm.n)
    if beside_us is not None:
        longer[: graph.n] = beside_us - graph.duration_us
    for _ in range(PASSES if calibration.cooled or longer.any() else 0):
        ran = in_orders(both, placed, graph.n, wire, 1)[0]
        more = _cold(ran.end_us, both.duration_us, placed.device, graph.n, calibration)
        more += longer * beside(*ran, placed.device)
        both = warm.replace(duration_us=np.maximum(warm.duration_us + more, 0.0), duration_by_kind={})
    return both, placed


def beside(
    start_us: NDArray[np.float64], end_us: NDArray[np.float64], device: NDArray[np.int32]
) -> NDArray[np.float64]:
    """float64 per op: the share of its time in which any other device works.

    >>> beside(np.array([0.0, 4.0]), np.array([10.0, 14.0]), np.array([0, 1])).tolist()
    [0.6, 0.6]
    """
    share = np.zeros(len(end_us))
    for mine in np.unique(device).tolist():
        own, order = np.flatnonzero(device == mine), np.argsort(start_us, kind="stable")
        other = order[device[order] != mine]
        if not len(other):
            continue
        until = np.maximum.accumulate(end_us[other])
        since = np.maximum(start_us[other], np.concatenate([[-np.inf], until[:-1]]))
        times = np.stack([since, until], axis=1).ravel()
        worked = np.cumsum(np.stack([np.zeros(len(other)), until - since], axis=1).ravel())
        took = np.interp(end_us[own], times, worked) - np.interp(start_us[own], times, worked)
        share[own] = took / np.maximum(end_us[own] - start_us[own], 1e-9)
    return share


def wire_us(both: OpGraph, kernels: int, calibration: Calibration) -> NDArray[np.float64]:
    """float64 per message: what it takes between its ends, below 0 where they work beside each other."""
    sends = (both.n - kernels) // 2
    size = np.zeros(sends)
    of = both.tensor_producer - kernels
    mine = (of >= 0) & (of < sends)
    size[of[mine]] = both.tensor_bytes[mine]
    wire, overlap = calibration.wire, calibration.overlap
    return np.asarray(wire.latency_us - overlap.latency_us + (wire.us_per_byte - overlap.us_per_byte) * size)


def _cold(
    end_us: NDArray[np.float64], duration_us: NDArray[np.float64], device: NDArray[np.int32], kernels: int,
    calibration: Calibration,
) -> NDArray[np.float64]:  # fmt: skip
    """float64 per op: what ends of messages (ops from `kernels` on, those that send first) take more."""
    more = np.zeros(len(end_us))
    receives = (kernels + len(more)) // 2
    for mine in range(int(device.max(initial=-1)) + 1):
        op = np.flatnonzero(device == mine)
        op = op[np.argsort(end_us[op], kind="stable")]
        run = np.cumsum(np.where(op < kernels, duration_us[op], 0.0))
        for kind in ((kernels <= op) & (op < receives), op >= receives):
            more[op[kind]] = [calibration.cold_us(us) for us in np.diff(run[kind], prepend=0.0).tolist()]
    return more


def _first_readers(graph: OpGraph, device: NDArray[np.int32]) -> list[tuple[int, int]]:
    """(tensor, first op that reads it there) of every tensor that crosses devices, once per target device."""
    rank = graph.position
    first: dict[tuple[int, int], int] = {}
    rows = zip(graph.edge_tensor.tolist(), graph.edge_source.tolist(), graph.consumers.tolist(), strict=True)
    for tensor, source, reader in rows:
        if device[source] == device[reader]:
            continue
        key = (tensor, int(device[reader]))
        if key not in first or rank[reader] < rank[first[key]]:
            first[key] = reader
    return [(tensor, reader) for (tensor, _), reader in sorted(first.items())]
