"""The file of a sweep under faults: kills, races, damage, locks, full disks. Every fault is one sentence, no row is lost."""

import os
import sqlite3
import threading
import warnings
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.errors import ExecutionError, FormatError
from baechi_lab.graph.formats.wire import encode_graph
from baechi_lab.sweeps import store as store_module
from baechi_lab.sweeps.store import APPLICATION_ID, COLUMNS, VERSION, ComputedAgain, Store
from baechi_lab.workers.executors import InlineExecutor

GRAPH = bl.OpGraph.from_edges([1, 2, 3], [(0, 1, 4), (0, 2, 8)])


def _sweep(path, **options):
    return bl.sweep(GRAPH, path=path, progress=False, **{"devices": [1, 2, 3], "executor": "here", **options})


def test_a_kill_between_the_two_tables_can_be_resumed(tmp_path):
    path = tmp_path / "half.db"
    base = sqlite3.connect(path, isolation_level=None)
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    base.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    base.execute(f"PRAGMA user_version = {VERSION}")
    base.execute(f"CREATE TABLE rows (key TEXT PRIMARY KEY, {columns})")
    base.close()
    assert len(_sweep(path)) == 3


@pytest.mark.parametrize("word", ["application_id =", "user_version =", "EXISTS rows", "EXISTS graphs", "COMMIT"])
def test_a_kill_while_creating_leaves_nothing(tmp_path, monkeypatch, word):
    class Killed(sqlite3.Connection):
        def execute(self, statement, *options):
            if word in statement:
                raise KeyboardInterrupt
            return super().execute(statement, *options)

    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *arguments, **options: connect(*arguments, **options, factory=Killed)
    )
    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path / "new.db")
    monkeypatch.undo()
    database = sqlite3.connect(tmp_path / "new.db")
    assert database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    assert database.execute("PRAGMA application_id").fetchone() == (0,)
    database.close()
    assert len(_sweep(tmp_path / "new.db")) == 3


def test_two_that_create_one_file_at_once(tmp_path):
    failed = []

    def create(path, barrier):
        barrier.wait()
        try:
            Store(path).close()
        except FormatError as error:
            failed.append(str(error))

    for k in range(60):
        barrier = threading.Barrier(2)
        pair = [threading.Thread(target=create, args=(tmp_path / f"{k}.db", barrier)) for _ in range(2)]
        for one in pair:
            one.start()
        for one in pair:
            one.join()
    assert not failed


def test_a_foreign_database_with_the_same_table_is_left_alone(tmp_path):
    base = sqlite3.connect(tmp_path / "theirs.db", isolation_level=None)
    base.execute("CREATE TABLE rows (key TEXT)")
    base.close()
    before = (tmp_path / "theirs.db").read_bytes()
    with pytest.raises(FormatError, match="no sweep made"):
        _sweep(tmp_path / "theirs.db")
    assert (tmp_path / "theirs.db").read_bytes() == before


@pytest.mark.slow
def test_damage_anywhere_is_one_sentence_or_harmless(tmp_path):
    _sweep(tmp_path / "good.db")
    good, rng = (tmp_path / "good.db").read_bytes(), np.random.default_rng(0)
    refused = 0
    for k in range(150):
        data = bytearray(good)
        if k % 3 == 0:
            del data[rng.integers(len(data)) :]
        else:
            at = rng.integers(len(data), size=1 if k % 3 == 1 else 200)
            data[int(at.min()) : int(at.min()) + len(at)] = rng.bytes(len(at))
        (tmp_path / "bad.db").write_bytes(data)
        try:
            _sweep(tmp_path / "bad.db", devices=[1, 4]) if k % 2 else _sweep(tmp_path / "bad.db")
        except FormatError as error:
            refused += 1
            assert "bad.db" in str(error) or "stored graph" in str(error)
            assert "\n" not in str(error)
    assert refused > 30


def test_damaged_names_and_an_index_that_misses_a_row_are_refused(tmp_path):
    """A name that is no UTF-8 is decoded outside SQLite; a key in the table but not in its index was a missing row."""
    _sweep(tmp_path / "good.db")
    good = (tmp_path / "good.db").read_bytes()
    (tmp_path / "names.db").write_bytes(good.replace(b"rows", b"r\xc9ws"))
    with pytest.raises(FormatError, match=r"cannot be used for a sweep: .*decode"):
        _sweep(tmp_path / "names.db")
    base = sqlite3.connect(tmp_path / "good.db")
    key = base.execute("SELECT key FROM rows").fetchone()[0].encode()
    base.close()
    assert good.count(key) == 2  # in the table and in its index
    (tmp_path / "index.db").write_bytes(good.replace(key, b"0" * len(key), 1))
    with pytest.raises(FormatError, match="damaged"):
        _sweep(tmp_path / "index.db")


def test_a_damaged_graph_is_refused_and_no_row_says_so(tmp_path):
    _sweep(tmp_path / "one.db")
    base = sqlite3.connect(tmp_path / "one.db", isolation_level=None)
    base.execute("UPDATE graphs SET graph = X'1f8b00'")
    base.execute("DELETE FROM rows WHERE devices = 2")
    with pytest.raises(FormatError, match="stored graph is damaged"):
        _sweep(tmp_path / "one.db")
    assert base.execute("SELECT count(*) FROM rows").fetchone() == (2,)
    base.close()


DAMAGES = {
    "a text instead of a time": "makespan_us = 'fast'",
    "another time": "makespan_us = makespan_us * 0.5",
    "an infinite time": "makespan_us = 9e999",
    "no time": "makespan_us = NULL",
    "another placer": "placer = 'm-sct'",
    "it fits": "feasible = 1 - feasible",
    "bytes": "placer = X'00ff'",
    "an error": "error = 'no'",
    "a count that is none": "ops = 2.5",
}


@pytest.mark.parametrize("change", DAMAGES.values(), ids=list(DAMAGES))
def test_damaged_rows_are_computed_again(tmp_path, change):
    first, fresh = _sweep(tmp_path / "one.db"), []
    base = sqlite3.connect(tmp_path / "one.db", isolation_level=None)
    base.execute(f"UPDATE rows SET {change} WHERE devices = 2")
    base.close()
    with pytest.warns(ComputedAgain, match="1 row of .*one.db is not what was written"):
        table = _sweep(tmp_path / "one.db", on_row=fresh.append)
    timeless = [column for column in first.columns if column != "place_seconds"]
    assert table[timeless].equals(first[timeless]) and [row["devices"] for row in fresh] == [2]
    assert _sweep(tmp_path / "one.db").equals(table)  # and the file is whole again


def test_a_row_under_the_key_of_another_is_computed_again(tmp_path):
    first = _sweep(tmp_path / "one.db", devices=[1, 3])
    base = sqlite3.connect(tmp_path / "one.db", isolation_level=None)
    (a,), (b,) = base.execute("SELECT key FROM rows ORDER BY devices")
    base.execute("UPDATE rows SET key = 'x' WHERE key = ?", [a])
    base.execute("UPDATE rows SET key = ? WHERE key = ?", [a, b])
    base.execute("UPDATE rows SET key = ? WHERE key = 'x'", [b])
    base.close()
    with pytest.warns(ComputedAgain, match="2 rows"):
        assert _sweep(tmp_path / "one.db", devices=[1, 3])["devices"].tolist() == first["devices"].tolist() == [1, 3]


def test_another_graph_in_the_place_of_one_is_refused(tmp_path):
    _sweep(tmp_path / "one.db")
    base = sqlite3.connect(tmp_path / "one.db", isolation_level=None)
    base.execute("UPDATE graphs SET graph = ?", [encode_graph(bl.OpGraph.from_edges([5, 5], [(0, 1, 4)]))])
    base.close()
    with pytest.raises(FormatError, match="stored graph is damaged"):
        _sweep(tmp_path / "one.db", devices=[4])


def test_a_file_of_an_earlier_release_can_be_used(tmp_path):
    """It has no digests, and rows under keys that did not tell functions apart: they stay there and are not read."""
    _sweep(tmp_path / "one.db")
    base = sqlite3.connect(tmp_path / "one.db", isolation_level=None)
    base.execute("DROP TABLE checks")
    base.execute("UPDATE rows SET key = 'old ' || devices")
    base.execute("DELETE FROM graphs")
    fresh = []
    assert len(_sweep(tmp_path / "one.db", on_row=fresh.append)) == len(fresh) == 3
    assert base.execute("SELECT count(*) FROM rows").fetchone() == (6,)
    base.close()


def _foreign_files(folder):
    base = sqlite3.connect(folder / "tables.db", isolation_level=None)
    base.execute("CREATE TABLE rows (key TEXT)")
    base.execute("CREATE TABLE graphs (key TEXT)")
    base.execute("CREATE TABLE checks (key TEXT)")
    base.close()
    base = sqlite3.connect(folder / "numbered.db", isolation_level=None)
    base.execute("PRAGMA user_version = 7")
    base.close()
    base = sqlite3.connect(folder / "log.db", isolation_level=None)
    base.execute("PRAGMA journal_mode = WAL")
    base.execute("CREATE TABLE mine (x)")
    base.close()
    for name, data in {
        "short.txt": b"hello\n",
        "long.txt": b"some text\n" * 1000,
        "a.json": b"{}",
        "zeros": bytes(4096),
    }.items():
        (folder / name).write_bytes(data)
    return ["tables.db", "numbered.db", "log.db", "short.txt", "long.txt", "a.json", "zeros"]


def test_foreign_files_are_refused_and_left_as_they_are(tmp_path):
    for name in _foreign_files(tmp_path):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(FormatError, match=r"no sweep made|not a database") as error:
            _sweep(tmp_path / name)
        assert "\n" not in str(error.value) and name in str(error.value)
        assert (tmp_path / name).read_bytes() == before, name


def test_other_columns_are_refused(tmp_path):
    _sweep(tmp_path / "one.db")
    base = sqlite3.connect(tmp_path / "one.db", isolation_level=None)
    base.execute("ALTER TABLE rows DROP COLUMN balance")
    base.close()
    with pytest.raises(FormatError, match="its rows have the columns"):
        _sweep(tmp_path / "one.db")


def test_a_locked_file_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "LOCK_SECONDS", 0.05)
    _sweep(tmp_path / "one.db")
    other_connection = sqlite3.connect(tmp_path / "one.db", isolation_level=None)
    other_connection.execute("BEGIN EXCLUSIVE")
    with pytest.raises(FormatError, match=r"one\.db cannot be used for a sweep: database is locked .*another program"):
        _sweep(tmp_path / "one.db")
    other_connection.execute("ROLLBACK")
    other_connection.close()


@pytest.mark.parametrize(
    ("pragma", "message"), [("query_only = 1", "readonly database"), ("max_page_count = 5", "full")]
)
def test_a_read_only_file_and_a_full_disk_are_one_sentence(tmp_path, pragma, message):
    _sweep(tmp_path / "one.db")
    store = Store(tmp_path / "one.db")
    store._database.execute(f"PRAGMA {pragma}")
    with pytest.raises(FormatError, match=message):
        store.add_graph("more", bytes(100_000))
    store.close()
    assert len(_sweep(tmp_path / "one.db")) == 3


@pytest.mark.parametrize("path", ["", "a\0b", 7])
def test_what_names_no_file(path):
    with pytest.raises(FormatError, match="must name a file"):
        _sweep(path)


def test_a_folder_is_one_sentence(tmp_path):
    with pytest.raises(FormatError, match="unable to open"):
        _sweep(os.fspath(tmp_path))


class _Breaks(InlineExecutor):
    """Answers two rows; then one of its processes is killed."""

    def __init__(self):
        self.rows = 0

    def submit(self, fn, /, *args, **kwargs):
        self.rows += 1
        if self.rows <= 2:
            return super().submit(fn, *args, **kwargs)
        future = Future()
        future.set_exception(BrokenProcessPool("a process in the process pool was terminated abruptly"))
        return future


def test_a_killed_process_of_the_pool_is_one_sentence_and_loses_no_row(tmp_path):
    with pytest.raises(ExecutionError, match=r"was killed, .* 2 rows are in .*one\.db"):
        _sweep(tmp_path / "one.db", executor=_Breaks())
    with pytest.raises(ExecutionError, match="with a path"):
        _sweep(None, executor=_Breaks())
    assert len(_sweep(tmp_path / "one.db")) == 3


@pytest.mark.parametrize(
    ("version", "missing_columns"), [(2, ("finer_groups", "op_order", "winner")), (3, ("op_order", "winner"))]
)
def test_a_file_of_an_earlier_version_is_read_and_gets_the_new_columns(tmp_path, version, missing_columns):
    path = tmp_path / "older.db"
    base = sqlite3.connect(path, isolation_level=None)
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name not in missing_columns)
    base.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    base.execute(f"PRAGMA user_version = {version}")
    base.execute(f"CREATE TABLE rows (key TEXT PRIMARY KEY, {columns})")
    base.execute("CREATE TABLE graphs (key TEXT PRIMARY KEY, graph BLOB)")
    base.execute("CREATE TABLE checks (digest TEXT PRIMARY KEY)")
    base.execute(f"INSERT INTO rows (key, devices) VALUES ('of another release', {7})")
    base.close()
    assert sorted(_sweep(path)["devices"]) == [1, 2, 3]
    base = sqlite3.connect(path)
    assert base.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert base.execute("SELECT count(*) FROM rows").fetchone() == (4,)
    base.close()


def test_a_row_with_a_zero_below_zero_is_as_it_was_written(tmp_path):
    """SQLite stores 0.0 for -0.0, so that such a row counted as damaged, and was computed again by every call."""
    store = Store(str(tmp_path / "one.db"))
    store.add("key", {"bubble": -0.0, "error": ""})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(store.rows(["key"])["key"]["bubble"]) == "0.0"
    store.close()
