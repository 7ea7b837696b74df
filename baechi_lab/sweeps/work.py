"""Functions that the processes of a sweep run: build the graph of a batch size, and compute one row."""

from __future__ import annotations

import functools

import numpy as np

from ..comparison import ROW_ERRORS, order_of, summary, winner_of
from ..errors import (
    BaechiLabError,
    FormatError,
    InfeasiblePlacement,
    InvalidInput,
    UnknownNameError,
    describe_error,
    in_short,
)
from ..graph import OpGraph, Placement, Step
from ..graph.formats.wire import decode_graph, encode_graph
from ..memo import Memo
from ..pipeline import place_in_groups
from ..stages import Optimize
from .grid import Cell, Placing, Profiling

_decoded = functools.lru_cache(maxsize=2)(decode_graph)
_groups = Memo(4)
"""Rows of one graph follow each other in a process: it is decoded once, and passes group its ops once."""


def model_graph(name: str, batch_size: int | None, profiling: Profiling) -> OpGraph:
    """Returns the graph of a benchmark model at a batch size. Needs TensorFlow."""
    from ..models import build
    from ..profilers import profile

    size = {} if batch_size is None else {"batch_size": batch_size}
    step = build(name, **{**dict(profiling.model_params), **size})
    return profile(step, progress=False, **profiling.options)


def step_graph(step: Step, batch_size: int | None, profiling: Profiling) -> OpGraph:
    """Returns the graph of a step; another batch size requires a step from `bl.models.build`."""
    from ..profilers import profile

    built_from = step.built_from
    if batch_size is None or (built_from is not None and built_from.batch_size == batch_size):
        return profile(step, progress=False, **profiling.options)
    if built_from is None:
        raise InvalidInput(
            f"step {step.name!r} was traced for one batch size; sweep over a model's name, or a function from batch "
            "size to graph, to vary it"
        )
    model_params = {**built_from.params, **dict(profiling.model_params)}
    del model_params["batch_size"]
    model_profiling = Profiling(profiling.mode, profiling.hardware, tuple(model_params.items()))
    return model_graph(built_from.model, batch_size, model_profiling)


def encoded_model_graph(name: str, batch_size: int | None, profiling: Profiling) -> bytes:
    """Returns `model_graph` as bytes for another process."""
    return encode_graph(model_graph(name, batch_size, profiling))


def compute_row(data: bytes, cell: Cell, placing: Placing) -> dict[str, object]:
    """Optimizes, places and simulates one setting; returns its row. Errors become the row's `error`.

    `passing` is True for errors that may not occur again.
    """
    row: dict[str, object] = {**cell.columns, "feasible": False, "error": "", "passing": False}
    try:
        row |= _compute_columns(_decoded(data), cell, placing)
    except ROW_ERRORS as error:
        row["error"] = str(error) if isinstance(error, BaechiLabError) else describe_error(error)
        row["passing"] = is_transient(error)
    return row


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later: not after an error about its inputs.

    A missing package, a timeout, too little memory and a dead process are transient. So are unknown names, which a package
    may add, and damaged files.

    >>> is_transient(InvalidInput("devices is 0")), is_transient(MemoryError())
    (False, True)
    """
    is_determined = isinstance(error, (InfeasiblePlacement, InvalidInput))
    return not is_determined or isinstance(error, (FormatError, UnknownNameError))


def _compute_columns(graph: OpGraph, cell: Cell, placing: Placing) -> dict[str, object]:
    """Places and simulates the graph for one cell of the sweep; returns the columns of its row."""
    from ..placers import place
    from ..simulator import simulate
    from ..simulator.bounds import bounds

    cluster, coarse = cell.cluster, graph
    share = cluster.resized(cluster.n // cell.replicas)
    optimize = Optimize(placing.passes, placing.forward_only)
    if placing.passes:
        coarse, _ = _groups.recall("optimize", optimize, graph, share)
    params = {**cell.placer_arguments, **placing.of(cell.placer)}
    coarse, placement = place_in_groups(
        graph, coarse, share, optimize, lambda groups, devices: place(groups, devices, cell.placer, **params), _groups
    )
    if cell.replicas > 1:
        placement = side_by_side(placement, share.n, cell.replicas)
    timeline = simulate(graph, cluster, placement, placing.scheduler, **cell.pipeline)
    bounded_placement = placement if placement.replicas else None  # other bounds are for one device per op
    bound = bounds(graph, cluster, micro_batches=cell.micro_batches, placement=bounded_placement).best
    columns = {k: v for k, v in summary(timeline).items() if k != "device_peak_bytes"}
    makespan = timeline.makespan_us
    rate = cell.samples / makespan * 1e6 if cell.samples is not None and makespan > 0 else None
    busy = float(timeline.busy_us.sum())
    return {
        **columns,
        "lower_bound_us": bound,
        "gap": makespan / bound - 1.0 if bound > 0 else None,
        "ops": graph.n,
        "groups": coarse.n,
        "finer_groups": placement.finer_groups,
        "op_order": order_of(placement, cell.columns["schedule"] or placing.scheduler),
        "winner": winner_of(placement),
        "samples_per_second": rate,
        "place_seconds": placement.seconds,
        # Without the rounding errors of sums, which make devices busier than the step is long, or idle where they are not.
        "bubble": max(0.0, round(1.0 - busy / (cluster.n * makespan), 9)) if makespan > 0 else None,
    }


def side_by_side(placement: Placement, devices: int, replicas: int) -> Placement:
    """Returns `replicas` copies of a placement on `devices` devices each: each op's stage has that many replicas.

    >>> side_by_side(Placement(device=[0, 1]), 2, 3).replicas
    ((0, 2, 4), (1, 3, 5))
    """
    if placement.replicas:
        raise InvalidInput(
            f"replicas is {replicas} and the placer has replicas of its own, {in_short(placement.replicas)}; use one of both"
        )
    used = np.unique(placement.device).tolist()
    return placement.replace(replicas=[tuple(range(d, devices * replicas, devices)) for d in used])
