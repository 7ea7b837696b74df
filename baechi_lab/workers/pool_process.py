"""A process of a `Pool`: it runs pickled calls that come through its caller's pipe, one at a time."""

from __future__ import annotations

import pickle
import sys
import traceback
from multiprocessing import spawn
from typing import Any

import numpy as np

from ..errors import ExecutionError
from . import pool
from .isolated import die_with_parent
from .messages import write_message
from .process import incoming, private_stdout


def main() -> None:
    """Answer tasks until stdin ends."""
    die_with_parent()
    answers = private_stdout()
    requests = incoming(sys.stdin.buffer)
    held: dict[str, bytes] = {}
    while True:
        request = requests.get()
        task, *more = (array.tobytes() for array in request.arrays)
        try:
            if request.header["prepare"]:
                _prepare(pickle.loads(more.pop(0)))  # noqa: S301  (a pipe from our own caller)
            held.update(zip(request.header["keep"], more, strict=True))
            reply = _packed(True, _called(task, held))
        except BaseException as error:  # noqa: BLE001 - whatever a call raises reaches the caller through its future
            reply = _failed(error)
        write_message(answers, "result", {}, [np.frombuffer(reply, np.uint8)])
        answers.flush()


def _prepare(told: dict[str, Any]) -> None:
    pool.importing_main = True
    try:
        spawn.prepare(told)
    finally:
        pool.importing_main = False


def _called(task: bytes, held: dict[str, bytes]) -> Any:
    function, args, kwargs = pickle.loads(task)  # noqa: S301  (a pipe from our own caller)
    return function(*(held[a.key] if isinstance(a, pool.Shared) else a for a in args), **kwargs)


def _packed(done: bool, value: Any) -> bytes:
    return pickle.dumps((done, value))


def _failed(error: BaseException) -> bytes:
    """The error itself where it can travel, else its text."""
    try:
        packed = _packed(False, error)
        pickle.loads(packed)  # noqa: S301  (made in the line above)
    except Exception:  # noqa: BLE001 - its class is not ours: what builds it anew may raise anything
        return _packed(False, ExecutionError(traceback.format_exception_only(error)[-1].strip()))
    return packed


if __name__ == "__main__":
    main()
