"""Warns of a model of transformers whose weights have another type than its configuration names."""

from __future__ import annotations

import warnings

from torch import nn

from ...internal_warnings import outer_stacklevel
from .fake_tensors import DTYPES, named_dtype


class ConfiguredDtype(UserWarning):
    """The weights of a model have another type than its configuration; the message names both."""


def warn_about_configured_dtype(model: nn.Module) -> None:
    """Warns if no parameter has the `dtype` of the model's configuration, as after `LlamaForCausalLM(config)`.

    Warns:
        ConfiguredDtype: the estimate is for the type of the weights.
    """
    configured_name = str(getattr(getattr(model, "config", None), "dtype", None)).removeprefix("torch.")
    stored_dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if configured_name not in DTYPES or not stored_dtypes or named_dtype(configured_name) in stored_dtypes:
        return
    weights = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in stored_dtypes))
    warnings.warn(
        f"the weights of {type(model).__name__} are {weights}, and its configuration says {configured_name}; they are estimated "
        "as they are: build the model by bl.torch.hugging_face, or give precision=",
        ConfiguredDtype,
        stacklevel=outer_stacklevel(),
    )
