"""Arrival times of an op's inputs on a device, with waits in the communication queues (Jeon et al. 2020, 3.4); compiled."""

from __future__ import annotations

import numpy as np

from ...graph.kernels.jit import njit
from .records import Records, ScheduleState

PARALLEL, SEQUENTIAL = 0, 1  # communication modes, as in `simulator.kernel`; 2 is duplex
ROUNDING = 1e-12  # a bound that adds in another order than the arrival itself must stay below it


@njit(cache=True, allocates=False)
def arrival_of(op: int, p: int, update_queues: bool, state: ScheduleState, fetches: Records) -> tuple[float, int]:
    """Returns when all inputs of `op` are on `p`, and the number of transfers that this takes, which `fetches` then lists.

    The transfers enter the queues of sender and receiver only with `update_queues`.
    """
    ops, tensors, devices, copies, links = state.ops, state.tensors, state.devices, state.copies, state.links
    inputs, comm = state.inputs, state.comm
    latest, count = 0.0, 0
    for e in range(ops[op].first_input, ops[op + 1].first_input):
        t = inputs[e]
        source = tensors[t].producer
        sender, finish_us = ops[source].device, ops[source].finish
        if sender != p:
            if not np.isnan(copies[t, p].arrival):
                finish_us = copies[t, p].arrival
            else:
                cost = links[sender, p].latency + links[sender, p].per_byte * tensors[t].size_bytes
                receive = finish_us
                if comm != PARALLEL:
                    fetches[count].out_before = devices[sender].out_queue
                    send = max(finish_us, devices[sender].out_queue)
                    devices[sender].out_queue = send + cost
                    if comm == SEQUENTIAL:  # one queue per device, shared by sends and receives
                        fetches[count].in_before = devices[p].out_queue
                        receive = max(send, devices[p].out_queue)
                        devices[p].out_queue = receive + cost
                    else:
                        fetches[count].in_before = devices[p].in_queue
                        receive = max(send, devices[p].in_queue)
                        devices[p].in_queue = receive + cost
                finish_us = receive + cost
                fetches[count].tensor, fetches[count].cost = t, cost
                fetches[count].receive, fetches[count].end = receive, finish_us
                count += 1
        latest = max(latest, finish_us)
    if comm != PARALLEL and not update_queues:
        for k in range(count - 1, -1, -1):
            sender = ops[tensors[fetches[k].tensor].producer].device
            if comm == SEQUENTIAL:
                devices[p].out_queue = fetches[k].in_before
            else:
                devices[p].in_queue = fetches[k].in_before
            devices[sender].out_queue = fetches[k].out_before
    return latest, count


@njit(cache=True, allocates=False)
def queued_time(count: int, fetches: Records) -> float:
    """Returns how long the first `count` of `fetches` hold the receiver's queue."""
    total = 0.0
    for k in range(count):
        total += fetches[k].end - fetches[k].receive
    return total


@njit(cache=True, allocates=False)
def waits_for_queue(arrival: float, count: int, fetches: Records) -> bool:
    """Whether the only listed transfer begins when the receiver's queue becomes free, and no other input arrives later.

    Queues only grow, so from now on the op arrives no earlier than its transfer takes after the queue.
    """
    return count == 1 and fetches[0].receive == fetches[0].in_before and fetches[0].end == arrival


@njit(cache=True, allocates=False)
def receiving_queue(p: int, comm: int, devices: Records) -> float:
    """Returns when device `p` has received all requested transfers."""
    return devices[p].out_queue if comm == SEQUENTIAL else devices[p].in_queue


@njit(cache=True, allocates=False)
def may_run(op: int, p: int, state: ScheduleState) -> bool:
    """Whether device `p` is allowed for `op`, its group is not elsewhere, and the pair was not dropped for lack of memory."""
    group_device, pair = state.groups[state.ops[op].group].device, state.pairs[p, op]
    return pair.allowed and (group_device < 0 or group_device == p) and not pair.dropped
