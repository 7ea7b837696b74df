"""Measures the update of parameters: its time, the optimizer's states, and memory while it runs.

Idea: the step's own optimizer updates the model's parameters, whose gradients are present. The first update allocates the
states, the next ones are timed, and one more is run with its storages tracked, each from the parameter that it is made from.
So the result shows how the optimizer works: one parameter after the other, all at once with temporaries of all of them
(`foreach`, the default on GPUs), or in one kernel without temporaries (`fused`).

A parameter belongs to the first call that uses it. Calls are sorted by the moment at which their update has its peak.
`held_bytes` is what a call still holds at the peak of the next call, until the last call at whose peak it is alive: a loop
over parameters holds its last temporary until it allocates the next one. Amounts below a hundredth are ignored. An optimizer
that allocates something for all parameters before it goes through them holds it, in this record, throughout.

The time of an update is divided among calls by the bytes of their parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...torch_steps.optimizer_tensors import all_optimizer_tensors, optimizer_state_tensors
from ...torch_steps.records import Trace
from ...torch_steps.step import FAILURES
from .storages import StorageRecord, StorageTracker

Ints = NDArray[np.int64]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

_NEGLIGIBLE_SHARE = 0.01
"""Share of a peak below which memory gets no op."""


@dataclass(frozen=True, eq=False)
class Update:
    """The update by call; arrays have one entry per call. A parameter belongs to the first call that uses it.

    `us` float64 are microseconds. The others are int64 bytes: `states`, the optimizer's states; `temporary`, memory that is
    held only while the call's own parameters are updated; `held_bytes`, memory that is held until those of call `until` are
    updated. `order` lists the calls in the order of the update.
    """

    us: NDArray[np.float64]
    states: Ints
    temporary: Ints
    held_bytes: Ints
    until: Ints
    order: tuple[int, ...]


def measure_update(
    model: nn.Module, trace: Trace, make: MakeOptimizer, runs: int, clock: Callable[[], float]
) -> Update | None:
    """Updates the parameters that have gradients; None if the optimizer cannot. `clock` returns microseconds.

    The parameters are changed afterwards.
    """
    owner = trace.owner
    try:
        optimizer = make(model.parameters())
        optimizer.step()
        start = clock()
        for _ in range(runs):
            optimizer.step()
        total = (clock() - start) / runs
        of = {id(p): owner[name] for name, p in model.named_parameters() if name in owner}
        # The (call, bytes) of every state, and the storages of one update, with the call as device.
        tracker = StorageTracker(default_device=-1)
        first = min((of[id(p)] for p in model.parameters() if p.grad is not None and id(p) in of), default=0)
        for p in model.parameters():
            tracker.add([p, *([] if p.grad is None else [p.grad])], of.get(id(p), first))
        first_state = len(tracker.records)
        for p in model.parameters():
            tracker.add(optimizer_state_tensors(optimizer, p), of.get(id(p), first))
        tracker.add(all_optimizer_tensors(optimizer), first)
        states = [(record.device, record.size) for record in tracker.records[first_state:]]
        start_ns = time.perf_counter_ns()
        with nullcontext() if any(p.is_cuda for p in model.parameters()) else tracker.from_events(), tracker.mode():
            optimizer.step()
        for record in tracker.records:
            if record.start_ns < start_ns:  # freeing older memory makes room
                record.start_ns = -1
        records = [record for record in tracker.records if record.device >= 0]
    except FAILURES:  # an optimizer that requires a closure, or names
        return None
    n = len(trace.calls)
    total_states, size = np.zeros(n, dtype=np.int64), np.zeros(n)
    for call, state_bytes in states:
        total_states[call] += state_bytes
    for p in model.parameters():
        if id(p) in of and p.grad is not None:
            size[of[id(p)]] += p.nbytes
    return Update(total * size / max(size.sum(), 1.0), total_states, *split_into_phases(n, records))


def split_into_phases(n: int, records: Iterable[StorageRecord]) -> tuple[Ints, Ints, Ints, tuple[int, ...]]:
    """Returns `temporary`, `held_bytes`, `until` and `order` of an `Update` of `n` calls, from storages with a call as device.

    Those that start before time 0 were there. Three parameters in a loop, of 10 bytes each; the temporary of each is there until
    the next one has its own:

    >>> rows = [StorageRecord(i, 10, -1, 2 * i, 2 * i + 3) for i in range(3)]
    >>> [list(map(int, column)) for column in split_into_phases(3, rows)]
    [[0, 0, 10], [10, 10, 0], [1, 2, 2], [0, 1, 2]]
    """
    # Allocations and frees in time; at the same instant, frees come first.
    rows = [(row.start_ns, row.size, row.device) for row in records if row.start_ns >= 0]
    rows += [(row.end_ns, -row.size, row.device) for row in records if row.end_ns >= 0]
    rows.sort(key=lambda row: row[:2])
    call, delta = (np.array([row[k] for row in rows], dtype=np.int64) for k in (2, 1))
    total, change_order = np.cumsum(delta), np.argsort(call, kind="stable")
    bounds = np.searchsorted(call[change_order], np.arange(n + 1))
    at = [change_order[a:b] for a, b in pairwise(bounds.tolist())]
    levels = [np.r_[0, np.cumsum(delta[k])] for k in at]  # of each call, from before its first change on
    peak = np.array([level.max() for level in levels], dtype=np.int64)
    moment = np.array([_moment(k, level, total) for k, level in zip(at, levels, strict=True)], dtype=np.int64)
    order = sorted(range(n), key=lambda i: (moment[i], i))
    moments = np.unique(moment[moment >= 0])
    levels_at_peaks = {i: levels[i][np.searchsorted(at[i], moments, "right")] for i in order if peak[i] > 0}
    early_bytes = sum(
        (np.where(moments < moment[i], level, 0) for i, level in levels_at_peaks.items()), np.zeros(len(moments))
    )
    if early_bytes.max(initial=0) > _NEGLIGIBLE_SHARE * total.max(initial=0):
        # The calls hold memory before they are updated: what they hold at all other peaks stays. The call with the largest
        # temporary comes last, when all of this memory is held. Its temporary includes what the others hold besides.
        between, temporary = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        for i, level in levels_at_peaks.items():
            other_levels = level[moments != moment[i]]
            between[i] = np.clip(other_levels.min(initial=peak[i]), 0, peak[i])
        for i in levels_at_peaks:
            temporary[i] = max(total[moment[i]] - between.sum(), peak[i] - between[i])
        order = sorted(range(n), key=lambda i: (temporary[i], i))
        between[order[-1]], temporary[order[-1]] = 0, temporary[order[-1]] + between[order[-1]]
        return temporary, between, np.full(n, order[-1]), tuple(order)
    between, until = np.zeros(n, dtype=np.int64), np.arange(n)
    for place, i in enumerate(order[:-1]):
        following = order[place + 1 :]
        if peak[i] == 0:
            continue
        level = levels_at_peaks[i][np.searchsorted(moments, moment[following])]
        holds = level >= level[0]  # the next calls may be small, and a later one large
        following_peaks = peak[list(following)]
        if any(holds & (level[0] + following_peaks > (1 + _NEGLIGIBLE_SHARE) * np.maximum(peak[i], following_peaks))):
            between[i], until[i] = level[0], following[int(np.flatnonzero(holds)[-1])]
    return np.maximum(peak - between, 0), between, until, tuple(order)


def _moment(changes: Ints, level: Ints, total: Ints) -> int:
    """Returns the change at which the total is largest while the call has its peak; -1 if it allocates nothing."""
    if level.max() == 0:
        return -1
    since = np.repeat(level[1:], np.diff(np.r_[changes, len(total)]))
    at_peak = since >= (1 - _NEGLIGIBLE_SHARE) * level.max()
    return int(changes[0] + np.argmax(np.where(at_peak, total[changes[0] :], -1)))
