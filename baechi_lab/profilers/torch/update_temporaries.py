"""Memory that PyTorch's optimizers take while they update, for estimates. A measured profile sees it (`optimizer_update`).

On a CPU an optimizer updates one parameter after the other, and the last tensor that it made for one stays until it makes the
next one's. On a GPU it updates all of them at once (`foreach`), each operation for all of them, so that temporaries of all exist
together. Fused optimizers make none. Both are the defaults of `torch.optim`; the counts are those of its functions
`_single_tensor_adam`, `_multi_tensor_adam` and so on, without weight decay that is added to gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .storages import StorageRecord


class Temporaries(NamedTuple):
    """Tensors of a parameter's size that an update makes: `in_loop` for one parameter, of which `stays` stay; or `at_once`."""

    in_loop: int
    stays: int
    at_once: int


TEMPORARIES = {
    "adam": Temporaries(2, 1, 1),
    "adamw": Temporaries(2, 1, 1),
    "nadam": Temporaries(2, 1, 1),
    "radam": Temporaries(2, 0, 1),
    "adamax": Temporaries(1, 0, 1),
    "adadelta": Temporaries(2, 1, 2),
    "adagrad": Temporaries(1, 1, 2),
    "rmsprop": Temporaries(1, 1, 1),
}
"""Temporaries of optimizers by name. SGD and those that are not of PyTorch have none here."""


def storages_of_update(optimizer: str, parameters: Sequence[tuple[int, int]], in_loop: bool) -> list[StorageRecord]:
    """Returns the storages of an update, with the call as device and steps of the update as times.

    `parameters` are (call, bytes) in the order in which they are updated.

    >>> [(s.device, s.size, s.start_ns, s.end_ns) for s in storages_of_update("adam", [(0, 40), (1, 8)], in_loop=True)]
    [(0, 40, 0, 2), (0, 40, 1, 6), (1, 8, 4, 6), (1, 8, 5, 10)]
    >>> [(s.device, s.size, s.start_ns, s.end_ns) for s in storages_of_update("adam", [(0, 40), (1, 8)], in_loop=False)]
    [(0, 40, 0, 2), (1, 8, 1, 2)]
    """
    temporaries = TEMPORARIES.get(optimizer.lower(), Temporaries(0, 0, 0))
    records = []
    for k, (call, size) in enumerate(parameters):
        if not in_loop:
            records.append(StorageRecord(call, temporaries.at_once * size, -1, k, len(parameters)))
            continue
        for i in range(temporaries.in_loop):
            is_last = i == temporaries.in_loop - 1
            end = 4 * (k + 1) + 2 if is_last and temporaries.stays else 4 * k + 2
            records.append(StorageRecord(call, size, -1, 4 * k + i, end))
    return [record for record in records if record.size > 0]
