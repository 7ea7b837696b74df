"""Benchmark models: TensorFlow training steps written from the papers that define them, and their expert placements.

>>> import baechi_lab as bl
>>> "gnmt" in bl.models.names()
True
"""

from __future__ import annotations

from ..workers.tensorflow_import import load_tensorflow
from .building import build
from .experts import expert, model_of
from .registry import make_model
from .registry import model_names as names
from .statistics import describe
from .statistics import table as list

__all__ = ["build", "describe", "expert", "list", "load_tensorflow", "make_model", "model_of", "names"]
