"""A process of a `Pool`: it runs pickled calls from its caller's pipe, one at a time.

A request has the pickled call, what a process prepares itself by if its header says `prepare` (only the first request does), and
shared data whose keys its header lists as `keep`. The answer is a pickled pair: whether the call succeeded, and its value or its
error.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from multiprocessing import spawn

import numpy as np

from ..errors import ExecutionError
from . import pool
from .isolated import die_with_parent
from .messages import write_message
from .process import incoming, private_stdout


def main() -> None:
    """Runs tasks until stdin ends."""
    die_with_parent()
    answers = private_stdout()
    requests = incoming(sys.stdin.buffer)
    shared_data: dict[str, bytes] = {}
    while True:
        request = requests.get()
        task, *payloads = (array.tobytes() for array in request.arrays)
        try:
            if request.header["prepare"]:
                preparation = pickle.loads(payloads.pop(0))  # noqa: S301  (a pipe from our own caller)
                pool.importing_main = True
                try:
                    spawn.prepare(preparation)
                finally:
                    pool.importing_main = False
            shared_data.update(zip(request.header["keep"], payloads, strict=True))
            function, args, kwargs = pickle.loads(task)  # noqa: S301  (a pipe from our own caller)
            args = [shared_data[a.key] if isinstance(a, pool.Shared) else a for a in args]
            reply = pickle.dumps((True, function(*args, **kwargs)))
        except BaseException as error:  # noqa: BLE001 - whatever a call raises reaches the caller through its future
            reply = _pack_error(error)
        write_message(answers, "result", {}, [np.frombuffer(reply, np.uint8)])
        answers.flush()


def _pack_error(error: BaseException) -> bytes:
    """Packs the error itself where it can be pickled, else its text."""
    try:
        pickled_error = pickle.dumps((False, error))
        pickle.loads(pickled_error)  # noqa: S301  (made in the line above)
    except Exception:  # noqa: BLE001 - its class is not ours: what builds it anew may raise anything
        return pickle.dumps((False, ExecutionError(traceback.format_exception_only(error)[-1].strip())))
    return pickled_error


if __name__ == "__main__":
    main()
