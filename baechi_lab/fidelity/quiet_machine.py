"""Waits for a quiet machine. Times that other programs disturb do not count, so a study does not measure then."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..checks import finite
from ..errors import ExecutionError, InvalidInput, in_short
from ..profilers.machine_load import MAX_OTHERS_SHARE, OtherPrograms

LOOK = 2.0
"""Seconds over which the load of the machine is measured."""


def wait_for_quiet(
    own_seconds: Callable[[], float], limit: float, sleep: Callable[[float], None] = time.sleep
) -> float:
    """Waits until other programs use at most `MAX_OTHERS_SHARE` of a core for `LOOK` seconds. Returns what they used.

    Args:
        own_seconds: see `OtherPrograms`.
        limit: seconds to wait at most, besides the first look.
        sleep: how to wait.

    Raises `ExecutionError` that says how busy the machine stayed, and `InvalidInput` for a limit that is no time.
    """
    if finite(limit) is None or limit < 0:
        raise InvalidInput(f"wait is {in_short(limit)}; it must be a number of seconds of at least 0, or None")
    start_seconds = time.monotonic()
    while True:
        other_programs = OtherPrograms(own_seconds)
        sleep(LOOK)
        share = other_programs.share()
        if share <= MAX_OTHERS_SHARE:
            return share
        if time.monotonic() - start_seconds >= limit:
            raise busy_machine_error(share, f"after a wait of {limit:g} s")


def busy_machine_error(share: float, circumstance: str) -> ExecutionError:
    """Returns the error for a machine that is too busy to measure on."""
    return ExecutionError(
        f"other programs use {share:.2f} of a core {circumstance}, and times count up to {MAX_OTHERS_SHARE:g}; end them, or "
        "measure all the same with wait=None (--busy), which is stored as not quiet"
    )


def own_processes(pids: Sequence[int]) -> Callable[[], float]:
    """Returns a function for the CPU seconds of this process and of those of `pids` that run."""
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
