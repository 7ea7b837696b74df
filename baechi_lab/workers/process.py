"""The worker process, the module that `client.WORKER` runs: it reads requests on stdin and answers on stdout.

It has its own TensorFlow runtime, because logical devices and memory limits can only be set before TensorFlow starts, and
because a crash, a hang or exhausted memory must not end the caller. It ends with its caller: on Linux the kernel kills it
with its parent, and on every system it ends when stdin ends.

Requests: `devices`, `profile`, `links` and `execute`. Answers: `devices`; `progress` ..., `profile`; `link` ..., `done`;
`ready`, `step` ..., `timeline`, `done`; and `failed` to any.
"""

from __future__ import annotations

import importlib
import os
import queue
import sys
import threading
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..errors import BaechiLabError, FormatError
from .isolated import die_with_parent
from .messages import Message, Send, read_message, write_message
from .tensorflow_import import import_tensorflow

HANDLERS = {
    "devices": "executors.tensorflow.devices",
    "execute": "executors.tensorflow.execute_request",
    "links": "executors.tensorflow.links_request",
    "profile": "profilers.tensorflow.worker_measurement",
}
"""Request -> the module whose `serve` answers it, by name: it is imported with the first request."""


def main() -> int:
    """Serves requests until stdin ends."""
    die_with_parent()
    answers = private_stdout()
    requests = incoming(sys.stdin.buffer)

    def send(kind: str, header: dict[str, Any] | None = None, arrays: Sequence[NDArray[np.generic]] = ()) -> None:
        write_message(answers, kind, header or {}, arrays)

    while True:
        request = requests.get()
        handle(request, send)


def private_stdout() -> BinaryIO:
    """Returns the stream for answers; from now on, other output to stdout goes to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def incoming(stream: BinaryIO) -> queue.Queue[Message]:
    """Returns a queue of the messages of `stream`; the end of the stream ends the process."""
    requests: queue.Queue[Message] = queue.Queue()

    def read() -> None:
        while True:
            try:
                request = read_message(stream)
            except FormatError as error:
                print(error, file=sys.stderr, flush=True)
                request = None
            if request is None:
                os._exit(0)
            requests.put(request)

    threading.Thread(target=read, daemon=True).start()
    return requests


def handle(request: Message, send: Send) -> None:
    """Answers one request; an error becomes a `failed` message with a status."""
    tf = import_tensorflow()
    from .failures import first_line

    try:
        importlib.import_module(f"baechi_lab.{HANDLERS[request.kind]}").serve(request, send)
    except BaechiLabError as error:
        send("failed", {"status": "refused", "message": str(error), "error": type(error).__name__})
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        send("failed", {"status": "out-of-memory", "message": first_line(error)})
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError) as error:
        send("failed", {"status": "died", "message": first_line(error)})
    except (tf.errors.OpError, ValueError, TypeError, KeyError) as error:
        send("failed", {"status": "error", "message": first_line(error)})


if __name__ == "__main__":
    sys.exit(main())
