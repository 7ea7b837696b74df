"""Routers of mixtures of experts in an estimate: every expert gets the same share of the tokens.

The experts of a token depend on weights, which an estimate does not have. If a router chooses `k` experts (the largest of as
many numbers as there are experts), token `t` gets the experts `t * k` to `t * k + k - 1`, modulo their number. Routers are
trained for such equal shares. So code that loops over experts runs with the expected number of tokens for each.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from ...errors import AssumedShares
from ...internal_warnings import outer_stacklevel
from .known_values import KnownValues

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from ...torch_runtime.tree import Args, Kwargs

_aten = torch.ops.aten
_FILL = (_aten.masked_fill.Scalar, _aten.masked_fill.Tensor)
_SORTS = (_aten.sort.default, _aten.sort.stable)
_CHOICES = (_aten.topk.default, _aten.argmax.default, _aten.max.dim, *_SORTS)
_ROUTER = re.compile("Router|Gate$|Gating", re.IGNORECASE)


def expert_counts(model: nn.Module) -> frozenset[int]:
    """Returns the numbers of experts from which the layers of a model choose.

    >>> layer = nn.ModuleDict({"gate": nn.Linear(2, 3), "experts": nn.ModuleList(nn.Linear(2, 2) for _ in range(3))})
    >>> sorted(expert_counts(layer)), sorted(expert_counts(nn.Linear(2, 3)))
    ([3], [])
    """
    counts: set[int] = set()
    has_experts = False
    for name, module in model.named_modules():
        if name.rpartition(".")[2] != "experts" and "Experts" not in type(module).__name__:
            continue
        has_experts = True
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            counts.add(len(module))
        counts |= {p.shape[0] for p in module.parameters(recurse=False) if p.dim() == 3}
    if has_experts:  # some experts are rows of one matrix, and some routers also choose from experts that do nothing
        routers = (m for m in model.modules() if _ROUTER.search(type(m).__name__))
        counts |= {p.shape[0] for m in routers for p in m.parameters() if p.dim() == 2}
    return frozenset(counts - {0, 1})


def experts_by_shape(model: nn.Module) -> dict[int, str]:
    """Returns the numbers of what has the shapes of experts beside their router, with a name of a layer or parameter.

    >>> layer = nn.ModuleDict({"gate": nn.Linear(2, 3), "mlps": nn.ModuleList(nn.Linear(2, 4) for _ in range(3))})
    >>> experts_by_shape(layer), experts_by_shape(layer["mlps"])
    ({3: 'mlps'}, {})
    """
    names: dict[int, str] = {}
    for prefix, module in model.named_modules():
        for name, count, width in _repeated_matrices(module):
            matrices = (p for path, p in module.named_parameters() if path.partition(".")[0] != name and p.dim() == 2)
            if any(p.shape == (count, width) for p in matrices):
                names.setdefault(count, f"{prefix}.{name}".lstrip("."))
    return names


def _repeated_matrices(module: nn.Module) -> Iterator[tuple[str, int, int]]:
    """Yields lists of equal modules and parameters that are lists of matrices: name, number, columns of the first matrix."""
    for name, child in module.named_children():
        entries = [entry for entry in child if entry is not None] if isinstance(child, nn.ModuleList) else []
        shapes = [[p.shape for p in entry.parameters()] for entry in entries]
        matrices = [shape for shape in shapes[0] if len(shape) == 2] if shapes else []
        if len(shapes) > 1 and matrices and all(entry == shapes[0] for entry in shapes):
            yield name, len(shapes), matrices[0][1]
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.dim() == 3 and len(parameter) > 1:
            yield from ((name, len(parameter), width) for width in parameter.shape[1:])


class EvenRouting:
    """Gives values to the choices of routers. `by_shape` are experts of `experts_by_shape`; using them warns."""

    def __init__(self, counts: frozenset[int], values: KnownValues, by_shape: dict[int, str] | None = None):
        self.counts, self.values, self.by_shape = counts, values, by_shape or {}
        self.excluded: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # logits -> experts that are masked out

    def observe(self, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
        """Stores values for an operator's result if the operator is a router's choice."""
        if func in _FILL and float(args[2]) == float("-inf") and (mask := self.values.of(args[1])) is not None:
            self.excluded[out] = mask
        if func not in _CHOICES or not args[0].is_floating_point() or self.values.of(args[0]) is not None:
            return
        logits, dim = args[0], _choice_dimension(func, args, kwargs)
        if dim is None or not logits.dim():
            return
        if (experts := logits.shape[dim]) not in self.counts:
            if experts not in self.by_shape:
                return
            warnings.warn(
                f"{self.by_shape[experts]!r} has the shapes of {experts} experts: where the model chooses among {experts}, the "
                "estimate gives each the same share of the tokens",
                AssumedShares,
                stacklevel=outer_stacklevel(),
            )
            self.counts |= {experts}
        choice_output = out if func is _aten.argmax.default else out[1]
        count = args[1] if func is _aten.topk.default else 1
        columns = experts if func in _SORTS else count
        with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
            shape = logits.movedim(dim, -1).shape
            choice = even_choice(shape, columns, self.excluded.get(logits), step=count).movedim(-1, dim)
            choice = choice.reshape(choice_output.shape)
        self.values.store(choice_output, choice)


def _choice_dimension(func: OpOverload, args: Args, kwargs: Kwargs) -> int | None:
    """Returns the dimension along which an operator chooses; None for all at once."""
    if func is _aten.topk.default:
        return args[2] if len(args) > 2 else -1
    if func in _SORTS:
        return kwargs.get("dim", -1) if func is _aten.sort.stable else args[1] if len(args) > 1 else -1
    return args[1] if len(args) > 1 else None


def even_choice(
    shape: tuple[int, ...], count: int, excluded: torch.Tensor | None = None, *, step: int | None = None
) -> torch.Tensor:
    """Returns the experts of every token, int64 with last dimension `count`; `excluded` experts come last.

    The first expert of a token is `step` after that of the token before it, by default `count`.

    >>> even_choice((4, 3), 2).tolist()
    [[0, 1], [2, 0], [1, 2], [0, 1]]
    """
    experts = shape[-1]
    tokens = torch.arange(torch.Size(shape[:-1]).numel()) * (count if step is None else step)
    rank = (torch.arange(experts) - tokens[:, None]) % experts
    if excluded is not None:
        rank = rank + experts * excluded.expand(shape).reshape(-1, experts)
    return rank.argsort(dim=1)[:, :count].reshape(*shape[:-1], count)
