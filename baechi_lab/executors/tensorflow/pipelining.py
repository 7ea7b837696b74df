"""A step, a placement and a schedule -> the step of several micro-batches with its placement, to be run or exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import InvalidInput
from ...graph.cluster import Cluster
from ...graph.opgraph import OpGraph
from ...graph.placement import Placement
from ...graph.step import Run, Step
from ...simulator.pipelined_graph import PipelinedGraph, make_pipelined_graph, pipeline_options
from ..inputs import batch_axes
from .unrolling import unrolled_step


@dataclass(frozen=True, eq=False)
class PipelinedStep:
    """`step` of all micro-batches, and the records that belong to it: its unrolled graph, placement, schedule."""

    step: Step
    pipe: PipelinedGraph
    micro_batches: int

    @property
    def graph(self) -> OpGraph:
        """The unrolled graph."""
        return self.pipe.graph

    @property
    def placement(self) -> Placement:
        """Of the unrolled graph."""
        return self.pipe.placement

    def described(self, run: Run) -> Run:
        """`run` with what `bl.simulate` says of micro-batches in its timeline."""
        if run.timeline is None:
            return run
        return replace(run, timeline=replace(run.timeline, info={**run.timeline.info, **self.pipe.info}))


def pipelined_step(
    step: Any, placement: Placement, cluster: Cluster | None, graph: OpGraph | None, micro_batches: int | None,
    schedule: Any, reduction: str | None, inputs: Sequence[Any] | None = None,
) -> PipelinedStep:  # fmt: skip
    """Unroll a traced step; `graph` None is estimated, which says as a profile does which ops are forward and backward.

    `inputs` are whole batches, of which only the shapes matter: they say along which axes a batch is cut.

    Raises `InvalidInput` and `UnknownNameError` as `bl.simulate(..., micro_batches=, schedule=)` does.
    """
    if not isinstance(step, Step):
        raise InvalidInput(f"step is a {type(step).__name__}; give what bl.trace returns")
    pipeline_options(micro_batches, schedule)
    count = 1 if micro_batches is None else int(micro_batches)
    if graph is None:
        from ...profilers.tensorflow.profiling import profile

        graph = profile(step, mode="estimated", hardware="cpu-core").replace(duration_by_kind={})
    placed = placement.on(graph) if cluster is None else placement.checked(graph, cluster.n)
    kind = next(iter(graph.duration_by_kind), "gpu")
    there = Cluster.uniform(placed.devices, kind=kind) if cluster is None else cluster
    axes = batch_axes(step, count, inputs)
    pipe = make_pipelined_graph(graph, there, placed, count, schedule)
    return PipelinedStep(unrolled_step(step, graph, placed, pipe, reduction, axes), pipe, count)
