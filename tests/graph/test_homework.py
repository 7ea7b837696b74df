"""Homework: each student's instance has a placement that reaches its bound, and no rule gets it for nothing."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.generators.homework import DEVICES, STEP_US, planted_instance


@pytest.mark.parametrize("seed", range(25))
def test_the_planted_schedule_is_allowed_and_no_schedule_is_shorter(seed):
    graph, cluster, device, start_us = planted_instance(seed)
    timeline = bl.simulate(graph, cluster, bl.Placement(device=device, order=start_us))
    assert timeline.violations == ()
    assert timeline.makespan_us == STEP_US == pytest.approx(bl.bounds(graph, cluster).best)
    assert graph.duration_us.sum() == DEVICES * STEP_US


def test_equal_numbers_give_equal_instances_and_others_do_not():
    first, same_seed, other_seed = (bl.generators.homework(seed) for seed in (17, 17, 18))
    assert first.graph.names == same_seed.graph.names
    assert np.array_equal(first.graph.duration_us, same_seed.graph.duration_us)
    assert first.cluster == same_seed.cluster
    assert not np.array_equal(first.graph.duration_us, other_seed.graph.duration_us)


@pytest.mark.parametrize("seed", range(5))
def test_one_device_has_too_little_memory_and_op_numbers_say_nothing(seed):
    graph, cluster, _, start_us = planted_instance(seed)
    assert not bl.simulate(graph, cluster, bl.Placement(device=[0] * graph.n)).feasible
    assert abs(np.corrcoef(np.arange(graph.n), start_us)[0, 1]) < 0.6


@pytest.mark.parametrize("seed", [-1, 1.5, "17", True, None])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(bl.InvalidInput, match="seed"):
        bl.generators.homework(seed)
