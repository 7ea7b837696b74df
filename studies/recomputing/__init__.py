"""Recomputed training steps that ran: step time and peak with and without, beside the simulated ones."""

from studies.recomputing.report import TARGET, Row, plain_of, saving_error
from studies.recomputing.study import CASES, study

__all__ = ["CASES", "TARGET", "Row", "plain_of", "saving_error", "study"]
