"""Placements of the benchmark models by a human expert.

GNMT: each LSTM layer of encoder and decoder on another device, embeddings with the first, the output projection with the last
(Jeon et al. 2020, section 5.3, after Wu et al.). Inception-V3 and ResNet-50: one device (the same section). Transformer and
BERT: equal contiguous stacks of layers, embeddings with the first stack, the head with the last.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput, UnknownNameError
from ...graph import Cluster, OpGraph, Placement


def expert(name: str, graph: OpGraph, cluster: Cluster) -> Placement:
    """Returns the expert's placement of a graph that `bl.torch.profile` made of the model `name`.

    A call without a rule goes to the device of the call before it. Colocation groups and backward ops stay together. Raises
    `UnknownNameError` for a model without an expert.
    """
    if name not in _RULES:
        raise UnknownNameError.of("model", name, _RULES)
    if graph.n == 0:
        raise InvalidInput("the graph has no ops; profile the model first")
    forward = np.flatnonzero(graph.forward_of < 0)
    layers = 1 + max(
        (int(m) for text in graph.names for m in re.findall(r"(?:layers|encoder|decoder)\.(\d+)", text)), default=0
    )
    rule, device, stage_device = _RULES[name], np.zeros(graph.n, dtype=np.int32), 0
    for op in forward:
        stage = rule(graph.names[op], layers, cluster.n)
        stage_device = stage_device if stage is None else min(stage, cluster.n - 1)
        device[op] = stage_device
    join_companions(graph, device)
    return Placement(device=device, placer="expert", params={"model": name}, graph_key=graph.key)


def join_companions(graph: OpGraph, device: NDArray[np.int32]) -> None:
    """Gives colocation groups the device of their first call, and backward ops that of their forward op."""
    group_device: dict[int, int] = {}
    for op in np.flatnonzero(graph.forward_of < 0).tolist():  # updates come last and follow their calls
        group = int(graph.colocation[op])
        if group >= 0:
            device[op] = group_device.setdefault(group, int(device[op]))
    is_backward = graph.forward_of >= 0
    device[is_backward] = device[graph.forward_of[is_backward]]


def _one_device(op: str, layers: int, devices: int) -> int | None:
    """Returns the stage of a call in a model that stays on one device."""
    return 0


def _gnmt(op: str, layers: int, devices: int) -> int | None:
    """Returns the stage of a call of GNMT, or None: that of the call before it."""
    if op in ("source", "target"):
        return 0
    match = re.match(r"(?:encoder|decoder)\.(first|rest\.(\d+))", op)
    if match:
        return 0 if match.group(1) == "first" else (int(match.group(2)) + 1) % devices
    return None  # the head follows the last decoder layer


def _stacks(op: str, layers: int, devices: int) -> int | None:
    """Returns the stage of a call in a model of equal stacks of layers, or None: that of the call before it."""
    if op.startswith("embedding") or op == "dropout":
        return 0
    match = re.match(r"(?:layers|encoder|decoder)\.(\d+)", op)
    return int(match.group(1)) * devices // layers if match else None


_RULES: dict[str, Callable[[str, int, int], int | None]] = {
    "inception_v3": _one_device,
    "resnet50": _one_device,
    "gnmt": _gnmt,
    "transformer": _stacks,
    "bert": _stacks,
}
