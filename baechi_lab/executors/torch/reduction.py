"""The loss of a batch from those of its micro-batches: as their mean or sum, and with other divisors where needed.

The divisors of means come from a pass without data (`torch_runtime.divisors`). Then mean and sum are tried: the loss and the
gradients must be equal for the micro-batches and the batch. A large model is tried on two of the micro-batches. A loss that
selects among the samples of a batch may be equal by chance, so other batches are drawn from the samples and tried as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch._ops import OpOverload
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import BaechiLabError, InvalidInput
from ...internal_warnings import warn
from ...profilers.torch.layers import in_mode
from ...torch_runtime.context import in_training_modes
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
from ...torch_steps.step import FAILURES, TorchStep
from ..gradient_tolerance import GRADIENT_TOLERANCE, HALF_GRADIENT_TOLERANCE
from .bent_losses import bend_of

NEAR_LOSS = 1e-4
"""Relative difference up to which losses count as the same in float32; rounding hardly changes a loss."""

SAME = 1e-5
"""Relative difference up to which two passes over one batch compute the same."""

_SMALL = 5e10
"""Parameters times elements of the inputs up to which the whole batch is tried."""

_DRAWN_BATCHES = 2
"""Batches of the size of two micro-batches that are drawn from the samples; of a large model one."""

_NEITHER = "is neither the mean nor the sum of its micro-batches' losses"

_COMPARED = 100_000_000
"""Gradients of so many numbers are compared at most, those of small parameters first."""

_HALF = (torch.float16, torch.bfloat16)

_DRAWS = frozenset(
    "normal_ uniform_ bernoulli_ exponential_ log_normal_ random_ bernoulli rand randn randint rand_like randn_like "
    "randint_like".split()
)

_FAILURES = (*FAILURES, ArithmeticError, BaechiLabError)


@dataclass(frozen=True)
class Reduction:
    """The way in which the micro-batches' losses make up the loss of the undivided batch.

    - `mean`: the batch's loss is the mean of theirs, otherwise their sum.
    - `divisors`: per micro-batch, what its means divide by instead.
    - `keys_of_counts`: keys of calls whose divisors depend on the batch's values, so that another batch has others.
    - `shapes`: those of the model's output tensors for the undivided batch, if they are known.
    """

    mean: bool
    divisors: tuple[Replacements, ...]
    keys_of_counts: frozenset[str] = frozenset()
    shapes: tuple[tuple[tuple[int, ...], str], ...] = ()

    @property
    def in_model(self) -> set[str]:
        """Keys of calls of the model that divide by other numbers in micro-batches, or may do so with another batch."""
        return ({key for table in self.divisors for key in table} | self.keys_of_counts) - {LOSS}


def reduction_of(
    step: TorchStep,
    model: nn.Module,
    layers: Sequence[str],
    micro_steps: Sequence[TorchStep],
    requested_reduction: str | None = None,
) -> Reduction:
    """Finds how the micro-batches make up `step`. The model is left unchanged.

    Warns if gradients will not be those of the undivided batch, or if this cannot be tested.

    Args:
        step, model: the step of the whole batch, and its model.
        layers: names of the modules that are one call each, as in the trace.
        micro_steps: the steps of the micro-batches.
        requested_reduction: "mean" or "sum", which is not tried then.
    """
    none = tuple({} for _ in micro_steps)  # type: tuple[Replacements, ...]
    has_warned = len(micro_steps) > 1 and _warn_if_forward_writes(step, model, micro_steps[0])
    if len(micro_steps) < 2 or requested_reduction == "sum":
        return Reduction(requested_reduction != "sum", none)
    with ModelSnapshot(model, step.inputs):
        counter = _Counter(model, layers)
        batch_divisors = counter.divisors(step)
        micro_divisors = [counter.divisors(micro_step) for micro_step in micro_steps]
    tables = None if batch_divisors is None or None in micro_divisors else replacements(batch_divisors, micro_divisors)  # type: ignore[arg-type]
    reduction = Reduction(True, none)
    if tables is not None:
        keys_of_counts = counted_keys(batch_divisors, micro_divisors)  # type: ignore[arg-type]
        reduction = Reduction(True, tuple(tables), frozenset(keys_of_counts), tuple(counter.shapes))
    if requested_reduction is not None:
        return reduction
    elements = sum(t.numel() for t in tensors(step.inputs))
    is_large = sum(p.numel() for p in model.parameters()) * elements > _SMALL
    drawn_batches = _draw_batches(step, len(micro_steps), counter, 1 if is_large else _DRAWN_BATCHES)
    steps_to_try = micro_steps
    if is_large:

        def difference(k: int) -> float:
            values = [
                [d.value or 0 for key in sorted(divisors_of_batch or {}) for d in (divisors_of_batch or {})[key]]
                for divisors_of_batch in (micro_divisors[0], micro_divisors[k])
            ]
            return sum(abs(a - b) for a, b in zip(*values, strict=False))

        steps_to_try = [micro_steps[0], micro_steps[max(range(1, len(micro_divisors)), key=difference)]]
        # The first micro-batch and the one whose divisors differ most from its own, together.
        other_tensors = [tensors((micro_step.inputs, micro_step.targets)) for micro_step in steps_to_try[1:]]
        first = (steps_to_try[0].inputs, steps_to_try[0].targets)
        joined_batch = map_tensors(
            first, lambda t: torch.cat((t, *(next(rest_of_batch) for rest_of_batch in other_tensors)))
        )
        step, tables = replace(step, inputs=joined_batch[0], targets=joined_batch[1]), None
        with ModelSnapshot(model, step.inputs):
            batch_divisors = counter.divisors(step)
            micro_divisors = [counter.divisors(micro_step) for micro_step in steps_to_try]
        if batch_divisors is not None and None not in micro_divisors:
            tables = replacements(batch_divisors, micro_divisors)  # type: ignore[arg-type]
    tables = tables or [{} for _ in steps_to_try]
    mean = _is_mean_or_sum(step, model, layers, steps_to_try, tables, has_warned, counter.uses_autocast, drawn_batches)
    if mean is False:
        return Reduction(False, none)
    return reduction


def _warn_if_forward_writes(step: TorchStep, model: nn.Module, micro_step: TorchStep) -> bool:
    """Warns of parameters and buffers that a forward pass writes, besides statistics of batches, of which the graph warns.

    Returns whether there are any.
    """
    of_batches = {t for m in model.modules() if isinstance(m, _NormBase) for t in m.buffers(recurse=False)}
    with ModelSnapshot(model, step.inputs) as snapshot:
        before = {name: (t, t._version) for name, t in _named_tensors(model) if t not in of_batches}
        args, kwargs = micro_step.arguments(model)
        with contextlib.suppress(*_FAILURES):
            model(*args, **kwargs)
        after = dict(_named_tensors(model))
        # What is written through `.data` has no new version.
        written_tensors = {id(t) for t in snapshot.written_tensors()}
        written_buffers = [
            name
            for name, (t, version) in before.items()
            if t._version != version or id(t) in written_tensors or not _equal(after.get(name), t)
        ]
    if written_buffers:
        _warn_about_state(step, f"{written_buffers[0]!r}")
    return bool(written_buffers)


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    tensors_by_name = (*model.named_parameters(), *model.named_buffers())
    return ((name, t) for name, t in tensors_by_name if not nn.parameter.is_lazy(t))


def _equal(after: torch.Tensor | None, before: torch.Tensor) -> bool:
    return after is before or (after is not None and after.device == before.device and torch.equal(after, before))


def _warn_about_state(step: TorchStep, state: str) -> None:
    warn(
        f"each forward pass of step {step.name!r} changes {state}, which the next one reads: a micro-batch sees what those "
        "before it have made, so the step is not that of the undivided batch"
    )


class _Counter:
    """Finds the divisors of a batch in a pass without data, or for real if the model needs its own data."""

    def __init__(self, model: nn.Module, layers: Sequence[str]):
        self.model, self.layers = model, layers
        self.shapes: list[tuple[tuple[int, ...], str]] = []
        self.uses_autocast = False
        self.switch_autocast = torch.set_autocast_enabled
        try:
            self.dry: DryRun | None = DryRun(model, layers)
        except _FAILURES:
            self.dry = None

    def divisors(self, step: TorchStep) -> Divisors | None:
        """Returns the divisors of a batch, or None if the model does not run on it."""
        args, kwargs = step.arguments(self.model)
        if self.dry is not None:
            try:
                with _autocast_switches(self._note_autocast):
                    divisors = self.dry(step.loss_of, args, kwargs)
                self.shapes = self.shapes or self.dry.shapes
                return divisors
            except _FAILURES:
                self.dry, self.shapes = None, []
        try:
            is_data = lambda t: not t.requires_grad  # noqa: E731 - tensors that depend on parameters need gradients
            with _autocast_switches(self._note_autocast):
                return divisors_of(self.model, self.layers, step.loss_of, args, kwargs, is_data)[0]
        except _FAILURES:
            return None

    def _note_autocast(self, device_type: str, enabled: bool) -> None:
        self.uses_autocast |= enabled
        self.switch_autocast(device_type, enabled)


@dataclass(frozen=True)
class _DrawnBatch:
    """A batch of samples of a step, its two halves, and the divisors of these."""

    step: TorchStep
    halves: Sequence[TorchStep]
    tables: Sequence[Replacements]


def _draw_batches(step: TorchStep, count: int, counter: _Counter, draws: int) -> list[_DrawnBatch]:
    """Draws `draws` batches of the size of two micro-batches from the samples of a step that has `count` micro-batches."""
    batches: list[_DrawnBatch] = []
    samples = len(next(tensors((step.inputs, step.targets))))
    for seed in range(draws):
        rows = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))[: 2 * (samples // count)]

        def drawn(tensor: torch.Tensor, rows: torch.Tensor = rows) -> torch.Tensor:
            return tensor.detach()[rows.to(tensor.device)].requires_grad_(tensor.requires_grad)

        with contextlib.suppress(*_FAILURES), ModelSnapshot(counter.model, step.inputs):
            inputs, targets = map_tensors((step.inputs, step.targets), drawn)
            batch = replace(step, inputs=inputs, targets=targets)
            halves = batch.micro_batches(2)
            divisors = [counter.divisors(batch_step) for batch_step in (batch, *halves)]
            tables: Sequence[Replacements] = ({}, {})
            if None not in divisors:
                tables = replacements(divisors[0], divisors[1:]) or tables  # type: ignore[arg-type]
            batches.append(_DrawnBatch(batch, halves, tables))
    return batches


def _is_mean_or_sum(
    step: TorchStep,
    model: nn.Module,
    layers: Sequence[str],
    micro_steps: Sequence[TorchStep],
    tables: Sequence[Replacements],
    has_warned: bool,
    uses_autocast: bool,
    drawn_batches: Sequence[_DrawnBatch] = (),
) -> bool | None:
    """Whether the loss and gradients of `step` are the mean (True) or the sum (False) of those of its micro-batches, or None.

    `has_warned` says that a warning about state between forward passes was given, `uses_autocast` that parts are computed in
    16 bits by `torch.autocast`. `drawn_batches` are tried as well.
    """
    trials = _Trials(step, model, layers, micro_steps, tables, has_warned)
    assumed_reduction = "mean"
    # Fixed draws alone prove no mean: they only show what other draws cannot repair.
    in_half = any(t.dtype in _HALF for t in (*model.parameters(), *model.buffers())) or uses_autocast
    for steady, fixed_draws, single in (
        *(((_layers_in_evaluation(model), False, True),) if in_half else ()),
        (_layers_in_evaluation(model), False, False),
        (_layers_in_evaluation(model), True, False),
        (in_mode(model, False), False, False),
    ):
        with steady, _in_single_precision(model) if single else contextlib.nullcontext():
            verdict = trials.verdict(fixed_draws, single)
            if verdict in ("mean", "sum") and not fixed_draws:
                for drawn in drawn_batches:
                    drawn_trials = _Trials(drawn.step, model, layers, drawn.halves, drawn.tables, True)
                    with contextlib.suppress(InvalidInput):  # no sample of a half counts
                        drawn_verdict = drawn_trials.verdict(fixed_draws, single)
                        verdict = _NEITHER if drawn_verdict in ({"mean", "sum"} - {verdict} | {_NEITHER}) else verdict
                    if verdict == _NEITHER:
                        break
        if verdict in ("mean", "sum"):
            if not fixed_draws:
                if trials.bend:
                    warn(
                        f"the loss of step {step.name!r} bends at a value of the whole batch ({trials.bend}): where that of a "
                        "micro-batch lies on the other side, gradients are not those of the undivided batch"
                    )
                return verdict == "mean"
            assumed_reduction = verdict
        elif verdict is not None:
            warn(
                f"the loss of step {step.name!r} {verdict}: gradients are those of the mean, not those of the undivided batch"
            )
            return None
    warn(
        f"step {step.name!r} draws random numbers or does not run on the whole batch, so nothing tells how its loss adds up: "
        f"gradients are those of the {assumed_reduction}, which may not be those of the undivided batch; reduction='mean' or "
        "'sum' says how it adds up"
    )
    return assumed_reduction == "mean"


def _agree(batch_values: list[torch.Tensor], micro_values: list[torch.Tensor], near: float) -> bool:
    """Whether losses (the first) and gradients are equal. A gradient that is zero up to rounding counts little."""
    half = near == HALF_GRADIENT_TOLERANCE
    least = (1e-1 if half else 1e-3) * max([float(a.norm()) for a in batch_values[1:]], default=0.0)
    limits = [near if half else min(near, NEAR_LOSS), *[near] * (len(batch_values) - 1)]
    return all(
        float((a - b).norm()) <= limit * max(float(a.norm()), least if k else 1e-12)
        for k, (a, b, limit) in enumerate(zip(batch_values, micro_values, limits, strict=True))
    )


class FixedDraws(TorchDispatchMode):
    """Makes all random numbers of a tensor the same, in every call. A sample then gets the same ones in any batch.

    Permutations, choices and the dropout within a kernel are drawn as ever.

    >>> with FixedDraws():
    ...     long, short = torch.rand(20), torch.empty(3).uniform_()
    >>> len({*long.tolist(), *short.tolist()})
    1
    """

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        kwargs = kwargs or {}
        tensors_of_options = [*tensors(args[1:]), *tensors(kwargs)]
        if func._schema.name.removeprefix("aten::") not in _DRAWS or tensors_of_options or kwargs.get("generator"):
            return func(*args, **kwargs)
        if func is torch.ops.aten.bernoulli.default:  # the tensor has probabilities
            return (args[0] > 0.5).to(args[0].dtype)
        one_number = [
            a.new_empty(1) if isinstance(a, torch.Tensor) else [1] if isinstance(a, (list, tuple)) else a for a in args
        ]
        with torch.random.fork_rng(devices=[]):
            result: torch.Tensor = args[0] if func._schema.is_mutable else func(*args, **kwargs)
            torch.manual_seed(0)
            kwargs.pop("memory_format", None)
            return result.copy_(func(*one_number, **kwargs))


class _Trials(DivisorHandler):
    """Runs a model on a batch and its micro-batches and compares their losses and gradients."""

    def __init__(
        self,
        step: TorchStep,
        model: nn.Module,
        layers: Sequence[str],
        micro_steps: Sequence[TorchStep],
        tables: Sequence[Replacements],
        has_warned: bool,
    ):
        super().__init__({})
        self.step, self.model, self.layers = step, model, layers
        self.micro_steps, self.tables = micro_steps, tables
        self.half, self.single, self.has_warned = False, False, has_warned
        self.bend = ""
        self.compared_parameters: list[nn.Parameter] = []
        numbers = 0
        for parameter in sorted((p for p in model.parameters() if p.requires_grad), key=torch.Tensor.numel):
            numbers += parameter.numel()
            if numbers <= _COMPARED or not self.compared_parameters:
                self.compared_parameters.append(parameter)

    def verdict(self, fixed_draws: bool, single: bool) -> str | None:
        """Returns how the losses add up: "mean", "sum", or the words for neither; None if one fails or draws random numbers."""
        self.half, self.single = False, single
        results = self._run(self.tables, fixed_draws)
        if results is None:
            return None
        batch, total = results
        near = HALF_GRADIENT_TOLERANCE if self.half else GRADIENT_TOLERANCE
        if _agree(batch, [values / len(self.micro_steps) for values in total], near):
            return "mean"
        if any(self.tables):
            results = self._run([{} for _ in self.tables], fixed_draws)
        if results is not None and _agree(batch, results[1], near):
            return "sum"
        if all(bool(values.isfinite().all()) for values in (*batch, *total)):
            return _NEITHER
        return "or a gradient of it is infinite or no number, so nothing tells how it adds up"

    def _run(
        self, tables: Sequence[Replacements], fixed_draws: bool
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
        """Returns the loss and gradients of the batch, and the sums of those of its micro-batches."""
        with ModelSnapshot(self.model, self.step.inputs) as snapshot:
            batch: list[torch.Tensor] = []
            total: list[torch.Tensor] = []
            for k, (step, replacements) in enumerate([(self.step, {}), *zip(self.micro_steps, tables, strict=True)]):
                before = generator_states()
                with FixedDraws() if fixed_draws else contextlib.nullcontext():
                    try:
                        values = self._loss_and_gradients(step, replacements)
                    except _FAILURES:
                        return None
                    if not same_states(before, generator_states()):
                        return None
                    if k == 0:
                        batch = values
                        # The first pass has changed attributes: does a second one compute something else?
                        changes = [] if self.has_warned else snapshot.changes()
                        if changes and not _agree(batch, self._loss_and_gradients(self.step, {}), SAME):
                            self.has_warned = True
                            place = min(changes[0].places)
                            _warn_about_state(
                                self.step, f"attributes of module {place!r}" if place else "attributes of the model"
                            )
                    elif len(values) < len(batch):
                        raise InvalidInput(
                            f"the loss of micro-batch {k - 1} of step {step.name!r} has no gradient, perhaps because none of "
                            "its samples counts; every micro-batch must have one"
                        )
                    else:
                        total = [a + b for a, b in zip(total, values, strict=True)] if total else values
                snapshot.restore()
        return batch, total

    def _loss_and_gradients(self, step: TorchStep, replacements: Replacements) -> list[torch.Tensor]:
        self.instead = replacements
        if self.single:
            batch = map_tensors((step.inputs, step.targets), lambda t: t.float() if t.dtype in _HALF else t)
            step = replace(step, inputs=batch[0], targets=batch[1])
        args, kwargs = step.arguments(self.model)
        with Interceptor(self.model, self.layers, self):
            outputs = self.model(*args, **kwargs)
        with dividing(replacements):
            loss = step.loss_of(outputs)
        self.bend = self.bend or bend_of(loss)
        values = [loss.detach().double()]
        if loss.requires_grad and self.compared_parameters:
            gradients = torch.autograd.grad(loss, self.compared_parameters, allow_unused=True)
            if any(g is not None for g in gradients):
                values += [torch.zeros(()) if g is None else _real_numbers(g) for g in gradients]
        return values

    def call(
        self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None
    ) -> object:
        if module is None:
            args, kwargs = _without_dropout(getattr(run, "__name__", ""), args, kwargs)
        outputs = super().call(frame, key, run, args, kwargs, module)
        self.half |= any(t.dtype in _HALF for t in tensors(outputs))
        return outputs


def _real_numbers(gradient: torch.Tensor) -> torch.Tensor:
    """Returns the dense gradient, in at least single precision."""
    dense = gradient.to_dense()
    dense = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    return dense.float() if dense.itemsize < 4 else dense


def _without_dropout(name: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Returns the arguments of a function with dropout turned off. Other functions keep their arguments."""
    at, keyword, value = (4, "dropout_p", 0.0) if name == "scaled_dot_product_attention" else (2, "training", False)
    if "dropout" not in name and keyword != "dropout_p":
        return args, kwargs
    if len(args) > at:
        return (*args[:at], value, *args[at + 1 :]), kwargs
    return args, {**kwargs, keyword: value}


@contextlib.contextmanager
def _autocast_switches(switch: Callable[[str, bool], None]) -> Iterator[None]:
    """Calls `switch(device_type, enabled)` where `torch.autocast` turns autocast on or off."""
    before = torch.set_autocast_enabled
    torch.set_autocast_enabled = switch  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.set_autocast_enabled = before  # type: ignore[assignment]


@contextlib.contextmanager
def _in_single_precision(model: nn.Module) -> Iterator[None]:
    """Gives 16-bit parameters and buffers 32 bits, without autocast, so that rounding does not hide what couples samples."""
    before = [(t, t.data) for t in (*model.parameters(), *model.buffers()) if t.dtype in _HALF]
    for t, data in before:
        t.data = data.float()
    try:
        with _autocast_switches(lambda device_type, enabled: None):
            yield
    finally:
        for t, data in before:
            t.data = data


def _layers_in_evaluation(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Puts layers of torch into evaluation mode, in which they draw nothing and update no statistics. Other modules stay.

    Norms and dropout layers derived from those of torch, as libraries have, change as well.
    """
    return in_training_modes(
        [
            (m, False)
            for m in model.modules()
            if isinstance(m, (_NormBase, _DropoutNd)) or type(m).__module__.startswith("torch.nn.")
        ]
    )
