"""What the Hierarchical Planner spends: rewards and policy updates. pytest tests/benchmarks/test_planner_speed.py
--benchmark-only (on a machine that others use too, add --benchmark-timer=time.process_time).

Goals on two cores: 20,000 rewards per second on optimized GNMT, so 1000 in 0.05 s (one thread: 0.1 s of processor time);
one update of the policy on 22.8 thousand ops under 2 s. Jeon et al.'s optimized GNMT has 542 ops: the generated graph is of
that scale, the profile's has twice as many.
"""

from pathlib import Path

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.placers.hierarchical import Hierarchical
from baechi_lab.placers.planner.embeddings import make_units
from baechi_lab.placers.planner.reward import SimulatedReward
from baechi_lab.placers.problem import groups_of

GNMT = Path(__file__).parents[2] / "data" / "gnmt-length40-batch128.json.gz"
SAMPLES = 1000
pytestmark = pytest.mark.timeout(600)


def cluster(devices):
    return bl.Cluster.uniform(devices, memory_bytes="8GB", link=bl.Link(134.0, 0.0001754), comm="sequential")


@pytest.fixture(scope="module", params=["paper's scale", "profile"])
def optimized(request):
    raw = bl.load_graph(GNMT) if request.param == "profile" else bl.generators.gnmt(length=13)
    return bl.optimize(raw, forward_only=True)


@pytest.mark.parametrize(("workers", "bar_s"), [(1, 0.1), (2, 0.05)])
@pytest.mark.parametrize("devices", [2, 5])
def test_thousand_rewards(benchmark, optimized, devices, workers, bar_s):
    unit = groups_of(optimized)
    drawn = np.random.default_rng(0).integers(0, devices, (SAMPLES, unit.max() + 1))
    rows = np.ascontiguousarray(drawn[:, unit], dtype=np.int32)
    reward = SimulatedReward(optimized, cluster(devices), workers)
    benchmark.extra_info.update(bar_s=bar_s, ops=optimized.n)
    seconds = benchmark.pedantic(reward, (rows,), rounds=7, warmup_rounds=1)
    assert np.isfinite(seconds).all()


def test_policy_update(benchmark):
    pytest.importorskip("tensorflow")
    from baechi_lab.placers.planner.reinforce import Trainer

    graph, machine, params = bl.generators.gnmt(ops=22_800), cluster(5), Hierarchical()
    units = make_units(graph, machine, params.vocabulary, params.outputs, params.neighbours)
    trainer = Trainer(params, units, machine.n, SimulatedReward(graph, machine), None)
    benchmark.extra_info.update(bar_s=2.0, ops=graph.n)
    benchmark.pedantic(trainer.update, rounds=5, warmup_rounds=1)
    assert trainer.updates == 6
