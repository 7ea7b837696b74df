"""Simulated against measured steps of several micro-batches, on two and three processes of this machine.

`python -m studies.pipelines --help`; the results are stored as `pipelines` in `studies/results`.
"""

from __future__ import annotations

from studies.pipelines.report import Row, Summary, keep, rows_of, summarize_rows

__all__ = ["Row", "Summary", "keep", "rows_of", "summarize_rows"]
