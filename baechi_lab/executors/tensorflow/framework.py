"""TensorFlow's implementation of the protocol `baechi_lab.executors.dispatch.Executor`."""

from ..dispatch import step_timer
from .devices import attached_cluster
from .execution import execute
from .native import native_runners

__all__ = ["attached_cluster", "execute", "native_runners", "step_timer"]
