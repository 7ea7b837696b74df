"""`bl.torch.profile(..., hardware=...)`: estimates the costs of a model's layers on hardware that need not be present.

The model runs once on fake tensors (see `fake_tensors`), so that neither weights nor activations take memory. The kernel model
that all frameworks share turns FLOPs and bytes of every ATen operator (`kernels`) into time. Calls, dependencies and memory
classes come from the same tracer and interception as those of a measured profile. With an optimizer, every call with
parameters of its own gets an op that updates them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from torch import nn, zeros, zeros_like

from ...errors import UnknownNameError
from ...graph import OpGraph
from ...graph.hardware import Hardware
from ...torch_runtime.intercept import Interceptor
from ...torch_runtime.storage import distinct_bytes, tensor_bytes
from ...torch_runtime.tree import as_arguments
from ...torch_steps.lost_gradients import has_lost_graphs, hold_named_graphs
from ...torch_steps.records import Trace
from ...torch_steps.step import FAILURES, TorchStep
from ...torch_steps.tracing import trace
from ..estimate_record import estimate_record, host_record
from ..kernel_model import estimated_us
from ..precision import Precision
from ..work import Kernel, work_of
from .fake_tensors import types_of_estimate, use_fake_tensors, with_full_attention
from .layer_graph import LayerProfile, durations, layer_graph
from .layers import call_bytes, gradient_bytes, in_mode, intercept_loss, mode_of, run_once, warn_about_inner_backward
from .loss import Loss
from .named_tensors import named_tensors
from .operator_counter import Counter, PhaseCall, WorkWatch
from .optimizer_update import Update, split_into_phases
from .storages import StorageRecord
from .unused_parameters import warn_about_unused_parameters
from .update_temporaries import MakeOptimizer, optimizer_named, storages_of_update, temporaries_of

OPTIMIZERS = {
    "sgd": 0,
    **dict.fromkeys(("momentum", "adagrad", "rmsprop", "lion"), 1),
    **dict.fromkeys(("adam", "adamw", "adamax", "nadam", "radam", "adadelta", "lamb", "fused-adam", "fused-adamw"), 2),
}
"""Number of tensors of a parameter's size that an optimizer keeps as state."""
FOREACH_PASSES = {"momentum": 8, "adam": 18, "adamw": 20}
"""Tensors of a parameter's size that an update of PyTorch reads and writes, unless it is fused: it has a kernel per operation.
AdamW's are 2 to decay weights, 3 and 5 for the states, 6 for the root, its correction and epsilon, 4 for the step."""


def optimizer_states(name: str) -> int:
    """Returns the number of tensors of a parameter's size that an optimizer keeps as state.

    >>> optimizer_states("AdamW"), optimizer_states("sgd")
    (2, 0)
    """
    if str(name).lower() not in OPTIMIZERS:
        raise UnknownNameError.of("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[str(name).lower()]


def optimizer_of(step: TorchStep) -> str | None:
    """Returns the name of a step's optimizer; None if it has none, or one that does not update.

    The name of one that is not of PyTorch has its module.

    >>> from functools import partial
    >>> from torch.optim import SGD
    >>> optimizer_of(TorchStep("t", lambda: nn.Linear(4, 2), (), optimizer=partial(SGD, lr=0.1, momentum=0.9)))
    'momentum'
    """
    if step.optimizer is None:
        return None
    parameter = nn.Parameter(zeros(3, 5, device="cpu"))
    parameter.grad = zeros_like(parameter)
    try:
        optimizer = step.optimizer([parameter])
        optimizer.step()
    except FAILURES:  # one of other parameters, which `kept_states` warns of
        return None
    name, options = type(optimizer).__name__.lower(), getattr(optimizer, "defaults", {})
    module = type(optimizer).__module__
    if not f"{module}.".startswith("torch.optim."):  # Adafactor and Muon are of `torch.optim` itself
        return f"{module}.{name}"
    if name == "sgd" and options["momentum"]:
        return "momentum"
    return f"fused-{name}" if options.get("fused") else name


def update_share(name: str, states: int, precision: Precision) -> int:
    """Returns the bytes that an update moves per byte of a parameter. In mixed precision updates are fused.

    >>> update_share("adamw", 2, Precision()), update_share("fused-adamw", 2, Precision())
    (20, 7)
    """
    fused_share = precision.update_share(states)
    return fused_share if precision.is_mixed else FOREACH_PASSES.get(name.lower(), fused_share)


@dataclass(frozen=True)
class EstimateOptions:
    """Options of an estimate of single operators, as `bl.torch.profile` explains them.

    `optimizer` is its name, or None for no updates. `states` counts the tensors of a parameter's size that it keeps.
    """

    mode: str | None = None
    dtype: object = None
    autocast: object = None
    precision: Precision = field(default_factory=Precision)
    optimizer: str | None = None
    states: int = 0


@dataclass(frozen=True, eq=False)
class LayerEstimate:
    """The work of a model's calls: `layers`, whose times are 0, and the kernels of every call.

    `kernels` are ((phase, call), kernel) in the order in which they ran, with phase "f" or "b". Recomputed calls have their
    forward kernels in both phases. `precision` is that of the estimate. `updated_parameters` are the (call, bytes) of every
    parameter with a gradient, in the model's order.
    """

    layers: LayerProfile
    kernels: tuple[tuple[tuple[str, int], Kernel], ...]
    precision: Precision = field(default_factory=Precision)
    updated_parameters: tuple[tuple[int, int], ...] = ()

    @property
    def flops(self) -> float:
        """FLOPs of the matrix products of the whole step, comparable with `6ND`."""
        return sum(kernel.flops for _, kernel in self.kernels if kernel.matrix)

    def microseconds(self, hardware: Hardware) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns forward and backward times, float64[calls + 1] each; the loss is last."""
        n = len(self.layers.trace.calls) + 1  # the loss comes last
        work = work_of(2 * n, ((n * (phase == "b") + call, kernel) for (phase, call), kernel in self.kernels))
        total = estimated_us(work, hardware)
        return total[:n], total[n:]

    def graph(
        self,
        kinds: Mapping[str, Hardware],
        *,
        optimizer: str | None = None,
        states: int | None = None,
        make_optimizer: MakeOptimizer | None = None,
    ) -> OpGraph:
        """Builds the OpGraph with durations by device kind, the first being the reference.

        `optimizer` adds updates. `states` are by default those of the optimizer's name, and `make_optimizer` makes it as named.
        """
        storages: list[StorageRecord] = []
        if optimizer is None:
            states = states or 0
        else:
            states = optimizer_states(optimizer) if states is None else states
            in_loop = all(hardware.kind == "cpu" for hardware in kinds.values())
            if not self.precision.is_mixed:  # in mixed precision updates are fused
                temporaries = temporaries_of(make_optimizer or optimizer_named(optimizer), in_loop)
                storages = storages_of_update(temporaries, self.updated_parameters)
        layers_by_kind = {
            kind: self._layers_with_times(hardware, optimizer, states, storages) for kind, hardware in kinds.items()
        }
        graph = layer_graph(next(iter(layers_by_kind.values())), optimizer_states=states, precision=self.precision)
        record = estimate_record(kinds, self.precision, (kernel for _, kernel in self.kernels))
        duration_by_kind = {kind: durations(layers) for kind, layers in layers_by_kind.items()}
        record |= host_record(len(self.kernels), kinds, duration_by_kind)
        return graph.replace(
            duration_by_kind=duration_by_kind,
            temp_bytes=graph.temp_bytes + max(hardware.workspace_bytes for hardware in kinds.values()),
            info={**graph.info, "estimate": record},
        )

    def _layers_with_times(
        self, hardware: Hardware, optimizer: str | None, states: int, storages: list[StorageRecord]
    ) -> LayerProfile:
        """Returns the layers with times. An update of a sparse gradient moves only the rows that the gradient has.

        `storages` are the temporaries of the update.
        """
        forward, backward = self.microseconds(hardware)
        loss = self.layers.loss
        if loss is not None:
            loss = replace(loss, forward_us=float(forward[-1]), backward_us=float(backward[-1]))
        update = None
        if optimizer is not None:
            moved_bytes = self.layers.parameter_gradients * float(update_share(optimizer, states, self.precision))
            flops = self.layers.parameter_gradients / 2.0 * (1 + states)  # of 4 bytes: two per element and state
            rows = enumerate(Kernel(flops=f, moved_bytes=m) for f, m in zip(flops, moved_bytes, strict=True))
            state_bytes = self.layers.trained_bytes * self.precision.state_share(states)
            us = estimated_us(work_of(len(moved_bytes), rows), hardware, follows=True)
            update = Update(us, state_bytes, *split_into_phases(len(us), storages))
        return replace(self.layers, forward_us=forward[:-1], backward_us=backward[:-1], update=update, loss=loss)


def estimate_layers(
    model: nn.Module,
    sample_inputs: object,
    *,
    mode: str | None = None,
    atomic: Collection[str | type] = (),
    dtype: object = None,
    autocast: object = None,
    step: TorchStep | None = None,
    precision: Precision | str | None = None,
    on_cpu: bool = False,
) -> LayerEstimate:
    """Estimates a model's layers; arguments as in `bl.torch.profile`. `step` provides the loss and its targets. `on_cpu`: with
    the kernels of a CPU, see `use_fused_kernels`.

    >>> import torch
    >>> estimate = estimate_layers(nn.Linear(16, 4, device="meta"), torch.empty(8, 16), mode="training")
    >>> estimate.flops    # forward 2 * 8 * 16 * 4, as much for the weights' gradient; the input needs none
    2048.0
    """
    training = mode_of(model, mode)
    precision = Precision.of(precision)
    counter = Counter(precision, on_cpu)
    kinds = types_of_estimate(precision, dtype, autocast)
    args, kwargs = as_arguments(sample_inputs, model)
    batch = (args, with_full_attention(kwargs), () if step is None else step.targets)
    with in_mode(model, training), use_fake_tensors(model, batch, observer=counter, on_cpu=on_cpu, **kinds) as batch:
        args, kwargs, targets = batch
        counter.know_quantized(model)
        model_trace = trace(model, (args, kwargs), atomic=atomic)
        watch = WorkWatch(model, model_trace, training, counter)
        with Interceptor(model, model_trace.layers, watch) as interceptor:
            fake_step = None if step is None else replace(step, targets=targets)
            has_loss = run_once(model, args, kwargs, training, keep=True, loss=intercept_loss(interceptor, fake_step))
            counter.owner = None
            if has_lost_graphs(model_trace):
                tensors_by_name = named_tensors(model_trace, interceptor, lambda: model(*args, **kwargs))
                model_trace = hold_named_graphs(model_trace, tensors_by_name)
        watch.find_attribute_outputs()
        watch.read_windows(counter.changes)
        memory = watch.result()
        loss = None
        if watch.loss_of is not None and training and model_trace.results:
            loss = Loss(model_trace.results[0], 0.0, 0.0, memory[-1], watch.loss_of, distinct_bytes(targets))
        gradients, owner = gradient_bytes(model), model_trace.owner
        columns = call_bytes(model, model_trace, training, gradients)
        updated_parameters = tuple(
            (owner[name], tensor_bytes(p))
            for name, p in model.named_parameters()
            if name in gradients and name in owner
        )
    warn_about_unused_parameters(model, model_trace)
    warn_about_inner_backward(model, model_trace)
    recomputed_kernels = _recomputed_kernels(model_trace, counter.rows, watch.rows_at_save)
    zeros = np.zeros(len(model_trace.calls))
    layers = LayerProfile(
        model_trace,
        "training" if training else "inference",
        zeros,
        zeros,
        *columns,
        memory[:-1],
        name=type(model).__name__.lower(),
        loss=loss,
        batch_bytes=distinct_bytes(batch),
        outputs_named=step is not None,
        loss_returned=has_loss,
    )
    return LayerEstimate(layers, (*counter.rows, *recomputed_kernels), precision, updated_parameters)


def _recomputed_kernels(
    trace: Trace, rows: Sequence[tuple[PhaseCall, Kernel]], rows_at_save: Mapping[int, int]
) -> list[tuple[PhaseCall, Kernel]]:
    """Returns the forward kernels that the backward pass of checkpointed regions runs again.

    Non-reentrant checkpointing stops when all that its region saved is there again (`rows_at_save` as in `WorkWatch`).
    """
    stops = {
        trace.calls[call].region: row for call, row in sorted(rows_at_save.items()) if 0 <= call < len(trace.calls)
    }
    recomputed_kernels: list[tuple[PhaseCall, Kernel]] = []
    for k, ((phase, i), kernel) in enumerate(rows):
        call = trace.calls[i] if phase == "f" and i < len(trace.calls) else None
        if call is not None and (call.reentrant or k < stops.get(call.region, 0)):
            recomputed_kernels += [(("b", i), kernel)] * call.recomputed
    return recomputed_kernels
