"""Serve as one worker of a cluster: `python train.py --worker HOST:PORT`. Exported by baechi_lab; yours to change."""

import socket
import threading

import tensorflow as tf
import tunnel
from heap import keep_freed_memory
from loopback import REFUSAL, USERS_REFUSAL, is_loopback, keep_to_loopback
from network import leave_network


def serve(
    address: str, trusted_network: bool, secret: str | None, threads: int = 1, trusted_users: bool = False
) -> None:
    """Be the worker at `address`: with a secret behind TLS and in a network of its own, else for this machine alone.

    TensorFlow asks nobody who he is. `trusted_users` says that all users of this machine may reach it.
    """
    host, _, port = address.rpartition(":")
    if not secret and not trusted_network and not is_loopback(host):
        raise SystemExit(f"{address}: {REFUSAL}")
    if not secret and not trusted_network and not trusted_users:
        raise SystemExit(f"{address}: {USERS_REFUSAL}")
    keep_freed_memory()
    inside, listener = int(port), None
    if secret:
        listener = tunnel.listen(host.strip("[]"), inside)
        go_behind(secret, trusted_users)
        inside = free_port()
    server_def = tf.train.ServerDef(job_name="unassigned", protocol="grpc", port=inside)
    server_def.cluster.job.add(name="unassigned").tasks[0] = address
    server_def.default_session_config.inter_op_parallelism_threads = threads
    server_def.default_session_config.intra_op_parallelism_threads = 1
    server = tf.distribute.Server(server_def, start=False)
    if not trusted_network:
        keep_to_loopback(inside)
    server.start()
    if secret:
        tunnel.Gate(host.strip("[]"), int(port), inside, secret, listener)
    print("worker", address, flush=True)
    threading.Event().wait()


def go_behind(secret: str, trusted_users: bool) -> None:
    """Send through TLS; unless the machine's users are trusted, leave its network."""
    if trusted_users:
        tunnel.go_through(secret)
        return
    try:
        tunnel.move_behind(secret, leave_network)
    except OSError as error:
        raise SystemExit(
            f"other users of this machine cannot be kept from TensorFlow's server, which asks nobody who he is ({error}); where "
            "you trust them all, say so with --trusted-users"
        ) from None


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
