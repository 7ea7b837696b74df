"""Progress on standard error, if it is a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

DELAY_SECONDS = 2.0
"""Work that takes longer shows a progress line."""
REFRESH_SECONDS = 1.0  # between two updates of the line of progress


def shows_progress() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr.isatty()


class Status:
    """The text of a progress line. `detail` may change while it is shown."""

    def __init__(self, text: str):
        self.text, self.detail = text, ""

    def line(self, seconds: float) -> str:
        return f"{self.text} ({seconds:.0f} s{self.detail and f', {self.detail}'})"


@contextmanager
def progress(text: str) -> Iterator[Status]:
    """Shows a line with `text` and the elapsed time on a terminal's standard error, after `DELAY_SECONDS`."""
    status = Status(text)
    if not shows_progress():
        yield status
        return
    finish_event = threading.Event()
    thread = threading.Thread(target=_show, args=(status, finish_event), daemon=True)
    thread.start()
    try:
        yield status
    finally:
        finish_event.set()
        thread.join()


def _show(status: Status, finish_event: threading.Event) -> None:
    start_seconds, is_shown = time.monotonic(), False
    wait = DELAY_SECONDS
    while not finish_event.wait(wait):
        print(f"\r\x1b[K{status.line(time.monotonic() - start_seconds)}", end="", file=sys.stderr, flush=True)
        is_shown, wait = True, REFRESH_SECONDS
    if is_shown:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
