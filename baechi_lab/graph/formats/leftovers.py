"""Removal of temporary files and folders that a killed writer left beside its target.

A writer locks its temporary file (`flock`), and the lock ends with the process. A leftover is therefore a file with such a
name that belongs to this user, is older than `OLD`, and can be locked. On systems without such locks no file is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

OLD_SECONDS = 60.0
"""Seconds after which an unlocked temporary file is a leftover; a writer locks its file right after creating it."""

RANDOM = "[a-z0-9_]{8}"
"""Pattern of the random part of names that `tempfile` makes."""


def lock(path: str | os.PathLike[str]) -> int | None:
    """Locks a file or a folder; returns the descriptor whose closing unlocks it, None if another process holds the lock."""
    try:
        import fcntl
    except ImportError:
        return None
    handle = -1
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if handle >= 0:
            os.close(handle)
        return None
    return handle


def clear(folder: Path, pattern: str, remove: Callable[[Path], None]) -> None:
    """Removes the leftovers in `folder` whose whole name matches `pattern`; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for path in [path for path in folder.iterdir() if re.fullmatch(pattern, path.name)]:
            with contextlib.suppress(OSError):
                about = path.lstat()
                if about.st_uid != os.getuid() or time.time() - about.st_mtime < OLD_SECONDS:
                    continue
                handle = lock(path)
                if handle is not None:
                    try:
                        remove(path)
                    finally:
                        os.close(handle)
