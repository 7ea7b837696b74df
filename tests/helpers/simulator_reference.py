"""The simulator's readable twin: the same rules with dicts, lists and one heap. Slow, for tests and for teaching."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from baechi_lab.graph import Cluster, OpGraph, durations


@dataclass
class ReferenceResult:
    """Start and end per op, `(tensor, target) -> (send start, receive start, end)`, peak bytes per device."""

    start: dict[int, float] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)
    transfers: dict[tuple[int, int], tuple[float, float, float]] = field(default_factory=dict)
    peak: list[int] = field(default_factory=list)


def simulate_reference(
    graph: OpGraph,
    cluster: Cluster,
    device: Sequence[int],
    key: Callable[[int, float], float] | None = None,
    unit: Sequence[int] | None = None,
) -> ReferenceResult:
    """Simulates one step. `key(op, ready time)` orders ready ops, lowest first (default: ready time); ties by op index.

    With `unit`, the position of each op's unit on its lane, no op starts before those of lower units have ended. A device has
    two lanes: lane `d` computes, lane `cluster.n + d` communicates and runs the collectives.
    """
    cost, rule = durations(graph, cluster), key or (lambda op, ready: ready)
    cost = cost + _overheads(graph, cluster, device)[:, None]
    result, held_bytes = ReferenceResult(peak=[0] * cluster.n), [0] * cluster.n
    readers: dict[tuple[int, int], int] = defaultdict(int)  # (tensor, device) -> consumers not yet done there
    sending: dict[int, int] = defaultdict(int)  # tensor -> transfers not yet done
    missing = [0] * graph.n
    out_free = [0.0] * cluster.n
    in_free = out_free if cluster.comm == "sequential" else [0.0] * cluster.n
    collective = graph.on_communication_lane.tolist()
    lane = [d + cluster.n if collective[i] else d for i, d in enumerate(device)]
    ready: list[list[tuple[float, int]]] = [[] for _ in range(2 * cluster.n)]
    busy = [False] * (2 * cluster.n)
    events: list[
        tuple[float, int, int, int]
    ] = []  # time, kind (0 op end, 1 transfer end, 2 receive start), tensor or op, target

    waiting = [[0] * (max(unit or [0]) + 1) for _ in range(2 * cluster.n)]  # ops per lane and unit to start
    for i in range(graph.n):
        waiting[lane[i]][unit[i] if unit else 0] += 1

    def may_start(d: int, i: int) -> bool:
        return unit is None or not any(waiting[d][: unit[i]])

    def hold(d: int, amount: int) -> None:
        held_bytes[d] += amount
        result.peak[d] = max(result.peak[d], held_bytes[d])

    def home(t: int) -> int:
        return device[graph.tensor_producer[t]]

    def release_output(t: int) -> None:
        if readers[t, home(t)] == 0 and sending[t] == 0:
            hold(home(t), -int(graph.tensor_bytes[t]))

    def arrive(t: int, d: int, now_us: float) -> None:
        for i in graph.tensor_consumers(t).tolist():
            if device[i] == d:
                missing[i] -= 1
                if missing[i] == 0:
                    heapq.heappush(ready[lane[i]], (rule(i, now_us), i))

    def request(t: int, d: int, now_us: float) -> None:
        a = home(t)
        price = float(cluster.latency_us[a, d] + cluster.us_per_byte[a, d] * graph.tensor_bytes[t])
        start = receive = now_us
        if cluster.comm != "parallel":
            start = max(now_us, out_free[a])
            out_free[a] = start + price
            receive = max(start, in_free[d])
            in_free[d] = receive + price
        result.transfers[t, d] = (start, receive, receive + price)
        heapq.heappush(events, (receive, 2, t, d))
        heapq.heappush(events, (receive + price, 1, t, d))

    def finish(i: int, now_us: float) -> None:
        d = device[i]
        busy[lane[i]] = False
        hold(d, -int(graph.temp_bytes[i]))
        pointer, tensors = graph.inputs
        for t in tensors[pointer[i] : pointer[i + 1]].tolist():
            readers[t, d] -= 1
            if home(t) == d:
                release_output(t)
            elif readers[t, d] == 0:
                hold(d, -int(graph.tensor_bytes[t]))
        for t in graph.outputs(i):
            for target in sorted({device[j] for j in graph.tensor_consumers(t).tolist()} - {d}):
                sending[t] += 1
                request(t, target, now_us)
            release_output(t)
            arrive(t, d, now_us)

    for t in range(graph.tensor_count):
        for i in graph.tensor_consumers(t).tolist():
            readers[t, device[i]] += 1
            missing[i] += 1
    for i in range(graph.n):
        hold(device[i], int(graph.persistent_bytes[i]))
        if missing[i] == 0:
            heapq.heappush(ready[lane[i]], (rule(i, 0.0), i))
    now_us = 0.0
    while True:
        for k in range(2 * cluster.n):
            if not busy[k] and ready[k] and may_start(k, ready[k][0][1]):
                _, i = heapq.heappop(ready[k])
                waiting[k][unit[i] if unit else 0] -= 1
                busy[k] = True
                result.start[i], result.end[i] = now_us, now_us + float(cost[i, device[i]])
                hold(device[i], int(sum(graph.tensor_bytes[t] for t in graph.outputs(i))) + int(graph.temp_bytes[i]))
                heapq.heappush(events, (result.end[i], 0, i, 0))
        if not events:
            return result
        now_us = events[0][0]
        while events and events[0][0] == now_us:
            _, kind, event_index, target = heapq.heappop(events)
            if kind == 0:
                finish(event_index, now_us)
            elif kind == 1:
                sending[event_index] -= 1
                release_output(event_index)
                arrive(event_index, target, now_us)
            else:
                hold(target, int(graph.tensor_bytes[event_index]))


def _overheads(graph: OpGraph, cluster: Cluster, device: Sequence[int]) -> NDArray[np.float64]:
    """Processor time of messages: the sender's on the producer, the receiver's on the first reader there."""
    extra = np.zeros(graph.n)
    charged: set[tuple[int, int]] = set()
    for i in graph.order.tolist():
        pointer, tensors = graph.inputs
        for t in tensors[pointer[i] : pointer[i + 1]].tolist():
            producer, d = int(graph.tensor_producer[t]), device[i]
            if device[producer] != d and (t, d) not in charged:
                charged.add((t, d))
                extra[[producer, i]] += cluster.overhead_us[device[producer], d]
    return extra
