"""How repeats of a measurement differed, and what other programs did with the machine meanwhile.

The CPU seconds of all cores (`/proc/stat`; waiting and idling left out, time that a hypervisor took included), less those
of the processes that the measurement is about. A process' own clocks cannot tell: one that waits for a message and one that
was pushed off its core both stand still.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BusyMachine
from ..graph.units import format_us

MOST = 0.15
"""CPU seconds per second that other programs may use: services of an idle machine stay far below."""
WIDE = 0.5
"""Repeats of a step that differ by more than this share of their median do not tell how long a step takes."""
LEAST_US = 1000.0
"""Shorter steps differ by as much on any machine."""
NAMED_SHARE = 0.01
"""Ops with at least this share of the work have their spread in the graph."""

_BUSY = (0, 1, 2, 5, 6, 7)
"""user, nice, system, irq, softirq, steal: the columns of /proc/stat in which a core is not there for others."""


def busy_seconds() -> float:
    """CPU seconds that all cores have worked since the machine started; 0 where the system does not tell."""
    try:
        columns = Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    return sum(int(columns[k]) for k in _BUSY if k < len(columns)) / os.sysconf("SC_CLK_TCK")


class Others:
    """Counts from its creation; `share()` is the CPU seconds of other programs per second that passed.

    Args:
        own_seconds: CPU seconds that the measured processes have used so far.

    >>> Others(lambda: 0.0).share() >= 0.0
    True
    """

    def __init__(self, own_seconds: Callable[[], float]):
        self.own_seconds = own_seconds
        self.began, self.own, self.busy = time.monotonic(), own_seconds(), busy_seconds()

    def share(self) -> float:
        """0 where nobody else did anything, 1 where others kept one core busy."""
        others = (busy_seconds() - self.busy) - (self.own_seconds() - self.own)
        return max(others, 0.0) / max(time.monotonic() - self.began, 1e-3)


def repeats(names: Sequence[str], op_us: NDArray[np.float64], others_share: float, cores_needed: int) -> dict[str, Any]:
    """What `OpGraph.info["measured"]` says of a profile.

    Args:
        names: of the ops.
        op_us: float64[runs, ops], microseconds of each op in each repeat.
        others_share: see `Others`.
        cores_needed: cores that the measurement itself keeps busy.

    Returns:
        `step_us`, the sum over all ops in each repeat; `spread`, the difference between the largest and the smallest of
        these over their median; `op_spread`, the same by op, of those with a share of the work; `others_share` and the
        machine's `cores`; `busy`, whether other programs left too few of them.

    >>> repeats(["a", "b"], np.array([[9.0, 1.0], [10.0, 0.0]]), 0.0, 1)["op_spread"]
    {'a': 0.105, 'b': 2.0}
    """
    step_us = op_us.sum(axis=1)
    cores = os.cpu_count() or 1
    large = np.flatnonzero(op_us.mean(axis=0) >= NAMED_SHARE * max(step_us.mean(), 1e-12))
    return {
        "step_us": [round(float(us), 3) for us in step_us],
        "spread": _spread(step_us),
        "op_spread": {names[i]: _spread(op_us[:, i]) for i in large.tolist()},
        "others_share": round(float(others_share), 3),
        "cores": cores,
        "busy": bool(others_share > max(cores - cores_needed, 0) + MOST),
    }


def _spread(us: NDArray[np.float64]) -> float:
    median = float(np.median(us)) if len(us) else 0.0
    return round((float(us.max()) - float(us.min())) / median, 3) if median > 0 else 0.0


def in_words(measured: Mapping[str, Any]) -> str:
    """How far repeats differed and who else was at work, in one sentence.

    >>> in_words({"step_us": [1000.0, 1200.0], "others_share": 1.5, "cores": 2, "busy": True})
    '2 repeats took 1.00 ms to 1.20 ms, and other programs used 1.5 of 2 cores'
    """
    step_us = measured["step_us"]
    count = len(step_us)
    ran = f"{count} repeats took {format_us(min(step_us))} to {format_us(max(step_us))}" if count > 1 else "one repeat"
    return f"{ran}, and other programs used {measured['others_share']:.2g} of {measured['cores']} cores"


def warn_if_disturbed(name: str, measured: Mapping[str, Any]) -> None:
    """Issue `BusyMachine` where a profile's times are those of a busy machine, or differ too much to be times of the step."""
    differs = measured["spread"] > WIDE and float(np.median(measured["step_us"])) >= LEAST_US
    if measured["busy"] or differs:
        cause = "beside other programs" if measured["busy"] else "with widely differing times"
        warnings.warn(
            f"{name!r} was measured {cause}: {in_words(measured)}; its times may be too long: measure again on a quiet machine",
            BusyMachine,
            stacklevel=4,
        )
