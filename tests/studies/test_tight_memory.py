"""Random graphs on devices with little memory: a valid placement or `InfeasiblePlacement`, nothing else."""

import pytest

import baechi_lab as bl
from studies.tight_memory import attempt, count, instance


@pytest.mark.slow
@pytest.mark.parametrize("block", range(2))
def test_valid_or_infeasible(block):
    """Any other exception would end the test here."""
    counts = count(range(30 * block, 30 * block + 30))
    assert counts["instances"] == 30
    assert counts["placed by some"] > 9  # the instances are tight, not hopeless
    for results in counts["placers"].values():
        assert set(results) <= {"placed", "infeasible", "infeasible where another placed"}
        assert results["placed"] + results.get("infeasible", 0) == 30


@pytest.mark.parametrize("placer", ["m-topo", "m-etf", "m-sct"])
@pytest.mark.parametrize(("memory", "result"), [(10, "placed"), (9, "infeasible")])
def test_exactly_enough_and_one_byte_too_little(placer, memory, result):
    graph = bl.OpGraph.from_edges([1, 1], [], persistent_bytes=[10, 10])
    assert attempt(graph, bl.Cluster.uniform(2, memory_bytes=memory), placer) == result


@pytest.mark.parametrize("placer", ["m-topo", "m-etf", "m-sct"])
def test_promises_to_groups_count(placer):
    """Groups a, b, a, b of 10 bytes each and 15 per device: only one group per device fits (the issue's smallest case)."""
    graph = bl.OpGraph.from_edges(
        [1, 1, 50, 50],
        [(0, 1, 0), (1, 2, 0), (2, 3, 0)],
        persistent_bytes=[0, 0, 10, 10],
        colocation=[0, 1, 0, 1],
        colocation_names=("a", "b"),
    )
    cluster = bl.Cluster.uniform(2, memory_bytes=15, link=bl.Link(100.0, 0.0), comm="parallel")
    assert attempt(graph, cluster, placer) == "placed"
    device = bl.place(graph, cluster, placer).device
    assert device[0] == device[2] != device[1] == device[3]


def test_instances_are_the_same_every_time():
    assert instance(7)[0] == instance(7)[0]
