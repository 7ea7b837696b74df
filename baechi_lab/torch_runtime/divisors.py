"""Divisors: what the means in a loss divide by, so that micro-batches together divide as the undivided batch does.

Idea: the gradient of a batch is the mean of its micro-batches' gradients if all means divide by the same number. A loss that
averages over the tokens that count (labels of -100, masks, class weights) divides by a number that depends on the batch.
`Divide` intercepts every function of torch that divides by one number: losses with `reduction="mean"`, `mean`, and `/`. A
first pass records the divisors of the undivided batch (D) and of its M micro-batches (d_k). If D is the sum of all d_k, each
micro-batch then divides by D / M. If D is their mean, it divides by D. So the mean of the M losses is the batch's loss.

The first pass needs no data of the model: parameters are fake tensors, which have only a shape, and the batch is real. What
follows from the batch alone is computed (`FromBatch`). If a model needs its own data, it runs for real.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import InvalidInput
from .intercept import Frame, Handler, Interceptor
from .random import generator_states
from .tree import Args, Function, Kwargs, as_arguments, map_tensors, tensors

LOSS = ""
"""The key of what is computed behind the model."""

CLOSE = 1e-6
"""Relative difference up to which two divisors count as the same."""

_BY_TARGET = ("cross_entropy", "nll_loss", "linear_cross_entropy")
_BY_WEIGHT = ("mse_loss", "l1_loss", "huber_loss")
_LOSSES: dict[Function, str] = {
    function: name
    for name, function in vars(functional).items()
    if inspect.isfunction(function) and "reduction" in inspect.signature(function).parameters and name != "ctc_loss"
}
_MEANS = (torch.mean, torch.Tensor.mean)
_DIVISIONS = (
    torch.div,
    torch.true_divide,
    torch.Tensor.div,
    torch.Tensor.div_,
    torch.Tensor.true_divide,
    torch.Tensor.true_divide_,
    torch.Tensor.__truediv__,
    torch.Tensor.__itruediv__,
)
_RECIPROCALS = (torch.reciprocal, torch.Tensor.reciprocal, torch.Tensor.__rdiv__, torch.Tensor.__rtruediv__)


@dataclass(frozen=True)
class Divisor:
    """The number that one mean divides by; None if it depends on parameters. `counted`: it depends on the batch's values."""

    value: float | None
    counted: bool = False


Divisors = dict[str, list[Divisor]]
"""The divisors of one forward pass, in order, by the key of the call (or `LOSS`)."""

Replacements = dict[str, list[float | None]]
"""What to divide by instead, where it is another number."""


class Divide(TorchFunctionMode):
    """Records what means divide by, or makes them divide by `instead`, in the same order.

    `follows_from_batch` says whether a tensor depends on the batch alone. With `alone`, no other mode sees the functions
    called here.

    >>> with Divide() as mode:
    ...     _ = functional.cross_entropy(torch.ones(3, 2), torch.tensor([0, -100, 1])) / 4
    >>> [divisor.value for divisor in mode.divisors]
    [2.0, 4.0]
    """

    def __init__(
        self,
        instead: Sequence[float | None] | None = None,
        follows_from_batch: Callable[[torch.Tensor], bool] = lambda t: True,
        *,
        alone: bool = False,
    ):
        super().__init__()
        self.instead, self.follows_from_batch, self.alone = instead, follows_from_batch, alone
        self.divisors: list[Divisor] = []
        self.position = 0

    def __torch_function__(
        self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        with torch._C.DisableTorchFunction() if self.alone else contextlib.nullcontext():
            kwargs = kwargs or {}
            if func in _LOSSES:
                return self._loss(func, args, kwargs)
            if func in _MEANS and kwargs.get("out") is None:
                outputs = func(*args, **kwargs)
                tensor = args[0] if args else kwargs["input"]
                instead = self._next(lambda: Divisor(tensor.numel() / max(outputs.numel(), 1)))
                return outputs if instead is None else torch.sum(*args, **kwargs) / instead
            if func in _DIVISIONS and len(args) == 2 and not kwargs and _is_scalar(args[1]):
                instead = self._next(lambda: self._divisor(args[1]))
                return func(args[0], args[1] if instead is None else instead)
            if func in _RECIPROCALS and not kwargs and isinstance(args[0], torch.Tensor) and _is_scalar(args[0]):
                tensor = args[0]
                instead = self._next(lambda: self._divisor(tensor))
                if instead is not None:
                    dtype = tensor.dtype if tensor.is_floating_point() else None
                    tensor = torch.tensor(instead, dtype=dtype, device=tensor.device)
                return func(tensor, *args[1:])
            return func(*args, **kwargs)

    def _next(self, divisor: Callable[[], Divisor]) -> float | None:
        """Records the divisor of the next mean. Returns the number to divide by instead, or None."""
        self.position += 1
        if self.instead is None:
            self.divisors.append(divisor())
            return None
        return self.instead[self.position - 1] if self.position <= len(self.instead) else None

    def _loss(self, func: Function, args: Args, kwargs: Kwargs) -> object:
        bound = inspect.signature(func).bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        if arguments.get("size_average") is not None or arguments.get("reduce") is not None:
            legacy = functional._Reduction.legacy_get_string  # type: ignore[attr-defined]
            arguments["reduction"] = legacy(arguments["size_average"], arguments["reduce"], emit_warning=False)
        if arguments["reduction"] != "mean":
            return func(*args, **kwargs)
        arguments.update({name: None for name in ("size_average", "reduce") if name in arguments})
        instead = self._next(lambda: self._loss_divisor(func, bound))
        if instead is None:
            return func(*args, **kwargs)
        arguments["reduction"] = "sum"
        return func(*bound.args, **bound.kwargs) / instead

    def _loss_divisor(self, func: Function, bound: inspect.BoundArguments) -> Divisor:
        name, arguments = _LOSSES[func], bound.arguments
        target, weight = arguments.get("target"), arguments.get("weight")
        if name in _BY_TARGET and not target.is_floating_point():  # type: ignore[union-attr]
            if not self.follows_from_batch(target) or (weight is not None and not self.follows_from_batch(weight)):  # type: ignore[arg-type]
                return Divisor(None, True)
            counts = target != arguments["ignore_index"]
            total = counts.sum() if weight is None else weight[target[counts]].sum()  # type: ignore[index]
            return Divisor(float(total), True)
        if name in _BY_WEIGHT and weight is not None:
            return self._divisor(weight.sum()) if self.follows_from_batch(weight) else Divisor(None, True)
        arguments["reduction"] = "none"
        return Divisor(func(*bound.args, **bound.kwargs).numel())

    def _divisor(self, value: torch.Tensor | float) -> Divisor:
        if not isinstance(value, torch.Tensor):
            return Divisor(float(value))
        return Divisor(float(value) if self.follows_from_batch(value) else None, True)


def _is_scalar(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and not value.is_complex()
    return isinstance(value, (int, float))


def divided_by(run: Callable[..., object], instead: Sequence[float | None]) -> Callable[..., object]:
    """Wraps a call so that its means divide by `instead`."""

    @functools.wraps(run)
    def call(*args: object, **kwargs: object) -> object:
        with torch._C._EnableTorchFunction(), Divide(instead, alone=True):  # type: ignore[attr-defined]
            return run(*args, **kwargs)

    return call


class DivisorHandler(Handler):
    """Records the divisors of a model's calls by key, or replaces them."""

    def __init__(
        self, instead: Replacements | None = None, follows_from_batch: Callable[[torch.Tensor], bool] = lambda t: True
    ):
        self.instead, self.follows_from_batch = instead, follows_from_batch
        self.divisors: Divisors = {}

    def call(
        self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None
    ) -> object:
        if self.instead is not None:
            return (divided_by(run, self.instead[key]) if key in self.instead else run)(*args, **kwargs)
        with torch._C._EnableTorchFunction(), Divide(follows_from_batch=self.follows_from_batch, alone=True) as mode:  # type: ignore[attr-defined]
            outputs = run(*args, **kwargs)
        if mode.divisors:
            self.divisors[key] = mode.divisors
        return outputs


def divisors_of(
    model: nn.Module,
    layers: Sequence[str],
    loss_of: Callable[[object], object],
    args: Args,
    kwargs: Kwargs,
    follows_from_batch: Callable[[torch.Tensor], bool],
) -> tuple[Divisors, object]:
    """Returns the divisors of one forward pass and its loss, and the model's outputs."""
    handler = DivisorHandler(follows_from_batch=follows_from_batch)
    with Interceptor(model, layers, handler):
        outputs = model(*args, **kwargs)
    with Divide(follows_from_batch=follows_from_batch) as mode:
        loss_of(outputs)
    return {**handler.divisors, LOSS: mode.divisors}, outputs


class FromBatch(TorchDispatchMode):
    """Computes functions of real tensors. A function with a fake argument returns a fake tensor."""

    def __init__(self) -> None:
        super().__init__()
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

        self.kind, self.fake = FakeTensor, FakeTensorMode(allow_non_fake_inputs=True)
        self.overwritten: dict[int, torch.Tensor] = {}  # real storages that fake data was written into

    def follows_from_batch(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor has data."""
        return not isinstance(tensor, self.kind) and tensor.untyped_storage()._cdata not in self.overwritten

    def make_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Creates a fake tensor of the same shape, on the CPU."""
        with self.fake:
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        return nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        kwargs = kwargs or {}
        if all(map(self.follows_from_batch, tensors((args, kwargs)))):
            return func(*args, **kwargs)
        if func is torch.ops.aten.masked_select.default and self.follows_from_batch(args[1]):
            shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
            with self.fake:
                return args[0].new_empty(int(args[1].expand(shape).sum()))
        if func._schema.name == "aten::_grouped_mm":  # torch's rule for its shape requires bfloat16
            with self.fake:
                return args[0].new_empty((*args[0].shape[:-1], args[1].shape[-1]))
        if func in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default):
            # Masks among the indices become positions where the mask is known.
            positions: list[torch.Tensor | None] = []
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8) and self.follows_from_batch(index):
                    positions += index.nonzero(as_tuple=True)
                else:
                    positions.append(index)
            args = (args[0], positions, *args[2:])
        if func._schema.is_mutable:
            for tensor in tensors(args[:1]):
                if self.follows_from_batch(tensor):
                    self.overwritten[tensor.untyped_storage()._cdata] = tensor
        with self.fake:
            return func(*args, **kwargs)


class DryRun:
    """A copy of a model without data. It finds what the means in a loss divide by for any batch.

    >>> dry = DryRun(nn.Sequential(nn.Linear(2, 3)), ["0"])
    >>> labels = torch.tensor([0, -100, 1, 2])
    >>> dry(lambda outputs: functional.cross_entropy(outputs, labels), (torch.ones(4, 2),), {})
    {'': [Divisor(value=3.0, counted=True)]}
    """

    def __init__(self, model: nn.Module, layers: Sequence[str]):
        self.mode, self.layers = FromBatch(), layers
        self.shapes: list[tuple[tuple[int, ...], str]] = []
        self.model = copy.deepcopy(model, {id(p): self.mode.make_fake(p) for p in model.parameters()})

    def __call__(self, loss_of: Callable[[object], object], args: Args, kwargs: Kwargs) -> Divisors:
        """Returns the divisors for a batch and sets `shapes` to those of the model's output tensors."""
        states, log = generator_states(), logging.getLogger("torch._subclasses.fake_tensor")
        level = log.level
        log.setLevel(logging.CRITICAL)  # it logs ops that cannot run without data; these raise anyway
        try:
            with torch.no_grad(), self.mode:
                divisors, outputs = divisors_of(
                    self.model, self.layers, loss_of, args, kwargs, self.mode.follows_from_batch
                )
        finally:
            states.restore()
            log.setLevel(level)
        self.shapes = [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors(outputs)]
        return divisors


def loss_divisors(loss_of: Callable[[list[torch.Tensor]], object], shapes: Sequence[Sequence[Any]]) -> Divisors:
    """Returns the divisors in the loss of outputs of the given shapes and dtypes."""
    mode = FromBatch()
    with mode.fake:
        outputs = [torch.empty(tuple(shape), dtype=getattr(torch, dtype)) for shape, dtype, *_ in shapes]
    with torch.no_grad(), mode, Divide(follows_from_batch=mode.follows_from_batch) as divide:
        loss_of(outputs)
    return {LOSS: divide.divisors}


def replacements(batch_divisors: Divisors, micro_divisors: Sequence[Divisors]) -> list[Replacements] | None:
    """Returns what each micro-batch divides by instead of its own divisors; None if its means are not those of `batch_divisors`.

    >>> whole, parts = {"": [Divisor(6.0, True)]}, [{"": [Divisor(4.0, True)]}, {"": [Divisor(2.0, True)]}]
    >>> replacements(whole, parts)
    [{'': [3.0]}, {'': [3.0]}]
    """
    tables: list[Replacements] = [{} for _ in micro_divisors]
    for key in {*batch_divisors, *(key for divisors in micro_divisors for key in divisors)}:
        lines = [divisors.get(key, []) for divisors in micro_divisors]
        if any(len(line) != len(batch_divisors.get(key, [])) for line in lines):
            return None
        instead = [
            _replacement(d.value, [line[j].value for line in lines]) for j, d in enumerate(batch_divisors.get(key, []))
        ]
        for k, line in enumerate(lines):
            new_divisors = [
                None if to is None or math.isclose(to, divisor.value or 0, rel_tol=CLOSE) else to
                for to, divisor in zip(instead, line, strict=True)
            ]
            if any(to is not None for to in new_divisors):
                tables[k][key] = new_divisors
    return tables


def _replacement(batch_value: float | None, micro_values: Sequence[float | None]) -> float | None:
    """Returns the number that every micro-batch divides by instead, or None if each keeps its own divisor."""
    values = [value for value in micro_values if value is not None]
    if not batch_value or len(values) < len(micro_values):
        return None
    if all(math.isclose(v, batch_value, rel_tol=CLOSE) for v in values):
        return None
    total = sum(values)
    if math.isclose(batch_value, total / len(micro_values), rel_tol=CLOSE):
        return batch_value  # a mean of means
    if math.isclose(batch_value, total, rel_tol=CLOSE) or max(values) > min(values):
        return batch_value / len(micro_values)  # a count, perhaps clamped to at least one
    return None  # equal in all micro-batches and no count: for example a root of the batch size


def counted_keys(batch_divisors: Divisors, micro_divisors: Sequence[Divisors]) -> set[str]:
    """Returns the keys of calls with a divisor that depends on the values of the batch."""
    return {
        key
        for key, line in batch_divisors.items()
        for j, divisor in enumerate(line)
        if divisor.counted
        and any(divisor.value is None or divisor.value != divisors[key][j].value for divisors in micro_divisors)
    }


@contextlib.contextmanager
def dividing(replacements: Replacements) -> Iterator[None]:
    """Makes the loss of a micro-batch divide as the undivided batch does, for the length of a `with` block."""
    if LOSS not in replacements:
        yield
        return
    with Divide(replacements[LOSS]):
        yield


class BatchDivisors:
    """Finds what the micro-batches of any batch divide by. `loss` is `(outputs, *targets) -> scalar`."""

    def __init__(self, model: nn.Module, layers: Sequence[str], loss: Callable[..., torch.Tensor]):
        self.dry, self.loss = DryRun(model, layers), loss
        self.batch: list[torch.Tensor] = []
        self.divisors: list[Replacements] = []

    def __call__(
        self, batch: tuple[object, object], micro_batches: Sequence[tuple[object, object]]
    ) -> list[Replacements]:
        """Returns the replacements for the micro-batches (inputs, targets) of a batch.

        Raises:
            InvalidInput: the loss of a micro-batch has other means than that of the batch.
        """
        batch_tensors = list(tensors(batch))
        if len(batch_tensors) != len(self.batch) or not all(map(torch.equal, batch_tensors, self.batch)):
            tables = replacements(
                self._find_divisors(batch), [self._find_divisors(micro_batch) for micro_batch in micro_batches]
            )
            if tables is None:
                raise InvalidInput("the loss of a micro-batch has other means than that of the batch")
            self.divisors, self.batch = tables, [t.clone() for t in batch_tensors]
        return self.divisors

    def _find_divisors(self, batch: tuple[object, Any]) -> Divisors:
        inputs, targets = map_tensors(batch, lambda t: t.cpu())
        args, kwargs = as_arguments(inputs, self.dry.model)
        return self.dry(lambda outputs: self.loss(outputs, *targets), args, kwargs)
