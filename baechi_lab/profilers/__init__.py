"""Stage 1: turns a training step into an `OpGraph` with measured or estimated costs, and fits links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from ..graph.hardware import Hardware
    from .dispatch import Report, profile, profile_with_report
    from .links import LinkFit
    from .programs.estimation import profile_program
    from .tensorflow.tracing import trace
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["Hardware", "LinkFit", "Report", "profile", "profile_program", "profile_with_report", "trace"]
