"""Runs a placed PyTorch step: first timed steps, then one more step under observation for the Timeline."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...checks import check_callback, check_flag, check_timeout, check_whole
from ...errors import InvalidInput, UnknownNameError, in_short
from ...graph import Cluster, OpGraph, Placement, Run, Timeline
from ...graph.arguments import check_placed_step, refuse_replicas
from ...internal_warnings import collected_warnings
from ...passes.unroll import unroll
from ...profilers.torch.storages import StorageTracker
from ...simulator.schedules import ScheduleOption
from ...torch_runtime.divisors import dividing
from ...torch_runtime.optimizer_offload import offload_state_groups
from ...torch_runtime.random import restored_generators, seed_generators
from ...torch_runtime.transport import HostTransport
from ...torch_runtime.tree import map_tensors
from ...torch_steps.activation_rows import recomputes_or_offloads
from ...torch_steps.assigner import assign, distribution, gather
from ...torch_steps.optimizer_trial import new_optimizer, update, updates_ranks_alike
from ...torch_steps.plan import torch_devices
from ...torch_steps.step import TorchStep
from ..tensorflow.execution import StepResult
from .pipeline_process import gradient_values
from .pipelined import PipelinedStep, cut_step, run_pipeline
from .placed_model import PlacedModel, place_model
from .reduction import Reduction, reduction_of
from .timeline import Measurement


@restored_generators()
def execute(
    step: TorchStep,
    placement: Placement,
    steps: int = 20,
    *,
    warmup: int = 3,
    cluster: Cluster | None = None,
    graph: OpGraph | None = None,
    reorder: str = "gpu",
    devices: list[str] | None = None,
    timeout: float | None = None,
    cancel: threading.Event | None = None,
    on_step: Callable[[StepResult], None] | None = None,
    transport: HostTransport | None = None,
    micro_batches: int | None = None,
    schedule: ScheduleOption | None = None,
    pipeline: bool | None = None,
    reduction: str | None = None,
    return_gradients: bool = False,
) -> Run:
    """Trains a placed step for `warmup + steps` steps on real devices and measures it.

    Whole batches run in this process. With `micro_batches` or a `schedule`, a placement whose stages form a pipeline runs
    on `torch.distributed.pipelining`, in a process of its own for every device (gloo between CPUs, NCCL between GPUs;
    a CPU device has one thread). Any other placement runs in this process with several micro-batches under way. Replicas
    of stages are processes of their own, which add up their gradients (all-reduce) before the optimizer steps.

    Args:
        step: a `TorchStep`; its model is built anew, so two runs start from the same parameters. Random numbers are drawn
            under the step's seed; the caller's generators (torch, Python, NumPy) are left as they were.
        steps, warmup: the measured steps, and those before them.
        placement: of `graph` (or of a coarse graph of it), or of the model's calls alone; with `micro_batches`, of the
            graph of one of them, as `bl.torch.profile(step.micro_batches(8)[0])` gives it.
        cluster: names the devices; by default as many as the placement uses, GPUs where enough are attached, else
            CPU devices.
        graph: the graph that the placement was made for; by default the step is profiled again to know it.
        reorder, devices: see `bl.torch.distribute`.
        transport: replaces its streams, for example by `HostTransport(devices)`, which moves with plain `.to()`.
        timeout: seconds after which no further step is begun (status `timeout`).
        cancel: an event that ends the run the same way, with status `cancelled`.
        on_step: called with a `StepResult` after every step (of a pipeline: at the end).
        micro_batches: cut the batch into so many equal parts; gradients are added up, and the optimizer steps once.
        schedule: a name, a `Schedule` or its text, as for `bl.simulate`; by default `1f1b`. Outside a pipeline `gpipe` has all
            micro-batches under way at once, `1f1b` as many as there are devices.
        pipeline: False runs any placement in this process, True refuses one that forms no pipeline; None chooses.
        reduction: "mean" or "sum", how the loss adds up over samples; None tries both before the first step, and warns where
            neither gives the undivided batch's gradients. Means divide by what counts in the undivided batch.
        return_gradients: put the gradients of the first step into `run.info["gradients"]`, by parameter.

    Returns a `Run`: `step_seconds` of the measured steps, `outputs` the loss of every step, the measured Timeline of
    one further step (CUDA events on GPUs, host clocks on the CPU), `status`. Exhausted memory is a status too. A
    pipeline's Timeline is that of the step of median length and has a row for every unit of the schedule (`0F3`).

    Raises:
        InvalidInput: a placement for another graph, counts below 1, a batch that does not divide, a schedule that does not
            fit the stages, a placement that forms no pipeline where one is asked for.
        ExecutionError: devices that are not attached, a process of a pipeline that failed.

    >>> from baechi_lab.torch.models import build
    >>> step = build("gnmt", batch_size=1, length=2, vocabulary=7, width=4, layers=2)
    >>> run = execute(step, Placement(device=[0] * 19), steps=2)   # 19 calls
    >>> run.status, len(run.step_seconds), len(run.outputs)
    ('ok', 2, 6)
    """
    if not isinstance(step, TorchStep):
        raise InvalidInput(f"step is a {type(step).__name__}; the PyTorch executor runs a baechi_lab.torch.TorchStep")
    check_whole("steps", steps)
    check_whole("warmup", warmup, 0)
    check_placed_step(placement, graph, cluster)
    check_callback("on_step", on_step, "result")
    check_flag("return_gradients", return_gradients)
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise InvalidInput(f"cancel is {in_short(cancel)}; it must be a threading.Event, or None")
    if not (isinstance(timeout, (int, float)) and timeout == 0):  # 0 ends the run before its first step
        check_timeout(timeout)
    if reduction is not None and not (isinstance(reduction, str) and reduction in ("mean", "sum")):
        raise UnknownNameError.of("reduction", str(reduction), ("mean", "sum"))
    micro_steps = [step]
    if micro_batches is not None or schedule is not None:
        micro_steps = step.micro_batches(1 if micro_batches is None else micro_batches)
        schedule = "1f1b" if schedule is None else schedule
    placed_model = place_model(step, micro_steps, placement, graph, cluster)
    names = torch_devices(placed_model.cluster, devices)
    unrolled_graph = unroll_micro_batches(placed_model)
    division = divide(placed_model, schedule, pipeline, reduction)
    if division.pipelined_step is not None:
        run = run_pipeline(
            placed_model,
            division.pipelined_step,
            names,
            adding=division.adding,
            steps=steps,
            warmup=warmup,
            timeout=timeout,
            cancel=cancel,
            gradients=return_gradients,
        )
        if on_step is not None:
            # the processes of a pipeline report at the end
            seconds = [float("nan")] * warmup + run.step_seconds.tolist()
            for k, (step_seconds, outputs) in enumerate(zip(seconds, run.outputs, strict=False)):
                on_step(StepResult(k, "warmup" if k < warmup else "measured", step_seconds, outputs))
        return run
    # The batch waits on the first device, and the loss is computed where the outputs are made.
    micro_steps = [micro_step.on(names[0]) for micro_step in micro_steps]
    results, device = placed_model.model_trace.results, placed_model.placement.device
    loss_device = int(device[results[0]]) if results else 0
    assign(
        placed_model.model,
        placed_model.model_trace,
        placed_model.placement,
        placed_model.cluster,
        reorder=reorder,
        devices=devices,
        output_device=names[loss_device] if results and len(set(names)) > 1 else None,
        graph=placed_model.graph,
        transport=transport,
        always=bool(division.adding.in_model),
    )
    try:
        deadline = None if timeout is None else time.monotonic() + timeout
        running = _StepRunner(
            micro_steps,
            placed_model.model,
            max_in_flight=division.in_flight,
            adding=division.adding,
            gradients=return_gradients,
            deadline=deadline,
            cancel=cancel,
            on_step=on_step,
        )
        status, message = running.run_steps("warmup", warmup)
        if status == "ok":
            status, message = running.run_steps("measured", steps)
        measurement = None
        if status == "ok":
            make_measurement = partial(Measurement, placed_model, unrolled_graph)
            status, message, measurement = _measure_timeline(running, make_measurement, loss_device)
        session = distribution(placed_model.model).session
        info = {"threads_started": session.threads_started, "forced": session.forced, "devices": session.plan.devices}
        if schedule is not None:
            info |= {"runtime": "session", "micro_batches": len(micro_steps), "in_flight": division.in_flight}
        if running.gradients is not None:
            info["gradients"] = running.gradients
        times = np.array(running.seconds[warmup : warmup + steps])
        return Run(measurement, times, tuple(running.outputs), status, message, info=info)
    finally:
        gather(placed_model.model)  # layers may belong to other models, too


def _measure_timeline(
    runner: _StepRunner, make_measurement: Callable[..., Measurement], loss_device: int
) -> tuple[str, str, Timeline | None]:
    """Runs one more step under observation, and on CPUs another one whose memory is tracked.

    Returns status, message and, if the status is "ok", the Timeline.
    """
    measurement = make_measurement()
    try:
        status, message = runner.run_steps("traced", 1, measurement)
    finally:
        measurement.remove()
    if status != "ok":
        return status, message, None
    memory_step = None
    if not measurement.on_gpus:
        memory_step = runner.run_observed_step(make_measurement(StorageTracker(loss_device)))
    return status, message, measurement.timeline(memory_step)


@dataclass(frozen=True, eq=False)
class StepDivision:
    """How the micro-batches of a placed step run: as a pipeline (`pipelined_step`), or in the session, `in_flight` at once."""

    micro_steps: list[TorchStep]
    pipelined_step: PipelinedStep | None
    in_flight: int
    adding: Reduction

    @property
    def counts(self) -> bool:
        """Whether the divisors of means must be found in each batch."""
        return bool(self.adding.shapes) and (bool(self.adding.keys_of_counts) or any(self.adding.divisors))


def unroll_micro_batches(placed_model: PlacedModel) -> OpGraph:
    """Returns the graph of all micro-batches of a placed step. Warns of statistics of batches."""
    count = len(placed_model.micro_steps)
    return unroll(placed_model.graph, count) if count > 1 else placed_model.graph


def divide(
    placed_model: PlacedModel, schedule: ScheduleOption | None, pipeline: bool | None, reduction: str | None
) -> StepDivision:
    """Decides how a placed step runs. Replicas of stages need processes of their own; the rest of the choice is `execute`'s.

    Raises the errors of `execute`. Statistics of batches are warned of by `unroll_micro_batches`.
    """
    step = placed_model.step
    model = placed_model.model
    graph = placed_model.graph
    micro_steps = placed_model.micro_steps
    replicas = placed_model.placement.replicas
    if schedule is not None and recomputes_or_offloads(graph):
        if pipeline:
            raise InvalidInput(
                f"pipeline is True; the processes of a pipeline keep all activations, and graph {graph.name!r} computes some "
                "again or has them on a host: give pipeline=False, or the graph that it was made from"
            )
        pipeline = False
    if replicas and schedule is None:
        refuse_replicas(placed_model.placement, "bl.execute")
    if replicas and pipeline is False:
        raise InvalidInput(
            f"replicas is {in_short(replicas)} and pipeline is False; replicas of stages run in processes of their own"
        )
    must = pipeline is True or bool(replicas)
    adding = reduction_of(step, model, placed_model.model_trace.layers, micro_steps, reduction)
    if schedule is None:
        return StepDivision(micro_steps, None, len(micro_steps), adding)
    session_knows_schedule = isinstance(schedule, str) and schedule in ("gpipe", "1f1b")
    if adding.in_model:  # only the session can replace the divisors of means inside the model
        if must or not session_knows_schedule:
            raise InvalidInput(
                f"the model's call {min(adding.in_model)!r} averages over what counts in a micro-batch (labels, masks or "
                "weights) or divides by a number that the model computes, as a normalization of weights does, and a pipeline's "
                "stages cannot divide as for the undivided batch: compute the loss in the step's loss=, or run the placement "
                "in the session (pipeline=False, schedule 'gpipe' or '1f1b')"
            )
        pipeline = False
    if pipeline is not False:
        try:
            with collected_warnings():
                pipelined_step = cut_step(placed_model, schedule)
                _refuse_coupled_ranks(step, model, pipelined_step)
            return StepDivision(micro_steps, pipelined_step, 1, adding)
        except UnknownNameError:
            raise
        except InvalidInput:
            if must or not session_knows_schedule:
                raise
    if not session_knows_schedule:
        raise InvalidInput(
            f"schedule is {str(schedule).splitlines()[0]!r}; outside a pipeline it can be 'gpipe' (all micro-batches under "
            "way at once) or '1f1b' (as many as there are devices)"
        )
    if schedule == "1f1b":
        in_flight = min(len(micro_steps), len(set(placed_model.placement.device.tolist())))
    else:
        in_flight = len(micro_steps)
    return StepDivision(micro_steps, None, in_flight, adding)


def _refuse_coupled_ranks(step: TorchStep, model: nn.Module, pipelined_step: PipelinedStep) -> None:
    """Raises `InvalidInput` if the processes of a pipeline would change gradients or weights otherwise than one process."""
    hooked_name = next((name for name, p in model.named_parameters() if p._backward_hooks), None)
    if hooked_name is not None:
        raise InvalidInput(
            f"parameter {hooked_name!r} of step {step.name!r} has a hook on its gradient, which the processes of a pipeline do "
            "not get: run the placement in the session (pipeline=False, schedule 'gpipe' or '1f1b')"
        )
    parameters_of_ranks = [
        [
            p
            for stage_module, ranks in zip(pipelined_step.stage_modules, pipelined_step.stage_ranks, strict=True)
            if rank in ranks
            for p in stage_module.module.parameters()
        ]
        for rank in range(len(pipelined_step.processes))
    ]
    if not updates_ranks_alike(step, model, [list(dict.fromkeys(ps)) for ps in parameters_of_ranks if ps]):
        raise InvalidInput(
            f"optimizer of step {step.name!r} updates the parameters of a pipeline stage otherwise than together with all "
            "others (as a limit on the norm of all gradients does, groups by position, or no update where any gradient is "
            "infinite), and each process of a pipeline updates its own: run the placement in the session (pipeline=False, "
            "schedule 'gpipe' or '1f1b')"
        )


class _StepRunner:
    """Runs steps of one model in micro-batches, at most `max_in_flight` of them at once, and has their times and losses."""

    def __init__(
        self,
        micro_steps: list[TorchStep],
        model: nn.Module,
        *,
        max_in_flight: int,
        adding: Reduction,
        gradients: bool,
        deadline: float | None,
        cancel: threading.Event | None,
        on_step: Callable[[StepResult], None] | None,
    ):
        step = micro_steps[0]
        self.micro_steps, self.model, self.max_in_flight, self.adding = micro_steps, model, max_in_flight, adding
        self.session = distribution(model).session
        self.deadline, self.cancel, self.on_step = deadline, cancel, on_step
        self.optimizer = new_optimizer(step, model.parameters())
        if self.optimizer is not None and (offloaded_state := distribution(model).plan.offloaded_state):
            offload_state_groups(self.optimizer, model, offloaded_state)
        self.return_gradients = gradients
        self.gradients: dict[str, NDArray[np.float32]] | None = None
        self.seconds: list[float] = []
        self.outputs: list[tuple[float]] = []
        seed_generators(step.seed)

    def run_steps(self, phase: str, steps: int, measurement: Measurement | None = None) -> tuple[str, str]:
        """Runs `steps` steps. Returns status and message."""
        for _ in range(steps):
            if self.cancel is not None and self.cancel.is_set():
                return "cancelled", f"cancelled after {len(self.seconds)} steps"
            if self.deadline is not None and time.monotonic() > self.deadline:
                return "timeout", f"the time was over after {len(self.seconds)} steps"
            try:
                self._run_step(measurement)
            except torch.cuda.OutOfMemoryError as error:
                return "out-of-memory", str(error).splitlines()[0]
            if self.on_step is not None:
                self.on_step(StepResult(len(self.seconds) - 1, phase, self.seconds[-1], self.outputs[-1]))
        return "ok", ""

    def _run_step(self, measurement: Measurement | None) -> None:
        """Runs one step of all micro-batches and notes its seconds and loss; `measurement` observes it."""
        synchronize()
        for parameter in self.model.parameters():
            parameter.grad = None
        if measurement is not None:
            measurement.begin_step(
                self.optimizer, [(micro_step.inputs, micro_step.targets) for micro_step in self.micro_steps]
            )
        start = time.perf_counter()
        # Forward passes run ahead of backward passes by at most `max_in_flight` micro-batches.
        waiting: deque[torch.Tensor] = deque()
        losses = []
        backward = torch.Tensor.backward if measurement is None else measurement.run_backward
        for k, micro_step in enumerate(self.micro_steps):
            if measurement is not None:
                measurement.micro_batch = k
            args, kwargs = micro_step.arguments(self.model)
            self.session.divisors = self.adding.divisors[k]
            outputs = self.model(*args, **kwargs)  # has a name until the step ends, as in `TorchStep.run`
            with dividing(self.adding.divisors[k]):
                if measurement is None:
                    loss = micro_step.loss_of(outputs)
                else:
                    loss = measurement.compute_loss(micro_step, outputs)
            if self.adding.mean and len(self.micro_steps) > 1:
                loss = loss / len(self.micro_steps)
            losses.append(loss.detach())
            waiting.append(loss)
            if len(waiting) == self.max_in_flight:
                backward(waiting.popleft())
        for loss in waiting:
            backward(loss)
        if self.return_gradients and self.gradients is None:
            parameters = self.model.named_parameters()
            self.gradients = {n: gradient_values(p.grad) for n, p in parameters if p.grad is not None}
        if self.optimizer is not None:
            if measurement is not None:
                measurement.begin_update()
            update(self.micro_steps[0], self.optimizer)
            if measurement is not None:
                measurement.end_update()
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        synchronize()
        self.seconds.append(time.perf_counter() - start)
        self.outputs.append((float(map_tensors(loss, lambda t: t.detach()).cpu()),))

    def run_observed_step(self, measurement: Measurement) -> Measurement:
        """Runs one more step to observe its memory. It is not reported."""
        try:
            self._run_step(measurement)
        finally:
            measurement.finish()
            measurement.remove()
        self.seconds.pop()
        self.outputs.pop()
        return measurement


def synchronize() -> None:
    """Waits for every GPU in use."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
