"""The process from which a caller's workers are forked; it imports their framework once for all of them.

A request is a datagram on stdin's socket, with four files: the worker's stdin, stdout and stderr, and one for its status.
The worker writes its process id to the last; this process writes the exit code there when the worker has ended. The
runtimes of TensorFlow and PyTorch start with the first op, so this process has no threads and no devices when it forks.

The process ends when its socket is closed, that is with its caller, and the kernel ends the workers with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from ..importing import in_existing_folder, without_garbage_collection
from .forked import TENSORFLOW
from .isolated import die_with_parent
from .network import enter
from .tensorflow_import import import_tensorflow

MAX_REQUEST_BYTES = 1 << 18
"""Largest request in bytes; a datagram cannot be much larger."""


def main() -> None:
    """Imports the module that the first argument names, and forks a worker for every request, which runs its module."""
    if sys.argv[1] == TENSORFLOW:
        import_tensorflow()
    else:
        with without_garbage_collection(), in_existing_folder():
            importlib.import_module(sys.argv[1])
    gc.freeze()  # collecting would write to all pages that the workers share
    request = _wait_for_request(socket.socket(fileno=os.dup(0)))
    sys.argv[:] = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _wait_for_request(control: socket.socket) -> dict[str, Any]:
    """Waits for requests and forks a worker for each; returns the request, in the worker only."""
    # When a worker ends, its signal writes into a pipe, so that one `select` waits for requests and for ended workers.
    ended, end_of_worker = os.pipe()
    os.set_blocking(end_of_worker, False)
    signal.set_wakeup_fd(end_of_worker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    status_files: dict[int, int] = {}  # process id of a worker -> the file for its exit code
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == ended:
                    os.read(ended, 4096)
                    _report_exit_codes(status_files)
                    continue
                request, files, *_ = socket.recv_fds(control, MAX_REQUEST_BYTES, 4)
                if not request:
                    os._exit(0)
                pid = os.fork()
                if pid == 0:
                    control.close()
                    return _set_up_worker(json.loads(request), files, (ended, end_of_worker, *status_files.values()))
                status_files[pid] = files.pop()
                for file in files:
                    os.close(file)


def _report_exit_codes(status_files: dict[int, int]) -> None:
    """Writes the exit codes of workers that have ended to their status files."""
    while status_files:
        pid, code = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        file = status_files.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # the other process has ended
            os.write(file, b"code %d\n" % os.waitstatus_to_exitcode(code))
        os.close(file)


def _set_up_worker(request: dict[str, Any], files: Sequence[int], inherited_files: Sequence[int]) -> dict[str, object]:
    """Sets up signals, files, environment, folder, path and cores of a worker as for a new program."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent()
    os.setsid()
    for target, file in enumerate(files[:3]):
        os.dup2(file, target)
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["folder"] is not None:  # the caller's was deleted
        os.chdir(request["folder"])
    sys.path[:] = request["path"]
    os.sched_setaffinity(0, request["cores"])
    os.write(files[3], b"pid %d\n" % os.getpid())
    for file in (*files, *inherited_files):
        os.close(file)
    if request["network"] is not None:  # forked processes have one thread
        enter(request["network"])
    if "numpy" in sys.modules:  # Python seeds its own generator after a fork, NumPy does not
        sys.modules["numpy"].random.seed()
    return request


if __name__ == "__main__":
    main()
