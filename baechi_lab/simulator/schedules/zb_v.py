"""`zb-v`: stages go through the devices and back, in the memory of 1F1B (Qi et al. 2024, arXiv:2405.15362, section 3).

Device d of p holds stage d and stage 2 p - 1 - d, so the last stage is on the first device, and the first gradient
appears where the first forward ended. Per device, a (first) and b (second) being its two stages:

1. 2 (p - d) - 1 forwards of a;
2. d times a forward of b and one of a;
3. p - d times a forward of b, its B and its W;
4. while there are forwards left: a forward of a, B and W of a, a forward of b, B and W of b;
5. d times B of a and B of b; then the Bs of a that are left, and Ws as filling.

Every device holds at most 2 p activations of half a device's work each. With F = B = W and free transfers no device waits
between its first and last unit once there are at least 2 p - 1 micro-batches; with fewer, units of micro-batches
that do not exist are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from .base import Orders, ScheduleRule, Setting


@dataclass(frozen=True)
class ZbV(ScheduleRule):
    """Stages through the devices and back, gradients of weights as filling: no bubble in the memory of 1F1B."""

    name = "zb-v"
    shape = "v"
    splits = True

    def orders(self, setting: Setting) -> Orders:
        p, count = setting.devices, setting.micro_batches
        device_orders = [_device(d, p, max(count, 2 * p - 1)) for d in range(p)]
        return [[unit for unit in order if unit[2] < count] for order in device_orders]


class _Order(list[tuple[int, str, int]]):
    """Units of one device; each call of `add` takes the next micro-batch of that stage and kind."""

    def __init__(self) -> None:
        super().__init__()
        self.unit_counts: dict[tuple[int, str], int] = {}

    def count(self, stage: int, kind: str) -> int:  # type: ignore[override]
        """Units of this stage and kind so far."""
        return self.unit_counts.get((stage, kind), 0)

    def add(self, stage: int, kinds: str) -> None:
        """Adds one unit of each kind, in turn."""
        for kind in kinds:
            self.append((stage, kind, self.count(stage, kind)))
            self.unit_counts[stage, kind] = self.count(stage, kind) + 1


def _device(d: int, p: int, count: int) -> list[tuple[int, str, int]]:
    a, b, order = d, 2 * p - 1 - d, _Order()
    for _ in range(2 * (p - d) - 1):
        order.add(a, "F")
    for _ in range(d):
        order.add(b, "F")
        order.add(a, "F")
    for _ in range(p - d):
        order.add(b, "FBW")
    while order.count(b, "F") < order.count(a, "F") or order.count(a, "F") < count:
        if order.count(a, "F") < count:
            order.add(a, "F")
        order.add(a, "BW")
        order.add(b, "FBW")
    for _ in range(d):
        order.add(a, "B")
        order.add(b, "B")
    while order.count(a, "B") < count:
        order.add(a, "BW")
    for stage in (b, a):
        while order.count(stage, "W") < count:
            order.add(stage, "W")
    return order
