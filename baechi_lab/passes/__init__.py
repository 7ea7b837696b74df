"""Stage 2: passes that turn a graph into a smaller or otherwise better graph, and find ops that must share a device."""

from .base import Pass
from .contraction import contract
from .optimize import optimize
from .registry import list_passes, make_pass

__all__ = ["Pass", "contract", "list_passes", "make_pass", "optimize"]
