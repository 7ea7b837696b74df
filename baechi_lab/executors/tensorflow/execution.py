"""`execute`: checks a placed step, runs it in a worker process, and makes a `Run` of the measurements."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...checks import check_whole
from ...errors import ExecutionError, InvalidInput, UnknownNameError
from ...graph import Cluster, OpGraph, Placement, Run, Step, Timeline
from ...profilers.tensorflow.nodes import split
from ...workers.client import Worker, WorkerEnded
from ...workers.messages import Message
from ...workers.transport import step_arrays, step_header
from ..inputs import checked_batches, whole_batches
from .devices import device_options
from .peers import Peers
from .pipelined_step import pipelined_step
from .recomputed_step import step_to_run
from .timeline import to_timeline
from .trace import Trace

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...simulator.schedules import ScheduleOption
    from ..dispatch import TensorFlowOptions
    from .cluster import LocalCluster


@dataclass(frozen=True)
class StepResult:
    """One executed step. `phase` is `warmup`, `traced` or `measured`; `outputs` are the values that the step returned."""

    index: int
    phase: str
    seconds: float
    outputs: tuple[Any, ...]


@dataclass
class _WorkerMessages:
    """The messages of the worker so far."""

    devices: list[str] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    moved_ops: list[str] = field(default_factory=list)
    replacing_types: dict[str, str] = field(default_factory=dict)
    steps: list[StepResult] = field(default_factory=list)
    trace: Trace | None = None
    variables: tuple[NDArray[np.generic], ...] = ()


BACKENDS = ("tensorflow", "tensorflow-cluster")


def execute(
    step: Step,
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
    **options: Unpack[TensorFlowOptions],
) -> Run:
    """Runs a placed TensorFlow step; as `baechi_lab.executors.execute`, which checks `timeout`."""
    from tqdm.auto import tqdm

    if not isinstance(step, Step):
        raise InvalidInput(
            f"step is a {type(step).__name__}; give what bl.trace returns (bl.torch.execute runs PyTorch)"
        )
    local = None
    workers = options.get("workers", ())
    traced_steps = options.get("traced", 3)
    inputs = options.get("inputs")
    if not (cluster is None or isinstance(cluster, Cluster)):
        cluster.require_alive()
        local, workers, cluster = cluster, cluster.addresses, cluster.cluster
    backend_name = options.get("backend") or ("tensorflow-cluster" if workers else "tensorflow")
    if backend_name not in BACKENDS:
        raise UnknownNameError.of("backend", backend_name, BACKENDS)
    if (backend_name == "tensorflow-cluster") != bool(workers):
        raise InvalidInput(
            f"backend {backend_name!r} with workers={list(workers)!r}; 'tensorflow-cluster' needs the addresses of its "
            "workers (or cluster=bl.LocalCluster(n)), 'tensorflow' takes none"
        )
    device_choice = device_options(
        options.get("virtual"),
        options.get("memory_limit"),
        options.get("kind", "auto"),
        options.get("threads"),
        workers,
        options.get("secret"),
    )
    pipeline_step = None
    if micro_batches is not None or schedule is not None:
        pipeline_step = pipelined_step(step, placement, cluster, graph, micro_batches, schedule, reduction, inputs)
        inputs = whole_batches(step, pipeline_step.micro_batches, inputs)
        step, placement, graph = pipeline_step.step, pipeline_step.placement, pipeline_step.graph
    for name, value in (("steps", steps), ("warmup", warmup), ("traced", traced_steps)):
        check_whole(name, value, low=0)
    step, graph, op_placement = step_to_run(step, placement, graph, cluster, "bl.execute")
    batches = checked_batches(step, inputs)
    header = {
        **step_header(step),
        "op_names": list(graph.names),
        "devices": None if cluster is None else [[d.name, d.memory_bytes] for d in cluster.devices],
        "steps": int(steps),
        "warmup": int(warmup),
        "traced": int(traced_steps),
        "options": device_choice,
        "return_variables": options.get("return_variables", False),
    }
    fed = (array for batch in batches for array in batch)
    request = Message("execute", header, (op_placement.device, *step_arrays(step), *fed))
    messages = _WorkerMessages()
    peers = Peers(device_choice["workers"], secret=device_choice["secret"], local=local)
    # `disable=None`: no bar where stderr is neither a terminal nor a notebook.
    count, disable = warmup + traced_steps + steps, None if options.get("progress", True) else True
    with tqdm(total=count, desc="execute", unit="step", leave=False, disable=disable) as bar:
        exchange = partial(
            _collect_answers,
            request=request,
            messages=messages,
            timeout=timeout,
            cancel=cancel,
            advance_bar=bar.update,
            on_step=on_step,
            peers=peers,
        )
        status, message = _answer_of_worker(options.get("worker"), exchange, peers, local, uses_peers=bool(workers))
    run = _run(step, graph, op_placement, cluster, messages, status, message)
    return run if pipeline_step is None else pipeline_step.with_pipeline_info(run)


def _answer_of_worker(
    worker: Worker | None,
    exchange: Callable[[Worker], tuple[str, str]],
    peers: Peers,
    local: LocalCluster | None,
    *,
    uses_peers: bool,
) -> tuple[str, str]:
    """Calls `exchange` with `worker`, or with a process started for it; returns status and message.

    A worker that the caller gave stays open after status "ok", and if it refused the request.
    """
    network = None if local is None else local.network
    used = worker or Worker(network=network)
    try:
        if uses_peers:
            used.enter(network)
        status, message = exchange(used)
    except ExecutionError:
        # The worker refused the request and waits for the next.
        raise
    except BaseException:  # Ctrl-C, and errors of `on_step`: the worker is in the middle of an answer
        used.close()
        raise
    finally:
        peers.close()
        if worker is None:
            used.close()
    if status != "ok":
        used.close()
    return status, message


def _collect_answers(
    worker: Worker,
    request: Message,
    messages: _WorkerMessages,
    timeout: float | None,
    cancel: threading.Event | None,
    advance_bar: Callable[[], object],
    on_step: Callable[[StepResult], None] | None,
    peers: Peers,
) -> tuple[str, str]:
    """Stores the worker's messages in `messages`. Returns status and message of the run.

    Raises `ExecutionError` for a refusal or a failure before the first step.
    """
    try:
        with closing(worker.exchange(request, {"done", "failed"}, timeout, cancel, peers.ended_server)) as answers:
            for message in answers:
                if message.kind == "failed":
                    # TensorFlow may report a server's end in any words, and earlier than its closed connection.
                    ended_server = peers.wait_for_ended_server(1.0)
                    if ended_server is not None:
                        return "died", ended_server
                    status, text = message.header["status"], message.header["message"]
                    if status == "refused" or (status == "error" and not messages.steps):
                        raise ExecutionError(text)
                    return ("died" if status == "error" else status), text
                header = message.header
                if message.kind == "ready":
                    messages.devices, messages.memory_bytes = header["devices"], header["memory_bytes"]
                    messages.moved_ops, messages.notes = header["moved"], header["notes"]
                elif message.kind == "step":
                    outputs = tuple(a[()] if a.ndim == 0 else a for a in message.arrays)
                    messages.steps.append(StepResult(header["index"], header["phase"], header["seconds"], outputs))
                elif message.kind == "timeline":
                    messages.moved_ops = sorted({*messages.moved_ops, *header["moved"]})
                    messages.replacing_types = header["replaced"]
                    messages.trace = Trace(*message.arrays)
                elif message.kind == "variables":
                    messages.variables = message.arrays
                if message.kind == "step":
                    advance_bar()
                    if on_step is not None:
                        on_step(messages.steps[-1])
    except WorkerEnded as ended:
        return ended.status, ended.message
    return "ok", "; ".join(messages.notes)


def _run(
    step: Step,
    graph: OpGraph,
    placement: Placement,
    cluster: Cluster | None,
    messages: _WorkerMessages,
    status: str,
    message: str,
) -> Run:
    """Makes the Run from the worker's messages."""
    if messages.moved_ops:
        examples = ", ".join(messages.moved_ops[:3]) + (", ..." if len(messages.moved_ops) > 3 else "")
        moved_message = f"{len(messages.moved_ops)} ops ran elsewhere than placed: {examples}"
        message = f"{message}; {moved_message}" if message else moved_message
    measured_seconds = [s.seconds for s in messages.steps if s.phase == "measured"]
    info: dict[str, Any] = {
        "devices": tuple(messages.devices),
        "warmup_seconds": [s.seconds for s in messages.steps if s.phase == "warmup"],
        "traced_seconds": [s.seconds for s in messages.steps if s.phase == "traced"],
        "replaced": messages.replacing_types,
    }
    if messages.variables:
        info["variables"] = {spec.name: value for spec, value in zip(step.variables, messages.variables, strict=True)}
    return Run(
        timeline=_timeline(step, graph, placement, cluster, messages),
        step_seconds=np.array(measured_seconds, dtype=np.float64),
        outputs=tuple(s.outputs for s in messages.steps),
        status=status,
        message=message,
        moved_ops=tuple(messages.moved_ops),
        info=info,
    )


def _timeline(
    step: Step, graph: OpGraph, placement: Placement, cluster: Cluster | None, messages: _WorkerMessages
) -> Timeline | None:
    if messages.trace is None:
        return None
    names, memory = list(messages.devices), list(messages.memory_bytes)
    if cluster is not None:
        names[: cluster.n] = cluster.names
        memory[: cluster.n] = cluster.memory_bytes.tolist()
    extra = [
        d for d in range(cluster.n if cluster is not None else 0, len(names)) if np.any(messages.trace.device == d)
    ]
    last = max([*extra, int(placement.device.max(initial=0)), (cluster.n if cluster is not None else 1) - 1])
    at = graph.index
    variable_bytes = [
        (int(placement.device[at[spec.name]]), at[spec.name], int(value.nbytes))
        for spec, value in zip(step.variables, step.initial_values, strict=True)
        if spec.name in at
    ]
    input_ops = [at[name] for spec in step.inputs if (name := split(spec.name)[0]) in at]
    on_cpus = [op for op in input_ops if ":CPU:" in messages.devices[int(placement.device[op])].upper()]
    has_copies = any("/job:worker" in d for d in messages.devices)
    return to_timeline(
        messages.trace.first(last + 1),
        graph,
        names[: last + 1],
        memory[: last + 1],
        variable_bytes,
        has_copies,
        on_cpus,
    )
