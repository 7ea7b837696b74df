"""Sweeps: simulate many settings and store a row for each in one SQLite file."""

from ..workers.ray_executor import RayExecutor
from .best import best
from .running import sweep

__all__ = ["RayExecutor", "best", "sweep"]
