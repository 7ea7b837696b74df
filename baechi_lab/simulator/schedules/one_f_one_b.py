"""`1f1b`: a forward and a backward in turns (Harlap et al., PipeDream, arXiv:1806.03377; flushed every step as in
Narayanan et al., SC 2021, doi:10.1145/3458817.3476209, section 2.2.1).

Stage s of p begins with min(M, p - 1 - s) forwards, so that the first gradient finds every device busy, and then does
one forward and one backward in turns. It holds min(M, p - s) activations; the step lasts as long as GPipe's when all
stages are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from .base import Orders, ScheduleRule, Setting, one_forward_one_backward


@dataclass(frozen=True)
class OneFOneB(ScheduleRule):
    """One forward, one backward in turns: stage s of p holds min(M, p - s) activations."""

    name = "1f1b"

    def orders(self, setting: Setting) -> Orders:
        every, p = list(range(setting.micro_batches)), setting.stages
        return [one_forward_one_backward(min(len(every), setting.warm_up(s)), every, s) for s in range(p)]
