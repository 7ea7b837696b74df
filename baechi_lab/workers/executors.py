"""Executors for calls: those of this package, of `concurrent.futures`, and Dask clients."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager
from typing import Any

from ..errors import InvalidInput, in_short


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


class Calls:
    """Submits calls to an executor; data that many calls share is sent to each process once where the executor can do that.

    >>> calls = Calls(InlineExecutor())
    >>> calls.submit(len, calls.share(b"123")).result()
    3
    """

    retryable_errors: tuple[type[BaseException], ...] = ()
    """Errors of a future whose machine was lost; its call can be submitted again."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.retryable_errors = tuple(getattr(executor, "retryable_errors", ()))

    def submit(self, function: Callable[..., object], *args: object) -> Future[Any]:
        """Returns a `concurrent.futures.Future` of `function(*args)`.

        Raises:
            InvalidInput: the executor is closed, or returns futures of another class.
        """
        try:
            future: Future[object] = self.executor.submit(function, *args)
        except BrokenExecutor:
            raise
        except RuntimeError as error:  # what executors of `concurrent.futures` raise once they are shut down
            raise InvalidInput(f"executor is a {type(self.executor).__name__} that takes no calls: {error}") from error
        if not isinstance(future, Future):
            raise InvalidInput(
                f"executor is a {type(self.executor).__name__}, whose submit returns a {type(future).__name__}; it must "
                "be a concurrent.futures.Executor, a dask.distributed.Client or a RayExecutor"
            )
        return future

    def share(self, data: bytes) -> Any:
        """Returns a token for `data` in the arguments of `submit`, or `data` itself where the executor cannot keep it."""
        share = getattr(self.executor, "share", None)
        return data if share is None else share(data)


class DaskCalls(Calls):
    """Calls to a `dask.distributed.Client`, or to the executor that its `get_executor` returns."""

    def __init__(self, client: Any, executor: object = None) -> None:
        from distributed import KilledWorker

        if client.asynchronous:
            raise InvalidInput("executor is an asynchronous dask.distributed.Client; give one with asynchronous=False")
        if client.status != "running":
            raise InvalidInput(
                f"executor is a dask.distributed.Client that is {client.status}; give one that is running"
            )
        super().__init__(executor or client.get_executor(pure=False))
        self.client = client
        self.retryable_errors = (KilledWorker, CancelledError)

    def submit(self, function: Callable[..., object], *args: object) -> Future[object]:
        """Returns a future of `function(*args)`; raises `InvalidInput` once the client is closed."""
        with self._refusing_a_closed_client():
            return super().submit(function, *args)

    def share(self, data: bytes) -> object:
        """Returns the future of a task that returns `data`.

        Unlike data from `Client.scatter`, which one worker keeps, the scheduler computes it again when that worker is killed.
        """
        key = f"baechi-lab-{hashlib.blake2b(data, digest_size=16).hexdigest()}"
        with self._refusing_a_closed_client():
            return self.client.submit(bytes, data, key=key)

    @contextmanager
    def _refusing_a_closed_client(self) -> Iterator[None]:
        from distributed.client import ClosedClientError

        try:
            yield
        except ClosedClientError as error:
            raise InvalidInput("executor is a dask.distributed.Client that was closed during the sweep") from error


def calls_for(executor: object) -> Calls:
    """Returns the `Calls` of a Dask client, of its executor, or of any object that has `submit`.

    Raises `InvalidInput` for anything else.
    """
    client = getattr(executor, "_client", None) if _is_dask(executor, "ClientExecutor") else None
    if client is not None:
        return DaskCalls(client, executor)
    if _is_dask(executor, "Client"):
        return DaskCalls(executor)
    if isinstance(executor, str) or not hasattr(executor, "submit"):
        raise InvalidInput(
            f"executor is {in_short(executor)}; it must be a concurrent.futures.Executor, a dask.distributed.Client, a "
            "RayExecutor, 'here' or None"
        )
    return Calls(executor)


@contextmanager
def open_calls(executor: object, tasks: int) -> Iterator[Calls]:
    """Yields the `Calls` of the caller's executor; of a new pool, ended with the block, for None; of this thread for "here"."""
    if isinstance(executor, str) and executor == "here":
        yield Calls(InlineExecutor())
    elif executor is not None:
        yield calls_for(executor)
    else:
        from .pool import Pool

        pool = Pool(max(1, min(cores(), tasks)))
        try:
            yield Calls(pool)
        finally:
            pool.kill()


def cores() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_dask(executor: object, name: str) -> bool:
    """Whether the executor is of this class of Dask, compared by name so that Dask is not imported."""
    return any(c.__name__ == name and c.__module__.startswith("distributed.") for c in type(executor).__mro__)
