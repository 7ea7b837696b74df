"""Unrolls a placed step into the step of several micro-batches under a schedule, to be run or exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...errors import InvalidInput
from ...graph import Cluster, OpGraph, Placement, Run, Step
from ...simulator.pipelined_graph import PipelinedGraph, make_pipelined_graph, pipeline_options
from ...simulator.schedules import ScheduleOption
from ..inputs import batch_axes, first_batch
from .undivided_graph import undivided_step
from .unrolled_step import unrolled_step


@dataclass(frozen=True, eq=False)
class PipelinedStep:
    """The `step` of all micro-batches, with its unrolled graph, placement and schedule."""

    step: Step
    pipe: PipelinedGraph
    micro_batches: int

    @property
    def graph(self) -> OpGraph:
        return self.pipe.graph

    @property
    def placement(self) -> Placement:
        return self.pipe.placement

    def with_pipeline_info(self, run: Run) -> Run:
        """Returns `run` with the info on micro-batches that `bl.simulate` puts into a timeline."""
        if run.timeline is None:
            return run
        return replace(run, timeline=replace(run.timeline, info={**run.timeline.info, **self.pipe.info}))


def pipelined_step(
    step: object,
    placement: Placement,
    cluster: Cluster | None,
    graph: OpGraph | None,
    micro_batches: int | None,
    schedule: ScheduleOption | None,
    reduction: str | None,
    inputs: Sequence[object] | None = None,
) -> PipelinedStep:
    """Unrolls a traced step. If `graph` is None, it is estimated, which marks forward and backward ops like a measurement.

    `inputs` are whole batches. Their shapes determine the axes along which a batch is split, and gradients are compared on the
    first one.

    Raises `InvalidInput` and `UnknownNameError` as `bl.simulate(..., micro_batches=, schedule=)` does.
    """
    if not isinstance(step, Step):
        raise InvalidInput(f"step is a {type(step).__name__}; give what bl.trace returns")
    pipeline_options(micro_batches, schedule)
    count = 1 if micro_batches is None else int(micro_batches)
    if graph is None:
        from ...profilers.dispatch import profile

        graph = profile(step, mode="estimated", hardware="cpu-core").replace(duration_by_kind={})
    op_placement = placement.on(graph) if cluster is None else placement.checked(graph, cluster.n)
    kind = next(iter(graph.duration_by_kind), "gpu")
    cluster_or_uniform = Cluster.uniform(op_placement.devices, kind=kind) if cluster is None else cluster
    axes = batch_axes(step, count, inputs)
    pipe = make_pipelined_graph(graph, cluster_or_uniform, op_placement, count, schedule)
    step_of_batch = undivided_step(step, axes, count)
    step_of_micro_batches = unrolled_step(
        step, graph, op_placement, pipe, reduction, axes, step_of_batch, first_batch(step, inputs)
    )
    return PipelinedStep(step_of_micro_batches, pipe, count)
