"""A pool of processes that import nothing from the current folder and end with their caller.

It replaces `concurrent.futures.ProcessPoolExecutor` with spawned processes. Those start as `python -c` with the current
folder first on their path, and keep running, beside a resource tracker, when the caller is killed.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import queue
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ExecutionError
from ..importing import in_existing_folder
from .client import Worker, WorkerEnded
from .isolated import child_path, current_folder, isolated_command
from .messages import Message

CHILD = "baechi_lab.workers.pool_process"
TRIES = 2
"""Attempts per task: one whose process was killed runs once more, as another task may have used up the memory."""

_Job = tuple[Future[Any], bytes, tuple["Shared", ...]]

importing_main = False
"""In a process of a pool: whether the caller's program is being imported."""


@dataclass(frozen=True)
class Shared:
    """A token in the arguments of `submit` for bytes that every process of a pool is sent once."""

    key: str


class Pool(Executor):
    """An executor with `count` processes; a thread starts each of them with its first task and lives as long as it.

    `tries`: attempts for a task whose process is killed; use 1 where tasks wait for each other. `imports_main`: whether tasks
    may call functions of the caller's program. A script that uses such a pool needs the usual `if __name__ == "__main__":`.
    `imports`: a module that all tasks need and that takes long to import. Where the system can, it is imported once, and the
    processes are forked from one that has it.

    >>> with Pool(1) as pool:
    ...     pool.submit(max, 1, 2).result()
    2
    """

    def __init__(self, count: int, tries: int = TRIES, imports_main: bool = True, imports: str | None = None) -> None:
        if importing_main and imports_main:
            raise ExecutionError(
                'processes cannot be started while the program is imported; put its start below `if __name__ == "__main__":`'
            )
        self._tries, self._imports_main, self._imports = tries, imports_main, imports
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._shared_data: dict[str, bytes] = {}
        self._closed, self._killed = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def share(self, data: bytes) -> Shared:
        """Returns a token for `data` in arguments; the function gets the bytes in its place."""
        token = Shared(hashlib.blake2b(data, digest_size=16).hexdigest())
        self._shared_data[token.key] = data
        return token

    def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Future[Any]:
        """As in `concurrent.futures.Executor`; the future of a task whose processes were killed raises `BrokenExecutor`."""
        if self._closed.is_set():
            raise RuntimeError("the pool is closed")
        future: Future[Any] = Future()
        shared_values = tuple(a for a in args if isinstance(a, Shared))
        self._jobs.put((future, pickle.dumps((fn, args, kwargs)), shared_values))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the processes when their tasks are done."""
        self._closed.set()
        if cancel_futures:
            with suppress(queue.Empty):
                while (job := self._jobs.get_nowait()) is not None:
                    job[0].cancel()
        for _ in self._threads:
            self._jobs.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def kill(self) -> None:
        """Ends the processes at once."""
        self._killed.set()
        self.shutdown(cancel_futures=True)

    def _serve(self) -> None:
        """Runs in each thread: sends tasks to the thread's process."""
        process: _Process | None = None
        try:
            while (job := self._jobs.get()) is not None:
                future = job[0]
                if future.set_running_or_notify_cancel():
                    process = self._answer(process, *job)
        finally:
            if process is not None:
                process.worker.close()

    def _answer(
        self, process: _Process | None, future: Future[object], task: bytes, shared_values: tuple[Shared, ...]
    ) -> _Process | None:
        """Sets the future's result or error; returns the process for the next task, or None if it has ended."""
        for retries_left in reversed(range(self._tries)):
            try:
                process = process or _Process(self._imports_main, self._imports)
                has_value, value = process.answer(task, shared_values, self._shared_data, self._killed)
            except WorkerEnded as ended:
                if process is not None:
                    process.worker.close()
                process = None
                if not retries_left or ended.status == "cancelled":
                    future.set_exception(BrokenExecutor(ended.message))
                    break
            except OSError as error:
                future.set_exception(BrokenExecutor(f"no process can be started: {error.strerror or error}"))
                break
            else:
                (future.set_result if has_value else future.set_exception)(value)
                break
        return process


class _Process:
    """One process and the keys of the data that it has."""

    def __init__(self, imports_main: bool, imports: str | None) -> None:
        self.worker = Worker(isolated_command(CHILD)) if imports is None else Worker(module=CHILD, imports=imports)
        self.sent_keys: set[str] = set()
        self.prepared = not imports_main

    def answer(
        self, task: bytes, shared_values: tuple[Shared, ...], shared_data: dict[str, bytes], kill_event: threading.Event
    ) -> tuple[bool, Any]:
        """Returns whether the call succeeded, and its value or its error."""
        new_keys = [s.key for s in dict.fromkeys(shared_values) if s.key not in self.sent_keys]
        first = [] if self.prepared else [pickle.dumps(_preparation())]
        header = {"keep": new_keys, "prepare": not self.prepared}
        arrays = tuple(
            np.frombuffer(data, np.uint8) for data in (task, *first, *(shared_data[key] for key in new_keys))
        )
        with closing(self.worker.exchange(Message("task", header, arrays), {"result"}, cancel=kill_event)) as answers:
            *_, last = answers
        self.prepared = True
        self.sent_keys.update(new_keys)
        try:
            answer: tuple[bool, Any] = pickle.loads(last.arrays[0].tobytes())  # noqa: S301  (from our own process)
        except Exception as error:  # noqa: BLE001 - classes that are not ours are built, which may raise anything
            return False, ExecutionError(f"what the call returned cannot be read here: {error}")
        return answer


def _preparation() -> dict[str, object]:
    """Returns what multiprocessing sends to a spawned process, so that it finds functions of the caller's program."""
    from multiprocessing.spawn import get_preparation_data

    with in_existing_folder():
        preparation = get_preparation_data("baechi-lab")
    del preparation["authkey"]
    # The caller's own modules may lie in the current folder: it comes last, where nothing of Python's is hidden by it.
    folder = current_folder()
    caller_folder = [p for p in preparation["sys_path"] if folder is not None and os.path.realpath(p) == folder]
    return {**preparation, "sys_path": [*child_path(), *caller_folder[:1]]}
