"""Lower bounds on the step of any placement: each named, each proven in its docstring."""

from .bounds import Bounds, bounds

__all__ = ["Bounds", "bounds"]
