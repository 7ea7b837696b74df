"""m-TOPO: the cap `sum d_i / n + max d_i`, device after device in topological order."""

import numpy as np

import baechi_lab as bl
from baechi_lab.placers.m_topo import caps, fill_devices


def test_caps_uniform_and_by_memory():
    need = np.array([4, 4, 4])
    assert caps(bl.Cluster.uniform(2, memory_bytes=100), need).tolist() == [12 / 2 + 4] * 2
    unequal = bl.Cluster((bl.Device("a", "gpu", 300), bl.Device("b", "gpu", 100)))
    assert caps(unequal, need).tolist() == [12 * 3 / 4 + 4, 12 * 1 / 4 + 4]


def test_fills_a_device_up_to_the_cap_then_moves_on():
    # five ops of 4 bytes on 2 devices: cap 20 / 2 + 4 = 14, so three on device 0 (12; a fourth would be 16)
    g = bl.OpGraph.from_edges([1] * 5, [(i, i + 1, 0) for i in range(4)], persistent_bytes=[4] * 5)
    assert bl.place(g, bl.Cluster.uniform(2), "m-topo").device.tolist() == [0, 0, 0, 1, 1]


def test_follows_topological_order_not_the_index():
    g = bl.OpGraph.from_edges([1, 1, 1], [(2, 0, 0), (0, 1, 0)], persistent_bytes=[4, 4, 4])
    # order 2, 0, 1; cap 12 / 2 + 4 = 10: ops 2 and 0 on device 0
    assert bl.place(g, bl.Cluster.uniform(2), "m-topo").device.tolist() == [0, 1, 0]


def test_goes_back_to_fill_a_gap():
    # cap 15 / 3 + 9 = 14; but the devices hold 10: 5 on 0, 9 on 1, then 1 fits behind on 1, 0 is never too late
    g = bl.OpGraph.from_edges([1, 1, 1, 1], persistent_bytes=[5, 9, 1, 5])
    three = bl.Cluster((bl.Device("a", "gpu", 10), bl.Device("b", "gpu", 10), bl.Device("c", "gpu", 0)))
    placement = bl.place(g, three, "m-topo")
    assert placement.device.tolist() == [0, 1, 1, 0]
    assert bl.simulate(g, three, placement).feasible


def test_no_memory_needed_or_had():
    g = bl.OpGraph.from_edges([1, 1, 1])
    assert bl.place(g, bl.Cluster.uniform(2, memory_bytes=0), "m-topo").device.tolist() == [0, 0, 0]


def test_without_room_the_device_that_lacks_least_is_chosen():
    """Both devices are full after ops 0 and 1 (6 of 7 and 5 of 8 bytes): op 2 lacks 1 byte on the first, none on the second."""
    need, limit = np.array([6, 5, 2, 4]), np.array([7, 8])
    allowed = np.ones((4, 2), dtype=np.bool_)
    sequence, cap = np.arange(4), np.array([6.0, 6.0])
    group_device = fill_devices(sequence, need, need, allowed, cap, limit)
    # op 3 then lacks 6 + 4 - 7 = 3 bytes on device 0 and 7 + 4 - 8 = 3 on device 1, which is 1 above its cap, not 0
    assert group_device.tolist() == [0, 1, 1, 0]
    allowed[3, 0] = False
    assert fill_devices(sequence, need, need, allowed, cap, limit).tolist() == [0, 1, 1, 1]
