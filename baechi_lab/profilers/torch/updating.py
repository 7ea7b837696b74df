"""What the update of parameters takes: time, the state that an optimizer keeps, and memory while it runs.

Idea: the step's own optimizer updates the model's parameters, whose gradients are there. After the first update, which makes
the state, updates are timed; the storages of one more are followed, each from the parameter that it is made from. So it shows
how this optimizer goes about it: parameter by parameter, or all at once (`foreach`, the default on GPUs), which holds
temporaries of all of them, or in one kernel that needs none (`fused`).

Parameters belong to the call that is the first to use them. The update of a call has its peak; calls are taken in the order
of their peaks. What a call still holds when the next one has its peak is `held` until the last one for which it is: a for-loop
over parameters holds the last temporary until it makes another one. What adds less than a hundredth is not. An optimizer
that takes something of all parameters before it goes through them holds it `_from_the_start`.

The time of an update is shared among calls by the bytes of their parameters.
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

from ...torch.records import Trace
from ...torch.runtime.tree import tensors
from ...torch.step import FAILURES
from .storages import Held, Storages

Ints = NDArray[np.int64]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

_SMALL = 0.01
"""Share of a peak that is not worth an op."""


@dataclass(frozen=True, eq=False)
class Update:
    """An update by call; arrays of one entry per call, whose parameters are those that it is the first to use.

    float64 `us`, microseconds; int64 bytes: `states`, what the optimizer keeps, `temporary`, what is there only while the
    call's own parameters are updated, and `held`, what stays until those of call `until` are. `order` lists the calls.
    """

    us: NDArray[np.float64]
    states: Ints
    temporary: Ints
    held: Ints
    until: Ints
    order: tuple[int, ...]

    @classmethod
    def plain(cls, us: NDArray[np.float64], states: Ints) -> Update:
        """An update of which only times and states are known."""
        none = np.zeros(len(us), dtype=np.int64)
        return cls(us, states, none, none, np.arange(len(us)), tuple(range(len(us))))


def measure_update(
    model: nn.Module, found: Trace, make: MakeOptimizer, runs: int, clock: Callable[[], float]
) -> Update | None:
    """Update parameters that have gradients; None where the optimizer cannot. `clock` gives microseconds.

    The parameters are not what they were afterwards.
    """
    owner = found.owner
    try:
        optimizer = make(model.parameters())
        optimizer.step()
        start = clock()
        for _ in range(runs):
            optimizer.step()
        total = (clock() - start) / runs
        of = {id(p): owner[name] for name, p in model.named_parameters() if name in owner}
        states, held = _followed(model, optimizer, of)
    except FAILURES:  # one that wants a closure, or names
        return None
    n = len(found.calls)
    kept, size = np.zeros(n, dtype=np.int64), np.zeros(n)
    for call, state_bytes in states:
        kept[call] += state_bytes
    for p in model.parameters():
        if id(p) in of and p.grad is not None:
            size[of[id(p)]] += p.nbytes
    return Update(total * size / max(size.sum(), 1.0), kept, *phases(n, held))


def kept_by(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> list[torch.Tensor]:
    """The tensors that an optimizer keeps for a parameter, in its state or in another dict of its own."""
    return list(tensors([d.get(parameter) for d in vars(optimizer).values() if isinstance(d, dict)]))


def kept_besides(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The tensors that it has, parameters and all that it keeps among them."""
    return list(tensors(vars(optimizer)))


def _followed(
    model: nn.Module, optimizer: torch.optim.Optimizer, of: dict[int, int]
) -> tuple[list[tuple[int, int]], list[Held]]:
    """`(call, bytes)` of every state, and what one update takes and gives back, with the call in the place of the device."""
    following = Storages(home=-1)
    first = min((of[id(p)] for p in model.parameters() if p.grad is not None and id(p) in of), default=0)
    for p in model.parameters():
        following.add([p, *([] if p.grad is None else [p.grad])], of.get(id(p), first))
    there = len(following.held)
    for p in model.parameters():
        following.add(kept_by(optimizer, p), of.get(id(p), first))
    following.add(kept_besides(optimizer), first)
    states = [(held.device, held.size) for held in following.held[there:]]
    begun = time.perf_counter_ns()
    with nullcontext() if any(p.is_cuda for p in model.parameters()) else following.from_events(), following.mode():
        optimizer.step()
    for held in following.held:
        if held.start_ns < begun:  # what was there and is given back makes room
            held.start_ns = -1
    return states, [held for held in following.held if held.device >= 0]


def phases(n: int, held: Iterable[Held]) -> tuple[Ints, Ints, Ints, tuple[int, ...]]:
    """`temporary`, `held`, `until` and `order` of an `Update` of `n` calls, from storages that have a call as device.

    Those that start before time 0 were there. Three parameters in a loop, of 10 bytes each; the temporary of each is there until
    the next one has its own:

    >>> rows = [Held(i, 10, -1, 2 * i, 2 * i + 3) for i in range(3)]
    >>> [list(map(int, column)) for column in phases(3, rows)]
    [[0, 0, 10], [10, 10, 0], [1, 2, 2], [0, 1, 2]]
    """
    call, delta = _changes(held)
    total, own = np.cumsum(delta), np.argsort(call, kind="stable")
    bounds = np.searchsorted(call[own], np.arange(n + 1))
    at = [own[a:b] for a, b in pairwise(bounds.tolist())]
    levels = [np.r_[0, np.cumsum(delta[k])] for k in at]  # of each call, from before its first change on
    peak = np.array([level.max() for level in levels], dtype=np.int64)
    moment = np.array([_moment(k, level, total) for k, level in zip(at, levels, strict=True)], dtype=np.int64)
    order = sorted(range(n), key=lambda i: (moment[i], i))
    moments = np.unique(moment[moment >= 0])
    there = {i: levels[i][np.searchsorted(at[i], moments, "right")] for i in order if peak[i] > 0}
    early = sum((np.where(moments < moment[i], level, 0) for i, level in there.items()), np.zeros(len(moments)))
    if early.max(initial=0) > _SMALL * total.max(initial=0):
        return _from_the_start(peak, moment, moments, there, total)
    between, until = np.zeros(n, dtype=np.int64), np.arange(n)
    for place, i in enumerate(order[:-1]):
        later = order[place + 1 :]
        if peak[i] == 0:
            continue
        level = there[i][np.searchsorted(moments, moment[later])]
        if level[0] + peak[later[0]] > (1 + _SMALL) * max(peak[i], peak[later[0]]):
            between[i], until[i] = level[0], later[int(np.flatnonzero(level >= level[0])[-1])]
    return np.maximum(peak - between, 0), between, until, tuple(order)


def _from_the_start(
    peak: Ints, moment: Ints, moments: Ints, there: dict[int, Ints], total: Ints
) -> tuple[Ints, Ints, Ints, tuple[int, ...]]:
    """Where calls hold something before they are updated: what they hold at all peaks of others stays, whoever is first.

    The call with the largest temporary comes last, so that it finds all that is held. What others hold besides counts with it.
    """
    n = len(peak)
    between, temporary = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    for i, level in there.items():
        others = level[moments != moment[i]]
        between[i] = np.clip(others.min(initial=peak[i]), 0, peak[i])
    for i in there:
        temporary[i] = max(total[moment[i]] - between.sum(), peak[i] - between[i])
    order = sorted(range(n), key=lambda i: (temporary[i], i))
    between[order[-1]], temporary[order[-1]] = 0, temporary[order[-1]] + between[order[-1]]
    return temporary, between, np.full(n, order[-1]), tuple(order)


def _changes(held: Iterable[Held]) -> tuple[Ints, Ints]:
    """Calls and bytes of what is taken and given back, in time; at one instant what is given back comes first."""
    rows = [(row.start_ns, row.size, row.device) for row in held if row.start_ns >= 0]
    rows += [(row.end_ns, -row.size, row.device) for row in held if row.end_ns >= 0]
    rows.sort(key=lambda row: row[:2])
    return tuple(np.array([row[k] for row in rows], dtype=np.int64) for k in (2, 1))  # type: ignore[return-value]


def _moment(changes: Ints, level: Ints, total: Ints) -> int:
    """The change after which all calls hold most, of those after which a call has its peak; -1 where it takes nothing."""
    if level.max() == 0:
        return -1
    since = np.repeat(level[1:], np.diff(np.r_[changes, len(total)]))
    at_peak = since >= (1 - _SMALL) * level.max()
    return int(changes[0] + np.argmax(np.where(at_peak, total[changes[0] :], -1)))
