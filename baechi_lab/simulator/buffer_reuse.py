"""Memory of a finished timeline in which outputs may reuse the memory of inputs (`OpGraph.reuse`).

Runtimes do not allocate every output: a reshape or the read of a variable is a view, and an elementwise op overwrites an
input that no other op needs. The rules of docs/simulated-time.md apply per tensor, but bytes are counted once per *buffer*,
and a buffer is released with its last tensor:

- A `VIEW` lies in the buffer of its smallest input on that device that is at least as large as the output; without one, in
  the persistent bytes.
- An op that `OVERWRITES` takes over the buffer of an input of the same size if no other op needs it when the op starts. It
  never takes the buffer of a received copy. An output that is sent takes only the buffer of an input that was sent.
- A tensor without bytes, such as a wait between two ops, lies in no buffer, so it does not keep an input alive.
- An op that `GROWS` takes its persistent bytes when it starts, not at the start of the step.

Placers count by the plain rules. Their peak is lower only if a view is smaller than the buffer that it keeps alive. Live
bytes do not change when ops run, so this only recounts a finished timeline, in O((ops + edges + transfers) log). Events are
ordered here and applied in `memory.buffers`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, MemoryLog, OpGraph, Timeline
from ..graph.opgraph import GROWS
from ..graph.units import format_bytes, format_us
from ..memory.buffers import ARRIVED, END, PERSISTENT, RECEIVE, START, apply_events, state_for, uses_of
from .memory_rules import with_memory


def apply_buffer_reuse(
    graph: OpGraph, cluster: Cluster, timeline: Timeline, *, over_copies_us: float = np.inf
) -> Timeline:
    """Returns the timeline with memory, peaks and memory violations counted by the buffers of `graph.reuse`.

    With `over_copies_us`, ops that start at least so long after a copy was received overwrite it too. This is no rule of the
    simulator; TensorFlow does it.
    """
    op_device, transfers = np.zeros(graph.n, dtype=np.int64), timeline.transfers
    op_device[timeline.op] = timeline.device
    uses = uses_of(graph, op_device, transfers.tensor, transfers.target, over_copies_us)
    time, kind, index = _ordered_events(graph, timeline)
    state = state_for(uses, kind, index)
    log_length = apply_events(uses, state, time, kind, index)
    permanent_ops = np.flatnonzero((graph.persistent_bytes > 0) & (graph.reuse != GROWS))
    log = MemoryLog(
        device=np.concatenate([op_device[permanent_ops], state.device[:log_length]]),
        time_us=np.concatenate([np.zeros(len(permanent_ops)), state.time[:log_length]]),
        category=np.concatenate([np.full(len(permanent_ops), PERSISTENT), state.log_category[:log_length]]),
        delta=np.concatenate([graph.persistent_bytes[permanent_ops], state.delta[:log_length]]),
        op=np.concatenate([permanent_ops, state.op[:log_length]]),
    )
    return with_memory(
        timeline,
        log,
        cluster.memory_bytes,
        lambda d, time, op, peak: (
            f"device {cluster.names[d]} exceeds its {format_bytes(int(cluster.memory_bytes[d]))} at {format_us(time)} "
            f"when op {graph.names[op]!r} takes memory; its peak is {format_bytes(peak)}"
        ),
    )


def _ordered_events(
    graph: OpGraph, timeline: Timeline
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns (time, kind, index) of all events in order. Within an instant, ends and arrivals precede starts, by turns.

    An op without duration ends within its turn, and its messages start then.
    """
    transfers = timeline.transfers
    turn_of_op, producer = timeline.turn, graph.tensor_producer[transfers.tensor]
    if turn_of_op is None:  # of ops that start at one instant, those with a duration start last
        lasting = np.zeros(graph.n, dtype=bool)
        lasting[timeline.op] = timeline.end_us > timeline.start_us
        turn_of_op = np.where(lasting, graph.n, 0) + graph.position
    start, end = np.zeros(graph.n), np.zeros(graph.n)
    start[timeline.op], end[timeline.op] = timeline.start_us, timeline.end_us
    # The turn at which an op frees bytes, within the instant of its end.
    release_turn = np.where(end > start, -1.0, turn_of_op + 0.5)
    op_count, transfer_count = len(timeline.op), len(transfers)
    time = np.concatenate([timeline.start_us, timeline.end_us, transfers.receive_us, transfers.end_us])
    kind = np.repeat([START, END, RECEIVE, ARRIVED], [op_count, op_count, transfer_count, transfer_count])
    index = np.concatenate([timeline.op, timeline.op, np.arange(transfer_count), np.arange(transfer_count)])
    send_turn, produced_us = release_turn[producer], end[producer]
    turn = np.concatenate(
        [
            turn_of_op[timeline.op],
            release_turn[timeline.op],
            np.where(transfers.receive_us > produced_us, -1.0, send_turn),
            np.where(transfers.end_us > produced_us, -1.0, send_turn),
        ]
    )
    precedence = np.concatenate(
        [np.full(op_count, 3), np.zeros(op_count), np.full(transfer_count, 2), np.ones(transfer_count)]
    )
    order = np.lexsort((kind, precedence, turn, time))
    return time[order], kind[order], index[order]
