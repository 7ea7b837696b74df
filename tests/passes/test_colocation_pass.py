"""The colocation pass: one list per group, no groups of one."""

import pytest

import baechi_lab as bl
from baechi_lab.graph.generators import chain
from baechi_lab.passes.colocation import Colocation


def test_lists_meet_within_a_group_and_groups_of_one_go():
    graph = chain(4).replace(
        colocation=[0, 1, 1, -1],
        colocation_names=("alone", "w"),
        allowed=[0, 0, 1, 1],
        allowed_sets=(("gpu", "cpu"), ("cpu", "tpu")),
    )
    normalised = Colocation().apply(graph)
    assert normalised.colocation.tolist() == [-1, 0, 0, -1]
    assert normalised.colocation_names == ("w",)
    lists = [normalised.allowed_sets[k] for k in normalised.allowed]
    assert lists == [("gpu", "cpu"), ("cpu",), ("cpu",), ("cpu", "tpu")]
    assert normalised.key == graph.key


def test_members_without_a_list_inherit_it():
    graph = chain(2).replace(colocation=[0, 0], colocation_names=("w",), allowed=[-1, 0], allowed_sets=(("gpu",),))
    assert Colocation().apply(graph).allowed.tolist() == [0, 0]


def test_names_and_kinds_are_left_for_the_cluster_to_combine():
    graph = chain(2).replace(
        colocation=[0, 0], colocation_names=("w",), allowed=[0, 1], allowed_sets=(("gpu:1",), ("gpu",))
    )
    normalised = Colocation().apply(graph)
    assert normalised.allowed.tolist() == [0, 1]
    assert bl.graph.allowed_devices(normalised, bl.Cluster.uniform(2)).tolist() == [[False, True]] * 2


def test_groups_with_no_common_device_are_rejected():
    """Pairwise the three lists agree, all together they do not; `OpGraph` checks against the common part as well."""
    graph = chain(3).replace(allowed=[0, 1, 2], allowed_sets=(("gpu", "cpu"), ("cpu", "tpu"), ("tpu", "gpu")))
    with pytest.raises(bl.ColocationError, match="op2"):
        Colocation().apply(graph.replace(colocation=[0, 0, 0], colocation_names=("w",)))


def test_a_second_colocation_changes_nothing():
    graph = chain(3).replace(colocation=[0, 0, 1], colocation_names=("w", "x"))
    once = Colocation().apply(graph)
    assert Colocation().apply(once) is once
    plain = chain(3)
    assert Colocation().apply(plain) is plain
