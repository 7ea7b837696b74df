"""The work of one process of a pipeline, and its report."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn

from ...errors import MissingPackage
from ...torch_runtime.divisors import Replacements
from ...torch_runtime.random import seed_generators

try:
    from ...torch_steps.pipelines.worker import Pipeline, UnitRun, connect
except ImportError as error:  # another version of PyTorch; the message says which is needed
    raise MissingPackage(str(error)) from error


def gradient_values(gradient: torch.Tensor) -> NDArray[Any]:
    """Returns a copy of a gradient as a dense array of float32 or complex64."""
    dtype = torch.complex64 if gradient.is_complex() else torch.float32
    return gradient.detach().to_dense().to("cpu", dtype, copy=True).resolve_conj().numpy()


@dataclass(frozen=True, eq=False)
class Job:
    """The stages of one process and all that it needs to train them; see `torch_steps.pipelines.worker.Pipeline`."""

    rank: int
    world: int
    device: str
    stage_modules: dict[int, tuple[nn.Module, dict[str, Any]]]
    schedule: str
    stage_ranks: list[list[int]]
    tied: list[list[tuple[int, str]]]
    batches: list[tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]]
    loss: Callable[..., torch.Tensor]
    template: Any
    mean: bool
    divisors: list[Replacements]
    optimizer: Callable[..., torch.optim.Optimizer] | None
    seed: int
    warmup: int
    steps: int
    gradients: bool


@dataclass(eq=False)
class Report:
    """The report of one process: per step, start and end in seconds of its clock, its units, and its loss on the last stage."""

    device: str
    start_seconds: list[float] = field(default_factory=list)
    end_seconds: list[float] = field(default_factory=list)
    unit_runs: list[list[UnitRun]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    gradients: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    peak_source: str = "parameters and their gradients only"


def run_process(pickled_job: bytes, file: str) -> Report:
    """Trains with the settings of the pickled `Job`. The processes find each other through `file`."""
    job: Job = pickle.loads(pickled_job)  # noqa: S301  (from our own caller, through a pipe)
    cuda = job.device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(job.device)
    else:
        torch.set_num_threads(1)  # a device is one core's worth
    began_cpu_seconds = time.process_time()
    connect(job.rank, job.world, job.device, file)
    try:
        report = _train(job)
    except RuntimeError as error:
        raise (error.__cause__ or error) from None  # torch wraps what a layer raises
    finally:
        dist.destroy_process_group()
    report.cpu_seconds = time.process_time() - began_cpu_seconds
    if cuda:
        report.peak_bytes, report.peak_source = torch.cuda.max_memory_allocated(job.device), "allocator"
    return report


def _train(job: Job) -> Report:
    """Runs the steps of this process's stages; returns their times and, on the last stage, the losses."""
    pipeline = Pipeline(
        job.stage_modules,
        job.schedule,
        len(job.batches),
        loss=job.loss,
        template=job.template,
        stage_ranks=job.stage_ranks,
        mean=job.mean,
        device=job.device,
        tied=job.tied,
    )
    pipeline.divisors = job.divisors
    parameters = pipeline.parameters
    optimizer = job.optimizer(parameters) if job.optimizer is not None and parameters else None
    report = Report(job.device, peak_bytes=2 * sum(p.nbytes for p in parameters))
    seed_generators(job.seed + job.rank)  # with one seed, all processes would draw the same dropout masks
    for k in range(job.warmup + job.steps):
        for parameter in parameters:
            parameter.grad = None
        dist.barrier()
        report.start_seconds.append(time.perf_counter())
        loss = pipeline.step(job.batches)
        if k == 0 and job.gradients:
            named_parameters = [pair for module in pipeline.modules.values() for pair in module.named_parameters()]
            report.gradients = {n: gradient_values(p.grad) for n, p in named_parameters if p.grad is not None}
        if optimizer is not None:
            optimizer.step()
        report.end_seconds.append(pipeline.read_clock())
        report.unit_runs.append(pipeline.unit_runs)
        if loss is not None:
            report.losses.append(loss)
    return report
