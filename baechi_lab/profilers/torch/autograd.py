"""The dependency graph between layers as paper P derives it: from the autograd graph.

Every autograd node between a call's inputs and its outputs belongs to the call; from these nodes the graph is followed
backwards, through nodes that belong to no call (views, scaling, `SelectBackward`, ...: they are shunted), to the nodes of
other calls. The library uses `trace`, which sees the same dependencies and those that autograd does not record; the two
are compared in the tests. Source: paper P, section 1.3.1 (2).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from ...torch.runtime.intercept import Frame, Handler, Interceptor, layer_names
from ...torch.runtime.sequence import inputs_of, nodes_between
from ...torch.runtime.storage import storage_key
from ...torch.runtime.tree import as_arguments, tensors
from ...torch.snapshot import ModelSnapshot
from ...torch.tracing import check_model


def autograd_edges(
    model: nn.Module, sample_inputs: Any, *, atomic: Collection[str | type] = ()
) -> set[tuple[str, str]]:
    """`(parent key, child key)` of every dependency that the autograd graph of one forward shows.

    >>> sorted(autograd_edges(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), torch.ones(1, 2)))
    [('0', '1'), ('1', '2')]
    """
    args, kwargs = as_arguments(sample_inputs, model)
    check_model(model)
    layers = layer_names(model, atomic)
    owners = Owners()
    with ModelSnapshot(model, (args, kwargs)), torch.enable_grad():
        interceptor = Interceptor(model, layers, owners).install()
        try:
            outputs = model(*args, **kwargs)
        finally:
            interceptor.remove()
    kept = [t.grad_fn for t in tensors(outputs)]  # the nodes live as long as what leads to them
    edges = {(parent, child) for node, child in owners.of.items() for parent in owners.parents(node, child)}
    del kept
    return edges


class Owners(Handler):
    """The handler that notes which call each autograd node belongs to."""

    def __init__(self) -> None:
        self.of: dict[Any, str] = {}

    def call(
        self, frame: Frame, key: str, run: Callable[..., Any], args: Any, kwargs: Any, module: nn.Module | None
    ) -> Any:
        taken = list(tensors((args, kwargs)))
        stop = inputs_of(taken)
        storages = {storage_key(t) for t in taken}
        outputs = run(*args, **kwargs)
        made = list(tensors(outputs))
        if module is None and all(storage_key(t) in storages for t in made) and not self._wrote(taken, stop):
            return outputs  # a view: its nodes belong to no call
        for node in nodes_between((outputs, taken), stop):
            self.of.setdefault(node, key)
        return outputs

    @staticmethod
    def _wrote(taken: list[torch.Tensor], stop: set[Any]) -> bool:
        """An in-place function gives the tensor that it wrote to a new node."""
        return any(t.grad_fn is not None and t.grad_fn not in stop for t in taken)

    def parents(self, node: Any, child: str) -> set[str]:
        """The calls behind `node`, nodes of no call shunted."""
        found: set[str] = set()
        stack, seen = [parent for parent, _ in node.next_functions], set()
        while stack:
            here = stack.pop()
            if here is None or here in seen:
                continue
            seen.add(here)
            owner = self.of.get(here)
            if owner is None:
                stack.extend(parent for parent, _ in here.next_functions)
            elif owner != child:
                found.add(owner)
        return found
