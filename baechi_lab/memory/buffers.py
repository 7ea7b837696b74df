"""Buffers of tensors that may lie in the memory of other tensors (`OpGraph.reuse`), allocated and freed event by event.

A *slot* is a tensor on a device: first the slots where tensors are made, then those of received copies. Each slot has the
buffer in which it lies, or `NONE` if it has none yet or lies in persistent bytes. Source of the rules: docs/simulated-time.md,
"Outputs that lie in inputs". Complexity: O(ops + edges + transfers), and k^2 for an op with k inputs that overwrites one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph.kernels.csr import Floats, Ints, distinct, frozen_array
from ..graph.kernels.jit import njit
from ..graph.opgraph import GROWS, OVERWRITES, VIEW, OpGraph
from ..graph.timeline import MEMORY_CATEGORIES

PERSISTENT, OUTPUTS, TEMPORARY, COPIES = range(len(MEMORY_CATEGORIES))
START, END, RECEIVE, ARRIVED = range(4)
NONE = -1


class Uses(NamedTuple):
    """The graph, its placement and its transfers as arrays.

    Args:
        reuse, temporary, persistent, place: per op, where its output lies, its bytes, and its device.
        outputs, inputs: pointers of each op to its outputs and inputs.
        tensors, slots: per input, its tensor and its slot; the slot is `NONE` if the tensor is never on the device.
        size, producer, producer_device, send_count, uses: per tensor; `uses` are those on the producer's device.
        moved_tensor, target, copy, copy_uses: per transfer, the tensor, the receiving device, the slot of the copy and its uses.
        over_copies_us: how long after its arrival an op may overwrite a received copy.
    """

    reuse: NDArray[np.int8]
    temporary: Ints
    persistent: Ints
    place: Ints
    outputs: Ints
    inputs: Ints
    tensors: NDArray[np.int32]
    slots: Ints
    size: Ints
    producer: NDArray[np.int32]
    producer_device: Ints
    send_count: Ints
    uses: Ints
    moved_tensor: NDArray[np.int32]
    target: NDArray[np.int32]
    copy: Ints
    copy_uses: Ints
    over_copies_us: float


class State(NamedTuple):
    """The buffers of a step while they are assigned.

    Args:
        buffer: the buffer of every slot.
        bytes, category, arrived, uses_left: per buffer.
        device, time, log_category, delta, op: the rows of the memory log.
        counts: the number of buffers and of rows so far.
    """

    buffer: Ints
    bytes: Ints
    category: Ints
    arrived: Floats
    uses_left: Ints
    device: NDArray[np.int32]
    time: Floats
    log_category: NDArray[np.int8]
    delta: Ints
    op: NDArray[np.int32]
    counts: Ints


def uses_of(
    graph: OpGraph,
    place: Ints,
    moved_tensors: NDArray[np.int32],
    target: NDArray[np.int32],
    over_copies_us: float = np.inf,
) -> Uses:
    """Make the arrays of a graph with `reuse`, whose ops are on `place` (int64[n]) and send `moved_tensors` to `target`."""
    producer, count, (pointer, tensors) = graph.tensor_producer, graph.tensor_count, graph.inputs
    producer_device, reader = place[producer], place[np.repeat(np.arange(graph.n), np.diff(pointer))]
    devices = np.int64(max(place.max(initial=0), target.max(initial=0)) + 1)
    is_local, read = reader == producer_device[tensors], tensors * devices + reader
    copy_key = moved_tensors * devices + target
    copies = distinct(copy_key)  # a slot each
    near = np.minimum(np.searchsorted(copies, read), max(len(copies) - 1, 0))
    has_copy = copies[near] == read if len(copies) else np.zeros(len(read), dtype=np.bool_)
    send_count, at = np.bincount(moved_tensors, minlength=count), np.searchsorted(copies, copy_key)
    return Uses(
        reuse=np.asarray(graph.reuse),
        temporary=graph.temp_bytes,
        persistent=graph.persistent_bytes,
        place=place,
        outputs=graph.output_ptr,
        inputs=pointer,
        tensors=tensors,
        slots=np.where(is_local, tensors, np.where(has_copy, count + near, NONE)),
        size=graph.tensor_bytes,
        producer=producer,
        producer_device=producer_device,
        send_count=send_count,
        uses=1 + send_count + np.bincount(tensors[is_local], minlength=count),
        moved_tensor=frozen_array(
            moved_tensors, np.int32
        ),  # as those of a timeline: one compiled signature for all callers
        target=frozen_array(target, np.int32),
        copy=np.where(target == producer_device[moved_tensors], moved_tensors, count + at),
        copy_uses=np.bincount(near[has_copy], minlength=len(copies))[at],
        over_copies_us=over_copies_us,
    )


def state_for(uses: Uses, event_kind: Ints, index: Ints) -> State:
    """Allocate arrays for every buffer and every change of the log."""
    starts = index[event_kind == START]
    buffer_count = int((uses.outputs[starts + 1] - uses.outputs[starts]).sum()) + int(
        np.count_nonzero(event_kind == RECEIVE)
    )
    rows = 2 * buffer_count + 2 * len(starts) + int(np.count_nonzero(event_kind == END))

    def zeros(count: int, kind: object = np.int64) -> Any:
        return np.zeros(count, dtype=kind)

    slots = np.full(len(uses.size) + len(uses.moved_tensor), NONE)
    return State(
        buffer=slots,
        bytes=zeros(buffer_count),
        category=zeros(buffer_count),
        arrived=zeros(buffer_count, np.float64),
        uses_left=zeros(buffer_count),
        device=zeros(rows, np.int32),
        time=zeros(rows, np.float64),
        log_category=zeros(rows, np.int8),
        delta=zeros(rows),
        op=zeros(rows, np.int32),
        counts=zeros(2),
    )


@njit(cache=True, allocates=False)
def apply_events(uses: Uses, state: State, time: Floats, event_kind: Ints, index: Ints) -> int:
    """Apply the events in order; returns the number of rows written to the log."""
    for k in range(len(event_kind)):
        at = index[k]
        if event_kind[k] == START:
            _start(uses, state, time[k], at)
        elif event_kind[k] == END:
            _end(uses, state, time[k], at)
        elif event_kind[k] == RECEIVE:
            tensor, buffer = uses.moved_tensor[at], _new_buffer(uses, state, uses.moved_tensor[at], COPIES)
            state.buffer[uses.copy[at]], state.uses_left[buffer] = buffer, uses.copy_uses[at]
            state.arrived[buffer] = time[k]  # a receive of 0 us has its end before its start in the events
            _log(state, uses.target[at], time[k], COPIES, uses.size[tensor], uses.producer[tensor])
        else:
            tensor, buffer = uses.moved_tensor[at], state.buffer[uses.copy[at]]
            if buffer != NONE:
                state.arrived[buffer] = time[k]
            _release(state, tensor, uses.producer_device[tensor], time[k], uses.producer[tensor])
    return state.counts[1]


@njit(cache=True, allocates=False)
def _start(uses: Uses, state: State, time: float, op: int) -> None:
    device = uses.place[op]
    _log(state, device, time, TEMPORARY, uses.temporary[op], op)
    if uses.reuse[op] == GROWS:
        _log(state, device, time, PERSISTENT, uses.persistent[op], op)
    for tensor in range(uses.outputs[op], uses.outputs[op + 1]):
        buffer = NONE
        if uses.size[tensor] and uses.reuse[op] == VIEW:
            buffer = _viewed_buffer(uses, state, op, tensor)
        elif uses.size[tensor] and uses.reuse[op] == OVERWRITES:
            buffer = _overwritten_buffer(uses, state, time, op, tensor)
        if buffer == NONE and not (uses.reuse[op] == VIEW and _views_persistent(uses, state, op, tensor)):
            buffer = _new_buffer(uses, state, tensor, OUTPUTS)
            _log(state, device, time, OUTPUTS, uses.size[tensor], op)
        state.buffer[tensor] = buffer
        if buffer != NONE:
            state.uses_left[buffer] += uses.uses[tensor]


@njit(cache=True, allocates=False)
def _end(uses: Uses, state: State, time: float, op: int) -> None:
    device = uses.place[op]
    _log(state, device, time, TEMPORARY, -uses.temporary[op], op)
    for e in range(uses.inputs[op], uses.inputs[op + 1]):
        _release(state, uses.slots[e], device, time, op)
    for tensor in range(uses.outputs[op], uses.outputs[op + 1]):
        _release(state, tensor, device, time, op)


@njit(cache=True, allocates=False)
def _viewed_buffer(uses: Uses, state: State, op: int, tensor: int) -> int:
    """Returns the buffer of the smallest input on the device that is at least as large as `tensor`."""
    best = NONE
    for e in range(uses.inputs[op], uses.inputs[op + 1]):
        size = uses.size[uses.tensors[e]]
        if size >= uses.size[tensor] and _buffer_of_input(uses, state, e) != NONE:
            if best == NONE or size < uses.size[uses.tensors[best]]:
                best = e
    return NONE if best == NONE else _buffer_of_input(uses, state, best)


@njit(cache=True, allocates=False)
def _overwritten_buffer(uses: Uses, state: State, time: float, op: int, tensor: int) -> int:
    """Returns the buffer of the first input of the same size that only this op still needs, or `NONE`.

    A received copy counts until `over_copies_us`. A tensor that is sent needs memory for transfers: that of a sent input or of
    a copy.
    """
    for e in range(uses.inputs[op], uses.inputs[op + 1]):
        read, buffer = uses.tensors[e], _buffer_of_input(uses, state, e)
        if buffer == NONE or uses.size[read] != uses.size[tensor]:
            continue
        if uses.producer_device[read] != uses.place[op]:
            if time - state.arrived[buffer] < uses.over_copies_us:
                continue
        elif uses.send_count[tensor] and not uses.send_count[read]:
            continue
        own_uses = 0
        for other_input in range(uses.inputs[op], uses.inputs[op + 1]):
            own_uses += _buffer_of_input(uses, state, other_input) == buffer
        if state.uses_left[buffer] == own_uses:
            return buffer
    return NONE


@njit(cache=True, allocates=False)
def _views_persistent(uses: Uses, state: State, op: int, tensor: int) -> bool:
    """Whether a view without a buffer lies in persistent bytes: it reads such a view, or no tensor as large as itself."""
    for e in range(uses.inputs[op], uses.inputs[op + 1]):
        if uses.size[uses.tensors[e]] >= uses.size[tensor] and _buffer_of_input(uses, state, e) != NONE:
            return False
    return True


@njit(cache=True, allocates=False)
def _buffer_of_input(uses: Uses, state: State, e: int) -> int:
    """Returns the buffer of input `e`."""
    slot = uses.slots[e]
    return NONE if slot == NONE else state.buffer[slot]


@njit(cache=True, allocates=False)
def _new_buffer(uses: Uses, state: State, tensor: int, category: int) -> int:
    """Allocate a buffer of the size of `tensor`, without uses."""
    buffer = state.counts[0]
    state.counts[0] += 1
    state.bytes[buffer], state.category[buffer] = uses.size[tensor], category
    return buffer


@njit(cache=True, allocates=False)
def _release(state: State, slot: int, device: int, time: float, op: int) -> None:
    """End one use of a slot, and free its buffer after the last use."""
    buffer = NONE if slot == NONE else state.buffer[slot]
    if buffer == NONE:
        return
    state.uses_left[buffer] -= 1
    if state.uses_left[buffer] == 0:
        _log(state, device, time, state.category[buffer], -state.bytes[buffer], op)


@njit(cache=True, allocates=False)
def _log(state: State, device: int, time: float, category: int, delta: int, op: int) -> None:
    if delta == 0:
        return
    row = state.counts[1]
    state.counts[1] += 1
    state.device[row], state.time[row], state.log_category[row] = device, time, category
    state.delta[row], state.op[row] = delta, op
