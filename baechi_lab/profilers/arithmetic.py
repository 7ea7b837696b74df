"""FLOPs per element of operators other than matrix products, for all frameworks.

A sum, product or comparison counts as one operation. A division or root counts as four, since hardware iterates them. Exp,
log, tanh, erf and similar functions count as ten, since polynomials of about ten operations evaluate them. A composite
operator counts as the sum of its parts; a gradient includes what it recomputes from the saved tensor.
"""

from __future__ import annotations

TRANSCENDENTAL = 10
"""FLOPs of exp, log, tanh, sigmoid, erf, sin and similar functions: a polynomial of about ten operations."""

_FLOPS_AND_OPS = """
    2 squareddifference
    3 hardsigmoid tanhgrad sigmoidgrad hardswishgrad addcmul lerp
    4 sqrt rsqrt div realdiv divnonan reciprocal fmod remainder mod floormod floordiv floordivide rsqrtgrad
    4 hardswish softmaxgraddata
    5 fusedrmsnorm
    6 addcdiv
    8 nativelayernorm layernormalization nativebatchnorm cudnnbatchnorm batchnormalization nativegroupnorm
    8 groupnormalization instancenormalization
    10 exp exp2 expm1 log log2 log10 log1p tanh sigmoid logsigmoid erf erfc erfinv pow sin cos tan asin acos atan
    10 atan2 sinh cosh asinh acosh atanh lgamma digamma softplus elu selu celu gelu fastgelu random rand randn
    10 bernoulli normal uniform exponential nativedropout fusedrmsnormgrad
    11 silu swish
    12 elugrad softplusgrad
    13 logsoftmaxgraddata
    14 nativelayernormgrad nativebatchnormgrad cudnnbatchnormgrad nativegroupnormgrad
    15 softmax safesoftmax logsoftmax silugrad
    21 mish
    25 gelugrad
"""
_PER_ELEMENT = {op: int(flops) for flops, *ops in map(str.split, _FLOPS_AND_OPS.strip().splitlines()) for op in ops}


def per_element(op: str, otherwise: int = 1) -> int:
    """Returns the FLOPs per element of an operator, by its name in TensorFlow, ONNX or ATen; `otherwise` if it is unknown.

    >>> per_element("Log1p"), per_element("exp_"), per_element("_softmax"), per_element("TanhGrad"), per_element("Relu")
    (10, 10, 15, 3, 1)
    """
    return _PER_ELEMENT.get(op.replace("_", "").lower().replace("backward", "grad"), otherwise)
