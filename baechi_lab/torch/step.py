"""TorchStep: one training step of a PyTorch model, as a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import nn

from ..checks import check_whole
from ..errors import InvalidInput
from .models.losses import mean_square
from .runtime.tree import divided, map_tensors, tensors


@dataclass(frozen=True, eq=False, repr=False)
class TorchStep:
    """Forward, loss, backward and (where an optimizer is given) update of one model on one batch.

    Args:
        name: what the step is called in tables.
        build: makes the model; called under `seed`, so that the same step always starts from the same parameters.
            For an export: a class or function of a module, or `functools.partial` of one with literal keywords.
        inputs: the model's positional arguments, on the CPU.
        loss: `(outputs, *targets) -> scalar`; by default the mean of all outputs' squares.
        targets: what the loss compares with, on the CPU.
        optimizer: `parameters -> torch.optim.Optimizer`, or None for no update; for an export, a class of
            `torch.optim` or `functools.partial` of one.
        optimizer_states: tensors of a parameter's size that it keeps (SGD 0, momentum 1, Adam 2).
        atomic: module classes that are kept whole.

    >>> step = TorchStep("tiny", lambda: nn.Linear(4, 2), (torch.ones(3, 4),))
    >>> float(step.run(step.model()).detach()) >= 0
    True
    """

    framework: ClassVar[str] = "torch"
    """What stages that serve several frameworks dispatch on."""

    name: str
    build: Callable[[], nn.Module]
    inputs: tuple[torch.Tensor, ...]
    loss: Callable[..., torch.Tensor] | None = None
    targets: tuple[torch.Tensor, ...] = ()
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None
    optimizer_states: int = 0
    atomic: tuple[str, ...] = ()
    seed: int = 0
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, tuple) or not all(isinstance(t, torch.Tensor) for t in self.inputs):
            raise InvalidInput(
                f"inputs of step {self.name!r} is a {type(self.inputs).__name__}; it must be a tuple of tensors"
            )

    def model(self) -> nn.Module:
        """A new model with the parameters that `seed` gives; the random generators are left as they were."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self.build()

    def on(self, device: str) -> TorchStep:
        """The same step with inputs and targets on another device."""
        moved = map_tensors((self.inputs, self.targets), lambda t: t.to(device))
        return replace(self, inputs=moved[0], targets=moved[1])

    def micro_batches(self, count: int) -> list[TorchStep]:
        """The steps of `count` equal parts of the batch, the first dimension of all inputs and targets.

        Raises `InvalidInput` for a batch that does not divide, and for a tensor that has another first dimension.

        >>> step = TorchStep("tiny", lambda: nn.Linear(4, 2), (torch.ones(6, 4),))
        >>> [list(part.inputs[0].shape) for part in step.micro_batches(3)]
        [[2, 4], [2, 4], [2, 4]]
        """
        check_whole("micro_batches", count)
        given = [*self.inputs, *self.targets]
        if any(t.dim() == 0 or len(t) != len(given[0]) for t in given) or not given:
            shapes = ", ".join(str(list(t.shape)) for t in given)
            raise InvalidInput(
                f"inputs and targets of step {self.name!r} have shapes {shapes}; to be cut into micro-batches all must "
                "have the batch as their first dimension"
            )
        if len(given[0]) % count:
            raise InvalidInput(
                f"the batch of step {self.name!r} has {len(given[0])} rows; it must be a multiple of micro_batches, "
                f"which is {count}"
            )
        inputs, targets = (divided(tensors, count) for tensors in (self.inputs, self.targets))
        return [replace(self, inputs=x, targets=y) for x, y in zip(inputs, targets, strict=True)]

    def run(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> torch.Tensor:
        """One step on `model`; returns the loss."""
        if optimizer is not None:
            optimizer.zero_grad(set_to_none=True)
        outputs = model(*self.inputs)
        loss = self.loss_of(outputs)
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        return loss

    def loss_of(self, outputs: Any) -> torch.Tensor:
        """The loss of what the model returned, targets brought to the outputs' device."""
        here = next(tensors(outputs)).device
        if self.loss is None:
            return mean_square(outputs)
        return self.loss(outputs, *map_tensors(self.targets, lambda t: t.to(here)))

    def __repr__(self) -> str:
        shapes = ", ".join(str(list(t.shape)) for t in self.inputs)
        return f"<TorchStep {self.name!r}: inputs {shapes}>"
