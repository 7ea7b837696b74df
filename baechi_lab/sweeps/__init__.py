"""Sweeps: one question asked of many settings, answered row by row into one SQLite file."""

from ..workers.ray_executor import RayExecutor
from .best import best
from .running import sweep

__all__ = ["RayExecutor", "best", "sweep"]
