"""How TensorFlow's ops come by the memory of their outputs (`OpGraph.reuse`), by type.

Views hand their input on, and `ReadVariableOp` the variable itself. Most elementwise kernels write over an input to which
nobody else holds a reference (`forward_input_or_allocate_output` in their source). Kernels that do neither, and types that
are not known here, allocate. Cross entropy writes its gradient over the logits.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ...graph.opgraph import OVERWRITES, OWN, VIEW

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


def reuse_of(op_types: Iterable[str]) -> NDArray[np.int8]:
    """int8[n], `OpGraph.reuse` of ops of these types.

    >>> reuse_of(["MatMul", "Relu", "Reshape"]).tolist() == [OWN, OVERWRITES, VIEW]
    True
    """
    return np.array([VIEW if t in VIEWS else OVERWRITES if t in IN_PLACE else OWN for t in op_types], dtype=np.int8)
