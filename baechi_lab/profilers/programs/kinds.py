"""What is a program, told without loading a framework."""

from __future__ import annotations

import os
import sys
from typing import Any


def is_program(value: Any) -> bool:
    """Whether that is a program: a file `.onnx` or `.pt2`, an ONNX model, or what `torch.export.export` returned."""
    if isinstance(value, (str, bytes, os.PathLike)):
        return os.fsdecode(value).endswith((".onnx", ".pt2"))
    return is_instance(value, "onnx", "ModelProto") or is_instance(value, "torch.export", "ExportedProgram")


def is_instance(value: Any, module: str, name: str) -> bool:
    """Whether a value is of a class of a module that need not be loaded."""
    loaded = sys.modules.get(module)  # who has one has loaded it
    return loaded is not None and isinstance(value, getattr(loaded, name))
