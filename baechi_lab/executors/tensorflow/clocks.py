"""Clock offsets between the tasks of a cluster, computed from the tensors that they sent to each other.

Idea (Cristian 1989, doi:10.1007/BF01784024; the symmetric form is NTP's): a tensor cannot arrive before it was sent.
With `ab` the smallest (arrival on b's clock) - (sending on a's clock) and `ba` the same the other way, the offset of
b's clock lies between `-ba` and `ab`. If that window contains 0, the offset is 0: workers of one machine share a clock, and
the middle of the window would only add half of the links' asymmetry. Otherwise the offset is the middle of the window, or its
bound if tensors went one way only. Tasks that did not exchange tensors with the first one are reached through others, breadth
first. O(transfers + tasks).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf


def clock_offsets(messages: Iterable[tuple[int, int, float, float]], tasks: int) -> list[float]:
    """Returns the microseconds to subtract from each task's clock to get the first task's clock.

    `messages` has one (source task, target task, sending time, arrival time) per tensor, each on its own task's clock.

    >>> clock_offsets([(0, 1, 10.0, 1012.0), (1, 0, 1020.0, 24.0)], 2)  # window -(24-1020) = 996 .. 1002
    [0.0, 999.0]
    """
    smallest: dict[tuple[int, int], float] = {}
    for source, target, start, end in messages:
        if source != target:
            smallest[source, target] = min(smallest.get((source, target), inf), end - start)
    offsets = [0.0] * tasks
    reached_tasks, queue = {0}, deque([0])
    while queue:
        origin = queue.popleft()
        for task in range(tasks):
            forth_us, back_us = smallest.get((origin, task), inf), smallest.get((task, origin), inf)
            if task not in reached_tasks and (forth_us < inf or back_us < inf):
                offsets[task] = offsets[origin] + _in_window(-back_us, forth_us)
                reached_tasks.add(task)
                queue.append(task)
    return offsets


def _in_window(low: float, high: float) -> float:
    if low <= 0.0 <= high:
        return 0.0
    if low == -inf or high == inf:
        return high if low == -inf else low
    return (low + high) / 2
