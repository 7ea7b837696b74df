"""What an estimate says of code that reads the values of tensors, which fake tensors do not have."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeGuard

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from ...errors import InvalidInput, UncountedWork

NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


def lacks_values(error: BaseException | None) -> TypeGuard[BaseException]:
    """Whether code failed because fake tensors have no values, or nested ones no lengths."""
    return isinstance(error, NEEDS_VALUES) or (isinstance(error, AssertionError) and "shape_env" in str(error))


def refusal(who: str, error: BaseException) -> InvalidInput:
    """Returns the error for `who`, a model or a layer, that reads values."""
    values_read = first_line(error) if isinstance(error, NEEDS_VALUES) else "the lengths of a nested tensor"
    return InvalidInput(
        f"{who} looks at the values of tensors ({values_read}), which an estimate does not have: profile the model "
        "measured, with weights (bl.torch.profile(model, inputs)), or without that part"
    )


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or its type."""
    return str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__


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
                stacklevel=2,
            )
            return None

    return changed_gradient
