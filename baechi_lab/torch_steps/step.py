"""TorchStep: one training step of a PyTorch model, as a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import nn

from ..checks import check_whole
from ..errors import InvalidInput, describe_error, in_short
from ..internal_warnings import warn
from ..torch_runtime.random import restored_generators, seed_generators
from ..torch_runtime.tree import as_arguments, lists_of_images, map_tensors, split_batch, tensors
from .default_loss import own_loss
from .optimizer_tensors import optimizer_state_tensors

FAILURES = (TypeError, ValueError, LookupError, AttributeError, AssertionError, RuntimeError)
"""What code of a model or an optimizer raises on arguments that it was not made for: an optimizer may require a closure."""


MOST_OPTIMIZER_STATES = 100
"""Most tensors of a parameter's size that an optimizer keeps; their bytes are exact in 64 bits."""


def check_optimizer_states(field: str, count: object) -> None:
    """Raises `InvalidInput` unless `count` is a number of tensors that an optimizer may keep."""
    if check_whole(field, count, 0) > MOST_OPTIMIZER_STATES:
        raise InvalidInput(f"{field} is {in_short(count)}; it must be at most {MOST_OPTIMIZER_STATES}")


@dataclass(frozen=True, eq=False, repr=False)
class TorchStep:
    """Forward, loss, backward and (where an optimizer is given) update of one model on one batch.

    Args:
        name: what the step is called in tables.
        build: makes the model; called under `seed`, so that the same step always starts from the same parameters.
            For an export: a class or function of a module, or `functools.partial` of one with literal keywords.
        inputs: the model's arguments, on the CPU: a tensor, a tuple of positional ones, a dict (or Hugging Face's
            `BatchEncoding`) of keywords, with labels or without, or both as `(tuple, dict)`; one argument that is a list of
            tensors as `([...],)`.
        loss: `(outputs, *targets) -> scalar`; by default the `loss` that the outputs have or their only scalar, else the mean
            of their squares.
        targets: what the loss compares with, on the CPU: a tensor, or a tuple of them.
        optimizer: `parameters -> torch.optim.Optimizer`, or None for no update; for an export, a class of
            `torch.optim` or `functools.partial` of one.
        optimizer_states: tensors of a parameter's size that it keeps (SGD 0, momentum 1, Adam 2); by default counted.
        atomic: module classes that are kept whole.
        config: the arguments with which a benchmark model was built, for whoever reads the step.
        mode: "training" calls `train()` on what `build` makes, which `from_pretrained` leaves in `eval()`; None leaves it.

    >>> step = TorchStep("tiny", lambda: nn.Linear(4, 2), (torch.ones(3, 4),))
    >>> float(step.run(step.model()).detach()) >= 0
    True
    """

    framework: ClassVar[str] = "torch"
    """What stages that serve several frameworks dispatch on."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Any
    loss: Callable[..., torch.Tensor] | None = None
    targets: tuple[torch.Tensor, ...] = ()
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None
    optimizer_states: int | None = None
    atomic: tuple[str, ...] = ()
    seed: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    mode: str | None = None

    def __post_init__(self) -> None:
        if self.mode is not None and not (isinstance(self.mode, str) and self.mode == "training"):
            raise InvalidInput(f"mode of step {self.name!r} is {self.mode!r}; it must be 'training' or None")
        if isinstance(self.build, nn.Module) or not callable(self.build):
            kind = type(self.build).__name__
            raise InvalidInput(
                f"build of step {self.name!r} is a {kind}; it must be what makes the model, such as its class"
            )
        targets = (self.targets,) if isinstance(self.targets, torch.Tensor) else self.targets
        if not isinstance(targets, (tuple, list)):
            kind = type(targets).__name__
            raise InvalidInput(f"targets of step {self.name!r} is a {kind}; it must be a tensor or a tuple of tensors")
        object.__setattr__(self, "targets", tuple(targets))
        if self.optimizer is not None and not callable(self.optimizer):
            kind = type(self.optimizer).__name__
            raise InvalidInput(
                f"optimizer of step {self.name!r} is a {kind}; it must be what makes the optimizer of the parameters, such as "
                "its class; a class of yours may hold several"
            )
        if self.optimizer_states is not None:
            check_optimizer_states(f"optimizer_states of step {self.name!r}", self.optimizer_states)
        try:
            args, kwargs = as_arguments(self.inputs)
        except InvalidInput as error:
            raise InvalidInput(str(error).replace("sample_inputs", f"inputs of step {self.name!r}")) from None
        # Store a tuple, a dict, or both. A list is left, because only the model says what it is.
        if not isinstance(self.inputs, list):
            object.__setattr__(self, "inputs", args if not kwargs else kwargs if not args else (args, kwargs))

    @property
    def batch_size(self) -> int | None:
        """The first dimension of all inputs and targets; None where they share none, and for lists of what may be images.

        >>> TorchStep("tiny", lambda: nn.Linear(4, 2), (torch.ones(6, 4),)).batch_size
        6
        """
        sizes = {len(t) if t.dim() else 0 for t in [*tensors(self.inputs), *self.targets]}
        has_images = next(lists_of_images((self.inputs, self.targets)), None) is not None
        return sizes.pop() or None if len(sizes) == 1 and not has_images else None

    def arguments(self, model: nn.Module) -> tuple[tuple[object, ...], dict[str, object]]:
        """Positional and keyword arguments of the step's model."""
        return as_arguments(self.inputs, model)

    def model(self) -> nn.Module:
        """Returns a new model with the parameters that `seed` gives; the random generators are left as they were."""
        with restored_generators():
            seed_generators(self.seed)
            model = self.build()
        return model.train() if self.mode == "training" else model

    @property
    def kept_states(self) -> int:
        """Tensors of a parameter's size that the optimizer keeps: as given, otherwise counted on small parameters.

        An optimizer that updates neither eight parameters nor one counts as none, with a warning.

        >>> TorchStep("t", lambda: nn.Linear(4, 2), (torch.ones(3, 4),), optimizer=torch.optim.Adam).kept_states
        2
        """
        if self.optimizer_states is not None or self.optimizer is None:
            return self.optimizer_states or 0
        for count in (8, 1):  # several, for optimizers that divide parameters into groups or update a part of them
            parameters = [nn.Parameter(torch.zeros(3, 5, device="cpu")) for _ in range(count)]
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            try:
                optimizer = self.optimizer(parameters)
                optimizer.step()
                states = [optimizer_state_tensors(optimizer, parameter) for parameter in parameters]
            except FAILURES as error:
                failure = error
                continue
            counts = {sum(t.shape == (3, 5) for t in state) for state in states}
            fewest_states, most_states = min(counts), max(counts)
            if fewest_states < most_states:
                warn(
                    f"the optimizer of step {self.name!r} keeps {fewest_states} tensors for some parameters and "
                    f"{most_states} for others; {most_states} are counted for all"
                )
            return most_states
        warn(
            f"the optimizer of step {self.name!r} updates no parameters but its model's "
            f"({describe_error(failure)}); its state is not counted: give "
            "optimizer_states="
        )
        return 0

    def on(self, device: str) -> TorchStep:
        """Returns the same step with inputs and targets on another device."""
        placed_batch = map_tensors((self.inputs, self.targets), lambda t: t.to(device))
        return replace(self, inputs=placed_batch[0], targets=placed_batch[1])

    def micro_batches(self, count: int) -> list[TorchStep]:
        """Returns the steps of `count` equal parts of the batch. The batch is the first dimension of all inputs and targets.

        Raises `InvalidInput` for a batch that does not divide, for a tensor with another first dimension, and for lists of
        what may be images, whose first dimension is the channels.

        >>> step = TorchStep("tiny", lambda: nn.Linear(4, 2), (torch.ones(6, 4),))
        >>> [list(part.inputs[0].shape) for part in step.micro_batches(3)]
        [[2, 4], [2, 4], [2, 4]]
        """
        check_whole("micro_batches", count)
        batch_tensors = [*tensors(self.inputs), *self.targets]
        images = next(lists_of_images((self.inputs, self.targets)), None)
        if images is not None and count > 1:
            raise InvalidInput(
                f"batch of step {self.name!r} has a list of {len(images)} tensors of shape {list(images[0].shape)}, "
                "which may be images, whose first dimension is not the batch; to be cut into micro-batches, stack them into "
                "one tensor, or write a tuple where the first dimension is the batch"
            )
        if any(t.dim() == 0 or len(t) != len(batch_tensors[0]) for t in batch_tensors) or not batch_tensors:
            shapes = ", ".join(str(list(t.shape)) for t in batch_tensors)
            raise InvalidInput(
                f"inputs and targets of step {self.name!r} have shapes {shapes}; to be cut into micro-batches all must "
                "have the batch as their first dimension"
            )
        if len(batch_tensors[0]) % count:
            raise InvalidInput(
                f"the batch of step {self.name!r} has {len(batch_tensors[0])} rows; it must be a multiple of micro_batches, "
                f"which is {count}"
            )
        inputs, targets = (split_batch(batch, count) for batch in (self.inputs, self.targets))
        return [replace(self, inputs=x, targets=y) for x, y in zip(inputs, targets, strict=True)]

    def run(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> torch.Tensor:
        """Runs one step on `model`; returns the loss."""
        if optimizer is not None:
            optimizer.zero_grad(set_to_none=True)
        args, kwargs = self.arguments(model)
        outputs = model(*args, **kwargs)
        loss = self.loss_of(outputs)
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        return loss

    def loss_of(self, outputs: object) -> torch.Tensor:
        """Returns the loss of the model's outputs. Targets are moved to the outputs' device."""
        output_device = next((t.device for t in tensors(outputs)), torch.device("cpu"))
        try:
            if self.loss is None:
                return own_loss(outputs)
            return self.loss(outputs, *map_tensors(self.targets, lambda t: t.to(output_device)))
        except (TypeError, ValueError, LookupError, AttributeError, RuntimeError) as error:
            # Memory may be exhausted, and what has no values raises errors of its own.
            is_of_the_loss = type(error) in (RuntimeError, NotImplementedError) and "alloc" not in str(error)
            if isinstance(error, RuntimeError) and not is_of_the_loss:
                raise
            raise InvalidInput(
                f"loss of step {self.name!r} failed on the model's outputs and {len(self.targets)} targets: "
                f"{describe_error(error, 500)}"
            ) from error

    def __repr__(self) -> str:
        shapes = ", ".join(str(list(t.shape)) for t in tensors(self.inputs))
        return f"<TorchStep {self.name!r}: inputs {shapes}>"


@dataclass(frozen=True)
class ReturnedModel:
    """Builds the model that `function()` returns as the first of a tuple, before its inputs; see `build` of `TorchStep`.

    >>> ReturnedModel(lambda: (nn.Linear(4, 2), torch.ones(3, 4)))()
    Linear(in_features=4, out_features=2, bias=True)
    """

    function: Callable[[], Any]

    def __call__(self) -> nn.Module:
        model: nn.Module = self.function()[0]
        return model
