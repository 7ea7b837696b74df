"""Post-adjusted colocation, the rules that Jeon et al. 2020 tried and rejected."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.placers.post_adjusted import adjust_to_groups

GRAPH = bl.OpGraph.from_edges([9, 1, 1], [], persistent_bytes=[0, 50, 0], colocation=[0, 0, 0], colocation_names=("w",))
EVERYWHERE = np.ones((3, 3), dtype=bool)


@pytest.mark.parametrize(("rule", "device"), [("compute", 0), ("memory", 1), ("majority", 2)])
def test_each_rule_follows_another_op(rule, device):
    # op 0 computes longest (on 0), op 1 holds most (on 1); for the majority, two ops sit on device 2
    planned = [0, 1, 2] if rule != "majority" else [0, 2, 2]
    assert adjust_to_groups(GRAPH, np.array(planned), EVERYWHERE, rule).tolist() == [device] * 3


def test_only_devices_that_the_whole_group_may_use():
    mask = np.array([[True, True], [False, True], [True, True]])
    assert adjust_to_groups(GRAPH, np.array([0, 1, 0]), mask, "compute").tolist() == [1, 1, 1]


def test_as_a_placer_it_keeps_groups_together_and_co_adjusting_is_better_here():
    # Jeon et al.'s fusion example without fusion: m-ETF alone puts Step on the idle device; moving the group afterwards
    # to the majority's device costs the transfer of 5, as co-adjusting does; both must be valid
    g = bl.OpGraph.from_edges([1, 1, 1], [(0, 2, 5), (1, 2, 0)], colocation=[-1, 0, 0], colocation_names=("step",))
    cluster = bl.Cluster.uniform(2, link=bl.Link(0.0, 1.0), comm="parallel")
    for rule in ("compute", "memory", "majority"):
        placement = bl.place(g, cluster, "post-adjusted", rule=rule)
        assert placement.device[1] == placement.device[2]
        assert bl.check(g, cluster, placement, bl.simulate(g, cluster, placement)) == ()


def test_an_unknown_rule_is_rejected():
    with pytest.raises(bl.UnknownNameError, match="did you mean 'memory'"):
        bl.place(GRAPH, bl.Cluster.uniform(2), "post-adjusted", rule="memroy")
