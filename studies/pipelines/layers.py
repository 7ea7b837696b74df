"""Stages made of whole layers, as people cut models: the names of scopes say which layer an op is of.

Layers in the order of the forward pass are cut into runs whose largest work is least.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from baechi_lab.errors import InvalidInput
from baechi_lab.graph import OpGraph
from baechi_lab.models.scopes import Rule, assign_by_scope, layer_count, layer_number


def layer_stages(graph: OpGraph, stages: int) -> NDArray[np.int32]:
    """int32[n]: the stage of every op. Raises `InvalidInput` for fewer layers than stages."""
    layers = layer_count(graph)
    both = any("decoder/" in name for name in graph.names)
    count = 2 + layers * (1 + both)
    layer = assign_by_scope(graph, count, _rule(layers, count))
    work = np.bincount(layer, graph.duration_us, minlength=count)
    if np.count_nonzero(work) < stages:
        raise InvalidInput(f"the model has {np.count_nonzero(work)} layers; {stages} stages need as many")
    return np.asarray(least_runs(work.tolist(), stages), dtype=np.int32)[layer]


def _rule(layers: int, count: int) -> Rule:
    """Embedding, layers, projection; of a translation model the encoder's, then the decoder's with its embedding."""

    def rule(parts: tuple[str, ...]) -> int | None:
        number = layer_number(parts)
        if number is not None:
            return 1 + number + (layers if parts[0] == "decoder" else 0)
        if parts[0] == "attention" or (parts[0] == "embedding" and "target" in parts[-1]):
            return 1 + layers
        return {"embedding": 0, "projection": count - 1, "loss": count - 1}.get(parts[0])

    return rule


def least_runs(work: Sequence[float], runs: int) -> list[int]:
    """The run of every item, items in order, such that the largest sum of a run is least. O(runs x items^2).

    >>> least_runs([3, 1, 1, 1, 4], 3)     # 3 | 1 1 1 | 4
    [0, 1, 1, 1, 2]
    """
    total = np.concatenate([[0.0], np.cumsum(work)])
    n = len(work)
    best = np.full((runs + 1, n + 1), np.inf)
    run_begins = np.zeros((runs + 1, n + 1), dtype=int)
    best[0, 0] = 0.0
    for r in range(1, runs + 1):
        for end in range(r, n + 1):
            largest = np.maximum(best[r - 1, :end], total[end] - total[:end])
            run_begins[r, end] = int(largest.argmin())
            best[r, end] = largest[run_begins[r, end]]
    starts_of_runs, end = [0] * n, n
    for r in range(runs, 0, -1):
        run_begin = int(run_begins[r, end])
        starts_of_runs[run_begin:end] = [r - 1] * (end - run_begin)
        end = run_begin
    return starts_of_runs
