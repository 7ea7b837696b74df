"""Step times of PyTorch models on this machine's GPUs, placed in several ways: python tests/benchmarks/torch_gpu.py OUT.json

With one GPU its stream groups stand for devices. Times are medians over steps after warm-up; every row says how many
threads the reordering started. The result names the hardware, the versions and the date.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from baechi_lab.errors import BaechiLabError
from baechi_lab.executors.torch import execute
from baechi_lab.graph import Cluster, Link, OpGraph, Placement
from baechi_lab.profilers.torch.profile import profile
from baechi_lab.torch.models import build, expert
from baechi_lab.torch.references import Accelerate, Naive, Pipelining
from baechi_lab.torch_runtime.transport import HostTransport
from baechi_lab.torch_steps.step import TorchStep

CONFIG = {
    "inception_v3": {"batch_size": 32},
    "resnet50": {"batch_size": 32},
    "transformer": {"batch_size": 32, "length": 64},
    "gnmt": {"batch_size": 32, "length": 40},
    "bert": {"batch_size": 16, "length": 128},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=list(CONFIG), choices=list(CONFIG))
    parser.add_argument("--devices", type=int, default=max(2, torch.cuda.device_count()))
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    gpu_count = max(torch.cuda.device_count(), 1)
    devices = [f"cuda:{d % gpu_count}" for d in range(options.devices)]
    link = measured_link(devices)
    cluster = Cluster.uniform(options.devices, memory_bytes=free_bytes(devices), link=link)
    rows = [row for name in options.models for row in model_rows(name, cluster, devices, options.steps)]
    result = {"hardware": hardware(), "devices": devices, "link": [link.latency_us, link.us_per_byte], "rows": rows}
    options.out.write_text(json.dumps(result, indent=1))


def hardware() -> dict[str, object]:
    """What the numbers were measured on."""
    return {
        "gpus": [torch.cuda.get_device_name(d) for d in range(torch.cuda.device_count())],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": " ".join(sys.argv),
    }


def free_bytes(devices: list[str]) -> int:
    """Memory per logical device: each has its share of its GPU."""
    share = max(devices.count(d) for d in set(devices))
    return min(torch.cuda.mem_get_info(d)[0] for d in set(devices)) // share


def measured_link(devices: list[str]) -> Link:
    """A line through copies of 4 KB to 64 MB between the first two logical devices."""
    sizes, times = [1 << k for k in range(12, 27, 2)], []
    for size in sizes:
        x = torch.empty(size, dtype=torch.uint8, device=devices[0])
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        for repeat in range(3):
            marks[0].record()
            for _ in range(10):
                x.clone() if devices[0] == devices[1] else x.to(devices[1])
            marks[1].record()
            torch.cuda.synchronize()
            if repeat:
                times.append((size, marks[0].elapsed_time(marks[1]) * 100.0))
    slope, latency = np.polyfit(*zip(*times, strict=True), 1)
    return Link(max(float(latency), 0.0), max(float(slope), 0.0))


class Configuration(NamedTuple):
    """How a model is placed and run: the row's label, a placer or its name, and the order of ops (`reorder` of `execute`).

    `blocking`: copies between devices block the host, as without streams.
    """

    label: str
    placer: object
    reorder: str = "gpu"
    blocking: bool = False


def model_rows(name: str, cluster: Cluster, devices: list[str], steps: int) -> list[dict[str, object]]:
    """One row per configuration of one model."""
    step = build(name, **CONFIG[name])
    graph = profile(step, device=devices[0])
    configurations = [
        *(Configuration(placer, placer) for placer in ("single", "m-topo", "m-etf", "m-sct")),
        Configuration("m-etf, global order", "m-etf", "global"),
        Configuration("m-etf, code order", "m-etf", "none"),
        Configuration("expert", "expert"),
        Configuration("naive .to()", Naive(), "none", blocking=True),
        Configuration("accelerate", Accelerate(step), "none", blocking=True),
        Configuration("torch pipelining", Pipelining(step), "none", blocking=True),
    ]
    return [measured_row(name, step, graph, cluster, devices, steps, each) for each in configurations]


def measured_row(
    name: str,
    step: TorchStep,
    graph: OpGraph,
    cluster: Cluster,
    devices: list[str],
    steps: int,
    configuration: Configuration,
) -> dict[str, object]:
    """Places, simulates and runs one configuration."""
    from baechi_lab.simulator import simulate

    label, placer, reorder, blocking = configuration
    columns: dict[str, object] = {"model": name, "config": CONFIG[name], "way": label, "reorder": reorder}
    try:
        placement = place(name, placer, graph, cluster)
        columns["simulated_us"] = simulate(graph, cluster, placement).makespan_us
        transport = HostTransport(devices) if blocking and len(set(devices)) > 1 else None
        run = execute(
            step, placement, steps, cluster=cluster, graph=graph, devices=devices, reorder=reorder, transport=transport
        )
    except (BaechiLabError, ImportError) as error:
        return {**columns, "error": str(error)}
    timeline = run.timeline
    return {
        **columns,
        "status": run.status,
        "median_us": run.median_seconds * 1e6,
        "steps": steps,
        "peak_bytes": [] if timeline is None else timeline.peak_bytes.tolist(),
        "observed_us": None if timeline is None else timeline.makespan_us,
        "threads": run.info["threads_started"],
        "loss": run.outputs[-1][0] if run.outputs else None,
    }


def place(name: str, placer: object, graph: OpGraph, cluster: Cluster) -> Placement:
    """A placement of the full graph."""
    if placer == "expert":
        return expert(name, graph, cluster)
    if not isinstance(placer, str):
        return placer.assign(graph, cluster)  # type: ignore[attr-defined, no-any-return]
    from baechi_lab.placers import place as run_placer

    return run_placer(graph, cluster, placer)


if __name__ == "__main__":
    main()
