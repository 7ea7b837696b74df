"""Passes: OpGraph -> smaller OpGraph, and what must share a device."""

from .base import Pass
from .contraction import contract
from .optimize import optimize
from .registry import list_passes, make_pass

__all__ = ["Pass", "contract", "list_passes", "make_pass", "optimize"]
