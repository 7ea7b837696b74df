"""Runs a PyTorch step without baechi_lab: eager, and compiled by `torch.compile`, on one device in this process."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import nn

from ...errors import InvalidInput
from ...graph import Cluster, NativeRun, Placement
from ...torch_runtime.random import seed_generators
from ...torch_steps.optimizer_trial import new_optimizer
from ...torch_steps.plan import torch_devices
from ...torch_steps.snapshot import ModelSnapshot
from ...torch_steps.step import TorchStep
from ...workers.failures import first_line
from ..native import NativeRunner, Stop, timed_steps
from .execution import synchronize
from .placed_model import default_cluster

EAGER, COMPILED = "eager", "torch.compile"


def native_runners(
    step: TorchStep, placement: Placement | None, cluster: Cluster | None, kind: str = "auto", inputs: object = None
) -> Mapping[str, NativeRunner]:
    """Returns both runners, on the torch device of the placement's device 0. They share one model.

    Without a `cluster` the device is of `kind`. The step has its batch: `inputs` is TensorFlow's.
    """
    if not isinstance(step, TorchStep):
        raise InvalidInput(f"step is a {type(step).__name__}; give a baechi_lab.torch.TorchStep")
    run_cluster = cluster or default_cluster(placement or Placement(device=np.zeros(1, dtype=np.int32)), kind)
    device = torch_devices(run_cluster, None)[0]
    native = _Native(step.on(device), device)
    return {EAGER: partial(native, EAGER), COMPILED: partial(native, COMPILED)}


class _Native:
    """One model on one device, eager and compiled. Every run starts from the step's own parameters."""

    def __init__(self, step: TorchStep, device: str):
        self.step, self.device = step, device
        self.model: nn.Module | None = None
        self.forms: dict[str, Callable[..., object]] = {}

    def __call__(self, mode: str, steps: int, warmup: int = 3, stop: Stop | None = None) -> NativeRun:
        info = {"device": self.device, "threads": torch.get_num_threads()}
        lacking = no_compiler(self.device) if mode == COMPILED else ""
        if lacking:
            return NativeRun(mode, np.zeros(0), status="died", message=lacking, info=info)
        if self.model is None:
            self.model = self.step.model()
        model = self.model
        model_device = next((p.device for p in model.parameters()), torch.device("cpu"))
        with ModelSnapshot(model, self.step.inputs):
            model.to(self.device)
            try:
                return self._run(mode, model, steps, warmup, stop, info)
            finally:
                if model_device != torch.device(self.device):
                    model.to(model_device)

    def _run(
        self, mode: str, model: nn.Module, steps: int, warmup: int, stop: Stop | None, info: dict[str, object]
    ) -> NativeRun:
        form = self.forms.setdefault(mode, model if mode == EAGER else torch.compile(model))
        step = self.step
        seed_generators(step.seed)
        optimizer = new_optimizer(step, model.parameters())

        def one(_: int) -> tuple[tuple[object, ...], float]:
            for parameter in model.parameters():
                parameter.grad = None
            synchronize()
            start = time.perf_counter()
            loss = step.run(form, optimizer)  # type: ignore[arg-type]
            synchronize()
            return (float(loss.detach()),), time.perf_counter() - start

        failures = (RuntimeError, OSError, MemoryError)
        with warnings.catch_warnings():
            if mode == COMPILED:  # code that cannot be compiled runs eagerly
                warnings.simplefilter("ignore")
            return timed_steps(mode, one, steps, warmup, stop, _failure, failures, info)


def no_compiler(device: str) -> str:
    """Returns the reason why `torch.compile` cannot work for this device; empty if it can."""
    if device.startswith("cuda"):
        from importlib.util import find_spec

        return "" if find_spec("triton") else "torch.compile needs triton for GPUs, and it is not installed"
    compiler_name = os.environ.get("CXX")
    if compiler_name:
        if shutil.which(compiler_name):
            return ""
        return f"torch.compile needs a C++ compiler, and CXX={compiler_name} is not here"
    compiler = shutil.which("g++") or shutil.which("clang++")
    return "" if compiler else "torch.compile needs a C++ compiler, and none is here (g++, clang++, or CXX)"


def _failure(error: BaseException) -> tuple[str, str]:
    full = isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError))
    return "out-of-memory" if full else "died", first_line(error)
