"""REINFORCE (Williams 1992, doi:10.1007/BF00992696) for the planner's networks: Mirhoseini et al. 2018, equations 2 to 6.

One update: draw `m` groupings and for each of them `k` placements, ask for their step times, and move the weights along
`grad log p (R - B)`, with `R = -sqrt(seconds)`, -10 for what is not valid, and `B` a baseline. The best
placement seen is kept. Update `u` takes its random numbers from `(seed, u)`, so a run that is continued from a
checkpoint does what an uninterrupted one would have done.

`moving_average` is Mirhoseini et al.'s baseline: one number for all samples of all updates. `leave_one_out` compares a
sample with the other samples of its update (leave one out; Kool, van Hoof and Welling 2019, "Buy 4 REINFORCE samples, get a
baseline for free!"): a placement with those of its own grouping, a grouping with the other groupings. What a grouping makes
possible then no longer hides which of its placements was good. Neither baseline depends on the sample it judges, so both
gradients have the expectation of equations 4 and 6. O(samples).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from .embeddings import Units, group_embeddings
from .networks import Weights, functions, grouper_weights, placer_weights, tensorflow
from .reward import Reward

if TYPE_CHECKING:
    from tensorflow import Tensor


@dataclass(frozen=True)
class TrainingParameters:
    """The parameters of the planner that its networks and their training read; the paper's values are the defaults.

    Args:
        groups: at most so many groups of ops.
        grouper_hidden: units of the layer that sorts ops into groups.
        placer_hidden: units of the recurrent layers that place groups.
        type_embedding: numbers that stand for an op's type.
        temperature: divides the scores of devices: the larger, the more evenly they are chosen.
        tanh_constant: bounds the scores of devices.
        gradient_norm: gradients are cut to this length.
        group_samples: groupings that an update samples.
        placement_samples: placements that an update samples for each grouping.
        start_probability: of the group in which an op starts (`grouper_start`).
        noise_updates: so many updates at first explore with noise, and learn from placements that do not fit.
        noise_amplitude: how strong that noise is.
        baseline_decay: how slowly the moving average of rewards follows.
        invalid_reward: what a placement that does not fit is worth.
        seed: of the random choices.

    `Hierarchical` explains the others.
    """

    grouping: str | Sequence[int] = "learned"
    groups: int = 256  # Mirhoseini et al. 2018, section 3, "Architecture": best of 64 to 1024
    grouper_hidden: int = 64  # Mirhoseini et al. 2018, section 3, "Architecture"
    placer_hidden: int = 256  # Mirhoseini et al. 2018, section 3, "Architecture"
    type_embedding: int = 20  # Mirhoseini et al. 2018, section 2
    temperature: float = 10.0  # Mirhoseini et al. 2018, section 3, "Training Details", and equation 1
    tanh_constant: float = 5.0  # Mirhoseini et al. 2018, section 3, "Training Details", and equation 1
    learning_rate: float = (
        0.1  # Mirhoseini et al. 2018, section 3, "Training Details": Adam, fixed; see above for a better one
    )
    gradient_norm: float = 1.0  # Mirhoseini et al. 2018, section 3, "Training Details": clipping
    group_samples: int = 1  # Mirhoseini et al. 2018, section 3, "Training Details": m of equations 4 and 6
    placement_samples: int = 4  # Mirhoseini et al. 2018, section 3, "Training Details": k of equations 4 and 6
    baseline: str = "average"  # Mirhoseini et al. 2018, section 2: an exponential moving average
    standardise: bool = False
    entropy_bonus: float = 0.0
    start_probability: float = 0.999
    noise_updates: int = 500  # Mirhoseini et al. 2018, section 3, "Training Details": with noise and invalid placements
    noise_amplitude: float = 0.1  # Mirhoseini et al. 2018, section 3, "Training Details"
    baseline_decay: float = (
        0.9  # Mirhoseini et al. 2018, section 2: an exponential moving average; the decay is not stated
    )
    invalid_reward: float = -10.0  # Mirhoseini et al. 2018, section 3, "Measuring Reward"
    seed: int = 0


@dataclass
class History:
    """Per update: mean reward, valid samples, best seconds so far, mean entropy of the Placer's and Grouper's choices."""

    reward: list[float] = field(default_factory=list)
    valid: list[int] = field(default_factory=list)
    best_seconds: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    grouper_entropy: list[float] = field(default_factory=list)


@dataclass
class Draw:
    """The samples of one update: `device` int32[m, k, n], `group` int64[m, U], `seconds` float64[m, k], mean entropies."""

    device: NDArray[np.int32]
    group: NDArray[np.int64]
    seconds: NDArray[np.float64]
    entropy: float
    grouper_entropy: float


class Trainer:
    """The state of one training run; `update()` does one policy update.

    `fixed` int64[U]: groups in place of a Grouper; `start` int64[U]: groups that a Grouper starts from.
    """

    def __init__(
        self,
        params: TrainingParameters,
        units: Units,
        devices: int,
        reward: Reward,
        fixed_grouping: NDArray[np.int64] | None,
        start: NDArray[np.int64] | None = None,
    ):
        self.params, self.units, self.devices, self.reward, self.fixed = params, units, devices, reward, fixed_grouping
        self.simple = params.grouping == "none"
        if self.simple:
            self.groups = devices  # Mirhoseini et al. 2018, section 3: a Grouper that predicts placements
        elif fixed_grouping is not None:
            self.groups = int(fixed_grouping.max()) + 1
        else:
            self.groups = min(params.groups, units.total)
        rng = np.random.default_rng([params.seed, 1 << 30])
        self.weights: Weights = {}
        if fixed_grouping is None:
            width, hidden, embedding = units.features.shape[1], params.grouper_hidden, params.type_embedding
            self.weights |= grouper_weights(rng, width, units.types, self.groups, hidden, embedding)
        if not self.simple:
            width = units.types + units.sizes.shape[1] + self.groups
            self.weights |= placer_weights(rng, width, devices, params.placer_hidden)
        self.adam = Adam(self.weights, params.learning_rate)
        self.baseline = float("nan")
        self.samples = 0
        self.best_device = np.zeros(0, dtype=np.int32)
        self.best_group = np.zeros(0, dtype=np.int64)
        self.best_seconds = float("inf")
        self.history = History()
        self.types = np.eye(units.types, dtype=np.float32)[units.type]
        # float32[U, groups] added to the Grouper's logits: at first a unit is in its group of `start` with the required odds.
        self.prior = np.zeros((units.total, self.groups), dtype=np.float32)
        if start is not None and self.groups > 1:
            odds = params.start_probability / (1.0 - params.start_probability) * (self.groups - 1)
            self.prior = np.eye(self.groups, dtype=np.float32)[start] * np.float32(np.log(odds))

    @property
    def updates(self) -> int:
        """Policy updates done."""
        return len(self.history.reward)

    def update(self) -> None:
        """Samples, measures, learns; extends `history`."""
        gradient, draw = self.gradient(np.random.default_rng([self.params.seed, self.updates]))
        if gradient is not None:
            self.adam.step(self.weights, gradient, self.params.gradient_norm)
            if not all(np.isfinite(value).all() for value in self.weights.values()):
                raise InvalidInput(
                    f"after {self.updates + 1} updates the policy's weights are no numbers any more; learning_rate is "
                    f"{self.params.learning_rate!r}, it must be lower here"
                )
        i, j = np.unravel_index(int(np.argmin(draw.seconds)), draw.seconds.shape)
        self.samples += draw.seconds.size
        if draw.seconds[i, j] < self.best_seconds:
            self.best_seconds, self.best_device = float(draw.seconds[i, j]), draw.device[i, j].copy()
            self.best_group = draw.group[i].copy()
        self.history.valid.append(int(np.isfinite(draw.seconds).sum()))
        self.history.best_seconds.append(self.best_seconds)
        self.history.entropy.append(draw.entropy)
        self.history.grouper_entropy.append(draw.grouper_entropy)

    def gradient(self, rng: np.random.Generator) -> tuple[Weights | None, Draw]:
        """Minus the estimate of equations 4 and 6 from the samples that `rng` draws; None where no sample teaches."""
        tf = tensorflow()
        bonus = self.params.entropy_bonus
        tensors = {name: tf.constant(value) for name, value in self.weights.items()}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(tensors)
            group, log_group, grouper_entropy = self.sample_groups(tensors, rng)
            group_device, log_probability, entropy = (
                (group, None, grouper_entropy) if self.simple else self.sample_devices(tensors, rng, group)
            )
            # int32[m, k, n]: each op on its group's device, or where that is not allowed on its fastest allowed one.
            units = self.units
            op_devices = (
                group_device[:, None] if self.simple else np.take_along_axis(group_device, group[:, None], axis=2)
            )
            lawful = units.allowed[np.arange(units.total), op_devices]
            device = np.where(lawful, op_devices, units.fallback)[..., units.of].astype(np.int32)
            seconds = self.reward(device.reshape(-1, len(self.units.of))).reshape(device.shape[:2])
            grouping, placement = self._credit(seconds)
            loss = 0.0
            if log_group is not None:  # equation 4: a grouping answers for the mean of its placements
                loss -= tf.reduce_mean(log_group * tf.constant(grouping, tf.float32))
            if log_probability is not None:  # equation 6
                loss -= tf.reduce_mean(log_probability * tf.constant(placement, tf.float32))
            if bonus:  # of all choices of a device, as their log probabilities are added up, too
                loss -= bonus * (self.units.total if self.simple else self.groups) * entropy
        draw = Draw(device, group, seconds, float(entropy), float(grouper_entropy))
        if not bonus and not np.any(placement) and not np.any(grouping):
            return None, draw
        gradients = tape.gradient(loss, tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return {name: value.numpy() for name, value in gradients.items()}, draw

    def _noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Returns normal noise, scaled to a largest amplitude, during the first updates (Mirhoseini et al. 2018, section 3)."""
        if self.updates >= self.params.noise_updates or self.params.noise_amplitude == 0:
            return np.zeros(shape, dtype=np.float32)
        noise = rng.standard_normal(shape, dtype=np.float32)
        return noise * np.float32(self.params.noise_amplitude / np.abs(noise).max())

    def sample_groups(
        self, tensors: Mapping[str, Tensor], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], Tensor | None, Tensor | float]:
        """Samples `m` groupings int64[m, U] and their log probabilities; the Simple Planner draws all m * k at once."""
        p, count = self.params, self.units.total
        if self.fixed is not None:
            return np.repeat(self.fixed[None], p.group_samples, axis=0), None, 0.0
        draws = p.group_samples * (p.placement_samples if self.simple else 1)
        group, log_p, entropy = functions()[0](
            _weights_of("grouper", tensors),
            self.types,
            self.units.features,
            self._noise(rng, (count, self.groups)) + self.prior,
            rng.random((draws, count), dtype=np.float32),
        )
        return group.numpy().astype(np.int64), log_p, entropy

    def sample_devices(
        self, tensors: Mapping[str, Tensor], rng: np.random.Generator, group: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], Tensor, Tensor]:
        """Samples `k` placements of each grouping: int32[m, k, groups], log probabilities [m, k]."""
        p = self.params
        read = np.stack([group_embeddings(self.units, g, self.groups) for g in group], axis=1)
        shape = (self.groups, len(group), p.placement_samples, self.devices)
        noise, gumbel = self._noise(rng, shape), rng.gumbel(size=shape).astype(np.float32)
        constants = np.float32(p.temperature), np.float32(p.tanh_constant)
        weights = _weights_of("placer", tensors)
        group_device, log_p, entropy = functions()[1](weights, read, noise, gumbel, *constants)
        return group_device.numpy().transpose(1, 2, 0), log_p, entropy

    def _credit(self, seconds: NDArray[np.float64]) -> Credit:
        """Returns `R - B` per grouping and per placement, 0 for samples that must not count; moves the moving average."""
        p = self.params
        valid = np.isfinite(seconds)
        reward = np.where(valid, -np.sqrt(np.where(valid, seconds, 0.0)), p.invalid_reward)
        # Mirhoseini et al. 2018, section 3: after the first updates only valid placements count.
        counts = valid | (self.updates < p.noise_updates)
        self.history.reward.append(float(reward.mean()))
        if not counts.any():
            return np.zeros(len(reward)), np.zeros_like(reward)
        mean = float(reward[counts].mean())
        if np.isnan(self.baseline):
            self.baseline = mean
        credit = (
            leave_one_out(reward, counts) if p.baseline == "others" else moving_average(reward, counts, self.baseline)
        )
        self.baseline += (1.0 - p.baseline_decay) * (mean - self.baseline)
        return standardise(credit, reward, counts) if p.standardise else credit


FIRST_DECAY, SECOND_DECAY, EPSILON = 0.9, 0.999, 1e-8
"""The authors' defaults; H names only the learning rate."""


def _weights_of(network: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the weights of one network alone: TensorFlow compiles it once, whatever the other one has."""
    return {name: value for name, value in tensors.items() if name.startswith(f"{network}/")}


class Adam:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980) on NumPy arrays: the moments of every weight, and how many steps were taken.

    In NumPy so that its whole state is arrays that a checkpoint can hold; O(weights). The gradient's global norm is clipped
    first.
    """

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], learning_rate: float):
        self.learning_rate = learning_rate
        self.steps = 0
        self.first = {name: np.zeros_like(value) for name, value in weights.items()}
        self.second = {name: np.zeros_like(value) for name, value in weights.items()}

    def step(
        self, weights: dict[str, NDArray[np.float32]], gradient: Mapping[str, NDArray[np.float32]], largest_norm: float
    ) -> None:
        """Replaces `weights` by those after one step along `gradient` scaled to a norm of at most `largest_norm`."""
        self.steps += 1
        norm = float(np.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in gradient.values())))
        scale = np.float32(min(1.0, largest_norm / norm) if norm > 0 else 1.0)
        rate = self.learning_rate * np.sqrt(1 - SECOND_DECAY**self.steps) / (1 - FIRST_DECAY**self.steps)
        for name, g in gradient.items():
            clipped_gradient = g * scale
            self.first[name] += np.float32(1 - FIRST_DECAY) * (clipped_gradient - self.first[name])
            self.second[name] += np.float32(1 - SECOND_DECAY) * (np.square(clipped_gradient) - self.second[name])
            move = rate * self.first[name] / (np.sqrt(self.second[name]) + EPSILON)
            with np.errstate(over="ignore"):  # the trainer looks at what became of them
                weights[name] = (weights[name] - move).astype(np.float32)


Credit = tuple[NDArray[np.float64], NDArray[np.float64]]
"""float64[m] of every grouping, float64[m, k] of every placement of every grouping."""


def moving_average(reward: NDArray[np.float64], counts: NDArray[np.bool_], baseline: float) -> Credit:
    """Returns `reward - baseline` per placement, and its mean per grouping; 0 where `counts` bool[m, k] is false."""
    placement = np.where(counts, reward - baseline, 0.0)
    return placement.mean(axis=1), placement


def leave_one_out(reward: NDArray[np.float64], counts: NDArray[np.bool_]) -> Credit:
    """Returns `reward` float64[m, k] minus the mean of the others that count; 0 for samples that do not count or have no others.

    The only placement of a grouping is compared with those of the other groupings.
    """
    counted_reward = np.where(counts, reward, 0.0)
    total, number = counted_reward.sum(axis=1), counts.sum(axis=1)
    alone = (number == 1)[:, None]
    sum_of_others = np.where(alone, counted_reward.sum(), total[:, None]) - counted_reward
    size = np.where(alone, number.sum(), number[:, None]) - 1
    placement = np.where(counts & (size > 0), reward - sum_of_others / np.maximum(size, 1), 0.0)
    has_samples = number > 0
    mean = np.where(has_samples, total / np.maximum(number, 1), 0.0)
    other_groupings = int(has_samples.sum()) - 1
    grouping = np.where(has_samples & (other_groupings > 0), mean - (mean.sum() - mean) / max(other_groupings, 1), 0.0)
    return grouping, placement


def standardise(credit: Credit, reward: NDArray[np.float64], counts: NDArray[np.bool_]) -> Credit:
    """Returns the credit in standard deviations of the rewards that count: it keeps its size while rewards come closer."""
    rewards = reward[counts]
    deviation = float(rewards.std()) if rewards.size else 0.0
    if deviation <= 1e-9 * float(np.abs(rewards).max(initial=0.0)):  # equal up to rounding: nothing to tell apart
        return np.zeros_like(credit[0]), np.zeros_like(credit[1])
    return credit[0] / deviation, credit[1] / deviation
