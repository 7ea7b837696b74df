"""How far simulated peaks of memory are from measured ones: `python -m baechi_lab.experiments.memory -o FILE`."""

from __future__ import annotations

from .report import Row, summarize_rows
from .study import study

__all__ = ["Row", "study", "summarize_rows"]
