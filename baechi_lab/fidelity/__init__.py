"""How far the simulator is from the truth: predicted against measured step times on a cluster of this machine."""

from __future__ import annotations

from .charging import charged_graph, predicted_us
from .report import Report, summarize_rows
from .study import Case, study

__all__ = ["Case", "Report", "charged_graph", "predicted_us", "study", "summarize_rows"]
