"""The cause of an op's start time: its device was busy, an input was missing, or a link had a queue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph, Timeline
from ..graph.units import format_bytes, format_us_beside
from .schedule import computing
from .waiting import last_inputs

SLACK = 1e-9
"""Two times are the same if they differ by less than this share of the step, since sums of durations are rounded."""


@dataclass(frozen=True)
class Cause:
    """The last event for which an op waited.

    Args:
        kind: `start` (it did not wait), `device` (another op ran there), `tensor` (an input was produced late), `transfer` (an
            input was being sent), `queue` (an input waited for a busy link) or `idle` (the timeline shows no cause).
        op: the op for which it waited, -1 for none.
        transfer: the row of the transfer for which it waited, -1 for none.
        waited_us: how long the device, or else the inputs, were ready before the start.
        sentence: the cause in words.
        behind: the row of the transfer before it in a queue, -1 for none.
    """

    kind: str
    op: int
    transfer: int
    waited_us: float
    sentence: str
    behind: int = -1


def cause(graph: OpGraph, timeline: Timeline, op: int) -> Cause | None:
    """Returns the cause for which `op` of `graph` did not start earlier in `timeline`; None if it did not run.

    If device and input were ready at one time, the input is the cause, as in `critical_chain`. O(rows log rows + inputs).
    """
    rows = np.flatnonzero(timeline.op == op)
    if not len(rows):
        return None
    row = int(rows[0])
    start, device = float(timeline.start_us[row]), int(timeline.device[row])
    rounding_us = SLACK * max(timeline.makespan_us, 1.0)
    last_input = last_inputs(graph, timeline, np.array([op]), np.array([device]))
    arrival_us = float(last_input.there_us[0])
    producer = int(last_input.producer[0])
    transfer = int(last_input.transfer[0])
    if producer < 0 or arrival_us < 0:
        arrival_us, producer, transfer = -1.0, -1, -1
    # The end of the previous op in the lane of the device, and that op; -1 for none.
    computes = computing(graph, timeline)
    ran_before = (
        (timeline.device == timeline.device[row])
        & (computes == computes[row])
        & (timeline.end_us <= timeline.start_us[row] + rounding_us)
    )
    ran_before[row] = False
    earlier_rows = np.flatnonzero(ran_before)
    if len(earlier_rows):
        latest_row = int(earlier_rows[np.argmax(timeline.end_us[earlier_rows])])
        free_us, previous_op = float(timeline.end_us[latest_row]), int(timeline.op[latest_row])
    else:
        free_us, previous_op = -1.0, -1
    in_unit = partial(format_us_beside, largest=timeline.makespan_us)
    start_text, name = f"started at {in_unit(start)}", timeline.device_names[device]
    if start <= rounding_us:
        return Cause("start", -1, -1, 0.0, f"{start_text}, with the step")
    if max(arrival_us, free_us) < start - rounding_us:
        gap = start - max(arrival_us, free_us, 0.0)
        sentence = (
            f"{start_text}: {name} was free and every input there {in_unit(gap)} before; the planned order, or overhead"
        )
        return Cause("idle", -1, -1, gap, sentence)
    if free_us > arrival_us + rounding_us:
        ready_text = (
            f"; its inputs were there {in_unit(free_us - max(arrival_us, 0.0))} before" if producer >= 0 else ""
        )
        sentence = f"{start_text}: {name} was busy with {graph.names[previous_op]} until then{ready_text}"
        return Cause("device", previous_op, -1, free_us - max(arrival_us, 0.0), sentence)
    if arrival_us - max(free_us, 0.0) > rounding_us:
        free_text = f"; {name} was free {in_unit(arrival_us - free_us)} before"
    else:
        free_text = ""
    waited_us = arrival_us - max(free_us, 0.0)
    if transfer < 0:
        return Cause("tensor", producer, -1, waited_us, f"{start_text}, when {graph.names[producer]} ended{free_text}")
    return _of_transfer(
        graph, timeline, transfer, waited_us, f"{start_text}, when the tensor of {graph.names[producer]}", free_text
    )


def _of_transfer(
    graph: OpGraph, timeline: Timeline, row: int, waited_us: float, sentence: str, free_text: str
) -> Cause:
    """Returns the cause `transfer`, or `queue` if the transfer waited at one of its ends."""
    transfers, rounding_us = timeline.transfers, SLACK * max(timeline.makespan_us, 1.0)
    tensor = int(transfers.tensor[row])
    producer = int(graph.tensor_producer[tensor])
    source, target = (timeline.device_names[int(d)] for d in (transfers.source[row], transfers.target[row]))
    produced_us = timeline.end_us[timeline.op == producer]
    start, receive, end = (float(times[row]) for times in (transfers.start_us, transfers.receive_us, transfers.end_us))
    sent_us = max(start, receive)
    queued_us = sent_us - float(produced_us[0]) if len(produced_us) else 0.0
    size = format_bytes(int(timeline.tensor_bytes[tensor]))
    in_unit = partial(format_us_beside, largest=timeline.makespan_us)
    text = f"{sentence} ({size}) arrived from {source} after {in_unit(end - sent_us)}"
    if queued_us <= rounding_us:
        return Cause("transfer", producer, row, waited_us, text + free_text)
    # The transfer at one of the two devices that ended when this one began; -1 if there is none.
    end_devices = (transfers.source[row], transfers.target[row])
    shares_device: NDArray[np.bool_] = np.isin(transfers.source, end_devices) | np.isin(transfers.target, end_devices)
    sender_free_us = transfers.start_us + (transfers.end_us - transfers.receive_us)  # the sender is free again
    ended_then = (np.abs(transfers.end_us - sent_us) <= rounding_us) | (np.abs(sender_free_us - sent_us) <= rounding_us)
    blocking_rows = np.flatnonzero(shares_device & ended_then & (np.arange(len(transfers)) != row))
    blocking_row = int(blocking_rows[0]) if len(blocking_rows) else -1
    if blocking_row < 0:
        blocking_text = "other transfers"
    else:
        blocking_text = f"the tensor of {graph.names[int(timeline.tensor_producer[transfers.tensor[blocking_row]])]}"
    busy_device = target if receive > start + rounding_us else source
    sentence = (
        f"{text}, having waited {in_unit(queued_us)} in the queue of {busy_device} behind {blocking_text}{free_text}"
    )
    return Cause("queue", producer, row, waited_us, sentence, blocking_row)


def neighbours(graph: OpGraph, op: int) -> tuple[list[int], list[int]]:
    """Returns the producers of the inputs of `op`, and the readers of its outputs, ascending."""
    pointer, tensors = graph.inputs
    producers = graph.tensor_producer[tensors[pointer[op] : pointer[op + 1]]]
    first, last = graph.output_ptr[op], graph.output_ptr[op + 1]
    read = graph.consumers[graph.consumer_ptr[first] : graph.consumer_ptr[last]]
    return np.unique(producers).tolist(), np.unique(read).tolist()
