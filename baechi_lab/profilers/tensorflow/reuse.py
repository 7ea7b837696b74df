"""How TensorFlow's ops come by the memory of their outputs (`OpGraph.reuse`), mostly by type.

Views hand their input on, or parts of it, and `ReadVariableOp` the variable itself. Most elementwise kernels write over an
input to which nobody else holds a reference (`forward_input_or_allocate_output` in their source). Kernels that do neither,
and types that are not known here, allocate. Cross entropy writes its gradient over the logits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph.opgraph import OVERWRITES, OWN, VIEW
from .structure import Structure

VIEWS = frozenset(
    [
        "Bitcast",
        "CheckNumerics",
        "DebugIdentity",
        "EnsureShape",
        "ExpandDims",
        "GuaranteeConst",
        "Identity",
        "IdentityN",
        "PlaceholderWithDefault",
        "PreventGradient",
        "ReadVariableOp",
        "Reshape",
        "Snapshot",
        "Squeeze",
        "StopGradient",
    ]
)
IN_PLACE = frozenset(
    [
        "Abs",
        "Acos",
        "Acosh",
        "AccumulateNV2",
        "Add",
        "AddN",
        "AddV2",
        "Asin",
        "Asinh",
        "Atan",
        "Atan2",
        "Atanh",
        "BiasAdd",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "Ceil",
        "ClipByValue",
        "Conj",
        "Cos",
        "Cosh",
        "Digamma",
        "Div",
        "DivNoNan",
        "Elu",
        "EluGrad",
        "Equal",
        "Erf",
        "Erfc",
        "Erfinv",
        "Exp",
        "Expm1",
        "Floor",
        "FloorDiv",
        "FloorMod",
        "Inv",
        "InvGrad",
        "Invert",
        "LeakyRelu",
        "LeakyReluGrad",
        "Lgamma",
        "Log",
        "Log1p",
        "LogSoftmax",
        "LogicalAnd",
        "LogicalNot",
        "LogicalOr",
        "Maximum",
        "Minimum",
        "Mod",
        "Mul",
        "MulNoNan",
        "Neg",
        "NextAfter",
        "Pow",
        "RealDiv",
        "Reciprocal",
        "ReciprocalGrad",
        "Relu",
        "Relu6",
        "Relu6Grad",
        "ReluGrad",
        "Rint",
        "Round",
        "Rsqrt",
        "RsqrtGrad",
        "Select",
        "SelectV2",
        "Selu",
        "SeluGrad",
        "Sigmoid",
        "SigmoidGrad",
        "Sign",
        "Sin",
        "Sinh",
        "SparseSoftmaxCrossEntropyWithLogits",
        "Softmax",
        "SoftmaxCrossEntropyWithLogits",
        "Softplus",
        "SoftplusGrad",
        "Softsign",
        "SoftsignGrad",
        "Sqrt",
        "SqrtGrad",
        "Square",
        "SquaredDifference",
        "Sub",
        "Tan",
        "Tanh",
        "TanhGrad",
        "TruncateDiv",
        "TruncateMod",
        "Xdivy",
        "Xlog1py",
        "Xlogy",
        "ZerosLike",
    ]
)


ALIGNED = 64
"""Bytes to which TensorFlow's tensors are aligned (`EIGEN_MAX_ALIGN_BYTES`)."""


def reuse_of(structure: Structure) -> NDArray[np.int8]:
    """int8[n], `OpGraph.reuse` of a step's ops.

    >>> from types import SimpleNamespace
    >>> nodes = [SimpleNamespace(op=kind) for kind in ("MatMul", "Relu", "Reshape")]
    >>> reuse_of(SimpleNamespace(nodes=nodes)).tolist() == [OWN, OVERWRITES, VIEW]
    True
    """
    return np.array([_reuse(structure, op) for op in range(len(structure.nodes))], dtype=np.int8)


def _reuse(structure: Structure, op: int) -> int:
    kind = structure.nodes[op].op
    if kind in VIEWS or (kind == "Unpack" and _cuts(structure, op)):
        return VIEW
    return OVERWRITES if kind in IN_PLACE else OWN


def _cuts(structure: Structure, op: int) -> bool:
    """Does an `Unpack` hand on parts of its input as they are: along the first axis, each aligned (`UnpackOp::Compute`)?"""
    attributes, size = structure.nodes[op].attr, structure.tensor_bytes[list(structure.output_tensors[op])]
    axis = attributes["axis"].i if "axis" in attributes else 0  # asking for one that is not there would add it
    return bool(axis == 0 and len(size) and not (size % ALIGNED).any())
