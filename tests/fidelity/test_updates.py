"""Copies that updates make of variables that are still read, by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.fidelity.peaks import predicted_timelines, temporaries
from baechi_lab.graph.opgraph import VIEW

TYPES = ["VarHandleOp", "ReadVariableOp", "Identity", "MatMul", "AssignSubVariableOp", "MatMul"]
EDGES = [(0, 1, 4), (0, 4, 4), (1, 2, 80), (2, 3, 80), (1, 4, 4), (3, 5, 10)]
"""A variable of 80 bytes that 3 reads through the view 2, and that 4 updates."""


def step(temporary=0, types=TYPES, edges=EDGES):
    reuse = [VIEW if kind in ("ReadVariableOp", "Identity") else 0 for kind in types]
    return bl.OpGraph.from_edges(
        [1.0] * 6, edges, op_types=types, persistent_bytes=[80, 0, 0, 0, 0, 0], temp_bytes=[0, 0, 0, 0, temporary, 0]
    ).replace(reuse=reuse)


def ordered(graph, order, device=(0,) * 6):
    """The step with its ops in this order: order[k] is the k-th."""
    place = np.argsort(order)
    return bl.simulate(graph, bl.Cluster.uniform(2, link=bl.Link(3.0, 0.0)), bl.Placement(device=device, order=place))


@pytest.mark.parametrize("profiled", [0, 7, 80, 87])
@pytest.mark.parametrize(("order", "copied"), [([0, 1, 2, 3, 4, 5], 0), ([0, 1, 2, 4, 3, 5], 80)])
def test_an_update_copies_what_is_still_read(profiled, order, copied):
    """A profile says 80 where it copied there, and what else the kernel takes: 7 bytes are in any order."""
    graph = step(profiled)
    assert temporaries(graph, ordered(graph, order)).tolist() == [0, 0, 0, 0, profiled % 80 + copied, 0]


def test_a_send_that_has_not_ended_reads():
    """3 is elsewhere. The view is sent from 3 to 6, and the update runs from 3 to 4."""
    graph = step()
    line = ordered(graph, [0, 1, 2, 4, 3, 5], (0, 0, 0, 1, 0, 1))
    assert line.transfers.end_us.tolist() == [6.0] and temporaries(graph, line)[4] == 80


def test_only_dense_updates_copy():
    """Assigning keeps the value's own memory, and of sparse updates reads are copies."""
    for kind in ("AssignVariableOp", "ResourceScatterAdd", "ResourceSparseApplyAdagrad"):
        graph = step(5, [*TYPES[:4], kind, TYPES[5]])
        assert temporaries(graph, ordered(graph, [0, 1, 2, 4, 3, 5]))[4] == 5


def test_a_predicted_peak_counts_the_copy():
    """As TensorFlow runs it, the last ready first: 1 and 2 make 4 ready, and 3, which is earlier in the graph.

    So 4 runs before 3 has read the variable: 80 of the variable, 80 of its copy, and the handle's 4, which 4 reads.
    """
    edges = [*EDGES[:4], (2, 4, 4), EDGES[5]]
    costs = SimpleNamespace(
        op_us=0.0,
        send=bl.Link(1.0, 0.0),
        receive=bl.Link(1.0, 0.0),
        wire=bl.Link(0.0, 0.0),
        overlap=bl.Link(0.0, 0.0),
        cooled=(),
        cold_us=lambda us: 0.0,
    )
    graph, alone = step(edges=edges), bl.Placement(device=[0] * 6)
    timelines = predicted_timelines(graph, bl.Cluster.uniform(1), alone, costs)
    assert {int(line.peak_bytes[0]) for line in timelines} == {80 + 80 + 4}
