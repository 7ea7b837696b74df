"""The measured columns of `compare`: every placement runs on real devices, in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import BaechiLabError, InvalidInput
from .graph import Cluster, NativeRun, OpGraph, Placement, Run, Step, Timeline

if TYPE_CHECKING:
    from .executors import LocalCluster
    from .executors.native_runner import NativeRunner

ROUNDS = 3
"""Turns in which the steps of every placement run, so that a drift of the machine meets all placements."""

NOT_MEASURED = {"measured_us": float("nan"), "measured_low_us": float("nan"), "measured_high_us": float("nan")}


def split_cluster(cluster: Cluster | LocalCluster) -> tuple[Cluster, LocalCluster | None]:
    """The record to simulate, and the running cluster where one was given."""
    if isinstance(cluster, Cluster):
        return cluster, None
    record = getattr(cluster, "cluster", None)
    if not isinstance(record, Cluster):
        raise InvalidInput(f"cluster is a {type(cluster).__name__}; give a bl.Cluster or a running bl.LocalCluster")
    return record, cluster


def where_to_run(
    cluster: Cluster, local: LocalCluster | None, backend: str | None, workers: Sequence[str]
) -> dict[str, Any]:
    """The options of `bl.execute` that say where: a running cluster, TensorFlow servers, else the attached devices."""
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
    where: Mapping[str, Any],
    progress: bool,
    native: Mapping[int, NativeRunner] | None = None,
) -> dict[int, dict[str, Any]]:
    """Columns by row: median step in microseconds with its 95 % bootstrap interval, or the error that ended it.

    `steps` are spread over up to three rounds, whose order turns; what fails in one round does not run again. `native` are
    rows that the framework runs in its own way, see `baechi_lab.executors.native`.
    """
    from tqdm.auto import tqdm

    rounds = max(1, min(ROUNDS, steps))
    ways = native or {}
    rows = [*placements, *ways]
    seconds: dict[int, list[Any]] = {row: [] for row in rows}
    failed: dict[int, str] = {}
    held: dict[int, dict[str, Any]] = {}
    bar = tqdm(total=rounds * len(rows), desc="measuring", delay=1, disable=not progress, leave=False)
    with bar, _Runner(graph, step, where) as run:
        for turn in range(rounds):
            for row in rows[:: 1 if turn % 2 == 0 else -1]:
                bar.update()
                if row in failed:
                    continue
                count = (steps + turn) // rounds
                try:
                    done: Run | NativeRun
                    done = ways[row](count) if row in ways else run(placements[row], count)
                except BaechiLabError as error:
                    failed[row] = str(error)
                    continue
                seconds[row].append(done.step_seconds)
                if isinstance(done, Run) and done.timeline is not None and row not in held:
                    held[row] = memory_of(done.timeline, "measured_")
                if done.status != "ok":
                    failed[row] = done.message or done.status
    return {row: _columns(seconds[row], failed.get(row, "")) | held.get(row, {}) for row in rows}


def memory_of(timeline: Timeline, prefix: str = "") -> dict[str, Any]:
    """Columns of a timeline's peaks: of the fullest device, of each, and what the fullest held at its peak."""
    peaks = timeline.peak_bytes
    fullest = int(peaks.argmax()) if len(peaks) else 0
    return {
        f"{prefix}peak_bytes": int(peaks.max(initial=0)),
        f"{prefix}device_peak_bytes": peaks.tolist(),
        f"{prefix}peak_parts": timeline.peak_parts(fullest),
    }


def device_memory(timeline: Timeline) -> list[dict[str, Any]]:
    """The peak of every device that held anything, with its parts."""
    return [
        {"device": name, "peak_bytes": int(timeline.peak_bytes[d]), "parts": timeline.peak_parts(d)}
        for d, name in enumerate(timeline.device_names)
        if timeline.peak_bytes[d]
    ]


class _Runner:
    """Runs placements of one step; TensorFlow steps share one worker process as long as it lives."""

    def __init__(self, graph: OpGraph, step: Step, where: Mapping[str, Any]) -> None:
        self._graph, self._step, self._where = graph, step, dict(where)
        self._worker: Any = None
        self._traced: list[Placement] = []

    def _first(self, placement: Placement) -> int:
        """One traced step in the first turn of a placement, for what it holds in memory."""
        known = any(placement is earlier for earlier in self._traced)
        self._traced += [] if known else [placement]
        return int(not known)

    def __call__(self, placement: Placement, steps: int) -> Run:
        from .executors import Worker, execute

        if getattr(self._step, "framework", "tensorflow") == "torch":
            return execute(self._step, placement, steps, **self._where)
        if self._worker is None or not self._worker.alive:
            self._close()
            self._worker = Worker()
        return execute(
            self._step,
            placement,
            steps,
            traced=self._first(placement),
            graph=self._graph,
            worker=self._worker,
            progress=False,
            **self._where,
        )

    def _close(self) -> None:
        with self._worker if self._worker is not None else nullcontext():
            self._worker = None

    def __enter__(self) -> _Runner:
        return self

    def __exit__(self, *ended: object) -> None:
        self._close()


def _columns(seconds: Sequence[Any], error: str) -> dict[str, Any]:
    from .executors import summarize

    series = np.concatenate(seconds) if seconds else np.zeros(0)
    if not len(series):
        return {**NOT_MEASURED, "error": error}
    found = summarize(series)
    times = {"measured_us": found.median, "measured_low_us": found.low, "measured_high_us": found.high}
    return {**{key: value * 1e6 for key, value in times.items()}, "error": error}
