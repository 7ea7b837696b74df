"""Standard error: progress bars for people only."""

from __future__ import annotations

import sys


def shows_progress() -> bool:
    """Is somebody watching?"""
    return sys.stderr.isatty()
