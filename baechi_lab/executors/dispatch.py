"""`bl.execute`: one front for the frameworks that can run a placed step."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypedDict

from ..checks import check_timeout
from ..frameworks import framework_of, framework_part, options_of
from ..graph import Cluster, OpGraph, Placement, Run, Step
from ..graph.arguments import check_placed_step
from .native import NativeRunner, Stop, native_runners

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..simulator.schedules import ScheduleOption
    from ..torch_runtime.transport import HostTransport
    from ..torch_steps.step import TorchStep
    from ..workers.client import Worker
    from .tensorflow.cluster import LocalCluster
    from .tensorflow.execution import StepResult


class TensorFlowOptions(TypedDict, total=False):
    """Options of `bl.execute` for a TensorFlow step.

    traced: steps under a full trace (3); the one of median length becomes the Timeline.
    inputs: one batch, or a list of batches used in turn; None for the example inputs. With micro-batches these are whole
        batches, which are cut.
    backend: `tensorflow`, or `tensorflow-cluster` for TensorFlow servers at the addresses `workers` (host:port, as
        `baechi-lab worker --bind` prints them); None chooses by `cluster` and `workers`.
    workers: see `backend`.
    secret: the file with which the workers were started (`baechi-lab worker --secret`; `bl.make_secret`): everything goes
        through TLS, and both sides prove that they have it.
    virtual, memory_limit: split each GPU into parts with that much memory; without a GPU, `virtual` is the number of
        logical CPU devices.
    kind: `auto` (the default), `cpu` or `gpu`.
    threads: ops that run at a time in the process (default: one per logical CPU device that has ops; each op uses one thread).
    return_variables: put the variables after the last step into `run.info["variables"]`.
    progress: show a progress bar (in notebooks and on terminals); True by default.
    worker: an open `baechi_lab.executors.Worker` to use again, which saves the seconds that TensorFlow takes to start;
        after any status but `ok` it is closed.
    """

    traced: int
    inputs: Sequence[object] | None
    backend: str | None
    workers: Sequence[str]
    secret: str | os.PathLike[str] | None
    virtual: int | None
    memory_limit: int | str | None
    kind: str
    threads: int | None
    return_variables: bool
    progress: bool
    worker: Worker | None


class TorchOptions(TypedDict, total=False):
    """Options of `bl.execute` for a PyTorch step, as `bl.torch.execute` explains them."""

    reorder: str
    devices: list[str] | None
    transport: HostTransport | None
    pipeline: bool | None
    return_gradients: bool


class ExecuteOptions(TensorFlowOptions, TorchOptions, total=False):
    """Options of `bl.execute` for either framework; each rejects those of the other."""


WITHOUT_EFFECT = ("traced", "return_variables", "progress")
"""Options for TensorFlow that a PyTorch step accepts and does not need."""

OPTIONS = {
    "tensorflow": TensorFlowOptions.__annotations__,
    "torch": {*TorchOptions.__annotations__, "kind", *WITHOUT_EFFECT},
}


class Executor(Protocol):
    """Protocol of a framework that runs steps: the functions of `executors/FRAMEWORK/framework.py`."""

    def attached_cluster(self, **options: object) -> Cluster:
        """Returns the devices that the framework sees on this machine."""

    def step_timer(self, step: object, cluster: Cluster, steps: int, warmup: int) -> Callable[[Placement], float]:
        """Returns a function that runs the step under a placement and returns its seconds."""

    def native_runners(
        self, step: object, placement: Placement | None, cluster: Cluster | None, kind: str, inputs: object
    ) -> Mapping[str, NativeRunner]:
        """Returns name -> how the framework itself runs the undivided step."""

    def execute(self, step: object, placement: Placement, steps: int, **options: object) -> Run:
        """Runs the placed step; the options of `bl.execute` but `native`, and those of the framework."""


def execute(
    step: Step | TorchStep,
    placement: Placement,
    steps: int = 20,
    *,
    warmup: int = 3,
    cluster: Cluster | LocalCluster | None = None,
    graph: OpGraph | None = None,
    timeout: float | None = None,
    on_step: Callable[[StepResult], None] | None = None,
    cancel: threading.Event | None = None,
    micro_batches: int | None = None,
    schedule: ScheduleOption | None = None,
    reduction: str | None = None,
    native: bool | str = False,
    **options: Unpack[ExecuteOptions],
) -> Run:
    """Runs a placed training step on real devices, and measures it.

    A TensorFlow step runs in a separate process: `warmup` steps, then some under a full trace, then `steps` measured
    ones. The traced step of median length becomes the Timeline. If the process crashes, runs out of memory or hangs, the
    caller gets a Run with what was measured so far. Ctrl-C ends the process and is raised as usual. `bl.torch.execute`
    explains how a PyTorch step runs.

    Args:
        step: what `bl.trace` returned, or a `bl.torch.TorchStep`.
        placement: of the step's graph, or of a coarse graph of it.
        steps, warmup: how many steps of each sort.
        cluster: names the devices. None: attached GPUs (split when there are too few), else logical CPU devices.
            A `bl.LocalCluster` runs on its workers.
        graph: the graph that the placement was made for, when it is not the one that `bl.profile(step)` makes.
        timeout: seconds for everything, starting the process included; then status `timeout`.
        on_step: called with a `StepResult` after every step.
        cancel: an event that, once set, ends the run with status `cancelled`.
        micro_batches: the step consists of so many, each one run of `step`, whose placement holds for all; the run is of
            `bl.unroll(graph, micro_batches)`, and its Timeline lies beside that of `bl.simulate` with the same arguments.
            None runs `step` as it is. A PyTorch step is the whole batch, which is cut, its placement one of a
            micro-batch's graph; see `bl.torch.execute`.
        schedule: as in `bl.simulate`: devices work in its order. None lets them take what is ready. Give as `graph` the
            profile of the simulation, so that a schedule that depends on durations is the same.
        reduction: "mean" or "sum": how the loss adds up over samples, so that the step is the undivided batch's. None finds
            out, from the graph of a TensorFlow step and from a PyTorch step's loss; a loss that is neither is warned of.
        native: also run the step undivided, as the framework itself does, `warmup + steps` steps in this process and on one
            device: the function's own `tf.function` with TensorFlow's graph optimizer on, or the Keras model's train
            function; PyTorch eager and through `torch.compile`. True for all that there are, or the name of one. Variables
            and optimizer state are then as before. It may use all cores, as the framework does.
        options: of the step's framework, by keyword: those of `baechi_lab.executors.dispatch.TensorFlowOptions` (`inputs`,
            `virtual`, `kind`, `workers`, `worker`, ...), or of `bl.torch.execute` (`reorder`, `devices`, `pipeline`, ...).

    Returns:
        a Run: `step_seconds` of the measured steps, `outputs` of all, the measured Timeline, `status`, `message`,
        `moved_ops` that did not run where placed, `native` and `native_ratio`.

    Raises:
        InvalidInput: a placement for another graph, inputs that do not match, a bad option, one of the other framework.
        ExecutionError: a device that the runtime lacks, limits above the card, a worker that does not answer, a
            placed graph that TensorFlow refuses; all before the first step.

    >>> import numpy as np, tensorflow as tf, baechi_lab as bl
    >>> w = tf.Variable(2.0)
    >>> step = bl.trace(lambda x: w.assign_sub(x), np.float32(0.5))
    >>> graph = bl.profile(step, mode="estimated")
    >>> run = execute(step, bl.Placement(device=[0] * graph.n), steps=3)  # doctest: +SKIP
    >>> run.status, len(run.step_seconds)  # doctest: +SKIP
    ('ok', 3)
    """
    check_timeout(timeout)
    stop = Stop(cancel, None if timeout is None else time.monotonic() + timeout)
    framework = framework_of(step)
    check_placed_step(placement, graph, cluster)
    executor: Executor = framework_part("executors", framework)
    own_options = options_of(framework, options, OPTIONS, "execute")
    runners = native_runners(
        step,
        native,
        placements=[placement],
        cluster=cluster if isinstance(cluster, Cluster) else None,
        kind=options.get("kind", "auto"),
        inputs=options.get("inputs"),
        micro_batches=micro_batches,
    )
    run = executor.execute(
        step,
        placement,
        steps,
        warmup=warmup,
        cluster=cluster,
        graph=graph,
        timeout=timeout,
        on_step=on_step,
        cancel=cancel,
        micro_batches=micro_batches,
        schedule=schedule,
        reduction=reduction,
        **own_options,
    )
    if not runners:
        return run
    # They start after the processes of the placed run have ended.
    return replace(run, native={name: runner(steps, warmup, stop) for name, runner in runners.items()})


def step_timer(step: Step | TorchStep, cluster: Cluster, steps: int, warmup: int) -> Callable[[Placement], float]:
    """Returns a function that runs placements of `step` and returns seconds: the median of `steps` steps after `warmup` steps.

    The seconds are infinite if a run fails, for example out of memory. A worker process is kept between runs, until the function
    is garbage-collected.
    """
    from ..workers.client import Worker

    workers: list[Worker] = []

    def run(placement: Placement) -> float:
        if not workers or not workers[0].alive:
            _close_all(workers)
            workers.append(Worker())  # starting TensorFlow takes seconds
        run_record = execute(
            step, placement, steps, warmup=warmup, traced=0, cluster=cluster, progress=False, worker=workers[0]
        )
        return run_record.median_seconds if run_record.status == "ok" else float("inf")

    weakref.finalize(run, _close_all, workers)
    return run


def _close_all(workers: list[Worker]) -> None:
    while workers:
        workers.pop().close()
