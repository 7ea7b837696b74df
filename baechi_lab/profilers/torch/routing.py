"""Routers of mixtures of experts in an estimate: every expert gets the same share of the tokens.

Which experts a token goes to depends on weights, which an estimate does not have. Where a router chooses - the largest of as
many numbers as there are experts - token `t` of `k` experts each gets `t * k` to `t * k + k - 1`, counted round. That is the
share that routers are trained for. So code that loops over experts runs with its expected number of tokens for each.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from .values import Values

_aten = torch.ops.aten
_FILL = (_aten.masked_fill.Scalar, _aten.masked_fill.Tensor)
_CHOICES = (_aten.topk.default, _aten.argmax.default, _aten.max.dim)
_ROUTER = re.compile("Router|Gate$|Gating", re.IGNORECASE)


def expert_counts(model: nn.Module) -> frozenset[int]:
    """How many experts the layers of a model choose from.

    >>> layer = nn.ModuleDict({"gate": nn.Linear(2, 3), "experts": nn.ModuleList(nn.Linear(2, 2) for _ in range(3))})
    >>> sorted(expert_counts(layer)), sorted(expert_counts(nn.Linear(2, 3)))
    ([3], [])
    """
    counts: set[int] = set()
    for name, module in model.named_modules():
        if name.rpartition(".")[2] != "experts" and "Experts" not in type(module).__name__:
            continue
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            counts.add(len(module))
        counts |= {p.shape[0] for p in module.parameters(recurse=False) if p.dim() == 3}
    if counts:  # some routers choose from experts that do nothing as well
        routers = (m for m in model.modules() if _ROUTER.search(type(m).__name__))
        counts |= {p.shape[0] for m in routers for p in m.parameters() if p.dim() == 2}
    return frozenset(counts - {0, 1})


class EvenRouting:
    """Gives the choices of routers values."""

    def __init__(self, counts: frozenset[int], values: Values):
        self.counts, self.values = counts, values
        self.taken: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # logits -> experts that were chosen before

    def ran(self, func: Any, args: Any, out: Any) -> None:
        """An operator ran: if it is a router's choice, its result has values from here on."""
        if func in _FILL and float(args[2]) == float("-inf") and (mask := self.values.of(args[1])) is not None:
            self.taken[out] = mask
        if func not in _CHOICES or not args[0].is_floating_point() or self.values.of(args[0]) is not None:
            return
        logits, dim = args[0], _dimension(func, args)
        if dim is None or not logits.dim() or logits.shape[dim] not in self.counts:
            return
        made = out if func is _aten.argmax.default else out[1]
        count = args[1] if func is _aten.topk.default else 1
        with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
            choice = even_choice(logits.movedim(dim, -1).shape, count, self.taken.get(logits)).movedim(-1, dim)
            choice = choice.reshape(made.shape)
        self.values.put(made, choice)


def _dimension(func: Any, args: Any) -> int | None:
    """Along which dimension an operator chooses; None for all at once."""
    if func is _aten.topk.default:
        return args[2] if len(args) > 2 else -1
    return args[1] if len(args) > 1 else None


def even_choice(shape: tuple[int, ...], count: int, taken: torch.Tensor | None = None) -> torch.Tensor:
    """The experts of every token, int64 of the last dimension `count`; those `taken` already come last.

    >>> even_choice((4, 3), 2).tolist()
    [[0, 1], [2, 0], [1, 2], [0, 1]]
    """
    experts = shape[-1]
    tokens = torch.arange(torch.Size(shape[:-1]).numel()) * count
    rank = (torch.arange(experts) - tokens[:, None]) % experts
    if taken is not None:
        rank = rank + experts * taken.expand(shape).reshape(-1, experts)
    return rank.argsort(dim=1)[:, :count].reshape(*shape[:-1], count)
