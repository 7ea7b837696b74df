"""`bl.LocalCluster(n)`: n TensorFlow workers on this machine, each single-threaded (by default) and on a core of its own.

On a machine without GPUs this is a real n-device cluster: one op at a time per worker, and transfers that go
through TensorFlow's own rendezvous and the loopback network. The workers are kept to the loopback device; TensorFlow's
servers have no authentication, so the other users of this machine can reach them (see `server`), which is warned of. A network
namespace would keep them out, but also the programs that are to use the addresses, such as exported scripts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import warnings
from types import TracebackType
from typing import IO

from ...checks import check_whole
from ...errors import ExecutionError
from ...graph.cluster import Cluster
from ...graph.device import Device
from ...graph.link import Link
from ...workers.client import worker_environment
from ...workers.executors import cores
from ...workers.forked import Forked, start
from .devices import cpu_memory

SERVER = "baechi_lab.executors.tensorflow.server"
LOOPBACK_LINK = Link(400.0, 0.0008)
"""A round guess for two loopback workers (0.4 ms a message, 1.25 GB/s) until `bl.measure_link` replaces it."""


def _outside() -> int:
    """The stack level, as its caller gives it to `warnings.warn`, of the first frame that is not in this package."""
    package = __name__.partition(".")[0]
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        level, frame = level + 1, frame.f_back
    return level


class LocalCluster:
    """`n` single-threaded TensorFlow workers on loopback; a context manager.

    Args:
        n: number of workers.
        memory_bytes: memory that each device is said to have (TensorFlow enforces none on a CPU); default an even
            share of the machine.
        link, comm: of the `cluster` record.
        timeout: seconds for all workers to start.
        trusted_network: start them as well where they cannot be kept to loopback (not on Linux): then everyone on the
            network can run code as you.
        trusted_users: do not warn that all users of this machine can run code as you while the cluster is open.
        threads: of each worker, which share its core. With one, a tensor that is ready to be sent may wait for the ops that
            are ready behind it: TensorFlow leaves large sends to another thread. With two it leaves at once. Where threads
            share a core, those that have nothing to do sleep, instead of taking it from the one that works.

    Raises:
        InvalidInput: a bad `n` or `threads`.
        ExecutionError: a worker does not start.

    >>> with LocalCluster(2) as local:  # doctest: +SKIP
    ...     run = bl.execute(step, placement, cluster=local)
    """

    def __init__(
        self,
        n: int = 2,
        *,
        memory_bytes: int | str | None = None,
        link: Link = LOOPBACK_LINK,
        comm: str = "sequential",
        timeout: float = 120.0,
        trusted_network: bool = False,
        trusted_users: bool = False,
        threads: int = 1,
    ) -> None:
        check_whole("n", n)
        check_whole("threads", threads)
        memory = cpu_memory() // n if memory_bytes is None else memory_bytes
        names = (f"/job:worker/task:{i}/device:CPU:0" for i in range(n))
        self.cluster = Cluster(tuple(Device(name, "cpu", memory) for name in names), link, comm)  # type: ignore[arg-type]
        self._options = [str(threads), *(["--trusted-network"] if trusted_network else [])]
        if threads > 1 or n > cores():
            self._options.append("--no-spinning")
        if not (trusted_users or trusted_network):
            warnings.warn(
                "TensorFlow's servers ask nobody who he is: while this LocalCluster is open, all users of this machine can run "
                "code as you; where you trust them, say so with trusted_users=True",
                stacklevel=_outside(),
            )
        self._logs: list[IO[bytes]] = []
        self._processes: list[subprocess.Popen[bytes] | Forked] = []
        try:
            for core in range(n):
                self._start(core)
            deadline = time.monotonic() + timeout
            self.addresses = tuple(self._address(i, deadline) for i in range(n))
        except BaseException:  # Ctrl-C too leaves no worker
            self.close()
            raise

    def _start(self, core: int) -> None:
        log = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the worker writes to it
        self._logs.append(log)
        environment = worker_environment({"CUDA_VISIBLE_DEVICES": ""})
        self._processes.append(
            start(SERVER, "127.0.0.1:0", str(core), *self._options, environment=environment, stderr=log)
        )

    def _address(self, index: int, deadline: float) -> str:
        """The address that a worker prints once it listens."""
        import selectors

        process = self._processes[index]
        if process.stdout is None:
            raise ExecutionError(f"worker {index} has no output")
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                if not selector.select(0.1):
                    continue
                line = process.stdout.readline().decode("utf-8", "replace").strip()
                if line.startswith("worker "):
                    return line.removeprefix("worker ")
                if not line:
                    raise ExecutionError(f"worker {index} ended before it listened: {self._last_words(index)}")
        raise ExecutionError(f"worker {index} did not start in time: {self._last_words(index)}")

    def _last_words(self, index: int) -> str:
        self._logs[index].seek(0)
        lines = self._logs[index].read().decode("utf-8", "replace").splitlines()
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "it said nothing")

    def require_alive(self) -> None:
        """Raise `ExecutionError` if a worker has ended; it names the first."""
        ended = next((i for i, process in enumerate(self._processes) if process.poll() is not None), None)
        if ended is not None:
            raise ExecutionError(
                f"worker {ended} of the cluster ({self.addresses[ended]}) has ended; make a new LocalCluster"
            )

    @property
    def n(self) -> int:
        """Number of workers."""
        return len(self._processes)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(p.pid for p in self._processes)

    def close(self) -> None:
        """End the workers; can be called twice."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        for log in self._logs:
            log.close()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.close()

    def __repr__(self) -> str:
        return f"<LocalCluster of {self.n} workers: {', '.join(self.addresses)}>"
