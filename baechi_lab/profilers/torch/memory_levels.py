"""Corrects a graph's temporaries by the memory that a step was measured to hold while each call runs.

Idea: a graph derives the lifetime of tensors from their readers. A real step also holds other memory: tensors that the
forward code has named, parts of gradients that are summed, objects between the layers. The profiled step ran on one device
in code order, and the graph can be simulated in that order. If the step held more while an op ran than the graph accounts
for, the difference is added to that op's temporaries. So the simulated peak of one device is never below the measured one,
with any optimizer. A device that runs ops in order of readiness (`fifo`) may have its peak elsewhere; if that peak is below
the measured one, one op gets the difference as well: the one that needs the least and adds the least to the peak in code order.
Complexity: O(ops log ops + edges).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...graph import OpGraph
from ...memory.code_order import code_order
from ...memory.peak import live_bytes_per_op, readiness_order


def with_measured_levels(graph: OpGraph, measured_bytes: Mapping[int, int]) -> OpGraph:
    """Returns the graph with temporary bytes increased to the measured levels.

    `measured_bytes` is op -> most bytes held while it ran, without the persistent bytes from before the step.

    >>> graph = OpGraph.from_edges([1, 1], [(0, 1, 30)], persistent_bytes=[5, 0], reuse=[0, 0])
    >>> with_measured_levels(graph, {0: 40, 1: 20}).temp_bytes.tolist()
    [10, 0]
    """
    if not measured_bytes:
        return graph
    ops, held_bytes = np.array(list(measured_bytes)), np.array(list(measured_bytes.values()), dtype=np.int64)
    temporary = graph.temp_bytes.copy()
    in_code_order = live_bytes_per_op(graph, code_order(graph))
    temporary[ops] += np.maximum(held_bytes - in_code_order[ops], 0)
    graph = graph.replace(temp_bytes=temporary)
    in_order_of_readiness = live_bytes_per_op(graph, readiness_order(graph))
    missing = int(held_bytes.max() - in_order_of_readiness.max())
    if missing > 0:
        earlier = np.maximum(live_bytes_per_op(graph, code_order(graph)) - in_order_of_readiness, 0)
        op = np.argmin(earlier - in_order_of_readiness)
        temporary[op] += held_bytes.max() - in_order_of_readiness[op]
    return graph.replace(temp_bytes=temporary)
