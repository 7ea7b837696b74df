"""Clock offsets between the tasks of a cluster, from the tensors that they sent each other.

Idea (Cristian 1989, doi:10.1007/BF01784024; the symmetric form is NTP's): a tensor cannot arrive before it was sent.
With `ab` the smallest (arrival on b's clock) - (sending on a's clock) and `ba` the same the other way, the offset of
b's clock lies between `-ba` and `ab`. Where that window holds 0 nothing shows that the clocks differ, and they are
left alone (workers of one machine share a clock; the middle would only add half of the links' asymmetry). Otherwise
the middle of the window is taken, or its bound where tensors went one way only. Tasks that did not exchange tensors
with the first one are reached through others, breadth first. O(transfers + tasks).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf


def clock_offsets(sent: Iterable[tuple[int, int, float, float]], tasks: int) -> list[float]:
    """Microseconds to subtract from each task's clock to get the first task's.

    `sent` has one (source task, target task, sending time, arrival time) per tensor, each on its own task's clock.

    >>> clock_offsets([(0, 1, 10.0, 1012.0), (1, 0, 1020.0, 24.0)], 2)  # window -(24-1020) = 996 .. 1002
    [0.0, 999.0]
    """
    least: dict[tuple[int, int], float] = {}
    for source, target, start, end in sent:
        if source != target:
            least[source, target] = min(least.get((source, target), inf), end - start)
    offsets = [0.0] * tasks
    reached, queue = {0}, deque([0])
    while queue:
        here = queue.popleft()
        for task in range(tasks):
            there, back = least.get((here, task), inf), least.get((task, here), inf)
            if task not in reached and (there < inf or back < inf):
                offsets[task] = offsets[here] + _in_window(-back, there)
                reached.add(task)
                queue.append(task)
    return offsets


def _in_window(low: float, high: float) -> float:
    if low <= 0.0 <= high:
        return 0.0
    if low == -inf or high == inf:
        return high if low == -inf else low
    return (low + high) / 2
