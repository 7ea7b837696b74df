"""From a forward graph to a training graph: the gradients, their sums and the updates of automatic differentiation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...checks import check_number, check_whole
from ...errors import InvalidInput, in_short
from ..columns import check_record
from ..kernels.csr import Ints, gather, inverse, offsets
from ..opgraph import OpGraph
from ..tensors import tensor_columns
from .sizes import MOST_BYTES

_BYTES_PER_US = 4e5
"""Memory bandwidth that sums and updates are charged with (400 GB/s)."""


def with_backward(forward: OpGraph, *, ratio: float = 1.0, slots: int = 1) -> OpGraph:
    """Returns the training graph of `forward`, in the shape that TensorFlow gives it.

    A variable is an op that holds persistent bytes and reads nothing; a gradient is needed for every tensor that does not come
    from an op that reads nothing (unless that is a variable; a graph without variables counts all as such). For every tensor
    that an op `f` reads there is an op `grad/f/k`, with `forward_of` f, that produces its gradient. It reads the gradients of
    what `f` produced and one activation: the other input of an op with two inputs, the output of an op with one. It lasts
    `ratio` times as long as `f` (`2 / k` of that for ops with k > 2 inputs). Where a tensor has several readers, `sum/tensor`
    adds their gradients. `update/v` reads the gradient of variable v and shares a colocation group with it. Sums and updates
    name no forward op. The optimizer keeps `slots` more copies of each variable.

    Forward ops keep their index; the others follow in reverse topological order. O((ops + edges) log).

    Raises `InvalidInput` for a graph that has backward ops already or is coarse, and for a ratio or slots below 0.

    >>> from baechi_lab.graph.generators import chain
    >>> with_backward(chain(3)).names
    ('op0', 'op1', 'op2', 'grad/op2', 'grad/op1')
    """
    check_record("forward", forward, OpGraph)
    if forward.group_of is not None:
        raise InvalidInput(f"forward is the coarse graph {forward.name!r}; give the graph of single ops")
    backward_ops = np.flatnonzero(forward.forward_of >= 0)
    if len(backward_ops):
        raise InvalidInput(
            f"forward has the backward op {forward.names[backward_ops[0]]!r}; give a graph of forward ops only"
        )
    check_number("ratio", ratio)
    most_slots = MOST_BYTES // max(int(forward.persistent_bytes.max(initial=0)), 1) - 1
    if check_whole("slots", slots, low=0) > most_slots:
        raise InvalidInput(
            f"slots is {in_short(slots)}; with the variables of {forward.name!r} it must be at most {most_slots}"
        )
    plan = _plan(forward)
    producer, size, tensor, reader = _tensors(forward, plan)
    n, added_count = forward.n, plan.total - forward.n
    pad = np.zeros(added_count, dtype=np.int64)
    temp, allowed, forward_of = pad.copy(), np.full(added_count, -1), np.full(added_count, -1)
    names, types = _names_and_types(forward, plan)
    temp[plan.gradient - n] = forward.temp_bytes[plan.reader]
    allowed[plan.gradient - n] = forward.allowed[plan.reader]
    forward_of[plan.gradient - n] = plan.reader
    allowed[plan.update - n] = forward.allowed[plan.variable]
    persistent = forward.persistent_bytes.copy()
    persistent[plan.variable] *= 1 + int(slots)
    group = np.append(forward.colocation, np.full(plan.total - forward.n, -1)).astype(np.int32)
    free = plan.variable[forward.colocation[plan.variable] < 0]
    group[free] = len(forward.colocation_names) + np.arange(len(free))
    group[plan.update] = group[plan.variable]
    group_names = (*forward.colocation_names, *(f"variable/{forward.names[i]}" for i in free.tolist()))
    return OpGraph(
        names=(*forward.names, *names),
        op_types=(*forward.op_types, *types),
        duration_us=np.append(forward.duration_us, _durations(forward, plan, forward.duration_us, ratio)),
        duration_by_kind={
            kind: np.append(us, _durations(forward, plan, us, ratio)) for kind, us in forward.duration_by_kind.items()
        },
        **tensor_columns(producer, size, (), tensor, reader, plan.total),
        temp_bytes=np.append(forward.temp_bytes, temp),
        persistent_bytes=np.append(persistent, pad),
        colocation=group,
        colocation_names=group_names,
        allowed=np.append(forward.allowed, allowed).astype(np.int32),
        allowed_sets=forward.allowed_sets,
        forward_of=np.append(forward.forward_of, forward_of).astype(np.int32),
        name=f"{forward.name}-training",
    )


@dataclass(frozen=True)
class _Plan:
    """The ops to add. Row k: op `gradient[k]` is the gradient of `tensor[k]` through its reader `reader[k]`."""

    total: int
    tensor: Ints
    reader: Ints
    gradient: Ints
    by_reader: Ints
    """Row pointers: the gradient ops of forward op f are rows `by_reader[f]:by_reader[f + 1]`."""
    tensors_to_sum: Ints
    """Tensors with several gradients; `sum[t]` adds those of tensor t (-1 where there is one or none)."""
    sum: Ints
    variable: Ints
    update: Ints


def _plan(forward: OpGraph) -> _Plan:
    """Numbers the gradients, sums of gradients and updates that a backward pass needs."""
    n = forward.n
    source = np.diff(forward.inputs[0]) == 0
    variable = np.flatnonzero(source & (forward.persistent_bytes > 0))
    needs_gradient = ~source
    needs_gradient[variable if len(variable) else source] = True
    tensor, reader = forward.edge_tensor.astype(np.int64), forward.consumers.astype(np.int64)
    needed_edges = np.flatnonzero(needs_gradient[forward.edge_source])
    needed_edges = needed_edges[np.lexsort((tensor[needed_edges], reader[needed_edges]))]
    tensor, reader = tensor[needed_edges], reader[needed_edges]
    gradients = np.bincount(tensor, minlength=forward.tensor_count)
    tensors_to_sum = np.flatnonzero(gradients > 1)
    fed = np.zeros(n, dtype=np.bool_)
    fed[forward.tensor_producer[tensor]] = True
    variable = variable[fed[variable]]
    # Reverse topological order; a sum comes after its readers' gradients and before those of its producer.
    position = forward.position
    due_order = np.concatenate([-2 * position[reader], -2 * position[forward.tensor_producer[tensors_to_sum]] - 1])
    number = n + inverse(np.argsort(due_order, kind="stable"))
    sums = np.full(forward.tensor_count, -1, dtype=np.int64)
    sums[tensors_to_sum] = number[len(reader) :]
    update = n + len(due_order) + np.arange(len(variable))
    total = n + len(due_order) + len(variable)
    return _Plan(
        total, tensor, reader, number[: len(reader)], offsets(reader, n), tensors_to_sum, sums, variable, update
    )


def _names_and_types(forward: OpGraph, plan: _Plan) -> tuple[list[str], list[str]]:
    """Returns the names and types of the added ops."""
    n, added_count = forward.n, plan.total - forward.n
    names, types = [""] * added_count, ["AddN"] * added_count
    number = (np.arange(len(plan.reader)) - plan.by_reader[plan.reader]).tolist()
    several = (np.diff(plan.by_reader)[plan.reader] > 1).tolist()
    for row, f, k, many in zip((plan.gradient - n).tolist(), plan.reader.tolist(), number, several, strict=True):
        names[row] = f"grad/{forward.names[f]}/{k}" if many else f"grad/{forward.names[f]}"
        types[row] = f"{forward.op_types[f]}Grad"
    for row, t in zip((plan.sum[plan.tensors_to_sum] - n).tolist(), plan.tensors_to_sum.tolist(), strict=True):
        names[row] = f"sum/{forward.tensor_label(t)}"
    for row, v in zip((plan.update - n).tolist(), plan.variable.tolist(), strict=True):
        names[row], types[row] = f"update/{forward.names[v]}", "Update"
    return names, types


def _tensors(forward: OpGraph, plan: _Plan) -> tuple[Ints, Ints, Ints, Ints]:
    """Returns producer and bytes of every tensor, and (tensor, reader) of every edge."""
    first = forward.tensor_count
    one, total_of = plan.sum[plan.tensor] < 0, first + len(plan.gradient)
    producer = np.concatenate([forward.tensor_producer, plan.gradient, plan.sum[plan.tensors_to_sum]])
    size = np.concatenate(
        [forward.tensor_bytes, forward.tensor_bytes[plan.tensor], forward.tensor_bytes[plan.tensors_to_sum]]
    )
    gradient = first + np.arange(len(plan.gradient))
    # The tensor that holds the whole gradient of each forward tensor is read by its producer's gradient ops.
    full_gradients = np.concatenate([gradient[one], total_of + np.arange(len(plan.tensors_to_sum))])
    target = forward.tensor_producer[np.concatenate([plan.tensor[one], plan.tensors_to_sum])]
    count, readers = gather(plan.by_reader, plan.gradient, target)
    update_of = np.full(forward.n, -1, dtype=np.int64)
    update_of[plan.variable] = plan.update
    is_updated = update_of[target] >= 0
    # (tensor, gradient op): the other input of ops with two inputs, the first output of ops with one.
    pointer, inputs = forward.inputs
    width = np.diff(pointer)[plan.reader]
    two = np.flatnonzero(width == 2)
    first_edge = pointer[plan.reader[two]]
    partner = np.where(
        inputs[first_edge] == plan.tensor[two],
        inputs[np.minimum(first_edge + 1, max(len(inputs) - 1, 0))],
        inputs[first_edge],
    )
    outputs = np.diff(forward.output_ptr)[plan.reader]
    single = np.flatnonzero((width == 1) & (outputs > 0))
    own_gradient = forward.output_ptr[plan.reader[single]]
    activation, user = np.concatenate([partner, own_gradient]), plan.gradient[np.concatenate([two, single])]
    tensor = np.concatenate(
        [
            forward.edge_tensor,
            gradient[~one],
            np.repeat(full_gradients, np.diff(count)),
            full_gradients[is_updated],
            activation,
        ]
    )
    reader = np.concatenate(
        [forward.consumers, plan.sum[plan.tensor[~one]], readers, update_of[target[is_updated]], user]
    )
    return producer, size, tensor, reader


def _durations(forward: OpGraph, plan: _Plan, us: NDArray[np.float64], ratio: float) -> NDArray[np.float64]:
    """Durations of the added ops."""
    added_us = np.zeros(plan.total - forward.n)
    width = np.diff(forward.inputs[0])[plan.reader]
    with np.errstate(over="ignore"):  # the graph refuses what is infinite
        added_us[plan.gradient - forward.n] = ratio * us[plan.reader] * np.minimum(1.0, 2.0 / np.maximum(width, 1))
    gradients = np.bincount(plan.tensor, minlength=forward.tensor_count)[plan.tensors_to_sum]
    added_us[plan.sum[plan.tensors_to_sum] - forward.n] = (
        (gradients + 1) * forward.tensor_bytes[plan.tensors_to_sum] / _BYTES_PER_US
    )
    added_us[plan.update - forward.n] = 3 * forward.persistent_bytes[plan.variable] / _BYTES_PER_US
    return added_us
