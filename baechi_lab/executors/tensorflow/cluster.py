"""`bl.LocalCluster(n)`: n TensorFlow workers on this machine, by default single-threaded and each on its own core.

On a machine without GPUs this is a real n-device cluster: one op at a time per worker, and transfers through TensorFlow's own
rendezvous and a loopback network. TensorFlow's servers have no authentication, so the workers share a network namespace
(`workers.network`). Other users of this machine cannot reach its loopback device, nor can other programs of this user. The
process that opens a session joins that network first.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import subprocess
import tempfile
import time
from typing import IO

from ...checks import check_whole
from ...errors import ExecutionError
from ...graph import Cluster, Device, Link
from ...workers.client import worker_environment
from ...workers.executors import cores
from ...workers.failures import cause_of_end
from ...workers.forked import Forked, start
from ...workers.network import CREATE_NETWORK, REFUSED
from .devices import cpu_memory

SERVER = "baechi_lab.executors.tensorflow.server"
LOOPBACK_LINK = Link(400.0, 0.0008)
"""An estimate for two loopback workers (0.4 ms per message, 1.25 GB/s); `bl.measure_link` measures the link."""


class LocalCluster(contextlib.AbstractContextManager["LocalCluster"]):
    """`n` single-threaded TensorFlow workers on loopback; a context manager.

    Args:
        n: number of workers.
        memory_bytes: memory of each device in the `cluster` record; TensorFlow enforces no limit on a CPU. The default
            is an even share of the machine's memory.
        link, comm: of the `cluster` record.
        timeout: seconds for all workers to start.
        trusted_users: keep the workers in the machine's network. All users of the machine can then run code as you while the
            cluster is open. Other programs, such as exported scripts, can only then connect to `addresses`.
        trusted_network: start the workers even if they cannot be restricted to loopback (not on Linux). Everyone on the
            network can then run code as you.
        threads: threads per worker, which share its core. With one thread, a tensor that is ready to be sent may wait for
            the ops that are ready after it, because TensorFlow leaves large sends to another thread. With two threads it
            leaves at once. Threads that share a core sleep while they are idle.

    The workers have their own network, which other users and programs cannot reach. `bl.execute`, `bl.measure_link` and other
    functions that take the cluster open their session in a process that joins it. `network` is the process id of a worker in
    it, None for a cluster in the machine's network.

    Raises:
        InvalidInput: a bad `n` or `threads`.
        ExecutionError: a worker does not start, or the system does not allow a separate network and `trusted_users` is not given.

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
        self.network: int | None = None
        self._logs: list[IO[bytes]] = []
        self._output: list[bytes] = []
        self._processes: list[subprocess.Popen[bytes] | Forked] = []
        deadline = time.monotonic() + timeout
        try:
            if not (trusted_users or trusted_network):
                self._start(0, CREATE_NETWORK)
                self._wait_for_line(0, rb"^(started)\n", deadline)
                self.network = self._processes[0].pid
            for core in range(len(self._processes), n):
                self._start(core, self.network)
            self.addresses = tuple(self._wait_for_line(i, rb"^worker (\S+)\n", deadline) for i in range(n))
        except BaseException:  # includes Ctrl-C: no worker may stay
            self.close()
            raise

    def _start(self, core: int, network: int | None) -> None:
        log = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the worker writes to it
        self._logs.append(log)
        self._output.append(b"")
        environment = worker_environment({"CUDA_VISIBLE_DEVICES": ""})
        self._processes.append(
            start(
                SERVER, "127.0.0.1:0", str(core), *self._options, environment=environment, stderr=log, network=network
            )
        )

    def _wait_for_line(self, index: int, line: bytes, deadline: float) -> str:
        """Waits until a worker prints a line that matches `line`, which has one group. Returns the group."""
        process = self._processes[index]
        if process.stdout is None:
            raise ExecutionError(f"worker {index} has no output")
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                match = re.search(line, self._output[index], re.MULTILINE)
                if match is not None:
                    return match[1].decode()
                if not selector.select(0.1):
                    continue
                data = os.read(process.stdout.fileno(), 4096)
                if not data:
                    cause = self._cause_of_end(index)
                    if cause.startswith(REFUSED):
                        raise ExecutionError(
                            "other users of this machine cannot be kept from TensorFlow's servers, which do not authenticate "
                            f"clients ({cause}); give trusted_users=True (--trusted-users) if you trust them all"
                        )
                    raise ExecutionError(f"worker {index} ended before it listened: {cause}")
                self._output[index] += data
        raise ExecutionError(f"worker {index} did not start in time: {self._cause_of_end(index)}")

    def _cause_of_end(self, index: int) -> str:
        self._logs[index].seek(0)
        return cause_of_end(self._logs[index].read()) or "it said nothing"

    def ended_worker(self) -> str | None:
        """Returns a sentence that names the first worker that has ended; None while all run."""
        worker = next((i for i, process in enumerate(self._processes) if process.poll() is not None), None)
        return None if worker is None else f"worker {worker} of the cluster ({self.addresses[worker]}) has ended"

    def require_alive(self) -> None:
        """Raises `ExecutionError` that names the first worker that has ended, if any."""
        message = self.ended_worker()
        if message is not None:
            raise ExecutionError(f"{message}; make a new LocalCluster")

    @property
    def n(self) -> int:
        """Number of workers."""
        return len(self._processes)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(p.pid for p in self._processes)

    def close(self) -> None:
        """Ends the workers. Further calls do nothing."""
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LocalCluster of {self.n} workers: {', '.join(self.addresses)}>"
