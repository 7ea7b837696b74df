"""Stored results of the experiments: one JSON file each, with the command that made it, the date and, where one is, the seed.

A study writes with `store`, into the file that its `--store` names. Notebooks and tests read with `result`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from typing import Any

from baechi_lab.errors import UnknownNameError
from baechi_lab.graph.formats.files import write_atomically


def result_names() -> list[str]:
    """The names of all stored results.

    >>> "search_quality" in result_names()
    True
    """
    return sorted(file.name.removesuffix(".json") for file in files(__name__).iterdir() if file.name.endswith(".json"))


def result_path(name: str) -> Path:
    """The file of the stored result of that name.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in result_names():
        raise UnknownNameError.of("stored result", name, result_names())
    return Path(str(files(__name__) / f"{name}.json"))


def result(name: str) -> dict[str, Any]:
    """The stored result of that name.

    >>> result("search_exact")["instances"]
    100

    Raises:
        UnknownNameError: there is none.
    """
    content: dict[str, Any] = json.loads(result_path(name).read_text("utf-8"))
    return content


def store(path: str | os.PathLike[str], command: str, **content: Any) -> None:
    """Write `content` as JSON, after the command that made it and today's date.

    >>> store("attack.json", "python -m studies.attack", seed=0)
    >>> sorted(json.loads(Path("attack.json").read_text()))
    ['command', 'date', 'seed']
    """
    about: Mapping[str, Any] = {"command": command, "date": datetime.now(timezone.utc).date().isoformat()}
    write_atomically(path, (json.dumps({**about, **content}, indent=1) + "\n").encode())
