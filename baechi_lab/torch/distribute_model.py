"""`bl.torch.distribute`: profile, place and assign a model."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from torch import nn

from ..errors import InvalidInput
from ..graph import Cluster, OpGraph, Placement
from ..graph.arguments import check_records
from ..torch_steps.assigner import assign
from ..torch_steps.devices import attached_cluster, device_name
from ..torch_steps.plan import torch_devices
from ..torch_steps.step import check_optimizer_states
from ..torch_steps.tracing import trace

if TYPE_CHECKING:
    from ..placers.base import Placer


def distribute(
    model: nn.Module,
    sample_inputs: object,
    cluster: Cluster | None = None,
    placer: str | Placer | Placement = "m-sct",
    *,
    mode: str | None = None,
    atomic: Collection[str | type] = (),
    reorder: str = "gpu",
    devices: list[str] | None = None,
    output_device: str | None = None,
    graph: OpGraph | None = None,
    warmup: int = 2,
    runs: int = 5,
    optimizer_states: int = 0,
    **placer_params: object,
) -> nn.Module:
    """Makes `model` model-parallel over `cluster` and returns it: the same object, used as before.

    Args:
        model: the module; it is changed in place.
        sample_inputs: a tensor, a tuple of positional arguments, a dict (or `BatchEncoding`) of keywords, or both as
            `(tuple, dict)`, to profile with.
        cluster: the devices; by default what torch sees here, `Cluster.from_torch()`.
        placer: a registered placer's name, a placer object, or a `Placement` of `profile`'s graph (or of the model's
            calls alone).
        placer_params: parameters of a placer that is named.
        mode, atomic, warmup, runs, optimizer_states: see `bl.torch.profile`.
        reorder: submit in the planned order within each device ("gpu"), over all devices ("global"), or in code
            order ("none"). Where waiting could change a result (hooks, checkpointed regions, custom autograd
            functions, caches, shapes that may depend on values), code order is kept, and a `CodeOrderKept` warning says where.
        devices: the torch device of each device of the cluster, for example `["cuda:0", "cuda:0"]` for two stream
            groups on one GPU. By default `kind="cpu"` devices are torch's `cpu`, all others the attached GPUs in turn.
        output_device: where outputs are brought; by default where the first input is.
        graph: a graph from `bl.torch.profile` of this model and these inputs, to not profile again, or what `bl.recompute` and
            `bl.offload` made of it. For optimizer state that it has on a host, also call `bl.torch.offload_optimizer_state`.

    Parameters move to their devices and stay the same objects, so an optimizer made before goes on working, as do
    `state_dict`, `train()`, `eval()`, autocast and checkpoints. `gather` undoes it. Custom autograd functions called
    between layers run where their inputs are; wrap them in a module to have them placed.

    Raises:
        InvalidInput: a model that cannot be traced (naming the layer), a model that is distributed already.
        InfeasiblePlacement: it does not fit.
        ExecutionError: more GPUs asked for than attached.

    >>> import torch
    >>> model = distribute(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4), Cluster.uniform(2, kind="cpu"), "single")
    >>> tuple(model(torch.ones(2, 4)).shape)
    (2, 4)
    """
    from ..placers import place
    from ..profilers.torch.layers import in_mode, mode_of, profile_layers

    cluster = attached_cluster() if cluster is None else cluster
    check_records(cluster=cluster)
    if graph is not None:
        check_records(graph=graph)
    check_optimizer_states("optimizer_states", optimizer_states)
    if output_device is not None:
        output_device = device_name("output_device", output_device)
    training = mode_of(model, mode)
    with in_mode(model, training):
        model_trace = trace(model, sample_inputs, atomic=atomic)
    if isinstance(placer, Placement):
        placement = placer if graph is None else placer.on(graph)
    else:
        if graph is None:
            names = torch_devices(cluster, devices)
            layers = profile_layers(
                model,
                sample_inputs,
                mode="training" if training else "inference",
                warmup=warmup,
                runs=runs,
                traced=model_trace,
                device=next((d for d in names if d.startswith("cuda")), None),
            )
            graph = layers.graph(optimizer_states=optimizer_states)
        keys = [c.key for c in model_trace.calls]
        if list(graph.names[: len(keys)]) != keys:
            wrong = next((k for k, name in zip(keys, graph.names, strict=False) if k != name), keys[-1] if keys else "")
            raise InvalidInput(
                f"graph was profiled from another model or mode: call {wrong!r} is not where the model has it"
            )
        # Fusing layers first would only take choices from the placer (`atomic` merges by module).
        placement = place(graph, cluster, placer, **placer_params)
    return assign(
        model,
        model_trace,
        placement,
        cluster,
        reorder=reorder,
        devices=devices,
        output_device=output_device,
        graph=graph,
    )
