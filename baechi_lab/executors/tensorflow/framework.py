"""TensorFlow as `baechi_lab.frameworks` knows a framework."""

from ..step_timer import step_timer
from .devices import attached_cluster

__all__ = ["attached_cluster", "step_timer"]
