"""What a writer that was killed has left beside its target, removed by the next one that writes there.

A writer locks what it writes (`flock`), and the lock goes with the process, whatever ends it. A leftover is therefore
what bears the name of one, belongs to this user, is older than `OLD`, and can be locked. Where the system has no such locks
nothing is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

OLD_SECONDS = 60.0
"""Seconds after which something that nobody locks is a leftover: a writer locks right after it has begun."""

RANDOM = "[a-z0-9_]{8}"
"""What `tempfile` puts into names."""


def lock(path: str | os.PathLike[str]) -> int | None:
    """Lock a file or a folder; the descriptor whose closing lets it go, None where another process has it."""
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
    """Remove the leftovers in `folder` whose whole name matches `pattern`; what cannot be removed stays."""
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
