"""`bl.torch.profile(..., hardware=...)`: a model's layers with estimated costs, on hardware that is not here.

The model runs once as fake tensors (see `faking`), so that neither weights nor activations take memory. FLOPs and bytes
of every ATen operator (`kernels`) become time by the roofline that all frameworks share. Calls, dependencies and memory
classes are those of a measured profile, as the same tracer and the same interception find them. With an optimizer,
every call with parameters of its own gets an op that updates them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ...errors import UnknownNameError
from ...graph import OpGraph
from ...graph.hardware import Hardware
from ...torch.runtime.intercept import Interceptor
from ...torch.runtime.storage import tensor_bytes
from ...torch.runtime.tree import as_arguments, tensors
from ...torch.step import TorchStep
from ...torch.tracing import trace
from ..roofline import Kernel, estimated_us, work_of
from .counting import Counter, WorkWatch
from .faking import faked, named_dtype, with_full_attention
from .graph import LayerProfile, Loss, durations, layer_graph
from .layers import call_bytes, gradient_bytes, in_mode, mode_of, run_once, seen
from .unread import warn_of_unread
from .updating import Update

OPTIMIZERS = {
    "sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 1, "lion": 1, "adam": 2, "adamw": 2, "adamax": 2, "nadam": 2,
    "radam": 2, "adadelta": 2, "lamb": 2,
}  # fmt: skip
"""Tensors of a parameter's size that an optimizer keeps for it."""


def optimizer_states(name: str) -> int:
    """How many tensors of a parameter's size an optimizer keeps.

    >>> optimizer_states("AdamW"), optimizer_states("sgd")
    (2, 0)
    """
    if str(name).lower() not in OPTIMIZERS:
        raise UnknownNameError.of("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[str(name).lower()]


@dataclass(frozen=True, eq=False)
class LayerEstimate:
    """What a model's calls do: `layers`, whose times are 0, and the kernels of every call forward and backward.

    `kernels` are ((phase, call), kernel) in the order in which they ran, phase "f" or "b"; calls that are recomputed
    have their forward kernels in both phases.
    """

    layers: LayerProfile
    kernels: tuple[tuple[tuple[str, int], Kernel], ...]

    @property
    def flops(self) -> float:
        """FLOPs of matrix products of the whole step, which are what is compared with `6ND`."""
        return sum(kernel.flops for _, kernel in self.kernels if kernel.matrix)

    def microseconds(self, hardware: Hardware) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """float64[calls + 1] each: forward and backward, of the loss last."""
        n = len(self.layers.trace.calls) + 1  # the loss comes last
        done = work_of(2 * n, ((n * (phase == "b") + call, kernel) for (phase, call), kernel in self.kernels))
        total = estimated_us(done, hardware)
        return total[:n], total[n:]

    def graph(self, kinds: Mapping[str, Hardware], *, optimizer: str | None = None, states: int = 0) -> OpGraph:
        """The OpGraph with durations by device kind, the first being the reference; an optimizer by name updates."""
        if optimizer is not None:
            states = optimizer_states(optimizer)
        on = {kind: self._on(hardware, None if optimizer is None else states) for kind, hardware in kinds.items()}
        graph = layer_graph(next(iter(on.values())), optimizer_states=states)
        return graph.replace(duration_by_kind={kind: durations(layers) for kind, layers in on.items()})

    def _on(self, hardware: Hardware, states: int | None) -> LayerProfile:
        """The layers with times; an update reads parameters, gradients and states and writes all but gradients.

        Where a gradient is sparse, it reads and writes the rows that the gradient has.
        """
        forward, backward = self.microseconds(hardware)
        loss = self.layers.loss
        if loss is not None:
            loss = replace(loss, forward_us=float(forward[-1]), backward_us=float(backward[-1]))
        update = None
        if states is not None:
            moved = self.layers.parameter_gradients * (3.0 + 2 * states)
            done = self.layers.parameter_gradients / 2.0 * (1 + states)  # of 4 bytes: two per element and state
            rows = enumerate(Kernel(flops=f, moved_bytes=m) for f, m in zip(done, moved, strict=True))
            update = Update.plain(estimated_us(work_of(len(moved), rows), hardware), self.layers.trained * states)
        return replace(self.layers, forward_us=forward[:-1], backward_us=backward[:-1], update=update, loss=loss)


def estimate_layers(
    model: nn.Module, sample_inputs: Any, *, mode: str | None = None, atomic: Collection[str | type] = (),
    dtype: Any = None, autocast: Any = None, step: TorchStep | None = None,
) -> LayerEstimate:  # fmt: skip
    """The numbers behind an estimated profile; parameters as in `bl.torch.profile`. `step` says the loss and its targets.

    >>> import torch
    >>> found = estimate_layers(nn.Linear(16, 4, device="meta"), torch.empty(8, 16), mode="training")
    >>> found.flops    # forward 2 * 8 * 16 * 4, as much for the weights' gradient; the input needs none
    2048.0
    """
    training = mode_of(model, mode)
    counter = Counter()
    kinds = {"dtype": named_dtype(dtype), "autocast": named_dtype(autocast, "autocast")}
    args, kwargs = as_arguments(sample_inputs, model)
    batch = (args, with_full_attention(kwargs), () if step is None else step.targets)
    with in_mode(model, training), faked(model, batch, watching=counter, **kinds) as batch:
        args, kwargs, targets = batch
        counter.know_quantized(model)
        found = trace(model, (args, kwargs), atomic=atomic)
        watch = WorkWatch(model, found, training, counter)
        interceptor = Interceptor(model, found.layers, watch).install()
        try:
            loss_of = None if step is None else replace(step, targets=targets).loss_of
            run_once(model, args, kwargs, training, keep=True, loss=seen(interceptor, loss_of))
        finally:
            interceptor.remove()
        counter.owner = None
        watch.read_spans(counter.changes)
        memory = watch.result()
        loss = None
        if watch.loss_of is not None and training and found.results:
            loss = Loss(found.results[0], 0.0, 0.0, memory[-1], watch.loss_of)
        columns = call_bytes(model, found, training, gradient_bytes(model))
    warn_of_unread(model, found)
    again = [
        (("b", call), kernel)
        for (phase, call), kernel in counter.rows
        if phase == "f" and call < len(found.calls)
        for _ in range(found.calls[call].recomputed)
    ]
    zeros = np.zeros(len(found.calls))
    parameters, outputs, gradients, upstream, trained = columns
    layers = LayerProfile(
        found,
        "training" if training else "inference",
        zeros,
        zeros,
        parameters,
        outputs,
        gradients,
        upstream,
        trained,
        memory[:-1],
        name=type(model).__name__.lower(),
        loss=loss,
        batch_bytes=0 if step is None else sum(tensor_bytes(t) for t in tensors(batch)),
        outputs_named=step is not None,
    )
    return LayerEstimate(layers, (*counter.rows, *again))
