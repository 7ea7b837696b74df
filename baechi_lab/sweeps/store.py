"""The file of a sweep: graphs and rows in SQLite, each written in a transaction of its own."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from ..errors import FormatError, in_short
from ..internal_warnings import outer_stacklevel

APPLICATION_ID = 0x6261_6C62
"""Identifies sweep files in SQLite's header."""
VERSION = 4
"""Version of the tables; files of versions 2 and 3, which lack columns, are extended when they are opened."""
LOCK_SECONDS = 10
"""How long another program may hold the file before that is an error."""
TABLES = {"rows", "graphs", "checks"}
"""Tables of a file; `checks` has the digests of what was written into the other two."""
_COLUMN_TYPES = (
    "batch_size:INTEGER micro_batches:INTEGER schedule:TEXT replicas:INTEGER devices:INTEGER "
    "memory_bytes:INTEGER placer:TEXT makespan_us:REAL samples_per_second:REAL bubble:REAL lower_bound_us:REAL "
    "gap:REAL feasible:INTEGER peak_bytes:INTEGER moved_bytes:INTEGER transfers:INTEGER balance:REAL "
    "ops:INTEGER groups:INTEGER place_seconds:REAL params:TEXT error:TEXT finer_groups:TEXT op_order:TEXT winner:TEXT"
)
COLUMNS = dict(column.split(":") for column in _COLUMN_TYPES.split())
"""Columns of a row and their SQLite types."""
_NEW_IN_VERSION = {3: ("finer_groups",), 4: ("op_order", "winner")}


class ComputedAgain(UserWarning):
    """Warns that stored rows are not used and are computed again; the message says why."""


class Store:
    """Rows and graphs by key, with a digest of each; `path` None keeps everything in memory.

    Rows with other keys, such as those of an earlier release, stay in the file and are not read. Errors of SQLite (a file
    that is damaged, locked or read-only, a full disk) become a `FormatError` of one sentence; stored rows stay.

    Raises:
        FormatError: the path cannot be written, or is a file that no sweep made.
    """

    def __init__(self, path: str | os.PathLike[str] | None):
        self.path = ":memory:"
        if path is not None:
            if not isinstance(path, (str, os.PathLike)) or not (text := os.fspath(path)) or "\0" in str(text):
                raise FormatError(f"path is {in_short(path)}; it must name a file")
            self.path = os.fsdecode(text)
        _reject_other_files(self.path)
        with self._as_format_errors():
            # A worker thread may fill what the interface's thread opened; only one of them uses it at a time.
            self._database = sqlite3.connect(self.path, LOCK_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            with self._as_format_errors():
                self._prepare()
        except FormatError:
            self._database.close()
            raise

    @property
    def in_memory(self) -> bool:
        """Whether there is no file."""
        return self.path == ":memory:"

    @contextmanager
    def _as_format_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeError) as error:  # names of files and tables are coded outside SQLite
            waiting = f" (for more than {LOCK_SECONDS} s, by another program)" if "locked" in str(error) else ""
            raise FormatError(f"{self.path} cannot be used for a sweep: {error}{waiting}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Makes the changes inside all at once: a kill leaves none."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        finally:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")

    def _prepare(self) -> None:
        """Makes the tables of a new file, extends those of earlier versions, and rejects damaged files and other kinds."""
        if not self._tables() >= TABLES:
            with self._transaction():  # so that a second program finds all tables
                if self._tables() or self._number("application_id") != 0 or self._number("user_version") != 0:
                    self._check_application(unfinished=True)
                columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
                self._database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._database.execute(f"PRAGMA user_version = {VERSION}")
                self._database.execute(f"CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, {columns})")
                self._database.execute("CREATE TABLE IF NOT EXISTS graphs (key TEXT PRIMARY KEY, graph BLOB)")
                self._database.execute("CREATE TABLE IF NOT EXISTS checks (digest TEXT PRIMARY KEY)")
        for version, names in _NEW_IN_VERSION.items():
            if self._number("application_id") == APPLICATION_ID and self._number("user_version") == version - 1:
                with self._transaction():
                    if self._number("user_version") == version - 1:  # no other program was faster
                        for name in names:
                            self._database.execute(f"ALTER TABLE rows ADD COLUMN {name} {COLUMNS[name]}")
                        self._database.execute(f"PRAGMA user_version = {version}")
        # The quick check would not see an index that knows other keys than the table: their rows would be missing.
        damage = self._database.execute("PRAGMA integrity_check(1)").fetchone()[0]
        column_names = [column[1] for column in self._database.execute("PRAGMA table_info(rows)")]
        if damage == "ok" and column_names != ["key", *COLUMNS]:
            damage = f"its rows have the columns {', '.join(column_names)}"
        self._check_application()
        if damage != "ok":
            raise FormatError(f"{self.path} is damaged ({' '.join(damage.split())}); give another name, or delete it")

    def _tables(self) -> set[str]:
        return {
            name for (name,) in self._database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        }

    def _number(self, pragma: str) -> int:
        return int(self._database.execute(f"PRAGMA {pragma}").fetchone()[0])

    def _check_application(self, unfinished: bool = False) -> None:
        """Rejects another program's database and other versions; an `unfinished` file may have no version yet."""
        if self._number("application_id") != APPLICATION_ID:
            raise FormatError(f"{self.path} is a database that no sweep made; give another name")
        version = self._number("user_version")
        if version != VERSION and not (unfinished and version == 0):
            raise FormatError(f"{self.path} has version {version} of the sweep format; this program reads {VERSION}")

    def keys(self) -> set[str]:
        """Returns the keys of the stored rows."""
        with self._as_format_errors():
            return {key for (key,) in self._database.execute("SELECT key FROM rows")}

    def add(self, key: str, row: Mapping[str, object]) -> None:
        """Writes one row; it is on disk when this returns."""
        values = list(as_stored(row).values())
        self._write("rows", key, values, _digest(key, values))

    def graph(self, key: str) -> bytes | None:
        """Returns a stored graph, or None; raises `FormatError` where the stored bytes have changed."""
        with self._as_format_errors():
            row = self._database.execute("SELECT graph FROM graphs WHERE key = ?", [key]).fetchone()
            check = (
                row
                and self._database.execute("SELECT digest FROM checks WHERE digest = ?", [_digest(key, row)]).fetchone()
            )
        if row is None:
            return None
        if not isinstance(row[0], bytes) or check is None:
            raise FormatError(
                f"the stored graph is damaged: {self.path} has other bytes than were written; give another name, or delete it"
            )
        return row[0]

    def add_graph(self, key: str, data: bytes) -> None:
        """Writes one graph."""
        self._write("graphs", key, [data], _digest(key, [data]))

    def _write(self, table: str, key: str, values: list[object], digest: str) -> None:
        marks = ", ".join("?" for _ in range(len(values) + 1))
        with self._as_format_errors(), self._transaction():
            self._database.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", [key, *values])
            self._database.execute("INSERT OR IGNORE INTO checks VALUES (?)", [digest])

    def rows(self, keys: Iterable[str]) -> dict[str, dict[str, object]]:
        """Returns the unchanged rows of `keys`, by key in that order; warns with `ComputedAgain` about changed ones."""
        with self._as_format_errors():
            digests = {digest for (digest,) in self._database.execute("SELECT digest FROM checks")}
            rows_by_key = {key: values for key, *values in self._database.execute("SELECT * FROM rows")}
        present = [key for key in dict.fromkeys(keys) if key in rows_by_key]
        intact = [key for key in present if _digest(key, rows_by_key[key]) in digests]
        if damaged_count := len(present) - len(intact):
            rows_text, verb = (f"{damaged_count} rows", "are") if damaged_count > 1 else ("1 row", "is")
            warnings.warn(
                f"{rows_text} of {self.path} {verb} not what was written there, and {verb} computed again",
                ComputedAgain,
                stacklevel=outer_stacklevel(),
            )
        return {key: dict(zip(COLUMNS, rows_by_key[key], strict=True)) for key in intact}

    def stored_rows_text(self) -> str:
        """Returns a sentence for errors about the rows that are stored."""
        if self.in_memory:
            return "with a path, the rows before that would have been kept"
        return f"{len(self.keys())} rows are in {self.path}, the same call goes on from there"

    def close(self) -> None:
        """Closes the file."""
        self._database.close()


def as_stored(row: Mapping[str, object]) -> dict[str, object]:
    """Returns a row as SQLite returns it, so that a computed row equals its stored one.

    It has all columns, each of its type, None for NaN, and zero without a sign.
    """
    types: dict[str, Callable[..., object]] = {"INTEGER": int, "REAL": lambda value: float(value) + 0.0, "TEXT": str}
    values = {name: row.get(name) for name in COLUMNS}
    return {k: None if v is None or v != v else types[COLUMNS[k]](v) for k, v in values.items()}


def _digest(key: str, values: Iterable[object]) -> str:
    """Returns the digest of a row or graph and its key; equal values of different types have different digests."""
    short = [hashlib.blake2b(value).digest() if isinstance(value, bytes) else value for value in values]
    return hashlib.blake2b(repr((key, *short)).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


def _reject_other_files(path: str) -> None:
    """Rejects files of other kinds by their first bytes, because SQLite changes some files when it opens them."""
    if not os.path.isfile(path) or not os.path.getsize(path):
        return
    try:
        with open(path, "rb") as file:
            head = file.read(100)
    except OSError as error:
        raise FormatError(f"{path} cannot be used for a sweep: {error.strerror}") from error
    if not head.startswith(b"SQLite format 3\0"):
        raise FormatError(f"{path} cannot be used for a sweep: file is not a database; give another name")
    if head[68:72] != APPLICATION_ID.to_bytes(4, "big"):
        raise FormatError(f"{path} is a database that no sweep made; give another name")
