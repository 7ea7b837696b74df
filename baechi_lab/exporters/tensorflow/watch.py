"""End training with a sentence when a worker has ended. Exported by baechi_lab; yours to change.

TensorFlow itself may wait for ever for a worker that has ended. So a thread keeps a connection to each, on which nothing is
sent: the kernel ends it with the worker's process, and keepalive with its machine. A worker that closes it still takes another.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

import tensorflow as tf

ASK_SECONDS, ANSWER_SECONDS, START_SECONDS = 0.2, 3.0, 10.0
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}  # a machine is missed after about 11 s


@contextlib.contextmanager
def watched(addresses: list[str]) -> Iterator[None]:
    """Wait until all workers answer; from then on this program ends with a sentence when one of them does not."""
    connections = {address: _answering(address) for address in addresses}
    threading.Thread(target=_watch, args=(connections,), daemon=True).start()
    try:
        yield
    except tf.errors.OpError:
        time.sleep(ANSWER_SECONDS + 1)  # of a worker that has ended the watch says so, better than TensorFlow
        raise


def _answering(address: str) -> socket.socket:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            return _connected(address)
        except OSError as error:
            if time.monotonic() > until:
                raise SystemExit(
                    f"worker {address} does not answer ({error}); start it with: python train.py --worker {address}"
                ) from None
            time.sleep(ASK_SECONDS)


def _watch(connections: dict[str, socket.socket]) -> None:
    while True:
        time.sleep(ASK_SECONDS)
        for i, address in enumerate(connections):
            if not _alive(connections, address):
                print(f"worker {i} of the cluster ({address}) has ended", file=sys.stderr, flush=True)
                os._exit(1)  # the main thread may be waiting for it in TensorFlow, for ever


def _alive(connections: dict[str, socket.socket], address: str) -> bool:
    try:
        while connections[address].recv(1 << 12):
            continue
    except BlockingIOError:
        return True
    except OSError:
        pass
    connections[address].close()
    try:
        connections[address] = _connected(address)
    except OSError:
        return False
    return True


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS)
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection
