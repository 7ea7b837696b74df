"""`bl.apply`: a placed step that the caller calls like the original one, in the same process.

Unlike `bl.execute`, nothing is isolated or measured. The step runs in a TensorFlow session of this process and keeps its
variables from call to call. A session has its own devices, so the caller may already use TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ExecutionError, InvalidInput
from ...graph import Cluster, OpGraph, Placement, Step
from ...graph.arguments import check_placed_step, check_records
from ...graph.restoring import copy_back
from ...workers.failures import first_line
from ..inputs import checked_batch
from .devices import device_options, select
from .recomputed_step import step_to_run
from .session import PlacedSession, node_of, place_graph, session_config


def apply(
    step: Step,
    placement: Placement,
    *,
    cluster: Cluster | None = None,
    graph: OpGraph | None = None,
    virtual: int | None = None,
    memory_limit: int | str | None = None,
    kind: str = "auto",
    threads: int | None = None,
) -> PlacedStep:
    """Returns the step under a placement, to be called in a training loop.

    The variables start from the values that they had when the step was traced.

    Args:
        step, placement, cluster, graph, virtual, memory_limit, kind, threads: as in `bl.execute`.

    Returns:
        A function of one batch that runs a step and returns what the step returns; `restore(model)` writes the
        variables back.

    Raises:
        InvalidInput: a placement for another graph, a bad option.
        ExecutionError: a device that the runtime lacks, or a placed graph that TensorFlow refuses.

    >>> placed_step = apply(step, placement)  # doctest: +SKIP
    >>> for x, y in batches:  # doctest: +SKIP
    ...     loss = placed_step(x, y)
    >>> placed_step.restore(model)  # doctest: +SKIP
    """
    import tensorflow as tf

    if not isinstance(step, Step):
        raise InvalidInput(f"step is a {type(step).__name__}; give what bl.trace returns")
    check_placed_step(placement, graph, cluster)
    if cluster is not None:
        check_records(cluster=cluster)
    step, graph, op_placement = step_to_run(step, placement, graph, cluster, "bl.apply")
    names = None if cluster is None else [(d.name, d.memory_bytes) for d in cluster.devices]
    options = device_options(virtual, memory_limit, kind, threads)
    selection = select(names, options, int(op_placement.device.max(initial=0)) + 1)
    device_of = {name: selection.devices[d] for name, d in zip(graph.names, op_placement.device.tolist(), strict=True)}
    config = session_config(selection.cpus, soft=selection.soft, threads=selection.threads)
    selection.apply(config)
    # This is the caller's training loop, not a measurement: an op may use every core.
    config.intra_op_parallelism_threads = 0
    try:
        session = PlacedSession(place_graph(step, device_of), config)
        session.start(step.initial_values)
    except (tf.errors.OpError, ValueError) as error:
        raise ExecutionError(f"TensorFlow refuses the placed step: {first_line(error)}") from error
    return PlacedStep(step, session)


class PlacedStep(contextlib.AbstractContextManager["PlacedStep"]):
    """A training step on its devices; call it with a batch. Made by `bl.apply`; a context manager."""

    def __init__(self, step: Step, session: PlacedSession) -> None:
        self.step = step
        self._session = session
        self._open = True

    def __call__(self, *batch: object) -> Any:
        """Runs one step. Returns what the step returns: one value, a tuple of them, or a dict by name.

        Raises `InvalidInput` for a batch that does not match, `ExecutionError` when TensorFlow fails.
        """
        import tensorflow as tf

        self._check_open()
        arrays = checked_batch(self.step, batch)
        try:
            outputs = self._session.call(arrays)
        except tf.errors.OpError as error:
            raise ExecutionError(f"the placed step failed: {first_line(error)}") from error
        if self.step.output_names:
            return dict(zip(self.step.output_names, outputs, strict=True))
        return outputs[0] if len(outputs) == 1 else outputs

    @property
    def moved_ops(self) -> tuple[str, ...]:
        """Ops that run on the device of their variable instead of the device in the placement."""
        return self._session.placed_graph.moved_ops

    @property
    def variables(self) -> dict[str, NDArray[np.generic]]:
        """The current value of every variable, by its name in the step."""
        self._check_open()
        values = self._session.values()
        return {node_of(spec.name): value for spec, value in zip(self.step.variables, values, strict=True)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the variables as `.npz`, atomically. `load` reads the file."""
        target = Path(path)
        values = {f"variable_{i}": value for i, value in enumerate(self.variables.values())}
        try:
            with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}-", delete=False) as stream:
                np.savez(stream, **values)  # type: ignore[arg-type]
            os.replace(stream.name, target)
        except OSError as error:
            raise ExecutionError(f"cannot write {target}: {error.strerror or error}") from error

    def load(self, values: str | os.PathLike[str] | Mapping[str, NDArray[np.generic]]) -> None:
        """Sets the variables from a file that `save` wrote, or from a mapping like `variables`."""
        names = [node_of(spec.name) for spec in self.step.variables]
        if not isinstance(values, Mapping):
            with np.load(values, allow_pickle=False) as archive:
                values = {name: archive[f"variable_{i}"] for i, name in enumerate(names) if f"variable_{i}" in archive}
        missing = [name for name in names if name not in values]
        if missing:
            raise InvalidInput(f"no value for variable {missing[0]!r}; all {len(names)} variables need one")
        arrays = [
            _checked_value(values[n], v, n, self.step.name)
            for n, v in zip(names, self.step.initial_values, strict=True)
        ]
        self._session.assign(arrays)

    def restore(self, model: object) -> int:
        """Copies the variables back into what the step was traced from; returns how many were copied.

        `model` is a Keras model (its optimizer's variables included) or an iterable of variables. Raises
        `InvalidInput` when a variable of the step has no counterpart of its name and shape there.
        """
        return copy_back(self.variables, model)

    def close(self) -> None:
        """Frees the session. Further calls do nothing."""
        if self._open:
            self._session.close()
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise ExecutionError("this placed step was closed; make a new one with bl.apply")

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PlacedStep {self.step.name!r}: {len(self.step.variables)} variables, {len(self.step.inputs)} inputs>"


def _checked_value(value: object, initial: NDArray[np.generic], name: str, step: str) -> NDArray[np.generic]:
    array = np.asarray(value)
    array = array.view(initial.dtype) if array.dtype.kind == "V" else array
    if array.shape != initial.shape:
        raise InvalidInput(f"variable {name!r} has shape {array.shape}; step {step!r} needs {initial.shape}")
    return array.astype(initial.dtype)
