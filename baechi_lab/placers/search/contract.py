"""Contraction of a graph: short ops are merged with a neighbour, and the step changes little under any placement.

Idea: an op with a single reader joins that reader if its inputs cost no more to send than its outputs. An op with a single
producer joins that producer if its outputs cost no more to send than its inputs. Cutting on its other side is then no worse.
The op must be shorter than a threshold, because it delays the other op's start, or its other outputs, by its duration; or both
must follow each other without other edges. All merges of one kind together leave a DAG, because a merged part is entered, or
left, through a single op.

Source: the condition under which fusing makes no cycle, Baechi, section 3.3 (degree at most one). Complexity: O((ops +
edges) log) per round.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph
from ...graph.groups import components
from ...graph.kernels.csr import Ints, distinct, grouped_sum
from ...passes.contraction import contract, number_groups
from ...passes.fusion import distinct_edges
from ..problem import transfer_us
from .parameters import SEARCH, SearchParameters


def short_us(graph: OpGraph, cluster: Cluster, parameters: SearchParameters = SEARCH) -> float:
    """Returns the duration in microseconds up to which an op is short."""
    if not graph.tensor_count:
        return 0.0
    mean = float(transfer_us(graph, cluster).mean())
    return min(parameters.short_transfer * mean, parameters.short_work * float(graph.duration_us.sum()))


def contract_short_ops(
    graph: OpGraph, cluster: Cluster, short: float, parameters: SearchParameters = SEARCH
) -> tuple[OpGraph, Ints]:
    """Merges ops of at most `short` microseconds into a neighbour; returns the graph, and for each op the one that holds it.

    Ops of different colocation groups or with different allowed devices are not merged, nor collectives with ops that compute.
    """
    n, work_limit = graph.n, parameters.chain_work * short
    label = np.arange(n, dtype=np.int64)
    group, work = graph.colocation.astype(np.int64), graph.duration_us.copy()
    allowed = 2 * graph.allowed.astype(np.int64) + graph.on_communication_lane
    tensor, price = graph.edge_tensor.astype(np.int64), transfer_us(graph, cluster)
    source, target = graph.edge_source.astype(np.int64), graph.consumers.astype(np.int64)
    quiet = 0
    for round_index in range(parameters.contract_rounds):
        far = source != target
        tensor, source, target = tensor[far], source[far], target[far]
        # The cost of the tensors that each part receives, and of those that it sends, once each.
        received_us, sent_us = (
            np.bincount(pair % n, price[pair // n], n).astype(np.float64)
            for pair in (distinct(tensor * n + target), distinct(tensor * n + source))
        )
        a, b = distinct_edges(source, target, n)
        readers, producers = np.bincount(a, minlength=n), np.bincount(b, minlength=n)
        merged_op, surviving_op = (a, b) if round_index % 2 == 0 else (b, a)
        alone = (readers if round_index % 2 == 0 else producers)[merged_op] == 1
        if round_index % 2 == 0:
            cheaper = received_us[merged_op] <= sent_us[merged_op]
        else:
            cheaper = sent_us[merged_op] <= received_us[merged_op]
        is_chain = (readers[a] == 1) & (producers[b] == 1)
        fits = (work[merged_op] <= short) | (is_chain & (work[a] + work[b] <= work_limit))
        alike = ((group[merged_op] < 0) | (group[merged_op] == group[surviving_op])) & (
            allowed[merged_op] == allowed[surviving_op]
        )
        component = _join_parts(a, b, alone & cheaper & fits & alike, work, group, work_limit)
        quiet = 0 if np.any(component != np.arange(n)) else quiet + 1
        if quiet == 2:
            break
        label = component[label]
        work = grouped_sum(work, component, n)
        group = _largest(component, group)
        source, target = component[source], component[target]
    return contract(graph, label), number_groups(graph, label)


def _join_parts(
    source: Ints,
    target: Ints,
    is_selected: NDArray[np.bool_],
    work: NDArray[np.float64],
    group: Ints,
    work_limit: float,
) -> Ints:
    """Returns int64[n]: an op of each op's part; no part has two colocation groups or more than `work_limit`."""
    n = len(work)
    component = components(n, source[is_selected], target[is_selected])
    lowest = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(lowest, component, np.where(group >= 0, group, np.iinfo(np.int64).max))
    largest = _largest(component, group)
    longest = np.zeros(n)
    np.maximum.at(longest, component, work)
    bad = (largest >= 0) & (lowest != largest) | (np.bincount(component, work, n) > longest + work_limit)
    is_accepted = is_selected & ~bad[component[source]]
    return components(n, source[is_accepted], target[is_accepted])


def _largest(component: Ints, group: Ints) -> Ints:
    largest_group = np.full(len(group), -1, dtype=np.int64)
    np.maximum.at(largest_group, component, group)
    return largest_group
