"""The base class of benchmark models: a parameter object that makes its training step and its expert placement."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..errors import InvalidInput
from ..graph import OpGraph
from ..params import Params
from .scopes import assign_by_scope

if TYPE_CHECKING:
    from .training import TrainingStep

PROJECTIONS = ("whole", "steps")
"""Output layer on the whole sequence at once, or per time step."""

OPTIMIZERS = ("sgd", "momentum", "rmsprop", "adam")


class Model(Params):
    """Subclass as a frozen dataclass whose fields are the parameters; the docstring's first line is the listing."""

    name: ClassVar[str]

    @abstractmethod
    def training_step(self) -> TrainingStep:
        """Creates the variables (seeded) and the `tf.function` of one training step. Needs TensorFlow."""

    @classmethod
    def expert(cls, graph: OpGraph, devices: int, attention: str = "last") -> NDArray[np.int32]:
        """Returns int32[n]: the device that a human expert gives each op; here all ops go to device 0.

        Source: Jeon et al. 2020, section 5.3; Mirhoseini et al. 2018, section 4.

        `graph` is this model's profiled graph, `devices` >= 1 the number of devices. `attention` says whether the
        attention between decoder and encoder goes with the "last" or the "first" layer, where a model has it.
        """
        return assign_by_scope(graph, devices, lambda scope_parts: 0)

    def owner_text(self) -> str:
        """Returns the text with which messages name the model of a parameter."""
        return f" of model {self.name!r}"

    def check_whole(self, field: str, low: int = 1) -> int:
        """Returns the parameter; raises `InvalidInput` unless it is a whole number of at least `low`."""
        return check_whole(field + self.owner_text(), getattr(self, field), low)

    def check_among(self, field: str, choices: tuple[object, ...]) -> None:
        """Raises `InvalidInput` for a parameter that is not one of `choices`."""
        value = getattr(self, field)
        if value not in choices:
            allowed = ", ".join(repr(k) for k in choices)
            raise InvalidInput(f"{field}{self.owner_text()} is {value!r}; it must be one of {allowed}")

    def check_common(self) -> None:
        """Checks the parameters that all models have."""
        self.check_whole("batch_size")
        self.check_whole("seed", low=0)
        self.check_among("optimizer", OPTIMIZERS)
