"""Background jobs: one at a time in a thread; a newer job cancels the running one, and results arrive on the event loop."""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ..internal_warnings import collected_notes
from .guard import Guard, Problem


class Cancelled(BaseException):
    """Raised in a job that was cancelled or replaced by a newer one.

    It is no `Exception`, so that code which records errors in a table, or tries the next rule, does not catch it.
    """


class Ticket:
    """The argument of a job, through which it reports progress and learns that it was cancelled."""

    def __init__(self, tell: Callable[[str, float], None]):
        self.cancelled, self.enough = threading.Event(), threading.Event()
        self.points: list[tuple[float, float]] = []
        self._tell = tell

    def report(self, text: str, share: float = -1.0, point: tuple[float, float] | None = None) -> bool:
        """Reports the progress as a text, the share that is done (0..1) and a point of the best step over time, if known.

        Returns True if the job should end with its best result so far. Raises `Cancelled` if the job was cancelled.
        """
        self.check()
        if point is not None:
            self.points.append(point)
        self._tell(text, share)
        return self.enough.is_set()

    def check(self) -> None:
        """Raises `Cancelled` if the job was cancelled."""
        if self.cancelled.is_set():
            raise Cancelled("cancelled")


class DelayedCall:
    """Delays calls: only the last function of several calls runs, some seconds later; without an asyncio loop, at once.

    >>> DelayedCall(1.0).call(lambda: print("now"))
    now
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def call(self, function: Callable[[], None]) -> None:
        """Calls `function` after the delay, unless `call` is called again before."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._timer = asyncio.get_running_loop().call_later(self.seconds, function)
        except RuntimeError:
            function()


Work = Callable[[Ticket], Any]


class Background:
    """Runs one job at a time in a thread; submitting another job cancels the previous one.

    `deliver` calls a function on the thread that may change widgets: on the asyncio loop that runs when the object is made
    (the kernel's), or, without a loop, at once in the job's thread. A cancelled job runs until its next `report` or its
    end, and its result is dropped. What this package warns of in a job is passed to `take_notes` when the job ends.
    """

    def __init__(
        self,
        show: Callable[[Problem], None],
        tell: Callable[[str, float], None],
        delay: float = 0.0,
        take_notes: Callable[[list[str]], None] = lambda notes: None,
    ):
        self._show, self._tell, self.delay, self._take_notes = show, tell, delay, take_notes
        self._lock = threading.Lock()
        self._ticket: Ticket | None = None
        self._thread: threading.Thread | None = None
        _BACKGROUNDS.add(self)
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    @property
    def on_loop(self) -> bool:
        """Whether results arrive on an asyncio loop, and not in the thread of the job."""
        return self._loop is not None

    @property
    def busy(self) -> bool:
        """Whether a job is waiting or running."""
        return self._ticket is not None

    @property
    def points(self) -> list[tuple[float, float]]:
        """The best result of the running job over its seconds, if it reports any."""
        ticket = self._ticket
        return [] if ticket is None else list(ticket.points)

    def enough(self) -> None:
        """Asks the running job to end with its best result so far; a job that cannot continues."""
        ticket = self._ticket
        if ticket is not None:
            ticket.enough.set()

    def deliver(self, call: Callable[[], None]) -> None:
        """Runs `call` on the interface's thread."""
        if self._loop is None or self._loop.is_closed():
            call()
        else:
            self._loop.call_soon_threadsafe(call)

    def submit(self, work: Work, on_result: Callable[[Any], None], ended: Callable[[], None] | None = None) -> None:
        """Runs `work(ticket)` after the delay, unless a newer job is submitted; then calls `on_result(result)`.

        `ended` is called when the job has ended, with or without a result, unless a newer job has replaced it.
        """
        with self._lock:
            if self._ticket is not None:
                self._ticket.cancelled.set()
            ticket = Ticket(lambda text, share: self.deliver(lambda: self._progress(ticket, text, share)))
            self._ticket = ticket
            self._thread = threading.Thread(target=self._run, args=(ticket, work, on_result, ended), daemon=True)
        self._thread.start()

    def cancel(self) -> bool:
        """Cancels the running job; returns False if there is none."""
        with self._lock:
            ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.cancelled.set()
        return ticket is not None

    def wait(self, seconds: float = 60.0) -> bool:
        """Waits for the newest job's thread, in tests and scripts; its result still arrives on the loop."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def _run(
        self, ticket: Ticket, work: Work, on_result: Callable[[Any], None], ended: Callable[[], None] | None
    ) -> None:
        if ticket.cancelled.wait(self.delay):
            return
        result: list[Any] = []
        problems: list[Problem] = []
        with collected_notes() as notes, Guard(problems.append):
            try:
                result.append(work(ticket))
            except Cancelled:
                return
            finally:
                if notes:  # also of a cancelled job, whose stages are cached and warn only once
                    self.deliver(lambda: self._take_notes(notes))
        self.deliver(lambda: self._finish(ticket, result, problems, on_result, ended))

    def _progress(self, ticket: Ticket, text: str, share: float) -> None:
        if ticket is self._ticket:
            self._tell(text, share)

    def _finish(
        self, ticket: Ticket, result: list[Any], problems: list[Problem], on_result: Callable[[Any], None], ended: Any
    ) -> None:
        with self._lock:
            if ticket is not self._ticket or ticket.cancelled.is_set():
                return
            self._ticket = None
        with Guard(self._show):
            if problems:
                self._show(problems[0])
            else:
                on_result(result[0])
        if ended is not None:
            with Guard(self._show):
                ended()


_BACKGROUNDS: weakref.WeakSet[Background] = weakref.WeakSet()


@atexit.register
def _end_jobs() -> None:
    """Cancels all jobs, and waits up to two seconds for each: a solver may abort the process if it runs at exit."""
    for background in list(_BACKGROUNDS):
        background.cancel()
        background.wait(2.0)
