"""The process that runs a student's notebook: it executes the cells and returns the answers as plain data.

The grader checks the answers in its own process, so nothing that a notebook replaces here changes a verdict. Requests on stdin
and replies on stdout are one line of JSON each. Functions stay here and are called by their number. The grader pickles the
arguments of such calls; the grader never reads a pickle.
"""

from __future__ import annotations

import base64
import dataclasses
import inspect
import json
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import describe_error
from ..graph import Placement
from ..workers.isolated import die_with_parent
from .exercise import TooLong, time_limit
from .worst_cases import Instance

Plain = dict[str, Any]
"""`{"value": ...}` for plain data, else one key with the kind: `missing`, `placement`, `instance`, `function`, `kind`."""


class Notebook:
    """The namespace of one notebook, and its functions that are answers."""

    def __init__(self) -> None:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        config = Config()
        config.HistoryManager.enabled = False
        self.shell = InteractiveShell(config=config)
        self.shell.ast_node_interactivity = "none"  # results of cells are not needed
        self.functions: list[Callable[..., object]] = []

    def run(self, source: str, expressions: Mapping[str, str]) -> dict[str, Any]:
        """Executes a cell; returns its error, and the values of expressions by key."""
        outcome = self.shell.run_cell(source)
        error = outcome.error_before_exec or outcome.error_in_exec
        text = "" if error is None else describe_error(error)
        return {"error": text, "values": {key: self.value_of(each) for key, each in expressions.items()}}

    def value_of(self, expression: str) -> Plain:
        """Returns the value of an expression as plain data, or `missing`."""
        try:
            value = self.shell.ev(expression)
        except BaseException:  # noqa: BLE001  # their objects may raise anything
            return {"missing": True}
        return self.plain(value)

    def plain(self, value: object) -> Plain:
        """Returns an answer as data that JSON can hold."""
        if value is None or value is ...:
            return {"missing": True}
        if isinstance(value, Placement):
            order = value.rank
            return {"placement": [value.device.tolist(), None if order is None else order.tolist()]}
        if isinstance(value, Instance):
            return {"instance": plain_value(dataclasses.asdict(value))}
        if callable(value):
            self.functions.append(value)
            return {"function": len(self.functions) - 1, "parameters": _parameters(value)}
        try:
            return {"value": plain_value(value)}
        except TypeError:
            return {"kind": type(value).__name__}

    def call(self, number: int, arguments: tuple[object, ...], seconds: float) -> Plain:
        """Calls a function that is an answer, for at most `seconds`; returns its value as plain data."""
        try:
            with time_limit(seconds):
                return self.plain(self.functions[number](*arguments))
        except TooLong:
            return {"too_long": True}
        except BaseException as error:  # noqa: BLE001  # their function may raise anything
            return {"error": describe_error(error)}


def plain_value(value: object) -> Any:
    """Converts numbers, texts and containers of them to plain data. Raises `TypeError` for anything else.

    >>> plain_value({"a": np.int32(2), "b": (1.5, {"x"})})
    {'a': 2, 'b': [1.5, ['x']]}
    """
    if isinstance(value, (np.generic, np.ndarray)):
        return plain_value(value.tolist())
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {str(plain_value(key)): plain_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_value(each) for each in value]
    if isinstance(value, (bool, int, float, str)):  # subclasses, whose methods may lie
        return next(base(value) for base in (int, float, str) if isinstance(value, base))
    raise TypeError(type(value).__name__)


def _parameters(function: Callable[..., object]) -> list[tuple[str, int, bool]] | None:
    """Returns name, kind and "has a default" of each parameter; None for functions without a signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [(p.name, int(p.kind), p.default is not p.empty) for p in parameters]


def main() -> None:
    """Answers the grader's requests until stdin ends."""
    die_with_parent()
    requests, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    sys.argv[1:] = []
    notebook = Notebook()

    def send(message: Mapping[str, object]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    send({"ready": True})
    for line in requests:
        request = json.loads(line)
        if "call" in request:
            arguments = pickle.loads(base64.b64decode(request["arguments"]))  # noqa: S301  (a pipe from the grader)
            send(notebook.call(request["call"], arguments, request["seconds"]))
        else:
            send(notebook.run(request["source"], request["expressions"]))


if __name__ == "__main__":
    main()
