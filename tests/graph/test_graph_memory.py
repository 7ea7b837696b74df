"""Large graphs stay small in memory: tens of megabytes, and linear in ops."""

from __future__ import annotations

import tracemalloc

import pytest

import baechi_lab as bl


def held_bytes(ops):
    """Bytes that a graph and its CSR views hold."""
    tracemalloc.start()
    try:
        graph = bl.generators.gnmt(layers=8, ops=ops)
        views = (graph.order, graph.inputs, graph.edge_source, graph.edge_tensor, graph.output_ptr, graph.index)
        traced_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(views) == 6
    return traced_bytes, graph.n


@pytest.mark.slow
def test_83k_ops_take_less_than_50_megabytes():
    graph_bytes, n = held_bytes(83_000)
    assert n >= 80_000
    assert graph_bytes < 50e6


@pytest.mark.slow
def test_memory_grows_with_ops_not_with_their_square():
    (small, n), (large, many) = held_bytes(10_000), held_bytes(40_000)
    assert large / small < 1.2 * many / n
