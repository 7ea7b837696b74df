"""Routers of mixtures of experts in an estimate: every expert gets the same share of the tokens.

The experts of a token depend on weights, which an estimate does not have. If a router chooses `k` experts (the largest of as
many numbers as there are experts), token `t` gets the experts `t * k` to `t * k + k - 1`, modulo their number. Routers are
trained for such equal shares. So code that loops over experts runs with the expected number of tokens for each.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from .known_values import KnownValues

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from ...torch_runtime.tree import Args

_aten = torch.ops.aten
_FILL = (_aten.masked_fill.Scalar, _aten.masked_fill.Tensor)
_CHOICES = (_aten.topk.default, _aten.argmax.default, _aten.max.dim)
_ROUTER = re.compile("Router|Gate$|Gating", re.IGNORECASE)


def expert_counts(model: nn.Module) -> frozenset[int]:
    """Returns the numbers of experts from which the layers of a model choose.

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
    if counts:  # some routers also choose from experts that do nothing
        routers = (m for m in model.modules() if _ROUTER.search(type(m).__name__))
        counts |= {p.shape[0] for m in routers for p in m.parameters() if p.dim() == 2}
    return frozenset(counts - {0, 1})


class EvenRouting:
    """Gives values to the choices of routers."""

    def __init__(self, counts: frozenset[int], values: KnownValues):
        self.counts, self.values = counts, values
        self.excluded: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # logits -> experts that are masked out

    def observe(self, func: OpOverload, args: Args, out: Any) -> None:
        """Stores values for an operator's result if the operator is a router's choice."""
        if func in _FILL and float(args[2]) == float("-inf") and (mask := self.values.of(args[1])) is not None:
            self.excluded[out] = mask
        if func not in _CHOICES or not args[0].is_floating_point() or self.values.of(args[0]) is not None:
            return
        logits, dim = args[0], _choice_dimension(func, args)
        if dim is None or not logits.dim() or logits.shape[dim] not in self.counts:
            return
        choice_output = out if func is _aten.argmax.default else out[1]
        count = args[1] if func is _aten.topk.default else 1
        with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
            choice = even_choice(logits.movedim(dim, -1).shape, count, self.excluded.get(logits)).movedim(-1, dim)
            choice = choice.reshape(choice_output.shape)
        self.values.store(choice_output, choice)


def _choice_dimension(func: OpOverload, args: Args) -> int | None:
    """Returns the dimension along which an operator chooses; None for all at once."""
    if func is _aten.topk.default:
        return args[2] if len(args) > 2 else -1
    return args[1] if len(args) > 1 else None


def even_choice(shape: tuple[int, ...], count: int, excluded: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the experts of every token, int64 with last dimension `count`; `excluded` experts come last.

    >>> even_choice((4, 3), 2).tolist()
    [[0, 1], [2, 0], [1, 2], [0, 1]]
    """
    experts = shape[-1]
    tokens = torch.arange(torch.Size(shape[:-1]).numel()) * count
    rank = (torch.arange(experts) - tokens[:, None]) % experts
    if excluded is not None:
        rank = rank + experts * excluded.expand(shape).reshape(-1, experts)
    return rank.argsort(dim=1)[:, :count].reshape(*shape[:-1], count)
