"""TensorFlow's implementation of the protocol `baechi_lab.profilers.dispatch.Profiler`."""

from .profiling import profile_with_report

__all__ = ["profile_with_report"]
