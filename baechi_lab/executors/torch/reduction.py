"""The loss of a batch from those of its micro-batches: as their mean or sum, and with other divisors where needed.

The divisors of means come from a pass without data (`torch_runtime.divisors`). Then mean and sum are tried: the loss and the
gradients of a few parameters must be equal for the micro-batches and the batch. A large model is tried on two of the
micro-batches.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from ...errors import BaechiLabError, InvalidInput
from ...profilers.torch.layers import in_mode
from ...torch_runtime.divisors import (
    LOSS,
    DivisorHandler,
    Divisors,
    DryRun,
    Replacements,
    counted_keys,
    dividing,
    divisors_of,
    replacements,
)
from ...torch_runtime.intercept import Frame, Interceptor
from ...torch_runtime.random import generator_states, same_states
from ...torch_runtime.tree import Args, Function, Kwargs, map_tensors, tensors
from ...torch_steps.snapshot import ModelSnapshot
from ...torch_steps.step import TorchStep

NEAR, NEAR_IN_HALF = 1e-3, 5e-2
"""Relative difference up to which losses and gradients count as the same: in float32, and where 16 bits take part."""

SAME = 1e-5
"""Relative difference up to which two passes over one batch compute the same."""

_SMALL = 5e10
"""Parameters times elements of the inputs up to which the whole batch is tried."""

_PARAMETERS = 4
"""Gradients of so many parameters are compared, the last ones, which take the shortest way through the model."""

_FAILURES = (
    BaechiLabError,
    RuntimeError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    AssertionError,
    ArithmeticError,
)


@dataclass(frozen=True)
class Reduction:
    """The way in which the micro-batches' losses make up the loss of the undivided batch.

    - `mean`: the batch's loss is the mean of theirs, otherwise their sum.
    - `divisors`: per micro-batch, what its means divide by instead.
    - `counted`: keys of calls whose divisors depend on the batch's values, so that another batch has others.
    - `shapes`: those of the model's output tensors for the undivided batch, if they are known.
    """

    mean: bool
    divisors: tuple[Replacements, ...]
    counted: frozenset[str] = frozenset()
    shapes: tuple[tuple[tuple[int, ...], str], ...] = ()

    @property
    def in_model(self) -> set[str]:
        """Keys of calls of the model that divide by other numbers in micro-batches, or may do so with another batch."""
        return ({key for table in self.divisors for key in table} | self.counted) - {LOSS}


def reduction_of(
    step: TorchStep,
    model: nn.Module,
    layers: Sequence[str],
    micro_steps: Sequence[TorchStep],
    requested: str | None = None,
) -> Reduction:
    """Find how the micro-batches make up `step`. The model is left unchanged.

    Warns if gradients will not be those of the undivided batch, or if this cannot be tested.

    Args:
        layers: names of the modules that are one call each, as in the trace.
        requested: "mean" or "sum", which is not tried then.
    """
    none = tuple({} for _ in micro_steps)  # type: tuple[Replacements, ...]
    warned = len(micro_steps) > 1 and _warn_if_forward_writes(step, model, micro_steps[0])
    if len(micro_steps) < 2 or requested == "sum":
        return Reduction(requested != "sum", none)
    with ModelSnapshot(model, step.inputs):
        counter = _Counter(model, layers)
        batch_divisors = counter.divisors(step)
        micro_divisors = [counter.divisors(micro_step) for micro_step in micro_steps]
    tables = None if batch_divisors is None or None in micro_divisors else replacements(batch_divisors, micro_divisors)  # type: ignore[arg-type]
    reduction = Reduction(True, none)
    if tables is not None:
        counted = counted_keys(batch_divisors, micro_divisors)  # type: ignore[arg-type]
        reduction = Reduction(True, tuple(tables), frozenset(counted), tuple(counter.shapes))
    if requested is not None:
        return reduction
    tried = micro_steps
    elements = sum(t.numel() for t in tensors(step.inputs))
    if sum(p.numel() for p in model.parameters()) * elements > _SMALL:

        def difference(k: int) -> float:
            values = [
                [d.value or 0 for key in sorted(divisors_of_batch or {}) for d in (divisors_of_batch or {})[key]]
                for divisors_of_batch in (micro_divisors[0], micro_divisors[k])
            ]
            return sum(abs(a - b) for a, b in zip(*values, strict=False))

        tried = [micro_steps[0], micro_steps[max(range(1, len(micro_divisors)), key=difference)]]
        # The first micro-batch and the one whose divisors differ most from its own, together.
        other_tensors = [tensors((micro_step.inputs, micro_step.targets)) for micro_step in tried[1:]]
        first = (tried[0].inputs, tried[0].targets)
        joined_batch = map_tensors(
            first, lambda t: torch.cat((t, *(next(rest_of_batch) for rest_of_batch in other_tensors)))
        )
        step, tables = replace(step, inputs=joined_batch[0], targets=joined_batch[1]), None
        with ModelSnapshot(model, step.inputs):
            batch_divisors = counter.divisors(step)
            micro_divisors = [counter.divisors(micro_step) for micro_step in tried]
        if batch_divisors is not None and None not in micro_divisors:
            tables = replacements(batch_divisors, micro_divisors)  # type: ignore[arg-type]
    if _is_mean_or_sum(step, model, layers, tried, tables or [{} for _ in tried], warned) is False:
        return Reduction(False, none)
    return reduction


def _warn_if_forward_writes(step: TorchStep, model: nn.Module, micro_step: TorchStep) -> bool:
    """Warns of parameters and buffers that a forward pass writes, besides statistics of batches, of which the graph warns.

    Returns whether there are any.
    """
    of_batches = {t for m in model.modules() if isinstance(m, _NormBase) for t in m.buffers(recurse=False)}
    with ModelSnapshot(model, step.inputs):
        before = {name: (t, t._version) for name, t in _registered(model) if t not in of_batches}
        args, kwargs = micro_step.arguments(model)
        with contextlib.suppress(*_FAILURES):
            model(*args, **kwargs)
        after = dict(_registered(model))
        written_buffers = [
            name for name, (t, version) in before.items() if t._version != version or not _equal(after.get(name), t)
        ]
    if written_buffers:
        _warn_about_state(step, f"{written_buffers[0]!r}", 5)
    return bool(written_buffers)


def _registered(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    tensors_by_name = (*model.named_parameters(), *model.named_buffers())
    return ((name, t) for name, t in tensors_by_name if not nn.parameter.is_lazy(t))


def _equal(after: torch.Tensor | None, before: torch.Tensor) -> bool:
    return after is before or (after is not None and after.device == before.device and torch.equal(after, before))


def _warn_about_state(step: TorchStep, state: str, stacklevel: int) -> None:
    warnings.warn(
        f"each forward pass of step {step.name!r} changes {state}, which the next one reads: a micro-batch sees what those "
        "before it have made, so the step is not that of the undivided batch",
        stacklevel=stacklevel + 1,
    )


class _Counter:
    """Finds the divisors of a batch in a pass without data, or for real if the model needs its own data."""

    def __init__(self, model: nn.Module, layers: Sequence[str]):
        self.model, self.layers = model, layers
        self.shapes: list[tuple[tuple[int, ...], str]] = []
        try:
            self.dry: DryRun | None = DryRun(model, layers)
        except _FAILURES:
            self.dry = None

    def divisors(self, step: TorchStep) -> Divisors | None:
        """The divisors of a batch, or None if the model does not run on it."""
        args, kwargs = step.arguments(self.model)
        if self.dry is not None:
            try:
                divisors = self.dry(step.loss_of, args, kwargs)
                self.shapes = self.shapes or self.dry.shapes
                return divisors
            except _FAILURES:
                self.dry, self.shapes = None, []
        try:
            # tensors that depend on parameters need gradients
            return divisors_of(self.model, self.layers, step.loss_of, args, kwargs, lambda t: not t.requires_grad)[0]
        except _FAILURES:
            return None


def _is_mean_or_sum(
    step: TorchStep,
    model: nn.Module,
    layers: Sequence[str],
    micro_steps: Sequence[TorchStep],
    tables: Sequence[Replacements],
    warned: bool,
) -> bool | None:
    """Whether the loss and gradients of `step` are the mean (True) or the sum (False) of those of its micro-batches, or None.

    `warned` says that a warning about state between forward passes was given.
    """
    consequence = "gradients are those of the mean"
    trials = _Trials(step, model, layers, warned)
    for steady in (_layers_in_evaluation(model), in_mode(model, False)):
        with steady:
            results = trials.run([(step, {}), *zip(micro_steps, tables, strict=True)])
            if results is None:
                continue
            near = NEAR_IN_HALF if trials.half else NEAR
            if _agree(results[0], [sum(line) / len(micro_steps) for line in zip(*results[1:], strict=True)], near):
                return True
            plain = (
                results
                if not any(tables)
                else trials.run([(step, {}), *((micro_step, {}) for micro_step in micro_steps)])
            )
            if plain is not None and _agree(plain[0], [sum(line) for line in zip(*plain[1:], strict=True)], near):
                return False
            warnings.warn(
                f"the loss of step {step.name!r} is neither the mean nor the sum of its micro-batches' losses: {consequence}, "
                "not those of the undivided batch",
                stacklevel=5,
            )
            return None
    warnings.warn(
        f"step {step.name!r} draws random numbers or does not run on the whole batch, so nothing tells how its loss adds up: "
        f"{consequence}, which may not be those of the undivided batch; reduction='mean' or 'sum' says how it adds up",
        stacklevel=5,
    )
    return None


def _agree(batch_values: list[torch.Tensor], micro_values: list[torch.Tensor], near: float) -> bool:
    """Whether losses (the first) and gradients are equal. A gradient that is zero up to rounding counts little."""
    least = 1e-3 * max([float(a.norm()) for a in batch_values[1:]], default=0.0)
    return all(
        float((a - b).norm()) <= near * max(float(a.norm()), least if k else 1e-12)
        for k, (a, b) in enumerate(zip(batch_values, micro_values, strict=True))
    )


class _Trials(DivisorHandler):
    """Runs a model on micro-batches without drawing random numbers."""

    def __init__(self, step: TorchStep, model: nn.Module, layers: Sequence[str], warned: bool):
        super().__init__({})
        self.step, self.model, self.layers = step, model, layers
        self.half, self.warned = False, warned

    def run(self, steps: Sequence[tuple[TorchStep, Replacements]]) -> list[list[torch.Tensor]] | None:
        """The loss and some gradients of each step; None if one fails or draws random numbers."""
        with ModelSnapshot(self.model, self.step.inputs) as snapshot:
            results = []
            for step, replaced in steps:
                before = generator_states()
                try:
                    results.append(self._one(step, replaced))
                except _FAILURES:
                    return None
                if not same_states(before, generator_states()):
                    return None
                changes = snapshot.changes() if len(results) == 1 and not self.warned else []
                if changes and not _agree(results[0], self._one(step, replaced), SAME):
                    self.warned = True
                    place = min(changes[0].places)
                    _warn_about_state(
                        step, f"attributes of module {place!r}" if place else "attributes of the model", 7
                    )
                snapshot.restore()
        short = next((k for k, values in enumerate(results) if len(values) < len(results[0])), 0)
        if short:
            raise InvalidInput(
                f"the loss of micro-batch {short - 1} of step {self.step.name!r} has no gradient, perhaps because none of its "
                "samples counts; every micro-batch must have one"
            )
        return results

    def _one(self, step: TorchStep, replaced: Replacements) -> list[torch.Tensor]:
        self.instead = replaced
        args, kwargs = step.arguments(self.model)
        interceptor = Interceptor(self.model, self.layers, self).install()
        try:
            outputs = self.model(*args, **kwargs)
        finally:
            interceptor.remove()
        with dividing(replaced):
            loss = step.loss_of(outputs)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        for compared in (parameters[-_PARAMETERS:], parameters):
            if loss.requires_grad and compared:
                gradients = torch.autograd.grad(loss, compared, retain_graph=True, allow_unused=True)
                if any(g is not None for g in gradients):
                    return [
                        loss.detach().double(),
                        *(torch.zeros(()) if g is None else _real_numbers(g).double() for g in gradients),
                    ]
        return [loss.detach().double()]

    def call(
        self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None
    ) -> object:
        if module is None:
            args, kwargs = _without_dropout(getattr(run, "__name__", ""), args, kwargs)
        outputs = super().call(frame, key, run, args, kwargs, module)
        self.half |= any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors(outputs))
        return outputs


def _real_numbers(gradient: torch.Tensor) -> torch.Tensor:
    dense = gradient.to_dense()
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense


def _without_dropout(name: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments of a function with dropout turned off. Other functions keep their arguments."""
    at, keyword, value = (4, "dropout_p", 0.0) if name == "scaled_dot_product_attention" else (2, "training", False)
    if "dropout" not in name and keyword != "dropout_p":
        return args, kwargs
    if len(args) > at:
        return (*args[:at], value, *args[at + 1 :]), kwargs
    return args, {**kwargs, keyword: value}


@contextlib.contextmanager
def _layers_in_evaluation(model: nn.Module) -> Iterator[None]:
    """Put layers of torch into evaluation mode, in which they draw nothing and update no statistics. Other modules stay."""
    before = {m: m.training for m in model.modules() if type(m).__module__.startswith("torch.nn.")}
    try:
        for module in before:
            module.training = False
        yield
    finally:
        for module, training in before.items():
            module.training = training
