"""A worker of a TensorFlow cluster: `baechi-lab worker --bind 127.0.0.1:2222`.

TensorFlow's servers have NO AUTHENTICATION AND NO ENCRYPTION: whoever can connect to the port can run any op,
reading and writing files included, as the user who started it. They listen on every interface, whatever address they
are given. `loopback` restricts them to this machine, but its other users can still reach them. So a worker needs a secret:
`tunnel` then moves it to its own network, which other users cannot reach, and puts mutual TLS in front of it. Alternatively,
`--trusted-network` says that the whole network is trusted, and `--trusted-users` that all users of the machine are trusted.
Trusted users may reach a worker without a secret, or one with a secret if the system does not allow a separate network.

The server starts without a list of other workers: the session that uses it sends the whole ClusterSpec. Its own job is called
`unassigned`, because TensorFlow rejects a ClusterSpec that repeats the job name with which a server started.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading

from ...errors import ExecutionError, InvalidInput, in_short
from ...frameworks import require_framework
from ...workers.network import leave_network
from ...workers.tensorflow_import import import_tensorflow
from . import tunnel
from .heap import keep_freed_memory
from .loopback import REFUSAL, is_loopback, keep_to_loopback, refusal
from .secret import check_secret

LOOPBACK = "127.0.0.1"
_BIND = re.compile(r"(?:(?P<host>[A-Za-z0-9_.\-]+|\[[0-9A-Fa-f:]+\]):)?(?P<port>\d{1,5})")


def parse_bind(bind: str) -> tuple[str, int]:
    """Parses `host:port`, or `port` on loopback. Port 0 means any free port.

    >>> parse_bind("2222")
    ('127.0.0.1', 2222)
    """
    match = _BIND.fullmatch(bind.strip()) if isinstance(bind, str) else None
    if match is None or int(match["port"]) > 65535:
        raise InvalidInput(
            f"--bind is {in_short(bind)}; it must be HOST:PORT or a port up to 65535, for example 127.0.0.1:2222"
        )
    return match["host"] or LOOPBACK, int(match["port"])


def start(
    host: str,
    port: int,
    threads: int = 1,
    *,
    trusted_network: bool = False,
    secret: str | None = None,
    spinning: bool = True,
    trusted_users: bool = False,
) -> str:
    """Starts the server in this process and returns its address `host:port`.

    With `secret`, a file of `make_secret`, only clients with that file can connect, through TLS. The process leaves the machine's
    network unless `trusted_users` is given. Without a secret, `trusted_users` or `trusted_network` is required. With
    `trusted_users` the host must be loopback, and only this machine can connect. Idle threads spin for a while before they
    sleep, unless `spinning` is False.

    Raises `InvalidInput` for another host, a file without a secret, or a server that untrusted users could reach.
    Raises `ExecutionError` if the port is taken, the address does not belong to this machine, or the system can neither
    restrict the server to loopback nor keep other users from it.
    """
    if secret is not None and trusted_network:
        raise InvalidInput("--secret and --trusted-network contradict each other; give one of them")
    if why := refusal(host, secret is not None, trusted_network, trusted_users):
        raise InvalidInput(why if is_loopback(host) else f"--bind names {host}: {why}")
    require_framework("tensorflow", "a worker")
    listener = _listener(host, port)
    inside = free = int(listener.getsockname()[1])
    if secret is None:
        listener.close()
    else:
        check_secret(secret)
        try:
            tunnel.enter(secret, trusted_users, leave_network)
        except OSError as error:
            raise ExecutionError(str(error)) from error
        with _listener(LOOPBACK, 0) as probe:
            inside = int(probe.getsockname()[1])
    # Without this, a session of this worker waits forever for another worker that died.
    os.environ.setdefault("GRPC_FAIL_FAST", "true")
    tf = import_tensorflow()
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads, intra_op_parallelism_threads=threads)
    config.gpu_options.allow_growth = True
    config.experimental.disable_thread_spinning = not spinning
    address = f"{host}:{free}"
    try:
        server_def = tf.train.ServerDef(
            job_name="unassigned", protocol="grpc", port=inside, default_session_config=config
        )
        server_def.cluster.job.add(name="unassigned").tasks[0] = address
        server = tf.distribute.Server(server_def, start=False)
        # The server lives until the process ends: TensorFlow cannot stop one.
        _RUNNING.append(server)
        if not trusted_network:
            keep_to_loopback(inside)
        server.start()
        if secret is not None:
            tunnel.Gate(host.strip("[]"), free, inside, secret, listener)
    except tf.errors.OpError as error:
        raise ExecutionError(f"a TensorFlow server cannot start on {address}: {error.message}") from error
    except OSError as error:
        raise ExecutionError(f"the server cannot be kept to loopback ({error}): {REFUSAL}") from error
    return address


_RUNNING: list[object] = []


def _listener(host: str, port: int) -> socket.socket:
    """Returns a listening socket. Raises an error if there is none: TensorFlow would only log, and hang or abort."""
    try:
        return tunnel.listen(host.strip("[]"), port)
    except OSError as error:
        raise ExecutionError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def main(
    bind: str = LOOPBACK + ":0",
    threads: int = 1,
    core: int | None = None,
    follow_stdin: bool = False,
    trusted_network: bool = False,
    secret: str | None = None,
    spinning: bool = True,
    trusted_users: bool = False,
) -> int:
    """Runs one worker until it is stopped; prints its address on a separate line.

    Args:
        bind: `host:port`, or a port; loopback unless a host is named.
        threads: ops that run at a time.
        core: the processor core to which the process is pinned.
        follow_stdin: whether the worker ends when its standard input does.
        trusted_network: listen on every interface, without authentication.
        secret: a file; those who have it reach the worker through TLS.
        spinning: whether idle threads wait actively for a while before they sleep.
        trusted_users: let all users of this machine reach the worker.

    Raises:
        InvalidInput: `bind` is no address, or the options contradict each other.
        ExecutionError: the worker cannot listen there.
    """
    host, port = parse_bind(bind)
    if core is not None and hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[core % len(allowed)]})
    keep_freed_memory()
    address = start(
        host,
        port,
        threads,
        trusted_network=trusted_network,
        secret=secret,
        spinning=spinning,
        trusted_users=trusted_users,
    )
    if trusted_network:
        print("warning: everyone who reaches this machine's network can run code as you", file=sys.stderr)
    print(f"worker {address}", flush=True)
    if follow_stdin:
        sys.stdin.buffer.read()
        os._exit(0)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print("baechi-lab worker: interrupted", file=sys.stderr, flush=True)
        os._exit(130)  # the server's threads would keep the process
    return 0


if __name__ == "__main__":
    # How LocalCluster starts its workers: address, core to run on, threads, more options; the end of stdin ends it. All users
    # of the network are trusted: it is the cluster's own, or `trusted_network` was given.
    print("started", flush=True)
    try:
        main(
            sys.argv[1],
            int(sys.argv[3]),
            core=int(sys.argv[2]),
            follow_stdin=True,
            trusted_users=True,
            trusted_network="--trusted-network" in sys.argv,
            spinning="--no-spinning" not in sys.argv,
        )
    except (ExecutionError, InvalidInput) as problem:
        sys.exit(str(problem))
