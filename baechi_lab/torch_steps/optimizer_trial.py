"""Trials of a step's optimizer: whether it can update without a closure, and whether it updates the ranks of a pipeline alike.

A process of a pipeline updates the parameters of its own stages. That equals the update of the whole model only if each
parameter is updated by itself, as by all optimizers of torch. One that scales by the norm of all gradients, groups parameters
by their position, or updates nothing if any gradient is infinite, updates those of some stages otherwise. So all are tried,
with random gradients.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from ..errors import InvalidInput, describe_error
from ..torch_runtime.storage import is_wrapper
from .step import FAILURES, TorchStep

_SIZES = (1e3, 1.0, 1e-3)
"""Sizes of the gradients of successive updates, so that a limit of their norm holds in some and not in others.

A last update has one infinite gradient.
"""


def new_optimizer(step: TorchStep, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer | None:
    """Returns the step's optimizer for the parameters; None if it has none.

    Raises:
        InvalidInput: it cannot be made for them, or its `step` requires a closure that computes the loss again.
    """
    if step.optimizer is None:
        return None
    try:
        optimizer = step.optimizer(parameters)
    except FAILURES as error:
        raise InvalidInput(f"optimizer of step {step.name!r} failed: {describe_error(error)}") from error
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidInput(
            f"optimizer of step {step.name!r} is {type(optimizer).__name__}, whose step() requires a closure that computes the "
            "loss again; a placed step computes it once per update, so the optimizer must update without one"
        )
    return optimizer


def update(step: TorchStep, optimizer: torch.optim.Optimizer) -> None:
    """Runs the optimizer. Raises `InvalidInput` if it cannot update these gradients."""
    try:
        optimizer.step()
    except torch.cuda.OutOfMemoryError:
        raise
    except FAILURES as error:
        raise InvalidInput(f"optimizer of step {step.name!r} cannot update: {describe_error(error)}") from error


def try_optimizer(step: TorchStep, model: nn.Module, micro_batches: int) -> None:
    """Tries a step's optimizer on copies of the parameters, because a factory may register hooks on those that it gets.

    Raises:
        InvalidInput: what `new_optimizer` raises; with several micro-batches, a hook that runs after each backward pass.
    """
    copies = {} if step.optimizer is None else _copies_of_parameters(model)
    new_optimizer(step, copies.values())
    hooked_names = (
        name
        for name, p in model.named_parameters()
        if p._post_accumulate_grad_hooks or copies.get(p, p)._post_accumulate_grad_hooks
    )
    if micro_batches > 1 and (name := next(hooked_names, None)) is not None:
        raise InvalidInput(
            f"parameter {name!r} of step {step.name!r} has a hook that runs after each backward pass "
            "(register_post_accumulate_grad_hook); with micro-batches it would see parts of the gradient: update in the step() "
            "of the step's optimizer, or give no micro_batches"
        )


def updates_ranks_alike(
    step: TorchStep, model: nn.Module, parameters_of_ranks: Sequence[Sequence[nn.Parameter]]
) -> bool:
    """Whether an optimizer per rank of a pipeline updates the rank's parameters as one optimizer updates all of the model's."""
    factory = step.optimizer
    while isinstance(factory, functools.partial):
        factory = factory.func
    if factory is None or (isinstance(factory, type) and factory.__module__.startswith("torch.optim.")):
        return True

    def updated_copies(groups: Sequence[Sequence[nn.Parameter]]) -> list[nn.Parameter]:
        copies = _copies_of_parameters(model)
        for optimizer in [new_optimizer(step, [copies[p] for p in group]) for group in groups]:
            for size in (*_SIZES, math.inf):
                generator = torch.Generator().manual_seed(0)
                trainable = [p for p in copies.values() if p.requires_grad]
                for p in trainable:  # the same numbers for all optimizers
                    random_numbers = torch.randn(p.shape, generator=generator)
                    p.grad = (random_numbers * (size if math.isfinite(size) else 1.0)).to(p.device, p.dtype)
                if math.isinf(size) and trainable:  # one gradient overflows; some optimizers then update nothing
                    trainable[0].grad.view(-1)[:1] = size  # type: ignore[union-attr]
                if optimizer is not None:
                    with contextlib.suppress(*((InvalidInput,) if math.isinf(size) else ())):
                        update(step, optimizer)
        return list(copies.values())

    try:
        whole_updates, rank_updates = updated_copies([list(model.parameters())]), updated_copies(parameters_of_ranks)
    except InvalidInput:
        return False
    return all(
        torch.allclose(a, b, rtol=1e-5, equal_nan=True) for a, b in zip(whole_updates, rank_updates, strict=True)
    )


def _copies_of_parameters(model: nn.Module) -> dict[nn.Parameter, nn.Parameter]:
    """Returns a copy of every parameter with its attributes, without its hooks; of a wrapper subclass, the parameter itself."""
    copies: dict[nn.Parameter, nn.Parameter] = {}
    for p in model.parameters():
        copies[p] = p if is_wrapper(p) else nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad)
        copies[p].__dict__.update(p.__dict__)
    return copies
