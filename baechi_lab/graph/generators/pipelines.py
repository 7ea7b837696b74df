"""Chains of stages, each with a forward and a backward pass: what tables about pipelines are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import InvalidInput
from ..kernels.csr import offsets
from ..opgraph import OpGraph
from .sizes import check_bytes, check_numbers


def pipeline(
    forward_us: Sequence[float],
    backward_us: Sequence[float],
    weight_us: Sequence[float] | None = None,
    *,
    output_bytes: int = 0,
    activation_bytes: int = 0,
    kept_bytes: int = 0,
    parameter_bytes: int = 0,
) -> OpGraph:
    """Returns one micro-batch of a chain of pipeline stages: ops `F0`, `F1`, ..., `B0`, ..., and, with `weight_us`, `W0`, ...

    `B` is the backward pass of a stage; with `weight_us` it is the gradient of its inputs, and `W` that of its weights. Both
    read the gradient of the stage's output; neither waits for the other. The ops of a stage share a colocation group.

    Args:
        forward_us, backward_us, weight_us: float[stages], microseconds of F, B and W.
        output_bytes: what a stage sends to the next, and as gradient to the one before.
        activation_bytes: what F leaves for B.
        kept_bytes: what F leaves for W.
        parameter_bytes: persistent bytes of each stage.

    Raises:
        InvalidInput: the lists differ in length, or an argument is no number of its unit.

    >>> graph = pipeline([1.0, 1.0], [2.0, 2.0])
    >>> graph.names, graph.forward_of.tolist()
    (('F0', 'F1', 'B0', 'B1'), [-1, -1, 0, 1])
    """
    columns_us = [check_numbers("forward_us", forward_us), check_numbers("backward_us", backward_us)]
    columns_us += [] if weight_us is None else [check_numbers("weight_us", weight_us)]
    p, split = len(columns_us[0]), weight_us is not None
    for key, column in zip(("backward_us", "weight_us"), columns_us[1:], strict=False):
        if len(column) != p:
            raise InvalidInput(f"{key} has {len(column)} entries for {p} stages")
    output_bytes, activation_bytes = (
        check_bytes("output_bytes", output_bytes),
        check_bytes("activation_bytes", activation_bytes),
    )
    kept_bytes, parameter_bytes = check_bytes("kept_bytes", kept_bytes), check_bytes("parameter_bytes", parameter_bytes)
    kinds = "FBW" if split else "FB"
    f, b, w = (np.arange(p) + k * p for k in range(3))
    tensors: list[tuple[int, int, str, list[int]]] = []  # producer, bytes, name, readers
    for s in range(p):
        if s + 1 < p:
            tensors.append((f[s], output_bytes, "output", [f[s + 1]]))
        tensors.append((f[s], activation_bytes, "activation", [b[s]]))
        if split:
            tensors.append((f[s], kept_bytes, "kept", [w[s]]))
    tensors += [(b[s], output_bytes, "gradient", [b[s - 1], *([w[s - 1]] if split else [])]) for s in range(1, p)]
    readers = [r for _, _, _, each in tensors for r in sorted(each)]
    row = np.repeat(np.arange(len(tensors)), [len(each) for _, _, _, each in tensors])
    columns: dict[str, Any] = {
        "tensor_producer": np.array([t[0] for t in tensors], dtype=np.int32),
        "tensor_bytes": np.array([t[1] for t in tensors], dtype=np.int64),
        "consumers": np.array(readers, dtype=np.int32),
    }
    stage = np.tile(np.arange(p), len(kinds))
    return OpGraph(
        names=tuple(f"{kind}{s}" for kind in kinds for s in range(p)),
        op_types=tuple(kind for kind in kinds for _ in range(p)),
        duration_us=np.concatenate(columns_us),
        tensor_names=tuple(t[2] for t in tensors),
        consumer_ptr=offsets(row, len(tensors)),
        persistent_bytes=np.where(np.arange(len(stage)) < p, parameter_bytes, 0),
        colocation=stage.astype(np.int32),
        colocation_names=tuple(f"stage{s}" for s in range(p)),
        forward_of=np.where(np.arange(len(stage)) < p, -1, stage),
        name=f"pipeline-{p}",
        **columns,
    )
