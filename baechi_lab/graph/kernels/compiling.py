"""A clock that stops while kernels are compiled, which happens once per installation."""

from __future__ import annotations

import time

from .jit import HAS_NUMBA


class Clock:
    """Adds up the time of compilation; kernels that a kernel calls are compiled within its compilation."""

    def __init__(self) -> None:
        self.depth = 0  # how many compilations are under way, one within the other
        # Total, and begin of the present one: one value, as other threads read it.
        self.state: tuple[float, float | None] = 0.0, None

    def start(self) -> None:
        if self.depth == 0:
            self.state = self.state[0], time.perf_counter()
        self.depth += 1

    def end(self) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.state = self.seconds, None

    @property
    def seconds(self) -> float:
        return self.seconds_until(time.perf_counter())

    def seconds_until(self, now_seconds: float) -> float:
        total, began = self.state
        return total if began is None else total + max(now_seconds - began, 0.0)


clock = Clock()

if HAS_NUMBA:
    from numba.core import event

    class _CompileListener(event.Listener):  # type: ignore[misc]  # numba has no types
        def on_start(self, _: object) -> None:
            clock.start()

        def on_end(self, _: object) -> None:
            clock.end()

    event.register("numba:compile", _CompileListener())


def working_seconds() -> float:
    """Returns `time.perf_counter` minus the time of compiling in any thread; reading compiled kernels from disk counts."""
    now_seconds = time.perf_counter()
    return now_seconds - clock.seconds_until(now_seconds)
