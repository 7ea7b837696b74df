"""What an estimate says of code that reads the values of tensors, which fake tensors do not have."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.distributions import Distribution

from ...errors import InvalidInput, UncountedWork
from ...internal_warnings import outer_stacklevel

NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
_SKIP_CHECKS_VARIABLE = "TRANSFORMERS_DISABLE_TORCH_CHECK"


class RandomDecision(DataDependentOutputException):
    """Code reads a random number that it has drawn."""


def lacks_values(error: BaseException | None) -> TypeGuard[BaseException]:
    """Whether code failed because fake tensors have no values, or nested ones no lengths."""
    return isinstance(error, NEEDS_VALUES) or (isinstance(error, AssertionError) and "shape_env" in str(error))


def refusal(who: str, error: BaseException) -> InvalidInput:
    """Returns the error for `who`, a model or a layer, that reads values."""
    if isinstance(error, RandomDecision):
        return InvalidInput(
            f"{who} decides by a random number what runs or how large tensors are, and an estimate draws none: profile the "
            "model measured, with weights (bl.torch.profile(model, inputs)), as detectors in training need; if it is a layer "
            "drop, set it to 0 (layerdrop, encoder_layerdrop, decoder_layerdrop in configurations of transformers) or "
            "estimate the model in evaluation (mode='inference')"
        )
    values_read = first_line(error) if isinstance(error, NEEDS_VALUES) else "the lengths of a nested tensor"
    role = "on which shapes depend and " if isinstance(error, DynamicOutputShapeException) else ""
    return InvalidInput(
        f"{who} looks at the values of tensors ({values_read}), {role}which an estimate does not have: profile the model "
        "measured, with weights (bl.torch.profile(model, inputs)), or without that part"
    )


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or its type."""
    return str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__


@contextmanager
def skip_value_checks() -> Iterator[None]:
    """Disables checks of values, and PyTorch's own log of failures.

    Such checks are in transformers (as many image tokens as images) and in `torch.distributions` (a scale above zero).
    """
    log, before = logging.getLogger("torch._subclasses.fake_tensor"), os.environ.get(_SKIP_CHECKS_VARIABLE)
    disabled, log.disabled, os.environ[_SKIP_CHECKS_VARIABLE] = log.disabled, True, "1"
    validate_args, Distribution._validate_args = Distribution._validate_args, False
    swap, torch.utils.swap_tensors = torch.utils.swap_tensors, _replace_data  # within `module.to(...)`
    try:
        yield
    finally:
        log.disabled, torch.utils.swap_tensors, Distribution._validate_args = disabled, swap, validate_args
        if before is None:
            del os.environ[_SKIP_CHECKS_VARIABLE]
        else:
            os.environ[_SKIP_CHECKS_VARIABLE] = before


def _replace_data(parameter: torch.Tensor, new_tensor: torch.Tensor) -> None:
    """Replaces a parameter's data by the converted tensor, as for a real parameter."""
    parameter.data = new_tensor.data


def hook_without_values(
    hook: Callable[[torch.Tensor], torch.Tensor | None],
) -> Callable[[torch.Tensor], torch.Tensor | None]:
    """Returns the hook of a parameter's gradient for gradients without values. A hook that reads values changes nothing."""

    def changed_gradient(gradient: torch.Tensor) -> torch.Tensor | None:
        try:
            return hook(gradient)
        except NEEDS_VALUES as error:
            warnings.warn(
                f"a hook of a parameter of shape {list(gradient.shape)} reads the values of its gradient "
                f"({first_line(error)}), which an estimate does not have: what the hook does is not counted",
                UncountedWork,
                stacklevel=outer_stacklevel(),
            )
            return None

    return changed_gradient
