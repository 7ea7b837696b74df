"""The training step of a compiled Keras model as a plain function, and the Keras objects a function uses."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ...errors import InvalidInput

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


def is_keras_model(candidate: object) -> bool:
    """Whether this is a `keras.Model`; Keras is not loaded for the check."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(candidate, keras.Model)


def training_step(model: keras.Model, batch: tuple[object, ...]) -> Callable[..., object]:
    """Returns a function `(x, y[, sample_weight]) -> loss` that trains `model` on one batch, as `model.fit` does.

    The loss is that of the batch alone (fit shows a running mean), with the model's own regularization losses;
    metrics are left out, also those that a model with several outputs has of each loss. If the model's class overrides
    `train_step`, the function calls that and returns its result.

    Raises:
        InvalidInput: the model is not compiled, or the batch is not `(x, y)` or `(x, y, sample_weight)`; `(x,)` is for models
            without a loss of their own.
    """
    import keras
    import tensorflow as tf

    name = getattr(model, "name", type(model).__name__)
    if not getattr(model, "compiled", False) or model.optimizer is None:
        raise InvalidInput(
            f"model {name!r} is not compiled; call model.compile(optimizer=..., loss=...) before tracing it"
        )
    if not 1 <= len(batch) <= 3:
        raise InvalidInput(
            f"model {name!r} was given {len(batch)} inputs; give a batch (x, y) or (x, y, sample_weight)"
        )
    refuse_replicas([model.optimizer], name)
    with strategy_of(model.optimizer).scope():
        # `model.build()` may leave layers without variables.
        if not all(layer.built for layer in model._flatten_layers()):
            model(batch[0], training=False)
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
    if type(model).train_step is not keras.Model.train_step:
        return _in_replica(model, lambda *data: model.train_step(tuple(data)))
    if len(batch) == 1 and getattr(model, "loss", None) is not None:
        raise InvalidInput(
            f"model {name!r} was given inputs without targets, which its loss needs; give a batch (x, y)"
        )
    takes_training = "training" in inspect.signature(model.call).parameters

    def train(x: tf.Tensor, y: tf.Tensor = None, sample_weight: tf.Tensor | None = None) -> tf.Tensor:
        with tf.GradientTape() as tape:
            prediction = model(x, training=True) if takes_training else model(x)
            with _without_loss_trackers(model):
                loss = model.compute_loss(x=x, y=y, y_pred=prediction, sample_weight=sample_weight, training=True)
            scaled_loss = model.optimizer.scale_loss(loss)
        weights = model.trainable_weights
        model.optimizer.apply_gradients(zip(tape.gradient(scaled_loss, weights), weights, strict=True))
        return loss

    return _in_replica(model, train)


@contextlib.contextmanager
def _without_loss_trackers(model: keras.Model) -> Iterator[None]:
    """Lets the loss of a model with several outputs update, within this context, no metric of each output's loss."""
    losses: Any = getattr(model, "_compile_loss", None)
    kind: Any = type(losses)
    if not isinstance(getattr(kind, "metrics", None), property):
        yield
        return
    without_trackers = property(lambda self: [None] * len(kind.metrics.fget(self)))
    losses.__class__ = type(kind.__name__, (kind,), {"metrics": without_trackers})
    try:
        yield
    finally:
        losses.__class__ = kind


def strategy_of(item: object) -> tf.distribute.Strategy:
    """Returns the `tf.distribute.Strategy` under which a Keras object was created, or TensorFlow's default strategy."""
    import tensorflow as tf

    strategy = getattr(item, "_distribution_strategy", None) or getattr(item, "distribute_strategy", None)
    return strategy or tf.distribute.get_strategy()


def refuse_replicas(objects: Iterable[object], label: str) -> None:
    """Raises `InvalidInput` if a Keras object was created under a strategy of several replicas."""
    for strategy in map(strategy_of, objects):
        if strategy.num_replicas_in_sync > 1:
            raise InvalidInput(
                f"step {label!r} is under a {type(strategy).__name__} of {strategy.num_replicas_in_sync} replicas; "
                "make model and optimizer outside of its scope, as the placement says what runs where"
            )


def _in_replica(model: keras.Model, step: Callable[..., object]) -> Callable[..., object]:
    """Runs the step in `strategy.run` if the optimizer was created under a strategy of one replica, which requires it."""
    strategy = getattr(model.optimizer, "_distribution_strategy", None)
    return step if strategy is None else lambda *data: strategy.run(step, data)


FOLLOWED_REFERENCES = 4
"""Closures, attributes or containers between a function and the Keras objects that are looked for."""


def keras_objects(function: object) -> list[object]:
    """Returns the Keras layers, models and optimizers that a function reaches by closure, globals, `self` or containers."""
    keras = sys.modules.get("keras")
    if keras is None:
        return []
    objects: dict[int, object] = {}
    visited: set[int] = set()
    level: list[Any] = [function]
    for _ in range(FOLLOWED_REFERENCES):
        following: list[Any] = []
        for item in level:
            if id(item) in visited:
                continue
            visited.add(id(item))
            if isinstance(item, (keras.Layer, keras.Optimizer, keras.Metric)):
                objects[id(item)] = item
                # a model's optimizer, and the optimizer inside a loss-scaling one
                optimizers = (getattr(item, key, None) for key in ("optimizer", "inner_optimizer"))
                following.extend(o for o in optimizers if isinstance(o, keras.Optimizer))
                following.extend(getattr(item, "metrics", ()))  # the means of a model's losses among them
            else:
                following.extend(_referenced_objects(item))
        level = following
    return list(objects.values())


def _referenced_objects(item: object) -> Iterable[object]:
    if isinstance(item, (list, tuple)):
        return list(item[:1000])
    if isinstance(item, dict):
        return list(item.values())[:1000]
    function = getattr(item, "python_function", item)
    owner = getattr(function, "__self__", None)
    function = inspect.unwrap(getattr(function, "__func__", function)) if callable(function) else function
    objects: list[object] = []
    if owner is not None and not inspect.ismodule(owner):
        objects += [owner, *getattr(owner, "__dict__", {}).values()]
    if inspect.isfunction(function):
        with contextlib.suppress(ValueError):  # an empty cell: a local function that is defined further down
            names = inspect.getclosurevars(function)
            objects += [*names.nonlocals.values(), *names.globals.values()]
    elif callable(item) and not inspect.isclass(item) and not inspect.isbuiltin(item):
        objects += list(getattr(item, "__dict__", {}).values())
    return [r for r in objects if not inspect.ismodule(r) and not inspect.isclass(r)]
