"""The file of a sweep: graphs and rows in SQLite, each written in a transaction of its own."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import FormatError

APPLICATION_ID = 0x6261_6C62
"""Marks our files in SQLite's header."""
VERSION = 1

COLUMNS = {
    "batch_size": "INTEGER", "devices": "INTEGER", "memory_bytes": "INTEGER", "placer": "TEXT", "makespan_us": "REAL",
    "samples_per_second": "REAL", "lower_bound_us": "REAL", "gap": "REAL", "feasible": "INTEGER",
    "peak_bytes": "INTEGER", "moved_bytes": "INTEGER", "transfers": "INTEGER", "balance": "REAL", "ops": "INTEGER",
    "groups": "INTEGER", "place_seconds": "REAL", "params": "TEXT", "error": "TEXT",
}  # fmt: skip
"""Columns of a row and their SQLite types."""


class Store:
    """Rows by key, graphs by key; `path` None keeps everything in memory.

    Raises:
        FormatError: the path cannot be written, or is a file that no sweep made.
    """

    def __init__(self, path: str | os.PathLike[str] | None):
        self.path = ":memory:" if path is None else os.fspath(path)
        try:
            # A worker thread may fill what the interface's thread opened; only one of them uses it at a time.
            self._base = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._prepare()
        except sqlite3.Error as error:
            raise FormatError(f"{self.path} cannot be used for a sweep: {error}") from error

    def _prepare(self) -> None:
        ours = self._base.execute("PRAGMA application_id").fetchone()[0]
        tables = self._base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        version = self._base.execute("PRAGMA user_version").fetchone()[0]
        if tables and ours != APPLICATION_ID:
            raise FormatError(f"{self.path} is a database that no sweep made; give another name")
        if tables and version != VERSION:
            raise FormatError(f"{self.path} has version {version} of the sweep format; this program reads {VERSION}")
        if tables:
            return
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        self._base.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        self._base.execute(f"PRAGMA user_version = {VERSION}")
        self._base.execute(f"CREATE TABLE rows (key TEXT PRIMARY KEY, {columns})")
        self._base.execute("CREATE TABLE graphs (key TEXT PRIMARY KEY, graph BLOB)")

    def keys(self) -> set[str]:
        """Keys of the rows that are there."""
        return {key for (key,) in self._base.execute("SELECT key FROM rows")}

    def add(self, key: str, row: Mapping[str, Any]) -> None:
        """Write one row; it is on disk when this returns."""
        values = [row.get(name) for name in COLUMNS]
        marks = ", ".join("?" for _ in range(len(values) + 1))
        self._base.execute(f"INSERT OR REPLACE INTO rows VALUES ({marks})", [key, *values])

    def graph(self, key: str) -> bytes | None:
        """A graph that was written before."""
        found = self._base.execute("SELECT graph FROM graphs WHERE key = ?", [key]).fetchone()
        return None if found is None else bytes(found[0])

    def add_graph(self, key: str, data: bytes) -> None:
        """Write one graph."""
        self._base.execute("INSERT OR REPLACE INTO graphs VALUES (?, ?)", [key, data])

    def rows(self, keys: Iterable[str]) -> list[dict[str, Any]]:
        """The rows of `keys` that are there, in that order."""
        held = {r[0]: dict(zip(COLUMNS, r[1:], strict=True)) for r in self._base.execute("SELECT * FROM rows")}
        return [held[key] for key in keys if key in held]

    def close(self) -> None:
        """Close the file."""
        self._base.close()


def as_text(params: Mapping[str, Any]) -> str:
    """Parameters as the text of a column."""
    return json.dumps(dict(params), sort_keys=True, default=repr)
