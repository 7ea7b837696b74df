"""What the planner learns from: its gradient is that of the expected reward, credit by hand, where a Grouper starts."""

import itertools

import numpy as np
import pytest

from baechi_lab import Cluster, Link, OpGraph, place
from baechi_lab.errors import InvalidInput
from baechi_lab.graph import generators
from baechi_lab.placers.hierarchical import SIMULATED, Hierarchical
from baechi_lab.placers.planner.embeddings import make_units
from baechi_lab.placers.planner.groupings import metis_grouping
from baechi_lab.placers.planner.reinforce import Trainer, leave_one_out, moving_average, standardise
from baechi_lab.placers.planner.reward import SimulatedReward
from studies.planner.comparison import best_within, compare_groupings

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

CLUSTER = Cluster.uniform(2, memory_bytes=1 << 40, link=Link(1e5, 0.0))
PAIR = OpGraph.from_edges([3e6, 4e6], op_types=("A", "B"))
TINY = {
    "groups": 2,
    "placer_hidden": 3,
    "grouper_hidden": 3,
    "type_embedding": 2,
    "temperature": 1.0,
    "noise_updates": 0,
}


def trainer_of(graph, fixed=None, start=None, **changes):
    pytest.importorskip("tensorflow")
    params = Hierarchical(**{**TINY, **changes})
    units = make_units(graph, CLUSTER, 200, 6, 6)
    trainer = Trainer(params, units, CLUSTER.n, SimulatedReward(graph, CLUSTER, 1), fixed, start)
    # Wider than the usual initial weights: the choices must be far from equal odds.
    rng = np.random.default_rng(7)
    for name, value in trainer.weights.items():
        trainer.weights[name] = rng.normal(0.0, 0.7, value.shape).astype(np.float32)
    return trainer


class Forced:
    """In place of random numbers: those that make the networks choose `group` [m, U] and `group_device` [m, k, groups]."""

    def __init__(self, group, group_device):
        self.group, self.group_device = np.asarray(group), np.asarray(group_device)

    def random(self, shape, dtype):
        assert shape == self.group.shape  # inverse transform sampling, two groups: below any p, or above
        return np.where(self.group == 1, 1.0, 0.0).astype(dtype)

    def gumbel(self, size):
        return 1e4 * np.eye(2)[self.group_device.transpose(2, 0, 1)].reshape(size)


def chances(trainer):
    """{grouping: {placement: (log p, reward)}} as TensorFlow numbers, and the tape that saw the weights."""
    import tensorflow as tf

    weights = {name: tf.constant(value) for name, value in trainer.weights.items()}
    table = {}
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(weights)
        for g in itertools.product(range(2), repeat=trainer.units.total):
            for d in itertools.product(range(2), repeat=2):
                group = np.array([g])
                rng = Forced(group, [[d]])
                groups, log_g, _ = trainer.sample_groups(weights, rng)
                group_device, log_d, _ = trainer.sample_devices(weights, rng, group)
                assert groups.tolist() == [list(g)] and group_device[0, 0].tolist() == list(d)
                device = np.array(d)[list(g)]
                reward = -np.sqrt(trainer.reward(device[None])[0])
                table[g, d] = (log_g[0] + log_d[0, 0], reward)
        expected = sum(tf.exp(log_p) * reward for log_p, reward in table.values())
    exact = tape.gradient(expected, weights)
    return {key: float(np.exp(log_p)) for key, (log_p, _) in table.items()}, {k: v.numpy() for k, v in exact.items()}


@pytest.fixture(scope="module")
def chances_of_pair():
    return chances(trainer_of(PAIR, placement_samples=1))


@pytest.mark.parametrize(("baseline", "samples"), [("average", 1), ("others", 2)])
def test_the_expected_gradient_is_that_of_the_expected_reward(chances_of_pair, baseline, samples):
    # H, equation 2, by enumeration: J = sum p(g) p(d | g) R over all groupings and placements, differentiated as it stands.
    # Equations 4 and 6: the mean of the trainer's own gradient over all draws it could make, weighted by their odds.
    trainer = trainer_of(PAIR, placement_samples=1, baseline=baseline, group_samples=samples)
    odds, exact = chances_of_pair
    assert sum(odds.values()) == pytest.approx(1.0, abs=1e-5) and max(odds.values()) > 3 * min(odds.values())
    mean = {name: np.zeros_like(value) for name, value in exact.items()}
    for draws in itertools.combinations_with_replacement(odds, samples):  # the order of samples does not matter
        trainer.baseline = -1.5  # any constant; it must not matter
        gradient, _ = trainer.gradient(Forced([g for g, _ in draws], [[d] for _, d in draws]))
        if gradient is not None:
            chance = len(set(itertools.permutations(draws))) * np.prod([odds[draw] for draw in draws])
            for name, value in gradient.items():
                mean[name] -= chance * value
    scale = max(float(np.abs(value).max()) for value in exact.values())
    assert np.abs(exact["grouper/output"]).max() > 0.01 and np.abs(exact["placer/output"]).max() > 0.01
    for name, value in exact.items():
        assert mean[name] == pytest.approx(value, abs=1e-4 * scale), name


def test_entropy_bonus_alone_evens_the_odds():
    # One device is no faster than the other: only the bonus moves the policy, towards log 2 per choice.
    graph = OpGraph.from_edges([1e6])
    trainer = trainer_of(graph, fixed=np.zeros(1, dtype=np.int64), entropy_bonus=1.0, learning_rate=0.05)
    for _ in range(60):
        trainer.update()
    entropy = trainer.history.entropy
    assert entropy[0] < 0.68 < entropy[-1] <= np.log(2.0) + 1e-6


def test_credit_of_groupings_and_placements_by_hand():
    reward = np.array([[-1.0, -3.0], [-2.0, -8.0], [-9.0, -9.0]])
    counts = np.array([[True, True], [True, False], [False, False]])
    grouping, placement = leave_one_out(reward, counts)
    # First grouping: -1 beside -3. Second: -2 alone, beside the mean of -1 and -3. Groupings: -2 and -2.
    assert placement.tolist() == [[2.0, -2.0], [0.0, 0.0], [0.0, 0.0]]
    assert grouping.tolist() == [0.0, 0.0, 0.0]
    grouping, placement = moving_average(reward, counts, -4.0)
    assert placement.tolist() == [[3.0, 1.0], [2.0, 0.0], [0.0, 0.0]] and grouping.tolist() == [2.0, 1.0, 0.0]
    # Rewards -1, -3 and -2: their deviation is sqrt(2 / 3).
    scaled = standardise((grouping, placement), reward, counts)
    assert scaled[0][0] == pytest.approx(2.0 / np.sqrt(2 / 3)) and scaled[1][0, 1] == pytest.approx(1 / np.sqrt(2 / 3))
    equal = np.full((2, 2), -0.3)
    equal[0, 0] *= 1 + 1e-15  # equal but for rounding: nothing is learned from it
    everything = np.ones((2, 2), dtype=bool)
    assert not np.any(standardise(leave_one_out(equal, everything), equal, everything)[1])
    one = np.array([[-1.0]]), np.array([[True]])
    assert [credit.tolist() for credit in leave_one_out(*one)] == [[0.0], [[0.0]]]  # nothing to compare with


def chains():
    """Two chains of four ops, joined by 8 bytes; all else carries a gigabyte."""
    edges = [(i, i + 1, 1 << 30) for i in (0, 1, 2, 4, 5, 6)] + [(3, 4, 8)]
    return OpGraph.from_edges([1e6] * 8, edges, op_types=tuple("ABCDEFGH"))


def test_metis_groups_and_a_grouper_that_starts_from_them(eager_networks):
    pytest.importorskip("pymetis")
    graph, cluster = chains(), Cluster.uniform(2, memory_bytes=1 << 40, link=Link(1.0, 1.0))
    units = make_units(graph, cluster, 200, 6, 6)
    group = metis_grouping(graph, cluster, units, 2, 0)
    assert group.tolist() in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)
    assert metis_grouping(graph, cluster, units, 8, 0).tolist() == list(range(8))
    assert metis_grouping(graph, cluster, units, 1, 0).tolist() == [0] * 8
    fixed = place(graph, cluster, "hierarchical", **TINY, grouping="metis", updates=1, time_limit=None).info["groups"]
    assert fixed == tuple(group.tolist())


def test_a_grouper_keeps_to_its_start_with_the_probability_asked_for(eager_networks):
    start = np.array([0, 1, 1, 0, 2, 2, 2, 0])
    trainer = trainer_of(chains(), start=start, groups=3, start_probability=0.9, group_samples=400)
    for name in trainer.weights:
        trainer.weights[name][...] = 0.0  # what the network adds to the start
    group, _, entropy = trainer.sample_groups(trainer.weights, np.random.default_rng(0))
    assert np.mean(group == start) == pytest.approx(0.9, abs=0.02)  # 3200 draws: a standard error of 0.005
    assert float(entropy) == pytest.approx(-0.9 * np.log(0.9) - 0.1 * np.log(0.05), abs=1e-5)
    assert not trainer_of(chains(), groups=3).prior.any()


def test_simulated_parameters_repeat_and_resume(tmp_path):
    pytest.importorskip("pymetis")
    graph, file = chains(), tmp_path / "run.npz"
    options = {**SIMULATED, "placer_hidden": 6, "groups": 3, "time_limit": None, "workers": 1, "seed": 3}
    learned = lambda **changes: place(graph, CLUSTER, "hierarchical", **{**options, **changes})  # noqa: E731
    uninterrupted = learned(updates=8)
    learned(updates=3, checkpoint=file)
    resumed = learned(updates=8, resume=file)
    assert resumed == uninterrupted
    for key in ("rewards", "entropy", "grouper_entropy", "best_seconds", "groups", "samples"):
        assert resumed.info[key] == uninterrupted.info[key]
    assert uninterrupted.info["samples"] == 8 * 16 and len(uninterrupted.info["grouper_entropy"]) == 8
    with pytest.raises(InvalidInput, match=r"was made with entropy_bonus 0\.1, this run has 0\.0; they must agree"):
        learned(resume=file, entropy_bonus=0.0)


def test_reaches_the_optimum_of_twelve_ops_in_most_seeds():
    pytest.importorskip("tensorflow")
    graph = generators.layered_dag(12, seed=3, duration_us=(10, 100), size_bytes=(100, 1000))
    cluster = Cluster.uniform(2, memory_bytes=1 << 40, link=Link(5.0, 0.01))
    every = np.array(list(itertools.product(range(2), repeat=12)), dtype=np.int32)
    optimum = SimulatedReward(graph, cluster, 1)(every).min() * 1e6
    options = {**SIMULATED, "placer_hidden": 16, "placement_samples": 16, "entropy_bonus": 0.2, "workers": 1}
    best_times = []
    while len(best_times) < 2 or (len(best_times) == 2 and not all(best_times)):
        run = place(graph, cluster, "hierarchical", **options, seed=len(best_times), updates=28, time_limit=None)
        best_times.append(run.info["best_us"] == pytest.approx(optimum, rel=1e-9))
    assert sum(best_times) >= 2  # of at most three


def test_groupings_are_compared_at_equal_samples():
    pytest.importorskip("pymetis")
    pytest.importorskip("tensorflow")
    options = {"groups": 2, "placer_hidden": 4, "grouper_hidden": 4, "workers": 1}
    rows = list(
        compare_groupings(chains(), Cluster.uniform(2, memory_bytes=1 << 40, link=Link(0.0, 0.0)), 3, [5], **options)
    )
    names = ["learned", "random", "metis", "learned from uniform", "random placement"]
    assert [row["grouping"] for row in rows] == names
    for row in rows:
        assert (row["seed"], row["samples"], row["curve"][-1][0]) == (5, 48, 48)
        best = [point[2] for point in row["curve"]]
        assert best == sorted(best, reverse=True) and best[-1] == row["best_seconds"]
        assert best_within(row, 0, 48) == row["best_seconds"] and best_within(row, 0, 0) == float("inf")
        # Eight ops of 1 s in a row with free transfers: no placement takes more or less.
        assert row["best_seconds"] == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": "median"}, "baseline is 'median'; it must be one of average, others"),
        ({"grouper_start": "luck"}, "grouper_start is 'luck'; it must be one of uniform, metis, scopes"),
        ({"start_probability": 1.0}, "start_probability is 1.0; it must be a finite number above 0 and below 1"),
        ({"entropy_bonus": -0.1}, "entropy_bonus is -0.1; it must be a finite number of at least 0"),
        ({"standardise": 1}, "standardise is 1; it must be True or False"),
        ({"baseline": "others"}, "group_samples is 1; baseline 'others' compares samples, it must be at least 2"),
        (
            {"baseline": "others", "grouping": "random", "placement_samples": 1},
            "group_samples . placement_samples is 1",
        ),
    ],
)
def test_bad_parameters_are_rejected(changes, message):
    with pytest.raises(InvalidInput, match=message):
        Hierarchical(**changes).validate()
