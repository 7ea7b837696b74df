"""Measures layers and whole models on the attached GPU.

    python -m studies.gpu.measure OUT.json

Every layer and model runs forward alone ("inference") and forward with backward ("training"), models with a step of AdamW too
("step"), in three precisions: "fp32", "tf32" and "bf16" (all weights in it). Stored of each are

    us          microseconds from the first to the last of many repeats, divided by their number (CUDA events)
    kernel_us   the sum of the times of its kernels (PyTorch's profiler)
    kernels     how many there are
    peak_bytes  of models: the most bytes that tensors took, weights included (PyTorch's allocator)

The file also has the products of a published table (`--products data/neusight/kernels.csv.gz`) and copies between host and
device. Traces of models (`--traces gpt2:bf16`) are written beside OUT.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baechi_lab.errors import BaechiLabError
from studies.csv_records import read_rows
from studies.gpu.cases import Layer, Model, layers, models

GPU = "cuda"
PRECISIONS = ("fp32", "tf32", "bf16")
ROUNDS = 3
"""How often every time is measured; the median counts."""
ROUND_SECONDS = 0.02
"""A round lasts about as long, and has at least `LEAST_REPEATS` repeats."""
LEAST_REPEATS, MOST_REPEATS = 3, 200
LONGEST = 24
"""How many kernels of a case are stored by name: those that took longest."""
PHASES = ("inference", "training", "step")


@contextmanager
def precision_of_products(precision: str) -> Iterator[None]:
    """Sets the precision of float32 products and convolutions."""
    allows_tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allows_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def microseconds(run: Callable[[], object], least: int = LEAST_REPEATS) -> float:
    """Returns the median time of a repeat."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    run()
    torch.cuda.synchronize()
    repeats = int(min(MOST_REPEATS, max(least, ROUND_SECONDS / (time.perf_counter() - begun))))
    times = []
    for _ in range(ROUNDS):
        start.record()
        for _ in range(repeats):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / repeats)
    return statistics.median(times)


def kernel_times(run: Callable[[], object]) -> dict[str, Any]:
    """Returns the sum of the kernels' times of one repeat, their number, and the longest of them by name."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    rows = [(e.key, e.self_device_time_total, e.count) for e in profiler.key_averages() if e.self_device_time_total > 0]
    longest = sorted(rows, key=lambda row: -row[1])[:LONGEST]
    return {
        "kernel_us": round(sum(us for _, us, _ in rows), 2),
        "kernels": sum(count for _, _, count in rows),
        "longest": [[name[:80], round(us, 1), count] for name, us, count in longest],
    }


def of_type(x: torch.Tensor, precision: str) -> torch.Tensor:
    """Returns an input in the precision; whole numbers stay as they are."""
    if precision != "bf16" or not x.is_floating_point():
        return x
    return x.detach().bfloat16().requires_grad_(x.requires_grad)


def layer_rows(layer: Layer) -> Iterator[dict[str, Any]]:
    """Measures a layer in all precisions and phases."""
    for precision in PRECISIONS:
        with torch.device(GPU):
            module, tensors = layer.build()
        if precision == "bf16":
            module = module.bfloat16()
        inputs = tuple(of_type(x, precision) for x in tensors)
        trained_tensors = [*module.parameters(), *(x for x in inputs if x.requires_grad)]
        with torch.no_grad():
            output = module(*inputs)
        gradient = torch.randn_like(output)

        def infer(module: nn.Module = module, inputs: Sequence[torch.Tensor] = inputs) -> None:
            with torch.no_grad():
                module(*inputs)

        def train(
            module: nn.Module = module,
            inputs: Sequence[torch.Tensor] = inputs,
            trained_tensors: Sequence[torch.Tensor] = trained_tensors,
            gradient: torch.Tensor = gradient,
        ) -> None:
            torch.autograd.grad(module(*inputs), trained_tensors, gradient)

        with precision_of_products(precision):
            for phase, run in (("inference", infer), ("training", train)):
                module.train(phase == "training")
                us = microseconds(run)
                yield {"precision": precision, "phase": phase, "us": round(us, 2), **kernel_times(run)}


def model_rows(case: Model, phases: Sequence[str] = PHASES) -> Iterator[dict[str, Any]]:
    """Measures a model in all precisions, and in these phases."""
    for precision in PRECISIONS:
        torch.manual_seed(0)
        model, inputs = real_model(case, precision)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

        def infer(model: nn.Module = model, inputs: Mapping[str, Any] = inputs) -> None:
            with torch.no_grad():
                model(**inputs)

        def train(model: nn.Module = model, inputs: Mapping[str, Any] = inputs) -> None:
            model.zero_grad(set_to_none=True)
            model(**inputs).loss.backward()

        def step(optimizer: torch.optim.Optimizer = optimizer, train: Callable[[], None] = train) -> None:
            train()
            optimizer.step()

        with precision_of_products(precision):
            run_of_phase: dict[str, Callable[[], None]] = {"inference": infer, "training": train, "step": step}
            for phase, run in run_of_phase.items():
                if phase not in phases:
                    continue
                model.train(phase != "inference")
                us = microseconds(run, 2)
                torch.cuda.reset_peak_memory_stats()
                run()
                torch.cuda.synchronize()
                peak = torch.cuda.max_memory_allocated()
                yield {
                    "precision": precision,
                    "phase": phase,
                    "us": round(us, 1),
                    **kernel_times(run),
                    "peak_bytes": peak,
                }
        del model, inputs, optimizer, infer, train, step
        free_memory()


def real_model(case: Model, precision: str) -> tuple[nn.Module, dict[str, Any]]:
    """Builds a model with random weights on the GPU, and random inputs."""
    from baechi_lab.profilers.torch.hugging_face import hugging_face

    description, inputs = hugging_face(dict(case.fields), batch_size=case.batch, sequence_length=case.sequence)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    with torch.device(GPU):
        model = type(description)._from_config(description.config, dtype=dtype).train()
    return model, {name: real_input(name, value, dtype) for name, value in inputs.items()}


def real_input(name: str, value: Any, dtype: torch.dtype) -> Any:
    """Returns an input with numbers: random ones, and small tokens and classes."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point():
        return torch.randn(value.shape, device=GPU, dtype=dtype)
    if name == "labels" and value.ndim == 1:
        return torch.zeros(value.shape, device=GPU, dtype=torch.long)
    return torch.randint(10, 1000, value.shape, device=GPU)


def free_memory() -> None:
    """Gives back what nobody holds, and the workspaces of the products that ran."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def product_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Measures the products of `data/neusight` on an H100, as they stand there and with inner and columns exchanged."""
    table = [row for row in read_rows(path) if row["op"] in ("linear", "bmm") and "H100" in row["device"]]
    for row in table:
        count, rows, inner, columns = (int(row[key]) for key in ("count", "rows", "inner", "columns"))
        about = {"op": row["op"], "count": count, "rows": rows, "inner": inner, "columns": columns}
        yield {
            **about,
            "published_ms": float(row["ms"]),
            "us": product_us(row["op"], count, rows, inner, columns),
            "exchanged_us": product_us(row["op"], count, rows, columns, inner),
        }


def product_us(op: str, count: int, rows: int, inner: int, columns: int) -> float | None:
    """Returns the time of a product in float32; None if it does not fit."""
    try:
        x = torch.randn(count, rows, inner, device=GPU)
        if op == "linear":
            layer = nn.Linear(inner, columns, device=GPU).requires_grad_(False)
            return microseconds(lambda: layer(x))
        right_operand = torch.randn(count, inner, columns, device=GPU)
        return microseconds(lambda: torch.bmm(x, right_operand))
    except torch.cuda.OutOfMemoryError:
        return None
    finally:
        free_memory()


def copy_rows() -> Iterator[dict[str, Any]]:
    """Measures copies within the device, and from and to the host, pinned and not."""
    for size in (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 28):
        host, pinned_memory = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8).pin_memory()
        device = torch.ones(size, dtype=torch.uint8, device=GPU)
        for name, source, target in (
            ("device", device, device.clone()),
            ("from host", host, device),
            ("from pinned host", pinned_memory, device),
            ("to host", device, host),
            ("to pinned host", device, pinned_memory),
        ):
            run = lambda source=source, target=target: target.copy_(source, non_blocking=True)  # noqa: E731
            yield {"copy": name, "bytes": size, "us": round(microseconds(run), 2)}


def write_traces(folder: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Writes PyTorch's traces of two training steps, with shapes, as GZIP; `names` are "model:precision"."""
    cases = {case.name: case for case in models()}
    for name in names:
        model_name, precision = name.split(":")
        model, inputs = real_model(cases[model_name], precision)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

        def step(model: nn.Module = model, inputs: Mapping[str, Any] = inputs, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad(set_to_none=True)
            model(**inputs).loss.backward()
            optimizer.step()

        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with precision_of_products(precision):
            for _ in range(3):
                step()
            torch.cuda.synchronize()
            with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
                for k in range(2):
                    with torch.profiler.record_function(f"ProfilerStep#{k}"):
                        step()
                torch.cuda.synchronize()
        path = folder / f"trace_{model_name}_{precision}.json.gz"
        profiler.export_chrome_trace(str(path))
        yield {"trace": path.name, "bytes": path.stat().st_size}
        del model, inputs, optimizer, step
        free_memory()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints and stores every case."""
    parser = argparse.ArgumentParser(prog="python -m studies.gpu.measure", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--products", type=Path, help="a table of measured products, gzipped CSV")
    parser.add_argument("--layers", default="", help="only layers whose kind or sizes contain this; - for none")
    parser.add_argument("--models", nargs="*", help="only these models")
    parser.add_argument("--phases", nargs="+", default=PHASES, choices=PHASES, help="phases of models")
    parser.add_argument("--traces", nargs="*", default=[], help="models to trace, as name:precision")
    parser.add_argument("--seconds", type=float, default=600.0, help="models that would begin later are left out")
    options = parser.parse_args(arguments)
    begun = time.perf_counter()
    result: dict[str, Any] = {
        "command": "python -m studies.gpu.measure " + " ".join(sys.argv[1:]),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "layers": [],
        "models": [],
        "errors": [],
    }

    def save() -> None:
        options.out.write_text(json.dumps(result, indent=1))

    def attempt(name: str, rows: Iterator[dict[str, Any]], target: list[dict[str, Any]], **about: Any) -> None:
        try:
            target.extend({**about, **row} for row in rows)
        except (RuntimeError, ValueError, TypeError, BaechiLabError) as error:  # one case that fails leaves the others
            result["errors"].append(f"{name}: {type(error).__name__}: {error}"[:500])
        free_memory()
        print(f"{time.perf_counter() - begun:6.1f} s  {name}", flush=True)

    for layer in layers():
        if options.layers == "-" or options.layers not in f"{layer.kind} {layer.sizes}":
            continue
        attempt(f"{layer.kind} {layer.sizes}", layer_rows(layer), result["layers"], kind=layer.kind, sizes=layer.sizes)
    save()
    for key, rows in (
        ("copies", copy_rows() if not options.layers else iter(())),
        ("products", product_rows(options.products) if options.products else iter(())),
    ):
        attempt(key, rows, result.setdefault(key, []))
    save()
    attempt("traces", write_traces(options.out.parent, options.traces), result.setdefault("traces", []))
    for case in models():
        if options.models is not None and case.name not in options.models:
            continue
        if time.perf_counter() - begun > options.seconds:
            result["errors"].append(f"{case.name}: left out for lack of time")
            continue
        about = {"model": case.name, "batch": case.batch, "sequence": case.sequence}
        attempt(case.name, model_rows(case, options.phases), result["models"], **about)
        save()


if __name__ == "__main__":
    main()
