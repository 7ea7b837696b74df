"""Serve as one worker of a cluster: `python train.py --worker HOST:PORT`. Exported by baechi_lab; yours to change."""

import threading

import tensorflow as tf
from loopback import REFUSAL, is_loopback, keep_to_loopback


def serve(address: str, trusted_network: bool) -> None:
    """Be the worker at `address`, which this machine alone can reach: TensorFlow's servers ask nobody who he is."""
    host, _, port = address.rpartition(":")
    if not trusted_network and not is_loopback(host):
        raise SystemExit(f"{address}: {REFUSAL}")
    one = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    server = tf.distribute.Server({"unassigned": [address]}, "unassigned", 0, config=one, start=False)
    if not trusted_network:
        keep_to_loopback(int(port))
    server.start()
    print("worker", address, server.target, flush=True)
    threading.Event().wait()
