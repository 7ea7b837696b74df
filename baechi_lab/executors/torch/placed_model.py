"""The model of a step under a placement: what the session, a pipeline and an exported script start from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ...errors import InvalidInput
from ...graph import Cluster, OpGraph, Placement
from ...torch_steps.optimizer_trial import try_optimizer
from ...torch_steps.records import Trace
from ...torch_steps.step import TorchStep
from ...torch_steps.tracing import trace


@dataclass(frozen=True, eq=False)
class PlacedModel:
    """A step's model, its traced calls, and their placement.

    Args:
        step: the step of the whole batch.
        model: built by `step`.
        micro_steps: the steps of the micro-batches; `step` alone where the batch is not divided.
        model_trace: the calls of the model on the first of `micro_steps`.
        graph, placement: of the first of `micro_steps`.
        cluster: names the devices.
    """

    step: TorchStep
    model: nn.Module
    micro_steps: list[TorchStep]
    model_trace: Trace
    graph: OpGraph
    placement: Placement
    cluster: Cluster


def place_model(
    step: TorchStep,
    micro_steps: list[TorchStep],
    placement: Placement,
    graph: OpGraph | None,
    cluster: Cluster | None,
    kind: str = "auto",
) -> PlacedModel:
    """Builds and traces the model of a step, and reads the placement for its calls.

    If `graph` is None, the step is profiled again. If `cluster` is None, its devices are of `kind` (see `default_cluster`).
    """
    model = step.model()
    try_optimizer(step, model, len(micro_steps))
    model_trace = trace(model, micro_steps[0].inputs, atomic=step.atomic)
    step_graph, op_placement = _known_graph(micro_steps[0], model, model_trace, placement, graph)
    devices = cluster or default_cluster(op_placement, kind)
    return PlacedModel(step, model, micro_steps, model_trace, step_graph, op_placement, devices)


def default_cluster(placement: Placement, kind: str = "auto") -> Cluster:
    """Returns a cluster with as many devices as the placement uses; `auto` is GPUs if enough are attached, else CPU devices."""
    n = placement.devices
    if kind not in ("auto", "cpu", "gpu"):
        raise InvalidInput(f"kind is {kind!r}; it must be 'auto', 'cpu' or 'gpu'")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Cluster.uniform(n, kind=("gpu" if gpus >= n else "cpu") if kind == "auto" else kind)


def _known_graph(
    step: TorchStep, model: nn.Module, model_trace: Trace, placement: Placement, graph: OpGraph | None
) -> tuple[OpGraph, Placement]:
    """Returns the graph to report in, and the placement of its ops. A placement of the calls alone covers their groups."""
    from ...profilers.torch.layers import profile_layers

    if graph is None:
        graph = profile_layers(model, step.inputs, warmup=0, runs=1, traced=model_trace, step=step).graph(
            optimizer_states=step.optimizer_states
        )
    calls = len(model_trace.calls)
    if placement.n == calls and placement.graph_key is None and placement.group_of is None and graph.n != calls:
        group_device = dict(zip(graph.colocation[:calls].tolist(), placement.device.tolist(), strict=True))
        rank = placement.rank
        if rank is not None:
            rank = np.r_[rank, rank.max(initial=0) + 1 + np.arange(graph.n - calls)]
        device = [*placement.device.tolist(), *(group_device[group] for group in graph.colocation[calls:].tolist())]
        return graph, placement.replace(device=np.array(device, dtype=np.int32), order=rank, priority=None)
    return graph, placement.on(graph)
