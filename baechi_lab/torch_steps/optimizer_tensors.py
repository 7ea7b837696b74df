"""The tensors of an optimizer that may hold others, or keep states in dicts of its own."""

from __future__ import annotations

import torch
from torch import nn

from ..torch_runtime.tree import tensors


def optimizer_state_tensors(optimizer: object, parameter: nn.Parameter) -> list[torch.Tensor]:
    """Returns the tensors that an optimizer keeps for a parameter, in its state or in another dict of its own.

    Those of optimizers that it holds are among them.
    """
    attributes = (value for holder in optimizers_within(optimizer) for value in vars(holder).values())
    return list(tensors([attribute.get(parameter) for attribute in attributes if isinstance(attribute, dict)]))


def all_optimizer_tensors(optimizer: object) -> list[torch.Tensor]:
    """Returns all tensors of an optimizer and of those that it holds, including parameters and states."""
    return list(tensors([vars(holder) for holder in optimizers_within(optimizer)]))


def optimizers_within(optimizer: object) -> list[object]:
    """Returns an optimizer and those that it holds as attributes, or in lists and dicts of its own, at any depth.

    >>> class Both:
    ...     def __init__(self, parameters):
    ...         self.parts = [torch.optim.SGD([p]) for p in parameters]
    ...     def step(self): ...
    >>> [type(one).__name__ for one in optimizers_within(Both([torch.ones(1), torch.ones(2)]))]
    ['Both', 'SGD', 'SGD']
    """
    holders: dict[int, object] = {id(optimizer): optimizer}
    waiting: list[object] = [optimizer]
    while waiting:
        holder = waiting.pop(0)
        # The states of an optimizer have a key per parameter, its groups an entry: no optimizers are in them.
        attributes = [value for name, value in vars(holder).items() if name not in ("state", "param_groups")]
        while attributes:
            value = attributes.pop(0)
            if isinstance(value, (list, tuple, dict)):
                attributes += value.values() if isinstance(value, dict) else value
            elif id(value) not in holders and callable(getattr(value, "step", None)) and hasattr(value, "__dict__"):
                holders[id(value)] = value
                waiting.append(value)
    return list(holders.values())
