"""Expert rules: from the name scopes of a model's layers to a device for every op.

The models open one name scope per layer (`encoder/layer2/t7/MatMul`). TensorFlow repeats that scope in the backward
ops (`gradient_tape/encoder/layer2/t7/MatMul/MatMul_1`), and the updates carry the variable's name
(`optimizer/encoder/layer2/kernel/...`). A rule reads the scope; ops without one (sums of gradients, inputs,
constants that the tracer added) follow the ops that read them, then those that feed them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..errors import InvalidInput
from ..graph import OpGraph

Rule = Callable[[tuple[str, ...]], int | None]
"""Scope parts of an op -> device index, or None when the scope says nothing."""

_PREFIXES = ("gradient_tape", "gradients", "optimizer")
_LAYER = re.compile(r"layer(\d+)$")


def scope_parts(name: str) -> tuple[str, ...]:
    """Returns the parts of an op's name from the scope of its layer on: without the prefixes of backward and update ops.

    >>> scope_parts("gradient_tape/encoder/layer2/t7/MatMul/MatMul_1")[:2]
    ('encoder', 'layer2')
    """
    components = tuple(name.split("/"))
    while len(components) > 1 and components[0] in _PREFIXES:
        components = components[1:]
    return components


def layer_number(components: tuple[str, ...]) -> int | None:
    """Returns the `k` of the first `layer<k>` in a scope, None when there is none.

    >>> layer_number(("encoder", "layer2", "t7")), layer_number(("projection", "t7"))
    (2, None)
    """
    for component in components:
        match = _LAYER.match(component)
        if match:
            return int(match.group(1))
    return None


def layer_count(graph: OpGraph) -> int:
    """Returns the number of layers in the graph's scopes (at least 1)."""
    numbers = (layer_number(scope_parts(name)) for name in graph.names)
    return 1 + max((k for k in numbers if k is not None), default=0)


def layered_rule(layers: int, devices: int, first: tuple[str, ...], last: tuple[str, ...]) -> Rule:
    """Returns a rule of one device per layer, `first` scopes with the first layer and `last` scopes with the last one.

    With fewer devices than layers, neighbouring layers share a device; further devices stay empty.

    >>> rule = layered_rule(4, 2, first=("embedding",), last=("projection",))
    >>> [rule(("encoder", f"layer{k}")) for k in range(4)], rule(("embedding",)), rule(("projection", "t3"))
    ([0, 0, 1, 1], 0, 1)
    """
    used = min(devices, layers)

    def rule(components: tuple[str, ...]) -> int | None:
        number = layer_number(components)
        if number is not None:
            return number * used // layers
        if components[0] in first:
            return 0
        return used - 1 if components[0] in last else None

    return rule


def translation_rule(layers: int, devices: int, attention: str) -> Rule:
    """Returns `layered_rule` with the embedding first, the projection last, and the attention as asked."""
    if attention == "first":
        return layered_rule(layers, devices, ("embedding", "attention"), ("projection",))
    if attention == "last":
        return layered_rule(layers, devices, ("embedding",), ("attention", "projection"))
    raise InvalidInput(f"attention is {attention!r}; it must be 'first' or 'last', the layer that it is placed with")


def assign_by_scope(graph: OpGraph, devices: int, rule: Rule) -> NDArray[np.int32]:
    """Returns int32[n]: the rule's device for every op that it knows, its neighbours' for the others; groups stay together."""
    check_whole("devices", devices)
    by_rule = [rule(scope_parts(name)) for name in graph.names]
    device = np.array([-1 if d is None else d for d in by_rule], dtype=np.int64)
    # Ops that the rule does not know: first with their forward op and group, then with readers, then with producers.
    has_forward = (device < 0) & (graph.forward_of >= 0)
    device[has_forward] = device[graph.forward_of[has_forward]]
    _join_groups(graph, device)
    _copy_device_of_neighbours(device, graph.order[::-1], *graph.successors)
    _copy_device_of_neighbours(device, graph.order, *graph.predecessors)
    device[device < 0] = 0
    _join_groups(graph, device)
    return device.astype(np.int32)


def _join_groups(graph: OpGraph, device: NDArray[np.int64]) -> None:
    """Gives every colocation group the device that most of its placed members have (ties: the lowest)."""
    votes_for_group = (graph.colocation >= 0) & (device >= 0)
    if not votes_for_group.any():
        return
    votes = np.zeros((len(graph.colocation_names), int(device.max()) + 1), dtype=np.int64)
    np.add.at(votes, (graph.colocation[votes_for_group], device[votes_for_group]), 1)
    voting_groups = np.flatnonzero(votes.any(axis=1))
    is_decided = np.isin(graph.colocation, voting_groups)
    device[is_decided] = votes.argmax(axis=1)[graph.colocation[is_decided]]


def _copy_device_of_neighbours(
    device: NDArray[np.int64], order: NDArray[np.int32], pointer: NDArray[np.int64], neighbour: NDArray[np.int32]
) -> None:
    """Gives each op without a device, in this order, that of its first neighbour that has one; in place."""
    for op in order[device[order] < 0].tolist():
        near = device[neighbour[pointer[op] : pointer[op + 1]]]
        near = near[near >= 0]
        if len(near):
            device[op] = near[0]
