"""`OpGraph.reuse` for `bl.check`: intervals of live bytes, merged where outputs reuse the memory of inputs.

This is written from the rules of docs/simulated-time.md, independently of `simulator.buffer_reuse`, which counts uses event
by event.
"""

from __future__ import annotations

import numpy as np

from ..graph import OpGraph, Placement, Transfers
from ..graph.kernels.csr import Ints
from ..graph.opgraph import OVERWRITES, VIEW


def merge_reused_intervals(
    graph: OpGraph, placement: Placement, transfers: Transfers, times: tuple[Ints, Ints], size: Ints, release: Ints
) -> tuple[Ints, Ints]:
    """Returns sizes and release times of tensors and copies; of those in one buffer, all but the first have size 0."""
    (start, end), device = times, placement.device.tolist()
    row = {(t, device[graph.tensor_producer[t]]): t for t in range(graph.tensor_count)}
    copies = zip(transfers.tensor.tolist(), transfers.target.tolist(), strict=True)
    row |= {copy: graph.tensor_count + k for k, copy in enumerate(copies)}
    uses: list[list[tuple[float, int]]] = [[] for _ in size]  # (end, op; -1 for a transfer)
    for (t, d), k in row.items():
        uses[k] += [(float(end[r]), r) for r in graph.tensor_consumers(t).tolist() if device[r] == d]
    for t, end_time in zip(transfers.tensor.tolist(), transfers.end_us.tolist(), strict=True):
        uses[t].append((end_time, -1))
    sent_tensors = set(transfers.tensor.tolist())
    # Rows in the buffer of row k; None: persistent bytes.
    members: list[list[int] | None] = [[k] for k in range(len(size))]
    tensors, size, release = graph.tensor_bytes, size.copy(), release.copy()
    reuse, (pointer, read) = np.asarray(graph.reuse), graph.inputs

    def free_for(tensor: int, op: int) -> bool:
        """Whether no other op than `op` uses the buffer of `tensor` after `op` has started."""
        sharing = members[row[tensor, device[op]]] or ()
        return all(end_time <= start[op] or user == op for k in sharing for end_time, user in uses[k])

    for op in sorted(
        np.flatnonzero((reuse == VIEW) | (reuse == OVERWRITES)).tolist(), key=lambda i: (start[i], graph.position[i])
    ):
        for t in (t for t in graph.outputs(op) if tensors[t]):
            inputs = [
                u for u in read[pointer[op] : pointer[op + 1]].tolist() if members[row[u, device[op]]] is not None
            ]
            if reuse[op] == VIEW:
                reusable = sorted((u for u in inputs if tensors[u] >= tensors[t]), key=lambda u: (tensors[u], u))
            else:
                reusable = [
                    u for u in inputs if tensors[u] == tensors[t] and device[graph.tensor_producer[u]] == device[op]
                ]
                reusable = [u for u in reusable if t not in sent_tensors or u in sent_tensors]
                reusable = [u for u in reusable if free_for(u, op)]
            if reusable:
                members[t] = members[row[reusable[0], device[op]]]
                members[t].append(t)  # type: ignore[union-attr]
            elif reuse[op] == VIEW:
                members[t], size[t] = None, 0
    for buffer_rows in {id(m): m for m in members if m is not None}.values():
        release[buffer_rows[0]], size[buffer_rows[1:]] = release[buffer_rows].max(), 0
    return size, release
