"""`bl.execute`: one front for the backends that can run a placed step."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ..errors import InvalidInput, UnknownNameError
from ..graph.cluster import Cluster
from ..graph.opgraph import OpGraph
from ..graph.placement import Placement
from ..graph.step import Run, Step
from .inputs import whole_batches
from .native import native_runners
from .native_runner import NativeRunner, Stop

if TYPE_CHECKING:
    from ..torch_steps.step import TorchStep
    from ..workers.client import Worker
    from .tensorflow.cluster import LocalCluster
    from .tensorflow.execution import StepResult

BACKENDS = ("tensorflow", "tensorflow-cluster")


def execute(
    step: Step | TorchStep,
    placement: Placement,
    steps: int = 20,
    *,
    warmup: int = 3,
    traced: int = 3,
    cluster: Cluster | LocalCluster | None = None,
    graph: OpGraph | None = None,
    inputs: Sequence[Any] | None = None,
    timeout: float | None = None,
    on_step: Callable[[StepResult], None] | None = None,
    cancel: threading.Event | None = None,
    backend: str | None = None,
    workers: Sequence[str] = (),
    secret: str | os.PathLike[str] | None = None,
    virtual: int | None = None,
    memory_limit: int | str | None = None,
    kind: str = "auto",
    threads: int | None = None,
    return_variables: bool = False,
    progress: bool = True,
    worker: Worker | None = None,
    micro_batches: int | None = None,
    schedule: Any = None,
    reduction: str | None = None,
    native: bool | str = False,
) -> Run:
    """Run a placed training step on real devices in a separate process, and measure it.

    The process runs `warmup` steps, then `traced` steps under a full trace, then `steps` measured steps. The traced
    step of median length becomes the Timeline. If the process crashes, runs out of memory or hangs, the caller gets
    a Run with what was measured so far. Ctrl-C ends the process and is raised as usual.

    Args:
        step: what `bl.trace` returned, or a `bl.torch.TorchStep`.
        placement: of the step's graph, or of a coarse graph of it.
        steps, warmup, traced: how many steps of each sort.
        cluster: names the devices. None: attached GPUs (split when there are too few), else logical CPU devices.
            A `bl.LocalCluster` runs on its workers.
        graph: the graph that the placement was made for, when it is not the one that `bl.profile(step)` makes.
        inputs: one batch, or a list of batches used in turn; None for the example inputs.
        timeout: seconds for everything, starting the process included; then status `timeout`.
        on_step: called with a `StepResult` after every step.
        cancel: an event that, once set, ends the run with status `cancelled`.
        backend: `tensorflow`, or `tensorflow-cluster` for TensorFlow servers at the addresses `workers`
            (host:port, as `baechi-lab worker --bind` prints them); None chooses by `cluster` and `workers`.
        secret: the file with which the workers were started (`baechi-lab worker --secret`; `bl.make_secret`): everything
            goes through TLS, and both sides prove that they have it.
        virtual, memory_limit: split each GPU into parts with that much memory; without a GPU, `virtual` is the
            number of logical CPU devices.
        kind: `auto`, `cpu` or `gpu`.
        threads: ops that run at a time in the process (default: one per logical CPU device; each op uses one thread).
        return_variables: put the variables after the last step into `run.info["variables"]`.
        progress: show a progress bar (in notebooks and on terminals).
        worker: an open `baechi_lab.executors.Worker` to use again, which saves the seconds that TensorFlow takes to
            start; after any status but `ok` it is closed.
        micro_batches: the step consists of so many, each one run of `step`, whose placement holds for all; the run is of
            `bl.unroll(graph, micro_batches)`, and its Timeline lies beside that of `bl.simulate` with the same arguments.
            `inputs` are then whole batches, which are cut. None runs `step` as it is. A PyTorch step is the whole batch,
            which is cut, its placement one of a micro-batch's graph; see `bl.torch.execute`.
        schedule: as in `bl.simulate`: devices work in its order. None lets them take what is ready. Give as `graph` the
            profile that the simulation has, if the schedule is to be the same where it goes by durations.
        native: also run the step undivided, as the framework itself does, `warmup + steps` steps in this process and on one
            device: the function's own `tf.function` with TensorFlow's graph optimizer on, or the Keras model's train
            function; PyTorch eager and through `torch.compile`. True for all that there are, or the name of one. Variables
            and optimizer state are then as before. It may use all cores, as the framework does.
        reduction: "mean" or "sum": how the loss adds up over samples, so that the step is the undivided batch's. None finds
            out, from the graph of a TensorFlow step and from a PyTorch step's loss; a loss that is neither is warned of.

    Returns:
        a Run: `step_seconds` of the measured steps, `outputs` of all, the measured Timeline, `status`, `message`,
        `moved_ops` that did not run where placed, `native` and `native_ratio`.

    Raises:
        InvalidInput: a placement for another graph, inputs that do not match, a bad option.
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
    from .tensorflow.cluster import LocalCluster
    from .tensorflow.devices import device_options
    from .tensorflow.execution import execute as run_tensorflow

    stop = Stop(cancel, None if timeout is None else time.monotonic() + timeout)
    if getattr(step, "framework", "tensorflow") == "torch":
        from .torch import execute as run_torch

        _refuse(
            inputs=inputs,
            backend=backend,
            workers=workers or None,
            secret=secret,
            virtual=virtual,
            memory_limit=memory_limit,
            threads=threads,
            worker=worker,
        )
        if isinstance(cluster, LocalCluster):
            raise InvalidInput(f"cluster is {cluster!r}; a PyTorch step runs on the devices of a bl.Cluster")
        runners = native_runners(step, native, placements=[placement], cluster=cluster)
        run = run_torch(
            cast("TorchStep", step),
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
        )
        return _with_native_runs(run, runners, steps, warmup, stop)
    local = cluster if isinstance(cluster, LocalCluster) else None
    if isinstance(cluster, LocalCluster):
        cluster.require_alive()
        workers, cluster = cluster.addresses, cluster.cluster
    backend_name = backend or ("tensorflow-cluster" if workers else "tensorflow")
    if backend_name not in BACKENDS:
        raise UnknownNameError.of("backend", backend_name, BACKENDS)
    if (backend_name == "tensorflow-cluster") != bool(workers):
        raise InvalidInput(
            f"backend {backend_name!r} with workers={list(workers)!r}; 'tensorflow-cluster' needs the addresses of its "
            "workers (or cluster=bl.LocalCluster(n)), 'tensorflow' takes none"
        )
    options = device_options(virtual, memory_limit, kind, threads, workers, secret)
    runners = native_runners(step, native, kind=kind, inputs=inputs, micro_batches=micro_batches)
    unrolled = None
    if micro_batches is not None or schedule is not None:
        from .tensorflow.pipelined_step import pipelined_step

        unrolled = pipelined_step(step, placement, cluster, graph, micro_batches, schedule, reduction, inputs)
        inputs = whole_batches(cast("Step", step), unrolled.micro_batches, inputs)
        step, placement, graph = unrolled.step, unrolled.placement, unrolled.graph
    run = run_tensorflow(
        cast("Step", step),
        placement,
        steps=steps,
        warmup=warmup,
        traced=traced,
        cluster=cluster,
        graph=graph,
        inputs=inputs,
        timeout=timeout,
        on_step=on_step,
        cancel=cancel,
        return_variables=return_variables,
        options=options,
        progress=progress,
        worker=worker,
        local=local,
    )
    return _with_native_runs(run if unrolled is None else unrolled.described(run), runners, steps, warmup, stop)


def _with_native_runs(run: Run, native_runners: Mapping[str, NativeRunner], steps: int, warmup: int, stop: Stop) -> Run:
    """Adds the native runs to `run`. They start after the processes of the placed run have ended."""
    return (
        replace(run, native={name: runner(steps, warmup, stop) for name, runner in native_runners.items()})
        if native_runners
        else run
    )


def _refuse(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            shown = " ".join(f"{value!r:.60}".split())
            raise InvalidInput(f"{name} is {shown}; that option is for TensorFlow steps, not for a PyTorch step")
