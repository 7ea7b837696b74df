"""Layer profile of a PyTorch model: forward and backward times, and memory by the paper's classes.

Idea: the calls of a trace run again under the same interception. Forward times are taken around each call with the device
synchronised. Backward times are taken by hooks on the autograd nodes of the call, because module-level backward hooks would
forbid in-place layers. Times are averaged over `runs` after `warmup`. One more run measures memory: what a call saves for its
backward pass (`saved_tensors_hooks`), and the peak of its allocations beyond what remains (the allocator's events on the CPU,
its peak counter on CUDA).

Checkpointed regions, reentrant or not, run without checkpointing, so that every call has autograd nodes of its own. A backward
op within a region also takes its forward time, because it recomputes what was dropped (once per level of nested regions).
The graph drops what they save, and holds it again from the region's first backward op on (`recomputed_regions`). The time of
a custom autograd Function's nodes is divided evenly among the calls in its forward, which have no other nodes.

Source: Shetty 2022, section 1.3.1. Deviations: backward times are measured, while the paper annotates only forward times; saved
activations belong to the call that saves them; non-reentrant checkpointing stops early within the last call that saves
something, which counts in full unless it saves only its inputs.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...checks import check_flag, check_whole
from ...errors import InvalidInput, RandomLayers, UncountedWork, in_short
from ...internal_warnings import outer_stacklevel
from ...torch_runtime.context import in_backward, in_training_modes, kept_activations
from ...torch_runtime.intercept import Frame, Handler, Interceptor
from ...torch_runtime.launch import move
from ...torch_runtime.sequence import inputs_of, nodes_between
from ...torch_runtime.storage import distinct_bytes, storage_bytes, storage_key, tensor_bytes
from ...torch_runtime.tree import Args, Function, Kwargs, as_arguments, map_tensors, tensors
from ...torch_steps.devices import device_name
from ...torch_steps.lost_gradients import has_lost_graphs, hold_named_graphs
from ...torch_steps.pinned_calls import plainly, recomputes
from ...torch_steps.records import Trace
from ...torch_steps.snapshot import ModelSnapshot
from ...torch_steps.step import TorchStep
from ...torch_steps.tracing import check_model, draw_as_traced, trace
from ..machine_load import OtherPrograms, summarize_repeats, warn_if_disturbed
from .backward_halves import HalvesTimer
from .layer_graph import Halves, LayerProfile
from .loss import Loss
from .memory import LOSS_KEY, measure_memory, recomputations
from .named_tensors import named_tensors
from .optimizer_update import measure_update
from .quantization import stored_bytes

if TYPE_CHECKING:
    from torch.autograd.graph import Node

LossOf = Callable[[Any], torch.Tensor]

MODES = ("training", "inference")


def profile_layers(
    model: nn.Module,
    sample_inputs: object,
    *,
    mode: str | None = None,
    warmup: int = 2,
    runs: int = 5,
    atomic: Collection[str | type] = (),
    traced: Trace | None = None,
    device: str | None = None,
    split_backward: bool = False,
    accumulate: bool = False,
    step: TorchStep | None = None,
) -> LayerProfile:
    """Measures a model's layers; arguments as in `profile`. `step` provides the loss, its targets and the optimizer."""
    training = mode_of(model, mode)
    check_whole("warmup", warmup, 0)
    check_whole("runs", runs)
    check_flag("split_backward", split_backward)
    check_flag("accumulate", accumulate)
    device = None if device is None else device_name("device", device)
    other_programs = OtherPrograms(time.process_time)  # covers the whole time, because the system's clocks are coarse
    args, kwargs = as_arguments(sample_inputs, model)
    if device is not None:
        args, kwargs = map_tensors((args, kwargs), lambda t: t.to(device))
        step = None if step is None else step.on(device)
    with in_mode(model, training), on_device(model, device):
        model_trace = traced or trace(model, (args, kwargs), atomic=atomic)
        warn_about_inner_backward(model, model_trace)
        unread = [name for name, _ in model.named_parameters() if name not in model_trace.owner]
        if model_trace.random_choices and unread:
            warnings.warn(
                f"{type(model).__name__} draws which of its layers run (it reads a random number at "
                f"{model_trace.random_choices[0]!r}), and the profiled pass skipped that of {unread[0]!r}: another pass may "
                "need more time and memory; profile the model with a layer drop of 0",
                RandomLayers,
                stacklevel=outer_stacklevel(),
            )
        timer, halves = Timer(model_trace, training), HalvesTimer(model_trace, now_us)

        def run_traced_calls(loss: LossOf | None = None, *, keep: bool) -> bool:
            draw_as_traced()
            return run_once(model, args, kwargs, training, keep=keep, loss=loss)

        def run_forward() -> None:
            draw_as_traced()
            model(*args, **kwargs)

        with ModelSnapshot(model, (args, kwargs)), Interceptor(model, model_trace.layers, timer) as interceptor:
            for k in range(warmup + runs):
                timer.measuring = k >= warmup
                loss = intercept_loss(interceptor, step)
                has_loss = run_traced_calls(loss, keep=accumulate)
                timer.end_run()
            memory = measure_memory(
                model_trace,
                interceptor,
                lambda: run_traced_calls(intercept_loss(interceptor, step), keep=True),
                training,
            )
            tensors_by_name = {}
            if has_loss or has_lost_graphs(model_trace):
                tensors_by_name = named_tensors(model_trace, interceptor, run_forward)
                model_trace = hold_named_graphs(model_trace, tensors_by_name)
            gradients = gradient_bytes(model)
            update = None
            if step is not None and step.optimizer is not None and training:
                update = measure_update(model, model_trace, step.optimizer, runs, now_us)
            for parameter in model.parameters():
                parameter.grad = None
            if split_backward and training:
                interceptor.handler = halves
                for k in range(warmup + runs):
                    halves.measuring = k >= warmup
                    run_traced_calls(keep=False)
    recomputed_us = timer.forward[:-1] / runs * recomputations(model_trace, memory)
    forward, backward = timer.forward[:-1] / runs, timer.backward[:-1] / runs
    added_us = timer.added[:-1] / runs if accumulate else np.zeros(len(model_trace.calls))
    name, calls = type(model).__name__.lower(), [call.key for call in model_trace.calls]
    op_names = [*calls, *(f"{key}/backward" for key in calls)]
    repeats_summary = summarize_repeats(op_names, timer.run_us(), other_programs.share(), torch.get_num_threads())
    warn_if_disturbed(name, repeats_summary)
    loss_costs, half_times = None, None
    if step is not None and training and model_trace.results and timer.loss_of is not None:
        us = timer.forward[-1] / runs, timer.backward[-1] / runs
        loss_costs = Loss(model_trace.results[0], *us, memory[-1], timer.loss_of, distinct_bytes(step.targets))
    if halves.split.any():
        inputs_us = halves.inputs_us / runs + np.where(halves.split, recomputed_us, 0.0)
        half_times = Halves(halves.split, inputs_us, halves.weights_us / runs + added_us)
    return LayerProfile(
        model_trace,
        "training" if training else "inference",
        forward,
        backward + recomputed_us + added_us,
        *call_bytes(model, model_trace, training, gradients),
        memory[:-1],
        name=name,
        update=update,
        halves=half_times,
        loss=loss_costs,
        batch_bytes=distinct_bytes((args, kwargs) if step is None else (step.inputs, step.targets)),
        outputs_named=step is not None,
        loss_returned=has_loss,
        tensors_by_name=tensors_by_name if has_loss else {},
        info={"measured": repeats_summary},
    )


class Timer(Handler):
    """The handler that times calls and their autograd nodes, in microseconds summed over runs."""

    def __init__(self, model_trace: Trace, training: bool):
        self.index, self.training = {**model_trace.index, LOSS_KEY: len(model_trace.calls)}, training
        self.forward, self.backward, self.added = np.zeros((3, len(model_trace.calls) + 1))  # the loss comes last
        """`added` is the time of adding to the gradients of parameters."""
        self.loss_of: tuple[int, ...] | None = None
        """Positions of the outputs that the loss has gradients for; None if the loss is one of them."""
        self.measuring = False
        self.called: list[int] = []  # calls of the running Function
        self._totals: list[NDArray[np.float64]] = [np.zeros(2 * len(model_trace.calls))]

    def end_run(self) -> None:
        """Stores the totals at the end of a measured run."""
        if self.measuring:
            self._totals.append(np.r_[self.forward[:-1], self.backward[:-1]])

    def run_us(self) -> NDArray[np.float64]:
        """Returns float64[runs, 2 * calls], the time of the calls in each measured run, forward and then backward."""
        return np.diff(np.array(self._totals), axis=0)

    def begin(self, frame: Frame, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        self.called = []
        return args, kwargs

    def call(
        self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None
    ) -> object:
        op = self.index.get(key, -1)
        with kept_activations():
            if op < 0 or not self.measuring or in_backward():
                return run(*args, **kwargs)
            stop = inputs_of((args, kwargs))
            start = now_us()
            outputs = run(*args, **kwargs)
            self.forward[op] += now_us() - start
        if key == LOSS_KEY:
            self.loss_of = find_loss_outputs(list(tensors(args)), outputs)
        self.called.append(op)
        if self.training:
            nodes = nodes_between((outputs, args, kwargs), stop)  # what a call writes in place has new nodes
            for node in nodes:
                self._hook(node, [op])
            for leaf in {
                into for node in nodes for into, _ in node.next_functions if type(into).__name__ == "AccumulateGrad"
            }:
                self._hook(leaf, [op], self.added)
        return outputs

    def region(self, frame: Frame, region_kind: str | type, run: Function, args: Args, kwargs: Kwargs) -> object:
        """Runs a checkpointed region without checkpointing; nodes of another Function belong to the calls in it."""
        if recomputes(region_kind, args):
            return plainly(run, args, kwargs)
        with kept_activations():
            if isinstance(region_kind, str) or not self.measuring or in_backward():
                return run(*args, **kwargs)
            outer, self.called = self.called, []
            stop = inputs_of((args, kwargs))
            try:
                outputs = run(*args, **kwargs)
            finally:
                calls, self.called = self.called, outer + self.called
        if self.training and calls:
            for node in nodes_between(outputs, stop):
                self._hook(node, calls)
        return outputs

    def _hook(self, node: Node, calls: list[int], column: NDArray[np.float64] | None = None) -> None:
        """Times a node and adds equal shares to `calls` in `column`, by default `backward`."""
        start_seconds = [0.0]
        column = self.backward if column is None else column

        def before(gradients: object) -> None:
            start_seconds[0] = now_us()

        def after(into: object, outof: object) -> None:
            column[calls] += (now_us() - start_seconds[0]) / len(calls)

        node.register_prehook(before)
        node.register_hook(after)


def find_loss_outputs(outputs: list[torch.Tensor], loss: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the positions of outputs that get gradients from a loss; None if the loss is one of them."""
    if storage_key(loss) in {storage_key(t) for t in outputs}:
        return None
    behind = {into for node in nodes_between(loss, inputs_of(outputs)) for into, _ in node.next_functions}
    return tuple(k for k, t in enumerate(outputs) if t.requires_grad and t.grad_fn in behind)


def now_us() -> float:
    """Returns the host clock in microseconds, after everything submitted to CUDA has ended."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter_ns() / 1e3


def intercept_loss(interceptor: Interceptor, step: TorchStep | None) -> LossOf | None:
    """Wraps the loss of a step as a call that the handler sees, with its targets."""
    if step is None:
        return None

    def loss_of(outputs: object, targets: object) -> torch.Tensor:
        return step.loss_of(outputs)

    return lambda outputs: interceptor.handler.call(
        Frame(), LOSS_KEY, loss_of, (outputs,), {"targets": step.targets}, None
    )


def run_once(
    model: nn.Module, args: Args, kwargs: Kwargs, training: bool, *, keep: bool = False, loss: LossOf | None = None
) -> bool:
    """Runs a forward pass, and in training a backward pass from the loss or from all outputs that have gradients.

    A model that computes its own loss returns it under the key `loss`, as those of Hugging Face do. `loss` computes it from
    the outputs. In both cases the outputs have a name until the backward pass ends, as in `TorchStep.run`, and True is
    returned. `keep` keeps the gradients.
    """
    if not training:
        with torch.no_grad():
            model(*args, **kwargs)
        return False
    outputs = model(*args, **kwargs)
    own_loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
    has_loss = loss is not None or own_loss is not None
    if loss is not None:
        own_loss = loss(outputs)
    roots = [t for t in tensors(outputs if own_loss is None else own_loss) if t.requires_grad]
    if not has_loss:
        del outputs
    torch.autograd.backward(roots, [t.detach().clone() if t.is_sparse else torch.ones_like(t) for t in roots])
    if not keep:
        for parameter in model.parameters():
            parameter.grad = None
    return has_loss


@contextmanager
def on_device(model: nn.Module, device: str | None) -> Iterator[None]:
    """Moves the model to another device, and back afterwards."""
    before = {name: t.device for name, t in (*model.named_parameters(), *model.named_buffers())}
    if device is not None:
        move(model, dict.fromkeys(before, torch.device(device)))
    try:
        yield
    finally:
        if device is not None:
            move(model, before)


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Puts the model into `train()` or `eval()`, and restores every module afterwards."""
    with in_training_modes([(module, module.training) for module in model.modules()]):
        if model.training != training:
            model.train(training)
        yield


def warn_about_inner_backward(model: nn.Module, model_trace: Trace) -> None:
    """Warns of a model whose code calls `backward` in its forward pass.

    Warns:
        UncountedWork: the time of that backward pass is that of no op.
    """
    if model_trace.differentiates:
        warnings.warn(
            f"{type(model).__name__} calls backward in its forward pass, as for a second optimizer; what that takes is not in "
            "the profile, which is too short",
            UncountedWork,
            stacklevel=outer_stacklevel(),
        )


def mode_of(model: nn.Module, mode: str | None) -> bool:
    """Whether to run in training: by `mode`, else as the model is. Rejects objects that are not models."""
    check_model(model)
    if mode is None:
        return bool(model.training)
    if not isinstance(mode, str) or mode not in MODES:
        is_way_to_profile = isinstance(mode, str) and mode in ("estimated", "measured")
        hint = " (what is estimated says hardware=)" if is_way_to_profile else ""
        raise InvalidInput(f"mode is {in_short(mode)}; it must be one of {', '.join(MODES)}{hint}")
    return mode == "training"


class GradientBytes(NamedTuple):
    """Bytes of a parameter's gradient, and whether it is sparse."""

    size_bytes: int
    is_sparse: bool


def gradient_bytes(model: nn.Module) -> dict[str, GradientBytes]:
    """Returns parameter -> its current gradient, for parameters that have one."""
    return {
        name: GradientBytes(storage_bytes(p.grad), p.grad.is_sparse)
        for name, p in model.named_parameters()
        if p.grad is not None
    }


class CallBytes(NamedTuple):
    """The bytes of every call's tensors, int64[calls] each, named and in order as the fields of `LayerProfile`.

    Shared parameters and buffers belong to the first call that uses them, unused ones to the first call.
    """

    parameters: NDArray[np.int64]
    outputs: NDArray[np.int64]
    parameter_gradients: NDArray[np.int64]
    upstream_gradients: NDArray[np.int64]
    trained_bytes: NDArray[np.int64]
    sparse_gradients: NDArray[np.int64]


def call_bytes(
    model: nn.Module, model_trace: Trace, training: bool, gradients: Mapping[str, GradientBytes]
) -> CallBytes:
    """Returns the bytes of every call's tensors.

    `gradients` are those that a backward pass made, by parameter. Parameters that do not reach the loss have none.
    """
    parameters = dict(model.named_parameters())
    size = {name: stored_bytes(t) for name, t in (*parameters.items(), *model.named_buffers())}
    visited: set[str] = set()
    columns = CallBytes(*np.zeros((len(CallBytes._fields), len(model_trace.calls)), dtype=np.int64))
    used = {name for call in model_trace.calls for name in (*call.parameters, *call.buffers)}
    if model_trace.calls:
        columns.parameters[0] = sum(size[name] for name in size.keys() - used)
    for i, call in enumerate(model_trace.calls):
        first_used = {*call.parameters, *call.buffers} - visited
        visited |= first_used
        columns.parameters[i] += sum(size[name] for name in first_used)
        columns.outputs[i] = call.output_bytes
        if training:
            call_gradients = [gradients[name] for name in first_used & gradients.keys()]
            columns.parameter_gradients[i] = sum(gradient.size_bytes for gradient in call_gradients)
            columns.sparse_gradients[i] = sum(gradient.size_bytes for gradient in call_gradients if gradient.is_sparse)
            columns.upstream_gradients[i] = call.output_bytes if call.requires_grad else 0
            columns.trained_bytes[i] = sum(tensor_bytes(parameters[name]) for name in first_used & gradients.keys())
    return columns
