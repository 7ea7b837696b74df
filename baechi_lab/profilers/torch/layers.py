"""Layer profile of a PyTorch model: forward and backward times, and memory by the paper's classes.

Idea: the calls of a trace are run again under the same interception. Forward times are taken around each call, with the
device synchronised; backward times by hooks on the autograd nodes that the call made (module-level backward hooks
would forbid in-place layers). Times are averaged over `runs` after `warmup`. One further run measures memory: what a
call saves for its backward pass (`saved_tensors_hooks`), and the peak of what it allocates beyond what it keeps
(the allocator's events on the CPU, its peak counter on CUDA).

Checkpointed regions, reentrant or not, run here as if they were not checkpointed, so that every call has autograd nodes
of its own; a backward op within one takes its forward time once more, since it computes again what was dropped (within
regions in each other, once for each). Bytes that are saved there count as in a plain model, which is what the region
holds when its backward pass begins. The time of a custom autograd Function's nodes is shared evenly by the calls in its
forward, which have no others.

Source: paper P, section 1.3.1. Deviations: backward times are measured, where the paper annotates forward times only;
saved activations are attributed to the call that saves them; where non-reentrant checkpointing stops early, the calls
behind the last tensor that a region needs are counted as recomputed all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...errors import InvalidInput
from ...torch.pinned_calls import plainly, recomputes
from ...torch.records import Trace
from ...torch.runtime.context import in_backward, kept_activations
from ...torch.runtime.intercept import Frame, Handler, Interceptor
from ...torch.runtime.launch import move
from ...torch.runtime.sequence import inputs_of, nodes_between
from ...torch.runtime.storage import storage_bytes, storage_key, tensor_bytes
from ...torch.runtime.tree import as_arguments, map_tensors, tensors
from ...torch.snapshot import ModelSnapshot
from ...torch.tracing import check_model, trace
from ..machine_load import Others, repeats, warn_if_disturbed
from .graph import Halves, LayerProfile, Loss
from .halves import HalvesTimer
from .memory import LOSS_KEY, CallMemory, measure_memory
from .names import named_tensors
from .quantization import stored_bytes
from .updating import MakeOptimizer, measure_update

LossOf = Callable[[Any], torch.Tensor]

MODES = ("training", "inference")


def profile_layers(
    model: nn.Module, sample_inputs: Any, *, mode: str | None = None, warmup: int = 2, runs: int = 5,
    atomic: Collection[str | type] = (), traced: Trace | None = None, device: str | None = None,
    split_backward: bool = False, accumulate: bool = False, loss: LossOf | None = None,
    batch: Any = None, make: MakeOptimizer | None = None,
) -> LayerProfile:  # fmt: skip
    """The numbers behind `profile`, per layer; parameters as there. `loss` makes a loss of the model's outputs,
    `batch` is all that the step is given, `make` makes the optimizer of its update."""
    training = mode_of(model, mode)
    if warmup < 0 or runs < 1:
        raise InvalidInput(f"warmup is {warmup} and runs is {runs}; warmup must be at least 0 and runs at least 1")
    others = Others(time.process_time)  # the whole time counts, since the system's clocks are coarse
    args, kwargs = as_arguments(sample_inputs, model)
    if device is not None:
        args, kwargs = map_tensors((args, kwargs), lambda t: t.to(device))
    with in_mode(model, training), on_device(model, device):
        found = traced or trace(model, (args, kwargs), atomic=atomic)
        timer, halves = Timer(found, training), HalvesTimer(found, now_us)
        with ModelSnapshot(model, (args, kwargs)):
            interceptor = Interceptor(model, found.layers, timer).install()
            try:
                for k in range(warmup + runs):
                    timer.measuring = k >= warmup
                    run_once(model, args, kwargs, training, keep=accumulate, loss=seen(interceptor, loss))
                    timer.end_run()
                memory = measure_memory(
                    found,
                    interceptor,
                    lambda: run_once(model, args, kwargs, training, keep=True, loss=seen(interceptor, loss)),
                    training,
                )
                named = {}
                if loss is not None and training:
                    named = named_tensors(found, interceptor, lambda: model(*args, **kwargs))
                gradients = gradient_bytes(model)
                update = None
                if make is not None and training:
                    update = measure_update(model, found, make, runs, now_us)
                for parameter in model.parameters():
                    parameter.grad = None
                if split_backward and training:
                    interceptor.handler = halves
                    for k in range(warmup + runs):
                        halves.measuring = k >= warmup
                        run_once(model, args, kwargs, training)
            finally:
                interceptor.remove()
    again = np.array([call.recomputed for call in found.calls], dtype=np.int64)
    forward, backward = timer.forward[:-1] / runs, timer.backward[:-1] / runs
    added = timer.added[:-1] / runs if accumulate else np.zeros(len(found.calls))
    made = _profile(model, found, training, forward, backward + forward * again + added, memory[:-1], gradients)
    calls = [call.key for call in found.calls]
    names = [*calls, *(f"{key}/backward" for key in calls)]
    measured = repeats(names, timer.run_us(), others.share(), torch.get_num_threads())
    warn_if_disturbed(made.name, measured)
    made = replace(made, update=update, info={"measured": measured})
    if batch is not None:
        made = replace(made, batch_bytes=sum(tensor_bytes(t) for t in tensors(batch)))
    made = replace(made, outputs_named=loss is not None, named=named)
    if loss is not None and training and found.results and timer.loss_of is not None:
        us = timer.forward[-1] / runs, timer.backward[-1] / runs
        made = replace(made, loss=Loss(found.results[0], *us, memory[-1], timer.loss_of))
    if not halves.split.any():
        return made
    inputs_us = halves.inputs_us / runs + np.where(halves.split, forward * again, 0.0)
    return replace(made, halves=Halves(halves.split, inputs_us, halves.weights_us / runs + added))


class Timer(Handler):
    """The handler that times calls and their autograd nodes, in microseconds summed over runs."""

    def __init__(self, traced: Trace, training: bool):
        self.index, self.training = {**traced.index, LOSS_KEY: len(traced.calls)}, training
        self.forward, self.backward, self.added = np.zeros((3, len(traced.calls) + 1))  # the loss comes last
        """`added` is what adding to the gradients of parameters takes."""
        self.loss_of: tuple[int, ...] | None = None
        """Positions of the outputs that the loss has gradients for; None where it is one of them."""
        self.measuring = False
        self.called: list[int] = []  # calls of the Function that is running
        self._totals: list[NDArray[np.float64]] = [np.zeros(2 * len(traced.calls))]

    def end_run(self) -> None:
        """Remember what has been added up when a measured run has ended."""
        if self.measuring:
            self._totals.append(np.r_[self.forward[:-1], self.backward[:-1]])

    def run_us(self) -> NDArray[np.float64]:
        """float64[runs, 2 * calls], what the calls took in each measured run, forward and then backward."""
        return np.diff(np.array(self._totals), axis=0)

    def begin(self, frame: Frame, args: Any, kwargs: Any) -> tuple[Any, Any]:
        self.called = []
        return args, kwargs

    def call(
        self, frame: Frame, key: str, run: Callable[..., Any], args: Any, kwargs: Any, module: nn.Module | None
    ) -> Any:
        op = self.index.get(key, -1)
        with kept_activations():
            if op < 0 or not self.measuring or in_backward():
                return run(*args, **kwargs)
            stop = inputs_of((args, kwargs))
            start = now_us()
            outputs = run(*args, **kwargs)
            self.forward[op] += now_us() - start
        if key == LOSS_KEY:
            self.loss_of = reached(list(tensors(args)), outputs)
        self.called.append(op)
        if self.training:
            nodes = nodes_between(outputs, stop)
            for node in nodes:
                self._hook(node, [op])
            for leaf in {into for node in nodes for into, _ in node.next_functions if _adds(into)}:
                self._hook(leaf, [op], self.added)
        return outputs

    def region(self, frame: Frame, what: str | type, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A checkpointed region runs plainly; the nodes of another Function belong to the calls in it."""
        if recomputes(what, args):
            return plainly(run, args, kwargs)
        with kept_activations():
            if isinstance(what, str) or not self.measuring or in_backward():
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

    def _hook(self, node: Any, calls: list[int], column: NDArray[np.float64] | None = None) -> None:
        """Time a node, in equal parts for `calls`, in `backward` or another column."""
        started = [0.0]
        column = self.backward if column is None else column

        def before(gradients: Any) -> None:
            started[0] = now_us()

        def after(into: Any, outof: Any) -> None:
            column[calls] += (now_us() - started[0]) / len(calls)

        node.register_prehook(before)
        node.register_hook(after)


def reached(given: list[torch.Tensor], loss: torch.Tensor) -> tuple[int, ...] | None:
    """Positions of the outputs that a loss has gradients for; None where it is one of them."""
    if storage_key(loss) in {storage_key(t) for t in given}:
        return None
    behind = {into for node in nodes_between(loss, inputs_of(given)) for into, _ in node.next_functions}
    return tuple(k for k, t in enumerate(given) if t.requires_grad and t.grad_fn in behind)


def _adds(node: Any) -> bool:
    return type(node).__name__ == "AccumulateGrad"


def now_us() -> float:
    """Host clock in microseconds, after everything submitted to CUDA has ended."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter_ns() / 1e3


def seen(interceptor: Interceptor, loss: LossOf | None) -> LossOf | None:
    """The loss as a call that the handler sees."""
    if loss is None:
        return None
    return lambda outputs: interceptor.handler.call(Frame(), LOSS_KEY, loss, (outputs,), {}, None)


def run_once(
    model: nn.Module, args: Any, kwargs: Any, training: bool, *, keep: bool = False, loss: LossOf | None = None
) -> None:
    """A forward pass, and in training a backward pass from the loss, or all outputs that have gradients.

    A model that makes its own loss returns it under that name, as those of Hugging Face do. `loss` computes it of the
    outputs, which have a name until the backward pass is over, as in `TorchStep.run`. `keep` leaves the gradients.
    """
    if not training:
        with torch.no_grad():
            model(*args, **kwargs)
        return
    outputs = model(*args, **kwargs)
    if loss is None:
        own = outputs.get("loss") if isinstance(outputs, Mapping) else None
        ends = [t for t in tensors(outputs if own is None else own) if t.requires_grad]
        del outputs, own
    else:
        ends = [t for t in [loss(outputs)] if t.requires_grad]
    torch.autograd.backward(ends, [torch.ones_like(t) for t in ends])
    if not keep:
        for parameter in model.parameters():
            parameter.grad = None


@contextmanager
def on_device(model: nn.Module, device: str | None) -> Iterator[None]:
    """The model on another device, and back where it was afterwards."""
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
    """The model in `train()` or `eval()`, every module put back afterwards."""
    before = {m: m.training for m in model.modules()}
    if model.training != training:
        model.train(training)
    try:
        yield
    finally:
        for module, value in before.items():
            module.training = value


def mode_of(model: nn.Module, mode: str | None) -> bool:
    """Whether to run in training: as asked, by default as the model is. Refuses what is no model."""
    check_model(model)
    if mode is None:
        return bool(model.training)
    if mode not in MODES:
        estimated = " (what is estimated says hardware=)" if mode in ("estimated", "measured") else ""
        raise InvalidInput(f"mode is {mode!r}; it must be one of {', '.join(MODES)}{estimated}")
    return mode == "training"


def _profile(
    model: nn.Module, found: Trace, training: bool, forward: NDArray[np.float64], backward: NDArray[np.float64],
    memory: tuple[CallMemory, ...], gradients: dict[str, int],
) -> LayerProfile:  # fmt: skip
    mode = "training" if training else "inference"
    parameters, outputs, made, upstream, trained = call_bytes(model, found, training, gradients)
    return LayerProfile(
        found,
        mode,
        forward,
        backward,
        parameters,
        outputs,
        made,
        upstream,
        trained,
        memory,
        name=type(model).__name__.lower(),
    )


def gradient_bytes(model: nn.Module) -> dict[str, int]:
    """Parameter -> bytes of the gradient that it has now, for those that have one; of embeddings it may be sparse."""
    return {name: storage_bytes(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def call_bytes(
    model: nn.Module, found: Trace, training: bool, gradients: Mapping[str, int]
) -> tuple[NDArray[np.int64], ...]:
    """Five int64[calls]: bytes of parameters and buffers, outputs, gradients, gradients from above, trained parameters.

    `gradients` are the bytes of those that a backward pass made, by parameter. What does not reach the loss has none.
    """
    size = {name: stored_bytes(t) for name, t in (*model.named_parameters(), *model.named_buffers())}
    counted: set[str] = set()
    columns = np.zeros((5, len(found.calls)), dtype=np.int64)
    used = {name for call in found.calls for name in (*call.parameters, *call.buffers)}
    if found.calls:  # what no call uses lies with the first
        columns[0, 0] = sum(size[name] for name in size.keys() - used)
    for i, call in enumerate(found.calls):
        own = {*call.parameters, *call.buffers} - counted  # shared ones count where they are used first
        counted |= own
        columns[0, i] += sum(size[name] for name in own)
        columns[1, i] = call.output_bytes
        if training:
            columns[2, i] = sum(gradients[name] for name in own & gradients.keys())
            columns[3, i] = call.output_bytes if call.requires_grad else 0
            columns[4, i] = sum(size[name] for name in own & gradients.keys())
    return tuple(columns)
