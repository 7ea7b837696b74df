"""The scheduling problem of docs/simulated-time.md as a CP-SAT model.

Variables: x[g, d] "group g is on device d"; the start of every op; per tensor and receiving device the start of its send and
of its receive; where transfers queue, which of two producers ends first. Constraints:

- Devices: an op occupies its device for its duration; no two ops overlap.
- Precedence: an op starts no earlier than each of its inputs arrives: at the producer's end on the same device, otherwise at
  the receive's start plus the cost.
- Transfers (`exact.transfers`): queues serve requests in the order in which their tensors were produced.
- Memory (`add_memory`): outputs, temporaries and received copies next to the persistent bytes.
- Colocation groups share x; devices that are not allowed are left out.

This is the relaxed model. Ops and transfers may start later than they could, the copies of one tensor may be sent in any
order, and equal devices are numbered in one way only. Its optimum is a lower bound of every schedule. The strict model adds
the simulator's rule that nothing waits without need: for ops `forbid_idling`, for transfers `exact.transfers`. Its optimum is
the best that any placement and any order can reach in the simulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...graph.kernels.csr import grouped_sum
from ..problem import devices_are_equal, memory_may_run_out
from .transfers import add_transfer_bounds, add_transfers
from .variables import ExactModel

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import IntVar


def build_model(m: ExactModel) -> ExactModel:
    """Adds all variables and constraints to an empty model."""
    m.add_devices()
    m.add_ops()
    add_transfers(m)
    m.add_inputs()
    if m.cluster.n > 1:
        add_transfer_bounds(m)
    if memory_may_run_out(m.graph, m.cluster):
        add_memory(m)
    if m.strict:
        forbid_idling(m)
    elif devices_are_equal(m.graph, m.cluster):
        # Of equal devices one numbering: group g may use device d only if a group before it is on device d - 1.
        for g, row in enumerate(m.x):
            for d in range(1, m.cluster.n):
                m.model.add_bool_or([*(m.x[h][d - 1] for h in range(g)), ~row[d]])
    m.model.minimize(m.makespan)
    return m


def forbid_idling(m: ExactModel) -> None:
    """Requires that another op ends on the device when `i` starts if an op was ready there before."""
    n, model = m.graph.n, m.model
    ready: list[IntVar] = []  # when all inputs of each op are on its device
    for i in range(n):
        ready.append(m.var(m.horizon, f"r{i}"))
        if m.arrivals[i]:
            model.add_max_equality(ready[i], m.arrivals[i])
        else:
            model.add(ready[i] == 0)
        model.add(m.start[i] >= ready[i])
    for i in range(n):
        follows = [
            m.reason(m.start[i], m.end[j], [m.together(i, j), m.before(j, i)])
            for j in range(n)
            if j != i and not m.after[i, j]
        ]
        is_packed = m.bool(f"packed{i}")
        model.add_bool_or([*follows, ~is_packed])
        m.at_one_instant(m.start[i], ready[i], ~is_packed)
        for k in range(n):
            if k != i and not m.after[k, i]:
                inputs_ready = ready[k] + m.times.tolerance >= m.start[i]
                model.add(inputs_ready).only_enforce_if([m.together(i, k), m.before(i, k), ~is_packed])


UNITS = 10**6
"""Units that the largest device's memory is divided into."""


def add_memory(m: ExactModel) -> None:
    """Keeps the bytes that each device holds within its memory, from the start to the end of every span.

    Sizes are rounded down to a common unit, so nothing that fits is excluded.
    """
    unit = max(1, int(m.cluster.memory_bytes.max()) // UNITS)
    spans: list[list[tuple[object, int]]] = [[] for _ in range(m.cluster.n)]
    for t in range(m.graph.tensor_count):
        size = int(m.graph.tensor_bytes[t]) // unit
        if size:
            # An output: from its producer's start until its last local reader has ended and its last copy has arrived.
            producer = int(m.graph.tensor_producer[t])
            free, length = m.var(2 * m.horizon, f"free{t}"), m.var(2 * m.horizon)
            m.model.add(free >= m.end[producer])
            for j in m.graph.tensor_consumers(t).tolist():
                m.model.add(free >= m.end[j]).only_enforce_if(m.together(producer, j))
            for d in range(m.cluster.n):
                if (t, d) in m.present:
                    m.model.add(free >= m.receive[t, d] + m.cost[t, d]).only_enforce_if(m.present[t, d])
                span = m.model.new_optional_interval_var(m.start[producer], length, free, m.on(producer, d), "")
                spans[d].append((span, size))
            # A received copy: from the start of the receive until the last reader on that device has ended.
            for d in range(m.cluster.n):
                if (t, d) not in m.present:
                    continue
                present, free_time, length = m.present[t, d], m.var(2 * m.horizon), m.var(2 * m.horizon)
                m.model.add(free_time >= m.receive[t, d] + m.cost[t, d]).only_enforce_if(present)
                for j in m.graph.tensor_consumers(t).tolist():
                    m.model.add(free_time >= m.end[j]).only_enforce_if([present, m.on(j, d)])
                spans[d].append(
                    (m.model.new_optional_interval_var(m.receive[t, d], length, free_time, present, ""), size)
                )
    for i in np.flatnonzero(m.graph.temp_bytes >= unit).tolist():
        for d in range(m.cluster.n):
            length = int(m.times.duration[i, d])
            span = m.model.new_optional_interval_var(m.start[i], length, m.end[i], m.on(i, d), "")
            spans[d].append((span, int(m.graph.temp_bytes[i]) // unit))
    # Persistent bytes are held throughout. An op must also fit alone, next to the persistent bytes of its group.
    group_bytes = grouped_sum(m.graph.persistent_bytes, m.group, len(m.x))
    alone = m.graph.output_bytes + m.graph.temp_bytes + group_bytes[m.group]
    for d in range(m.cluster.n):
        memory_bytes = int(m.cluster.memory_bytes[d])
        m.model.add(sum(int(b) * m.x[g][d] for g, b in enumerate(group_bytes.tolist()) if b) <= memory_bytes)
        for g in np.flatnonzero(group_bytes >= unit).tolist():
            span = m.model.new_optional_fixed_size_interval_var(0, 2 * m.horizon, m.x[g][d], "")
            spans[d].append((span, int(group_bytes[g]) // unit))
        for i in np.flatnonzero(alone > memory_bytes).tolist():
            m.model.add(m.on(i, d) == 0)
    for d in range(m.cluster.n):
        if spans[d]:
            capacity = int(m.cluster.memory_bytes[d]) // unit
            m.model.add_cumulative([s for s, _ in spans[d]], [b for _, b in spans[d]], capacity)
