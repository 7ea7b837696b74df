"""Recognizes exported programs without loading a framework."""

from __future__ import annotations

import os
import sys


def is_program(value: object) -> bool:
    """Whether `value` is a program: a file `.onnx` or `.pt2`, an ONNX model, or a result of `torch.export.export`."""
    if isinstance(value, (str, bytes, os.PathLike)):
        return os.fsdecode(value).endswith((".onnx", ".pt2"))
    return is_instance(value, "onnx", "ModelProto") or is_instance(value, "torch.export", "ExportedProgram")


def is_instance(value: object, module: str, name: str) -> bool:
    """Whether `value` is an instance of a class in a module that may not be loaded."""
    loaded_module = sys.modules.get(module)  # an instance exists only if the module is loaded
    return loaded_module is not None and isinstance(value, getattr(loaded_module, name))
