"""Memory that optimizers take while they update, for estimates. A measured profile sees it (`optimizer_update`).

On a CPU an optimizer of PyTorch updates one parameter after the other, and the last tensor that it made for one stays until it
makes the next one's. On a GPU it updates all of them at once (`foreach`), each operation for all of them, so that temporaries of
all exist together. Fused optimizers make none. Both are the defaults of `torch.optim`. How many tensors there are depends on the
optimizer's options (weight decay, `amsgrad`, `foreach`), so three small parameters are updated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from ...torch_steps.optimizer_tensors import optimizer_state_tensors, optimizers_within
from ...torch_steps.step import FAILURES
from .storages import StorageRecord, StorageTracker

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

_SIDE = 32
"""Rows and columns of the parameters of a trial."""
_NEGLIGIBLE_SHARE = 0.1
"""Share of a parameter's size below which tensors are left out: numbers and rows of a factored state."""


class Temporaries(NamedTuple):
    """Tensors of a parameter's size that an update makes: `tensors` for one parameter, or for all `at_once`.

    In a loop over parameters, `stays` of them stay until the next parameter is updated.
    """

    tensors: int = 0
    stays: int = 0
    at_once: bool = False


def optimizer_named(name: str) -> MakeOptimizer | None:
    """Returns the optimizer of PyTorch that `optimizer=` names; None for those of other packages.

    >>> optimizer_named("AdamW").__name__, optimizer_named("lamb")
    ('AdamW', None)
    """
    if name.lower() == "momentum":
        return functools.partial(torch.optim.SGD, momentum=0.9)
    classes = {key.lower(): value for key, value in vars(torch.optim).items() if isinstance(value, type)}
    optimizer_class = classes.get(name.lower().removeprefix("fused-"))
    return functools.partial(optimizer_class, fused=True) if "-" in name and optimizer_class else optimizer_class


def temporaries_of(make: MakeOptimizer | None, in_loop: bool) -> Temporaries:
    """Returns the temporaries of an optimizer's update, as on a CPU (`in_loop`) or on a GPU.

    None are known of an optimizer that does not update these parameters.

    >>> temporaries_of(torch.optim.Adam, in_loop=True), temporaries_of(torch.optim.Adam, in_loop=False).tensors
    (Temporaries(tensors=2, stays=1, at_once=False), 1)
    """
    parameters = [nn.Parameter(torch.zeros(_SIDE, _SIDE, device="cpu")) for _ in range(3)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    tracker = StorageTracker(default_device=-1)
    try:
        if make is None:
            return Temporaries()
        optimizer = make(parameters)
        holders = optimizers_within(optimizer)
        for group in (group for holder in holders for group in getattr(holder, "param_groups", ())):
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = not in_loop
            group["capturable"] = False  # it is for GPUs
        optimizer.step()  # makes the states
        for k, parameter in enumerate(parameters):
            tracker.add([parameter, parameter.grad, *optimizer_state_tensors(optimizer, parameter)], k)
        records_before = len(tracker.records)
        with tracker.mode():
            optimizer.step()
    except FAILURES:
        return Temporaries()
    size = parameters[0].nbytes
    records = [record for record in tracker.records[records_before:] if record.size > _NEGLIGIBLE_SHARE * size]

    def tensors_at(time_ns: int, k: int) -> int:
        return math.ceil(sum(r.size for r in records if r.device == k and r.start_ns <= time_ns < r.end_ns) / size)

    times = [record.start_ns for record in records]
    last_peak = max(times, key=lambda time_ns: tensors_at(time_ns, 2), default=0)
    if tensors_at(last_peak, 0):  # the first parameter's are there while the last one is updated
        total_tensors = max(sum(tensors_at(time_ns, k) for k in range(3)) for time_ns in times)
        return Temporaries(-(-total_tensors // 3), at_once=True)
    count = max((tensors_at(time_ns, 1) for time_ns in times), default=0)
    return Temporaries(count, stays=tensors_at(last_peak, 1))


def storages_of_update(temporaries: Temporaries, parameters: Sequence[tuple[int, int]]) -> list[StorageRecord]:
    """Returns the storages of an update, with the call as device and steps of the update as times.

    `parameters` are (call, bytes) in the order in which they are updated.

    >>> parameters = [(0, 40), (1, 8)]
    >>> [(s.device, s.size, s.start_ns, s.end_ns) for s in storages_of_update(Temporaries(2, 1), parameters)]
    [(0, 40, 0, 6), (0, 40, 1, 2), (1, 8, 4, 10), (1, 8, 5, 6)]
    >>> [(s.device, s.size, s.start_ns, s.end_ns) for s in storages_of_update(Temporaries(1, at_once=True), parameters)]
    [(0, 40, 0, 2), (1, 8, 1, 2)]
    """
    per_parameter, stays, at_once = temporaries
    records = []
    for k, (call, size) in enumerate(parameters):
        if at_once:
            records.append(StorageRecord(call, per_parameter * size, -1, k, len(parameters)))
            continue
        # A number of steps per parameter that holds all of its temporaries, and those that stay, until the next one has its own.
        start, next_start = k * 2 * per_parameter, (k + 1) * 2 * per_parameter
        for i in range(per_parameter):
            end = next_start + per_parameter if i < stays else start + per_parameter
            records.append(StorageRecord(call, size, -1, start + i, end))
    return [record for record in records if record.size > 0]
