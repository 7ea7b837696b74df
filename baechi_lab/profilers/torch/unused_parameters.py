"""Warns of parameters that no op of a graph reads, such as a vision tower without images."""

from __future__ import annotations

import re
import warnings
from collections import Counter

from torch import nn

from ...internal_warnings import outer_stacklevel
from ...torch_steps.records import Trace

LEAST_SHARE = 0.01
"""Smallest share of a model's parameters that is reported."""
_BY_DESIGN = re.compile(r"(^|[._])experts?([._]|$)")
"""Modules that are unused by design: a token goes to only some experts of a mixture."""


class UnusedParameters(UserWarning):
    """A part of the model did not run with the given inputs; the message names it and its share of the parameters."""


def warn_about_unused_parameters(model: nn.Module, trace: Trace) -> None:
    """Warns of the largest part of a model whose parameters no call reads, with the share of all such parameters.

    Warns:
        UnusedParameters: no call reads at least a hundredth of the parameters, not counting experts of mixtures.
    """
    size = {name: parameter.numel() for name, parameter in model.named_parameters()}
    used = {name for call in trace.calls for name in call.parameters}
    unread = {name for name in size.keys() - used if not _BY_DESIGN.search(name)}
    share = sum(size[name] for name in unread) / max(1, sum(size.values()))
    if share < LEAST_SHARE:
        return
    # The module with the most parameters of which none is read; the outermost of equal ones.
    total_elements: Counter[str] = Counter()
    unused_counts: Counter[str] = Counter()
    for name, elements in size.items():
        path = name.split(".")
        for k in range(1, len(path) + 1):
            total_elements[".".join(path[:k])] += elements
            unused_counts[".".join(path[:k])] += elements * (name in unread)
    modules = (p for p in total_elements if unused_counts[p] == total_elements[p])
    largest_module = max(modules, key=lambda p: (total_elements[p], -len(p)))
    warnings.warn(
        f"{share:.0%} of the parameters of {type(model).__name__} are read by no op of the graph, most of them in "
        f"{largest_module!r}, which does not run with these inputs: its time is not in the estimate; "
        "give inputs that it runs on, or plan without it",
        UnusedParameters,
        stacklevel=outer_stacklevel(),
    )
