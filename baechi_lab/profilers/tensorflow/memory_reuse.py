"""The memory of the outputs of TensorFlow's ops (`OpGraph.reuse`), mostly by op type.

Views pass on their input or parts of it, and `ReadVariableOp` passes on the variable itself. Most elementwise kernels
overwrite an input that has no other reference (`forward_input_or_allocate_output` in their source). All other kernels and
unknown types allocate. Cross entropy writes its gradient over the logits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph.opgraph import OVERWRITES, OWN, VIEW
from .nodes import VIEWS
from .structure import Structure

IN_PLACE = frozenset(
    """
        Abs Acos Acosh AccumulateNV2 Add AddN AddV2 Asin Asinh Atan Atan2 Atanh BiasAdd BitwiseAnd BitwiseOr
        BitwiseXor Ceil ClipByValue Conj Cos Cosh Digamma Div DivNoNan Elu EluGrad Equal Erf Erfc Erfinv Exp Expm1
        Floor FloorDiv FloorMod Inv InvGrad Invert LeakyRelu LeakyReluGrad Lgamma Log Log1p LogSoftmax LogicalAnd
        LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Neg NextAfter Pow RealDiv Reciprocal ReciprocalGrad Relu
        Relu6 Relu6Grad ReluGrad Rint Round Rsqrt RsqrtGrad Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin
        Sinh SparseSoftmaxCrossEntropyWithLogits Softmax SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Softsign
        SoftsignGrad Sqrt SqrtGrad Square SquaredDifference Sub Tan Tanh TanhGrad TruncateDiv TruncateMod Xdivy
        Xlog1py Xlogy ZerosLike
    """.split()
)


ALIGNED = 64
"""Bytes to which TensorFlow's tensors are aligned (`EIGEN_MAX_ALIGN_BYTES`)."""


def reuse_of(structure: Structure) -> NDArray[np.int8]:
    """Returns int8[n], the `OpGraph.reuse` of a step's ops."""
    return np.array([_reuse(structure, op) for op in range(len(structure.nodes))], dtype=np.int8)


def _reuse(structure: Structure, op: int) -> int:
    kind = structure.nodes[op].op
    if kind in VIEWS or (kind == "Unpack" and _cuts(structure, op)):
        return VIEW
    is_list = structure.list_bytes.keys() & set(structure.output_tensors[op]) if kind == "ZerosLike" else False
    return OVERWRITES if kind in IN_PLACE and not is_list and not _reads_twice(structure, op) else OWN


def _reads_twice(structure: Structure, op: int) -> bool:
    """Whether each input of the output's size is read as two arguments, as in `x * x`: both are references to its memory."""
    inputs, outputs = structure.data_inputs[op], list(structure.output_tensors[op])
    sizes = {int(size) for size in structure.tensor_bytes[outputs]}
    fitting = [tensor for tensor in inputs if int(structure.tensor_bytes[tensor]) in sizes]
    return bool(fitting) and all(inputs.count(tensor) > 1 for tensor in fitting)


def _cuts(structure: Structure, op: int) -> bool:
    """Whether an `Unpack` passes on slices of its input: along the first axis, each aligned (`UnpackOp::Compute`)."""
    attributes, size = structure.nodes[op].attr, structure.tensor_bytes[list(structure.output_tensors[op])]
    axis = attributes["axis"].i if "axis" in attributes else 0  # reading an absent key would add it
    return bool(axis == 0 and len(size) and not (size % ALIGNED).any())
