"""Measures in a worker process: if TensorFlow crashes or hangs there, the caller gets one clear error.

`measurement` does the measuring; this module sends the request and reads the answer.
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
from ..machine_load import OtherPrograms
from .measurement import (
    Measurement,
    check_counts,
    collect_traces,
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
    """Returns the measured device (default: the first GPU, else the CPU), its kind, and the cost of each op on it.

    Raises:
        InvalidInput: a count is invalid.
        UnknownNameError: TensorFlow does not have the device.
        ExecutionError: the worker process died or took longer than `timeout` seconds, or TensorFlow cannot run the step.
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
                    us, temp, persistent, in_trace, outputs, run_us = answer.arrays
                    sizes = {(op, slot): size for op, slot, size in outputs.tolist()}
                    load = answer.header["others_share"]
                    measurement = Measurement(us, temp, persistent, sizes, in_trace, run_us, load)
                    return answer.header["device"], answer.header["device_kind"], measurement
                bar.update()
        except WorkerEnded as ended:
            raise ExecutionError(f"step {step.name!r} was not measured: {ended.message}") from ended
    raise ExecutionError(f"step {step.name!r} was not measured: the worker gave no answer")


def serve(request: Message, send: Send) -> None:
    """Measures the step of a `profile` request; sends `progress` after each step, then `profile`."""
    header = request.header
    step = read_step(header, request.arrays)[0]
    device = header["device"] or default_device()
    kind = device_kind(device)
    other_programs = OtherPrograms(time.process_time)  # covers the whole time, because the system's clocks are coarse
    with step_session(step, device) as run:

        def run_and_report(with_trace: bool) -> Any:
            metadata = run(with_trace)
            send("progress")
            return metadata

        traces = collect_traces(run_and_report, header["warmup"], header["runs"])
        others_share = other_programs.share()
    measurement = read_traces(read_structure(step), traces, on_gpu=kind == "gpu")
    rows = [(op, slot, size) for (op, slot), size in sorted(measurement.output_bytes.items())]
    outputs = np.array(rows, dtype=np.int64).reshape(-1, 3)
    columns = measurement.duration_us, measurement.temp_bytes, measurement.persistent_bytes, measurement.in_trace
    facts = {"device": device, "device_kind": kind, "others_share": others_share}
    send("profile", facts, (*columns, outputs, measurement.run_us))
