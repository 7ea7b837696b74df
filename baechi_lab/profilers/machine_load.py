"""The spread of a measurement's repeats, and the load that other programs put on the machine during it.

The load is the CPU seconds of all cores (`/proc/stat`, without idle and waiting time, with time taken by a hypervisor) minus
those of the measured processes. A process' own clocks cannot show it: they stand still both when the process waits for a
message and when it has lost its core.
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
from ..internal_warnings import outer_stacklevel

MAX_OTHERS_SHARE = 0.15
"""Largest load by other programs, in CPU seconds per second: services of an idle machine use far less."""
MAX_SPREAD = 0.5
"""Largest spread of repeats, as a share of their median, at which they still tell how long a step takes."""
MIN_STEP_US = 1000.0
"""Shortest step whose spread is judged: shorter ones vary this much on any machine."""
NAMED_SHARE = 0.01
"""Smallest share of the work for which the spread of an op is recorded in the graph."""

_BUSY = (0, 1, 2, 5, 6, 7)
"""Columns of /proc/stat during which a core is unavailable: user, nice, system, irq, softirq, steal."""


def busy_seconds() -> float:
    """Returns the CPU seconds that all cores have worked since the machine started; 0 if the system does not tell."""
    try:
        columns = Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    return sum(int(columns[k]) for k in _BUSY if k < len(columns)) / os.sysconf("SC_CLK_TCK")


class OtherPrograms:
    """Measures the load by other programs from its creation on.

    Args:
        own_seconds: CPU seconds that the measured processes have used so far.

    >>> OtherPrograms(lambda: 0.0).share() >= 0.0
    True
    """

    def __init__(self, own_seconds: Callable[[], float]):
        self.own_seconds = own_seconds
        self.start_seconds, self.own_seconds_at_start, self.busy = time.monotonic(), own_seconds(), busy_seconds()

    def share(self) -> float:
        """Returns CPU seconds of other programs per elapsed second: 0 if there were none, 1 if they kept one core busy."""
        other_seconds = (busy_seconds() - self.busy) - (self.own_seconds() - self.own_seconds_at_start)
        return max(other_seconds, 0.0) / max(time.monotonic() - self.start_seconds, 1e-3)


def summarize_repeats(
    names: Sequence[str], op_us: NDArray[np.float64], others_share: float, cores_needed: int
) -> dict[str, object]:
    """Returns the facts about a profile's repeats for `OpGraph.info["measured"]`.

    Args:
        names: names of the ops.
        op_us: float64[runs, ops], microseconds of each op in each repeat.
        others_share: see `OtherPrograms`.
        cores_needed: cores that the measurement itself keeps busy.

    Returns:
        - `step_us`: the sum over all ops in each repeat.
        - `spread`: the difference between its maximum and minimum over its median.
        - `op_spread`: the same by op, for ops with a noticeable share of the work.
        - `others_share`: as given.
        - `cores`: of the machine.
        - `busy`: True if other programs left too few cores.

    >>> summarize_repeats(["a", "b"], np.array([[9.0, 1.0], [10.0, 0.0]]), 0.0, 1)["op_spread"]
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
        "busy": bool(others_share > max(cores - cores_needed, 0) + MAX_OTHERS_SHARE),
    }


def _spread(us: NDArray[np.float64]) -> float:
    median = float(np.median(us)) if len(us) else 0.0
    return round((float(us.max()) - float(us.min())) / median, 3) if median > 0 else 0.0


def describe_range(measured: Mapping[str, Any]) -> str:
    """Describes the times of the fastest and the slowest repeat."""
    step_us = measured["step_us"]
    if len(step_us) < 2:
        return "one repeat"
    return f"{len(step_us)} repeats took {format_us(min(step_us))} to {format_us(max(step_us))}"


def describe_load(measured: Mapping[str, Any]) -> str:
    """Describes the load by other programs."""
    return f"other programs used {measured['others_share']:.2g} of {measured['cores']} cores"


def describe_repeats(measured: Mapping[str, Any]) -> str:
    """Describes the range of the repeats and the load by other programs in one sentence.

    >>> describe_repeats({"step_us": [1000.0, 1200.0], "others_share": 1.5, "cores": 2, "busy": True})
    '2 repeats took 1.00 ms to 1.20 ms, and other programs used 1.5 of 2 cores'
    """
    return f"{describe_range(measured)}, and {describe_load(measured)}"


def warn_if_disturbed(name: str, measured: Mapping[str, Any]) -> None:
    """Warns with `BusyMachine` if the machine was busy during a profile, or if its repeats differ too much."""
    differs = measured["spread"] > MAX_SPREAD and float(np.median(measured["step_us"])) >= MIN_STEP_US
    if measured["busy"] or differs:
        cause = "beside other programs" if measured["busy"] else "with widely differing times"
        warnings.warn(
            f"{name!r} was measured {cause}: {describe_repeats(measured)}; its times may be too long: "
            "measure again on a quiet machine",
            BusyMachine,
            stacklevel=outer_stacklevel(),
        )
