"""Run a placed PyTorch step: step times first, then one more step under observation for the Timeline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from ...errors import InvalidInput
from ...graph import Cluster, OpGraph, Placement, Run
from ...torch.assigner import assign, distribution
from ...torch.plan import torch_devices
from ...torch.records import Trace
from ...torch.runtime.transport import HostTransport
from ...torch.runtime.tree import map_tensors
from ...torch.step import TorchStep
from ...torch.tracing import trace
from ..tensorflow.execution import StepResult
from .timeline import Measurement


def execute(
    step: TorchStep, placement: Placement, steps: int = 20, *, warmup: int = 3, cluster: Cluster | None = None,
    graph: OpGraph | None = None, reorder: str = "gpu", devices: list[str] | None = None, timeout: float | None = None,
    cancel: threading.Event | None = None, on_step: Callable[[StepResult], None] | None = None,
    transport: HostTransport | None = None,
) -> Run:  # fmt: skip
    """Train a placed step for `warmup + steps` steps on real devices, in this process, and measure it.

    Args:
        step: a `TorchStep`; its model is built anew, so two runs start from the same parameters.
        placement: of `graph` (or of a coarse graph of it), or of the model's calls alone.
        cluster: names the devices; by default as many as the placement uses, GPUs where enough are attached, else
            CPU devices.
        graph: the graph that the placement was made for; by default the step is profiled again to know it.
        reorder, devices: see `bl.torch.distribute`; `transport` replaces its streams, for example by
            `HostTransport(devices)`, which moves with plain `.to()`.
        timeout: seconds after which no further step is begun (status `timeout`); `cancel` ends the run the same way
            with status `cancelled`; `on_step` is called with a `StepResult` after every step.

    Returns a `Run`: `step_seconds` of the measured steps, `outputs` the loss of every step, the measured Timeline of
    one further step (CUDA events on GPUs, host clocks on the CPU), `status`. Exhausted memory is a status too.

    Raises:
        InvalidInput: a placement for another graph, counts below 1.
        ExecutionError: devices that are not attached.

    >>> from baechi_lab.torch.models import build
    >>> step = build("gnmt", batch_size=1, length=2, vocabulary=7, width=4, layers=2)
    >>> run = execute(step, Placement(device=[0] * 19), steps=2)   # 19 calls
    >>> run.status, len(run.step_seconds), len(run.outputs)
    ('ok', 2, 6)
    """
    if not isinstance(step, TorchStep):
        raise InvalidInput(f"step is a {type(step).__name__}; the PyTorch executor runs a baechi_lab.torch.TorchStep")
    if steps < 1 or warmup < 0:
        raise InvalidInput(f"steps is {steps} and warmup is {warmup}; steps must be at least 1 and warmup at least 0")
    model = step.model()
    found = trace(model, step.inputs, atomic=step.atomic)
    known, placed = _known(step, model, found, placement, graph)
    where = cluster or _attached(placed)
    names = torch_devices(where, devices)
    # The batch waits on the first device, and the loss is computed where the outputs are made.
    step = step.on(names[0])
    last = names[int(placed.device[found.results[0]])] if found.results and len(set(names)) > 1 else None
    assign(
        model, found, placed, where, reorder=reorder, devices=devices, output_device=last, graph=known,
        transport=transport,
    )  # fmt: skip
    deadline = None if timeout is None else time.monotonic() + timeout
    running = _Running(step, model, deadline=deadline, cancel=cancel, on_step=on_step)
    status, message = running.go("warmup", warmup)
    if status == "ok":
        status, message = running.go("measured", steps)
    measured = None
    if status == "ok":
        measurement = Measurement(model, found, known, placed, where)
        try:
            status, message = running.go("traced", 1, measurement)
            measured = measurement.timeline() if status == "ok" else None
        finally:
            measurement.remove()
    session = distribution(model).session
    info = {"threads_started": session.threads_started, "forced": session.forced, "devices": session.plan.devices}
    times = np.array(running.seconds[warmup : warmup + steps])
    return Run(measured, times, tuple(running.outputs), status, message, info=info)


class _Running:
    """Steps of one model, with their times and losses."""

    def __init__(
        self, step: TorchStep, model: nn.Module, *, deadline: float | None, cancel: threading.Event | None,
        on_step: Callable[[StepResult], None] | None,
    ):  # fmt: skip
        self.step, self.model, self.deadline, self.cancel, self.on_step = step, model, deadline, cancel, on_step
        self.optimizer = step.optimizer(model.parameters()) if step.optimizer is not None else None
        self.seconds: list[float] = []
        self.outputs: list[tuple[Any, ...]] = []
        torch.manual_seed(step.seed)

    def go(self, phase: str, steps: int, measurement: Measurement | None = None) -> tuple[str, str]:
        """Run `steps` steps; returns status and message."""
        for _ in range(steps):
            if self.cancel is not None and self.cancel.is_set():
                return "cancelled", f"cancelled after {len(self.seconds)} steps"
            if self.deadline is not None and time.monotonic() > self.deadline:
                return "timeout", f"the time was over after {len(self.seconds)} steps"
            try:
                self._one(measurement)
            except torch.cuda.OutOfMemoryError as error:
                return "out-of-memory", str(error).splitlines()[0]
            if self.on_step is not None:
                self.on_step(StepResult(len(self.seconds) - 1, phase, self.seconds[-1], self.outputs[-1]))
        return "ok", ""

    def _one(self, measurement: Measurement | None) -> None:
        synchronize()
        if measurement is not None:
            measurement.begin()
        start = time.perf_counter()
        loss = self.step.run(self.model, self.optimizer)
        synchronize()
        self.seconds.append(time.perf_counter() - start)
        self.outputs.append((float(map_tensors(loss, lambda t: t.detach()).cpu()),))


def synchronize() -> None:
    """Wait for every GPU in use."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)


def _attached(placement: Placement) -> Cluster:
    n = int(placement.device.max(initial=0)) + 1
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Cluster.uniform(n, kind="gpu" if gpus >= n else "cpu")


def _known(
    step: TorchStep, model: nn.Module, found: Trace, placement: Placement, graph: OpGraph | None
) -> tuple[OpGraph, Placement]:
    """The graph to report in, and the placement read for it; one of the calls alone covers their backward ops."""
    from ...profilers.torch.graph import backward_ops
    from ...profilers.torch.profile import profile_layers

    if graph is None:
        graph = profile_layers(model, step.inputs, warmup=0, runs=1, traced=found).graph(
            optimizer_states=step.optimizer_states
        )
    calls = len(found.calls)
    if placement.n == calls and placement.graph_key is None and placement.group_of is None and graph.n != calls:
        back = list(backward_ops(found))
        rank = (
            None
            if placement.rank is None
            else np.r_[placement.rank, placement.rank.max(initial=0) + 1 + np.arange(len(back))]
        )
        return graph, placement.replace(
            device=np.r_[placement.device, placement.device[back]], order=rank, priority=None
        )
    return graph, placement.on(graph)
