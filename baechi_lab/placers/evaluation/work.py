"""Scratch space of a simulation, allocated once and used for many candidates by one thread."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from .model import Model
from .parameters import EVALUATION, EvaluationParameters
from .ready import bit_words

Arrays = TypeVar("Arrays", bound=tuple[object, ...])


class Work(NamedTuple):
    """Scratch space, allocated once per search; after `evaluate`, `start` float64[n] and `peak` int64[D] are results.

    L is the number of lanes: D, or 2 D in a graph with collectives, where lane `D + d` is the communication lane of device `d`.

    - `missing` int32[n]: inputs that an op still lacks.
    - `bits`: per lane, the positions of ready ops (under priorities). `line` int32[L (n + 1)]: per lane, ready ops in order
      (first in, first out), from `head` to `tail`; those from `fresh` on became ready at `fresh_at`.
    - `running`: per lane, its op, -1 for none, until `busy_until`. `spent`, `total`: microseconds of its ops that have started,
      and of all its ops. `queue_out`, `queue_in`: when the queues of a device are free.
    - A transfer has a slot: `slot_receive` to `slot_end`, and in `slot_info` the end of its tensor's consumers, its receiver, and
      the receiver's next slot. Per receiver, `list_head` and `list_tail` are the first and the last slot that has not ended, and
      `alloc_next` the first slot whose copy takes no memory yet. `heap`: slots by their end (`parallel` transfers).
    - `readers`: per device, the readers of the tensor that is sent. Per tensor, `local_left` readers on its device and
      `sends_left` transfers have not ended; per tensor and device, `copy_left` readers of the copy.
    - `level` int64[D]: bytes held now.
    """

    missing: NDArray[np.int32]
    bits: NDArray[np.uint64]
    line: NDArray[np.int32]
    head: NDArray[np.int32]
    tail: NDArray[np.int32]
    fresh: NDArray[np.int32]
    fresh_at: NDArray[np.float64]
    running: NDArray[np.int32]
    busy_until: NDArray[np.float64]
    queue_out: NDArray[np.float64]
    queue_in: NDArray[np.float64]
    list_head: NDArray[np.int32]
    list_tail: NDArray[np.int32]
    alloc_next: NDArray[np.int32]
    slot_end: NDArray[np.float64]
    slot_receive: NDArray[np.float64]
    slot_info: NDArray[np.int32]
    heap: NDArray[np.int32]
    readers: NDArray[np.int32]
    local_left: NDArray[np.int32]
    sends_left: NDArray[np.int32]
    copy_left: NDArray[np.int32]
    level: NDArray[np.int64]
    peak: NDArray[np.int64]
    start: NDArray[np.float64]
    total: NDArray[np.float64]
    spent: NDArray[np.float64]


def make_work(model: Model, parameters: EvaluationParameters = EVALUATION) -> Work:
    """Allocates the scratch space for `model`."""
    n, devices = len(model.degree), len(model.limit)
    lanes = devices * (2 if model.lane.any() else 1)
    tensors = len(model.producer)
    slots = int(np.minimum(np.bincount(model.edge_tensor, minlength=tensors), devices - 1).sum()) + 1
    ints = lambda size: np.zeros(size, np.int32)  # noqa: E731
    work = Work(
        missing=ints(n),
        bits=np.zeros(lanes * bit_words(n)[1], np.uint64),
        line=ints(lanes * (n + 1)),
        head=ints(lanes),
        tail=ints(lanes),
        fresh=ints(lanes),
        fresh_at=np.zeros(lanes),
        running=ints(lanes),
        busy_until=np.zeros(lanes),
        queue_out=np.zeros(lanes),
        queue_in=np.zeros(lanes),
        list_head=ints(lanes),
        list_tail=ints(lanes),
        alloc_next=ints(lanes),
        slot_end=np.zeros(slots),
        slot_receive=np.zeros(slots),
        slot_info=ints(3 * slots),
        heap=ints(slots),
        readers=ints(lanes),
        local_left=ints(tensors),
        sends_left=ints(tensors),
        copy_left=ints(tensors * devices),
        level=np.zeros(devices, np.int64),
        peak=np.zeros(devices, np.int64),
        start=np.zeros(n),
        total=np.zeros(lanes),
        spent=np.zeros(lanes),
    )
    return pad_arrays(work, parameters)


def pad_arrays(arrays: Arrays, parameters: EvaluationParameters = EVALUATION) -> Arrays:
    """Copies a named tuple's small arrays into memory of their own: threads that write to one cache line slow each other."""

    def padded_copy(a: object) -> Any:
        if not isinstance(a, np.ndarray) or a.nbytes > parameters.page_bytes:
            return a
        around = parameters.spare_bytes // a.itemsize  # unused entries before and after the array
        interior = np.zeros(a.size + 2 * around, a.dtype)[around : around + a.size].reshape(a.shape)
        interior[...] = a
        return interior

    return type(arrays)(*(padded_copy(a) for a in arrays))
