"""Serve as one worker of a cluster: `python train.py --worker HOST:PORT`. Exported by baechi_lab; yours to change."""

import socket
import threading

import tensorflow as tf
import tunnel
from heap import keep_freed_memory
from loopback import REFUSAL, is_loopback, keep_to_loopback


def serve(address: str, trusted_network: bool, secret: str | None, threads: int = 1) -> None:
    """Be the worker at `address`, behind TLS with a secret, else for this machine alone: TensorFlow asks nobody who he is."""
    host, _, port = address.rpartition(":")
    if not secret and not trusted_network and not is_loopback(host):
        raise SystemExit(f"{address}: {REFUSAL}")
    keep_freed_memory()
    inside = free_port() if secret else int(port)
    known = tf.train.ServerDef(job_name="unassigned", protocol="grpc", port=inside)
    known.cluster.job.add(name="unassigned").tasks[0] = address
    known.default_session_config.inter_op_parallelism_threads = threads
    known.default_session_config.intra_op_parallelism_threads = 1
    server = tf.distribute.Server(known, start=False)
    if not trusted_network:
        keep_to_loopback(inside)
    server.start()
    if secret:
        tunnel.Gate(host.strip("[]"), int(port), inside, secret)
    print("worker", address, flush=True)
    threading.Event().wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
