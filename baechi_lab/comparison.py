"""`compare`: runs several placers on one graph and cluster, and compares each with a lower bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from .checks import check_flag, check_whole, is_list
from .comparison_runs import execution_target, measure_rows, memory_of
from .errors import BaechiLabError, InfeasiblePlacement, InvalidInput, UnknownNameError, describe_error, in_short
from .graph import Cluster, OpGraph, Placement, Step, Timeline
from .graph.arguments import check_records
from .graph.step import native_name
from .graph.units import format_us
from .memo import Memo
from .pipeline import place_in_groups
from .simulator.runtime_peaks import notes_on_runtime_peaks
from .stages import Optimize, Simulate
from .step_summary import (
    AT_THE_BOUND,
    against_one_device,
    note_on_bound,
    note_on_native,
    notes_on,
    one_device,
    speedup_of,
    too_coarse,
)

if TYPE_CHECKING:
    import pandas

    from .executors import LocalCluster
    from .placers import Placer
    from .simulator.schedulers import SchedulerOption
    from .simulator.schedules import ScheduleOption

DEFAULT_PLACERS = ("auto", "single", "m-topo", "m-etf", "m-sct")

ROW_ERRORS = (BaechiLabError, ArithmeticError, LookupError, MemoryError, RuntimeError, ValueError)
"""Errors of a placer that become the text of its row instead of ending the comparison."""

COLUMNS = tuple(
    (
        "placer makespan_us speedup lower_bound_us gap feasible peak_bytes device_peak_bytes moved_bytes transfers balance "
        "place_seconds measured_us measured_low_us measured_high_us error one_device_us winner peak_parts "
        "measured_peak_bytes measured_device_peak_bytes measured_peak_parts peak_margin"
    ).split()
)


def compare(
    graph: OpGraph,
    cluster: Cluster | LocalCluster,
    placers: Iterable[object] | None = None,
    *,
    passes: Sequence[object] | None = None,
    forward_only: bool | str = "auto",
    scheduler: SchedulerOption | None = None,
    micro_batches: int | None = None,
    schedule: ScheduleOption | None = None,
    batch_size: int | None = None,
    step: Step | None = None,
    measure: bool = False,
    steps: int = 20,
    native: bool | str = False,
    backend: str | None = None,
    workers: Sequence[str] = (),
    params: Mapping[str, Mapping[str, object]] | None = None,
    progress: bool = True,
    **common: object,
) -> pandas.DataFrame:
    """Places `graph` with every placer and simulates the result; one row per placer, in the order given.

    Args:
        graph, cluster: as in `bl.place`; a `bl.LocalCluster` is measured on its workers.
        placers: names, placer objects, or `(name, parameters)`; by default auto, single, m-topo, m-etf and m-sct.
        params: parameters by placer name.
        common: keywords that are left over (`seed=0`, `time_limit=5`) go to the placers that have such a parameter.
        passes, forward_only: with passes, for example `("colocation", "coplacement", "fusion")`, the graph is optimized
            first as in `bl.optimize`; groups are placed, the original graph is simulated. Where no placement of groups
            fits, smaller groups are placed, or single ops, and a note says so. `()` places the graph as it is. None is those
            three where `placers` is not given either, else `()`.
        scheduler, micro_batches, schedule: as in `bl.simulate`; with micro-batches `graph` is one of them. Placers with
            parameters of these names get them, and `objective="step"` where they know it.
        batch_size: samples of a whole step, which `micro_batches` must divide; adds the column `samples_per_second`.
        step, measure, steps: with `measure=True` every feasible placement of `step` is also run for `steps` steps, all
            of them in turns.
        native: also measure `step` undivided, as its framework runs it (see `bl.execute`): a row for each way behind those of
            the placers, `native (tf.function)`, `native (Keras train_step)`, `native (eager)`, `native (torch.compile)`, and
            the column `native_ratio`. It includes `measure=True`.
        backend, workers: where, as in `bl.execute`: on the attached devices, or on the TensorFlow servers at `workers`,
            whose devices `cluster` then names.
        progress: show a progress bar.

    Returns:
        A table with a row per placer. `table.attrs["notes"]` has sentences without which the table would mislead. Columns:

            - `makespan_us`: the simulated step.
            - `speedup`: `one_device_us / makespan_us`; above 1 is faster than one device.
            - `one_device_us`: the step of one device alone, whether or not it fits there.
            - `lower_bound_us`: no placement of the original graph is faster; with replicas, no schedule of that placement is.
            - `gap`: `makespan_us / lower_bound_us - 1`.
            - `feasible`: whether no rule is broken.
            - `peak_bytes`, `device_peak_bytes`: of the fullest device, and of each.
            - `peak_parts`: persistent, outputs, temporary and received bytes of the fullest device at its peak.
            - `moved_bytes`, `transfers`: between devices.
            - `balance`: mean over largest busy time of the devices; 1 is perfect.
            - `place_seconds`: what the placer took.
            - `winner`: whose answer `auto` took.
            - `error`: why a row has no placement, is not feasible or did not run.
            - `measured_us`, `measured_low_us`, `measured_high_us`: the median measured step with its 95 % interval; or NaN.
            - `measured_peak_bytes`, `measured_device_peak_bytes`, `measured_peak_parts`: of one traced step, if a placement
              ran (what is not simulated: docs/peaks.md).
            - `native_ratio`, with `native`: `measured_us` over that of the fastest native row.

    Raises:
        UnknownNameError: a placer or parameter that does not exist; what goes wrong while a placer works is a row.

    >>> from baechi_lab import Link
    >>> graph = OpGraph.from_edges([5, 10, 10, 5], [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1)])
    >>> cluster = Cluster.uniform(2, link=Link(4.0, 0.0))
    >>> compare(graph, cluster, ["single"])[["placer", "makespan_us", "lower_bound_us"]].values.tolist()
    [['single', 30.0, 24.0]]
    """
    from tqdm.auto import tqdm

    from .executors.native import native_runners
    from .passes.optimize import PASSES
    from .passes.unroll import micro_batch_size
    from .simulator.pipelined_graph import pipeline_options

    measure = _check_measuring(measure, native, step, steps, backend, workers)
    progress = check_flag("progress", progress)
    if passes is not None and not is_list(passes):
        raise InvalidInput(f"passes is {in_short(passes)}; it must be a list of passes")
    if params is not None and not isinstance(params, Mapping):
        raise InvalidInput(f"params is {in_short(params)}; it must map names of placers to their parameters")
    cluster, local = _record_and_workers(cluster)
    check_records(graph=graph, cluster=cluster)
    Simulate(scheduler)  # refuses an unknown name here, not in every row
    if batch_size is not None:
        micro_batch_size(batch_size, 1 if micro_batches is None else micro_batches)
    pipeline = pipeline_options(micro_batches, schedule)
    labelled_placers = _make_placers(DEFAULT_PLACERS if placers is None else placers, params or {}, pipeline, common)
    if passes is None:
        passes = PASSES if placers is None and micro_batches is None else ()
    memo, optimize = Memo(), Optimize(tuple(passes), forward_only)
    groups = memo.recall("optimize", optimize, graph, cluster)[0] if optimize.passes else graph
    alone = one_device(graph, cluster, **pipeline)
    bound = _lower_bound(graph, cluster, pipeline.get("micro_batches"))
    rows: list[dict[str, object]] = []
    runnable: dict[int, Placement] = {}
    finer: list[str] = []
    runtime_notes: list[str] = []
    bar = tqdm(labelled_placers, disable=not progress, leave=False, unit="placer")
    for label, placer in bar:
        bar.set_description(f"placing with {label}"[:40])  # before it starts: a search takes long
        _compile_kernels(placer)
        row, placement = _simulate_row(graph, groups, cluster, placer, scheduler, pipeline, optimize, memo)
        if placement is not None and placement.finer_groups:
            finer.append(f"{label}: {placement.finer_groups}")
        if placement is not None and row["feasible"]:
            runnable[len(rows)] = placement
            runtime_notes += [f"{label}: {sentence}" for sentence in row["runtime_notes"]]
        rows.append({"placer": label, "lower_bound_us": bound, **row})
    placer_rows = len(rows)
    if measure and step is not None:
        runners = native_runners(
            step, native, placements=list(runnable.values()), micro_batches=pipeline.get("micro_batches")
        )
        rows += [{"placer": native_name(method), "feasible": True, "winner": ""} for method in runners]
        execute_options = {**execution_target(cluster, local, backend, workers), **pipeline}
        native_rows = dict(enumerate(runners.values(), start=placer_rows))
        for k, columns in measure_rows(graph, step, runnable, steps, execute_options, progress, native_rows).items():
            rows[k] |= columns
    table = table_of(rows, batch_size, float("nan") if alone is None else alone.makespan_us)
    notes = notes_on(table[:placer_rows], graph, groups, cluster)
    if too_coarse(graph, groups, cluster):
        notes += _note_on_single_ops(graph, cluster, table[:placer_rows], scheduler, pipeline)
    table.attrs["notes"] = notes + (*finer, *runtime_notes) + note_on_bound(table[:placer_rows], graph)
    if native:
        fastest = table["measured_us"][placer_rows:].min()
        table["native_ratio"] = table["measured_us"] / fastest
        table.attrs["notes"] += note_on_native(table[:placer_rows], table[placer_rows:])
    return table


def _record_and_workers(cluster: Cluster | LocalCluster) -> tuple[Cluster, LocalCluster | None]:
    """Returns the record of a cluster, and the running workers of a `bl.LocalCluster`."""
    if isinstance(cluster, Cluster):
        return cluster, None
    record = getattr(cluster, "cluster", None)
    if not isinstance(record, Cluster):
        raise InvalidInput(f"cluster is a {type(cluster).__name__}; give a bl.Cluster or a running bl.LocalCluster")
    return record, cluster


def table_of(rows: Sequence[Mapping[str, object]], batch_size: int | None, one_device_us: float) -> pandas.DataFrame:
    """Returns the rows as a table, with the columns that follow from others."""
    import pandas as pd

    table = pd.DataFrame(rows, columns=list(COLUMNS))
    if batch_size is not None:
        table["samples_per_second"] = batch_size * 1e6 / table["makespan_us"].where(table["makespan_us"] > 0)
    table["gap"] = table["makespan_us"] / table["lower_bound_us"].where(table["lower_bound_us"] > 0) - 1.0
    table["one_device_us"] = one_device_us
    table["speedup"] = speedup_of(table)
    table["winner"] = [row.get("winner", "") for row in rows]
    return table


def _note_on_single_ops(
    graph: OpGraph,
    cluster: Cluster,
    table: pandas.DataFrame,
    scheduler: SchedulerOption | None,
    pipeline: Mapping[str, Any],
) -> tuple[str, ...]:
    """Returns a note on the step whose single ops `m-etf` places, if that step is shorter than every row that fits."""
    from .placers import place
    from .simulator import simulate

    try:
        timeline = simulate(graph, cluster, place(graph, cluster, "m-etf"), scheduler, **pipeline)
    except ROW_ERRORS:
        return ()
    shortest_us = table["makespan_us"][table["feasible"].astype(bool)].astype(float).min()
    if not timeline.feasible or timeline.makespan_us >= shortest_us * (1 - AT_THE_BOUND):
        return ()
    words = against_one_device(timeline.makespan_us, float(table["one_device_us"].iloc[0]))
    return (
        f"placed one by one (passes=(), --no-optimize), ops take {format_us(timeline.makespan_us)} with m-etf, {words}",
    )


def _check_measuring(
    measure: bool, native: bool | str, step: Step | None, steps: int, backend: str | None, workers: Sequence[str]
) -> bool:
    """Checks the arguments on real runs; returns whether placements are run."""
    if native is not None and not isinstance(native, (bool, str)):
        raise InvalidInput(f"native is {in_short(native)}; it must be True, False or the name of a way to run the step")
    measure = check_flag("measure", measure) or native not in (False, None)
    if not isinstance(workers, (list, tuple)):
        raise InvalidInput(f"workers is {in_short(workers)}; it must be a list of addresses")
    if not measure and (backend is not None or workers):
        raise InvalidInput(
            f"backend={in_short(backend)} and workers={in_short(list(workers))} say where to measure; give measure=True"
        )
    if measure and step is None:
        argument = f"native={in_short(native)}" if native else "measure=True"
        raise InvalidInput(f"{argument} needs the step to run: give step=, as bl.trace or bl.models.build returned it")
    if measure:
        check_whole("steps", steps)
    return measure


def _make_placers(
    placers: Iterable[Any],
    params: Mapping[str, Mapping[str, object]],
    pipeline: Mapping[str, object],
    common: Mapping[str, object],
) -> list[tuple[str, Placer]]:
    """Returns a label and a validated placer per row; raises for unknown names before anything runs."""
    from .placers.registry import make_placer, pipeline_parameters, placer_class

    if isinstance(placers, str):
        raise InvalidInput(f"placers is the text {placers!r}; it must be a list, for example [{placers!r}]")
    if not is_list(placers):
        raise InvalidInput(f"placers is {in_short(placers)}; it must be a list of placers")
    objects: list[Placer] = []
    for entry in placers:
        if isinstance(entry, str) or (isinstance(entry, tuple) and len(entry) == 2):
            name, placer_params = (entry, {}) if isinstance(entry, str) else entry
            placer_fields = placer_class(name).__dataclass_fields__
            common_params = {key: value for key, value in common.items() if key in placer_fields}
            pipeline_params = pipeline_parameters(name, pipeline)
            if not isinstance(params.get(name, {}), Mapping):
                raise InvalidInput(
                    f"params of {name!r} is {in_short(params[name])}; it must be a mapping of its parameters"
                )
            objects.append(
                make_placer(name, **{**pipeline_params, **common_params, **params.get(name, {}), **placer_params})
            )
        else:
            objects.append(make_placer(entry))
    # A seed or time limit may be given whether or not one of these placers has a use for it.
    _check_used(
        "parameter",
        set(common) - {"seed", "time_limit"},
        [key for placer in objects for key in placer.get_params()],
    )
    _check_used("placer in params:", params, [placer.name for placer in objects])
    count = Counter(placer.name for placer in objects)
    return [(p.name if count[p.name] == 1 else repr(p), p) for p in objects]


def _check_used(kind: str, names: Iterable[str], known_names: Iterable[str]) -> None:
    for name in names:
        if name not in set(known_names):
            raise UnknownNameError.of(kind, name, set(known_names))


def _lower_bound(
    graph: OpGraph,
    cluster: Cluster,
    micro_batches: int | None = None,
    schedule: ScheduleOption | None = None,
    placement: Placement | None = None,
) -> float:
    """Returns the best lower bound in microseconds; NaN if some op has no allowed device. It holds for every `schedule`."""
    from .simulator.bounds import bounds

    try:
        return bounds(graph, cluster, micro_batches=micro_batches, placement=placement).best
    except InfeasiblePlacement:  # every row will say why
        return float("nan")


def _compile_kernels(placer: Placer) -> None:
    """Places three ops, so that numba compiles the placer's kernels now and not while the placer is timed."""
    if getattr(placer, "anytime", False):
        return  # would search on for its whole time limit
    with suppress(*ROW_ERRORS):  # the row will say it
        placer.assign(OpGraph.from_edges([1.0, 1.0, 1.0], [(0, 1, 8), (0, 2, 8)]), Cluster.uniform(2))


def _simulate_row(
    graph: OpGraph,
    prepared_graph: OpGraph,
    cluster: Cluster,
    placer: Placer,
    scheduler: SchedulerOption | None,
    pipeline: Mapping[str, Any],
    optimize: Optimize,
    memo: Memo,
) -> tuple[dict[str, Any], Placement | None]:
    """Places `prepared_graph` or smaller groups, simulates `graph`; returns the columns of its row and the placement, if any."""
    from .placers import place
    from .simulator import simulate

    try:
        _, placement = place_in_groups(
            graph, prepared_graph, cluster, optimize, lambda groups, devices: place(groups, devices, placer), memo
        )
        if placement.interrupted:  # an anytime placer takes Ctrl-C for the end of its search
            raise KeyboardInterrupt
        timeline = simulate(graph, cluster, placement, scheduler, **pipeline)
    except ROW_ERRORS as error:
        text = str(error) if isinstance(error, BaechiLabError) else describe_error(error)
        return {"feasible": False, "error": text}, None
    row = {**summary(timeline), "place_seconds": placement.seconds, "winner": winner_of(placement)}
    if placement.replicas:
        row["lower_bound_us"] = _lower_bound(graph, cluster, placement=placement, **pipeline)
    return row, placement


def winner_of(placement: Placement) -> str:
    """Returns the placer whose answer a portfolio took; empty for other placers."""
    return str(placement.info.get("winner", ""))


def order_of(placement: Placement, scheduler: object = None) -> str:
    """Names the order in which devices work: a schedule or scheduler, the order that `auto` chose, or the placement's own.

    >>> order_of(Placement(device=[0])), order_of(Placement(device=[0]), "pct")
    ('fifo', 'pct')
    """
    return str(scheduler or placement.info.get("winner_scheduler") or ("fifo" if placement.rank is None else "planned"))


def summary(timeline: Timeline) -> dict[str, object]:
    """Returns the columns of a row that come from its timeline."""
    busiest = float(timeline.busy_us.max(initial=0.0))
    return {
        "makespan_us": timeline.makespan_us,
        "feasible": timeline.feasible,
        **memory_of(timeline),
        "moved_bytes": timeline.moved_bytes,
        "peak_margin": float(timeline.peak_margin.max(initial=0.0)),
        "runtime_notes": notes_on_runtime_peaks(timeline),
        "transfers": len(timeline.transfers),
        "balance": float(np.mean(timeline.busy_us)) / busiest if busiest > 0 else 1.0,
        "error": timeline.violations[0].message if timeline.violations else "",
    }
