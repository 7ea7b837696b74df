"""Trials of a step's optimizer: whether it can update without a closure, and whether it updates parts of the model alike.

A process of a pipeline updates the parameters of its own stages. That equals the update of the whole model only if each
parameter is updated by itself, as by all optimizers of torch. One that scales by the norm of all gradients, or groups
parameters by their position, updates a part otherwise. So both are tried on gradients that are drawn for it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from ..errors import InvalidInput
from .snapshot import ModelSnapshot
from .step import FAILURES, TorchStep

_SIZES = (1e3, 1.0, 1e-3)
"""Sizes of the gradients of successive updates, so that a limit of their norm holds in some and not in others."""


def new_optimizer(step: TorchStep, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer | None:
    """The step's optimizer for the parameters; None if it has none.

    Raises:
        InvalidInput: it cannot be made for them, or its `step` requires a closure that computes the loss again.
    """
    if step.optimizer is None:
        return None
    try:
        optimizer = step.optimizer(parameters)
    except FAILURES as error:
        raise InvalidInput(f"optimizer of step {step.name!r} failed: {_first_line(error)}") from error
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
        raise InvalidInput(f"optimizer of step {step.name!r} cannot update: {_first_line(error)}") from error


def updates_parts_alike(step: TorchStep, model: nn.Module, parts: Sequence[Sequence[nn.Parameter]]) -> bool:
    """Whether an optimizer per part updates its parameters as one optimizer updates all of the model's.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> step = TorchStep("t", lambda: model, (torch.ones(1, 2),), optimizer=lambda ps: torch.optim.SGD([*ps][:2]))
    >>> updates_parts_alike(step, model, [list(layer.parameters()) for layer in model])
    False
    """
    make = step.optimizer
    while isinstance(make, functools.partial):
        make = make.func
    if make is None or (isinstance(make, type) and make.__module__.startswith("torch.optim.")):
        return True

    def updated(groups: Sequence[Iterable[nn.Parameter]]) -> list[torch.Tensor]:
        with ModelSnapshot(model):
            for group in groups:
                optimizer = new_optimizer(step, group)
                assert optimizer is not None  # noqa: S101  (the step has one)
                for size in _SIZES:
                    generator = torch.Generator().manual_seed(0)
                    for p in model.parameters():  # the same numbers in all calls
                        if p.requires_grad:
                            p.grad = (size * torch.randn(p.shape, generator=generator)).to(p.device, p.dtype)
                    update(step, optimizer)
            return [p.detach().clone() for p in model.parameters()]

    try:
        whole, divided = updated([model.parameters()]), updated(parts)
    except InvalidInput:
        return False
    return all(torch.allclose(a, b, rtol=1e-5, equal_nan=True) for a, b in zip(whole, divided, strict=True))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
