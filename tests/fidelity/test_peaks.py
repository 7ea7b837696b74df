"""Peaks in the order of TensorFlow's executor, by hand."""

from types import SimpleNamespace

import baechi_lab as bl
from baechi_lab.fidelity.executor import RECEIVE_MODES
from baechi_lab.fidelity.peaks import predicted_timelines
from baechi_lab.graph.opgraph import OVERWRITES, OWN

FREE = bl.Link(0.0, 0.0)
COSTS = SimpleNamespace(op_us=0.0, send=FREE, receive=FREE, wire=FREE, overlap=FREE, cooled=())


def test_the_order_in_which_a_step_begins_decides():
    """0 makes way for 1, a gradient of 80 bytes, which makes 3 (80 bytes of scratch) and the update 4 ready; 4 reads 2 too.

    Where 2 was drawn first, 4, the later one, runs before 3 and frees the gradient: 80. Otherwise 2 lies below 3: 160.
    """
    edges = [(0, 1, 0), (1, 3, 0), (1, 4, 80), (2, 4, 0)]
    graph = bl.OpGraph.from_edges([1.0] * 5, edges, temp_bytes=[0, 0, 0, 80, 0])
    cluster, alone = bl.Cluster.uniform(1), bl.Placement(device=[0] * 5)
    timelines = predicted_timelines(graph, cluster, alone, COSTS)
    assert {int(line.peak_bytes[0]) for line in timelines} == {80, 160}


def test_results_lie_in_received_copies():
    """1 writes over the copy that it received of 0, and sends that back, unless it begins before that is let go of."""
    graph = bl.OpGraph.from_edges([1.0] * 3, [(0, 1, 40), (1, 2, 40)]).replace(reuse=[OWN, OVERWRITES, OWN])
    cluster, placement = bl.Cluster.uniform(2), bl.Placement(device=[0, 1, 0])
    peaks = [line.peak_bytes.tolist() for line in predicted_timelines(graph, cluster, placement, COSTS)]
    assert peaks == ([[40, 40]] * len(RECEIVE_MODES) + [[40, 80]] * len(RECEIVE_MODES)) * 3
