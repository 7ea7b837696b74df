"""Compares predicted and measured step times on a cluster of this machine."""

from __future__ import annotations

from .message_costs import predicted_us, with_messages
from .report import Report, summarize_rows
from .speedup import SpeedUp, speed_up
from .stored_results import load, load_report, provenance, speed_up_table, store
from .study import Case, study

__all__ = [
    "Case",
    "Report",
    "SpeedUp",
    "load",
    "load_report",
    "predicted_us",
    "provenance",
    "speed_up",
    "speed_up_table",
    "store",
    "study",
    "summarize_rows",
    "with_messages",
]
