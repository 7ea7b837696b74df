"""A study's results as a file: what ran, where and when, and every figure.

One JSON file holds several parts (`study`, `speed_up`); each says which command made it, on which date and machine.
The file is written again whenever a model is done, so that a study cut short leaves what it has.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from ..graph import Link
from ..graph.formats.files import write_atomically
from .report import Report, Row

if TYPE_CHECKING:
    import pandas

FORMAT, VERSION = "baechi_lab fidelity", 1
PARTS = ("study", "speed_up")
LATER = (
    "others_share", "simulated_peak_bytes", "measured_peak_bytes", "simulated_peak_parts", "measured_peak_parts", "drift",
)  # fmt: skip
"""Fields of rows that older files do not have."""


def provenance(command: str | None = None, **settings: Any) -> dict[str, Any]:
    """Command, date, processor, cores, memory, load and versions, beside the settings given.

    >>> sorted(provenance("make figures", seed=0))
    ['command', 'date', 'hardware', 'load', 'seed', 'versions']
    """
    return {
        "command": _command() if command is None else command,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "hardware": _hardware(),
        "load": [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else [],
        "versions": _versions(),
        **settings,
    }


def store(path: str | os.PathLike[str], part: str, content: Mapping[str, Any]) -> None:
    """Write one part into the file and keep the others; `FormatError` when the file is another's or not writable."""
    document = load(path) if Path(path).exists() else {"format": FORMAT, "version": VERSION}
    text = json.dumps({**document, part: content}, indent=1, ensure_ascii=False)
    write_atomically(path, (text + "\n").encode())


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The document in a file; raises `FormatError` when it is none of ours."""
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
    """The report of a stored study; raises `FormatError` when the file holds none."""
    from ..executors.tensorflow.calibration import Calibration

    part = load(path).get("study")
    if part is None:
        raise FormatError(f"{os.fspath(path)}: field study is missing; `baechi-lab fidelity -o FILE` writes it")
    try:
        costs: dict[str, Any] = {
            key: Link(**value) if isinstance(value, dict) else value for key, value in part["calibration"].items()
        }
        costs["cooled"] = tuple(map(tuple, costs.get("cooled", ())))  # older files do not have it
        rows = tuple(
            Row(**{key: row[key] for key in Row.__dataclass_fields__ if key in row or key not in LATER})
            for row in part["rows"]
        )
        return Report(rows, Calibration(**costs))
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{os.fspath(path)}: study is not complete: {error}") from error


def speed_up_table(path: str | os.PathLike[str]) -> pandas.DataFrame:
    """The stored speed-ups, one line per placement: milliseconds, and how many times as fast (measured with interval)."""
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


def _command() -> str:
    """The command line, with the program's name and not its place."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _hardware() -> dict[str, Any]:
    from ..executors.tensorflow.devices import cpu_memory

    return {"processor": _processor(), "cores": os.cpu_count(), "memory_bytes": cpu_memory()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    from .. import __version__

    found = {"python": platform.python_version(), "baechi_lab": __version__}
    for name in ("tensorflow", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
