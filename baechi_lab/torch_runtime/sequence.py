"""Sequence numbers of autograd: they keep gradients bit-equal when layers run in another order.

Autograd runs the ready nodes of the backward pass in descending sequence number. So it visits the layers in reverse code
order, and sums the gradients of a tensor with several readers in that order. Numbers are counted per thread: nodes created in
a waiting thread would be visited last, and their gradients would be summed in another order, equal only up to rounding. So
the host reserves numbers for a deferred layer when the code reaches it, and the thread gives them to the layer's nodes.

Older versions of torch have no `Node._set_sequence_nr`. Then nothing is renumbered, and the gradients of a reordered model
equal the original's up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.autograd.graph import Node

from .tree import tensors


def next_sequence_number() -> int:
    """Returns the number that the next autograd node of this thread will get."""
    return int(torch._C._autograd._get_sequence_nr())  # type: ignore[attr-defined]


def set_aside(numbers: int) -> int:
    """Reserves `numbers` sequence numbers of this thread; returns the first of them."""
    first = next_sequence_number()
    if numbers and torch.is_grad_enabled():
        probe = torch.zeros((), requires_grad=True)
        while next_sequence_number() < first + numbers:
            probe.neg()  # only creating a node advances the counter
    return first


def inputs_of(value: object) -> set[Node]:
    """Returns the autograd nodes of the tensors of `value`: where the walk through a layer's own nodes ends.

    If a layer writes into a view, the nodes of the base of the view belong to it too.
    """
    leaves = list(tensors(value))
    bases = [t._base for t in leaves if t._is_view()]
    return {t.grad_fn for t in (*leaves, *bases) if t is not None and t.grad_fn is not None}


def nodes_between(outputs: object, stop: Iterable[Node]) -> list[Node]:
    """Returns the autograd nodes from `outputs` back to `stop` (exclusive), without leaves, oldest first."""
    visited = set(stop)
    nodes: list[Node] = []
    stack = [t.grad_fn for t in tensors(outputs) if t.grad_fn is not None]
    while stack:
        node = stack.pop()
        if node in visited or type(node).__name__ == "AccumulateGrad":
            continue
        visited.add(node)
        nodes.append(node)
        stack.extend(parent for parent, _ in node.next_functions if parent is not None)
    return sorted(nodes, key=lambda node: int(node._sequence_nr()))


def renumber(outputs: object, stop: Iterable[object], first: int, numbers: int) -> None:
    """Gives the nodes of one layer the numbers that were reserved for it."""
    for i, node in enumerate(nodes_between(outputs, stop)):
        set_number = getattr(node, "_set_sequence_nr", None)
        if set_number is None:
            return
        set_number(first + min(i, max(numbers - 1, 0)))
