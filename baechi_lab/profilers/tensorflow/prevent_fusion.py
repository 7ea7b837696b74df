"""Prevents TensorFlow's oneDNN pass on CPUs from fusing ops.

The pass cannot be switched off within a process. In a profile, a fused convolution would have no time of its own. In a graph
ordered by control dependencies, fusion is worse: if another op must run between two ops that are fused, the fused op waits
for itself, and TensorFlow ends the step without an error, although neither it nor its dependents have run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .nodes import split

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

_CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "Conv2DBackpropFilter", "FusedBatchNormV3")
_FUSED_PAIRS = frozenset(
    [(c, follower) for c in _CONVOLUTIONS for follower in ("BiasAdd", "Transpose", "AddV2", "Add", "Relu")]
    + [(before, c) for before in ("Pad", "Transpose") for c in _CONVOLUTIONS]
)


def prevent_fusion(graph_def: GraphDef, prefix: str, only_ordered: bool = False) -> None:
    """Inserts an Identity, named `prefix/reader/position`, between ops of a GraphDef that would be fused.

    Args:
        graph_def: changed in place; an Identity gets the device of its reader.
        prefix: prefix of the names.
        only_ordered: True limits this to pairs where another op waits for the first, or the second waits for another op.
    """
    ops = {node.name: node.op for node in graph_def.node}
    waited_for = {split(reference)[0] for node in graph_def.node for reference in node.input if reference[:1] == "^"}
    for node in list(graph_def.node):
        waits = any(reference[:1] == "^" for reference in node.input)
        for k, reference in enumerate(node.input):
            producer, output = split(reference)
            if output < 0 or ((ops.get(producer), node.op) not in _FUSED_PAIRS and (k or node.op != "BiasAddGrad")):
                continue
            if producer.startswith(f"{prefix}/"):
                continue  # has an Identity already
            if only_ordered and not waits and producer not in waited_for:
                continue
            identity = graph_def.node.add(op="Identity", name=f"{prefix}/{node.name}/{k}", device=node.device)
            identity.input.append(reference)
            identity.attr["T"].CopyFrom(node.attr["T"])
            node.input[k] = identity.name
