"""What a profile measured of every call, and the OpGraph that it makes, with forward and backward ops.

Forward op `i` is call `i`. In training every call whose outputs have gradients gets a backward op; the backward op of
`j` sends the gradient of each value that `j` read to the backward op of the value's producer. A value that `j` saved
for its backward pass is also read by the backward op of `j`, so a simulation keeps it until then; what else `j`
saves is a tensor from `j` to its backward op. Control tensors (4 bytes) order in-place writes, state shared between
calls, and the loss: every backward op of an output waits for all outputs. Where the update is part of the step, every
call with trained parameters of its own has an update op, after the whole backward pass: an optimizer's `step` is called then.
What the update of a call still holds while those of others run is an output of its op. `name/updated` reads it, after the
last update during which it is there and before the next one (`updating`). Parts of one tensor are handed out by ops of their
own (`parts`). What the forward holds by a name until it returns is read by `name/named`, which waits for the last call (`names`).

Where a profile has timed the halves of backward passes apart, a call with parameters has a second backward op for their
gradients. It reads what the first one reads, and nobody waits for it.

A step whose loss is known has two more ops at the end, the loss and its backward op: where the loss is computed, it reads
what the model returns, and its backward op sends the gradients to those that made it.

Persistent memory is parameters, buffers, gradients and optimizer states (the paper's a and c). A step makes its gradients
anew: they belong to the backward op that is the first to run of those that use the parameters, which `GROWS`. States
belong to the update op, which alone reads them; without update ops to the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import CONTROL_BYTES, OpGraph
from ...graph.opgraph import GROWS, OWN, VIEW
from ...graph.tensors import TensorTable
from ...passes.named_tensors import NAMED
from ...torch.records import PARTS_TYPE, UPDATE, Trace
from .levels import with_measured_levels
from .memory import CallMemory
from .names import Named
from .parts import Values, values_of
from .updating import Update

LOSS = "Loss"
"""Type of the op that computes the loss."""


@dataclass(frozen=True, eq=False)
class Halves:
    """bool[calls], which calls have a backward op each for inputs and parameters; float64[calls], what each takes."""

    split: NDArray[np.bool_]
    inputs_us: NDArray[np.float64]
    weights_us: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Loss:
    """What computing the loss takes, forward and backward, in microseconds, and its memory.

    `call` says where it is computed, `outputs` for which tensors of the model's outputs it has gradients.
    """

    call: int
    forward_us: float
    backward_us: float
    memory: CallMemory
    outputs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LayerProfile:
    """Times and bytes per call of `trace`; arrays have one entry per call.

    `parameters`, `outputs`, `parameter_gradients`, `upstream_gradients`, `temporaries` (forward) and
    `backward_temporaries` are int64 bytes, the paper's classes a to e; `saved` holds, per call, the values it saves
    for its backward pass and the bytes of what else it saves. `trained` are int64 bytes of the parameters that get a
    gradient, which is smaller where it is sparse. `update` is what the optimizer's update takes, where it is part
    of the step. `batch_bytes` are the inputs and targets where the step is known; they wait with the first call.
    `outputs_named` says that the training loop has a name for the model's outputs until the step ends, `named` for how long the
    forward holds what it made.
    `info` is the graph's.
    """

    trace: Trace
    mode: str
    forward_us: NDArray[np.float64]
    backward_us: NDArray[np.float64]
    parameters: NDArray[np.int64]
    outputs: NDArray[np.int64]
    parameter_gradients: NDArray[np.int64]
    upstream_gradients: NDArray[np.int64]
    trained: NDArray[np.int64]
    memory: tuple[CallMemory, ...]
    name: str = "model"
    update: Update | None = None
    halves: Halves | None = None
    loss: Loss | None = None
    batch_bytes: int = 0
    outputs_named: bool = False
    named: Named = field(default_factory=dict)
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
        """The OpGraph; `optimizer_states` counts tensors of a parameter's size that the optimizer keeps, None: as measured."""
        return layer_graph(self, optimizer_states=optimizer_states).replace(info=self.info)


def layer_graph(profile: LayerProfile, *, optimizer_states: int | None = None) -> OpGraph:
    """The graph of a profile; `optimizer_states` counts tensors of a parameter's size that the optimizer keeps.

    By default they take what the profile's update says.
    """
    trace, n = profile.trace, len(profile.trace.calls)
    backward = backward_ops(trace) if profile.mode == "training" else {}
    weights = weight_ops(profile, backward)
    later = [*backward, *weights]
    updates = _update_ops(profile, n + len(later))
    released = _release_ops(profile, updates)
    values = _values(profile, n + len(later) + len(updates) + len(released))
    named = _named_ops(profile, backward, n + len(later) + len(updates) + len(released) + len(values.op))
    rest = len(updates) + len(released) + len(values.op) + len(named)
    first = n + len(later) + rest
    loss = {} if profile.loss is None else {first: first + 1}  # the loss -> its backward op
    forward_of = [-1] * n + later + [-1] * rest + [k for op in loss for k in (-1, op)]
    names, types = [c.key for c in trace.calls], [c.op_type for c in trace.calls]
    # A trailing underscore says "in place", as in the names of PyTorch's functions.
    forward_types = [f"{c.op_type}_" if c.inplace and c.module is not None else c.op_type for c in trace.calls]
    table = TensorTable()
    outputs = _outputs(profile, backward)
    _forward_tensors(table, profile, values, backward, weights, outputs)
    _backward_tensors(table, trace, backward, weights)
    _update_tensors(table, profile, backward, weights, updates, released)
    _named_tensors(table, profile, values, backward, named)
    for op, back in loss.items():
        _loss_tensors(table, profile, values, op, back, backward, weights, outputs)
    beside = (backward.items(), weights.items(), updates.items(), released.items(), values.beside(), named.items())
    colocation, groups = _groups(trace, [pair for pairs in beside for pair in pairs], len(forward_of), profile.loss)
    temporary, persistent, reuse = _bytes(profile, backward, weights, table)
    while_updating, kept = np.zeros(rest, dtype=np.int64), np.zeros(rest, dtype=np.int64)
    states = _states(profile, optimizer_states)
    if profile.update is not None:
        while_updating[: len(updates)] = profile.update.temporary[list(updates)]
        kept[: len(updates)] = states[list(updates)]
        states[list(updates)] = 0
    persistent[:n] += states
    shared = np.repeat([OWN, VIEW, OWN], [len(updates) + len(released), len(values.op), len(named) + 2 * len(loss)])
    persistent, reuse = np.r_[persistent, kept, [0] * 2 * len(loss)], np.r_[reuse, shared]
    if outputs.bytes:
        keeper = next(iter(loss.values()), outputs.first)
        persistent[keeper] += outputs.bytes
        reuse[keeper] = GROWS
    graph = OpGraph(
        names=(
            *names,
            *(f"{names[i]}/backward" for i in backward),
            *(f"{names[i]}/backward_weights" for i in weights),
            *(f"{names[i]}/update" for i in updates),
            *(f"{names[i]}/updated" for i in released),
            *values.names(),
            *(f"{names[i]}/named" for i in named),
            *_loss_names(names, loss),
        ),
        op_types=(
            *forward_types,
            *(f"{types[i]}Backward" for i in later),
            *(UPDATE for _ in (*updates, *released)),
            *(PARTS_TYPE for _ in values.op),
            *(NAMED for _ in named),
            *([LOSS, f"{LOSS}Backward"] if loss else []),
        ),
        duration_us=durations(profile),
        temp_bytes=np.r_[temporary, while_updating, _loss_temporary(profile, table, loss)],
        persistent_bytes=persistent,
        reuse=reuse if profile.mode == "training" else None,
        colocation=colocation,
        colocation_names=groups,
        forward_of=np.array(forward_of),
        name=profile.name,
        **table.columns(),
    )
    return graph if profile.mode != "training" else with_measured_levels(graph, _levels(profile, backward, loss))


def _levels(profile: LayerProfile, backward: dict[int, int], loss: dict[int, int]) -> dict[int, int]:
    """Op -> what the step was measured to hold while it ran, at most."""
    found = {i: memory.level for i, memory in enumerate(profile.memory)}
    found |= {op: profile.memory[i].backward_level for i, op in backward.items()}
    for op, back in loss.items():
        memory = profile.loss.memory  # type: ignore[union-attr]
        found |= {op: memory.level, back: memory.backward_level}
    return {op: level for op, level in found.items() if level > 0}


def durations(profile: LayerProfile) -> NDArray[np.float64]:
    """float64[ops of the graph]: microseconds of calls, their backward ops and their updates."""
    backward = backward_ops(profile.trace) if profile.mode == "training" else {}
    updates = _update_ops(profile, 0)
    named = _named_ops(profile, backward, 0)
    update = np.zeros(len(updates) + len(_release_ops(profile, updates)) + len(_values(profile, 0).op) + len(named))
    if profile.update is not None:
        update[: len(updates)] = profile.update.us[list(updates)]
    later = _backward_us(profile, list(backward), list(weight_ops(profile, backward)))
    loss = [] if profile.loss is None else [profile.loss.forward_us, profile.loss.backward_us]
    return np.r_[profile.forward_us, later, update, loss]


def backward_ops(trace: Trace) -> dict[int, int]:
    """Call -> its backward op: the last call's comes first, after all forward ops."""
    n = len(trace.calls)
    trained = [i for i in reversed(range(n)) if trace.calls[i].requires_grad]
    return {i: n + k for k, i in enumerate(trained)}


def _update_ops(profile: LayerProfile, first: int) -> dict[int, int]:
    """Call -> the op that updates its parameters, from op `first` on, in the order of the update."""
    if profile.mode != "training" or profile.update is None:
        return {}
    return {i: first + k for k, i in enumerate(i for i in profile.update.order if profile.parameter_gradients[i])}


def _release_ops(profile: LayerProfile, updates: dict[int, int]) -> dict[int, int]:
    """Call -> the op that lets go of what its update holds while others run, after all of `updates`."""
    first = max(updates.values(), default=-1) + 1
    holding = [] if profile.update is None else [i for i in updates if profile.update.held[i] > 0]
    return {i: first + k for k, i in enumerate(holding)}


def weight_ops(profile: LayerProfile, backward: dict[int, int]) -> dict[int, int]:
    """Call -> the op of its parameters' gradients, where they are timed apart; after all of `backward`."""
    if profile.halves is None:
        return {}
    split = [i for i in backward if profile.halves.split[i]]
    return {i: len(profile.trace.calls) + len(backward) + k for k, i in enumerate(split)}


def _backward_us(profile: LayerProfile, backward: list[int], weights: list[int]) -> NDArray[np.float64]:
    """What the backward ops of calls `backward` take, then the weights' ops of calls `weights`."""
    us = profile.backward_us
    if profile.halves is None:
        return us[np.array(backward, dtype=np.int64)]
    us = np.where(profile.halves.split, profile.halves.inputs_us, us)
    return np.r_[us[np.array(backward, dtype=np.int64)], profile.halves.weights_us[np.array(weights, dtype=np.int64)]]


def _values(profile: LayerProfile, first: int) -> Values:
    """How values become tensors; without a backward pass every value counts by itself."""
    trace = profile.trace
    read = {k for call in trace.calls for k in call.reads} | (trace.returned.keys() if profile.loss else set())
    return values_of(trace, sorted(read) if profile.mode == "training" else (), first)


@dataclass(frozen=True)
class _Outputs:
    """The model's outputs that the training loop has a name for: `bytes` from the `first` backward op to the end of the step.

    They lie in `storages`; no backward op reads them besides, or they would count twice.
    """

    first: int = -1
    bytes: int = 0
    storages: frozenset[int] = frozenset()


def _outputs(profile: LayerProfile, backward: dict[int, int]) -> _Outputs:
    """Outputs count beside the loss. Those of another group that its backward ops have saved are there by that."""
    trace = profile.trace
    if not (profile.outputs_named and backward):
        return _Outputs()
    last = next(iter(backward))
    home = last if profile.loss is None else profile.loss.call
    beside = {home, *(i for group in trace.groups if home in group for i in group)}
    size: dict[int, int] = {}
    for value in trace.values:
        size[value.storage] = max(size.get(value.storage, 0), value.size_bytes)
    readers = _readers(profile, backward)
    saved = {v.storage for k, v in enumerate(trace.values) if any(op >= len(trace.calls) for op in readers.get(k, ()))}
    returned = {(trace.values[k].storage, trace.values[k].producer in beside) for k in trace.returned}
    storages = frozenset(storage for storage, near in returned if near or storage not in saved)
    return _Outputs(backward[last], sum(size[storage] for storage in storages), storages)


def _forward_tensors(
    table: TensorTable, profile: LayerProfile, values: Values, backward: dict[int, int], weights: dict[int, int],
    outputs: _Outputs,
) -> None:  # fmt: skip
    trace = profile.trace
    readers = _readers(profile, backward)
    for k, ops in readers.items():
        if trace.values[k].storage in outputs.storages:
            ops.difference_update(backward.values())
    halves = {backward[i]: op for i, op in weights.items()}
    for ops in readers.values():
        ops.update([halves[op] for op in ops if op in halves])
    passed_on = {v.storage for k, v in enumerate(trace.values) if readers.get(k)}
    for k, value in enumerate(trace.values):
        if readers.get(k) or (value.position >= 0 and value.storage not in passed_on):
            values.add(table, k, readers.get(k, set()))
    for i, call in enumerate(trace.calls):
        if i in backward and profile.memory[i].saved_bytes:
            table.add(i, "saved", profile.memory[i].saved_bytes, _both(i, backward, weights))
        for earlier in call.after:
            table.add(earlier, "control", CONTROL_BYTES, [i])
        if i in backward:
            table.add(i, "control", CONTROL_BYTES, _both(i, backward, weights))
    ends = [op for o in trace.results for op in _both(o, backward, weights)]
    for i in trace.results:
        table.add(i, "control", CONTROL_BYTES, ends)


def _named_ops(profile: LayerProfile, backward: dict[int, int], first: int) -> dict[int, int]:
    """Call -> the op that stands for names of what it made, from op `first` on, where they outlive the last reader.

    Only where the backward pass reads it too, so that recomputation might drop it, and where it is no smaller than a hundredth of
    the largest output.
    """
    return {i: first + k for k, i in enumerate(sorted({i for i, _ in _named_values(profile, backward)}))}


def _named_values(profile: LayerProfile, backward: dict[int, int]) -> list[tuple[int, int]]:
    """`(call, value)` of what the forward holds after its last reader and until its last call."""
    trace = profile.trace
    if not (profile.named and backward):
        return []
    readers = _readers(profile, backward)
    last: dict[int, int] = {}  # of a storage, the last call that reads it
    saved: set[int] = set()
    for k, ops in readers.items():
        storage = trace.values[k].storage
        last[storage] = max(last.get(storage, -1), *(op for op in ops if op < len(trace.calls)), -1)
        saved |= {storage for op in ops if op >= len(trace.calls)}
    least, end = max((v.size_bytes for v in trace.values), default=0) / 100, len(trace.calls) - 1
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for k, value in enumerate(trace.values):
        until = profile.named.get((value.producer, value.position), -1)
        if until == end > last.get(value.storage, end) and value.size_bytes >= least and value.storage in saved:
            found[value.producer, value.storage] = (value.producer, k)
    return list(found.values())


def _named_tensors(
    table: TensorTable, profile: LayerProfile, values: Values, backward: dict[int, int], named: dict[int, int]
) -> None:
    for i, k in _named_values(profile, backward) if named else ():
        values.add(table, k, [named[i]])
    if named:
        table.add(len(profile.trace.calls) - 1, "control", CONTROL_BYTES, named.values())


def _loss_names(names: list[str], loss: dict[int, int]) -> list[str]:
    name = "loss"
    while name in names:
        name += "'"
    return [name, f"{name}/backward"] if loss else []


def _loss_tensors(
    table: TensorTable, profile: LayerProfile, values: Values, op: int, back: int, backward: dict[int, int],
    weights: dict[int, int], outputs: _Outputs,
) -> None:  # fmt: skip
    trace, memory = profile.trace, profile.loss.memory  # type: ignore[union-attr]
    for k, position in trace.returned.items():
        value = trace.values[k]
        kept = position in memory.saves_inputs and value.storage not in outputs.storages
        values.add(table, k, [op, back] if kept else [op])
        if position in profile.loss.outputs and value.producer in backward:  # type: ignore[union-attr]
            table.add(back, f"gradient:{k}", value.size_bytes, _both(value.producer, backward, weights))
    if memory.saved_bytes:
        table.add(op, "saved", memory.saved_bytes, [back])
    table.add(op, "control", CONTROL_BYTES, [back])


def _loss_temporary(profile: LayerProfile, table: TensorTable, loss: dict[int, int]) -> list[int]:
    if profile.loss is None:
        return []
    (back,) = loss.values()
    memory = profile.loss.memory
    return [memory.forward_temp, max(0, memory.backward_peak - _made(table).get(back, 0))]


def _made(table: TensorTable) -> dict[int, int]:
    """Op -> bytes of its outputs."""
    made: dict[int, int] = {}
    for (producer, _), (size, _) in table.rows.items():
        made[producer] = made.get(producer, 0) + size
    return made


def _states(profile: LayerProfile, count: int | None) -> NDArray[np.int64]:
    """int64[calls]: what the optimizer keeps for the parameters of each, as measured or `count` tensors of their size."""
    if count is not None:
        return profile.trained * count
    measured: NDArray[np.int64] = np.zeros_like(profile.parameters) if profile.update is None else profile.update.states
    return measured.copy()


def _bytes(
    profile: LayerProfile, backward: dict[int, int], weights: dict[int, int], table: TensorTable
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int8]]:
    """Temporary and persistent bytes, without the optimizer's, and `OpGraph.reuse` of calls and their backward ops.

    A backward op holds its peak: what is no gradient is temporary. A call that makes no memory returns a view, or what it
    was given and wrote into; a backward pass that takes none hands its gradient on.
    """
    n, ops = len(profile.trace.calls), len(profile.trace.calls) + len(backward) + len(weights)
    persistent, reuse = np.zeros(ops, dtype=np.int64), np.full(ops, OWN, dtype=np.int8)
    persistent[:n] = profile.parameters
    persistent[:1] += profile.batch_bytes if n else 0
    users: dict[str, int] = {}
    for i in backward:
        for name in profile.trace.calls[i].parameters:
            users[name] = max(users.get(name, -1), i)
    for i in np.flatnonzero(profile.parameter_gradients).tolist():
        user = max((users.get(name, -1) for name in profile.trace.calls[i].parameters), default=-1)
        op = weights.get(user, backward.get(user, i))
        persistent[op] += profile.parameter_gradients[i]
        if op != i:
            reuse[op] = GROWS
    made, temporary = _made(table), np.zeros(ops, dtype=np.int64)
    temporary[:n] = profile.temporaries
    for i, call in enumerate(profile.trace.calls):
        if call.output_bytes == 0 and profile.memory[i].saved_bytes == 0:
            reuse[i] = VIEW
    for of in (backward, weights):
        for i, op in of.items():
            memory = profile.memory[i]
            temporary[op] = max(
                0,
                memory.backward_peak - made.get(op, 0) - persistent[op],
                memory.forward_temp * (profile.trace.calls[i].recomputed > 0),
            )
            if memory.backward_peak == 0 and reuse[op] == OWN and made.get(op, 0) > CONTROL_BYTES:
                reuse[op] = VIEW
    return temporary, persistent, reuse


def _both(call: int, backward: dict[int, int], weights: dict[int, int]) -> list[int]:
    """The backward ops of a call."""
    return [ops[call] for ops in (backward, weights) if call in ops]


def _readers(profile: LayerProfile, backward: dict[int, int]) -> dict[int, set[int]]:
    """Value -> forward ops that read it and backward ops for which it is saved."""
    trace = profile.trace
    made: dict[int, list[int]] = {}
    for k, value in enumerate(trace.values):
        if value.position >= 0:
            made.setdefault(value.producer, []).append(k)
    readers: dict[int, set[int]] = {}
    for i, call in enumerate(trace.calls):
        memory = profile.memory[i]
        # What is saved holds all of its memory, and other views of it that the call reads are saved as well.
        saved = {trace.values[k].storage for k in call.reads if call.read_at.get(k) in memory.saves_inputs}
        for k in call.reads:
            readers.setdefault(k, set()).add(i)
            if i in backward and trace.values[k].storage in saved:
                readers[k].add(backward[i])
        if i in backward and memory.saves_outputs:
            for k in made.get(i, ()):
                readers.setdefault(k, set()).add(backward[i])
    return readers


def _backward_tensors(table: TensorTable, trace: Trace, backward: dict[int, int], weights: dict[int, int]) -> None:
    for j, op in backward.items():
        for k in trace.calls[j].reads:
            value = trace.values[k]
            if value.requires_grad and value.producer in backward:
                table.add(op, f"gradient:{k}", value.size_bytes, _both(value.producer, backward, weights))


def _update_tensors(
    table: TensorTable, profile: LayerProfile, backward: dict[int, int], weights: dict[int, int],
    updates: dict[int, int], released: dict[int, int],
) -> None:  # fmt: skip
    """Updates wait for the ends of the backward pass; what one holds is there until the last one that it is there for."""
    gradients = {producer for producer, label in table.rows if label.startswith("gradient:")}
    for op in (*backward.values(), *weights.values()) if updates else ():
        if op not in gradients:
            table.add(op, "control", CONTROL_BYTES, updates.values())
    order = list(updates)
    for i, op in released.items():
        held, until = int(profile.update.held[i]), int(profile.update.until[i])  # type: ignore[union-attr]
        table.add(updates[i], "held", held, [op])
        table.add(updates[until], "control", CONTROL_BYTES, [op])
        following = order[order.index(until) + 1 :][:1]
        table.add(op, "control", CONTROL_BYTES, [updates[k] for k in following])


def _groups(
    trace: Trace, beside: list[tuple[int, int]], ops: int, loss: Loss | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """A call shares a device with the ops that lie `beside` it, as `(call, op)`; so do the calls of one group of the trace,
    and the loss."""
    colocation = np.full(ops, -1, dtype=np.int32)
    names: list[str] = []
    own: dict[int, list[int]] = {}
    for call, op in beside:
        own.setdefault(call, []).append(op)
    alone = own.keys() | (set() if loss is None else {loss.call})
    alone -= {m for g in trace.groups for m in g}
    grouped = [*trace.groups, *((i,) for i in sorted(alone))]
    for group in sorted(grouped):
        members = [*group, *(op for i in group for op in own.get(i, ()))]
        colocation[members] = len(names)
        names.append(trace.calls[group[0]].key)
    if loss is not None:
        colocation[-2:] = colocation[loss.call]
    return colocation, tuple(names)
