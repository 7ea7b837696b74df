"""`exact`: the best possible placement and order, proven by constraint programming.

All placements and orders of a graph of few ops are tried, which takes milliseconds (`evaluation.enumerate`). For others:

Idea: OR-tools CP-SAT on the model of `exact/model.py`, warm-started from `search`, its objective bounded from below by
`bounds` and from above by what is known: the solver looks for something shorter, or proves that there is nothing
(`exact/proof.py`). The relaxed model comes first; where the simulation of its solution takes longer than its bound, the
strict model, which never idles and serves transfers at once as the simulator does, closes the gap.

Times are scaled to whole numbers. Where no small scale makes them whole they are rounded down, so that the bound stays
one (`exact/times.py`). `info` of the result: `status` ("OPTIMAL": the bound is within a millionth of the step time, or
"FEASIBLE"; of a coarse graph "OPTIMAL of groups": proven of groups that run as one op each), `bound_us`, `gap` (0 is
proven optimal), `scale_error_us` (the most by which rounding may have lowered the bound; 0 where times are whole), and
the `solves` of each model.

Complexity: exponential (the problem is NP-hard without communication); see the benchmarks for what is solved. Source:
CP-SAT, Perron and Didier, OR-tools (https://developers.google.com/optimization).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ...checks import check_number, check_whole
from ...errors import InvalidInput, MissingPackage
from ...graph import Cluster, OpGraph, Placement
from ..base import Placer
from ..pipeline_stages.objective import Objective
from ..problem import groups_of
from .pipelines import PipelineProof
from .process import SolverProcess
from .proof import ExactProgress, Proof

LARGEST_MODEL = 40_000
"""Pairs of transfers and ops in a model; larger ones would take minutes to build and prove nothing."""


@dataclass(frozen=True)
class Exact(Placer):
    """The proven optimum of a small graph by constraint programming, or the proven gap (needs ortools).

    Args:
        time_limit: seconds for all but compiling.
        seed: of the solver and the warm start.
        workers: threads of the solver.
        warm_start: share of the time that `search` may use for a first placement.
        objective: "latency" (one step), "throughput" (the period of endless micro-batches; `sum`: as in `bl.throughput`) or
            "step" (`micro_batches` under a `schedule`); for the last two see `exact/pipelines.py`.
        replicas: must be False: the proofs are of pipeline stages on one device each.
        callback: called with an `ExactProgress` ten times a second; returning True ends the proof with what is known.
    """

    name = "exact"
    anytime = True
    time_limit: float = 60.0
    seed: int = 0
    workers: int = 2
    warm_start: float = 0.1
    objective: str = "latency"
    micro_batches: int = 8
    schedule: str | None = "1f1b"
    replicas: bool = False
    sum: bool = False
    callback: Callable[[ExactProgress], object] | None = field(default=None, compare=False)

    @property
    def _goal(self) -> Objective:
        return Objective(self.objective, self.micro_batches, self.schedule, self.sum)

    def validate(self) -> None:
        self._goal.validate()
        if self.replicas:
            raise InvalidInput(
                "replicas is True; 'exact' proves what stages on one device each can do: 'ideals', 'contiguous', 'search' and "
                "'auto' let devices share a stage"
            )
        check_number("time_limit", self.time_limit)
        check_number("warm_start", self.warm_start, high=1.0)
        check_whole("seed", self.seed, 0)
        check_whole("workers", self.workers)

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        if importlib.util.find_spec("ortools") is None:
            raise MissingPackage.of("ortools", "solvers", "placer 'exact'")
        if graph.on_communication_lane.any():
            first = graph.names[int(graph.on_communication_lane.argmax())]
            raise InvalidInput(
                f"op {first!r} is a collective; 'exact' proves nothing of devices that compute and communicate at once"
            )
        size = model_size(graph, cluster) if self.objective == "latency" else load_size(graph, cluster)
        if size > LARGEST_MODEL:
            raise InvalidInput(
                f"the instance is too large for 'exact': {graph.n} ops, {graph.tensor_count} tensors and {cluster.n} "
                f"devices make {size} pairs to order; at most {LARGEST_MODEL} are allowed (use 'search')"
            )
        if graph.n == 0:
            return Placement(device=np.zeros(0, dtype=np.int32))
        with SolverProcess() as solver:
            if self.objective != "latency":
                return PipelineProof(self, graph, cluster, self._goal, solver).placement()
            return Proof(self, graph, cluster, solver).placement()


def model_size(graph: OpGraph, cluster: Cluster) -> int:
    """Pairs whose order the model decides."""
    sends = graph.tensor_count * (cluster.n - 1)
    return graph.n**2 + (0 if cluster.comm == "parallel" else sends**2)


def load_size(graph: OpGraph, cluster: Cluster) -> int:
    """Literals of the model of loads: where units are, and which tensors between them go from where to where."""
    group = groups_of(graph)
    between = np.unique(graph.edge_tensor[group[graph.edge_source] != group[graph.consumers]])
    return int(group.max(initial=-1) + 1) * cluster.n + len(between) * cluster.n * (cluster.n - 1)
