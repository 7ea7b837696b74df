"""`hierarchical`: the Hierarchical Planner, a policy that learns to group ops and to place the groups.

Idea: a feed-forward Grouper assigns every op to a group, a sequence-to-sequence Placer assigns every group to a device;
both are trained together by REINFORCE on the step times of the placements that they sample. See `planner/`: what the
networks read (`embeddings`), the networks (`networks`), learning (`reinforce`), step times (`reward`).

Complexity per update: two passes over the networks, O(ops x groups + groups^2 x hidden), and m * k step times.
Source: Mirhoseini, Goldie, Pham, Steiner, Le and Dean, "A hierarchical model for device placement", ICLR 2018 (H below).

Deviations:

- Step times are simulated unless `reward` says otherwise.
- A colocation group counts as one op.
- An op that its group's device may not run goes to its fastest allowed device, as in TensorFlow if an op has no kernel for GPUs
  (Mirhoseini et al. 2018, section 3).
- One controller replaces four asynchronous ones, so that a seed repeats a run.

Mirhoseini et al. 2018 do not state the decay of the baseline nor the range of the initial weights.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import check_callback, check_flag, check_text, check_whole, finite
from ..errors import InfeasiblePlacement, InvalidInput, in_short
from ..graph import Cluster, OpGraph, Placement, Step
from ..graph.units import format_us
from .base import Placer
from .planner.reinforce import TrainingParameters

if TYPE_CHECKING:
    from .planner.embeddings import Units
    from .planner.reinforce import Trainer
    from .planner.reward import Reward

GROUPINGS = ("learned", "random", "scopes", "metis", "none")
STARTS = ("uniform", "metis", "scopes")
BASELINES = ("average", "others")
SIMULATED: dict[str, object] = {
    "groups": 16,
    "placer_hidden": 64,
    "group_samples": 4,
    "placement_samples": 4,
    "learning_rate": 0.002,
    "baseline": "others",
    "standardise": True,
    "entropy_bonus": 0.1,
    "grouper_start": "metis",
    "noise_updates": 0,
}
"""Parameters that learn from simulated rewards within minutes, where the paper's defaults end on one device:
`bl.place(graph, cluster, "hierarchical", **SIMULATED)`. `grouper_start` needs pymetis."""
_INTEGER_MINIMA = {
    "seed": 0,
    "groups": 1,
    "grouper_hidden": 1,
    "placer_hidden": 1,
    "type_embedding": 1,
    "vocabulary": 1,
    "outputs": 0,
    "neighbours": 0,
    "group_samples": 1,
    "placement_samples": 1,
    "noise_updates": 0,
    "checkpoint_every": 1,
    "reward_steps": 1,
    "reward_warmup": 0,
}
_CHOICES = {"baseline": BASELINES, "grouper_start": STARTS}
_ABOVE_ZERO = ("temperature", "tanh_constant", "learning_rate", "gradient_norm")
_BUDGETS = tuple(
    "time_limit updates workers executor callback checkpoint checkpoint_every resume step reward explain".split()
)


@dataclass(frozen=True)
class PlannerProgress:
    """Progress after an update: seconds and samples spent, last mean reward, best step time so far."""

    seconds: float
    updates: int
    samples: int
    reward: float
    best_seconds: float

    def __str__(self) -> str:
        best = format_us(self.best_seconds * 1e6) if np.isfinite(self.best_seconds) else "nothing valid yet"
        return f"{self.seconds:.1f} s, {self.updates} updates, {self.samples} samples, best {best}"


@dataclass(frozen=True)
class Hierarchical(TrainingParameters, Placer):
    """Hierarchical Planner: learns by reinforcement to group ops and to place the groups (needs TensorFlow).

    Args:
        time_limit: seconds for training, or None.
        updates: policy updates, or None; at least one must end the run.
        grouping: "learned"; "random" groups; "scopes", groups by name scope as in ColocRL; "metis", those with the
            cheapest transfers between them; "none", the Simple Planner, which places every op by itself; or a group number
            per op. More groups than ops are as many as ops.
        reward: "simulated", "measured" (runs `step` by `bl.execute`), or a function of a placement that returns seconds.
        workers: threads for simulations (default: one per core), or parts that an executor gets.
        executor: any `concurrent.futures.Executor` to ask for rewards, also on other machines (a Dask client gives one);
            None for threads of this process, "here" for none. What it is sent must be picklable: a `reward` function too.
        callback: called with a `PlannerProgress` after every update; returning True stops the run.
        checkpoint: `.npz` file written every `checkpoint_every` updates and at the end.
        resume: a checkpoint to go on from; `updates` counts those done before.
        explain: keep `info["explanation"]`, the `LearnedGroups` of the best placement, which `viz.groups` draws.
        learning_rate: the paper's 0.1 is the default, but collapses under simulated rewards: on optimized GNMT the entropy
            per choice is 0.002 after 10 s (`studies.planner.experiment --rates GNMT`). Use 0.002 to 0.005.
        baseline: "average" (the paper's moving average), or "others", which compares a placement with those of its own
            grouping and a grouping with the others of its update; needs `group_samples` above 1 (`planner.reinforce`).
        standardise: give credit in standard deviations of the update's rewards.
        entropy_bonus: added to what is maximised, per nat of entropy of the Placer's choices (the paper has none). Without
            it the Placer puts all groups on one GPU within about 100 updates, and the Grouper has nothing left to learn.
        grouper_start: "uniform", the paper's: every update samples another grouping at first, so the Placer sees other
            groups each time; or the "metis" or "scopes" grouping, in which each op starts with `start_probability`.
        vocabulary: so many of the most common op types are told apart.
        outputs: so many outputs of an op are looked at.
        neighbours: so many edges of an op are looked at, in and out.
        reward_steps: steps of a measured reward, whose median counts.
        reward_warmup: steps before them that are run and not counted.

    The paper's values are the defaults; `SIMULATED` holds others that learn from simulated rewards. With them and 16 samples
    per update, learned groupings beat random ones on GNMT (`studies.planner.experiment --groupings`, notebook 40). On the
    optimized graph (12 units) they do from either start. On its 17,838 ops they do only from "metis", to which learning adds
    little.

    `info`: `rewards` (mean per update), `valid` samples, `best_seconds`, and `entropy` and `grouper_entropy` (mean per choice
    of a device, of a group), per update; `samples`, `updates`, `train_seconds`, `best_us`, and `groups` int[n], the group of
    each op in the best placement.

    Raises:
        InfeasiblePlacement: nothing fits, or no sample did.
        InvalidInput: a parameter out of range, a foreign checkpoint.
    """

    name: ClassVar[str] = "hierarchical"
    anytime: ClassVar[bool] = True
    time_limit: float | None = 60.0
    updates: int | None = 1000  # Mirhoseini et al. 2018, section 3, "Overhead": results are after 1000 updates
    vocabulary: int = 200  # Mirhoseini et al. 2018, section 2: the most common op types
    outputs: int = 6  # Mirhoseini et al. 2018, section 2: outputs of an op that are features
    neighbours: int = 6  # Mirhoseini et al. 2018, section 2: incoming and outgoing edges, 6 each way
    grouper_start: str = "uniform"  # Mirhoseini et al. 2018, section 3, "Analysis": initially nearly uniform
    reward: str | Callable[[Placement], float] = "simulated"
    step: Step | None = field(default=None, repr=False)
    reward_steps: int = 5  # Mirhoseini et al. 2018, section 3, "Measuring Reward": median of 5 steps
    reward_warmup: int = 5  # Mirhoseini et al. 2018, section 3, "Measuring Reward": the first 5 are discarded
    workers: int | None = None
    executor: Executor | str | None = field(default=None, compare=False)
    callback: Callable[[PlannerProgress], object] | None = field(default=None, compare=False)
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int = 50
    resume: str | os.PathLike[str] | None = None
    explain: bool = False

    def validate(self) -> None:
        for key, low in _INTEGER_MINIMA.items():
            check_whole(key, getattr(self, key), low)
        for key in _ABOVE_ZERO:
            self._check_number(key, lambda x: x > 0, "above 0")
        self._check_number("noise_amplitude", lambda x: x >= 0, "of at least 0")
        self._check_number("baseline_decay", lambda x: 0 <= x < 1, "from 0 to below 1")
        self._check_number("invalid_reward", lambda x: x <= 0, "of at most 0")
        self._check_number("entropy_bonus", lambda x: x >= 0, "of at least 0")
        self._check_number("start_probability", lambda x: 0 < x < 1, "above 0 and below 1")
        if self.time_limit is None and self.updates is None:
            raise InvalidInput("time_limit and updates are both None; at least one must end the training")
        if self.time_limit is not None:
            self._check_number("time_limit", lambda x: x >= 0, "of at least 0")
        for key in ("updates", "workers"):
            if getattr(self, key) is not None:
                check_whole(key, getattr(self, key), also=", or None")
        for key, allowed in _CHOICES.items():
            check_text(key, getattr(self, key), allowed)
        learns_groups = isinstance(self.grouping, str) and self.grouping == "learned"
        if self.baseline == "others" and self.group_samples * (1 if learns_groups else self.placement_samples) < 2:
            sample_count_name = "group_samples" if learns_groups else "group_samples * placement_samples"
            raise InvalidInput(f"{sample_count_name} is 1; baseline 'others' compares samples, it must be at least 2")
        if isinstance(self.grouping, str) and self.grouping not in GROUPINGS:
            raise InvalidInput(
                f"grouping is {self.grouping!r}; it must be one of {', '.join(GROUPINGS)}, or a group number per op"
            )
        if not callable(self.reward) and self.reward not in ("simulated", "measured"):
            raise InvalidInput(f"reward is {self.reward!r}; it must be 'simulated', 'measured' or a function")
        # Before the training: the checkpoint can be written.
        for key in ("checkpoint", "resume"):
            value = getattr(self, key)
            if value is not None and not isinstance(value, (str, os.PathLike)):
                raise InvalidInput(f"{key} is {value!r}; it must be a path, or None")
        if self.checkpoint is not None and not Path(self.checkpoint).absolute().parent.is_dir():
            raise InvalidInput(f"checkpoint is {os.fspath(self.checkpoint)!r}; its folder must exist")
        for key in ("explain", "standardise"):
            check_flag(key, getattr(self, key))
        check_callback("callback", self.callback, "progress")
        if not (self.executor is None or self.executor == "here" or hasattr(self.executor, "submit")):
            raise InvalidInput(
                f"executor is {self.executor!r}; it must be a concurrent.futures.Executor, 'here' or None"
            )
        if self.reward == "measured" and self.step is None:
            raise InvalidInput("reward is 'measured' and step is None; give the training step that is to be run")

    def _check_number(self, key: str, allowed: Callable[[float], bool], requirement: str) -> None:
        number = finite(getattr(self, key))
        if number is None or not allowed(number):
            raise InvalidInput(f"{key} is {in_short(getattr(self, key))}; it must be a finite number {requirement}")

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        from .memory.packing import packing_proof
        from .planner.checkpoint import load, save
        from .planner.embeddings import make_units
        from .planner.groupings import given_grouping
        from .planner.networks import tensorflow
        from .planner.reinforce import Trainer

        if graph.n == 0:
            return Placement(device=np.zeros(0, dtype=np.int32), info={"updates": 0, "samples": 0})
        if (why := packing_proof(graph, cluster)) is not None:
            raise InfeasiblePlacement(why, int(graph.persistent_bytes.sum()), cluster.memory_bytes.tolist())
        tensorflow()
        start_seconds = time.perf_counter()
        units = make_units(graph, cluster, self.vocabulary, self.outputs, self.neighbours)
        learns_groups = isinstance(self.grouping, str) and self.grouping == "learned"
        start = self._grouping(self.grouper_start, graph, cluster, units) if learns_groups else None
        if isinstance(self.grouping, str):
            fixed_grouping = self._grouping(self.grouping, graph, cluster, units)
        else:
            fixed_grouping = given_grouping(graph, units, self.grouping)
        trainer = Trainer(self, units, cluster.n, self._reward(graph, cluster), fixed_grouping, start)
        # Everything that decides a run, except its length. A checkpoint can be continued only with the same values.
        run_parameters = {k: v for k, v in self.get_params().items() if k not in _BUDGETS}
        if not isinstance(self.grouping, str):
            run_parameters["grouping"] = np.asarray(self.grouping).tolist()
        belongs = {**run_parameters, "graph": graph.content_key, "cluster": cluster.content_key}
        if self.resume is not None:
            load(self.resume, trainer, belongs)
        while self.updates is None or trainer.updates < self.updates:
            trainer.update()
            seconds = time.perf_counter() - start_seconds
            effort = (seconds, trainer.updates, trainer.samples)
            progress = PlannerProgress(*effort, trainer.history.reward[-1], trainer.best_seconds)
            stop = self.callback is not None and self.callback(progress) is True
            if self.checkpoint is not None and trainer.updates % self.checkpoint_every == 0:
                save(self.checkpoint, trainer, belongs)
            if stop or (self.time_limit is not None and seconds >= self.time_limit):
                break
        if self.checkpoint is not None:
            save(self.checkpoint, trainer, belongs)
        return self._best_placement(trainer, graph, cluster, time.perf_counter() - start_seconds)

    def _best_placement(self, trainer: Trainer, graph: OpGraph, cluster: Cluster, seconds: float) -> Placement:
        if not np.isfinite(trainer.best_seconds):
            raise InfeasiblePlacement(
                f"none of the {trainer.samples} placements that the planner sampled in {trainer.updates} updates was valid; "
                "give it more updates, or use a placer that counts memory",
                int(graph.persistent_bytes.sum()),
                cluster.memory_bytes.tolist(),
            )
        history = trainer.history
        info = {
            "best_us": trainer.best_seconds * 1e6,
            "updates": trainer.updates,
            "samples": trainer.samples,
            "train_seconds": seconds,
            "rewards": tuple(history.reward),
            "valid": tuple(history.valid),
            "best_seconds": tuple(history.best_seconds),
            "entropy": tuple(history.entropy),
            "grouper_entropy": tuple(history.grouper_entropy),
            "groups": tuple(trainer.best_group[trainer.units.of].tolist()),
        }
        if self.explain:
            from .planner.explain import learned_groups

            info["explanation"] = learned_groups(graph, trainer.best_group[trainer.units.of], trainer.best_device)
        return Placement(device=trainer.best_device, info=info)

    def _reward(self, graph: OpGraph, cluster: Cluster) -> Reward:
        from .planner import reward

        # The function that makes the reward of a graph in the worker, and its further arguments.
        make: Callable[..., Reward] = reward.SimulatedReward
        arguments: tuple[object, ...] = (cluster, 1)
        if callable(self.reward):
            make, arguments = reward.MeasuredReward, (self.reward,)
        elif self.reward == "measured":
            make, arguments = reward.execute_here, (self.step, cluster, self.reward_steps, self.reward_warmup)
        if self.executor is not None and not isinstance(self.executor, str):
            part_count = self.workers or os.cpu_count() if self.reward == "simulated" else None
            return reward.ExecutorReward(self.executor, reward.Job(make, graph, *arguments), part_count)
        if self.reward == "simulated":
            return reward.SimulatedReward(graph, cluster, 1 if self.executor == "here" else self.workers)
        return make(graph, *arguments)

    def _grouping(self, kind: str, graph: OpGraph, cluster: Cluster, units: Units) -> NDArray[np.int64] | None:
        """Returns the grouping of that name; None for "learned" and "none"."""
        from .planner.groupings import metis_grouping, random_grouping, scope_grouping

        groups = min(self.groups, units.total)
        if kind == "random":
            return random_grouping(units, groups, self.seed)
        if kind == "metis":
            return metis_grouping(graph, cluster, units, groups, self.seed)
        return scope_grouping(graph, units, groups) if kind == "scopes" else None
