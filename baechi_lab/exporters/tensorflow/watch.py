"""End training with a sentence when a worker has ended. Exported by baechi_lab; yours to change.

TensorFlow itself may wait for ever for a worker that has ended, so a thread keeps a connection to each (`keepalive.py`).
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

import tensorflow as tf
from keepalive import alive, connect, speaks_plainly

ASK_SECONDS, ANSWER_SECONDS, START_SECONDS = 0.2, 3.0, 10.0
"""Seconds between two questions to a worker, until it must have answered, and until it must have started."""


@contextlib.contextmanager
def watch_workers(addresses: list[str], secret: str | None) -> Iterator[None]:
    """Waits until all workers answer; from then on this program ends with a sentence when one of them does not."""
    connections = {address: _answering(address) for address in addresses}
    for address in addresses:
        if not secret and not speaks_plainly(address, ANSWER_SECONDS):  # TensorFlow would wait for it, for ever
            raise SystemExit(
                f"worker {address} is no TensorFlow server that is open to this machine; if it was started with "
                "--secret FILE, train with the same: python train.py --secret FILE"
            )
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
            return connect(address, ANSWER_SECONDS)
        except OSError as error:
            if time.monotonic() > until:
                raise SystemExit(
                    f"worker {address} does not answer ({error}); start it with: python train.py --worker {address} "
                    "--secret FILE"
                ) from None
            time.sleep(ASK_SECONDS)


def _watch(connections: dict[str, socket.socket]) -> None:
    while True:
        time.sleep(ASK_SECONDS)
        for i, address in enumerate(connections):
            if not alive(connections, address, ANSWER_SECONDS):
                print(f"worker {i} of the cluster ({address}) has ended", file=sys.stderr, flush=True)
                os._exit(1)  # the main thread may be waiting for it in TensorFlow, for ever
