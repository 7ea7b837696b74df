"""Calls that wait for their turn, each in its own thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future as Job
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from ..errors import ExecutionError
from .context import Context
from .deferred import Future, Spec, resolve
from .forward_state import ForwardState
from .gate import Gate
from .sequence import inputs_of, renumber
from .tree import Args, Function, Kwargs, tensors


class WaitingCall(NamedTuple):
    """A call that a thread makes when its turn comes: what it runs, the promised outputs, sequence numbers and context.

    `cores` is `torch.get_num_threads()` of the thread that reached the call. Another number gives other rounding.
    """

    key: str
    device: str
    run: Function
    args: Args
    kwargs: Kwargs
    spec: object
    first: int
    numbers: int
    context: Context
    cores: int

    def make(self, state: ForwardState, future: Future, submit: Callable[..., object]) -> None:
        """Waits for the turn of `future`'s op, submits the call, and stores its outputs or error in `future`."""
        gate: Gate = state.gate  # type: ignore[assignment]
        gate.wait(future.op)
        try:
            if state.error is not None:
                raise state.error
            if torch.get_num_threads() != self.cores:
                torch.set_num_threads(self.cores)
            with self.context.restore():
                args, kwargs = resolve((self.args, self.kwargs))
                stop = inputs_of((args, kwargs))
                state.order.append(future.op)
                outputs = submit(state, future.op, self.run, args, kwargs)
                renumber(outputs, stop, self.first, self.numbers)
            specs = _specs(self.spec)
            output_tensors = list(tensors(outputs))
            if len(specs) != len(output_tensors) or not all(
                s.fits(t) for s, t in zip(specs, output_tensors, strict=True)
            ):
                raise ExecutionError(
                    f"layer {self.key!r} made other shapes than it did before for inputs of the same shape; "
                    "shapes that depend on data need reorder='none'"
                )
            future.set(outputs)
        except BaseException as error:  # noqa: BLE001 - whatever a layer raises reaches the caller through the future
            if hasattr(error, "add_note") and not hasattr(error, "__notes__"):  # Python 3.11
                error.add_note(f"raised in layer {self.key!r} on device {self.device}")
            future.fail(error)
        finally:
            gate.submit(future.op)


class Threads:
    """Threads that stay between steps. A new one is started only if none is free.

    New threads in every step would lose what libraries keep per thread (prepared convolutions). There may be `max_threads`,
    one per call, so that no call ever waits for a thread.
    """

    def __init__(self, max_threads: int):
        self.max_threads = max(1, max_threads)
        self.pool: ThreadPoolExecutor | None = None

    def start(self, call: WaitingCall, state: ForwardState, future: Future, submit: Callable[..., object]) -> Job[None]:
        if self.pool is None:
            self.pool = ThreadPoolExecutor(self.max_threads, thread_name_prefix="baechi")
        return self.pool.submit(call.make, state, future, submit)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None


def _specs(spec: object) -> list[Spec]:
    if isinstance(spec, (tuple, list)):
        return [leaf for entry in spec for leaf in _specs(entry)]
    if isinstance(spec, dict):
        return [leaf for entry in spec.values() for leaf in _specs(entry)]
    return [spec] if isinstance(spec, Spec) else []
