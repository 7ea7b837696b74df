"""One case: its name says how to make it again, `work()` tries it, and `path` is the file that it reads."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    name: str
    work: Callable[[], Any]
    path: Path | None = None
