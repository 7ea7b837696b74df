"""The `profile` request: measure every op of a step in a worker process, so that the caller's TensorFlow stays out of it.

What is measured, and how, is `baechi_lab.profilers.measured`; here is only the way there and back.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from ...errors import ExecutionError
from ...graph.step import Step
from .client import Worker, WorkerEnded
from .messages import Message, Send
from .transport import read_step, step_arrays, step_header

if TYPE_CHECKING:
    from ...profilers.measured import Measurement


def measure(
    step: Step, device: str | None = None, warmup: int = 5, runs: int = 5, timeout: float | None = None
) -> tuple[str, Measurement]:
    """The device that was measured (default: the first GPU, else the CPU) and what each op costs on it.

    The same as `profilers.measured` gives in this process. Raises `ExecutionError` when the worker dies, hangs
    beyond `timeout` seconds, or TensorFlow cannot run the step.

    >>> where, costs = measure(step)  # doctest: +SKIP
    """
    from ...profilers.measured import Measurement

    header = {**step_header(step), "device": device, "warmup": warmup, "runs": runs}
    request = Message("profile", header, (*step_arrays(step), *step.example_inputs))
    with Worker() as worker, closing(worker.exchange(request, {"profile", "failed"}, timeout)) as answers:
        try:
            for answer in answers:
                if answer.kind == "failed":
                    raise ExecutionError(answer.header["message"])
                duration, temp, kept, seen, outputs = answer.arrays
                sizes = {(int(op), int(slot)): int(size) for op, slot, size in outputs.tolist()}
                return answer.header["device"], Measurement(duration, temp, kept, sizes, seen)
        except WorkerEnded as ended:
            raise ExecutionError(f"step {step.name!r} was not measured: {ended.message}") from ended
    raise ExecutionError(f"step {step.name!r} was not measured: the worker gave no answer")


def serve(request: Message, send: Send) -> None:
    """Measure the step of a `profile` request."""
    from ...profilers.measured import collect, default_device, read_traces, step_session
    from ...profilers.structure import read_structure

    header = request.header
    step = read_step(header, request.arrays)[0]
    device = header["device"] or default_device()
    with step_session(step, device) as run:
        found = read_traces(read_structure(step), collect(run, header["warmup"], header["runs"], progress=False))
    rows = [(op, slot, size) for (op, slot), size in sorted(found.output_bytes.items())]
    outputs = np.array(rows, dtype=np.int64).reshape(-1, 3)
    send("profile", {"device": device}, (found.duration_us, found.temp_bytes, found.kept_bytes, found.seen, outputs))
