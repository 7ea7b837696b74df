"""Stores a study's results in a file, with all figures and the environment of the run.

One JSON file has several sections (`study`, `speed_up`). Each names its command, date and machine. The file is written again
after every model, so an interrupted study keeps its results.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from ..graph import Link
from ..graph.formats.files import write_atomically
from .report import Report, Row

if TYPE_CHECKING:
    import pandas

FORMAT, VERSION = "baechi_lab fidelity", 1


def provenance(command: str | None = None, **settings: object) -> dict[str, Any]:
    """Returns command, date, processor, cores, memory, load and versions, plus the given settings."""
    from importlib.metadata import PackageNotFoundError, version

    from .. import __version__
    from ..executors.tensorflow.devices import cpu_memory

    versions = {"python": platform.python_version(), "baechi_lab": __version__}
    for name in ("tensorflow", "numpy"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]) if command is None else command,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "hardware": {
            "processor": names[0] if names else platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "memory_bytes": cpu_memory(),
        },
        "load": [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else [],
        "versions": versions,
        **settings,
    }


def store(path: str | os.PathLike[str], section: str, content: Mapping[str, object]) -> None:
    """Writes one section and keeps the others. Raises `FormatError` if the file is in another format or not writable."""
    document = load(path) if Path(path).exists() else {"format": FORMAT, "version": VERSION}
    text = json.dumps({**document, section: content}, indent=1, ensure_ascii=False)
    write_atomically(path, (text + "\n").encode())


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the document in a file. Raises `FormatError` if it is no result file."""
    try:
        document = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise FormatError(f"{os.fspath(path)}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FormatError(f"{os.fspath(path)}: not JSON: {error}") from error
    if not isinstance(document, dict) or (document.get("format"), document.get("version")) != (FORMAT, VERSION):
        raise FormatError(f"{os.fspath(path)}: not a result of `baechi-lab fidelity` (format {FORMAT!r} {VERSION})")
    return document


def load_report(path: str | os.PathLike[str]) -> Report:
    """Returns the report of a stored study. Raises `FormatError` if the file has none."""
    from ..executors.tensorflow.calibration import Calibration

    section = load(path).get("study")
    if section is None:
        raise FormatError(f"{os.fspath(path)}: field study is missing; `baechi-lab fidelity -o FILE` writes it")
    try:
        costs: dict[str, Any] = {
            key: Link(**value) if isinstance(value, dict) else value for key, value in section["calibration"].items()
        }
        costs["cooled"] = tuple(map(tuple, costs.get("cooled", ())))  # JSON has lists
        # Older files lack the fields that have a default: `cooled` and `overlap` of a calibration; `others_share`, `drift`, peaks
        # and their parts of a row. Rows also store properties (`error`, `where`), which are computed again.
        required_fields = {f.name for f in fields(Row) if f.default is MISSING and f.default_factory is MISSING}
        rows = tuple(
            Row(**{f.name: row[f.name] for f in fields(Row) if f.name in row or f.name in required_fields})
            for row in section["rows"]
        )
        return Report(rows, Calibration(**costs))
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{os.fspath(path)}: study is not complete: {error}") from error


def speed_up_table(path: str | os.PathLike[str]) -> pandas.DataFrame:
    """Returns the stored speedups, one row per placement: milliseconds, and the measured speedup with its interval."""
    import pandas as pd

    rows = load(path).get("speed_up", {}).get("rows", [])
    return pd.DataFrame(
        {
            "model": row["model"],
            "placer": row["placer"],
            "passes": ", ".join(row["passes"]),
            "transfers": row["transfers"],
            "one_device_ms": 1e3 * row["measured"]["a"]["median"],
            "all_devices_ms": 1e3 * row["measured"]["b"]["median"],
            "times_faster": row["times_faster"],
            "low": 1.0 / row["measured"]["high"],
            "high": 1.0 / row["measured"]["low"],
            "simulated": 1.0 / row["predicted_ratio"],
        }
        for row in rows
    )
