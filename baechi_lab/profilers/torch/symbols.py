"""Evaluates sizes that torch writes as expressions of symbols (`2*s0 + 1`, `Mul(Integer(2), Symbol('s0'))`)."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from math import prod

from ...errors import FormatError

_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLS: dict[str, Callable[..., int]] = {
    "Add": lambda *x: sum(x),
    "Mul": lambda *x: prod(x),
    "Integer": lambda x: x,
    "Max": max,
    "Min": min,
    "Mod": operator.mod,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "PythonMod": operator.mod,
}


def evaluate_size(text: str, size_of: Callable[[str], int]) -> int:
    """Evaluates an expression; `size_of` returns the value of a symbol.

    Raises:
        FormatError: the text has anything but symbols, whole numbers and arithmetic.

    >>> evaluate_size("2*s0 + 1", {"s0": 4}.get), evaluate_size("Mul(Integer(2), Symbol('s1', positive=True))", {"s1": 3}.get)
    (9, 6)
    """
    try:
        return _value(ast.parse(text[:2000], mode="eval").body, size_of)
    except (SyntaxError, TypeError, ZeroDivisionError, RecursionError, MemoryError, KeyError) as error:
        raise FormatError(f"the size {text!r:.80} is no expression of symbols that is read") from error


def _value(node: ast.AST, size_of: Callable[[str], int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return size_of(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, size_of)
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, size_of), _value(node.right, size_of))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "Symbol" and node.args and isinstance(node.args[0], ast.Constant):
            return size_of(str(node.args[0].value))
        return _CALLS[node.func.id](*(_value(a, size_of) for a in node.args))
    raise TypeError(ast.dump(node)[:60])
