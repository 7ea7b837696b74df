"""The record of a layer profile, and the OpGraph that is built from it, with forward, backward and update ops.

Forward op `i` is call `i`. In training, every call whose outputs have gradients gets a backward op. The backward op of `j`
sends the gradient of each value that `j` read to the backward op of the value's producer. A value that `j` saved for its
backward pass is also read by the backward op of `j`, so a simulation keeps it until then. Everything else that `j` saves is
one tensor from `j` to its backward op. Control tensors (4 bytes) order in-place writes, state shared between calls, and the
loss: every backward op of an output waits for all outputs.

If the update is part of the step, every call with trained parameters of its own has an update op. Updates run after the
whole backward pass, when an optimizer's `step` is called. Memory that the update of one call holds while others run is an
output of its op, which `name/updated` reads. That op runs after the last update that the memory outlives and before the next
one (`optimizer_update`).

Parts of one tensor are produced by ops of their own (`tensor_parts`). A tensor that the forward code names until it returns
is read by `name/named`, which waits for the last call (`named_tensors`).

What the calls of a checkpointed region save is made by companions of these calls, after the gradients of the region's outputs
(`recomputed_regions`).

If a profile has timed both halves of a backward pass, a call with parameters has a second backward op, for their gradients.
It reads what the first one reads, and no op waits for it.

If the loss of a step is known, two ops are added at the end: the loss and its backward op. The loss op reads the model's
outputs; its backward op sends gradients to the calls that produced them. Before them is the op of the targets, unless these
are small (`loss`).

Persistent memory is parameters, buffers, gradients and optimizer states (the paper's classes a and c). Every step allocates
its gradients anew: they belong to the first backward op that uses the parameters, whose reuse kind is `GROWS`. States belong
to the update op, the only one that reads them, or to the call if there are no update ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import CONTROL_BYTES, OpGraph
from ...graph.opgraph import GROWS, OWN, VIEW
from ...graph.tensors import NAMED, PARTS_TYPE, TARGETS, TensorTable
from ...torch_steps.records import UPDATE, Trace
from ..precision import Precision
from .attribute_outputs import attribute_outputs
from .graph_info import batch_entry, sparse_entry, unrepeatable_entry
from .loss import Loss, unused_name
from .memory import CallMemory
from .memory_levels import with_measured_levels
from .named_tensors import Named
from .optimizer_update import Update
from .recomputed_regions import recomputed_ops, with_recomputed_regions
from .tensor_parts import ValueTensors, value_tensors

LOSS = "Loss"
"""Type of the op that computes the loss."""
OpOfCall = dict[int, int]
"""Call -> one of its ops."""


@dataclass(frozen=True, eq=False)
class Halves:
    """Calls with separate backward ops for inputs and parameters, bool[calls], and their times, float64[calls]."""

    split: NDArray[np.bool_]
    inputs_us: NDArray[np.float64]
    weights_us: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LayerProfile:
    """Times and bytes per call of `trace`; arrays have one entry per call.

    Args:
        trace, mode: the calls, and "training" or "inference".
        forward_us, backward_us: float64 microseconds.
        parameters, outputs, parameter_gradients, upstream_gradients: int64 bytes, the paper's classes; `temporaries` and
            `backward_temporaries` are the remaining ones.
        trained_bytes: int64 bytes of the parameters that get a gradient, which is smaller where it is sparse.
        sparse_gradients: int64 bytes of the sparse ones among `parameter_gradients`.
        memory: what each call holds temporarily, and what it saves for its backward pass.
        name: of the model.
        update: what the optimizer's update takes, where it is part of the step.
        halves: times of both halves of the backward pass, where they were measured.
        loss: the costs of the loss, where the step is known.
        batch_bytes: the inputs and targets where the step is known; they wait with the first call. Otherwise they are the
            inputs, which the caller holds: temporary bytes of every op.
        outputs_named: whether the training loop has a name for the model's outputs until the step ends.
        loss_returned: whether no step is known and the model returns its loss. Other outputs are held until the backward op
            of the call that made them.
        tensors_by_name: for how long the forward holds what it made.
        info: that of the graph.
    """

    trace: Trace
    mode: str
    forward_us: NDArray[np.float64]
    backward_us: NDArray[np.float64]
    parameters: NDArray[np.int64]
    outputs: NDArray[np.int64]
    parameter_gradients: NDArray[np.int64]
    upstream_gradients: NDArray[np.int64]
    trained_bytes: NDArray[np.int64]
    sparse_gradients: NDArray[np.int64]
    memory: tuple[CallMemory, ...]
    name: str = "model"
    update: Update | None = None
    halves: Halves | None = None
    loss: Loss | None = None
    batch_bytes: int = 0
    outputs_named: bool = False
    loss_returned: bool = False
    tensors_by_name: Named = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def temporaries(self) -> NDArray[np.int64]:
        """int64[calls], class e in the forward pass."""
        return np.array([m.forward_temp for m in self.memory], dtype=np.int64)

    @property
    def backward_temporaries(self) -> NDArray[np.int64]:
        """int64[calls], class e in the backward pass."""
        return np.array([m.backward_temp for m in self.memory], dtype=np.int64)

    @property
    def permanent_bytes(self) -> NDArray[np.int64]:
        """The paper's permanent memory: a in inference, a + c + b in training."""
        return self.parameters + (self.parameter_gradients + self.outputs if self.mode == "training" else 0)

    @property
    def temporary_bytes(self) -> NDArray[np.int64]:
        """The paper's temporary memory: b + e in inference, e + d in training."""
        peak = np.maximum(self.temporaries, self.backward_temporaries)
        return peak + self.upstream_gradients if self.mode == "training" else self.outputs + self.temporaries

    def graph(self, *, optimizer_states: int | None = None) -> OpGraph:
        """Returns the OpGraph.

        `optimizer_states` counts tensors of a parameter's size that the optimizer keeps; None is as measured.
        """
        graph = layer_graph(self, optimizer_states=optimizer_states)
        return graph.replace(info={**graph.info, **self.info})


def layer_graph(
    profile: LayerProfile, *, optimizer_states: int | None = None, precision: Precision | None = None
) -> OpGraph:
    """Returns the graph of a profile; `optimizer_states` counts tensors of a parameter's size that the optimizer keeps.

    By default they take what the profile's update says. `precision` is that of an estimate.
    """
    trace, n, precision = profile.trace, len(profile.trace.calls), precision or Precision()
    backward = backward_ops(trace) if profile.mode == "training" else {}
    weights = weight_ops(profile, backward)
    backward_calls = [*backward, *weights]
    updates = _update_ops(profile, n + len(backward_calls))
    release_ops = _release_ops(profile, updates)
    values = _value_tensors(profile, n + len(backward_calls) + len(updates) + len(release_ops))
    named_ops = _named_ops(
        profile, backward, n + len(backward_calls) + len(updates) + len(release_ops) + len(values.op)
    )
    target_count = int(_has_target_op(profile))
    extra_count = len(updates) + len(release_ops) + len(values.op) + len(named_ops) + target_count
    first = n + len(backward_calls) + extra_count
    loss = {} if profile.loss is None else {first: first + 1}  # the loss -> its backward op
    forward_of = [-1] * n + backward_calls + [-1] * extra_count + [k for op in loss for k in (-1, op)]
    names, types = [c.key for c in trace.calls], [c.op_type for c in trace.calls]
    # A trailing underscore says "in place", as in the names of PyTorch's functions; `relu(x, inplace=True)` has none.
    forward_types = [f"{c.op_type}_" if c.inplace and c.op_type[-1:] != "_" else c.op_type for c in trace.calls]
    outputs = _outputs(profile, backward)
    writer = _TensorWriter(profile, values, backward, weights, outputs)
    writer.add_forward()
    writer.add_backward()
    writer.add_updates(updates, release_ops)
    for i, k in _named_values(profile, backward) if named_ops else ():
        values.add(writer.table, k, [named_ops[i]])
    if named_ops:
        # The training loop holds outputs until the step ends, other names end with the forward pass.
        held_calls = {trace.values[k].producer for k in outputs.readers}
        for i, op in named_ops.items():
            writer.table.add([*backward.values()][-1] if i in held_calls else n - 1, "control", CONTROL_BYTES, [op])
    for op, loss_backward in loss.items():
        writer.add_loss(op, loss_backward, op - 1 if target_count else None)
    companions = [pair for ops in (backward, weights, updates, release_ops, named_ops) for pair in ops.items()]
    companions += [*values.colocations(), *((0, op - 1) for op in loss if target_count)]
    colocation, groups = _groups(trace, companions, len(forward_of), profile.loss)
    temporary, persistent, reuse = writer.memory_columns(precision.gradient_share)
    while_updating, state_bytes = np.zeros(extra_count, dtype=np.int64), np.zeros(extra_count, dtype=np.int64)
    states = _state_bytes(profile, None if optimizer_states is None else precision.state_share(optimizer_states))
    if profile.update is not None:
        while_updating[: len(updates)] = profile.update.temporary[list(updates)]
        state_bytes[: len(updates)] = states[list(updates)]
        states[list(updates)] = 0
    persistent[:n] += states
    reuse_of_added_ops = np.repeat(
        [OWN, VIEW, OWN, VIEW, OWN],
        [len(updates) + len(release_ops), len(values.op), len(named_ops), target_count, 2 * len(loss)],
    )
    persistent, reuse = np.r_[persistent, state_bytes, [0] * 2 * len(loss)], np.r_[reuse, reuse_of_added_ops]
    if outputs.bytes:
        keeper = next(iter(loss.values()), outputs.first)
        persistent[keeper] += outputs.bytes
        reuse[keeper] = GROWS
    name = unused_name("loss", names)
    graph = OpGraph(
        names=(
            *names,
            *(f"{names[i]}/backward" for i in backward),
            *(f"{names[i]}/backward_weights" for i in weights),
            *(f"{names[i]}/update" for i in updates),
            *(f"{names[i]}/updated" for i in release_ops),
            *values.names(),
            *(f"{names[i]}/named" for i in named_ops),
            *[unused_name("targets", names)] * target_count,
            *([name, f"{name}/backward"] if loss else []),
        ),
        op_types=(
            *forward_types,
            *(f"{types[i]}Backward" for i in backward_calls),
            *(UPDATE for _ in (*updates, *release_ops)),
            *(PARTS_TYPE for _ in values.op),
            *(NAMED for _ in named_ops),
            *[TARGETS] * target_count,
            *([LOSS, f"{LOSS}Backward"] if loss else []),
        ),
        duration_us=durations(profile)[: len(forward_of)],
        temp_bytes=np.r_[temporary, while_updating, writer.loss_temporary(loss)],
        persistent_bytes=persistent,
        reuse=reuse,
        output_shapes=(*(c.output_shapes for c in trace.calls), *[""] * (len(forward_of) - n)),
        colocation=colocation,
        colocation_names=groups,
        forward_of=np.array(forward_of),
        name=profile.name,
        batch_readers=tuple(c.key for c in trace.calls if c.reads_batch and c.module is None),
        **writer.table.columns(),
    )
    graph = graph.replace(
        info=(unrepeatable_entry(trace) if backward else {})
        | batch_entry(trace, profile.batch_bytes if profile.outputs_named else 0)
        | sparse_entry(writer.sparse_gradients, graph.names)
    )
    # The most that the step held while each op ran, as measured.
    levels = {i: memory.level for i, memory in enumerate(profile.memory)}
    levels |= {op: profile.memory[i].backward_level for i, op in backward.items()}
    for op, loss_backward in loss.items():
        memory = profile.loss.memory  # type: ignore[union-attr]
        levels |= {op: memory.level, loss_backward: memory.backward_level}
    graph = with_measured_levels(graph, {op: level for op, level in levels.items() if level > 0})
    reentrant = {call.region for call in trace.calls if call.reentrant}
    graph = with_recomputed_regions(graph, recomputed_ops(trace, values, backward), reentrant)
    return graph.replace(temp_bytes=graph.temp_bytes + (0 if profile.outputs_named else profile.batch_bytes))


def durations(profile: LayerProfile) -> NDArray[np.float64]:
    """Returns float64[ops of the graph], the microseconds of calls, their backward ops and their updates."""
    backward = backward_ops(profile.trace) if profile.mode == "training" else {}
    updates = _update_ops(profile, 0)
    named_ops = _named_ops(profile, backward, 0)
    release_ops, values = _release_ops(profile, updates), _value_tensors(profile, len(profile.trace.calls))
    update = np.zeros(len(updates) + len(release_ops) + len(values.op) + len(named_ops) + _has_target_op(profile))
    recomputed_us = np.zeros(len(recomputed_ops(profile.trace, values, backward)))
    if profile.update is not None:
        update[: len(updates)] = profile.update.us[list(updates)]
    backward_us, calls, weights_us = profile.backward_us, np.array(list(backward), dtype=np.int64), np.zeros(0)
    if profile.halves is not None:
        backward_us = np.where(profile.halves.split, profile.halves.inputs_us, backward_us)
        weights_us = profile.halves.weights_us[np.array(list(weight_ops(profile, backward)), dtype=np.int64)]
    loss = [] if profile.loss is None else [profile.loss.forward_us, profile.loss.backward_us]
    return np.r_[profile.forward_us, backward_us[calls], weights_us, update, loss, recomputed_us]


def backward_ops(trace: Trace) -> dict[int, int]:
    """Returns call -> its backward op: the last call's comes first, after all forward ops."""
    n = len(trace.calls)
    trained_calls = [i for i in reversed(range(n)) if trace.calls[i].requires_grad]
    return {i: n + k for k, i in enumerate(trained_calls)}


def _update_ops(profile: LayerProfile, first: int) -> dict[int, int]:
    """Returns call -> the op that updates its parameters, from op `first` on, in the order of the update."""
    if profile.mode != "training" or profile.update is None:
        return {}
    return {i: first + k for k, i in enumerate(i for i in profile.update.order if profile.parameter_gradients[i])}


def _release_ops(profile: LayerProfile, updates: dict[int, int]) -> dict[int, int]:
    """Returns call -> the op that releases what its update holds while others run, after all of `updates`."""
    first = max(updates.values(), default=-1) + 1
    holding = [] if profile.update is None else [i for i in updates if profile.update.held_bytes[i] > 0]
    return {i: first + k for k, i in enumerate(holding)}


def weight_ops(profile: LayerProfile, backward: dict[int, int]) -> dict[int, int]:
    """Returns call -> the op of its parameters' gradients, if they are timed separately, after all of `backward`."""
    if profile.halves is None:
        return {}
    split = [i for i in backward if profile.halves.split[i]]
    return {i: len(profile.trace.calls) + len(backward) + k for k, i in enumerate(split)}


def _value_tensors(profile: LayerProfile, first: int) -> ValueTensors:
    """Returns how values become tensors; without a backward pass every value is separate."""
    trace = profile.trace
    read = {k for call in trace.calls for k in call.reads} | (trace.returned.keys() if profile.loss else set())
    return value_tensors(trace, sorted(read) if profile.mode == "training" else (), first)


@dataclass(frozen=True)
class _Outputs:
    """Model outputs that the training loop names: `bytes`, from the `first` backward op to the end of the step.

    They lie in `storages`, which no backward op reads in addition, or they would count twice. Outputs that another group than
    that of the loss makes stay on its device: `readers` has the backward op of the call that made each value, which reads it.
    """

    first: int = -1
    bytes: int = 0
    storages: frozenset[int] = frozenset()
    readers: Mapping[int, int] = field(default_factory=dict)


def _outputs(profile: LayerProfile, backward: dict[int, int]) -> _Outputs:
    """Finds the named outputs. An output of another group that its backward ops have saved is already counted."""
    trace = profile.trace
    if not ((profile.outputs_named or profile.loss_returned) and backward):
        return _Outputs()
    last = next(iter(backward))
    loss_call = last if profile.loss is None else profile.loss.call
    ops_with_loss = {loss_call, *(i for group in trace.groups if loss_call in group for i in group)}
    size: dict[int, int] = {}
    for value in trace.values:
        size[value.storage] = max(size.get(value.storage, 0), value.size_bytes)
    readers = _readers(profile, backward)
    saved_storages = {
        v.storage for k, v in enumerate(trace.values) if any(op >= len(trace.calls) for op in readers.get(k, ()))
    }
    storages: set[int] = set()
    own_readers: dict[int, int] = {}
    for k in {*trace.returned, *trace.held_values}:
        storage, producer = trace.values[k].storage, trace.values[k].producer
        is_kept = producer in ops_with_loss or (storage not in saved_storages and producer not in backward)
        if is_kept and profile.outputs_named:
            storages.add(storage)
        elif producer in backward:
            own_readers[k] = backward[producer]
    return _Outputs(backward[last], sum(size[storage] for storage in storages), frozenset(storages), own_readers)


def _named_ops(profile: LayerProfile, backward: dict[int, int], first: int) -> dict[int, int]:
    """Returns call -> the op that represents names of its outputs, from op `first` on, if they outlive the last reader.

    Included are outputs that the backward pass reads too, so that recomputation might drop them, and that are at least a
    hundredth of the largest output.
    """
    return {i: first + k for k, i in enumerate(sorted({i for i, _ in _named_values(profile, backward)}))}


def _named_values(profile: LayerProfile, backward: dict[int, int]) -> list[tuple[int, int]]:
    """Returns `(call, value)` of values that the forward pass holds after their last reader and until its last call.

    Outputs that the training loop names, on other devices than the loss, are among them: running their calls again frees nothing.
    """
    trace = profile.trace
    outputs = _outputs(profile, backward).readers
    if not ((profile.tensors_by_name or outputs) and backward):
        return []
    readers = _readers(profile, backward)
    last: dict[int, int] = {}  # of a storage, the last call that reads it
    saved_storages: set[int] = set()
    for k, ops in readers.items():
        storage = trace.values[k].storage
        last[storage] = max(last.get(storage, -1), *(op for op in ops if op < len(trace.calls)), -1)
        saved_storages |= {storage for op in ops if op >= len(trace.calls)}
    least, end = max((v.size_bytes for v in trace.values), default=0) / 100, len(trace.calls) - 1
    named_values: dict[tuple[int, int], tuple[int, int]] = {}
    for k, value in enumerate(trace.values):
        until = profile.tensors_by_name.get((value.producer, value.position), -1)
        if (
            until == end > last.get(value.storage, end)
            and value.size_bytes >= least
            and value.storage in saved_storages
        ):
            named_values[value.producer, value.storage] = (value.producer, k)
    for k in outputs:
        if (value := trace.values[k]).size_bytes >= least:
            named_values.setdefault((value.producer, value.storage), (value.producer, k))
    return list(named_values.values())


def _has_target_op(profile: LayerProfile) -> bool:
    largest_output = max((value.size_bytes for value in profile.trace.values), default=0)
    return profile.loss is not None and profile.loss.has_target_op(largest_output)


def _state_bytes(profile: LayerProfile, count: int | None) -> NDArray[np.int64]:
    """Returns int64[calls], the optimizer's states of each call: as measured, or `count` tensors of the parameters' size."""
    if count is not None:
        return profile.trained_bytes * count
    state_bytes: NDArray[np.int64] = (
        np.zeros_like(profile.parameters) if profile.update is None else profile.update.states
    )
    return state_bytes.copy()


def _readers(profile: LayerProfile, backward: dict[int, int]) -> dict[int, set[int]]:
    """Returns value -> forward ops that read it, and ops after which it is no longer saved, mostly backward ops."""
    trace = profile.trace
    outputs_of: dict[int, list[int]] = {}
    for k, value in enumerate(trace.values):
        if value.position >= 0:
            outputs_of.setdefault(value.producer, []).append(k)
    readers: dict[int, set[int]] = {}
    for i, call in enumerate(trace.calls):
        memory, released_by = profile.memory[i], backward.get(i, call.graph_until)
        # What is saved holds all of its memory, and other views of it that the call reads are saved as well.
        saved_storages = {trace.values[k].storage for k in call.reads if call.read_at.get(k) in memory.saves_inputs}
        for k in call.reads:
            readers.setdefault(k, set()).add(i)
            if released_by > i and trace.values[k].storage in saved_storages:
                readers[k].add(released_by)
        if released_by > i and memory.saves_outputs:
            for k in outputs_of.get(i, ()):
                readers.setdefault(k, set()).add(released_by)
    return readers


class _TensorWriter:
    """Adds the tensors between the ops of a graph; `backward` and `weights` map calls to their backward ops."""

    def __init__(
        self, profile: LayerProfile, values: ValueTensors, backward: OpOfCall, weights: OpOfCall, outputs: _Outputs
    ):
        self.profile, self.trace, self.values = profile, profile.trace, values
        self.backward, self.weights, self.outputs = backward, weights, outputs
        self.readers = _readers(profile, backward)
        storages = attribute_outputs(self.trace, profile.memory, self.readers, backward)
        self.attributes = {storage: a for storage, a in storages.items() if storage not in outputs.storages}
        self.table = TensorTable()
        self.sparse_gradients: dict[int, int] = {}  # backward op -> bytes of those that it makes

    def _backward_ops_of(self, call: int) -> list[int]:
        return [ops[call] for ops in (self.backward, self.weights) if call in ops]

    def add_forward(self) -> None:
        """Adds what forward ops make: values, saved activations, and control tensors for the order of calls."""
        readers = self.readers
        for k, ops in readers.items():
            storage = self.trace.values[k].storage
            if storage in self.outputs.storages:
                ops.difference_update(self.backward.values())
            elif storage in self.attributes:
                ops -= self.attributes[storage].backward_ops
        for k, op in self.outputs.readers.items():
            readers.setdefault(k, set()).add(op)
        halves = {self.backward[i]: op for i, op in self.weights.items()}
        for ops in readers.values():
            ops.update([halves[op] for op in ops if op in halves])
        passed_on = {v.storage for k, v in enumerate(self.trace.values) if readers.get(k)}
        for k, value in enumerate(self.trace.values):
            if readers.get(k) or (value.position >= 0 and value.storage not in passed_on):
                self.values.add(self.table, k, readers.get(k, set()))
        for i, call in enumerate(self.trace.calls):
            released_by = self._backward_ops_of(i) or [call.graph_until]
            if released_by[-1] > i and self.profile.memory[i].saved_bytes:
                self.table.add(i, "saved", self.profile.memory[i].saved_bytes, released_by)
            for earlier in call.after:
                self.table.add(earlier, "control", CONTROL_BYTES, [i])
            if i in self.backward:
                self.table.add(i, "control", CONTROL_BYTES, self._backward_ops_of(i))
        result_backward_ops = [op for o in self.trace.results for op in self._backward_ops_of(o)]
        for i in self.trace.results:
            self.table.add(i, "control", CONTROL_BYTES, result_backward_ops)

    def add_backward(self) -> None:
        """Adds the gradients of the values that calls have read."""
        for j, op in self.backward.items():
            for k in self.trace.calls[j].reads:
                value = self.trace.values[k]
                if value.requires_grad and value.producer in self.backward:
                    self.table.add(op, f"gradient:{k}", value.size_bytes, self._backward_ops_of(value.producer))

    def add_updates(self, updates: dict[int, int], release_ops: dict[int, int]) -> None:
        """Makes updates wait for the ends of the backward pass, and keeps what an update holds until its last overlap."""
        gradients = {producer for producer, label in self.table.rows if label.startswith("gradient:")}
        for op in (*self.backward.values(), *self.weights.values()) if updates else ():
            if op not in gradients:
                self.table.add(op, "control", CONTROL_BYTES, updates.values())
        order = list(updates)
        for i, op in release_ops.items():
            held_bytes, until = int(self.profile.update.held_bytes[i]), int(self.profile.update.until[i])  # type: ignore[union-attr]
            self.table.add(updates[i], "held", held_bytes, [op])
            self.table.add(updates[until], "control", CONTROL_BYTES, [op])
            following = order[order.index(until) + 1 :][:1]
            self.table.add(op, "control", CONTROL_BYTES, [updates[k] for k in following])

    def add_loss(self, op: int, loss_backward: int, targets: int | None) -> None:
        """Adds what the loss reads and saves, and the gradients that it sends. `targets` is the op of the targets."""
        loss: Loss = self.profile.loss  # type: ignore[assignment]
        memory, saved_bytes = loss.memory, loss.memory.saved_bytes
        for k, position in self.trace.returned.items():
            value = self.trace.values[k]
            is_saved = position in memory.saves_inputs and value.storage not in self.outputs.storages
            self.values.add(self.table, k, [op, loss_backward] if is_saved else [op])
            if position in loss.outputs and value.producer in self.backward:
                self.table.add(loss_backward, f"gradient:{k}", value.size_bytes, self._backward_ops_of(value.producer))
        if targets is None:
            saved_bytes += loss.saved_target_bytes
        else:
            if loss.saved_target_bytes:
                self.table.add(targets, "targets", loss.saved_target_bytes, [op, loss_backward])
            if loss.other_target_bytes:
                self.table.add(targets, "other targets", loss.other_target_bytes, [op])
        if saved_bytes:
            self.table.add(op, "saved", saved_bytes, [loss_backward])
        self.table.add(op, "control", CONTROL_BYTES, [loss_backward])

    def loss_temporary(self, loss: dict[int, int]) -> list[int]:
        """Returns the temporary bytes of the loss op and its backward op; none without a loss."""
        if self.profile.loss is None:
            return []
        (loss_backward,) = loss.values()
        memory = self.profile.loss.memory
        return [memory.forward_temp, max(0, memory.backward_peak - self._output_bytes().get(loss_backward, 0))]

    def _output_bytes(self) -> dict[int, int]:
        output_bytes: dict[int, int] = {}
        for (producer, _), (size, _) in self.table.rows.items():
            output_bytes[producer] = output_bytes.get(producer, 0) + size
        return output_bytes

    def memory_columns(self, gradient_share: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int8]]:
        """Returns temporary and persistent bytes (without states), and `OpGraph.reuse`, of calls and their backward ops.

        Temporary bytes of a backward op are its peak minus its gradients. A call that allocates nothing returns a view, or an
        input that it overwrote; a backward pass that allocates nothing passes its gradient on. With a `gradient_share` above 1,
        gradients are kept in a wider type for all steps, and those of a backward pass are temporary.
        """
        n, ops = len(self.trace.calls), len(self.trace.calls) + len(self.backward) + len(self.weights)
        persistent, reuse = np.zeros(ops, dtype=np.int64), np.full(ops, OWN, dtype=np.int8)
        persistent[:n] = self.profile.parameters
        for attribute in self.attributes.values():
            persistent[attribute.call] += attribute.size_bytes
        if self.profile.outputs_named:
            persistent[:1] += self.profile.batch_bytes
        users: dict[str, int] = {}
        for i in self.backward:
            for name in self.trace.calls[i].parameters:
                users[name] = max(users.get(name, -1), i)
        # A Function that runs calls again makes their gradients in its backward pass, which is that of its last call.
        peaks = [memory.backward_peak for memory in self.profile.memory]
        last_of = {i: max(group, key=peaks.__getitem__) for group in self.trace.groups for i in group if not peaks[i]}
        for i in np.flatnonzero(self.profile.parameter_gradients).tolist():
            user = max((users.get(name, -1) for name in self.trace.calls[i].parameters), default=-1)
            user = last_of.get(user, user)
            op = self.weights.get(user, self.backward.get(user, i))
            persistent[op] += self.profile.parameter_gradients[i] * gradient_share
            if sparse_bytes := int(self.profile.sparse_gradients[i]):
                self.sparse_gradients[op] = self.sparse_gradients.get(op, 0) + sparse_bytes
            if op != i and gradient_share == 1:
                reuse[op] = GROWS
        output_bytes, temporary = self._output_bytes(), np.zeros(ops, dtype=np.int64)
        temporary[:n] = self.profile.temporaries
        for i, call in enumerate(self.trace.calls):
            if call.output_bytes == 0 and self.profile.memory[i].saved_bytes == 0:
                reuse[i] = VIEW
        for of in (self.backward, self.weights):
            for i, op in of.items():
                memory = self.profile.memory[i]
                temporary[op] = max(
                    0,
                    memory.backward_peak - output_bytes.get(op, 0) - persistent[op] * (gradient_share == 1),
                    memory.forward_temp * (self.trace.calls[i].recomputed > 0),
                )
                if memory.backward_peak == 0 and reuse[op] == OWN and output_bytes.get(op, 0) > CONTROL_BYTES:
                    reuse[op] = VIEW
        return temporary, persistent, reuse


def _groups(
    trace: Trace, companions: list[tuple[int, int]], ops: int, loss: Loss | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Groups each call with `companions` (as `(call, op)`), with the calls of its trace group, and with the loss."""
    colocation = np.full(ops, -1, dtype=np.int32)
    names: list[str] = []
    ops_of_call: dict[int, list[int]] = {}
    for call, op in companions:
        ops_of_call.setdefault(call, []).append(op)
    alone = ops_of_call.keys() | (set() if loss is None else {loss.call})
    alone -= {m for g in trace.groups for m in g}
    groups = [*trace.groups, *((i,) for i in sorted(alone))]
    for group in sorted(groups):
        members = [*group, *(op for i in group for op in ops_of_call.get(i, ()))]
        colocation[members] = len(names)
        names.append(trace.calls[group[0]].key)
    if loss is not None:
        colocation[-2:] = colocation[loss.call]
    return colocation, tuple(names)
