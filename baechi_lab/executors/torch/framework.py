"""PyTorch as `baechi_lab.frameworks` knows a framework."""

from ...torch_steps.devices import attached_cluster
from ..step_timer import step_timer

__all__ = ["attached_cluster", "step_timer"]
