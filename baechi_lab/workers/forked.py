"""Starts workers by forking a process that has imported their framework (Linux only; elsewhere every worker is a new program).

Importing TensorFlow or PyTorch takes seconds, forking takes milliseconds. A caller with one TensorFlow worker needs no fork
server, so that server is started with the second worker. Pipelines of PyTorch have several processes from the beginning.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from typing import IO

from ..frameworks import require_framework
from .isolated import child_path, current_folder, isolated_command

SERVER = "baechi_lab.workers.fork_server"
TENSORFLOW = "baechi_lab.workers.tensorflow_import"
TORCH_PIPELINE = "baechi_lab.executors.torch.pipeline_process"
FRAMEWORKS = {TENSORFLOW: "tensorflow", TORCH_PIPELINE: "torch"}
"""The modules that workers are forked with, and the package that each of them imports."""
_PREFIXES = "DNNL_ GRPC_ KMP_ LD_ MKL_ OMP_ ONEDNN_ OPENBLAS_ PYTHON PYTORCH_ TF_ TORCH_ XLA_"
IMPORT_TIME_PREFIXES = tuple(_PREFIXES.split())
"""Prefixes of environment variables that are read when a framework is imported; another value needs another fork server."""


def start(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    stderr: int | IO[bytes] = subprocess.PIPE,
    network: int | None = None,
    imports: str = TENSORFLOW,
) -> subprocess.Popen[bytes] | Forked:
    """Runs `module` as `isolated_command` does, in a new session, with pipes for stdin and stdout (and stderr).

    `imports` is the module that is imported before the fork.

    Raises `OSError` when no process can be started, and `MissingPackage` where TensorFlow is to be imported and not installed.
    """
    if imports == TENSORFLOW:
        require_framework("tensorflow", "a process that measures or runs TensorFlow steps")
    server = _fork_server(environment, imports)
    if server is not None:
        with contextlib.suppress(OSError):  # it has ended, or the request is too large
            return Forked(server, module, arguments, environment, stderr, network)
    return run(isolated_command(module, *arguments, network=network), environment, stderr)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    stderr: int | IO[bytes],
    stdout: int = subprocess.PIPE,
    stdin: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Runs a program in a new session, with pipes."""
    return subprocess.Popen(
        list(command), stdin=stdin, stdout=stdout, stderr=stderr, env=environment, start_new_session=True
    )


class Forked:
    """A forked worker, with those methods of `subprocess.Popen` that this package uses."""

    def __init__(
        self,
        server: _ForkServer,
        module: str,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        stderr: int | IO[bytes],
        network: int | None,
    ) -> None:
        self._server = server  # which ends with the last of its workers
        request = {
            "module": module,
            "arguments": arguments,
            "environment": dict(environment),
            "folder": current_folder(),
            "path": child_path(),
            "cores": sorted(os.sched_getaffinity(0)),
            "network": network,
        }
        pipes = [os.pipe() for _ in range(4 if stderr == subprocess.PIPE else 3)]
        (theirs_in, ours_in), (ours_out, theirs_out), (ours_status, theirs_status), *errors = pipes
        theirs_error = errors[0][1] if errors else stderr if isinstance(stderr, int) else stderr.fileno()
        theirs = [theirs_in, theirs_out, theirs_error, theirs_status]
        try:
            socket.send_fds(server.control, [json.dumps(request).encode()], theirs)
        except OSError:
            for pipe in pipes:
                for end in pipe:
                    os.close(end)
            raise
        for end in (theirs_in, theirs_out, theirs_status, *(e[1] for e in errors)):
            os.close(end)
        self.stdin, self.stdout = os.fdopen(ours_in, "wb"), os.fdopen(ours_out, "rb")
        self.stderr = os.fdopen(errors[0][0], "rb") if errors else None
        self.returncode: int | None = None
        os.set_blocking(ours_status, False)
        self._status, self._status_bytes, self._lock = ours_status, b"", threading.Lock()
        closing = weakref.finalize(self, os.close, ours_status)
        closing.atexit = False  # what runs at exit may still wait for the process
        self._pid: int | None = None

    @property
    def pid(self) -> int:
        """The process id; waits for the process to start. Raises `ProcessLookupError` if it ended before that."""
        while self._pid is None:
            if self.returncode is not None:
                raise ProcessLookupError("the worker ended before it began")
            self._listen(None)
        return self._pid

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal, or None while the process runs."""
        while self.returncode is None and self._listen(0.0):
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end. Raises `subprocess.TimeoutExpired`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            remaining_seconds = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if not self._listen(remaining_seconds) and deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(SERVER, timeout or 0.0)
        return self.returncode

    def kill(self) -> None:
        """Ends the process now."""
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, signal.SIGKILL)

    def _listen(self, timeout: float | None) -> bool:
        """Reads the process id and the exit code as they come; returns whether any came within `timeout` seconds."""
        ready = select.poll()  # select() knows no file above 1023
        ready.register(self._status, select.POLLIN)
        if not ready.poll(None if timeout is None else timeout * 1e3):
            return False
        with self._lock:
            try:
                data = os.read(self._status, 64)
            except BlockingIOError:  # another thread was faster
                return False
            self._status_bytes += data
            status = dict(line.split() for line in self._status_bytes.split(b"\n")[:-1])
            if b"pid" in status:
                self._pid = int(status[b"pid"])
            if b"code" in status or not data:
                # An end without a code: the process that reports it was killed, and the worker with it.
                self.returncode = int(status.get(b"code", -signal.SIGKILL))
        return True


class _ForkServer:
    """A running fork server; it ends when this object is garbage-collected."""

    def __init__(self, environment: Mapping[str, str], imports: str) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = run(
            isolated_command(SERVER, imports), environment, subprocess.DEVNULL, subprocess.DEVNULL, theirs.fileno()
        )
        theirs.close()
        self._end = weakref.finalize(self, _end_server, self.control, self.process)


def _end_server(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    process.kill()  # it may be importing, and nobody is to wait for that
    process.wait()


_lock = threading.Lock()
_started: dict[object, int] = {}
_running: dict[tuple[str, object], _ForkServer] = {}


def _fork_server(environment: Mapping[str, str], imports: str) -> _ForkServer | None:
    """Returns the process to fork from; None for a caller's first TensorFlow worker and on other systems than Linux."""
    if not sys.platform.startswith("linux"):
        return None
    read = tuple(sorted((k, v) for k, v in environment.items() if k.startswith(IMPORT_TIME_PREFIXES)))
    framework = PathFinder.find_spec(FRAMEWORKS[imports], child_path())
    kind = (os.getpid(), read, framework.origin if framework else None)
    with _lock:
        if imports == TENSORFLOW:
            _started[kind] = _started.get(kind, 0) + 1
            if _started[kind] == 1:
                return None
        server = _running.get((imports, kind))
        if server is None or server.process.poll() is not None:
            for key in [key for key in _running if key[0] == imports]:
                del _running[key]  # one per framework; an earlier one ends with its workers
            server = _running[imports, kind] = _ForkServer(environment, imports)
        return server
