"""The ops of a traced step in the order in which every profile of it lists them."""

from __future__ import annotations

import numpy as np

from ..graph.opgraph import OpGraph
from ..graph.step import Step


def graph_of(step: Step) -> OpGraph:
    """The step's OpGraph without costs: same ops, tensors and `key` as `bl.profile(step)` gives it."""
    # The profilers own the reading of a GraphDef; asking them keeps one definition of what an op is.
    from ..profilers.tensorflow.structure import read_structure

    found = read_structure(step)
    return OpGraph(
        names=tuple(node.name for node in found.nodes),
        duration_us=np.zeros(found.n),
        tensor_producer=found.tensor_producer,
        tensor_bytes=found.tensor_bytes,
        tensor_names=found.tensor_names,
        consumer_ptr=found.consumer_ptr,
        consumers=found.consumers,
        op_types=tuple(node.op for node in found.nodes),
        name=step.name,
    )
