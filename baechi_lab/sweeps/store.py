"""The file of a sweep: graphs and rows in SQLite, each written in a transaction of its own."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..errors import FormatError

APPLICATION_ID = 0x6261_6C62
"""Marks our files in SQLite's header."""
VERSION = 2
LOCK_SECONDS = 10
"""How long another program may hold the file before that is an error."""
TABLES = {"rows", "graphs"}

COLUMNS = {
    "batch_size": "INTEGER", "micro_batches": "INTEGER", "schedule": "TEXT", "replicas": "INTEGER", "devices": "INTEGER",
    "memory_bytes": "INTEGER", "placer": "TEXT", "makespan_us": "REAL", "samples_per_second": "REAL", "bubble": "REAL",
    "lower_bound_us": "REAL", "gap": "REAL", "feasible": "INTEGER",
    "peak_bytes": "INTEGER", "moved_bytes": "INTEGER", "transfers": "INTEGER", "balance": "REAL", "ops": "INTEGER",
    "groups": "INTEGER", "place_seconds": "REAL", "params": "TEXT", "error": "TEXT",
}  # fmt: skip
"""Columns of a row and their SQLite types."""


class Store:
    """Rows by key, graphs by key; `path` None keeps everything in memory.

    Whatever SQLite cannot do (a file that is damaged, locked, read-only, on a full disk) is a `FormatError` of one
    sentence; what was written before stays.

    Raises:
        FormatError: the path cannot be written, or is a file that no sweep made.
    """

    def __init__(self, path: str | os.PathLike[str] | None):
        self.path = ":memory:" if path is None else checked_path(path)
        with self._said():
            # A worker thread may fill what the interface's thread opened; only one of them uses it at a time.
            self._base = sqlite3.connect(self.path, LOCK_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            with self._said():
                self._prepare()
        except FormatError:
            self._base.close()
            raise

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeError) as error:  # names of files and tables are coded outside SQLite
            raise FormatError(f"{self.path} cannot be used for a sweep: {_why(error)}") from error

    def _prepare(self) -> None:
        if not self._tables() >= TABLES:
            self._create()
        # The quick check would not see an index that knows other keys than the table: their rows would be missing.
        damage = self._base.execute("PRAGMA integrity_check(1)").fetchone()[0]
        named = [column[1] for column in self._base.execute("PRAGMA table_info(rows)")]
        if damage == "ok" and named != ["key", *COLUMNS]:
            damage = f"its rows have the columns {', '.join(named)}"
        self._check_ours()
        if damage != "ok":
            raise FormatError(f"{self.path} is damaged ({' '.join(damage.split())}); give another name, or delete it")

    def _create(self) -> None:
        """Make what is missing, all or nothing: a kill leaves no half, and of two programs the second finds all."""
        self._base.execute("BEGIN IMMEDIATE")
        try:
            if self._tables() or self._number("application_id") != 0:
                self._check_ours(unfinished=True)
            columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            self._base.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._base.execute(f"PRAGMA user_version = {VERSION}")
            self._base.execute(f"CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, {columns})")
            self._base.execute("CREATE TABLE IF NOT EXISTS graphs (key TEXT PRIMARY KEY, graph BLOB)")
            self._base.execute("COMMIT")
        finally:
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")

    def _tables(self) -> set[str]:
        return {
            name for (name,) in self._base.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        }

    def _number(self, pragma: str) -> int:
        return int(self._base.execute(f"PRAGMA {pragma}").fetchone()[0])

    def _check_ours(self, unfinished: bool = False) -> None:
        """Refuse another program's database, and another version; an `unfinished` file may have none yet."""
        if self._number("application_id") != APPLICATION_ID:
            raise FormatError(f"{self.path} is a database that no sweep made; give another name")
        version = self._number("user_version")
        if version != VERSION and not (unfinished and version == 0):
            raise FormatError(f"{self.path} has version {version} of the sweep format; this program reads {VERSION}")

    def keys(self) -> set[str]:
        """Keys of the rows that are there."""
        with self._said():
            return {key for (key,) in self._base.execute("SELECT key FROM rows")}

    def add(self, key: str, row: Mapping[str, Any]) -> None:
        """Write one row; it is on disk when this returns."""
        values = [row.get(name) for name in COLUMNS]
        marks = ", ".join("?" for _ in range(len(values) + 1))
        with self._said():
            self._base.execute(f"INSERT OR REPLACE INTO rows VALUES ({marks})", [key, *values])

    def graph(self, key: str) -> bytes | None:
        """A graph that was written before."""
        with self._said():
            found = self._base.execute("SELECT graph FROM graphs WHERE key = ?", [key]).fetchone()
        return None if found is None else bytes(found[0])

    def add_graph(self, key: str, data: bytes) -> None:
        """Write one graph."""
        with self._said():
            self._base.execute("INSERT OR REPLACE INTO graphs VALUES (?, ?)", [key, data])

    def rows(self, keys: Iterable[str]) -> list[dict[str, Any]]:
        """The rows of `keys` that are there, in that order."""
        with self._said():
            held = {r[0]: dict(zip(COLUMNS, r[1:], strict=True)) for r in self._base.execute("SELECT * FROM rows")}
        return [held[key] for key in keys if key in held]

    def kept(self) -> str:
        """What an error may say of the rows that are written."""
        if self.path == ":memory:":
            return "with a path, the rows before that would have been kept"
        return f"{len(self.keys())} rows are in {self.path}, the same call goes on from there"

    def close(self) -> None:
        """Close the file."""
        self._base.close()


def checked_path(path: str | os.PathLike[str]) -> str:
    """The path as a text that can name a file."""
    if not isinstance(path, (str, os.PathLike)) or not (text := os.fspath(path)) or "\0" in str(text):
        raise FormatError(f"path is {path!r:.60}; it must name a file")
    return os.fsdecode(text)


def _why(error: Exception) -> str:
    """SQLite's reason, and what to do where that is known."""
    text = str(error)
    return f"{text} (for more than {LOCK_SECONDS} s, by another program)" if "locked" in text else text


def as_text(params: Mapping[str, Any]) -> str:
    """Parameters as the text of a column."""
    return json.dumps(dict(params), sort_keys=True, default=repr)
