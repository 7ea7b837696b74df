"""Ops that TensorFlow's oneDNN pass would run as one on a CPU, kept apart.

The pass cannot be switched off within a process. In a profile it would leave a convolution without a time of its own. In a
graph whose order is kept by control dependencies it is worse: where something has to run between two ops that become one,
the one waits for itself, and TensorFlow ends the step without a word, having run neither it nor what depends on it.
"""

from __future__ import annotations

from typing import Any

from .nodes import split

_CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "Conv2DBackpropFilter", "FusedBatchNormV3")
_FUSED_PAIRS = frozenset(
    [(c, follower) for c in _CONVOLUTIONS for follower in ("BiasAdd", "Transpose", "AddV2", "Add", "Relu")]
    + [(before, c) for before in ("Pad", "Transpose") for c in _CONVOLUTIONS]
)


def keep_apart(graph_def: Any, prefix: str, only_ordered: bool = False) -> None:
    """Put an Identity, named `prefix/reader/position`, between ops of a GraphDef that would run as one.

    Args:
        graph_def: is changed in place; an Identity is on the device of its reader.
        prefix: of the names.
        only_ordered: only where another op waits for the first, or the second for another op.
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
                continue  # kept apart before
            if only_ordered and not waits and producer not in waited_for:
                continue
            apart = graph_def.node.add(op="Identity", name=f"{prefix}/{node.name}/{k}", device=node.device)
            apart.input.append(reference)
            apart.attr["T"].CopyFrom(node.attr["T"])
            node.input[k] = apart.name
