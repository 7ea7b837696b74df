"""Measuring in a worker process: whatever becomes of TensorFlow there, the caller gets a result or one clear error.

What is measured, and how, is in `measured`; here is only the way there and back.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import numpy as np

from ...errors import ExecutionError
from ...graph.step import Step
from ...workers.client import Worker, WorkerEnded, refusal
from ...workers.messages import Message, Send
from ...workers.transport import read_step, step_arrays, step_header
from ..machine_load import Others
from .measured import (
    Measurement,
    Runner,
    check_counts,
    collect,
    default_device,
    device_kind,
    read_traces,
    step_session,
)
from .structure import read_structure


def measure(
    step: Step,
    device: str | None = None,
    warmup: int = 5,
    runs: int = 5,
    timeout: float | None = None,
    progress: bool = False,
    worker: Worker | None = None,
) -> tuple[str, str, Measurement]:
    """The device that was measured (default: the first GPU, else the CPU), its kind, and what each op costs on it.

    Raises `InvalidInput` for bad counts, `UnknownNameError` for a device that TensorFlow lacks, `ExecutionError` when
    the worker process dies, hangs beyond `timeout` seconds, or TensorFlow cannot run the step.

    >>> where, kind, costs = measure(step)  # doctest: +SKIP
    """
    from tqdm.auto import tqdm

    check_counts(warmup, runs)
    header = {**step_header(step), "device": device, "warmup": warmup, "runs": runs}
    request = Message("profile", header, (*step_arrays(step), *step.example_inputs))
    bar = tqdm(total=warmup + 1 + runs, desc="profile", unit="step", leave=False, disable=None if progress else True)
    with bar, worker or Worker() as used, closing(used.exchange(request, {"profile", "failed"}, timeout)) as answers:
        try:
            for answer in answers:
                if answer.kind == "failed":
                    raise refusal(answer)
                if answer.kind == "profile":
                    return answer.header["device"], answer.header["device_kind"], _measurement(answer)
                bar.update()
        except WorkerEnded as ended:
            raise ExecutionError(f"step {step.name!r} was not measured: {ended.message}") from ended
    raise ExecutionError(f"step {step.name!r} was not measured: the worker gave no answer")


def _measurement(answer: Message) -> Measurement:
    duration, temp, kept, seen, outputs, run_us = answer.arrays
    sizes = {(op, slot): size for op, slot, size in outputs.tolist()}
    return Measurement(duration, temp, kept, sizes, seen, run_us, answer.header["others_share"])


def serve(request: Message, send: Send) -> None:
    """Measure the step of a `profile` request; sends `progress` per step, then `profile`."""
    header = request.header
    step = read_step(header, request.arrays)[0]
    device = header["device"] or default_device()
    kind = device_kind(device)
    others = Others(time.process_time)  # the whole time counts, since the system's clocks are coarse
    with step_session(step, device) as run:
        traces = collect(_telling(run, send), header["warmup"], header["runs"], progress=False)
        others_share = others.share()
    found = read_traces(read_structure(step), traces, on_gpu=kind == "gpu")
    rows = [(op, slot, size) for (op, slot), size in sorted(found.output_bytes.items())]
    outputs = np.array(rows, dtype=np.int64).reshape(-1, 3)
    costs = (found.duration_us, found.temp_bytes, found.kept_bytes, found.seen, outputs, found.run_us)
    send("profile", {"device": device, "device_kind": kind, "others_share": others_share}, costs)


def _telling(run: Runner, send: Send) -> Runner:
    """`run`, which says after each step that it has ended."""

    def told(traced: bool) -> Any:
        metadata = run(traced)
        send("progress")
        return metadata

    return told
