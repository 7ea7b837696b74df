"""The first worker of a process is forked as well."""

from __future__ import annotations

from baechi_lab.workers import forked


class _OneOfEachKind(dict):
    """How many workers of each kind were started: at least one."""

    def get(self, kind: object, default: int = 0) -> int:
        return super().get(kind, 1)


def fork_first_workers() -> None:
    """A first worker is a program that imports TensorFlow, and the process that the next are forked from imports it again:
    four seconds of a processor each, and in tests there always is a second worker."""
    forked._started = _OneOfEachKind()
