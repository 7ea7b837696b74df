"""Parameters of a training run; `placers.hierarchical` describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
