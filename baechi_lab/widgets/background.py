"""Work beside the interface: the newest request wins, a cancelled one is dropped, results arrive on its loop."""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .guard import Guard, Problem


class Cancelled(BaseException):
    """The work was cancelled, or a newer request took its place.

    Not an `Exception`: what keeps an error as a row of a table, or tries the next rule, must let this one through.
    """


class Ticket:
    """What a job gets: a way to say how far it is, and to learn that nobody waits for it any more."""

    def __init__(self, tell: Callable[[str, float], None]):
        self.cancelled, self.enough = threading.Event(), threading.Event()
        self.points: list[tuple[float, float]] = []
        self._tell = tell

    def report(self, text: str, share: float = -1.0, point: tuple[float, float] | None = None) -> bool:
        """Say what is being done and, where known, which share is done (0..1), and a point of the curve of the best so far.

        Returns True when what there is so far is enough. Raises `Cancelled` when nobody waits any more.
        """
        self.check()
        if point is not None:
            self.points.append(point)
        self._tell(text, share)
        return self.enough.is_set()

    def check(self) -> None:
        """Raise `Cancelled` when nobody waits for the result."""
        if self.cancelled.is_set():
            raise Cancelled("cancelled")


class Later:
    """Calls a function some seconds after it was asked to for the last time; without an asyncio loop, at once.

    >>> Later(1.0).call(lambda: print("now"))
    now
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def call(self, function: Callable[[], None]) -> None:
        """Call `function` when nothing newer has been asked for."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._timer = asyncio.get_running_loop().call_later(self.seconds, function)
        except RuntimeError:
            function()


Work = Callable[[Ticket], Any]


class Background:
    """Runs one job at a time in a thread of its own; submitting another cancels the one before.

    `deliver` calls a function where widgets may be touched: on the asyncio loop that runs when the object is made (the
    kernel's), or, without a loop, at once in the worker's thread. A job that cannot be interrupted in the middle goes
    on until its next `report` or its end, and its result is dropped.
    """

    def __init__(self, show: Callable[[Problem], None], tell: Callable[[str, float], None], delay: float = 0.0):
        self._show, self._tell, self.delay = show, tell, delay
        self._lock = threading.Lock()
        self._ticket: Ticket | None = None
        self._thread: threading.Thread | None = None
        _BACKGROUNDS.add(self)
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    @property
    def busy(self) -> bool:
        """A job is waiting or running."""
        return self._ticket is not None

    @property
    def points(self) -> list[tuple[float, float]]:
        """The best so far of the running job over its seconds, where it tells."""
        ticket = self._ticket
        return [] if ticket is None else list(ticket.points)

    def enough(self) -> None:
        """Ask the running job to end with the best it has; one that cannot goes on."""
        ticket = self._ticket
        if ticket is not None:
            ticket.enough.set()

    def deliver(self, call: Callable[[], None]) -> None:
        """Run `call` on the interface's thread."""
        if self._loop is None or self._loop.is_closed():
            call()
        else:
            self._loop.call_soon_threadsafe(call)

    def submit(self, work: Work, on_result: Callable[[Any], None], ended: Callable[[], None] | None = None) -> None:
        """Run `work(ticket)` after the delay, unless something newer is submitted; then `done(result)`.

        `ended` is called in any case once the job is over and nothing newer has taken its place.
        """
        with self._lock:
            if self._ticket is not None:
                self._ticket.cancelled.set()
            ticket = Ticket(lambda text, share: self.deliver(lambda: self._progress(ticket, text, share)))
            self._ticket = ticket
            self._thread = threading.Thread(target=self._run, args=(ticket, work, on_result, ended), daemon=True)
        self._thread.start()

    def cancel(self) -> bool:
        """Drop the running job; False when there is none."""
        with self._lock:
            ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.cancelled.set()
        return ticket is not None

    def wait(self, seconds: float = 60.0) -> bool:
        """Wait for the newest job's thread (in tests and scripts; results still arrive on the loop)."""
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
        with Guard(problems.append):
            try:
                result.append(work(ticket))
            except Cancelled:
                return
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
    """Cancels all jobs. A solver that is interrupted by the end of the process may abort it, so each has two seconds to end."""
    for background in list(_BACKGROUNDS):
        background.cancel()
        background.wait(2.0)
