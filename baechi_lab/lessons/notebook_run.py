"""Runs a submitted notebook in a process of its own, with a time limit and without network, and asks it for its answers.

`notebook_process` is the other side: it reads requests and writes replies, a JSON object per line. What a notebook's process
sends is data of a stranger: nothing of it is unpickled or run here.
"""

from __future__ import annotations

import base64
import inspect
import json
import math
import os
import pickle
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..workers.isolated import isolated_command
from ..workers.network import CREATE_NETWORK
from . import exercise
from .exercise import TooLong
from .submission import Submission
from .worst_cases import Instance

MODULE = "baechi_lab.lessons.notebook_process"
START_SECONDS = 60.0  # within which a process for a notebook must have started
MOST_REPLY_BYTES = 1 << 24
"""Most bytes that a notebook's process may answer."""
PARAMETER_KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
)


class NotebookError(Exception):
    """Raised for an error in a student's function."""


def answer_from(value: Mapping[str, Any], run: NotebookRun) -> object:
    """Returns the answer in the form that a check takes."""
    if value.get("missing"):
        return ...
    if "placement" in value:
        return value["placement"][0]
    if "instance" in value:
        return Instance(**value["instance"])
    if "function" in value:
        return run.function(value["function"], value["parameters"])
    return value["value"] if "value" in value else type(str(value.get("kind")), (), {})()


class NotebookRun:
    """The process of a notebook; it is killed `seconds` after its start, and at the end of the context."""

    def __init__(self, folder: str, seconds: float) -> None:
        self.remarks: list[str] = []
        checkout = Path(__file__).resolve().parents[2]
        for name in ("data", "studies"):
            if (checkout / name).is_dir():
                os.symlink(checkout / name, Path(folder, name))
        notebooks = Path(folder, "notebooks")
        notebooks.mkdir()
        self._folder = str(notebooks)
        self._process = self._start(CREATE_NETWORK)
        if self._next_reply(START_SECONDS) is None:  # the system cannot start a process without network
            self.close()
            self._process = self._start(None)
            self._next_reply(START_SECONDS)
        self.deadline = time.monotonic() + seconds

    def _start(self, network: int | None) -> subprocess.Popen[bytes]:
        self._buffer = b""
        variables = {"PLOTLY_RENDERER": "plotly_mimetype", "MPLBACKEND": "agg", "TF_CPP_MIN_LOG_LEVEL": "2"}
        return subprocess.Popen(
            isolated_command(MODULE, network=network),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            env={**os.environ, **variables},
            start_new_session=True,
        )

    def values(self, submission: Submission) -> dict[str, Any]:
        """Runs all cells; returns the answers by exercise, and `student` and `placement` of homework."""
        values: dict[str, object] = {}
        errors = []
        homework_names = {"student": "student", "placement": "placement"} if submission.is_homework else {}
        for cell in submission.cells:
            expressions = {str(k): text for k, text in cell.answers.items()} | homework_names
            reply = self.ask({"source": cell.source, "expressions": expressions})
            if reply is None:
                self.remarks.append(f"{self._why_ended(cell.number)}; what follows was not run")
                break
            values.update(reply.get("values", {}))
            if reply.get("error"):
                errors.append(f"cell {cell.number} raises {reply['error']}")
        self.remarks += errors[:1]
        return values

    def _why_ended(self, number: int) -> str:
        if self._remaining() > 0:
            return f"cell {number} ended the process"
        return f"cell {number} was running at the time limit"

    def function(self, number: int, parameters: list[tuple[str, int, bool]] | None) -> Callable[..., object]:
        """Returns a function that calls a function of the notebook in the notebook's process."""

        def call(*arguments: object) -> object:
            encoded_arguments = base64.b64encode(pickle.dumps(arguments)).decode()
            request = {"call": number, "arguments": encoded_arguments, "seconds": exercise.SECONDS}
            reply = self.ask(request, 10 * exercise.SECONDS)
            if reply is None or reply.get("too_long"):
                raise TooLong
            if "error" in reply:
                raise NotebookError(reply["error"])
            return answer_from(reply, self)

        if parameters is not None:
            variables = [
                inspect.Parameter(name, PARAMETER_KINDS[kind], default=None if has_default else inspect.Parameter.empty)
                for name, kind, has_default in parameters
            ]
            call.__signature__ = inspect.Signature(variables)  # type: ignore[attr-defined]
        return call

    def ask(self, request: Mapping[str, object], seconds: float = math.inf) -> dict[str, Any] | None:
        """Returns the reply to a request; None if the process has ended, or takes too long and is killed."""
        if self._process.stdin is None or self._process.poll() is not None:
            return None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return None
        reply = self._next_reply(min(seconds, self._remaining()))
        if reply is None:
            self._kill()
        return reply

    def _remaining(self) -> float:
        return self.deadline - time.monotonic()

    def _next_reply(self, seconds: float) -> dict[str, object] | None:
        """Returns the next reply of the process; None if none comes in time, or the line is no reply."""
        end = time.monotonic() + seconds
        stream: Any = self._process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if time.monotonic() >= end or not selector.select(max(0.0, end - time.monotonic())):
                    return None
                chunk = os.read(stream.fileno(), 1 << 16)
                if not chunk or len(self._buffer) > MOST_REPLY_BYTES:
                    return None
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        with suppress(ValueError, RecursionError):
            reply = json.loads(line)
            return reply if isinstance(reply, dict) else None
        return None

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Ends the process and all processes that it started."""
        self._kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def __enter__(self) -> NotebookRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
