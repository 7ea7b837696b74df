"""Kernels as plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baechi_lab.graph.kernels.interpreted import run_interpreted
from baechi_lab.graph.kernels.jit import records


def readable(kernel: Any) -> Callable[..., Any]:
    """The Python function of a kernel, which calls Python functions only.

    `kernel.py_func` alone calls compiled kernels. Those that the package calls only from kernels have no compiled form for calls
    from Python: it would be compiled for the test, for up to four seconds.
    """
    return lambda *arguments: run_interpreted(kernel.py_func, records, arguments)
