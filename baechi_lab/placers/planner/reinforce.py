"""REINFORCE (Williams 1992, doi:10.1007/BF00992696) for the planner's networks: paper H, equations 2 to 6.

One update: draw `m` groupings and for each of them `k` placements, ask for their step times, and move the weights along
`grad log p (R - B)`, with `R = -sqrt(seconds)`, -10 for what is not valid, and `B` a baseline (`credit`). The best
placement seen is kept. Update `u` takes its random numbers from `(seed, u)`, so a run that is continued from a
checkpoint does what an uninterrupted one would have done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from .adam import Adam
from .credit import Credit, leave_one_out, moving_average, standardise
from .embeddings import Units, group_embeddings
from .networks import Weights, functions, grouper_weights, placer_weights, tensorflow
from .reward import Reward
from .training import TrainingParameters

if TYPE_CHECKING:
    from tensorflow import Tensor


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
            self.groups = devices  # H, section 3: a Grouper that predicts placements
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
            group, log_group, spread = self.sample_groups(tensors, rng)
            group_device, log_probability, entropy = (
                (group, None, spread) if self.simple else self.sample_devices(tensors, rng, group)
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
        draw = Draw(device, group, seconds, float(entropy), float(spread))
        if not bonus and not np.any(placement) and not np.any(grouping):
            return None, draw
        gradients = tape.gradient(loss, tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return {name: value.numpy() for name, value in gradients.items()}, draw

    def _noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """H, section 3: normal noise, scaled to a largest amplitude, during the first updates."""
        if self.updates >= self.params.noise_updates or self.params.noise_amplitude == 0:
            return np.zeros(shape, dtype=np.float32)
        noise = rng.standard_normal(shape, dtype=np.float32)
        return noise * np.float32(self.params.noise_amplitude / np.abs(noise).max())

    def sample_groups(
        self, tensors: object, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], Tensor | None, Tensor | float]:
        """`m` groupings int64[m, U] and their log probabilities; the Simple Planner draws all m * k at once."""
        p, count = self.params, self.units.total
        if self.fixed is not None:
            return np.repeat(self.fixed[None], p.group_samples, axis=0), None, 0.0
        draws = p.group_samples * (p.placement_samples if self.simple else 1)
        group, log_p, entropy = functions()[0](
            tensors,
            self.types,
            self.units.features,
            self._noise(rng, (count, self.groups)) + self.prior,
            rng.random((draws, count), dtype=np.float32),
        )
        return group.numpy().astype(np.int64), log_p, entropy

    def sample_devices(
        self, tensors: object, rng: np.random.Generator, group: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], Tensor, Tensor]:
        """`k` placements of each grouping: int32[m, k, groups], log probabilities [m, k]."""
        p = self.params
        read = np.stack([group_embeddings(self.units, g, self.groups) for g in group], axis=1)
        shape = (self.groups, len(group), p.placement_samples, self.devices)
        noise, gumbel = self._noise(rng, shape), rng.gumbel(size=shape).astype(np.float32)
        constants = np.float32(p.temperature), np.float32(p.tanh_constant)
        group_device, log_p, entropy = functions()[1](tensors, read, noise, gumbel, *constants)
        return group_device.numpy().transpose(1, 2, 0), log_p, entropy

    def _credit(self, seconds: NDArray[np.float64]) -> Credit:
        """`R - B` per grouping and per placement, 0 for samples that must not count; moves the moving average."""
        p = self.params
        valid = np.isfinite(seconds)
        reward = np.where(valid, -np.sqrt(np.where(valid, seconds, 0.0)), p.invalid_reward)
        counts = valid | (self.updates < p.noise_updates)  # H, section 3: only valid placements later on
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
