"""Ray as an executor: `bl.sweep(..., executor=RayExecutor())`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import FunctionType
from typing import Any

from ..errors import MissingPackage


class RayExecutor(Executor):
    """An executor that runs calls as Ray tasks; shared data goes into Ray's object store, once to each machine.

    Ray runs a task again when its worker or machine dies (option `max_retries`, by default 3).

    Args:
        options: of `ray.remote`, for example `num_cpus=1`. Ray is started when it is not running.

    Raises `MissingPackage` without Ray.

    >>> rows = bl.sweep(graph, executor=RayExecutor(num_cpus=1))  # doctest: +SKIP
    """

    def __init__(self, **options: object) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingPackage("RayExecutor needs the package 'ray': pip install ray") from error
        if not ray.is_initialized():
            ray.init(include_dashboard=False)
        self._ray = ray
        self._options = {"max_retries": 3, **options}
        self._remote: dict[Callable[..., object], Any] = {}
        self.retryable_errors = (
            ray.exceptions.RaySystemError,
            ray.exceptions.WorkerCrashedError,
            ray.exceptions.ObjectLostError,
        )

    def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Future[Any]:
        """Returns the future of a Ray task; cancelling it cancels the task."""
        if fn not in self._remote:
            self._remote[fn] = self._ray.remote(**self._options)(_plain(fn))
        reference = self._remote[fn].remote(*args, **kwargs)
        future: Future[object] = reference.future()

        def cancel(future: Future[object]) -> None:
            if future.cancelled():
                self._ray.cancel(reference)

        future.add_done_callback(cancel)
        return future

    def share(self, data: bytes) -> object:
        """Returns a reference to `data` in the object store; the function gets the bytes in its place."""
        return self._ray.put(data)


def _plain(fn: Callable[..., object]) -> Callable[..., object]:
    """Returns a plain function that calls `fn`: Ray accepts neither built-in functions nor other callables."""
    if isinstance(fn, FunctionType):
        return fn

    def call(*args: object, **kwargs: object) -> object:
        return fn(*args, **kwargs)

    return call
