"""The Hierarchical Planner learns, repeats under a seed, resumes as if never stopped, and answers bad input clearly."""

import itertools
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab import Cluster, Link, OpGraph, Placement, check, place, simulate
from baechi_lab.errors import FormatError, InfeasiblePlacement, InvalidInput
from baechi_lab.graph import generators
from baechi_lab.placers.hierarchical import Hierarchical
from baechi_lab.placers.planner.embeddings import group_embeddings, make_units
from baechi_lab.placers.planner.explain import learned_groups
from baechi_lab.placers.planner.groupings import random_grouping, scope_grouping
from baechi_lab.placers.planner.reinforce import Adam
from baechi_lab.placers.planner.reward import SimulatedReward

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

SMALL = {
    "time_limit": None,
    "updates": 40,
    "groups": 8,
    "placer_hidden": 12,
    "grouper_hidden": 12,
    "temperature": 1.0,
    "learning_rate": 0.01,
    "placement_samples": 24,
    "noise_updates": 0,
    "baseline_decay": 0.5,
    "workers": 1,
}
GRAPH = generators.layered_dag(8, seed=3, duration_us=(10, 100), size_bytes=(100, 1000))
CLUSTER = Cluster.uniform(2, memory_bytes=1 << 40, link=Link(5.0, 0.01))
# TensorFlow compiles the networks anew for every number of groups, types and devices: tests share few of them.


def learned(graph=GRAPH, cluster=CLUSTER, **changes):
    pytest.importorskip("tensorflow")
    return place(graph, cluster, "hierarchical", **{**SMALL, **changes})


def every_placement(n, devices=2):
    return np.array(list(itertools.product(range(devices), repeat=n)), dtype=np.int32)


def test_reaches_the_optimum_of_a_small_graph_in_most_seeds():
    optimum = SimulatedReward(GRAPH, CLUSTER, 1)(every_placement(8)).min() * 1e6
    placements = [learned(seed=seed) for seed in range(2)]
    if not all(run.info["best_us"] == pytest.approx(optimum) for run in placements):
        placements.append(learned(seed=2))
    assert sum(run.info["best_us"] == pytest.approx(optimum) for run in placements) >= 2  # of at most three
    for run in placements:
        timeline = simulate(GRAPH, CLUSTER, run)
        assert timeline.makespan_us == pytest.approx(run.info["best_us"])
        assert not check(GRAPH, CLUSTER, run, timeline)
        best = run.info["best_seconds"]
        assert all(b <= a for a, b in itertools.pairwise(best)) and len(best) == 40
        assert run.info["samples"] == 40 * 24


def test_the_policy_itself_improves():
    # Every op a group of its own: what the policy samples in the end is faster on average than uniform placements.
    uniform = -np.sqrt(SimulatedReward(GRAPH, CLUSTER, 1)(every_placement(8))).mean()
    run = learned(grouping=list(range(8)), updates=60)
    assert np.mean(run.info["rewards"][-10:]) > uniform + 3e-4
    assert run.info["entropy"][-1] < run.info["entropy"][0]


def test_same_seed_same_run_and_resume_equals_uninterrupted(tmp_path):
    file = tmp_path / "run.npz"
    noisy = {"noise_updates": 6, "seed": 4}
    uninterrupted = learned(updates=10, **noisy)
    repeated = learned(updates=10, **noisy)
    learned(updates=4, checkpoint=file, **noisy)
    resumed = learned(updates=10, resume=file, **noisy)
    for same_run in (repeated, resumed):
        assert same_run == uninterrupted
        for key in ("rewards", "valid", "best_seconds", "entropy", "samples", "groups", "updates"):
            assert same_run.info[key] == uninterrupted.info[key]
    assert learned(updates=4, seed=5, noise_updates=6).info["rewards"] != uninterrupted.info["rewards"][:4]
    with pytest.raises(InvalidInput, match="was made with seed 4, this run has 5; they must agree"):
        learned(resume=file, noise_updates=6, seed=5)
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(FormatError, match="cannot read checkpoint"):
        learned(resume=file, **noisy)


def test_invalid_placements_get_the_penalty_and_later_teach_nothing():
    # Two ops of 60 bytes on devices of 100: half of the samples put both on one device.
    graph = OpGraph.from_edges([1e6, 1e6], persistent_bytes=[60, 60])
    cluster = Cluster.uniform(2, memory_bytes=100)
    reward = SimulatedReward(graph, cluster, 1)
    assert reward(every_placement(2)).tolist() == [np.inf, 1.0, 1.0, np.inf]
    run = learned(graph, cluster, grouping="none", updates=5)
    for mean, valid in zip(run.info["rewards"], run.info["valid"], strict=True):
        assert mean == pytest.approx((valid * -1.0 + (24 - valid) * -10.0) / 24)
    assert set(run.device.tolist()) == {0, 1}
    # All valid placements take 1 s, so without noise every advantage is 0 and the policy never moves.
    assert len(set(np.round(run.info["entropy"], 6))) == 1
    taught = learned(graph, cluster, grouping="none", updates=5, noise_updates=5, noise_amplitude=0.0)
    assert len(set(np.round(taught.info["entropy"], 6))) > 1


def test_groups_learned_given_random_and_by_scope(eager_networks):
    names = ["a/x/1", "a/x/2", "a/y/1", "b/x/1", "gradient_tape/a/x/3", "plain"]
    graph = OpGraph.from_edges([1.0] * 6, [(0, 1, 4)], names=names, op_types=("A", "B", "B", "C", "B", "A"))
    units = make_units(graph, CLUSTER, 200, 6, 6)
    # Two levels: a/x (with its backward op), a/y, b/x, plain. One level: a, b, plain.
    assert scope_grouping(graph, units, 4).tolist() == [0, 0, 1, 2, 0, 3]
    assert scope_grouping(graph, units, 3).tolist() == [0, 0, 0, 1, 0, 2]
    assert random_grouping(units, 3, 1).tolist() == random_grouping(units, 3, 1).tolist()
    assert learned(graph, grouping=[0, 0, 1, 1, 2, 3], updates=2).info["groups"] == (0, 0, 1, 1, 2, 3)
    with pytest.raises(InvalidInput, match="it must hold one group number from 0 on per op, 6"):
        learned(graph, grouping=[0, 1])


def test_embeddings_of_groups_by_hand():
    # 0 -> 1 (15 bytes) and 0 -> 2 (the same tensor): log2(16) / 32 = 0.125; one output of six.
    graph = OpGraph.from_edges([1.0, 1.0, 1.0], [(0, 1, 15), (0, 2, 15)], op_types=("A", "B", "B"))
    units = make_units(graph, CLUSTER, 200, 2, 2)
    third = pytest.approx(1 / 3), pytest.approx(2 / 3)
    assert units.features[0].tolist() == [0.5, 0.125, -1, -1, -1, *third]
    assert units.features[1].tolist() == [0, -1, -1, 0, -1, -1, -1]
    assert units.type.tolist() == [1, 0, 0]  # B is more frequent
    read = group_embeddings(units, np.array([0, 1, 1]), 2)
    log2, log3 = (pytest.approx(np.log(k)) for k in (2, 3))
    assert read[0].tolist() == [0, log2, 0, 0, log2, *[0] * 13, 0, 1]  # log2(16) / 2 = class 2 of 16
    assert read[1].tolist() == [log3, 0, *[0] * 16, 0, 0]


def test_two_updates_of_adam_by_hand():
    # Gradient 8 is clipped to 1. Step 1: m / (1 - 0.9) = 1, v / (1 - 0.999) = 1, so x moves by the rate.
    weights = {"x": np.array([1.0], dtype=np.float32)}
    adam = Adam(weights, 0.25)
    adam.step(weights, {"x": np.array([8.0], dtype=np.float32)}, 1.0)
    assert weights["x"][0] == pytest.approx(0.75, abs=1e-6)
    # Step 2, gradient 0: m = 0.09 / (1 - 0.81), v = 0.000999 / (1 - 0.998001): 0.25 * 0.473684 / sqrt(0.49975).
    adam.step(weights, {"x": np.array([0.0], dtype=np.float32)}, 1.0)
    assert weights["x"][0] == pytest.approx(0.75 - 0.25 * 0.4736842 / 0.7069300, abs=1e-5)


def test_colocation_and_allowed_devices_are_kept(eager_networks):
    graph = generators.random_dag(12, colocation_groups=2, seed=1)
    kind = np.where((np.arange(12) % 4 == 0) & (graph.colocation < 0), 0, -1)
    graph = graph.replace(allowed=kind, allowed_sets=(("gpu:1",),))
    run = learned(graph, updates=3)
    assert not check(graph, CLUSTER, run, simulate(graph, CLUSTER, run))


def test_rewards_from_a_function_and_the_callback():
    progress = []

    def run_it(placement: Placement) -> float:
        if placement.device[0] == 1:
            raise InfeasiblePlacement("no room")
        return 4.0 if placement.device.any() else 9.0

    trained = learned(
        grouping="none", updates=50, reward=run_it, callback=lambda p: progress.append(p) or p.updates == 3
    )
    assert trained.info["best_us"] == 4e6 and trained.info["updates"] == 3 == len(progress)
    assert progress[-1].best_seconds == 4.0 and progress[-1].samples == 72 and "3 updates" in str(progress[-1])


def test_workers_do_not_change_rewards():
    devices = np.random.default_rng(0).integers(0, 2, (37, 8))
    assert SimulatedReward(GRAPH, CLUSTER, 3)(devices).tolist() == SimulatedReward(GRAPH, CLUSTER, 1)(devices).tolist()


def seconds_by_hand(placement: Placement) -> float:
    """Sent to other processes, so a function of the module."""
    if placement.device[0] == 1:
        raise InfeasiblePlacement("no room")
    return 1.0 + float(placement.device.sum())


def test_an_executor_changes_nothing():
    in_process = learned(updates=4)
    functions = [learned(updates=2, reward=seconds_by_hand, executor=executor) for executor in (None, "here")]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes, ThreadPoolExecutor(3) as threads:
        for executor in ("here", processes, threads):
            by_executor = learned(updates=4, executor=executor, workers=2)
            assert by_executor == in_process and by_executor.info["rewards"] == in_process.info["rewards"]
        functions.append(learned(updates=2, reward=seconds_by_hand, executor=threads))
    assert functions[0].info["best_us"] == 1e6 and 0 < functions[0].info["valid"][0] < 24
    assert all(by_executor.info["rewards"] == functions[0].info["rewards"] for by_executor in functions)


def test_errors_of_an_executor_reach_the_caller():
    def fails(placement):
        raise ZeroDivisionError("from a worker")

    with ThreadPoolExecutor(2) as threads, pytest.raises(ZeroDivisionError, match="from a worker"):
        learned(updates=1, reward=fails, executor=threads)


def test_measured_rewards_are_those_of_real_runs(eager_networks):
    pytest.importorskip("tensorflow")
    step = bl.models.build("mlp", layers=1, units=8, batch_size=4)
    graph = bl.profile(step, mode="estimated", hardware="cpu-core", progress=False)
    cluster = Cluster.uniform(2, memory_bytes="1GB", kind="cpu")
    real = {"reward": "measured", "step": step, "reward_steps": 2, "reward_warmup": 1}
    placement = learned(graph, cluster, updates=1, placement_samples=2, groups=2, **real)
    assert placement.info["samples"] == 2 and placement.info["valid"] == (2,)
    # Both samples took real time, and the reward is minus the root of it (Mirhoseini et al. 2018, section 2).
    assert 0 < placement.info["best_us"] < 60e6
    assert -placement.info["rewards"][0] >= np.sqrt(placement.info["best_us"] * 1e-6) * (1 - 1e-9)
    run = bl.execute(step, placement, steps=1, warmup=0, traced=0, cluster=cluster, progress=False)
    assert run.status == "ok" and run.moved_ops == ()


def test_explain_tells_the_learned_groups(eager_networks):
    names = ["a/x/1", "a/x/2", "a/y/1", "b/x/1", "a/x/3", "plain"]
    graph = OpGraph.from_edges([1, 2, 3, 10, 5, 1], [(0, 1, 4)], names=names, op_types=("A", "B", "B", "C", "B", "A"))
    placement = learned(graph, grouping=[0, 0, 1, 2, 0, 9], updates=2, explain=True)
    explanation = placement.info["explanation"]
    # By work: {b/x/1} 10, {a/x/1 a/x/2 a/x/3} 8, {a/y/1} 3, {plain} 1.
    assert explanation.group.tolist() == [1, 1, 2, 0, 1, 3] and len(explanation) == 4
    assert (explanation.ops.tolist(), explanation.duration_us.tolist()) == ([1, 3, 1, 1], [10.0, 8.0, 3.0, 1.0])
    assert (explanation.kind, explanation.scope) == (("C", "B", "B", "A"), ("b/x", "a/x", "a/y", "plain"))
    assert explanation.device[explanation.group].tolist() == placement.device.tolist() and not explanation.astray.any()
    assert explanation.to_pandas()["device"].tolist() == explanation.device.tolist()
    assert "explanation" not in learned(graph, grouping=[0, 0, 1, 2, 0, 9], updates=1).info
    astray = learned_groups(graph, np.zeros(6, dtype=np.int64), np.array([1, 1, 0, 1, 1, 1]))
    assert (astray.device.tolist(), astray.astray.tolist(), astray.scope) == ([1], [1], ("",))


def test_a_grouping_may_skip_numbers(eager_networks):
    grouping = [10**6, 7, 3, 10, 20, 30, 40, 50]
    assert learned(grouping=grouping, updates=1).info["groups"] == (7, 1, 0, 2, 3, 4, 5, 6)


@pytest.mark.parametrize("returned", ["fast", None, float("nan"), -1.0])
def test_a_reward_must_be_a_number_of_seconds(returned):
    with pytest.raises(InvalidInput, match="it must be a number of at least 0, or infinity"):
        learned(updates=1, reward=lambda placement: returned)


def test_a_learning_rate_that_overflows_is_named():
    with pytest.raises(InvalidInput, match=r"after \d updates .* learning_rate is 1e\+60, it must be lower"):
        learned(grouping="none", updates=5, learning_rate=1e60, placement_samples=8)


def test_one_op_no_op_and_one_device_are_placed(eager_networks):
    one = learned(OpGraph.from_edges([5.0]), Cluster.uniform(1), updates=2)
    assert (one.device.tolist(), one.info["best_us"]) == ([0], pytest.approx(5.0))  # 8 groups, one op: one group
    assert learned(OpGraph.from_edges([])).n == 0
    for grouping in ("scopes", "none"):  # one device, and more groups than ops
        assert learned(cluster=Cluster.uniform(1), updates=1, groups=1000, grouping=grouping).device.tolist() == [0] * 8
    with pytest.raises(InfeasiblePlacement, match=r"needs|more than|fit"):
        learned(OpGraph.from_edges([1.0], persistent_bytes=[500]), Cluster.uniform(2, memory_bytes=100))
    with pytest.raises(InfeasiblePlacement, match="no packing exists"):  # each op fits somewhere, all do not
        learned(OpGraph.from_edges([1.0] * 3, persistent_bytes=[60] * 3), Cluster.uniform(2, memory_bytes=100))
    never = lambda placement: float("inf")  # noqa: E731
    with pytest.raises(InfeasiblePlacement, match="none of the 48 placements that the planner sampled in 2 updates"):
        learned(grouping="none", updates=2, reward=never)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": 0}, "groups is 0; it must be a whole number of at least 1"),
        ({"temperature": 0.0}, "temperature is 0.0; it must be a finite number above 0"),
        ({"time_limit": None, "updates": None}, "time_limit and updates are both None"),
        ({"grouping": "magic"}, "grouping is 'magic'; it must be one of learned, random, scopes, metis, none"),
        ({"executor": "mars"}, "executor is 'mars'; it must be a concurrent.futures.Executor, 'here' or None"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; it must be a finite number above 0"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'; it must be a finite number above 0"),
        ({"groups": 2.5}, "groups is 2.5; it must be a whole number of at least 1"),
        ({"updates": 0}, "updates is 0; it must be a whole number of at least 1, or None"),
        ({"time_limit": -1.0}, "time_limit is -1.0; it must be a finite number of at least 0"),
        ({"seed": -1}, "seed is -1; it must be a whole number of at least 0"),
        ({"callback": 3}, "callback is 3; it must be a function of progress"),
        ({"checkpoint": 3}, "checkpoint is 3; it must be a path, or None"),
        ({"checkpoint": "no/such/folder/run.npz"}, "checkpoint is 'no/such/folder/run.npz'; its folder must exist"),
        ({"explain": "yes"}, "explain is 'yes'; it must be True or False"),
        ({"reward": "measured"}, "reward is 'measured' and step is None"),
        ({"baseline_decay": 1.0}, "baseline_decay is 1.0; it must be a finite number from 0 to below 1"),
    ],
)
def test_bad_parameters_are_rejected(changes, message):
    with pytest.raises(InvalidInput, match=message):
        replace(Hierarchical(), **changes).validate()


def test_defaults_are_the_papers():
    # H: section 2 (embeddings), section 3 (architecture, training details, measuring reward).
    p = Hierarchical()
    assert (p.grouper_hidden, p.groups, p.placer_hidden, p.type_embedding) == (64, 256, 256, 20)
    assert (p.temperature, p.tanh_constant, p.learning_rate, p.gradient_norm) == (10.0, 5.0, 0.1, 1.0)
    assert (p.group_samples, p.placement_samples, p.noise_updates, p.invalid_reward) == (1, 4, 500, -10.0)
