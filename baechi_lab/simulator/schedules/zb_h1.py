"""`zb-h1`: 1F1B with the gradient of weights as filling (Qi et al. 2023, arXiv:2401.10241, section 2.3).

Backward is split in two: B, which the stage before waits for, and W, which nobody waits for. Forwards and Bs come in the
order of 1F1B. Stage s does the W of a micro-batch s micro-batches after its B. So every device holds at most the p activations
that 1F1B holds on its first device, and has s Ws left to fill its tail. The bubble is (p - 1) (F + B - W).
"""

from __future__ import annotations

from dataclasses import dataclass

from .base import Orders, ScheduleRule, Setting, one_forward_one_backward, with_lagging_weights


@dataclass(frozen=True)
class ZbH1(ScheduleRule):
    """1F1B whose gradients of weights fill the tail, in the memory of 1F1B's first stage."""

    name = "zb-h1"
    splits = True
    _ahead = 1
    """Multiple of the forwards of 1F1B with which a stage begins, and of its number by which Ws come later."""

    def orders(self, setting: Setting) -> Orders:
        every, k = list(range(setting.micro_batches)), self._ahead
        return [
            with_lagging_weights(one_forward_one_backward(min(len(every), k * setting.warm_up(s)), every, s), k * s)
            for s in range(setting.stages)
        ]
