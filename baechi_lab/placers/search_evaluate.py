"""The simulator as a search needs it: makespan and memory overflow of one candidate, tens of thousands per second.

Idea: the same rules as `simulator.kernel` (tests require equal numbers), without logs, allocation or a general event
heap. Each device runs one op, so the next op end is a minimum over devices. Where transfers queue, those to one device
end in the order in which they were requested, so a linked list per receiver replaces the heap; only `parallel`
transfers need one. Ready ops come first in, first out from a list, or by priority from a set of bits whose lowest one
is found without comparing (comparisons that processors cannot predict cost more than the rest).

A candidate is dropped as soon as it cannot come in below `cutoff`: an op that ends at `t` and must be followed by `tail`
(consumers local or paid for, as in the bounds) forces a makespan of `t + tail`. Memory is tracked only where it can run out.

Helpers are expanded in place (`inline="always"`) and arrays unpacked once: a call that hands over arrays counts
references, which costs more than the work done in it.

Complexity: O(ops + edges + steps * devices).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, allowed_devices, durations
from ..graph.cluster import COMMUNICATION_MODES
from ..graph.jit import njit
from ..simulator.bounds_merge import merge_problem, paid_heads
from ..simulator.kernel import PARALLEL, SEQUENTIAL
from ..simulator.paths import heads_and_tails
from .problem import output_bytes


class Model(NamedTuple):
    """What stays the same: `table` float64[n, D] durations, `tail` float64[n] the least time from the end of an op to the
    end of the step, `edge_ptr`, `edge_to`, `edge_tensor` (op -> its tensors' consumers, by tensor), the inputs of each
    op in CSR form (all int32), bytes (int64; `unread` those that nobody reads) and links."""

    table: Any
    tail: Any
    degree: Any
    edge_ptr: Any
    edge_to: Any
    edge_tensor: Any
    input_ptr: Any
    inputs: Any
    producer: Any
    size_bytes: Any
    made: Any
    unread: Any
    temp: Any
    persistent: Any
    limit: Any
    latency: Any
    per_byte: Any
    comm: int


class Work(NamedTuple):
    """Scratch space, allocated once per search; after `evaluate`, `start` float64[n] and `peak` int64[D] are results.

    `op` int32[2 n]: inputs missing and device of each op, side by side because they are read together.
    """

    op: Any
    bits: Any
    line: Any
    head: Any
    tail: Any
    fresh: Any
    fresh_at: Any
    running: Any
    busy_until: Any
    queue_out: Any
    queue_in: Any
    list_head: Any
    list_tail: Any
    alloc_next: Any
    slot_end: Any
    slot_receive: Any
    slot_info: Any
    heap: Any
    readers: Any
    local_left: Any
    sends_left: Any
    copy_left: Any
    level: Any
    peak: Any
    start: Any
    moved: Any


def make_model(graph: OpGraph, cluster: Cluster, table: Any = None) -> Model:
    """The arrays of `graph` on `cluster`; `table` float64[n, D] replaces the durations (samples of a profile error)."""
    costs = durations(graph, cluster) if table is None else np.asarray(table, dtype=np.float64)
    ints = lambda a: np.array(a, dtype=np.int32)  # noqa: E731
    own = lambda a: np.array(a, order="C")  # noqa: E731  (writable: one compiled signature for all callers)
    unread = np.zeros(graph.n, dtype=np.int64)
    lonely = np.diff(graph.consumer_ptr) == 0
    np.add.at(unread, graph.tensor_producer[lonely], graph.tensor_bytes[lonely])
    return Model(
        own(costs), _tails(graph, cluster, costs, exact=table is None), ints(np.diff(graph.inputs[0])),
        edge_ptr=ints(graph.consumer_ptr[graph.output_ptr]), edge_to=ints(graph.consumers),
        edge_tensor=ints(graph.edge_tensor), input_ptr=ints(graph.inputs[0]), inputs=ints(graph.inputs[1]),
        producer=ints(graph.tensor_producer), size_bytes=own(graph.tensor_bytes), made=output_bytes(graph), unread=unread,
        temp=own(graph.temp_bytes), persistent=own(graph.persistent_bytes), limit=own(cluster.memory_bytes),
        latency=own(cluster.latency_us), per_byte=own(cluster.us_per_byte), comm=COMMUNICATION_MODES.index(cluster.comm),
    )  # fmt: skip


def _tails(graph: OpGraph, cluster: Cluster, costs: NDArray[np.float64], exact: bool) -> NDArray[np.float64]:
    """What must follow each op at least: consumers are local or paid for, or, where links may vary, transfers are free.

    A little less than computed, so that rounding never drops a candidate that meets a threshold exactly.
    """
    if exact and cluster.n > 1 and graph.n:
        tail = paid_heads(merge_problem(graph, cluster, reach=False))[1]
    else:
        tail = heads_and_tails(graph, np.where(allowed_devices(graph, cluster), costs, np.inf).min(axis=1))[1]
    return tail * (1.0 - 1e-12)


def make_work(model: Model) -> Work:
    """Scratch space for `model`."""
    n, devices = model.table.shape
    tensors = len(model.producer)
    slots = int(np.minimum(np.bincount(model.edge_tensor, minlength=tensors), devices - 1).sum()) + 1
    ints = lambda size: np.zeros(size, np.int32)  # noqa: E731
    return Work(
        ints(2 * n), np.zeros(devices * bit_words(n)[1], np.uint64), ints(devices * (n + 1)), ints(devices),
        ints(devices), ints(devices), np.zeros(devices),
        ints(devices), np.zeros(devices), np.zeros(devices), np.zeros(devices), ints(devices), ints(devices),
        ints(devices), np.zeros(slots), np.zeros(slots), ints(3 * slots), ints(slots),
        ints(devices), ints(tensors), ints(tensors), ints(tensors * devices),
        np.zeros(devices, np.int64), np.zeros(devices, np.int64), np.zeros(n), np.zeros(1),
    )  # fmt: skip


def memory_matters(model: Model) -> bool:
    """Whether any placement could exceed a limit: everything at once, all tensors copied, is more than a device has."""
    most = int(model.persistent.sum() + model.temp.sum() + model.size_bytes.sum())
    return bool(np.any(model.limit < most))


@njit(cache=True, inline="always")
def _push(heap: Any, base: int, size: int, key: Any, item: int) -> None:
    """Insert `item` into the heap in `heap[base : base + size]`, ordered by (`key[item]`, item)."""
    i = size
    mine = key[item]
    while i > 0:
        parent = (i - 1) >> 1
        other = heap[base + parent]
        if key[other] < mine or (key[other] == mine and other < item):
            break
        heap[base + i] = other
        i = parent
    heap[base + i] = item


@njit(cache=True, inline="always")
def _pop(heap: Any, base: int, size: int, key: Any) -> None:
    """Remove the first of the heap of `size` items (read it at `base` before)."""
    last = size - 1
    item = heap[base + last]
    mine = key[item]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= last:
            break
        right = child + 1
        a = heap[base + child]
        if right < last:
            b = heap[base + right]
            if key[b] < key[a] or (key[b] == key[a] and b < a):
                child, a = right, b
        if mine < key[a] or (mine == key[a] and item < a):
            break
        heap[base + i] = a
        i = child
    heap[base + i] = item


_ONE, _NO_BITS = np.uint64(1), np.uint64(0)
_BIT = np.zeros(67, dtype=np.int64)
"""Which bit a power of two is, by its remainder modulo 67 (these are all different)."""
for _k in range(64):
    _BIT[(1 << _k) % 67] = _k


@njit(cache=True, inline="always")
def _lowest(word: Any) -> int:
    """Position of the lowest bit that is set."""
    return _BIT[(word & (~word + _ONE)) % np.uint64(67)]


@njit(cache=True, inline="always")
def _set_bit(bits: Any, base: int, words: int, k: int) -> None:
    """Add `k` to the set in `bits[base:]`: `words` words of bits, then a bit per word, then a bit per word of those."""
    one = k >> 6
    two = one >> 6
    more = (words + 63) >> 6
    bits[base + one] |= _ONE << np.uint64(k & 63)
    bits[base + words + two] |= _ONE << np.uint64(one & 63)
    bits[base + words + more + (two >> 6)] |= _ONE << np.uint64(two & 63)


@njit(cache=True, inline="always")
def _take_lowest(bits: Any, base: int, words: int) -> int:
    """Remove and return the smallest element of a set that is not empty."""
    more = (words + 63) >> 6
    top = base + words + more
    three = 0
    while bits[top + three] == _NO_BITS:
        three += 1
    two = (three << 6) + _lowest(bits[top + three])
    one = (two << 6) + _lowest(bits[base + words + two])
    k = (one << 6) + _lowest(bits[base + one])
    left = bits[base + one] & (bits[base + one] - _ONE)
    bits[base + one] = left
    if left == _NO_BITS:
        left = bits[base + words + two] & (bits[base + words + two] - _ONE)
        bits[base + words + two] = left
        if left == _NO_BITS:
            bits[top + three] &= bits[top + three] - _ONE
    return k


def bit_words(n: int) -> tuple[int, int]:
    """Words of bits for sets of 0 .. n - 1, and all words including the two summaries."""
    words = (n + 63) >> 6
    more = (words + 63) >> 6
    return words, words + more + ((more + 63) >> 6)


@njit(cache=True, inline="always")
def _ready(
    i: int, d: int, n: int, now: float, by_rank: bool, position: Any, bits: Any, words: int, stride: int, fresh: Any,
    fresh_at: Any, line: Any, head: Any, tail: Any,
) -> None:  # fmt: skip
    """Op `i` may start on `d`: into the set, or into the line behind what is ready (at one instant by op index).

    `fresh[d]` is where those begin that became ready at `fresh_at[d]`.
    """
    k = tail[d]
    if by_rank:
        _set_bit(bits, d * stride, words, position[i])
    else:
        base = d * (n + 1)
        if fresh_at[d] != now:
            fresh_at[d] = now
            fresh[d] = k
        low = base + max(fresh[d], head[d])
        k += base
        while k > low and line[k - 1] > i:
            line[k] = line[k - 1]
            k -= 1
        line[k] = i
    tail[d] += 1


@njit(cache=True, inline="always")
def _over(peak: Any, limit: Any) -> float:
    """Bytes above the limits, summed over devices."""
    total = 0.0
    for d in range(len(limit)):
        if peak[d] > limit[d]:
            total += float(peak[d] - limit[d])
    return total


@njit(cache=True, nogil=True)
def overflow(m: Any, w: Any) -> float:
    """Bytes above the limits, summed over devices, at the peaks of the last evaluation."""
    return _over(w.peak, m.limit)


@njit(cache=True, nogil=True)
def evaluate(
    m: Any, w: Any, device: Any, position: Any, at: Any, by_rank: bool, track: bool, cutoff: float, most: float
) -> float:
    """Makespan in microseconds of `device` int32[n]; infinity once it exceeds `cutoff` or the overflow exceeds `most`.

    Where `by_rank`, a device runs the ready op with the lowest `position` int32[n] first (`at` int32[n] is its inverse),
    otherwise the one that became ready first.
    `track`: follow memory; afterwards `overflow(m, w)` tells the bytes above the limits.
    """
    (table, after, degree, edge_ptr, edge_to, edge_tensor, input_ptr, inputs, producer, size_bytes, made, unread, temp,
     persistent, limit, latency, per_byte, comm) = m  # fmt: skip
    (ops, bits, line, head, tail, fresh, fresh_at, running, busy_until, queue_out, queue_in, list_head, list_tail, alloc_next,
     slot_end, slot_receive, slot_info, heap, readers, local_left, sends_left, copy_left, level, peak, start,
     moved) = w  # fmt: skip
    devices, n = len(limit), len(device)
    words, stride = (n + 63) >> 6, len(bits) // max(devices, 1)
    shared = comm == SEQUENTIAL
    if by_rank:
        bits[:] = _NO_BITS
    for d in range(devices):
        head[d] = tail[d] = fresh[d] = 0
        fresh_at[d] = 0.0
        running[d] = list_head[d] = list_tail[d] = alloc_next[d] = -1
        busy_until[d] = np.inf
        queue_out[d] = queue_in[d] = 0.0
        readers[d] = 0
        level[d] = 0
    for i in range(n):
        d = device[i]
        ops[2 * i] = degree[i]
        ops[2 * i + 1] = d
        if track:
            level[d] += persistent[i]
        if degree[i] == 0:
            _ready(i, d, n, 0.0, by_rank, position, bits, words, stride, fresh, fresh_at, line, head, tail)
    for d in range(devices):
        peak[d] = level[d]
    if track and _over(peak, limit) > most:
        return np.inf
    now, slots, waiting = 0.0, 0, 0
    moved[0] = 0.0
    while True:
        for d in range(devices):
            if running[d] < 0 and tail[d] > head[d]:
                if by_rank:
                    op = at[_take_lowest(bits, d * stride, words)]
                    tail[d] -= 1
                else:
                    op = line[d * (n + 1) + head[d]]
                    head[d] += 1
                end = now + table[op, d]
                if end + after[op] > cutoff:
                    return np.inf
                start[op] = now
                running[d] = op
                busy_until[d] = end
                if track:
                    level[d] += made[op] + temp[op]
                    if level[d] > peak[d]:
                        peak[d] = level[d]
                        if level[d] > limit[d] and _over(peak, limit) > most:
                            return np.inf
        step = np.inf
        for d in range(devices):
            step = min(step, busy_until[d])
            if comm != PARALLEL and list_head[d] >= 0:
                step = min(step, slot_end[list_head[d]])
            if track and alloc_next[d] >= 0:
                step = min(step, slot_receive[alloc_next[d]])
        if waiting > 0:
            step = min(step, slot_end[heap[0]])
        if step == np.inf:
            return now
        now = step
        while True:  # ops that end now, by op index: their sends join the queues in that order
            op, d = -1, -1
            for p in range(devices):
                if busy_until[p] == now and (op < 0 or running[p] < op):
                    op, d = running[p], p
            if op < 0:
                break
            running[d] = -1
            busy_until[d] = np.inf
            if track:
                level[d] -= temp[op] + unread[op]
                for e in range(input_ptr[op], input_ptr[op + 1]):
                    t = inputs[e]
                    if device[producer[t]] == d:
                        local_left[t] -= 1
                        if local_left[t] == 0 and sends_left[t] == 0:
                            level[d] -= size_bytes[t]
                    else:
                        copy_left[t * devices + d] -= 1
                        if copy_left[t * devices + d] == 0:
                            level[d] -= size_bytes[t]
            e, last = edge_ptr[op], edge_ptr[op + 1]
            while e < last:  # one tensor after the other
                t = edge_tensor[e]
                remote, local = 0, 0
                while e < last and edge_tensor[e] == t:
                    i = edge_to[e]
                    e += 1
                    q = ops[2 * i + 1]
                    if q == d:
                        local += 1
                        ops[2 * i] -= 1
                        if ops[2 * i] == 0:
                            _ready(
                                i, d, n, now, by_rank, position, bits, words, stride, fresh, fresh_at, line, head, tail
                            )
                    else:
                        readers[q] += 1
                        remote += 1
                if track:
                    local_left[t] = local
                    sends_left[t] = 0
                if remote == 0:
                    continue
                for q in range(devices):
                    if readers[q] == 0:
                        continue
                    if track:
                        sends_left[t] += 1
                        copy_left[t * devices + q] = readers[q]
                    readers[q] = 0
                    cost = latency[d, q] + per_byte[d, q] * size_bytes[t]
                    moved[0] += cost
                    receive = now
                    if comm != PARALLEL:
                        begin = max(now, queue_out[d])
                        queue_out[d] = begin + cost
                        if shared:
                            receive = max(begin, queue_out[q])
                            queue_out[q] = receive + cost
                        else:
                            receive = max(begin, queue_in[q])
                            queue_in[q] = receive + cost
                    slot = slots
                    slots += 1
                    slot_end[slot] = receive + cost
                    slot_receive[slot] = receive
                    slot_info[3 * slot] = e  # where the tensor's consumers end
                    slot_info[3 * slot + 1] = q
                    slot_info[3 * slot + 2] = -1
                    if list_tail[q] >= 0:
                        slot_info[3 * list_tail[q] + 2] = slot
                    list_tail[q] = slot
                    if list_head[q] < 0:
                        list_head[q] = slot
                    if alloc_next[q] < 0:
                        alloc_next[q] = slot
                    if comm == PARALLEL:
                        _push(heap, 0, waiting, slot_end, slot)
                        waiting += 1
        while True:  # transfers that end now
            slot = -1
            if comm == PARALLEL:
                if waiting > 0 and slot_end[heap[0]] == now:
                    slot = heap[0]
                    _pop(heap, 0, waiting, slot_end)
                    waiting -= 1
            else:
                for q in range(devices):
                    if list_head[q] >= 0 and slot_end[list_head[q]] == now:
                        slot = list_head[q]
                        list_head[q] = slot_info[3 * slot + 2]
                        break
            if slot < 0:
                break
            e, q = slot_info[3 * slot] - 1, slot_info[3 * slot + 1]
            t = edge_tensor[e]
            if track:
                sends_left[t] -= 1
                if sends_left[t] == 0 and local_left[t] == 0:
                    level[device[producer[t]]] -= size_bytes[t]
            while e >= 0 and edge_tensor[e] == t:
                i = edge_to[e]
                e -= 1
                if ops[2 * i + 1] == q:
                    ops[2 * i] -= 1
                    if ops[2 * i] == 0:
                        _ready(i, q, n, now, by_rank, position, bits, words, stride, fresh, fresh_at, line, head, tail)
        if track:
            for q in range(devices):
                while alloc_next[q] >= 0 and slot_receive[alloc_next[q]] <= now:
                    slot = alloc_next[q]
                    alloc_next[q] = slot_info[3 * slot + 2]
                    level[q] += size_bytes[edge_tensor[slot_info[3 * slot] - 1]]
                    if level[q] > peak[q]:
                        peak[q] = level[q]
                        if level[q] > limit[q] and _over(peak, limit) > most:
                            return np.inf


def positions(rank: NDArray[Any] | None, n: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Position int32[n] of each op by rank (ties by index), and its inverse; the index order for None."""
    at = np.arange(n, dtype=np.int32) if rank is None else np.argsort(rank, kind="stable").astype(np.int32)
    position = np.empty(n, dtype=np.int32)
    position[at] = np.arange(n, dtype=np.int32)
    return position, at
