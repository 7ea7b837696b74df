"""The event loop of docs/simulated-time.md as compiled functions on record arrays.

`tests/helpers/simulator_reference.py` is its readable twin.

State lives in four record arrays (ops, tensors, sends, devices), a log, and two heaps; no object crosses into the
kernel. Record arrays keep what belongs together in one cache line, and passing few of them keeps calls cheap.
Complexity: O((ops + edges) log ops), plus for `msr` the ready ops looked at per decision.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, Placement
from ..graph.cluster import COMMUNICATION_MODES
from ..graph.costs import placed_durations
from ..graph.kernels.csr import Floats, Ints
from ..graph.kernels.heaps import pop, push
from ..graph.kernels.jit import njit, records

PARALLEL, SEQUENTIAL, DUPLEX = (COMMUNICATION_MODES.index(m) for m in ("parallel", "sequential", "duplex"))
BY_READY_TIME, BY_RANK, BY_IDLENESS, BY_UNIT = 0, 1, 2, 3
"""How a scheduler chooses the next op; see `Scheduler`."""
_PERSISTENT, _OUTPUTS, _TEMPORARY, _COPIES = 0, 1, 2, 3  # positions in `MEMORY_CATEGORIES`

# Events of one instant come in this order: what ends frees memory before what starts takes it.
_OP_END, _TRANSFER_END, _RECEIVE_START = 0, 1, 2
_SHIFT = 40  # bits of an index in an event's code, below its kind
_MASK = (1 << _SHIFT) - 1

_NO_RANKS = np.zeros(0)

OP = np.dtype(
    [
        ("device", "i4"),
        ("lane", "i4"),
        ("missing_inputs", "i4"),
        ("duration", "f8"),
        ("rank", "f8"),
        ("temp_bytes", "i8"),
        ("persistent_bytes", "i8"),
        ("output_bytes", "i8"),
        ("first_output", "i8"),
        ("first_input", "i8"),
        ("start", "f8"),
        ("end", "f8"),
        ("unit", "i4"),
        ("turn", "i8"),
    ]
)
"""`missing_inputs` counts inputs that have not arrived; `unit` is that of a schedule, and `turn` counts the rounds of starts."""
TENSOR = np.dtype(
    [
        ("producer", "i4"),
        ("local_readers_left", "i4"),
        ("sends_left", "i4"),
        ("size_bytes", "i8"),
        ("first_consumer", "i8"),
        ("first_send", "i8"),
    ]
)
"""A tensor's bytes are freed on its producer's device once no reader there and no send are left."""
SEND = np.dtype(
    [("tensor", "i4"), ("target", "i4"), ("copy_readers_left", "i4"), ("start", "f8"), ("receive", "f8"), ("end", "f8")]
)
"""A tensor sent to a device, where its copy is freed once no reader is left; `receive` is when receiving starts."""
DEVICE = np.dtype(
    [
        ("limit", "i8"),
        ("used_bytes", "i8"),
        ("peak", "i8"),
        ("violation_us", "f8"),
        ("violation_op", "i4"),
        ("running", "b1"),
        ("ready_first", "i8"),
        ("ready_size", "i8"),
        ("out_queue", "f8"),
        ("in_queue", "f8"),
        ("unit", "i4"),
        ("unit_ops_left", "i8"),
    ]
)
"""A lane of a device. `violation_us` and `violation_op` are the first moment above `limit` and its op, -1 if there is none.

`ready_first` and `ready_size` are its slice of the heap `Ready`; the queues are times at which they become free.
"""
CHANGE = np.dtype([("device", "i4"), ("category", "i1"), ("op", "i4"), ("time", "f8"), ("delta", "i8")])
"""A change of the bytes in use on a device."""


class Scheduler(NamedTuple):
    """The rule by which a device chooses among ready ops.

    `mode` is one of:

    - `BY_READY_TIME`: the op that has been ready for longest.
    - `BY_RANK`: the op of the lowest `rank`.
    - `BY_IDLENESS`: the op of the highest `score` plus `wake_weight` for each idle device that it wakes; if all other devices
      are idle, of the lowest `rank`.
    - `BY_UNIT`: by rank, but no op starts before all ops of lower units of its device have ended. `unit[i]` counts units from
      0 on each lane; lane d has units of `unit_size[unit_ptr[d]:unit_ptr[d + 1]]` ops.
    """

    mode: int
    rank: Floats | Ints
    score: Floats
    wake_ptr: Ints
    wake_device: NDArray[np.int32]
    wake_weight: float
    unit: NDArray[np.int32] = np.zeros(0, np.int32)
    unit_ptr: Ints = np.zeros(1, np.int64)
    unit_size: Ints = np.zeros(0, np.int64)


class State(NamedTuple):
    """Input and results of `run`, see the dtypes above. Entry n of `ops` and entry T of `tensors` only end the last rows.

    A device has a lane for computing and one for communication, where collectives run. Lane `d` of `devices` is device `d` with
    its computing lane. In a graph with collectives, lane `D + d` is its communication lane; memory is that of device `d`.
    """

    ops: NDArray[np.void]
    tensors: NDArray[np.void]
    devices: NDArray[np.void]
    consumers: NDArray[np.int32]
    inputs: NDArray[np.int32]


class Links(NamedTuple):
    """Costs of transfers, float64[D, D] each, and the communication mode."""

    latency: Floats
    per_byte: Floats
    comm: int


class Ready(NamedTuple):
    """A heap of ready ops per device, as slices of two arrays, by rank or by ready time."""

    key: Floats
    op: Ints
    by_rank: bool


class Events(NamedTuple):
    """The heap of events; `counts` int64[2] holds the number of events and of log entries."""

    time: Floats
    code: Ints
    counts: Ints


def make_state(graph: OpGraph, cluster: Cluster, placement: Placement, rank: Floats | Ints | None = None) -> State:
    """Returns the record arrays of a graph, its placement and, if devices choose by rank, `rank` float64[n]."""
    n, tensor_count = graph.n, graph.tensor_count
    ops, tensors = np.zeros(n + 1, OP), np.zeros(tensor_count + 1, TENSOR)
    lane = lanes(graph, cluster, placement.device)
    devices = np.zeros(lane_count(graph, cluster), DEVICE)
    ops["device"][:n], ops["lane"][:n] = placement.device, lane
    ops["duration"][:n] = placed_durations(graph, cluster, placement.device)
    if rank is not None and len(rank):
        ops["rank"][:n] = rank
    ops["temp_bytes"][:n], ops["persistent_bytes"][:n] = graph.temp_bytes, graph.persistent_bytes
    ops["first_output"], ops["first_input"] = graph.output_ptr, graph.inputs[0]
    bytes_before = np.concatenate([[0], np.cumsum(graph.tensor_bytes)])  # tensors are sorted by producer
    ops["output_bytes"][:n] = np.diff(bytes_before[graph.output_ptr])
    tensors["producer"][:tensor_count], tensors["size_bytes"][:tensor_count] = graph.tensor_producer, graph.tensor_bytes
    tensors["first_consumer"] = graph.consumer_ptr
    devices["limit"][: cluster.n] = cluster.memory_bytes
    return State(records(ops), records(tensors), records(devices), graph.consumers, graph.inputs[1])


def lanes(graph: OpGraph, cluster: Cluster, device: NDArray[np.int32]) -> Ints:
    """Returns int64[n]: the lane of every op: its device, or for a collective the number of devices more."""
    return np.where(graph.on_communication_lane, cluster.n + device, device).astype(np.int64)


def lane_count(graph: OpGraph, cluster: Cluster) -> int:
    """Returns the number of lanes; lanes of communication exist only in a graph with collectives."""
    return 2 * cluster.n if graph.on_communication_lane.any() else cluster.n


@njit(cache=True)
def plan_sends(state: State) -> NDArray[np.void]:
    """Lists all sends, SEND[k] by tensor, then target device, and sets the counts in `tensors`."""
    ops, tensors, devices, consumers = state.ops, state.tensors, len(state.devices), state.consumers
    readers = np.zeros(devices, np.int32)
    count = 0
    for t in range(len(tensors) - 1):
        producer_device = ops[tensors[t].producer].device
        first = count
        for e in range(tensors[t].first_consumer, tensors[t + 1].first_consumer):
            d = ops[consumers[e]].device
            readers[d] += 1
            if d != producer_device and readers[d] == 1:
                count += 1
        tensors[t].local_readers_left, tensors[t].sends_left = readers[producer_device], count - first
        tensors[t + 1].first_send = count
        for e in range(tensors[t].first_consumer, tensors[t + 1].first_consumer):
            readers[ops[consumers[e]].device] = 0
    sends = records(np.zeros(count, SEND))
    for t in range(len(tensors) - 1):
        k = tensors[t].first_send
        if tensors[t + 1].first_send == k:
            continue
        for e in range(tensors[t].first_consumer, tensors[t + 1].first_consumer):
            readers[ops[consumers[e]].device] += 1
        for d in range(devices):
            if readers[d] > 0 and d != ops[tensors[t].producer].device:
                sends[k].tensor, sends[k].target, sends[k].copy_readers_left = t, d, readers[d]
                k += 1
            readers[d] = 0
    return sends


@njit(cache=True, allocates=False)
def _change_memory(
    devices: NDArray[np.void],
    log: NDArray[np.void],
    counts: Ints,
    d: int,
    category: int,
    delta: int,
    op: int,
    now_us: float,
) -> None:
    """Changes the live bytes of device `d`; updates its peak, its first violation and, if there is space, the log."""
    if delta == 0:
        return
    used_bytes = devices[d].used_bytes + delta
    devices[d].used_bytes = used_bytes
    if used_bytes > devices[d].peak:
        devices[d].peak = used_bytes
        if used_bytes > devices[d].limit and devices[d].violation_op < 0:
            devices[d].violation_us, devices[d].violation_op = now_us, op
    k = counts[1]
    if k < len(log):
        log[k].device, log[k].category, log[k].op, log[k].time, log[k].delta = d, category, op, now_us, delta
        counts[1] = k + 1


@njit(cache=True, allocates=False)
def _make_ready(i: int, now_us: float, ops: NDArray[np.void], devices: NDArray[np.void], ready: Ready) -> None:
    """Adds op `i` to the ready ops of its lane."""
    d = ops[i].lane
    key = ops[i].rank if ready.by_rank else now_us
    devices[d].ready_size = push(ready.key, ready.op, devices[d].ready_first, devices[d].ready_size, key, i)


@njit(cache=True, allocates=False)
def _arrive(t: int, d: int, now_us: float, state: State, ready: Ready) -> None:
    """Records that tensor `t` arrives on device `d`: its consumers there miss one input less."""
    ops, tensors, devices, consumers = state.ops, state.tensors, state.devices, state.consumers
    for e in range(tensors[t].first_consumer, tensors[t + 1].first_consumer):
        i = consumers[e]
        if ops[i].device == d:
            ops[i].missing_inputs -= 1
            if ops[i].missing_inputs == 0:
                _make_ready(i, now_us, ops, devices, ready)


@njit(cache=True, allocates=False)
def pop_highest_score(d: int, devices: NDArray[np.void], ready: Ready, scheduler: Scheduler) -> int:
    """Removes and returns the ready op of device `d` with the highest score, including the idle devices that it wakes.

    Ties: the lowest op. The heap is ordered by the highest score that is possible, then by op. Its nodes are visited from
    the top, each before those below it, which are skipped where none of them can be better than the best so far.
    """
    score, wake_ptr, wake_device = scheduler.score, scheduler.wake_ptr, scheduler.wake_device
    first, size = devices[d].ready_first, devices[d].ready_size
    best, best_op, best_score = 0, ready.op[first], -np.inf
    k = 0
    while k < size:
        i, possible = ready.op[first + k], -ready.key[first + k]
        is_candidate = possible > best_score or (possible == best_score and i < best_op)
        if is_candidate:
            total = score[i]
            for w in range(wake_ptr[i], wake_ptr[i + 1]):
                if wake_device[w] != d and not devices[wake_device[w]].running:
                    total += scheduler.wake_weight
            if total > best_score or (total == best_score and i < best_op):
                best, best_op, best_score = k, i, total
        if is_candidate and 2 * k + 1 < size:
            k = 2 * k + 1
        else:
            while k > 0 and (k % 2 == 0 or k + 1 == size):  # up from last children, then on with the next child
                k = (k - 1) >> 1
            k = k + 1 if k > 0 else size
    while best > 0:  # its parents move down, then the top is taken
        parent = (best - 1) >> 1
        ready.key[first + best], ready.op[first + best] = ready.key[first + parent], ready.op[first + parent]
        best = parent
    devices[d].ready_size = pop(ready.key, ready.op, first, size)
    return best_op


@njit(cache=True, allocates=False)
def _request_sends(t: int, now_us: float, links: Links, state: State, sends: NDArray[np.void], events: Events) -> None:
    """Sends tensor `t`, which is produced now, to every other device that reads it."""
    mode, latency, per_byte = links.comm, links.latency, links.per_byte
    ops, tensors, devices = state.ops, state.tensors, state.devices
    event_time, event_code, counts = events.time, events.code, events.counts
    d = ops[tensors[t].producer].device
    for k in range(tensors[t].first_send, tensors[t + 1].first_send):
        q = sends[k].target
        cost = latency[d, q] + per_byte[d, q] * tensors[t].size_bytes
        start = receive = now_us
        if mode != PARALLEL:
            start = max(now_us, devices[d].out_queue)
            devices[d].out_queue = start + cost
            # sequential: one queue per device, shared by sends and receives
            receive = max(start, devices[q].out_queue if mode == SEQUENTIAL else devices[q].in_queue)
            if mode == SEQUENTIAL:
                devices[q].out_queue = receive + cost
            else:
                devices[q].in_queue = receive + cost
        sends[k].start, sends[k].receive, sends[k].end = start, receive, receive + cost
        counts[0] = push(event_time, event_code, 0, counts[0], receive, (_RECEIVE_START << _SHIFT) | k)
        counts[0] = push(event_time, event_code, 0, counts[0], receive + cost, (_TRANSFER_END << _SHIFT) | k)


@njit(cache=True, allocates=False)
def _release_inputs(
    op: int, now_us: float, state: State, sends: NDArray[np.void], log: NDArray[np.void], counts: Ints
) -> None:
    """After the end of an op, frees inputs that no other op waits for, here or as a received copy."""
    ops, tensors, devices, inputs = state.ops, state.tensors, state.devices, state.inputs
    d = ops[op].device
    for e in range(ops[op].first_input, ops[op + 1].first_input):
        t = inputs[e]
        producer = tensors[t].producer
        if ops[producer].device == d:
            tensors[t].local_readers_left -= 1
            if tensors[t].local_readers_left == 0 and tensors[t].sends_left == 0:
                _change_memory(devices, log, counts, d, _OUTPUTS, -tensors[t].size_bytes, producer, now_us)
        else:
            k = tensors[t].first_send
            while sends[k].target != d:
                k += 1
            sends[k].copy_readers_left -= 1
            if sends[k].copy_readers_left == 0:
                _change_memory(devices, log, counts, d, _COPIES, -tensors[t].size_bytes, producer, now_us)


@njit(cache=True, allocates=False)
def _prepare(ops: NDArray[np.void], devices: NDArray[np.void], log: NDArray[np.void], counts: Ints) -> None:
    """Sets all that a run changes: missing inputs, empty queues, slices of the ready heaps, persistent bytes."""
    for d in range(len(devices)):
        devices[d].used_bytes = devices[d].peak = devices[d].ready_size = devices[d].ready_first = 0
        devices[d].violation_us, devices[d].violation_op, devices[d].running = np.nan, -1, False
        devices[d].out_queue = devices[d].in_queue = 0.0
    for i in range(len(ops) - 1):
        ops[i].missing_inputs = ops[i + 1].first_input - ops[i].first_input
        devices[ops[i].lane].ready_first += 1
        _change_memory(devices, log, counts, ops[i].device, _PERSISTENT, ops[i].persistent_bytes, i, 0.0)
    first = 0
    for d in range(len(devices)):
        count = devices[d].ready_first
        devices[d].ready_first = first
        first += count


@njit(cache=True, allocates=False)
def _enter_unit(d: int, unit: int, devices: NDArray[np.void], scheduler: Scheduler) -> None:
    """Makes this unit the current one of device `d`."""
    at = scheduler.unit_ptr[d] + unit
    devices[d].unit = unit
    devices[d].unit_ops_left = scheduler.unit_size[at] if at < scheduler.unit_ptr[d + 1] else 0


@njit(cache=True, allocates=False)
def _begin_units(ops: NDArray[np.void], devices: NDArray[np.void], scheduler: Scheduler) -> None:
    """Makes the first unit of every device the current one."""
    for i in range(len(ops) - 1):
        ops[i].unit = scheduler.unit[i]
    for d in range(len(devices)):
        _enter_unit(d, 0, devices, scheduler)


@njit(cache=True, nogil=True, interpreted_if=lambda state, *_: len(state.ops) < 50_000)
def _run(
    state: State, links: Links, scheduler: Scheduler, keep_log: bool
) -> tuple[NDArray[np.void], NDArray[np.void], int]:
    """Runs the events in order of time until every op has ended; returns sends, log and its length as `run` describes them."""
    ops, tensors, devices = state.ops, state.tensors, state.devices
    n, mode = len(ops) - 1, scheduler.mode
    sends = plan_sends(state)
    log = records(np.empty(4 * n + len(tensors) + 2 * len(sends) if keep_log else 0, CHANGE))
    event_time, event_code = np.empty(n + 2 * len(sends) + 1), np.empty(n + 2 * len(sends) + 1, np.int64)
    ready_key, ready_op = np.empty(n), np.empty(n, np.int64)
    counts = np.zeros(2, np.int64)  # events, log entries
    ready, events = Ready(ready_key, ready_op, mode != BY_READY_TIME), Events(event_time, event_code, counts)
    _prepare(ops, devices, log, counts)
    if mode == BY_UNIT:
        _begin_units(ops, devices, scheduler)
    for i in range(n):
        if ops[i].missing_inputs == 0:
            _make_ready(i, 0.0, ops, devices, ready)
    now_us, turn_number = 0.0, 0
    while True:
        turn_number += 1
        for d in range(len(devices)):
            if devices[d].running or devices[d].ready_size == 0:
                continue
            if mode == BY_IDLENESS:
                op = pop_highest_score(d, devices, ready, scheduler)
            else:
                op = ready_op[devices[d].ready_first]
                if mode == BY_UNIT:
                    if ops[op].unit != devices[d].unit:
                        continue  # an op of an earlier unit is still to come
                    devices[d].unit_ops_left -= 1
                    if devices[d].unit_ops_left == 0:
                        _enter_unit(d, devices[d].unit + 1, devices, scheduler)
                devices[d].ready_size = pop(ready_key, ready_op, devices[d].ready_first, devices[d].ready_size)
            devices[d].running = True
            ops[op].start, ops[op].end, ops[op].turn = now_us, now_us + ops[op].duration, turn_number
            _change_memory(devices, log, counts, ops[op].device, _OUTPUTS, ops[op].output_bytes, op, now_us)
            _change_memory(devices, log, counts, ops[op].device, _TEMPORARY, ops[op].temp_bytes, op, now_us)
            counts[0] = push(event_time, event_code, 0, counts[0], ops[op].end, (_OP_END << _SHIFT) | op)
        if counts[0] == 0:
            return sends, log, counts[1]
        now_us = event_time[0]
        while counts[0] > 0 and event_time[0] == now_us:
            kind, k = event_code[0] >> _SHIFT, event_code[0] & _MASK
            counts[0] = pop(event_time, event_code, 0, counts[0])
            if kind == _OP_END:
                d = ops[k].device
                devices[ops[k].lane].running = False
                _change_memory(devices, log, counts, d, _TEMPORARY, -ops[k].temp_bytes, k, now_us)
                _release_inputs(k, now_us, state, sends, log, counts)
                for t in range(ops[k].first_output, ops[k + 1].first_output):
                    _request_sends(t, now_us, links, state, sends, events)
                    if tensors[t].local_readers_left == 0 and tensors[t].sends_left == 0:  # nobody reads it
                        _change_memory(devices, log, counts, d, _OUTPUTS, -tensors[t].size_bytes, k, now_us)
                    _arrive(t, d, now_us, state, ready)
            elif kind == _TRANSFER_END:
                t = sends[k].tensor
                tensors[t].sends_left -= 1
                if tensors[t].sends_left == 0 and tensors[t].local_readers_left == 0:
                    producer = tensors[t].producer
                    _change_memory(
                        devices, log, counts, ops[producer].device, _OUTPUTS, -tensors[t].size_bytes, producer, now_us
                    )
                _arrive(t, sends[k].target, now_us, state, ready)
            else:
                t = sends[k].tensor
                _change_memory(
                    devices, log, counts, sends[k].target, _COPIES, tensors[t].size_bytes, tensors[t].producer, now_us
                )


def run(
    state: State, latency: Floats, per_byte: Floats, comm: str, scheduler: Scheduler, keep_log: bool
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Simulates one step: results are in `state.ops` and `state.devices`; returns sends (SEND) and log (CHANGE).

    `latency` and `per_byte` are float64[D, D]. A state may be run again, with other durations if they are set before.
    """
    links = Links(latency, per_byte, COMMUNICATION_MODES.index(comm))
    # `make_state` has copied the ranks into the ops. The kernel gets no rank array, whose type differs between schedulers.
    sends, log, count = _run(state, links, scheduler._replace(rank=_NO_RANKS), keep_log)
    return sends, log[:count]
