"""Runs a placed step in micro-batches as a pipeline: one process per device, on `torch.distributed.pipelining`."""

from __future__ import annotations

import pickle
import re
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_EXCEPTION, BrokenExecutor, Future, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import ExecutionError, InvalidInput
from ...graph import Cluster, MemoryLog, Run, Timeline, Transfers
from ...simulator.pipeline_stages import PipelineStages
from ...simulator.pipelined_graph import make_pipelined_graph
from ...simulator.schedules import Schedule, ScheduleOption
from ...torch_runtime.tree import tensors
from ...torch_steps.default_loss import own_loss
from ...torch_steps.pipelines.cutting import StageModule, cut
from ...torch_steps.pipelines.recording import Program, record
from ...workers.forked import TORCH_PIPELINE
from ...workers.pool import Pool
from .pipeline_process import Job, Report, run_process
from .placed_model import PlacedModel
from .reduction import Reduction

_LOST_CONNECTION = re.compile(r"gloo|nccl|connection (closed|reset)", re.IGNORECASE)
_POLL_SECONDS = 0.2
"""Seconds between two checks whether a run must end early."""
_ERROR_WAIT_SECONDS = 5.0
"""Seconds to wait for the error of the process that failed, after another process has reported a lost connection."""


@dataclass(frozen=True, eq=False)
class PipelinedStep:
    """A placed step as a pipeline: its stages as modules, and the order in which its processes run them.

    - `stage_ranks[s]`: the processes of stage s, which are its replicas.
    - `processes`: the device of every process.
    - `tied`: the (stage, name) pairs of every parameter that several processes use, unless all are replicas of one stage.
    """

    stage_modules: list[StageModule]
    program: Program
    stages: PipelineStages
    schedule: Schedule
    micro_batches: int
    processes: tuple[int, ...]
    stage_ranks: list[list[int]]
    tied: list[list[tuple[int, str]]]


def cut_step(placed_model: PlacedModel, schedule: ScheduleOption | None) -> PipelinedStep:
    """Makes the pipeline for a placement of one micro-batch's calls.

    Raises:
        InvalidInput: stages that form no pipeline (naming the edge that turns back), a schedule that does not fit them,
            code between layers that cannot be cut.
    """
    step, micro_batches = placed_model.micro_steps[0], len(placed_model.micro_steps)
    pipelined_graph = make_pipelined_graph(
        placed_model.graph, placed_model.cluster, placed_model.placement, micro_batches, schedule
    )
    assert pipelined_graph.schedule is not None and pipelined_graph.stages is not None  # noqa: S101  (a schedule was given)
    if not pipelined_graph.stages.training:
        raise InvalidInput(f"the graph of step {step.name!r} has no backward ops; profile it with mode='training'")
    program = record(placed_model.model, step.inputs, placed_model.model_trace)
    stage = pipelined_graph.stages.stage[: len(placed_model.model_trace.calls)].tolist()
    stage_modules = cut(placed_model.model, program, stage, pipelined_graph.stages.count)
    groups = {group[0]: group for group in placed_model.placement.on(placed_model.graph).replicas}
    stage_ranks = [
        [pipelined_graph.line_device.index(d) for d in groups.get(first, (first,))]
        for first in pipelined_graph.stages.device.tolist()
    ]
    # Parameters that stages of different processes share. Stage modules share the model's parameters: the same objects.
    users: dict[int, dict[int, str]] = {}
    for s, stage_module in enumerate(stage_modules):
        for name, parameter in stage_module.module.named_parameters(remove_duplicate=False):
            users.setdefault(id(parameter), {}).setdefault(s, name)
    tied = [list(at.items()) for at in users.values() if len({tuple(stage_ranks[s]) for s in at}) > 1]
    return PipelinedStep(
        stage_modules,
        program,
        pipelined_graph.stages,
        pipelined_graph.schedule,
        micro_batches,
        pipelined_graph.line_device,
        stage_ranks,
        tied,
    )


def run_pipeline(
    placed_model: PlacedModel,
    pipeline: PipelinedStep,
    names: tuple[str, ...],
    *,
    adding: Reduction,
    steps: int,
    warmup: int,
    timeout: float | None = None,
    cancel: threading.Event | None = None,
    gradients: bool = False,
    pool: Pool | None = None,
) -> Run:
    """Starts a process per device (or uses those of `pool`), trains, and assembles the reports.

    `names` are torch's names of the devices. `gradients`: whether to return the gradients of the first step.
    """
    step, model = placed_model.step, placed_model.model
    batches = [
        (tuple(tensors(micro_step.arguments(model))), micro_step.targets) for micro_step in placed_model.micro_steps
    ]
    jobs = [
        Job(
            rank=rank,
            world=len(pipeline.processes),
            device=names[device],
            stage_modules={
                s: (m.module, m.spec) for s, m in enumerate(pipeline.stage_modules) if rank in pipeline.stage_ranks[s]
            },
            schedule=str(pipeline.schedule),
            stage_ranks=pipeline.stage_ranks,
            tied=pipeline.tied,
            batches=batches,
            loss=step.loss or own_loss,
            template=pipeline.program.template,
            mean=adding.mean,
            divisors=list(adding.divisors),
            optimizer=step.optimizer,
            seed=step.seed,
            warmup=warmup,
            steps=steps,
            gradients=gradients,
        )
        for rank, device in enumerate(pipeline.processes)
    ]
    with tempfile.TemporaryDirectory(prefix="baechi_lab-") as folder:
        reports, status, message = _collect_reports(jobs, str(Path(folder) / "rendezvous"), timeout, cancel, pool)
    if status != "ok":
        return Run(None, np.zeros(0), (), status, message, info={"runtime": "pipelining"})
    start = np.min([r.start_seconds for r in reports], axis=0)
    seconds = np.max([r.end_seconds for r in reports], axis=0) - start
    last = next(r for r in reports if r.losses)
    info: dict[str, object] = {
        "runtime": "pipelining",
        "schedule": str(pipeline.schedule),
        "micro_batches": pipeline.micro_batches,
        "devices": tuple(r.device for r in reports),
        "cpu_seconds": tuple(r.cpu_seconds for r in reports),
    }
    if any(r.gradients for r in reports):
        # A parameter with several names has its first one.
        name_of = {id(p): name for name, p in model.named_parameters()}
        first_names = {name: name_of[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}
        info["gradients"] = {first_names[name]: values for r in reports for name, values in r.gradients.items()}
    measured_steps = np.arange(warmup, len(seconds))
    middle = int(measured_steps[np.argsort(seconds[measured_steps], kind="stable")[(len(measured_steps) - 1) // 2]])
    timeline = _build_timeline(
        reports, middle, float(start[middle]), float(seconds[middle]), pipeline, placed_model.cluster
    )
    return Run(timeline, seconds[measured_steps], tuple((loss,) for loss in last.losses), info=info)


def _collect_reports(
    jobs: list[Job], file: str, timeout: float | None, cancel: threading.Event | None, shared_pool: Pool | None
) -> tuple[list[Report], str, str]:
    """Returns the reports of all processes, or status and message of a failure, and ends all processes."""
    pickled_jobs = [_pickle_job(job) for job in jobs]
    # A process that is forked from one that knows CUDA cannot use it, and imports may ask for its devices.
    imports = None if any(job.device.startswith("cuda") for job in jobs) else TORCH_PIPELINE
    pool, has_ended = shared_pool or Pool(len(jobs), tries=1, imports=imports), False
    try:
        futures = [pool.submit(run_process, data, file) for data in pickled_jobs]
        status, message = wait_for_reports(futures, timeout, cancel)
        has_ended = status == "ok"
        return ([f.result() for f in futures] if has_ended else []), status, message
    finally:
        if shared_pool is None or not has_ended:
            pool.kill()


def wait_for_reports(
    futures: list[Future[Report]], timeout: float | None, cancel: threading.Event | None
) -> tuple[str, str]:
    """Returns status and message of the processes: "ok" if all have reported, else why they have not."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        ended_futures, running = wait(futures, timeout=_POLL_SECONDS, return_when=FIRST_EXCEPTION)
        errors = _errors_of(ended_futures)
        if errors:
            if all(_LOST_CONNECTION.search(str(error)) for error in errors):
                # The process that failed first may still report why.
                errors = _errors_of(wait(futures, timeout=_ERROR_WAIT_SECONDS).done)
            return _status_of_errors(errors)
        if not running:
            return "ok", ""
        if cancel is not None and cancel.is_set():
            return "cancelled", "cancelled before the processes had ended"
        if deadline is not None and time.monotonic() > deadline:
            return "timeout", f"the processes had not ended after {timeout:g} s"


def _errors_of(futures: Iterable[Future[Report]]) -> list[BaseException]:
    return [error for error in (f.exception() for f in futures) if error is not None]


def _status_of_errors(errors: list[BaseException]) -> tuple[str, str]:
    """Returns the status and message of a failure. An error that a process raised itself is raised here."""
    pool_errors = [error for error in errors if isinstance(error, BrokenExecutor)]
    own_errors = [error for error in errors if error not in pool_errors]
    first_causes = [error for error in own_errors if not _LOST_CONNECTION.search(str(error))]
    if pool_errors and not first_causes:
        return "died", str(pool_errors[0])
    error = (first_causes or own_errors)[0]  # the other errors only report the lost connection
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return "out-of-memory", str(error).partition("\n")[0]
    text = [line.strip() for line in str(error).splitlines() if line.strip()]
    raise ExecutionError(f"a process of the pipeline failed: {text[0] if text else type(error).__name__}") from error


def _pickle_job(job: Job) -> bytes:
    """Pickles a job. With cloudpickle, classes of a notebook are pickled by value."""
    try:
        try:
            import cloudpickle

            return bytes(cloudpickle.dumps(job))
        except ImportError:
            return pickle.dumps(job)
    except (pickle.PickleError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"the step cannot be sent to its processes: {error}; define its layers, loss and optimizer in a module"
        ) from error


def _build_timeline(
    reports: list[Report], step: int, start: float, seconds: float, pipeline: PipelinedStep, cluster: Cluster
) -> Timeline:
    """Returns the Timeline with one row per unit of the schedule; its ops are the units (`0F3`)."""
    runs_by_device = [(d, run) for d, r in zip(pipeline.processes, reports, strict=True) for run in r.unit_runs[step]]
    runs_by_device.sort(key=lambda pair: (pair[1].start, pair[1].end))
    unit_devices = np.array([d for d, _ in runs_by_device], dtype=np.int32)
    unit_runs = [run for _, run in runs_by_device]
    start_seconds = np.array([run.start for run in unit_runs]) - start
    end_seconds = np.array([run.end for run in unit_runs]) - start
    peak = np.zeros(cluster.n, dtype=np.int64)
    for device, report in zip(pipeline.processes, reports, strict=True):
        peak[device] = report.peak_bytes
    return Timeline(
        op=np.arange(len(unit_runs)),
        device=unit_devices,
        start_us=np.maximum(start_seconds, 0) * 1e6,
        end_us=np.maximum(end_seconds, 0) * 1e6,
        transfers=Transfers.none(),
        memory=MemoryLog.none(),
        peak_bytes=peak,
        makespan_us=seconds * 1e6,
        origin="measured",
        op_names=tuple(f"{run.stage}{run.kind}{run.micro_batch}" for run in unit_runs),
        device_names=cluster.names,
        memory_bytes=cluster.memory_bytes,
        tensor_producer=np.zeros(0, np.int32),
        tensor_bytes=np.zeros(0, np.int64),
        info={
            "clock": "host",
            "peak": reports[0].peak_source,
            "schedule": str(pipeline.schedule),
            "micro_batch": np.array([run.micro_batch for run in unit_runs], dtype=np.int32),
            "stage_device": pipeline.stages.device,
        },
    )
