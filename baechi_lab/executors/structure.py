"""The graph of a traced step, with its ops in the order that every profile of the step has."""

from __future__ import annotations

import numpy as np

from ..graph import OpGraph, Step


def graph_of(step: Step) -> OpGraph:
    """Returns the step's OpGraph without costs: same ops, tensors and `key` as `bl.profile(step)` gives it."""
    # The profilers read GraphDefs. Using them keeps a single definition of what an op is.
    from ..profilers.tensorflow.structure import read_structure

    structure = read_structure(step)
    return OpGraph(
        names=tuple(node.name for node in structure.nodes),
        duration_us=np.zeros(structure.n),
        tensor_producer=structure.tensor_producer,
        tensor_bytes=structure.tensor_bytes,
        temp_bytes=structure.iteration_bytes,
        tensor_names=structure.tensor_names,
        consumer_ptr=structure.consumer_ptr,
        consumers=structure.consumers,
        op_types=tuple(node.op for node in structure.nodes),
        name=step.name,
    )
