"""The fast simulator of searches: makespan and memory overflow of one candidate, tens of thousands of them per second.

Idea: the same rules as `simulator.kernel` (tests require equal numbers), without logs, allocation or a general event heap.
Each device runs one op, and one collective beside it, so the next op end is a minimum over these lanes. Where transfers
queue, those to one device end in the order in which they were requested, so a linked list per receiver replaces the heap;
only `parallel` transfers need one. Ready ops come first in, first out from a list, or by priority from a set of bits.

Branches that a processor cannot predict take more time than the rest. So the usual instant, at which one op ends, runs a
path with few of them: all its consumers are written behind the line of ready ops, the line grows by those that are ready,
and only the op's own device starts its next op. Instants with several events or arriving transfers run the longer path.

A simulation ends as soon as its makespan must exceed `cutoff`: an op that ends at `t` and is followed by at least `tail`
(`model.Model`) forces a makespan of `t + tail`. Memory is tracked only where it can run out.

Helpers count no references to the arrays that they are given (`allocates=False`), and arrays are unpacked once. LLVM then
expands the helpers in place, and each is compiled once: numba's own expansion (`inline="always"`) takes a third longer.

Complexity: O(ops + edges + steps * devices).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.jit import njit
from ...simulator.kernel import PARALLEL, SEQUENTIAL
from .assignment import Assignment, Limits
from .model import SURELY, Model
from .ready import NO_BITS, pop_slot, push_slot, set_bit, take_lowest
from .work import Work


@njit(cache=True, allocates=False)
def _insert(i: int, base: int, k: int, low: int, line: NDArray[np.int32]) -> None:
    """Insert op `i` into `line[base + low : base + k]`, which is sorted by op index."""
    k += base
    low += base
    while k > low and line[k - 1] > i:
        line[k] = line[k - 1]
        k -= 1
    line[k] = i


@njit(cache=True, allocates=False)
def _overflow_sum(peak: NDArray[np.int64], limit: NDArray[np.int64]) -> float:
    """Returns the bytes above the limits, summed over devices."""
    total = 0.0
    for d in range(len(limit)):
        if peak[d] > limit[d]:
            total += float(peak[d] - limit[d])
    return total


@njit(cache=True, nogil=True, allocates=False)
def overflow(m: Model, w: Work) -> float:
    """Returns the bytes above the limits, summed over devices, at the peaks of the last evaluation."""
    return _overflow_sum(w.peak, m.limit)


@njit(cache=True, nogil=True, allocates=False)
def evaluate(m: Model, w: Work, assignment: Assignment, limits: Limits) -> float:
    """Simulate an `Assignment`; returns its makespan in microseconds, or infinity once it must exceed one of its `Limits`.

    `w.start` is a result; with `limits.track`, also `w.peak`, from which `overflow(m, w)` computes the bytes above limits.
    """
    device, position, at, by_rank = assignment
    track, cutoff, overflow_limit = limits
    table, lane, after, degree, sources = m.table, m.lane, m.tail, m.degree, m.sources
    edge_ptr, edge_to, edge_tensor, ready_to = m.edge_ptr, m.edge_to, m.edge_tensor, m.ready_to
    input_ptr, inputs, producer = m.input_ptr, m.inputs, m.producer
    size_bytes, output_bytes, unread, temp, persistent = m.size_bytes, m.output_bytes, m.unread, m.temp, m.persistent
    limit, latency, per_byte, comm = m.limit, m.latency, m.per_byte, m.comm
    missing, bits, line, head, tail, fresh, fresh_at = w.missing, w.bits, w.line, w.head, w.tail, w.fresh, w.fresh_at
    running, busy_until, queue_out, queue_in = w.running, w.busy_until, w.queue_out, w.queue_in
    list_head, list_tail, alloc_next, heap = w.list_head, w.list_tail, w.alloc_next, w.heap
    slot_end, slot_receive, slot_info = w.slot_end, w.slot_receive, w.slot_info
    readers, local_left, sends_left, copy_left = w.readers, w.local_left, w.sends_left, w.copy_left
    level, peak, start, total, spent_us = w.level, w.peak, w.start, w.total, w.spent
    devices, lanes, n = len(limit), len(running), len(device)
    one_lane = lanes == devices  # else lane `devices + d` runs the collectives of device d
    words, stride = (n + 63) >> 6, len(bits) // max(lanes, 1)
    one_queue = comm == SEQUENTIAL
    now_us, slots, waiting = 0.0, 0, 0
    next_event_us = np.inf  # when the next transfer ends or the next copy is allocated
    total[:] = 0.0
    for i in range(n):
        total[device[i] + lane[i]] += table[i, device[i]]
    for d in range(lanes):
        total[d] *= SURELY  # rounded down, like the tails
        if total[d] > cutoff:
            return np.inf
    if by_rank:
        bits[:] = NO_BITS
    for d in range(lanes):
        head[d] = tail[d] = fresh[d] = 0
        fresh_at[d] = 0.0
        running[d] = list_head[d] = list_tail[d] = alloc_next[d] = -1
        busy_until[d] = np.inf
        queue_out[d] = queue_in[d] = spent_us[d] = 0.0
        readers[d] = 0
    for i in range(n):
        missing[i] = degree[i]
    level[:] = 0
    if track:
        for i in range(n):
            level[device[i]] += persistent[i]
    for i in sources:
        d = device[i] + lane[i]
        if by_rank:
            set_bit(bits, d * stride, words, position[i], 1)
        else:
            line[d * (n + 1) + tail[d]] = i
        tail[d] += 1
    for d in range(devices):
        peak[d] = level[d]
    if track and _overflow_sum(peak, limit) > overflow_limit:
        return np.inf
    first, last_lane = 0, lanes
    while True:
        for d in range(first, last_lane):
            if running[d] < 0 and tail[d] > head[d]:
                if by_rank:
                    op = at[take_lowest(bits, d * stride, words)]
                    tail[d] -= 1
                else:
                    op = line[d * (n + 1) + head[d]]
                    head[d] += 1
                op_device = device[op]
                end = now_us + table[op, op_device]
                spent_us[d] += table[op, op_device]
                if end + after[op] > cutoff or end - spent_us[d] + total[d] > cutoff:
                    return np.inf
                start[op] = now_us
                running[d] = op
                busy_until[d] = end
                if track:
                    level[op_device] += output_bytes[op] + temp[op]
                    if level[op_device] > peak[op_device]:
                        peak[op_device] = level[op_device]
                        if level[op_device] > limit[op_device] and _overflow_sum(peak, limit) > overflow_limit:
                            return np.inf
        step, d = busy_until[0], 0
        for p in range(1, lanes):
            frees_earlier = busy_until[p] < step
            step = busy_until[p] if frees_earlier else step
            d = p if frees_earlier else d
        ends_count = 0
        for p in range(lanes):
            ends_count += 1 if busy_until[p] == step else 0
        if next_event_us < step:
            ends_count, step = 0, next_event_us
        if step == np.inf:
            return now_us
        now_us = step
        several = ends_count > 1
        first, last_lane = d, d + 1
        if several or next_event_us <= now_us or not one_lane:
            first, last_lane = 0, lanes
        while ends_count > 0:  # ops that end now, by op index: their sends join the queues in that order
            ends_count -= 1
            if several:
                op = n
                for p in range(lanes):
                    if busy_until[p] == now_us and running[p] < op:
                        op, d = running[p], p
            op = running[d]
            running[d] = -1
            busy_until[d] = np.inf
            op_device = device[op]
            if track:
                level[op_device] -= temp[op] + unread[op]
                for e in range(input_ptr[op], input_ptr[op + 1]):
                    t = inputs[e]
                    if device[producer[t]] == op_device:
                        local_left[t] -= 1
                        if local_left[t] == 0 and sends_left[t] == 0:
                            level[op_device] -= size_bytes[t]
                    else:
                        copy_left[t * devices + op_device] -= 1
                        if copy_left[t * devices + op_device] == 0:
                            level[op_device] -= size_bytes[t]
            # Consumers here are ready or not, those elsewhere need a transfer.
            e, last = edge_ptr[op], edge_ptr[op + 1]
            base, remote = d * (n + 1), 0
            if one_lane and (by_rank or fresh_at[d] != now_us):
                fresh_at[d] = now_us
                fresh[d] = tail[d]
                k = base + tail[d]
                if by_rank:
                    for x in range(e, last):
                        i = ready_to[x]
                        is_local = 1 if device[i] == d else 0
                        inputs_left = missing[i] - is_local
                        missing[i] = inputs_left
                        becomes_ready = is_local if inputs_left == 0 else 0
                        set_bit(bits, d * stride, words, position[i], becomes_ready)
                        k += becomes_ready
                        remote += 1 - is_local
                else:
                    for x in range(e, last):
                        i = ready_to[x]
                        is_local = 1 if device[i] == d else 0
                        inputs_left = missing[i] - is_local
                        missing[i] = inputs_left
                        line[k] = i
                        k += is_local if inputs_left == 0 else 0
                        remote += 1 - is_local
                tail[d] = k - base
            else:  # something else happened here at the same instant, or ops of both lanes wait: by op index
                for x in range(e, last):
                    i = ready_to[x]
                    if device[i] != op_device:
                        remote += 1
                        continue
                    missing[i] -= 1
                    if missing[i] == 0:
                        p = op_device + lane[i]
                        if by_rank:
                            set_bit(bits, p * stride, words, position[i], 1)
                        else:
                            if fresh_at[p] != now_us:
                                fresh_at[p] = now_us
                                fresh[p] = tail[p]
                            _insert(i, p * (n + 1), tail[p], max(fresh[p], head[p]), line)
                        tail[p] += 1
            if remote == 0 and not track:
                continue
            while e < last:  # one tensor after the other
                t = edge_tensor[e]
                remote, local = 0, 0
                while e < last and edge_tensor[e] == t:
                    q = device[edge_to[e]]
                    e += 1
                    if q == op_device:
                        local += 1
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
                    cost = latency[op_device, q] + per_byte[op_device, q] * size_bytes[t]
                    receive = now_us
                    if comm != PARALLEL:
                        send_us = max(now_us, queue_out[op_device])
                        queue_out[op_device] = send_us + cost
                        if one_queue:
                            receive = max(send_us, queue_out[q])
                            queue_out[q] = receive + cost
                        else:
                            receive = max(send_us, queue_in[q])
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
                        push_slot(heap, waiting, slot_end, slot)
                        waiting += 1
                    next_event_us = min(next_event_us, receive if track else receive + cost)
        if next_event_us > now_us:
            continue
        first, last_lane = 0, lanes
        while True:  # transfers that end now
            slot = -1
            if comm == PARALLEL:
                if waiting > 0 and slot_end[heap[0]] == now_us:
                    slot = heap[0]
                    pop_slot(heap, waiting, slot_end)
                    waiting -= 1
            else:
                for q in range(devices):
                    if list_head[q] >= 0 and slot_end[list_head[q]] == now_us:
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
                if device[i] == q:
                    missing[i] -= 1
                    if missing[i] == 0:
                        p = q + lane[i]
                        if by_rank:
                            set_bit(bits, p * stride, words, position[i], 1)
                        else:
                            if fresh_at[p] != now_us:
                                fresh_at[p] = now_us
                                fresh[p] = tail[p]
                            _insert(i, p * (n + 1), tail[p], max(fresh[p], head[p]), line)
                        tail[p] += 1
        next_event_us = np.inf
        if comm == PARALLEL and waiting > 0:
            next_event_us = slot_end[heap[0]]
        for q in range(devices):
            if track:
                while alloc_next[q] >= 0 and slot_receive[alloc_next[q]] <= now_us:
                    slot = alloc_next[q]
                    alloc_next[q] = slot_info[3 * slot + 2]
                    level[q] += size_bytes[edge_tensor[slot_info[3 * slot] - 1]]
                    if level[q] > peak[q]:
                        peak[q] = level[q]
                        if level[q] > limit[q] and _overflow_sum(peak, limit) > overflow_limit:
                            return np.inf
                if alloc_next[q] >= 0:
                    next_event_us = min(next_event_us, slot_receive[alloc_next[q]])
            if comm != PARALLEL and list_head[q] >= 0:
                next_event_us = min(next_event_us, slot_end[list_head[q]])
