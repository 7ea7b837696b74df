"""An executor that runs calls in the caller's thread: for tests, small sweeps and debuggers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class InlineExecutor(Executor):
    """An executor whose `submit` runs the function at once.

    >>> InlineExecutor().submit(max, 1, 2).result()
    2
    """

    def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Future[Any]:
        """Returns a finished future with the function's result or error."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # the future tells what the function raised; Ctrl-C also ends the caller
            future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        return future
