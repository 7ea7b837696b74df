"""Runs a TensorFlow step natively: the caller's own `tf.function` or Keras model, in this process.

TensorFlow's graph optimizer is on, each op uses the threads that TensorFlow assigns, and the function contains everything that
tracing removes or inlines. Variables are restored afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidInput
from ...graph import Cluster, Placement
from ...graph.step import NativeRun, Source, Step
from ...workers.executors import cores
from ...workers.failures import first_line
from ..inputs import checked_batches
from ..native import NativeRunner, Stop, timed_steps

if TYPE_CHECKING:
    from tensorflow import Variable

FUNCTION, KERAS = "tf.function", "Keras train_step"


def native_runners(
    step: Step,
    placement: Placement | None,
    cluster: Cluster | None,
    kind: str = "auto",
    inputs: Sequence[object] | None = None,
) -> Mapping[str, NativeRunner]:
    """Returns the runner of this step: `Keras train_step` for a model, `tf.function` for any other function.

    It runs on the first device of `kind`, whatever the placement and the cluster.
    """
    if not isinstance(step, Step):
        raise InvalidInput(f"step is a {type(step).__name__}; native= runs what bl.trace or bl.models.build returned")
    if step.source is None:
        raise InvalidInput(
            f"step {step.name!r} is without the function it was traced from (it was sent, loaded or made by hand); "
            "trace it in this process to run it natively"
        )
    from ...profilers.tensorflow.keras_step import is_keras_model

    source = step.source()
    batches = [nested_inputs(source, batch) for batch in checked_batches(step, inputs)]
    if is_keras_model(source.function):
        return {KERAS: partial(_run_keras, source, batches, kind)}
    import tensorflow as tf

    is_compiled = hasattr(source.function, "get_concrete_function") or hasattr(source.function, "captured_inputs")
    tf_function: Any = source.function if is_compiled else tf.function(source.function)
    return {FUNCTION: partial(_run_function, tf_function, source, batches, kind)}


def nested_inputs(source: Source, batch: Sequence[object]) -> tuple[object, ...]:
    """Returns the arrays of a batch in the nested structure that the function takes."""
    import tensorflow as tf

    arrays = iter(batch)
    flat = tf.nest.flatten(source.example_inputs, expand_composites=True)
    arrays_and_values = [tf.constant(next(arrays), dtype=x.dtype) if tf.is_tensor(x) else x for x in flat]
    return tuple(tf.nest.pack_sequence_as(source.example_inputs, arrays_and_values, expand_composites=True))


def _run_function(
    function: Callable[..., object],
    source: Source,
    batches: list[tuple[object, ...]],
    kind: str,
    steps: int,
    warmup: int = 3,
    stop: Stop | None = None,
) -> NativeRun:
    with _restoring(source.variables):
        return _time_steps(FUNCTION, lambda k: function(*batches[k % len(batches)]), steps, warmup, stop, kind)


def _run_keras(
    source: Source, batches: list[tuple[object, ...]], kind: str, steps: int, warmup: int = 3, stop: Stop | None = None
) -> NativeRun:
    """Runs the model's own train function, metrics included: `train_on_batch` without its conversions."""
    model = source.function
    before, several = model.train_function, int(getattr(model, "steps_per_execution", 1))
    with _restoring([*source.variables, *model.variables, *model.optimizer.variables, *model.metrics_variables]):
        metric_ids = {id(v) for v in model.metrics_variables}
        try:
            model.make_train_function()
            native_run = _time_steps(
                KERAS,
                lambda k: model.train_function(iter([batches[k % len(batches)]] * several)),
                steps,
                warmup,
                stop,
                kind,
            )
        finally:
            model.train_function = before
            if any(id(v) not in metric_ids for v in model.metrics_variables):  # made by the first step
                model.reset_metrics()
    return replace(native_run, step_seconds=native_run.step_seconds / several)


@contextmanager
def _restoring(variables: Sequence[Variable]) -> Iterator[None]:
    """Restores the values of all variables at the end."""
    values_before = [(v, np.array(v.numpy())) for v in {id(v): v for v in variables}.values()]
    try:
        yield
    finally:
        for variable, value in values_before:
            variable.assign(value)


def _time_steps(
    name: str, call: Callable[[int], object], steps: int, warmup: int, stop: Stop | None, kind: str
) -> NativeRun:
    import tensorflow as tf

    gpu = kind.lower() != "cpu" and bool(tf.config.list_logical_devices("GPU"))
    device = "/GPU:0" if gpu else "/CPU:0"

    def one(k: int) -> tuple[tuple[object, ...], float]:
        with nullcontext() if gpu else tf.device(device):
            start = time.perf_counter()
            outputs = call(k)
            tf.test.experimental.sync_devices()
            seconds = time.perf_counter() - start
        leaves = tf.nest.flatten(outputs, expand_composites=True)
        return tuple(x.numpy() for x in leaves if tf.is_tensor(x)), seconds

    threads = tf.config.threading.get_intra_op_parallelism_threads() or cores()
    expected = (tf.errors.OpError, ValueError, TypeError, RuntimeError, MemoryError)
    return timed_steps(name, one, steps, warmup, stop, _failure, expected, {"device": device, "threads": threads})


def _failure(error: BaseException) -> tuple[str, str]:
    import tensorflow as tf

    full = isinstance(error, (tf.errors.ResourceExhaustedError, MemoryError))
    return "out-of-memory" if full else "died", first_line(error)
