"""Seconds per step of sampled placements: simulated in parallel, measured by running them, or computed by an executor.

The simulated reward is compiled code without the interpreter lock, first in first out as TensorFlow runs ready ops, in one
thread per core: samples / workers simulations of O(ops + edges) each. `ExecutorReward` sends samples to
any `concurrent.futures.Executor`, on this machine or on others, as sweeps send their rows.

One compiled call simulates many placements of one graph. A simulation follows memory only if some placement may exceed a
device's memory.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...errors import ExecutionError, InfeasiblePlacement, InvalidInput
from ...frameworks import framework_part
from ...graph import Cluster, OpGraph, Placement, Step
from ...graph.formats.wire import decode_graph, encode_graph
from ...graph.kernels.csr import Integers
from ...graph.kernels.jit import njit
from ...graph.placement import with_keys_of
from ..evaluation.assignment import Assignment, Limits, positions
from ..evaluation.evaluate import evaluate, overflow
from ..evaluation.model import Model, make_model, memory_matters
from ..evaluation.work import Work, make_work


class Batch:
    """Evaluates placements of `graph` on `cluster`. One object serves one thread at a time.

    >>> from baechi_lab import Link
    >>> graph = OpGraph.from_edges([2e6, 3e6, 1e6], [(0, 2, 8), (1, 2, 8)])
    >>> batch = Batch(graph, Cluster.uniform(2, memory_bytes=100, link=Link(5e5, 0.0)))
    >>> batch.seconds(np.array([[0, 0, 0], [0, 1, 1]], dtype=np.int32)).tolist()
    [6.0, 4.0]
    """

    def __init__(self, graph: OpGraph, cluster: Cluster):
        self.model = make_model(graph, cluster)
        self.order = positions(None, graph.n)  # read by nobody, as ops run first in, first out
        self.work, self.limits = make_work(self.model), Limits(memory_matters(self.model), np.inf, 0.0)

    def for_another_thread(self) -> Batch:
        """Returns a copy for another thread, with its own scratch space."""
        batch = object.__new__(Batch)
        batch.__dict__.update(self.__dict__)
        batch.work = make_work(self.model)
        return batch

    def seconds(self, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """Returns the step times float64[s], in seconds, of `s` placements `rows` int32[s, n].

        A placement that exceeds a device's memory takes infinitely long.
        """
        result = np.empty(len(rows))
        _seconds(self.model, self.work, np.ascontiguousarray(rows, dtype=np.int32), *self.order, self.limits, result)
        return result


@njit(cache=True, nogil=True)
def _seconds(
    model: Model,
    work: Work,
    rows: NDArray[np.int32],
    position: NDArray[np.int32],
    at: NDArray[np.int32],
    limits: Limits,
    result: NDArray[np.float64],
) -> None:
    """Fill `result` as `Batch.seconds` returns it."""
    for k in range(len(rows)):
        time_us = evaluate(model, work, Assignment(rows[k], position, at, False), limits)
        result[k] = 1e-6 * time_us if not limits.track or overflow(model, work) == 0 else np.inf


Reward = Callable[[NDArray[np.int32]], NDArray[np.float64]]
"""Devices int32[samples, n] -> float64[samples] seconds per step, infinite where the placement is not valid."""


class SimulatedReward:
    """Simulated step times on `workers` threads (default: one per core).

    >>> from baechi_lab import Cluster, OpGraph
    >>> reward = SimulatedReward(OpGraph.from_edges([2e6, 3e6]), Cluster.uniform(2, memory_bytes=100))
    >>> reward(np.array([[0, 0], [0, 1]])).tolist()
    [5.0, 3.0]
    """

    def __init__(self, graph: OpGraph, cluster: Cluster, workers: int | None = None):
        self.workers = workers or os.cpu_count() or 1
        self.batch = Batch(graph, cluster)
        self.of_thread = threading.local()  # of each thread, since scratch space must not be shared
        self.pool = ThreadPoolExecutor(self.workers) if self.workers > 1 else None

    def __call__(self, devices: Integers) -> NDArray[np.float64]:
        rows = np.ascontiguousarray(devices, dtype=np.int32)
        if self.pool is None or len(rows) < 2:
            return self._simulate_part(rows)
        row_blocks = np.array_split(rows, min(self.workers, len(rows)))
        return np.concatenate(list(self.pool.map(self._simulate_part, row_blocks)))

    def _simulate_part(self, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        if not hasattr(self.of_thread, "batch"):
            self.of_thread.batch = self.batch.for_another_thread()
        seconds: NDArray[np.float64] = self.of_thread.batch.seconds(rows)
        return seconds


class MeasuredReward:
    """Step times in seconds that `run(placement)` returns; infinity where it raises an error of memory or execution."""

    def __init__(self, graph: OpGraph, run: Callable[[Placement], float]):
        self.graph, self.run = graph, run

    def __call__(self, devices: Integers) -> NDArray[np.float64]:
        return np.array([self._one(row) for row in devices], dtype=np.float64)

    def _one(self, device: Integers) -> float:
        placement = with_keys_of(self.graph, Placement(device=device, placer="hierarchical"))
        try:
            seconds = self.run(placement)
        except (InfeasiblePlacement, ExecutionError):
            return float("inf")
        if not isinstance(seconds, (int, float, np.number)) or not seconds >= 0:
            raise InvalidInput(f"reward returned {seconds!r} seconds; it must be a number of at least 0, or infinity")
        return float(seconds)


class Job:
    """The reward function for another process: sent with every request, prepared once per `key`."""

    def __init__(self, make: Callable[..., Reward], graph: OpGraph, *arguments: object):
        self.make, self.arguments, self.key = make, arguments, uuid.uuid4().hex
        self.graph = encode_graph(graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@lru_cache(maxsize=4)
def _ready_for(job: Job) -> Reward:
    return job.make(decode_graph(job.graph), *job.arguments)


def answer(job: Job, rows: NDArray[np.int32]) -> NDArray[np.float64]:
    """Returns the seconds per step of `rows` int32[s, n], computed in this process."""
    return _ready_for(job)(rows)


def execute_here(graph: OpGraph, step: Step, cluster: Cluster, steps: int, warmup: int) -> Reward:
    """Makes the reward of a `Job` that runs the step on the worker's machine."""
    return MeasuredReward(graph, framework_part("executors", "tensorflow").step_timer(step, cluster, steps, warmup))


class ExecutorReward:
    """Step times from the workers of `executor`; each call sends its samples in up to `part_count` parts (None: one by one).

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> job = Job(SimulatedReward, OpGraph.from_edges([2e6, 3e6]), Cluster.uniform(2, memory_bytes=100), 1)
    >>> with ThreadPoolExecutor(2) as pool:
    ...     ExecutorReward(pool, job, 2)(np.array([[0, 0], [0, 1], [1, 1]])).tolist()
    [5.0, 3.0, 5.0]
    """

    def __init__(self, executor: Executor, job: Job, part_count: int | None):
        self.executor, self.job, self.part_count = executor, job, part_count

    def __call__(self, devices: Integers) -> NDArray[np.float64]:
        rows = np.ascontiguousarray(devices, dtype=np.int32)
        row_blocks = np.array_split(rows, min(self.part_count or len(rows), len(rows)))
        futures = [self.executor.submit(answer, self.job, block) for block in row_blocks]
        try:
            return np.concatenate([future.result() for future in futures])
        finally:
            for future in futures:  # after an error, or when interrupted
                future.cancel()
