"""Keras layers that GPUs run as one kernel over a whole sequence: GRU and LSTM with the options that cuDNN requires.

On a CPU, where steps are traced, Keras writes such a layer as a loop over its cell. `mark_fused_loops` marks these loops and
those of their gradients; `layer_kernel` is the kernel that replaces their ops in an estimate, as in the estimates of PyTorch's
recurrent modules and ONNX's. `kernel_plumbing` are the ops around it that a loop needs and a kernel does not. Other options
(`recurrent_dropout`, `unroll`, other activations), other layers and loops of one's own run op by op on a GPU, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from ..work import PRECISION_BYTES, Kernel, recurrent_kernel
from .backward_pairing import is_backward
from .float_types import product_precisions
from .flops import Shapes, flops, is_matrix_product
from .nodes import called_functions, split

if TYPE_CHECKING:
    import keras
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

    from .structure import Structure

FUSED = "_fused_recurrent_layer"
"""Attribute of a loop that is one kernel on a GPU."""

_PLUMBING = frozenset(
    """
        Transpose TensorListFromTensor TensorListStack TensorListReserve EmptyTensorList InvertPermutation Range Max Fill
        VariableShape
    """.split()
)


def is_fused(node: NodeDef) -> bool:
    """Whether a loop is one kernel on a GPU."""
    return FUSED in node.attr


def fused_layers(objects: Iterable[object]) -> list[keras.Layer]:
    """Returns the GRU and LSTM layers among Keras objects and inside of them that cuDNN can run."""
    keras = sys.modules.get("keras")
    if keras is None:
        return []
    layers = [layer for item in objects if isinstance(item, keras.Layer) for layer in item._flatten_layers()]
    kinds = (keras.layers.GRU, keras.layers.LSTM)
    activations = (keras.activations.tanh, keras.activations.sigmoid)
    return [
        layer
        for layer in layers
        if any(isinstance(layer, kind) and type(layer).inner_loop is kind.inner_loop for kind in kinds)
        and layer.use_cudnn in ("auto", True)
        and (layer.activation, layer.recurrent_activation) == activations
        and layer.use_bias
        and not (layer.recurrent_dropout or layer.unroll)
        and getattr(layer, "reset_after", True)
    ]


def mark_fused_loops(graph_def: GraphDef, weights: set[str]) -> None:
    """Marks the loops that read one of `weights`, the recurrent weights of layers by their handles, and their gradients.

    A loop around such a layer is not marked; the layer's own loop, in its body, is.
    """
    functions = {f.signature.name: f for f in graph_def.library.function}

    def mark(nodes: Sequence[NodeDef], handles: set[str]) -> None:
        layer_ops: set[str] = set()
        for node in nodes:
            sources = [split(r)[0] for r in node.input if not r.startswith("^")]
            if node.op in ("ReadVariableOp", "Identity", "Cast") and sources[0] in handles:
                handles.add(node.name)
            bodies = [functions[name] for name in called_functions(node) if name in functions]
            if node.op.endswith("While") and not any(called_functions(op) for body in bodies for op in body.node_def):
                if (layer_ops if is_backward(node.name) else handles) & set(sources):
                    node.attr[FUSED].b = True
                    layer_ops.add(node.name)
                continue
            for body in bodies:
                arguments = body.signature.input_arg
                argument_sources = zip(arguments, sources[len(sources) - len(arguments) :], strict=True)
                mark(body.node_def, {argument.name for argument, source in argument_sources if source in handles})

    if weights:
        mark(graph_def.node, set(weights))


def layer_kernel(body_ops: Sequence[tuple[NodeDef, Shapes, Shapes]], steps: int) -> Kernel:
    """Returns the kernel of a layer from the ops of one iteration of its loop.

    Its FLOPs are those of the matrix products of all steps. Each step reads its part of the operands and writes the gates;
    the weights are read, and their gradients written, once.
    """
    precisions = product_precisions()
    products = [(node, inputs, outputs) for node, inputs, outputs in body_ops if is_matrix_product(node.op)]
    types = (node.attr["T"].type for node, _, _ in products)
    precision = next((precisions[number] for number in types if number in precisions), "fp32")
    width = PRECISION_BYTES[precision]
    step_numbers = weight_numbers = samples = hidden = gates = 0
    for node, (left, right), (output,) in products:
        weight, activation = (output, right) if node.attr["transpose_a"].b else (right, output)
        step_numbers += prod(left) + prod(activation)
        weight_numbers += prod(weight)
        if weight[1] in (3 * weight[0], 4 * weight[0]):  # the weights of the states
            samples, hidden, gates = activation[0], weight[0], weight[1] // weight[0]
    kernel = Kernel(
        flops=steps * sum(flops(*product) for product in products),
        moved_bytes=float(width * (steps * step_numbers + weight_numbers)),
        precision=precision,
        matrix=True,
    )
    backward = any(node.attr["transpose_b"].b for node, _, _ in products)
    return recurrent_kernel(kernel, steps, samples, hidden, gates, backward) if hidden else replace(kernel, steps=steps)


def kernel_plumbing(structure: Structure) -> set[int]:
    """Returns the ops that only prepare the sequences of fused loops or pass their outputs on: the kernel does so itself."""
    fused_ops = {i for i, node in enumerate(structure.nodes) if is_fused(node)}
    if not fused_ops:
        return set()
    readers: list[set[int]] = [set() for _ in structure.nodes]
    producers: list[set[int]] = [set() for _ in structure.nodes]
    for i, tensors in enumerate(structure.data_inputs):
        for producer in structure.tensor_producer[list(tensors)].tolist():
            readers[producer].add(i)
            producers[i].add(producer)
    plumbing = set(fused_ops)
    for i in reversed(range(structure.n)):
        node = structure.nodes[i]
        is_read_by_plumbing = bool(readers[i]) and readers[i] <= plumbing
        if node.op in _PLUMBING and is_read_by_plumbing and not _is_second(node, i, readers, structure):
            plumbing.add(i)
    for i, node in enumerate(structure.nodes):
        sources = {p for p in producers[i] if structure.nodes[p].op != "Const"}
        if node.op in _PLUMBING and sources and sources <= plumbing and not _is_second(node, i, producers, structure):
            plumbing.add(i)
    return plumbing - fused_ops


def _is_second(node: NodeDef, i: int, neighbours: list[set[int]], structure: Structure) -> bool:
    """Whether an op transposes what another one transposes: the layer itself does so once."""
    return node.op == "Transpose" and any(structure.nodes[k].op == "Transpose" for k in neighbours[i])
