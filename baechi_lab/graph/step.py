"""Step: a traced training step, free of any framework object; and Run, what executing it returned."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from .restoring import copy_back
from .timeline import Timeline


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor of the step's graph.

    Args:
        name: as in the GraphDef.
        dtype: a NumPy or TensorFlow name.
        shape: None where a size is not known.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class BuiltFrom:
    """The benchmark model from which `bl.models.build` made a step.

    Args:
        model: name of the model.
        params: all its parameters, as `bl.models.make_model(model).get_params()` returns them.
    """

    model: str
    params: Mapping[str, Any]

    @property
    def batch_size(self) -> int:
        """The batch size of the step."""
        return int(self.params["batch_size"])

    @property
    def other_params(self) -> dict[str, Any]:
        """All parameters but the batch size."""
        return {key: value for key, value in self.params.items() if key != "batch_size"}


@dataclass(frozen=True, eq=False)
class Source:
    """The origin of a traced step: a `tf.function`, plain function or Keras model, with the variables that it uses.

    Args:
        function: the caller's own.
        example_inputs: as tensors, in the nests that the function takes.
        variables: objects with `numpy()` and `assign(value)`.
    """

    function: Any
    example_inputs: tuple[object, ...]
    variables: tuple[Any, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Step:
    """One training step as data: a serialized GraphDef, its inputs and outputs, and the state from which it starts.

    Function calls are inlined; variables are resource handle ops of the graph, named in `variables` with the
    value that each had when the step was traced. Nothing here needs TensorFlow to be read, sent or stored.
    `bl.trace` and `bl.models.build` make one.

    Args:
        name: of the step.
        graph_def: the serialized GraphDef.
        inputs, outputs: tensors of the graph.
        example_inputs: one value per input, of the sizes for which costs are known.
        variables, initial_values: the state, and its values before the first step.
        slots: optimizer slot variable -> the variable it belongs to (names as in `variables`).
        updates: ops that must run although no output needs them: variable assignments and other side effects.
        output_names: the keys of the dict that the step returned (`loss`, `metrics/accuracy`), by output; empty for no dict.
        info: notes of tracing.
        built_from: the benchmark model from which `bl.models.build` made the step; None for any other step.
        source: a function that returns the origin of the step; None outside the process that traced it, since it is
            neither sent nor stored.
    """

    name: str
    graph_def: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    example_inputs: tuple[NDArray[np.generic], ...]
    variables: tuple[TensorSpec, ...]
    initial_values: tuple[NDArray[np.generic], ...]
    slots: dict[str, str] = field(default_factory=dict)
    updates: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)
    built_from: BuiltFrom | None = None
    source: Callable[[], Source] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "source": None}

    @cached_property
    def key(self) -> str:
        """Hash of graph, inputs and variables' shapes (not their values)."""
        digest = hashlib.blake2b(self.graph_def, digest_size=16)
        digest.update(repr((self.inputs, self.outputs, self.variables, self.slots, self.updates)).encode())
        return digest.hexdigest()

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all variables."""
        return sum(v.nbytes for v in self.initial_values)

    def __repr__(self) -> str:
        sizes = f"{len(self.inputs)} inputs, {len(self.variables)} variables, {len(self.graph_def)} bytes of graph"
        return f"<Step {self.name!r}: {sizes}>"


def native_name(method: str) -> str:
    """Returns the name in tables of steps that a framework runs undivided."""
    return f"native ({method})"


@dataclass(frozen=True, eq=False, repr=False)
class NativeRun:
    """Steps that the framework ran undivided on one device, to compare placements with.

    Args:
        method: `tf.function`, `Keras train_step`, `eager` or `torch.compile`.
        step_seconds: float64[steps] after warm-up, which traces or compiles.
        outputs: what the step returned, per step from the very first.
        status, message: as in `Run`; `died` is also a step that the framework cannot run or compile here.
        info: the `device`, and how many `threads` the framework may use.
    """

    method: str
    step_seconds: NDArray[np.float64]
    outputs: tuple[tuple[Any, ...], ...] = ()
    status: str = "ok"
    message: str = ""
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def way(self) -> str:
        """Deprecated name of `method`."""
        warnings.warn("way is deprecated; use method", DeprecationWarning, stacklevel=2)
        return self.method

    @property
    def name(self) -> str:
        """The name in tables."""
        return native_name(self.method)

    @property
    def median_seconds(self) -> float:
        """Median measured step time; NaN when nothing was measured."""
        return _median(self.step_seconds)

    def __repr__(self) -> str:
        status = "" if self.status == "ok" else f" {self.status}"
        times = f"{len(self.step_seconds)} steps, median {self.median_seconds * 1e3:.4g} ms"
        return f"<NativeRun {self.method}{status}: {times}>"


def _median(seconds: NDArray[np.float64]) -> float:
    return float(np.median(seconds)) if len(seconds) else float("nan")


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """The result of `bl.execute`.

    Args:
        timeline: measured, or None if no step was traced.
        step_seconds: float64[steps] after warm-up.
        outputs: what the step returned, per step from the very first (warm-up included, so that losses can be compared).
        status: one of `ok`, `cancelled`, `out-of-memory`, `died`, `timeout`.
        message: the reason, if `status` is not `ok`.
        moved_ops: ops that the runtime ran on another device than the placement's, without constants and shapes.
        info: other facts.
        native: the undivided step as the framework itself runs it, by method; empty unless requested.
    """

    timeline: Timeline | None
    step_seconds: NDArray[np.float64]
    outputs: tuple[tuple[Any, ...], ...]
    status: str = "ok"
    message: str = ""
    moved_ops: tuple[str, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)
    native: dict[str, NativeRun] = field(default_factory=dict)

    @property
    def median_seconds(self) -> float:
        """Median measured step time; NaN when nothing was measured."""
        return _median(self.step_seconds)

    @property
    def native_ratio(self) -> float:
        """The placed step over the fastest native one, medians of both; NaN where one of them was not measured.

        >>> Run(None, np.array([3.0]), (), native={"eager": NativeRun("eager", np.array([2.0]))}).native_ratio
        1.5
        """
        medians = [run.median_seconds for run in self.native.values() if len(run.step_seconds)]
        return self.median_seconds / min(medians) if medians else float("nan")

    def restore(self, model: object) -> int:
        """Copies the trained variables of a TensorFlow step into the traced model; returns the number of copied variables.

        `model` is a Keras model (its optimizer's variables included) or an iterable of variables. Raises
        `InvalidInput` where the run did not return its variables, or one has no counterpart of its name and shape.

        >>> bl.execute(step, placement, return_variables=True).restore(model)  # doctest: +SKIP
        """
        if "variables" not in self.info:
            raise InvalidInput("this run has no variables; give bl.execute return_variables=True")
        return copy_back(self.info["variables"], model)

    def __repr__(self) -> str:
        return f"<Run {self.status}: {len(self.step_seconds)} steps, median {self.median_seconds * 1e3:.4g} ms>"
