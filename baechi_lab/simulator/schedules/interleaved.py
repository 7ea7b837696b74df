"""`interleaved-1f1b`: several stages on each device (Narayanan et al., SC 2021, doi:10.1145/3458817.3476209, section 2.2.2).

Stage s is on device s mod p, v stages on each. A device takes a group of p micro-batches through its first stage, the
same through its second, and so on, forward and backward alike; device d begins with (v - 1) p + 2 (p - 1 - d) forwards.
The bubble is 1 / v of that of 1F1B, for v times the transfers. Published for M a multiple of p; other M are divided into
floor(M / p) groups, the first of which have one micro-batch more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .base import Orders, ScheduleRule, Setting


@dataclass(frozen=True)
class Interleaved(ScheduleRule):
    """1F1B with several stages on each device: a smaller bubble, more transfers."""

    name = "interleaved-1f1b"
    shape = "loop"

    def orders(self, setting: Setting) -> Orders:
        p, count = setting.devices, setting.micro_batches
        chunks = setting.stages // max(p, 1)
        groups = [g.tolist() for g in np.array_split(np.arange(count), max(count // max(p, 1), 1))]
        lines = []
        for d in range(p):
            ahead = [(c * p + d, "F", m) for group in groups for c in range(chunks) for m in group]
            backward_units = [(c * p + d, "B", m) for group in groups for c in reversed(range(chunks)) for m in group]
            warm = min((chunks - 1) * len(groups[0]) + (2 if chunks > 1 else 1) * (p - 1 - d), len(ahead))
            alternating = [unit for pair in zip(ahead[warm:], backward_units, strict=False) for unit in pair]
            lines.append([*ahead[:warm], *alternating, *backward_units[len(ahead) - warm :]])
        return lines
