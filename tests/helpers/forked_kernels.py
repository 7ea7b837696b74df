"""Jupyter kernels that are forked from a process that has imported TensorFlow and the library, and opened a workbench.

In a kernel of a new program both take more time than most browser tests do. The kernel specification of the tests'
JupyterLab starts this file as a small program: it asks the fork server for a kernel, passes interrupts on, and ends with it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

MAX_REQUEST_BYTES = 1 << 18


@contextmanager
def fork_server(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Runs a fork server; writes the specification of its kernels into Jupyter's data folder below `folder`.

    On other systems than Linux nothing is done: kernels are programs of their own.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    address = str(folder / "kernels.socket")
    specification = {
        "argv": [sys.executable, "-I", "-S", __file__, "ask", address, "{connection_file}"],
        "display_name": "Python 3",
        "language": "python",
        "metadata": {"debugger": False},
    }
    kernel_folder = folder / "data" / "kernels" / "python3"
    kernel_folder.mkdir(parents=True)
    (kernel_folder / "kernel.json").write_text(json.dumps(specification))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen()
    with listener, open(folder / "kernels.log", "wb") as log:
        command = [sys.executable, __file__, "serve", str(listener.fileno())]
        server = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, pass_fds=[listener.fileno()], start_new_session=True
        )
    try:
        yield
    finally:
        server.kill()  # its kernels end with it
        server.wait()


def _ask(address: str, connection_file: str, *options: str) -> int:
    """Has a kernel forked with this program's environment, folder and files; returns its exit code."""
    arguments = ["-f", connection_file, *options]
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.connect(address)
        signal.signal(signal.SIGINT, lambda *_: control.send(b"interrupt"))
        socket.send_fds(control, [json.dumps(request).encode()], [0, 1, 2])
        return int(control.recv(64) or -signal.SIGKILL)


def _load_what_a_workbench_uses() -> None:
    """Imports the modules that the first workbench imports, and loads the compiled functions that it calls."""
    import baechi_lab as bl
    import baechi_lab.widgets.workbench
    from baechi_lab.widgets.model import WorkbenchModel, first_setting

    graph, cluster = bl.generators.gnmt(length=2, layers=2), bl.Cluster.uniform(2)
    setting = first_setting(graph, cluster, {"placer": "m-topo"})
    WorkbenchModel(graph, setting, inline=True).open()  # without a thread: a fork has one alone


def _serve(listener: socket.socket) -> None:
    """Forks two processes for each connection: a kernel, and its supervisor."""
    import tensorflow  # noqa: F401
    from ipykernel.kernelapp import IPKernelApp

    import baechi_lab.widgets  # noqa: F401
    from baechi_lab.workers.isolated import die_with_parent

    die_with_parent()
    _load_what_a_workbench_uses()
    gc.freeze()  # collecting would write to all pages that the kernels share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for supervisors
    while True:
        control, _ = listener.accept()
        if os.fork() == 0:
            break
        control.close()
    die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener.close()
    message, files, *_ = socket.recv_fds(control, MAX_REQUEST_BYTES, 3)
    kernel = os.fork()
    if kernel:
        _supervise(control, kernel)
    die_with_parent()
    os.setsid()
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    control.close()
    request = json.loads(message)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    IPKernelApp.launch_instance(request["arguments"])


def _supervise(control: socket.socket, kernel: int) -> NoReturn:
    """Passes interrupts on to the kernel and its exit code back; kills the kernel when the connection ends."""
    ended = os.pidfd_open(kernel)
    while ended not in select.select([control.fileno(), ended], [], [])[0]:
        signal.pidfd_send_signal(ended, signal.SIGINT if control.recv(64) else signal.SIGKILL)
    with contextlib.suppress(OSError):  # nobody listens any more
        control.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(kernel, 0)[1]))
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(socket.socket(fileno=int(sys.argv[2])))
    else:
        sys.exit(_ask(*sys.argv[2:]))
