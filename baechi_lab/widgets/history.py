"""Undo and redo over frozen settings."""

from __future__ import annotations

from .setting import Setting

LONGEST = 200  # settings that can be undone


class History:
    """The current and previous settings, oldest first; `push` after an undo forgets the undone settings."""

    def __init__(self, first: Setting):
        self._past: list[Setting] = []
        self._future: list[Setting] = []
        self.current = first

    def push(self, setting: Setting) -> None:
        self._past = [*self._past[1 - LONGEST :], self.current]
        self._future = []
        self.current = setting

    @property
    def can_undo(self) -> bool:
        return bool(self._past)

    @property
    def can_redo(self) -> bool:
        return bool(self._future)

    def undo(self) -> bool:
        """Goes back by one setting; returns False at the first."""
        if not self._past:
            return False
        self._future.append(self.current)
        self.current = self._past.pop()
        return True

    def redo(self) -> bool:
        """Goes forward by one setting; returns False at the last."""
        if not self._future:
            return False
        self._past.append(self.current)
        self.current = self._future.pop()
        return True
