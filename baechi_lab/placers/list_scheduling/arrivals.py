"""Arrival times of an op's inputs on a device, with waits in the communication queues (paper B, section 3.4); compiled."""

from __future__ import annotations

import numpy as np

from ...graph.kernels.jit import njit
from .records import Records, Traffic

PARALLEL, SEQUENTIAL = 0, 1  # communication modes, as in `simulator.kernel`; 2 is duplex
ROUNDING = 1e-12  # a bound that adds in another order than the arrival itself must stay below it


@njit(cache=True, allocates=False)
def arrival_of(op: int, p: int, keep: bool, traffic: Traffic, fetch: Records) -> tuple[float, int]:
    """Returns when all inputs of `op` are on `p`, and the number of fetches, listed in `fetch`; `keep` updates the queues."""
    ops, tensors, devices, copies, links, inputs, comm = traffic
    latest, count = 0.0, 0
    for e in range(ops[op].first_input, ops[op + 1].first_input):
        t = inputs[e]
        source = tensors[t].producer
        a, finish_us = ops[source].device, ops[source].finish
        if a != p:
            if not np.isnan(copies[t, p].there):
                finish_us = copies[t, p].there
            else:
                cost = links[a, p].latency + links[a, p].per_byte * tensors[t].size
                receive = finish_us
                if comm != PARALLEL:
                    fetch[count].out_before = devices[a].out_queue
                    send = max(finish_us, devices[a].out_queue)
                    devices[a].out_queue = send + cost
                    if comm == SEQUENTIAL:  # one queue per device, shared by sends and receives
                        fetch[count].in_before = devices[p].out_queue
                        receive = max(send, devices[p].out_queue)
                        devices[p].out_queue = receive + cost
                    else:
                        fetch[count].in_before = devices[p].in_queue
                        receive = max(send, devices[p].in_queue)
                        devices[p].in_queue = receive + cost
                finish_us = receive + cost
                fetch[count].tensor, fetch[count].cost = t, cost
                fetch[count].receive, fetch[count].end = receive, finish_us
                count += 1
        latest = max(latest, finish_us)
    if comm != PARALLEL and not keep:
        for k in range(count - 1, -1, -1):
            a = ops[tensors[fetch[k].tensor].producer].device
            if comm == SEQUENTIAL:
                devices[p].out_queue = fetch[k].in_before
            else:
                devices[p].in_queue = fetch[k].in_before
            devices[a].out_queue = fetch[k].out_before
    return latest, count


@njit(cache=True, allocates=False)
def queued_time(count: int, fetch: Records) -> float:
    """Returns how long the listed fetches hold the receiver's queue."""
    total = 0.0
    for k in range(count):
        total += fetch[k].end - fetch[k].receive
    return total


@njit(cache=True, allocates=False)
def waits_for_queue(arrival: float, count: int, fetch: Records) -> bool:
    """Whether the only listed fetch begins when the receiver's queue becomes free, and no input arrives later.

    Queues only grow, so from now on the op arrives no earlier than its transfer takes after the queue.
    """
    return count == 1 and fetch[0].receive == fetch[0].in_before and fetch[0].end == arrival


@njit(cache=True, allocates=False)
def receiving_queue(p: int, comm: int, devices: Records) -> float:
    """Returns when device `p` has received all requested transfers."""
    return devices[p].out_queue if comm == SEQUENTIAL else devices[p].in_queue


@njit(cache=True, allocates=False)
def may_run(op: int, p: int, ops: Records, groups: Records, pairs: Records) -> bool:
    """Device `p` is allowed for `op`, its group is not elsewhere, and the pair was not dropped for lack of memory."""
    group_device = groups[ops[op].group].device
    return pairs[p, op].allowed and (group_device < 0 or group_device == p) and not pairs[p, op].dropped
