"""The caller's side of a worker process.

One loop reads and writes non-blocking pipes, without threads. However an exchange ends (an answer, a crash, invalid
data, a timeout, cancellation, Ctrl-C), `Worker.close` kills the worker's process group and closes every file.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import IO

from .. import errors
from ..errors import BaechiLabError, ExecutionError, FormatError
from .failures import cause_of_end
from .forked import TENSORFLOW, run, start
from .messages import Decoder, Message, encode

WORKER = "baechi_lab.workers.process"
_POLL_SECONDS = 0.05
"""Seconds between two checks whether a call was cancelled or ran out of time."""
_CHUNK = 1 << 16
"""Bytes read at once."""


class WorkerEnded(Exception):
    """Raised when an exchange ends without its last answer: `status` as in `Run.status`, `message` one sentence."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Worker(contextlib.AbstractContextManager["Worker"]):
    """A worker process, as a context manager that ends it.

    On Linux the kernel ends the first worker, and every `command`, together with the thread that started it. Use such a
    worker in one thread only, or start it in the main thread.

    Without a `command` it runs `module`, forked from a process that has imported the module `imports` (see `forked.start`).

    `network` is the process id of a worker of a cluster that has a network of its own (`LocalCluster.network`). A worker that
    runs a step on a cluster elsewhere starts a new process there.

    >>> with Worker() as worker:  # doctest: +SKIP
    ...     [m.kind for m in worker.exchange(Message("devices", {"options": {}}), {"devices", "failed"})]
    ['devices']
    """

    def __init__(
        self,
        command: Sequence[str] | None = None,
        environment: dict[str, str] | None = None,
        network: int | None = None,
        module: str = WORKER,
        imports: str = TENSORFLOW,
    ) -> None:
        self._command, self._environment = command, environment
        self._module, self._imports = module, imports
        self._start(network)

    def _start(self, network: int | None) -> None:
        variables = worker_environment(self._environment)
        self._network = network
        if self._command is None:
            self._process = start(self._module, environment=variables, network=network, imports=self._imports)
        else:
            self._process = run(self._command, variables, subprocess.PIPE)
        self._decoder = Decoder()
        self._log_chunks: deque[bytes] = deque(maxlen=64)
        for stream in self._streams():
            os.set_blocking(stream.fileno(), False)

    def enter(self, network: int | None) -> None:
        """Goes on in the network of process `network` (None: the machine's): in a new process, if this one is in another."""
        if network != self._network and self.alive:
            self.close()
            self._start(network)

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    def exchange(
        self,
        request: Message,
        last: set[str],
        timeout: float | None = None,
        cancel: threading.Event | None = None,
        find_lost_peer: Callable[[], str | None] | None = None,
    ) -> Generator[Message, None, None]:
        """Sends a request and yields the answers up to the first whose kind is in `last`.

        `find_lost_peer` is called repeatedly; where another process that the answer needs has ended, it returns a sentence
        that says so, else None.

        Raises:
            WorkerEnded: the worker ended or sent no message, `timeout` seconds passed, `cancel` was set, or a peer was lost.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pending = memoryview(encode(request))
        process = self._process
        if any(stream.closed for stream in self._streams()):
            raise WorkerEnded("died", "the worker process has ended")
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ, "answers")  # type: ignore[arg-type]
            selector.register(process.stderr, selectors.EVENT_READ, "log")  # type: ignore[arg-type]
            selector.register(process.stdin, selectors.EVENT_WRITE, "requests")  # type: ignore[arg-type]
            while True:
                if cancel is not None and cancel.is_set():
                    raise WorkerEnded("cancelled", "cancelled by the caller")
                if deadline is not None and time.monotonic() > deadline:
                    raise WorkerEnded("timeout", f"no result within {timeout:g} s; the worker was killed")
                loss = None if find_lost_peer is None else find_lost_peer()
                if loss is not None:
                    raise WorkerEnded("died", loss)
                for key, _ in selector.select(_POLL_SECONDS):
                    if key.data == "requests":
                        pending = self._write(pending)
                        if not pending:
                            selector.unregister(process.stdin)  # type: ignore[arg-type]
                        continue
                    data = _read_pipe(key.fd)
                    if not data:
                        selector.unregister(key.fileobj)
                        if key.data == "answers":
                            raise WorkerEnded("died", self._describe_end())
                    elif key.data == "log":
                        self._log_chunks.append(data)
                    else:
                        for message in self._decode(data):
                            yield message
                            if message.kind in last:
                                return

    def _write(self, pending: memoryview) -> memoryview:
        try:
            return pending[os.write(self._process.stdin.fileno(), pending[: 1 << 20]) :]  # type: ignore[union-attr]
        except BlockingIOError:
            return pending
        except BrokenPipeError as error:
            raise WorkerEnded("died", self._describe_end()) from error

    def _decode(self, data: bytes) -> Iterator[Message]:
        try:
            yield from self._decoder.feed(data)
        except FormatError as error:
            raise WorkerEnded("died", f"the worker sent something that is no message: {error}") from error

    def _describe_end(self) -> str:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "the worker closed its output without finishing"
        if self._process.stderr is not None and not self._process.stderr.closed:
            while data := _read_pipe(self._process.stderr.fileno()):
                self._log_chunks.append(data)
        how = f"ended with exit code {code}"
        if code < 0:
            how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
            how += "; the system does that when memory runs out" if code == -signal.SIGKILL else ""
        cause = cause_of_end(b"".join(self._log_chunks))
        return f"the worker {how}" + (f"; it last said: {cause}" if cause else "")

    def _streams(self) -> list[IO[bytes]]:
        process = self._process
        return [s for s in (process.stdin, process.stdout, process.stderr) if s is not None]

    def close(self) -> None:
        """Kills the worker and all processes that it started, reaps it, and closes every file. May be called twice."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in self._streams():
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_pipe(fd: int) -> bytes:
    """Reads a non-blocking pipe; returns b"" at its end or when it is empty."""
    try:
        return os.read(fd, _CHUNK)
    except BlockingIOError:
        return b""


def worker_environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Returns the environment of a worker: the caller's, with TensorFlow's log at warnings."""
    # Without FAIL_FAST a session waits for ever for a cluster's worker that died.
    return {"TF_CPP_MIN_LOG_LEVEL": "2", "GRPC_FAIL_FAST": "true", **os.environ, **(extra or {})}


def refusal(message: Message) -> BaechiLabError:
    """Returns the error of a `message` message: of the class that the worker raised where it is in `baechi_lab.errors`."""
    cls = getattr(errors, str(message.header.get("error", "")), ExecutionError)
    ours = isinstance(cls, type) and issubclass(cls, BaechiLabError)
    error: BaechiLabError = (cls if ours else ExecutionError)(message.header["message"])
    return error


def ask(request: Message, answer: str, timeout: float | None = None) -> Message:
    """Sends one request to a new worker; returns its `answer` message, or raises the error that ended it."""
    with Worker() as worker:
        try:
            for message in worker.exchange(request, {answer, "failed"}, timeout):
                if message.kind == "failed":
                    raise refusal(message)
                if message.kind == answer:
                    return message
        except WorkerEnded as ended:
            raise ExecutionError(ended.message) from ended
    raise ExecutionError(f"the worker gave no {answer!r} answer")
