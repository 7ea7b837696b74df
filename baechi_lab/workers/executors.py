"""The executors that calls can be sent to: ours, any of `concurrent.futures`, and a Dask client as it comes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Future
from contextlib import contextmanager
from typing import Any

from ..errors import InvalidInput
from .inline import InlineExecutor


class Calls:
    """Sends calls to an executor, data that many of them need once to each of its processes where it can.

    >>> calls = Calls(InlineExecutor())
    >>> calls.submit(len, calls.share(b"123")).result()
    3
    """

    retryable_errors: tuple[type[BaseException], ...] = ()
    """What the future of a call raises that came to nothing with its machine, and can be sent again."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.retryable_errors = tuple(getattr(executor, "retryable_errors", ()))

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """A `concurrent.futures.Future` of `function(*args)`.

        Raises:
            InvalidInput: the executor is closed, or makes futures of its own.
        """
        try:
            future: Future[Any] = self.executor.submit(function, *args)
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
        """What stands for `data` in the arguments of `submit`; executors that cannot hold it get the bytes each time."""
        share = getattr(self.executor, "share", None)
        return data if share is None else share(data)


class DaskCalls(Calls):
    """Calls to a `dask.distributed.Client`, or to the executor that its `get_executor` returns."""

    def __init__(self, client: Any, executor: Any = None) -> None:
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

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """A future of `function(*args)`; raises `InvalidInput` once the client is closed."""
        with self._refusing_a_closed_client():
            return super().submit(function, *args)

    def share(self, data: bytes) -> Any:
        """The future of a task that returns `data`.

        Unlike what `Client.scatter` keeps on one worker, the scheduler makes it again when that worker is killed.
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


def calls_for(executor: Any) -> Calls:
    """What sends calls to `executor`: a Dask client or its executor, or whatever has `submit`.

    Raises `InvalidInput` for anything else.
    """
    client = getattr(executor, "_client", None) if _is_dask(executor, "ClientExecutor") else None
    if client is not None:
        return DaskCalls(client, executor)
    if _is_dask(executor, "Client"):
        return DaskCalls(executor)
    if isinstance(executor, str) or not hasattr(executor, "submit"):
        raise InvalidInput(
            f"executor is {executor!r}; it must be a concurrent.futures.Executor, a dask.distributed.Client, a "
            "RayExecutor, 'here' or None"
        )
    return Calls(executor)


@contextmanager
def open_calls(executor: Any, tasks: int) -> Iterator[Calls]:
    """The caller's executor, left open; None is a pool of our own, ended with the block; "here" this thread."""
    if executor == "here":
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
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_dask(executor: Any, name: str) -> bool:
    """Is it of a class of Dask's? Asked by name: Dask is not imported for those who do not use it."""
    return any(c.__name__ == name and c.__module__.startswith("distributed.") for c in type(executor).__mro__)
