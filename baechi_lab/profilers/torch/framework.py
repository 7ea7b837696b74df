"""PyTorch's implementation of the protocol `baechi_lab.profilers.dispatch.Profiler`."""

from __future__ import annotations

import time
from typing import Any

from torch import nn

from ...errors import InvalidInput
from ...graph import OpGraph
from ...graph.hardware import HardwareChoice
from ...torch_steps.step import TorchStep
from ..dispatch import MeasureSettings, Report, hardware_names
from .profile import profile


def profile_with_report(
    subject: nn.Module | TorchStep,
    inputs: tuple[object, ...],
    mode: str,
    hardware: HardwareChoice,
    precision: str | None,
    settings: MeasureSettings,
    **options: Any,
) -> tuple[OpGraph, Report]:
    """Profiles by `bl.torch.profile`, measured in this process, or estimated; `timeout` and `progress` are TensorFlow's."""
    start_seconds = time.perf_counter()
    if len(inputs) > 1:
        raise InvalidInput(f"{len(inputs)} inputs were given with a PyTorch module; give one tensor, tuple or dict")
    if mode == "estimated":
        graph = profile(subject, *inputs, hardware=hardware, precision=precision, **options)
        return graph, Report.of_pairs(graph, mode, hardware_names(hardware), start_seconds)
    graph = profile(subject, *inputs, device=settings.device, warmup=settings.warmup, runs=settings.runs, **options)
    return graph, Report.of_pairs(graph, mode, settings.device or "where the model is", start_seconds)
