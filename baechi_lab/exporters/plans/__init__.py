"""Writes placements for other runtimes: device maps, layer splits, options, pictures; one format per module."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from ...errors import InvalidInput, UnknownNameError, in_short
from ...graph import Cluster, OpGraph, Placement, Timeline
from ...graph.columns import check_record
from .records import Request, WrittenPlan, moved_ops_sentence

__all__ = ["FORMATS", "WrittenPlan", "write_plan"]

FORMATS = ("chakra", "deepspeed", "device_map", "dot", "llama_cpp", "megatron", "onnx", "pipelining", "vllm")
"""Names of the formats; each has a module of that name."""


def write_plan(
    graph: OpGraph,
    placement: Placement,
    format: str = "device_map",
    *,
    model: object = None,
    cluster: Cluster | None = None,
    layers: str | None = None,
    timeline: Timeline | None = None,
) -> WrittenPlan:
    """Writes a placement for another runtime, and lists the parts that the format cannot express.

    Args:
        graph: the graph that was placed, or the one that it was fused from; of `bl.torch.profile` for formats of layers.
        placement: of that graph, or of a coarse graph of it.
        format: "device_map" (accelerate, transformers), "pipelining" (torch.distributed.pipelining), "deepspeed",
            "megatron", "vllm" (VLLM_PP_LAYER_PARTITION), "llama_cpp" (--tensor-split, -ot), "onnx" (device configurations in
            the model), "chakra" (an execution trace per device) or "dot" (Graphviz).
        model: the PyTorch model, which "device_map" needs for its parameters; for "onnx" the model or its file.
        cluster: names the devices; those of kind "cpu" are CPUs, all others count as GPUs 0, 1, ... in their order.
        layers: where the numbered layers are ("model.layers"); by default the stack with most ops.
        timeline: the simulated step, whose order of ops and transfers "chakra" keeps; no other format has one.

    Returns:
        the plan as a value and as text, and a sentence for each thing that the runtime cannot be told.

    Raises:
        InvalidInput: a placement or timeline of another graph, no layers found, layers that go back to a device that they left.
        UnknownNameError: an unknown format.

    >>> names = ["embed", "layers.0", "layers.1", "layers.2", "head"]
    >>> graph = OpGraph.from_edges([1] * 5, [(0, 1, 8), (1, 2, 8), (2, 3, 8), (3, 4, 8)], names=names)
    >>> print(write_plan(graph, Placement(device=[0, 0, 1, 1, 1]), "vllm").value)
    1,2
    """
    if not isinstance(format, str) or format not in FORMATS:
        raise UnknownNameError.of("format", format, FORMATS)
    check_record("placement", placement, Placement)
    if cluster is not None:
        check_record("cluster", cluster, Cluster)
    op_placement = placement.on(graph) if cluster is None else placement.checked(graph, cluster.n)
    if layers is not None and not isinstance(layers, str):
        raise InvalidInput(
            f"layers is {in_short(layers)}; give the name of the layers' list, for example 'model.layers'"
        )
    if timeline is not None:
        check_record("timeline", timeline, Timeline)
        if format != "chakra":
            raise InvalidInput(f"timeline was given and {format} has no order; only chakra takes one")
    request = Request(graph, op_placement.device, cluster, model, layers, timeline)
    plan = import_module(f"{__name__}.{format}").write(request)
    # What no format can express: an order of ops without a timeline, and replicas of stages.
    sentences = []
    if timeline is None and op_placement.rank is not None and np.unique(op_placement.rank).size > 1:
        sentences.append(f"{format} has no order of ops within a device; the planned one is left to the runtime")
    if op_placement.replicas:
        sentences.append(f"{format} has no stages on several devices; only the first of each group is written")
    unsupported_features = (*plan.unsupported, *moved_ops_sentence(request, plan.device), *sentences)
    return WrittenPlan(format, plan.value, plan.text, unsupported_features, plan.files)
