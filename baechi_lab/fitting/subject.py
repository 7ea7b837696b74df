"""The step to fit: its graph, and how to build it at another batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..checks import check_batch_size
from ..errors import InvalidInput, in_short
from ..graph import OpGraph, Step

NO_OTHER_BATCH = (
    "cannot: a graph does not say what another batch costs; give a model's name, or a function that takes a batch size and "
    "returns the graph"
)


@dataclass(frozen=True, eq=False)
class Subject:
    """A graph, its batch size where known, and a function that builds the graph of another batch size, or None."""

    graph: OpGraph
    batch_size: int | None
    rebuild: Callable[[int], OpGraph] | None
    code: str = "graph"

    def at(self, batch_size: int) -> OpGraph:
        """Returns the graph at another batch size."""
        if self.rebuild is None:
            raise InvalidInput(NO_OTHER_BATCH)
        return self.rebuild(batch_size)

    @property
    def original(self) -> str:
        """Code that builds the graph."""
        return self.code if self.batch_size is None else self.code_at(self.batch_size)

    def code_at(self, batch_size: int) -> str:
        """Returns code that builds the graph at a batch size."""
        return self.code.replace("BATCH", str(batch_size))


def subject_of(subject: object, batch_size: int | None, hardware: str | Mapping[str, str]) -> Subject:
    """Returns the `Subject` of a model's name, a step, a function of the batch size, a graph, or a subject.

    Raises:
        InvalidInput: none of these, a function without a batch size, or one that does not return a graph.
        UnknownNameError: no such model or hardware.
    """
    from ..graph.hardware import by_kind

    by_kind(hardware)
    if batch_size is not None:
        check_batch_size(batch_size)
    if isinstance(subject, Subject):
        return subject
    if isinstance(subject, OpGraph):
        return Subject(subject, batch_size, None)
    if isinstance(subject, str):
        if "." in subject:
            raise InvalidInput(
                f"graph is {in_short(subject)}; a model's name has no dot, and a file is read by bl.load_graph"
            )
        return _subject_of_model(subject, {}, batch_size, hardware)
    if isinstance(subject, Step):
        built_from = subject.built_from
        if built_from is None:
            return Subject(_profile(subject, hardware), batch_size, None, "bl.profile(step)")
        size = batch_size or built_from.batch_size
        return _subject_of_model(built_from.model, built_from.other_params, size, hardware)
    if callable(subject):
        if batch_size is None:
            raise InvalidInput(
                "batch_size is None; a function that makes the graph of a batch size needs it, for example 128"
            )
        rebuild = lambda size: _check_graph(subject(size), hardware)  # noqa: E731
        return Subject(rebuild(batch_size), batch_size, rebuild, f"{getattr(subject, '__name__', 'build')}(BATCH)")
    raise InvalidInput(
        f"graph is a {type(subject).__name__}; it must be an OpGraph, a Step, a model's name or a function of the batch size"
    )


def _subject_of_model(
    name: str, other_params: Mapping[str, object], batch_size: int | None, hardware: object
) -> Subject:
    """Returns the subject of a model with these parameters besides the batch size, by default the model's own."""
    from ..models.building import build
    from ..models.registry import make_model

    size = batch_size or make_model(name, **other_params).get_params()["batch_size"]
    rebuild = lambda n: _profile(build(name, **other_params, batch_size=n), hardware)  # noqa: E731
    return Subject(rebuild(size), size, rebuild, model_code(name, other_params, hardware))


def model_code(name: str, params: Mapping[str, object], hardware: object) -> str:
    """Returns code that builds the graph of a model at batch size BATCH; `params` are the other parameters."""
    arguments = "".join(f", {k}={v!r}" for k, v in params.items())
    return (
        f"bl.profile(bl.models.build({name!r}, batch_size=BATCH{arguments}), mode='estimated', hardware={hardware!r})"
    )


def _profile(step: Step, hardware: Any) -> OpGraph:
    from ..profilers import profile

    return profile(step, mode="estimated", hardware=hardware)


def _check_graph(graph: object, hardware: object) -> OpGraph:
    if isinstance(graph, Step):
        graph = _profile(graph, hardware)
    if not isinstance(graph, OpGraph):
        raise InvalidInput(
            f"the function of the batch size returned a {type(graph).__name__}; it must return an OpGraph"
        )
    return graph
