"""How far simulated peaks of memory are from measured ones: `python -m studies.memory -o FILE`."""

from __future__ import annotations

from studies.memory.report import Row, summarize_rows
from studies.memory.study import study

__all__ = ["Row", "study", "summarize_rows"]
