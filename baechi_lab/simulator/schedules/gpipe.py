"""`gpipe`: all forward passes, then all backward passes (Huang et al., NeurIPS 2019, arXiv:1811.06965, section 2.3)."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Orders, ScheduleRule, Setting


@dataclass(frozen=True)
class GPipe(ScheduleRule):
    """All forward passes, then all backward passes: M activations per stage are held at once."""

    name = "gpipe"

    def orders(self, setting: Setting) -> Orders:
        every = range(setting.micro_batches)
        return [[(s, kind, m) for kind in "FB" for m in every] for s in range(setting.stages)]
