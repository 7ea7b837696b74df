"""Memory in the CP-SAT model: optional intervals of bytes, cumulative per device beside the persistent bytes.

Sizes are rounded down to a common unit, so nothing that fits is excluded.
"""

from __future__ import annotations

import numpy as np

from .variables import ExactModel

UNITS = 10**6
"""Units that the largest device's memory is divided into."""


def add_memory(m: ExactModel) -> None:
    """Keeps the bytes that each device holds within its memory, from the start to the end of every span."""
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
    group_bytes = np.zeros(len(m.x), dtype=np.int64)
    np.add.at(group_bytes, m.group, m.graph.persistent_bytes)
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
