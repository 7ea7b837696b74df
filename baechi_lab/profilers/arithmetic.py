"""FLOPs of what is no matrix product, per element, whatever the framework that names the operator.

A sum, product or comparison is one operation; a division or root four, as units iterate them; exp, log, tanh, erf and the
like ten, as polynomials of about that many operations evaluate them; what consists of these, their sum. Gradients count
what they compute again from the saved tensor.
"""

from __future__ import annotations

TRANSCENDENTAL = 10
"""Of exp, log, tanh, sigmoid, erf, sin and their like: a polynomial of about ten operations."""
ROOT = 4
"""Of a division, a square root or a remainder."""

_TRANSCENDENTAL = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "logsigmoid", "erf", "erfc", "erfinv", "pow",
    "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "lgamma", "digamma",
    "softplus", "elu", "selu", "celu", "gelu", "fastgelu", "random", "rand", "randn", "bernoulli", "normal", "uniform",
    "exponential", "nativedropout",
)  # fmt: skip
_ROOT = (
    "sqrt", "rsqrt", "div", "realdiv", "divnonan", "reciprocal", "fmod", "remainder", "mod", "floormod", "floordiv",
    "floordivide", "rsqrtgrad",
)  # fmt: skip
_PER_ELEMENT = {
    **dict.fromkeys(_TRANSCENDENTAL, TRANSCENDENTAL),
    **dict.fromkeys(_ROOT, ROOT),
    "softmax": 15, "safesoftmax": 15, "logsoftmax": 15, "silu": 11, "swish": 11, "mish": 21, "hardsigmoid": 3, "hardswish": 4,
    "tanhgrad": 3, "sigmoidgrad": 3, "softmaxgraddata": 4, "logsoftmaxgraddata": 13, "gelugrad": 25, "silugrad": 15,
    "elugrad": 12, "hardswishgrad": 3, "softplusgrad": 12, "squareddifference": 2, "addcmul": 3, "addcdiv": 6, "lerp": 3,
    "nativelayernorm": 8, "layernormalization": 8, "nativelayernormgrad": 14, "fusedrmsnorm": 5, "fusedrmsnormgrad": 10,
    "nativebatchnorm": 8, "cudnnbatchnorm": 8, "batchnormalization": 8, "nativebatchnormgrad": 14, "cudnnbatchnormgrad": 14,
    "nativegroupnorm": 8, "groupnormalization": 8, "nativegroupnormgrad": 14, "instancenormalization": 8,
}  # fmt: skip


def per_element(op: str, otherwise: int = 1) -> int:
    """FLOPs per element of an operator, by its name in TensorFlow, ONNX or ATen; `otherwise` of one that is not known.

    >>> per_element("Log1p"), per_element("exp_"), per_element("_softmax"), per_element("TanhGrad"), per_element("Relu")
    (10, 10, 15, 3, 1)
    """
    return _PER_ELEMENT.get(op.replace("_", "").lower().replace("backward", "grad"), otherwise)
