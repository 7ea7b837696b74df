"""Losses that bend at a value of a whole batch, as that of flooding does, where no trial batch may reach the bend."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch.autograd.graph import Node

_BENT = ("Abs", "Clamp", "Relu", "LeakyRelu", "Hardtanh", "Maximum", "Minimum", "Where", "SmoothL1Loss", "HuberLoss")


def bend_of(loss: torch.Tensor) -> str:
    """Returns the first operator that bends one number which many others make up, or "" if there is none.

    Such a loss, below `(loss - 0.1).abs() + 0.1` (flooding, Ishida et al. 2020), is linear in that number on either side of its
    bend, so its gradients are those of its micro-batches only while all of them lie on one side.

    >>> losses = 2 * torch.ones(4, requires_grad=True)
    >>> bend_of((losses.mean() - 0.1).abs() + 0.1), bend_of(losses.abs().mean())
    ('abs', '')
    """
    for node in _nodes_below(loss.grad_fn, single=True):
        name = node.name().partition("Backward")[0]
        operands = [operand for operand, _ in node.next_functions if operand is not None]
        if name.startswith(_BENT) and all(map(_is_single, operands)) and not all(map(_is_single, _nodes_below(node))):
            return name.lower()
    return ""


def _nodes_below(node: Node | None, single: bool = False) -> Iterator[Node]:
    """Yields `node` and those before it, without parameters; with `single`, only those up to the first of several numbers."""
    waiting, visited = [node], set[Node | None]()
    while waiting:
        node = waiting.pop()
        if (
            node is None
            or node in visited
            or node.name().endswith("AccumulateGrad")
            or (single and not _is_single(node))
        ):
            continue
        visited.add(node)
        yield node
        waiting.extend(before for before, _ in node.next_functions)


def _is_single(node: Node) -> bool:
    """Whether the node's result is one number."""
    return all(math.prod(metadata.shape) == 1 for metadata in node._input_metadata)
