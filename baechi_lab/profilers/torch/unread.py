"""Parameters that no op of a graph reads: parts of a model that its inputs leave out, as a vision tower without images."""

from __future__ import annotations

import re
import warnings
from collections import Counter

from torch import nn

from ...torch.records import Trace

LEAST_SHARE = 0.01
"""Of a model's parameters; less is not worth a sentence."""
_BY_DESIGN = re.compile(r"(^|[._])experts?([._]|$)")
"""Each token is for some experts of a mixture only."""


class UnusedParameters(UserWarning):
    """A part of the model did not run with the inputs given; the message says which, and its share of the parameters."""


def warn_of_unread(model: nn.Module, found: Trace) -> None:
    """Name the largest part of a model whose parameters no call reads, and the share of all such.

    Warns:
        UnusedParameters: more than a hundredth of the parameters is read by no call, experts of mixtures aside.
    """
    size = {name: parameter.numel() for name, parameter in model.named_parameters()}
    used = {name for call in found.calls for name in call.parameters}
    unread = {name for name in size.keys() - used if not _BY_DESIGN.search(name)}
    share = sum(size[name] for name in unread) / max(1, sum(size.values()))
    if share < LEAST_SHARE:
        return
    warnings.warn(
        f"{share:.0%} of the parameters of {type(model).__name__} are read by no op of the graph, most of them in "
        f"{_largest(size, unread)!r}, which does not run with these inputs: its time is not in the estimate; give inputs "
        "that it runs on, or plan without it",
        UnusedParameters,
        stacklevel=5,
    )


def _largest(size: dict[str, int], unread: set[str]) -> str:
    """The module of which nothing is read that has the most parameters; the outermost of several with as many."""
    whole: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for name, elements in size.items():
        parts = name.split(".")
        for k in range(1, len(parts) + 1):
            whole[".".join(parts[:k])] += elements
            missed[".".join(parts[:k])] += elements * (name in unread)
    return max((p for p in whole if missed[p] == whole[p]), key=lambda p: (whole[p], -len(p)))
