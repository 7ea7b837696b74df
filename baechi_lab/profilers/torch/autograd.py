"""Dependencies between layers from the autograd graph, as Shetty 2022 derives them.

Every autograd node between a call's inputs and its outputs belongs to the call. From these nodes the graph is followed
backwards to the nodes of other calls; nodes that belong to no call (views, scaling, `SelectBackward`, ...) are skipped. The
library itself uses `trace`, which finds the same dependencies and those that autograd does not record; the tests compare
both. Source: Shetty 2022, section 1.3.1 (2).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...torch_runtime.intercept import Frame, Handler, Interceptor, layer_names
from ...torch_runtime.sequence import inputs_of, nodes_between
from ...torch_runtime.storage import storage_key
from ...torch_runtime.tree import Args, Function, Kwargs, as_arguments, tensors
from ...torch_steps.snapshot import ModelSnapshot
from ...torch_steps.tracing import check_atomic, check_model, run_call

if TYPE_CHECKING:
    from torch.autograd.graph import Node


def autograd_edges(
    model: nn.Module, sample_inputs: object, *, atomic: Collection[str | type] = ()
) -> set[tuple[str, str]]:
    """Returns `(parent key, child key)` of every dependency in the autograd graph of one forward pass (Shetty 2022, 1.3.1).

    `bl.torch.trace` finds these dependencies and those that autograd does not record. Arguments and errors are the same.

    >>> sorted(autograd_edges(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), torch.ones(1, 2)))
    [('0', '1'), ('1', '2')]
    """
    check_model(model)
    check_atomic(atomic)
    args, kwargs = as_arguments(sample_inputs, model)
    layers = layer_names(model, atomic)
    owners = NodeOwners()
    with ModelSnapshot(model, (args, kwargs)), torch.enable_grad(), Interceptor(model, layers, owners):
        outputs = run_call(type(model).__name__, model, args, kwargs, model)
    root_nodes = [t.grad_fn for t in tensors(outputs)]  # keeps the whole autograd graph alive
    edges = {(parent, child) for node, child in owners.of.items() for parent in owners.parents(node, child)}
    del root_nodes
    return edges


class NodeOwners(Handler):
    """The handler that records the call of each autograd node."""

    def __init__(self) -> None:
        self.of: dict[Node, str] = {}

    def call(
        self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None
    ) -> object:
        arguments = list(tensors((args, kwargs)))
        stop = inputs_of(arguments)
        storages = {storage_key(t) for t in arguments}
        outputs = run(*args, **kwargs)
        is_view = module is None and all(storage_key(t) in storages for t in tensors(outputs))
        # Writing a tensor in place gives it a new autograd node.
        if is_view and not any(t.grad_fn is not None and t.grad_fn not in stop for t in arguments):
            return outputs  # its nodes belong to no call
        for node in nodes_between((outputs, arguments), stop):
            self.of.setdefault(node, key)
        return outputs

    def parents(self, node: Node, child: str) -> set[str]:
        """Returns the calls behind `node`; nodes of no call are skipped."""
        keys: set[str] = set()
        stack, visited = [parent for parent, _ in node.next_functions], set()
        while stack:
            current = stack.pop()
            if current is None or current in visited:
                continue
            visited.add(current)
            owner = self.of.get(current)
            if owner is None:
                stack.extend(parent for parent, _ in current.next_functions)
            elif owner != child:
                keys.add(owner)
        return keys
