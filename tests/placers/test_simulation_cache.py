"""Equal placements are simulated once per scheduler."""

import numpy as np

from baechi_lab import Cluster, Link, OpGraph, Placement
from baechi_lab.placers import simulation_cache
from baechi_lab.placers.simulation_cache import SimulationCache


def test_equal_placements_are_simulated_once(monkeypatch):
    """Two ops of 2 and 3 us that do not read each other: 5 us on one device, 3 us on two."""
    graph, cluster = OpGraph.from_edges([2, 3]), Cluster.uniform(2, link=Link(1.0, 0.0))
    simulated, run_kernel = [], simulation_cache.run_kernel
    monkeypatch.setattr(simulation_cache, "run_kernel", lambda *a, **k: simulated.append(a[2:]) or run_kernel(*a, **k))
    cache = SimulationCache(graph, cluster)
    for placer in ("one", "another"):
        plan, planned = cache.simulate(Placement(device=[0, 0], placer=placer), "pct")
        assert (plan.makespan_us, plan.feasible, planned.placer) == (5.0, True, placer)
        np.testing.assert_array_equal(planned.order, [1, 0])  # the longer one first
    assert cache.simulate(Placement(device=[0, 1]), "pct")[0].makespan_us == 3.0
    assert len(simulated) == 2
    ordered = Placement(device=[0, 0], order=[0.0, 1.0])
    assert cache.simulate(ordered, "planned")[1] is ordered
    assert cache.simulate(Placement(device=[0, 0], order=[1.0, 0.0]), "planned")[0].makespan_us == 5.0
    assert len(simulated) == 4
