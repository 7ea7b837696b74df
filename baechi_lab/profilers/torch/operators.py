"""`granularity="operator"`: the graph of ATen operators of one step, forward, backward and update, with estimated costs.

Every operator of a fake run is an op, named after the layer that was running. Views are not ops; a reader of a view depends on
the op behind it. A backward op belongs to the forward op that created its autograd node (equal sequence numbers). A write in
place comes after all ops that read the overwritten value, and shares a colocation group with the op that made the tensor. All
ops that read one parameter, and its update, also share a group.

Parameters are persistent bytes of the first op that reads them. Optimizer states are persistent bytes of the update, or of that
op if there is no update. Gradients are persistent bytes of the backward op that makes them, whose reuse kind is `GROWS`. A
parameter without a gradient (frozen, under `no_grad`, detached, unused) has neither. Activations that are saved for the
backward pass are tensors that backward ops read. The outputs, which the caller holds, are temporary bytes of the backward ops
that follow their last reader.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from ...graph import CONTROL_BYTES, OpGraph
from ...graph.groups import join_groups
from ...graph.hardware import Hardware
from ...graph.opgraph import GROWS, OWN
from ...graph.tensors import TensorTable
from ...torch_runtime.intercept import Interceptor
from ...torch_runtime.storage import distinct_bytes, storage_bytes, storage_key
from ...torch_runtime.tree import Args, Kwargs, as_arguments, tensors
from ...torch_steps.records import UPDATE
from ...torch_steps.step import TorchStep
from ...torch_steps.tracing import output_shapes, trace
from ..estimate_record import estimate_record, host_record
from ..kernel_model import estimated_us
from ..precision import Precision
from ..work import Kernel, work_of
from .fake_tensors import types_of_estimate, use_fake_tensors, with_full_attention
from .layer_estimate import EstimateOptions, update_share
from .layers import LossOf, in_mode, mode_of, run_once
from .operator_counter import Counter, WorkWatch, is_model_operator
from .quantization import stored_bytes
from .unused_parameters import warn_about_unused_parameters

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch.autograd.graph import Node


@dataclass
class Operator:
    """One call: its name and type, its kernel, the forward op that it belongs to (-1: none), and the bytes of its copies.

    `is_backward` says that it runs after the forward pass.
    """

    name: str
    op_type: str
    kernel: Kernel
    forward_of: int = -1
    output_shapes: str = ""
    scratch_bytes: int = 0
    is_backward: bool = False


@dataclass
class Memory:
    """A memory block: its last writer (-1: none in the step), its readers since then, and the state that it holds."""

    writer: int = -1
    label: str = ""
    size: int = 0
    readers: set[int] = field(default_factory=set)
    state: str = ""


@dataclass(frozen=True)
class Gradient:
    """Bytes of a parameter's gradient, and the op that makes it (-1: none)."""

    size: int
    maker: int


class Recorder(Counter):
    """Records every operator, and the tensors between them."""

    def __init__(self, precision: Precision | None = None, on_cpu: bool = False) -> None:
        super().__init__(precision, on_cpu)
        self.recording, self.operators = False, 0
        self.ops: list[Operator] = []
        self.edges: dict[tuple[int, str], tuple[int, set[int]]] = {}  # (producer, label) -> bytes, readers
        self.memory: dict[int, Memory] = {}
        self.groups: list[tuple[int, ...]] = []
        self.users: dict[str, list[int]] = {}
        self.size: dict[str, int] = {}
        self.gradients: dict[str, Gradient] = {}
        self.of_node: dict[int, int] = {}  # sequence number of an autograd node -> forward op
        self.of_view: dict[int, int] = {}  # sequence number of a view's node -> the op behind the view
        self.keys: tuple[str, ...] = ()
        self.counts: dict[str, int] = {}

    def register_states(self, model: nn.Module) -> None:
        """Registers parameters and buffers by name, and gradients once the backward pass has made them."""
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            on_rank = local_tensor(tensor)
            self.memory.setdefault(storage_key(on_rank), Memory(state=name))
            self.size[name] = stored_bytes(on_rank)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(self._keep_gradient, name))

    def observe(self, func: OpOverload, args: Args, kwargs: Kwargs, out: object) -> None:
        """Records the operator while recording is on."""
        if self.recording and is_model_operator(func):
            self._record(func, args, kwargs, out)

    def record_loss(self, step: TorchStep | None) -> LossOf | None:
        """Returns the loss of a step, whose operators are recorded as those of a call after the model's."""
        if step is None:
            return None

        def loss_of(outputs: object) -> torch.Tensor:
            call = len(self.keys) - 1
            self.owner, self.is_ended = ("f", call), False
            loss = step.loss_of(outputs)
            self.owner, self.is_ended = ("b", call), True
            return loss

        return loss_of

    def _record(self, func: OpOverload, args: Args, kwargs: Kwargs, out: object) -> None:
        """Adds an op for a call of an ATen operator, and edges from the ops that wrote what it reads."""
        self.operators += 1
        kernel = self.kernel_of(func, args, kwargs, out)
        inputs = {storage_key(t): t for t in tensors((args, kwargs))}
        outputs = {storage_key(t): t for t in tensors(out)}
        node = torch._C._current_autograd_node()  # type: ignore[attr-defined]
        if kernel.metadata:
            for key in outputs.keys() - inputs.keys():
                self.memory[key] = Memory()  # allocated, not written
            behind = max((self.memory[key].writer for key in inputs if key in self.memory), default=-1)
            self._assign_node(node, behind, self.of_view)
            return
        index, kind = len(self.ops), func.overloadpacket.__name__
        if self.is_ended and node is None:  # the gradient of an output, which a loss would make
            kernel = Kernel(metadata=True)
        self._assign_node(node, index, self.of_node)
        scratch_bytes = self.scratch_bytes(func, args, out, self.precision.kernel(kernel))
        forward_op, shapes = self._forward_op(node), output_shapes(tensors(out))
        self.ops.append(Operator(self._name(kind), kind, kernel, forward_op, shapes, scratch_bytes, self.is_ended))
        for key in inputs:
            memory = self.memory.setdefault(key, Memory())
            memory.readers.add(index)
            if memory.writer >= 0:
                self._tensor(memory).add(index)
            if memory.state:
                self.users.setdefault(memory.state, []).append(index)
        written_values = outputs.keys() & inputs.keys() if func._schema.is_mutable else set()
        for key, tensor in outputs.items():
            if key in written_values:
                before = self.memory[key]
                for reader in before.readers - {index}:
                    self.edges.setdefault((reader, "control"), (CONTROL_BYTES, set()))[1].add(index)
                if before.writer >= 0:
                    self.groups.append((before.writer, index))
                # A new name for the same memory: it counts again, like a value written in place in a layer graph.
                self.memory[key] = Memory(index, f"{len(self.edges)}", before.size, set(), before.state)
                if before.size:
                    self._tensor(self.memory[key])
            elif key not in inputs:
                self.memory[key] = Memory(index, f"{len(self.edges)}", storage_bytes(tensor))
                self._tensor(self.memory[key])

    def _assign_node(self, node: Node, index: int, of: dict[int, int]) -> None:
        """Assigns the newest autograd node of the forward pass to this op, unless it belongs to another op."""
        if node is None and index >= 0:
            of.setdefault(int(torch._C._autograd._get_sequence_nr()) - 1, index)  # type: ignore[attr-defined]

    def _forward_op(self, node: Node) -> int:
        if node is None:
            return -1
        number = node._sequence_nr()
        return self.of_node.get(number, self.of_view.get(number, -1))

    def _name(self, kind: str) -> str:
        scope = "" if self.owner is None else self.keys[self.owner[1]] + ("/backward/" if self.owner[0] == "b" else "/")
        name = scope + kind
        count = self.counts[name] = self.counts.get(name, -1) + 1
        return f"{name}#{count}" if count else name

    def _tensor(self, memory: Memory) -> set[int]:
        return self.edges.setdefault((memory.writer, memory.label), (memory.size, set()))[1]

    def _keep_gradient(self, name: str, parameter: torch.Tensor) -> None:
        """Records a parameter's gradient: its bytes are persistent, and no longer an output of the op that makes it."""
        if parameter.grad is None:
            return
        gradient = local_tensor(parameter.grad)
        memory = self.memory.get(storage_key(gradient), Memory())
        edge = (memory.writer, memory.label)
        if edge in self.edges:
            self.edges[edge] = (CONTROL_BYTES, self.edges[edge][1])
        self.gradients[name] = Gradient(storage_bytes(gradient), memory.writer)


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the first rank's part of a tensor that may be divided."""
    return tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor


def profile_operators(
    model: nn.Module,
    sample_inputs: object,
    kinds: Mapping[str, Hardware],
    options: EstimateOptions,
    *,
    atomic: Collection[str | type] = (),
    step: TorchStep | None = None,
    on_cpu: bool = False,
) -> OpGraph:
    """Builds the graph of a step's ATen operators on hardware; arguments as in `bl.torch.profile`.

    `step` provides the loss and its targets.

    >>> from ...graph.hardware import by_kind
    >>> model, kinds = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), by_kind("a100")
    >>> profile_operators(model, torch.ones(2, 4), kinds, EstimateOptions("inference")).names
    ('0/addmm', '1/relu')
    """
    training, precision = mode_of(model, options.mode), options.precision
    recorder = Recorder(precision, on_cpu)
    types = types_of_estimate(precision, options.dtype, options.autocast)
    args, kwargs = as_arguments(sample_inputs, model)
    batch = (args, with_full_attention(kwargs), () if step is None else step.targets)
    with in_mode(model, training), use_fake_tensors(model, batch, observer=recorder, on_cpu=on_cpu, **types) as batch:
        args, kwargs, targets = batch
        recorder.know_quantized(model)
        model_trace = trace(model, (args, kwargs), atomic=atomic)
        recorder.keys = (*(call.key for call in model_trace.calls), "loss")
        recorder.register_states(model)
        watch = WorkWatch(model, model_trace, training, recorder)
        with Interceptor(model, model_trace.layers, watch):
            recorder.recording = True
            try:
                fake_step = None if step is None else replace(step, targets=targets)
                run_once(model, args, kwargs, training, loss=recorder.record_loss(fake_step))
            finally:
                recorder.recording = False
        batch_bytes = distinct_bytes(batch)
    warn_about_unused_parameters(model, model_trace)
    if options.optimizer is not None:
        add_updates(recorder, update_share(options.optimizer, options.states, precision))
    name = type(model).__name__.lower()
    graph = make_operator_graph(recorder, kinds, options.states, name, precision)
    return graph.replace(temp_bytes=graph.temp_bytes + batch_bytes)


def add_updates(recorder: Recorder, moved_share: int) -> None:
    """Adds an update per parameter with a gradient, which moves `moved_share` times its bytes.

    For a sparse gradient it touches only the gradient's rows.
    """
    for name, gradient in recorder.gradients.items():
        index = len(recorder.ops)
        kernel = Kernel(moved_bytes=float(gradient.size * moved_share))
        recorder.ops.append(Operator(f"{name}/update", UPDATE, kernel))
        users = recorder.users.setdefault(name, [])
        users.append(index)
        for op in {gradient.maker, *users} - {-1, index}:  # a weight is overwritten after its last read
            recorder.edges.setdefault((op, "control"), (CONTROL_BYTES, set()))[1].add(index)


def make_operator_graph(
    recorder: Recorder, kinds: Mapping[str, Hardware], states: int, name: str, precision: Precision
) -> OpGraph:
    """Builds the graph of the recorded operators."""
    ops, n, size, gradients = recorder.ops, len(recorder.ops), recorder.size, recorder.gradients
    table = TensorTable()
    for (producer, label), (nbytes, readers) in recorder.edges.items():
        table.add(producer, label, nbytes, readers)
    persistent = np.zeros(n, dtype=np.int64)
    temporary = np.array([op.scratch_bytes for op in ops], dtype=np.int64)
    reuse = np.full(n, OWN, dtype=np.int8)
    for state, users in recorder.users.items():
        persistent[users[0]] += size[state]
        if state in gradients:
            gradient, last = gradients[state], users[-1]
            persistent[gradient.maker if gradient.maker >= 0 else users[0]] += gradient.size * precision.gradient_share
            if gradient.maker >= 0 and precision.gradient_share == 1:
                reuse[gradient.maker] = GROWS
            elif gradient.maker >= 0:  # the gradient of the backward pass is added to the one that is kept
                temporary[gradient.maker] += gradient.size
            persistent[last if ops[last].op_type == UPDATE else users[0]] += size[state] * precision.state_share(states)
    for key, output_bytes in recorder.output_bytes.items():
        memory = recorder.memory.get(key, Memory())
        if memory.writer >= 0 and not memory.state:
            last_reader = max(memory.readers, default=memory.writer)
            holding = [i for i, op in enumerate(ops) if i > last_reader and op.is_backward]
            temporary[holding] += output_bytes
    unread = {memory.state for memory in recorder.memory.values()} - recorder.users.keys() - {""}
    # Unread parameters belong to the first op, as in a layer graph.
    persistent[:1] += sum(size[state] for state in unread)
    groups = join_groups(n, [*recorder.groups, *(tuple(dict.fromkeys(users)) for users in recorder.users.values())])
    colocation = np.full(n, -1, dtype=np.int32)
    for k, group in enumerate(groups):
        colocation[list(group)] = k
    kernels = [precision.kernel(op.kernel) for op in ops]
    work = work_of(n, enumerate(kernels))
    columns = {kind: estimated_us(work, hardware) for kind, hardware in kinds.items()}
    return OpGraph(
        names=tuple(op.name for op in ops),
        op_types=tuple(op.op_type for op in ops),
        duration_us=next(iter(columns.values())),
        duration_by_kind=columns,
        temp_bytes=temporary + max(hardware.workspace_bytes for hardware in kinds.values()),
        persistent_bytes=persistent,
        reuse=reuse if gradients else None,
        output_shapes=tuple(op.output_shapes for op in ops),
        **table.columns(),
        colocation=colocation,
        colocation_names=tuple(ops[group[0]].name for group in groups),
        forward_of=np.array([op.forward_of for op in ops]),
        name=name,
        info={"estimate": estimate_record(kinds, precision, kernels) | host_record(recorder.operators, kinds, columns)},
    )
