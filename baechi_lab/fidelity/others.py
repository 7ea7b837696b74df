"""Waiting for a quiet machine: times taken beside other programs do not count, so a study refuses to measure beside them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..checks import finite
from ..errors import ExecutionError, InvalidInput
from ..profilers.machine_load import MOST, Others

LOOK = 2.0
"""Seconds over which the machine is watched before it is taken for quiet."""


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
