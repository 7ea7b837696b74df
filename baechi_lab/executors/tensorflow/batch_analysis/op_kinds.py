"""Ops by what they do with the samples of a batch: tables for the rules of the analysis."""

from __future__ import annotations

import re

LISTS = ("EmptyTensorList", "TensorList")
"""Ops on lists, which the forward pass fills for the backward pass."""
VARIANT = 21
"""TensorFlow's DT_VARIANT, the type of lists of tensors."""
SHAPED = frozenset({"Reshape", "BroadcastTo", "Tile", "Fill", "StridedSlice", "Slice", "Range"})
"""Ops whose inputs after the first are shapes or indices."""
PASS_ON = frozenset({"Identity", "EnsureShape", "CheckNumerics", "StopGradient", "PreventGradient", "Snapshot"})
LINEAR = SHAPED | PASS_ON | {"Cast", "Neg", "Squeeze", "ExpandDims", "Transpose", "Pack"}
HOMOGENEOUS = LINEAR | {"Sum", "Mean", "Max", "Min", "ConcatV2", "Pad", "PadV2", "Split", "SplitV", "Unpack"}
"""Ops whose output is multiplied by a number if their samples are; the others among them are in `SCALING`."""
SUMS = frozenset({"Add", "AddV2", "AddN", "Sub"})
DIVISIONS = frozenset({"RealDiv", "Div", "DivNoNan", "TruncateDiv", "FloorDiv"})
PRODUCTS = frozenset({"Mul", "MulNoNan"})
SCALING = frozenset({"Maximum", "Minimum", "Abs", "Relu", *SUMS})
"""Ops whose output scales like their inputs. A constant input may only keep a divisor from being 0."""
COMPARISONS = frozenset({"Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"})
FIXED = COMPARISONS | {"LogicalAnd", "LogicalOr", "LogicalNot", "IsFinite", "IsNan", "IsInf", "Sign"}
ARITHMETIC = frozenset({"Pow", "SquaredDifference", "FloorMod", "Xlogy", "Xdivy", "BitwiseAnd", "Atan2", "Xlog1py"})
BROADCASTING = SUMS | DIVISIONS | PRODUCTS | SCALING | FIXED | ARITHMETIC | {"Select", "SelectV2"}
REDUCTIONS = {
    "Sum": "AddV2",
    "Mean": "AddV2",
    "Max": "Maximum",
    "Min": "Minimum",
    "All": "LogicalAnd",
    "Any": "LogicalOr",
}
"""Reduction -> the op that combines its results over micro-batches."""
ALONG_LAST = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopKV2", "TopK", "NthElement"), 1),
    **{f"{kind}FFT{dims or ''}{'D' if dims else ''}": dims or 1 for kind in ("", "I", "R", "IR") for dims in (0, 2, 3)},
    **dict.fromkeys(("Svd", "Qr", "Lu", "Cholesky", "Eig", "SelfAdjointEigV2", "MatrixInverse", "MatrixSolve"), 2),
    **dict.fromkeys(("MatrixDeterminant", "LogMatrixDeterminant", "MatrixSolveLs", "MatrixTriangularSolve"), 2),
    **dict.fromkeys(("MatrixExponential", "MatrixLogarithm", "MatrixSquareRoot", "TridiagonalSolve"), 2),
    **dict.fromkeys(("MatrixBandPart", "MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3"), 2),
}
"""Ops that combine entries along the last axes of their first input, with the number of these axes."""
ALONG_SECOND = frozenset({"ReverseV2", "Roll", "Cumsum", "Cumprod", "CumulativeLogsumexp", "ArgMax", "ArgMin"})
ALONG_FIRST = frozenset(
    {"RandomShuffle", "StatelessShuffle", "InvertPermutation", "SpaceToBatchND", "BatchToSpaceND", "DiagPart", "Diag"}
)
CONVOLUTIONS = ("Conv", "DepthwiseConv")
SPATIAL = (*CONVOLUTIONS, "MaxPool", "AvgPool", "Resize", "DepthToSpace", "SpaceToDepth", "Extract", "Dilation")
"""Ops whose first input has the batch as its first axis."""
REARRANGING = frozenset({"StridedSlice", "Split", "SplitV", "Unpack", "Reshape", "GatherV2", "GatherNd"})
INDEXING = frozenset({"Pack", "ConcatV2", "Gather", "GatherV2", "GatherNd", "ResourceGather", "ResourceGatherNd"})
"""Ops for which positions of samples are indices, or become indices."""
MATRIX = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})
COUNTING = tuple(
    "UnsortedSegment Segment SparseSegment Bincount DenseBincount Unique Histogram ScatterNd TensorScatter".split()
)
"""Ops that add up, count or arrange entries by values of the batch, whichever samples they belong to."""
SELECTIONS = frozenset({"Select", "SelectV2"})
RANDOM_OPS = re.compile(
    r"(Stateless|Stateful)?(Random|TruncatedNormal|Multinomial|Uniform|StandardNormal|ParameterizedTruncated|Shuffle)"
)
KEY_OF_SEED = "StatelessRandomGetKeyCounter"
"""The op that makes of a seed what another op draws from."""
SHAPE_OPS = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"})
SIZE_OPS = frozenset({"Shape", "ShapeN", "Size"})
POSITIONS = PASS_ON | SUMS | PRODUCTS | DIVISIONS | {"Cast", "ExpandDims", "Reshape"}
"""Ops whose output is a position, or a function of it, if an input is."""
SIZE_ARGUMENTS = frozenset(
    "shape dims multiples size size_splits begin end strides start limit delta axis paddings depth num_segments "
    "element_shape num_elements output_shape".split()
)
"""Arguments that are sizes or positions, which are those of a micro-batch."""
