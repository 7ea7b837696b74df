"""What other programs did with the machine while something was measured.

The CPU seconds of all cores (`/proc/stat`; waiting and idling left out, time that a hypervisor took included), less those
of the processes that the measurement is about. The workers' own clocks cannot tell: a worker that waits for a message
and one that was pushed off its core both stand still. Times taken beside other programs do not count, so a study waits for
a quiet machine, and refuses to measure on one that does not become quiet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import ExecutionError, InvalidInput
from ..graph.columns import finite

MOST = 0.15
"""CPU seconds per second that other programs may use: services of an idle machine stay far below."""
LOOK = 2.0
"""Seconds over which the machine is watched before it is taken for quiet."""

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


def wait_for_quiet(
    own_seconds: Callable[[], float], limit: float, sleep: Callable[[float], None] = time.sleep
) -> float:
    """Wait until other programs use at most `MOST` of a core for `LOOK` seconds; what they used then.

    Args:
        own_seconds: see `Others`.
        limit: seconds to wait at most, besides the first look.
        sleep: how to wait.

    Raises `ExecutionError`: the machine stayed busy, and how busy; `InvalidInput`: a limit that is no time.
    """
    if finite(limit) is None or limit < 0:
        raise InvalidInput(f"wait is {limit!r:.60}; it must be a number of seconds of at least 0, or None")
    began = time.monotonic()
    while True:
        others = Others(own_seconds)
        sleep(LOOK)
        share = others.share()
        if share <= MOST:
            return share
        if time.monotonic() - began >= limit:
            raise refused(share, f"after a wait of {limit:g} s")


def refused(share: float, when: str) -> ExecutionError:
    """The machine is too busy to measure on."""
    return ExecutionError(
        f"other programs use {share:.2f} of a core {when}, and times count up to {MOST:g}; end them, or measure all the same "
        "with wait=None (--busy), which is stored as not quiet"
    )


def own_processes(pids: Sequence[int]) -> Callable[[], float]:
    """CPU seconds of this process and of `pids`, those that have ended left out."""
    from ..executors.tensorflow.calibration import process_seconds

    def seconds() -> float:
        total = time.process_time()
        for pid in pids:
            try:
                total += process_seconds(pid)
            except OSError:
                continue
        return total

    return seconds
