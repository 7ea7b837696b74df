"""Estimated PyTorch layers against measured ones on this machine's CPU, and large models timed.

    python tests/benchmarks/torch_estimates.py OUT.json [--llama]

One thread, and its processor time. A core is calibrated on every third step; the others say how good it is. With --llama a
Llama of 70 billion parameters is profiled too, and how long that takes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import baechi_lab as bl
from baechi_lab.graph.hardware import Hardware
from baechi_lab.profilers.torch.layers import in_mode, run_once

LLAMA_70B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


def perceptron(width: int, batch: int) -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    return model, torch.randn(batch, width)


def encoder(width: int, batch: int, length: int) -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, activation="gelu")
    return nn.Sequential(layer), torch.randn(batch, length, width)


def convolutions(channels: int, batch: int, side: int) -> tuple[nn.Module, torch.Tensor]:
    layers = lambda c: (nn.Conv2d(c, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())  # noqa: E731
    return nn.Sequential(*layers(3), *layers(channels), *layers(channels)), torch.randn(batch, 3, side, side)


def points(width: int, batch: int) -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.LayerNorm(width), nn.Softmax(-1), nn.Tanh()), torch.randn(batch, width)


WIDE_CORE = replace(
    Hardware.named("cpu-core"),
    name="cpu-wide-core",
    peak_flops=192e9,
    matmul_flops=192e9,
    half_flops=192e9,
    bandwidth=51.2e9,
)
"""A core with two 16-wide units, twice the width and bandwidth of `cpu-core`: shares of peak are at most 1."""

CASES: list[tuple[Any, tuple[int, ...]]] = [
    (perceptron, (256, 32)),
    (perceptron, (256, 256)),
    (perceptron, (512, 64)),
    (perceptron, (512, 512)),
    (perceptron, (1024, 128)),
    (encoder, (128, 4, 64)),
    (encoder, (256, 4, 128)),
    (encoder, (512, 2, 128)),
    (convolutions, (32, 4, 32)),
    (convolutions, (64, 2, 32)),
    (convolutions, (64, 1, 56)),
    (points, (1024, 512)),
    (points, (512, 64)),
]


def measured_us(model: nn.Module, x: torch.Tensor, mode: str, repeats: int = 8) -> float:
    """Processor time of one thread, which waits for no other process; the least of several runs."""
    times = []
    with in_mode(model, mode == "training"):
        for _ in range(repeats):
            started = time.thread_time_ns()
            run_once(model, (x,), {}, mode == "training")
            times.append((time.thread_time_ns() - started) / 1e3)
    return min(times)


def step_model(model: nn.Module, x: torch.Tensor, mode: str) -> Any:
    """From hardware to the microseconds of a step."""
    estimate = bl.torch.estimate_layers(model, x, mode=mode)
    return lambda hardware: float(sum(kernel_us.sum() for kernel_us in estimate.microseconds(hardware)))


def calibrated() -> dict[str, Any]:
    """Estimated against measured on one core."""
    names, rows = [], []
    for make, sizes in CASES:
        for mode in ("inference", "training"):
            model, x = make(*sizes)
            rows.append((step_model(model, x, mode), measured_us(model, x, mode)))
            names.append(f"{make.__name__} {' '.join(map(str, sizes))} {mode}")
            print(names[-1], round(rows[-1][1], 1), flush=True)
    calibration = bl.calibrate(WIDE_CORE, rows, fit=range(0, len(rows), 3))
    print(calibration)
    plain = np.abs([model(WIDE_CORE) / us - 1 for model, us in rows])
    held_out_errors = np.abs(calibration.held_out)
    return {
        "hardware": {
            key: round(float(getattr(calibration.hardware, key)), 4)
            for key in ("matmul_share", "batched_share", "bandwidth_share", "launch_us")
        },
        "fitted_rows": calibration.fitted.tolist(),
        "mean_absolute_error_of_others": round(float(held_out_errors.mean()), 4),
        "median_and_largest_of_others": [round(float(np.percentile(held_out_errors, p)), 4) for p in (50, 100)],
        "mean_absolute_error_uncalibrated": round(float(plain.mean()), 4),
        "rows": [
            {"step": name, "measured_us": round(us, 1), "estimated_us": round(model(calibration.hardware), 1)}
            for name, (model, us) in zip(names, rows, strict=True)
        ],
    }


def llama() -> dict[str, Any]:
    """Seconds to build and profile a Llama of 70 billion parameters, training, 8 x 2048 tokens."""
    import resource

    started, processor = time.perf_counter(), time.process_time()
    model, inputs = bl.torch.hugging_face(LLAMA_70B, batch_size=8, sequence_length=2048)
    built = time.perf_counter()
    graph = bl.torch.profile(model, inputs, hardware=["h100", "b200"], dtype="bf16", optimizer="adam")
    ended = time.perf_counter()
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "ops": graph.n,
        "seconds_to_build": round(built - started, 1),
        "seconds_to_profile": round(ended - built, 1),
        "processor_seconds_in_all": round(time.process_time() - processor, 1),
        "peak_memory_of_the_process_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "work_ms": {kind: round(float(us.sum()) / 1e3, 1) for kind, us in graph.duration_by_kind.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--llama", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    result = {
        "command": "python tests/benchmarks/torch_estimates.py " + " ".join(sys.argv[1:]),
        "seed": 0,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": f"{os.cpu_count()} cores",
        "load": [round(x, 1) for x in os.getloadavg()],
        "torch": torch.__version__,
    }
    if options.llama:
        result["llama_70b"] = llama()
        print(result["llama_70b"], flush=True)
    result["cpu"] = calibrated()
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
