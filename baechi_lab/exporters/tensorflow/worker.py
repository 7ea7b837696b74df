"""Serve as one worker of a cluster: `python train.py --worker HOST:PORT`. Exported by baechi_lab; yours to change."""

import threading

import tensorflow as tf
import tunnel
from heap import keep_freed_memory
from loopback import keep_to_loopback, refusal
from network import leave_network


def serve(
    address: str, trusted_network: bool, secret: str | None, threads: int = 1, trusted_users: bool = False
) -> None:
    """Runs the worker at `address`: with a secret behind TLS and in a network of its own, else for this machine alone.

    TensorFlow does not authenticate clients. `trusted_users` says that all users of this machine may reach it.
    """
    host, _, port = address.rpartition(":")
    if why := refusal(host, bool(secret), trusted_network, trusted_users):
        raise SystemExit(f"{address}: {why}")
    keep_freed_memory()
    inside, listener = int(port), None
    if secret:
        listener = tunnel.listen(host.strip("[]"), inside)
        try:
            tunnel.enter(secret, trusted_users, leave_network)
        except OSError as error:
            raise SystemExit(str(error)) from None
        with tunnel.listen("127.0.0.1", 0) as probe:
            inside = int(probe.getsockname()[1])
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
