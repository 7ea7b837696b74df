"""The measured columns of `compare`: all placements run on real devices in alternating order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import BaechiLabError
from .graph import Cluster, NativeRun, OpGraph, Placement, Run, Step, Timeline

if TYPE_CHECKING:
    from .executors import LocalCluster
    from .executors.native import NativeRunner

ROUNDS = 3
"""Rounds over which the steps of every placement are spread, so that a drift of the machine affects all alike."""

NOT_MEASURED = {"measured_us": float("nan"), "measured_low_us": float("nan"), "measured_high_us": float("nan")}


def execution_target(
    cluster: Cluster, local: LocalCluster | None, backend: str | None, workers: Sequence[str]
) -> dict[str, object]:
    """Returns the options of `bl.execute` for a running cluster, TensorFlow servers or the attached devices."""
    if local is not None:
        return {"cluster": local, "backend": backend}
    if workers or backend == "tensorflow-cluster":
        return {"cluster": cluster, "backend": backend, "workers": tuple(workers)}
    return {"backend": backend}


def measure_rows(
    graph: OpGraph,
    step: Step,
    placements: Mapping[int, Placement],
    steps: int,
    execute_options: Mapping[str, Any],
    progress: bool,
    native: Mapping[int, NativeRunner] | None = None,
) -> dict[int, dict[str, object]]:
    """Columns by row: median step in microseconds with its 95 % bootstrap interval, or the error that ended it.

    `steps` are spread over up to three rounds, whose order turns; what fails in one round does not run again. `native` are
    rows that the framework runs in its own way, see `baechi_lab.executors.native`.
    """
    from tqdm.auto import tqdm

    rounds = max(1, min(ROUNDS, steps))
    native_runners = native or {}
    rows = [*placements, *native_runners]
    seconds: dict[int, list[NDArray[np.float64]]] = {row: [] for row in rows}
    error_of_row: dict[int, str] = {}
    memory_columns: dict[int, dict[str, object]] = {}
    bar = tqdm(total=rounds * len(rows), desc="measuring", delay=1, disable=not progress, leave=False)
    with bar, _Runner(graph, step, execute_options) as run:
        for round_index in range(rounds):
            for row in rows[:: 1 if round_index % 2 == 0 else -1]:
                bar.update()
                if row in error_of_row:
                    continue
                count = (steps + round_index) // rounds
                try:
                    run_of_row: Run | NativeRun
                    run_of_row = native_runners[row](count) if row in native_runners else run(placements[row], count)
                except BaechiLabError as error:
                    error_of_row[row] = str(error)
                    continue
                seconds[row].append(run_of_row.step_seconds)
                if isinstance(run_of_row, Run) and run_of_row.timeline is not None and row not in memory_columns:
                    memory_columns[row] = memory_of(run_of_row.timeline, "measured_")
                if run_of_row.status != "ok":
                    error_of_row[row] = run_of_row.message or run_of_row.status
    return {row: _time_columns(seconds[row], error_of_row.get(row, "")) | memory_columns.get(row, {}) for row in rows}


def memory_of(timeline: Timeline, prefix: str = "") -> dict[str, object]:
    """Returns the peak of the fullest device, the peak of each device, and what the fullest held at its peak."""
    peaks = timeline.peak_bytes
    fullest = int(peaks.argmax()) if len(peaks) else 0
    return {
        f"{prefix}peak_bytes": int(peaks.max(initial=0)),
        f"{prefix}device_peak_bytes": peaks.tolist(),
        f"{prefix}peak_parts": timeline.peak_parts(fullest),
    }


def device_memory(timeline: Timeline) -> list[dict[str, Any]]:
    """Returns the peak of every device that held anything, by category."""
    return [
        {"device": name, "peak_bytes": int(timeline.peak_bytes[d]), "parts": timeline.peak_parts(d)}
        for d, name in enumerate(timeline.device_names)
        if timeline.peak_bytes[d]
    ]


class _Runner:
    """Runs placements of one step; TensorFlow steps share one worker process as long as it lives."""

    def __init__(self, graph: OpGraph, step: Step, execute_options: Mapping[str, Any]) -> None:
        self._graph, self._step, self._execute_options = graph, step, dict(execute_options)
        self._worker: Any = None
        self._traced: list[Placement] = []

    def __call__(self, placement: Placement, steps: int) -> Run:
        from .executors import Worker, execute

        if getattr(self._step, "framework", "tensorflow") == "torch":
            return execute(self._step, placement, steps, **self._execute_options)
        if self._worker is None or not self._worker.alive:
            self._close()
            self._worker = Worker()
        # The traced step of a placement's first round gives its memory.
        traced_before = any(placement is earlier for earlier in self._traced)
        self._traced += [] if traced_before else [placement]
        return execute(
            self._step,
            placement,
            steps,
            traced=int(not traced_before),
            graph=self._graph,
            worker=self._worker,
            progress=False,
            **self._execute_options,
        )

    def _close(self) -> None:
        with self._worker if self._worker is not None else nullcontext():
            self._worker = None

    def __enter__(self) -> _Runner:
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()


def _time_columns(seconds: Sequence[NDArray[np.float64]], error: str) -> dict[str, object]:
    from .executors import summarize

    series = np.concatenate(seconds) if seconds else np.zeros(0)
    if not len(series):
        return {**NOT_MEASURED, "error": error}
    interval = summarize(series)
    times = {"measured_us": interval.median, "measured_low_us": interval.low, "measured_high_us": interval.high}
    return {**{key: value * 1e6 for key, value in times.items()}, "error": error}
