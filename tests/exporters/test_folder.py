"""The folder of an export: replaced only where it is untouched, and old or new, whole, whatever kills the export."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import baechi_lab as bl
from baechi_lab.exporters import folder as module
from baechi_lab.exporters.folder import LIST, write_folder
from baechi_lab.graph.formats import leftovers

EARLIER_FILES = {"train.py": "print('old')\n", "values.bin": b"\0" * 5000}
LATER_FILES = {"train.py": "print('new')\n", "other.bin": b"\1" * 7000}


def content(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != LIST}


def as_bytes(files):
    return {name: data if isinstance(data, bytes) else data.encode() for name, data in files.items()}


@pytest.fixture
def out(tmp_path):
    return write_folder(tmp_path / "out", EARLIER_FILES)


def test_an_untouched_export_is_replaced(out, tmp_path):
    write_folder(out, LATER_FILES)
    assert content(out) == as_bytes(LATER_FILES)
    assert os.listdir(tmp_path) == ["out"]


def test_a_folder_with_a_placement_file_is_no_export(tmp_path):
    """A thesis and a repository beside a file of that name."""
    (tmp_path / "out" / ".git").mkdir(parents=True)
    for name in ("placement.json", "placed_plan.json", "thesis.tex", ".git/HEAD"):
        (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(bl.InvalidInput, match="holds no earlier export"):
        write_folder(tmp_path / "out", LATER_FILES)
    assert sorted(os.listdir(tmp_path / "out")) == [".git", "placed_plan.json", "placement.json", "thesis.tex"]


@pytest.mark.parametrize("name", ["trained_values.partial.npz", "thesis.tex", ".hidden"])
def test_what_was_added_is_kept(out, name):
    (out / name).write_text("mine")
    with pytest.raises(bl.InvalidInput, match=f"holds '{name}', which no export wrote"):
        write_folder(out, LATER_FILES)
    assert content(out) == {**as_bytes(EARLIER_FILES), name: b"mine"}


def test_what_was_added_in_a_folder_is_kept(out):
    (out / ".git").mkdir()
    (out / ".git" / "HEAD").write_text("mine")
    with pytest.raises(bl.InvalidInput, match=r"holds '\.git', which no export wrote"):
        write_folder(out, LATER_FILES)
    assert (out / ".git" / "HEAD").read_text() == "mine"


def test_bug_an_export_that_had_run_could_not_be_replaced(out, tmp_path):
    """Python keeps the bytecode of modules that a script imports. Other files there are the user's."""
    cache = out / "__pycache__"
    cache.mkdir()
    (cache / "placed_session.cpython-311.pyc").write_bytes(b"bytecode")
    write_folder(out, LATER_FILES)
    assert content(out) == as_bytes(LATER_FILES) and os.listdir(tmp_path) == ["out"]
    cache.mkdir()
    (cache / "notes.txt").write_text("mine")
    with pytest.raises(bl.InvalidInput, match="holds '__pycache__', which no export wrote"):
        write_folder(out, EARLIER_FILES)
    assert (cache / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("has_links", [True, False])
def test_bug_an_export_that_had_trained_could_not_be_replaced(out, tmp_path, monkeypatch, has_links):
    """What its script trained stays, also on file systems without links, until the script trains again."""
    if not has_links:
        monkeypatch.setattr(os, "link", lambda *_: os.stat(tmp_path / "no such file"))
    (out / module.TRAINED_VALUES).write_bytes(b"a week's work")
    write_folder(out, LATER_FILES)
    assert content(out) == {**as_bytes(LATER_FILES), module.TRAINED_VALUES: b"a week's work"}
    assert os.listdir(tmp_path) == ["out"]


def test_values_trained_during_an_export_are_kept(out, tmp_path):
    (out / module.TRAINED_VALUES).write_bytes(b"old")
    exchange = module.exchange_folders

    def train_and_exchange(partial, target):
        (out / "other.npz").write_bytes(b"new")
        os.replace(out / "other.npz", out / module.TRAINED_VALUES)
        return exchange(partial, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "exchange_folders", train_and_exchange)
        write_folder(out, LATER_FILES)
    assert content(out) == {**as_bytes(LATER_FILES), module.TRAINED_VALUES: b"new"} and os.listdir(tmp_path) == ["out"]


def test_a_link_to_trained_values_is_kept(out, tmp_path):
    (tmp_path / "elsewhere").write_text("mine")
    (out / module.TRAINED_VALUES).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(bl.InvalidInput, match="which no export wrote"):
        write_folder(out, LATER_FILES)


def test_what_was_changed_is_kept(out):
    (out / "train.py").write_text("print('mine')\n")
    with pytest.raises(bl.InvalidInput, match=r"'train\.py' in folder .* was changed since it was exported"):
        write_folder(out, LATER_FILES)
    assert (out / "train.py").read_text() == "print('mine')\n"


def test_a_link_in_place_of_a_file_is_kept(out, tmp_path):
    (tmp_path / "elsewhere").write_text(EARLIER_FILES["train.py"])
    (out / "train.py").unlink()
    (out / "train.py").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(bl.InvalidInput, match="was changed"):
        write_folder(out, LATER_FILES)


@pytest.mark.parametrize("listed", ["", "[]", "{}", '{"format": "baechi-lab exported files"}', "\0", "[" * 100_000])
def test_a_list_that_is_none(out, listed):
    (out / LIST).write_text(listed)
    with pytest.raises(bl.InvalidInput, match="holds no earlier export"):
        write_folder(out, LATER_FILES)
    assert content(out) == as_bytes(EARLIER_FILES)


def test_a_list_without_hashes_makes_nobodys_file_ours(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    document = {"format": module.FORMAT, "version": 1, "sha256": {"thesis.tex": None}}
    (tmp_path / LIST).write_text(json.dumps(document))
    with pytest.raises(bl.InvalidInput, match=r"'thesis\.tex' .* was changed"):
        write_folder(tmp_path, LATER_FILES)


def test_a_name_that_no_system_takes(tmp_path):
    with pytest.raises(bl.InvalidInput, match="cannot be used: File name too long"):
        write_folder(tmp_path / ("9" * 400), {"a.txt": "x"})


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "out").mkdir()
    assert content(write_folder(tmp_path / "out", LATER_FILES)) == as_bytes(LATER_FILES)


def test_what_comes_while_the_new_one_is_written_is_kept(out, tmp_path, monkeypatch):
    """A file appears between the look at the folder and its replacement: all goes back, the file with it."""
    fill = module.fill_folder

    def slow(partial, files):
        fill(partial, files)
        (out / "thesis.tex").write_text("mine")

    monkeypatch.setattr(module, "fill_folder", slow)
    with pytest.raises(bl.InvalidInput, match=r"holds 'thesis\.tex'"):
        write_folder(out, LATER_FILES)
    assert content(out) == {**as_bytes(EARLIER_FILES), "thesis.tex": b"mine"}
    assert os.listdir(tmp_path) == ["out"]


def test_without_an_exchange_of_names_a_folder_is_replaced_by_two_renames(out, tmp_path, monkeypatch):
    """Where names cannot be exchanged: two renames, and the same refusals."""
    monkeypatch.setattr(module, "exchange_folders", lambda partial, target: None)
    write_folder(out, LATER_FILES)
    assert content(out) == as_bytes(LATER_FILES) and os.listdir(tmp_path) == ["out"]
    fill = module.fill_folder
    monkeypatch.setattr(module, "fill_folder", lambda p, f: (fill(p, f), (out / "late").write_text("mine")))
    with pytest.raises(bl.InvalidInput, match="holds 'late'"):
        write_folder(out, EARLIER_FILES)
    assert content(out) == {**as_bytes(LATER_FILES), "late": b"mine"} and os.listdir(tmp_path) == ["out"]


CALLS = ("open", "close", "fsync", "rename", "unlink", "rmdir", "chmod", "mkdir", "stat", "lstat", "scandir")


def _killed_at(moment, out):
    """Replace the export in a process that ends, without any clean-up, at its `moment`-th call to the system."""
    child = os.fork()
    if child == 0:
        count = 0

        def counted(call):
            def run(*arguments, **options):
                nonlocal count
                count += 1
                if count > moment:
                    os._exit(9)
                return call(*arguments, **options)

            return run

        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        module.exchange_folders = counted(module.exchange_folders)
        module._hash = counted(module._hash)
        write_folder(out, LATER_FILES)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at_every_moment(folder):
    leftovers.OLD_SECONDS = 0.0
    snapshots = set()
    for moment in range(1000):
        out = write_folder(folder / str(moment), EARLIER_FILES)
        code = _killed_at(moment, out)
        files = content(out)
        assert files in (as_bytes(EARLIER_FILES), as_bytes(LATER_FILES)), moment
        snapshots.add("old" if files == as_bytes(EARLIER_FILES) else "new")
        write_folder(out, EARLIER_FILES)  # and the next export replaces either
        assert content(out) == as_bytes(EARLIER_FILES)
        assert not [name for name in os.listdir(folder) if name.startswith(f".{moment}.")], moment
        if code == 0:
            break
    assert code == 0 and moment > 15 and snapshots == {"old", "new"}


@pytest.mark.skipif(not os.path.exists("/proc"), reason="exchange of two names as on Linux")
def test_a_kill_at_any_moment_leaves_the_old_or_the_new(tmp_path):
    """In a process of its own: one that has imported frameworks takes a tenth of a second to fork."""
    process = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, timeout=250)
    assert process.returncode == 0, process.stderr


def _leftover(tmp_path, name, files=("train.py",), age=3600.0):
    path = tmp_path / name
    path.mkdir()
    for file in files:
        (path / file).write_text("half")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_only_what_a_killed_export_of_this_folder_left_is_removed(tmp_path):
    _leftover(tmp_path, ".out.partial-abcdefgh")
    kept_files = [
        _leftover(tmp_path, ".out.partial-ijklmnop", age=0.0),  # one that is just being written
        _leftover(tmp_path, ".out.partial-of-my-own"),
        _leftover(tmp_path, ".other.partial-abcdefgh"),
        _leftover(tmp_path, ".out.earlier-abcdefgh"),
    ]
    (_leftover(tmp_path, ".out.partial-qrstuvwx") / ".git").mkdir()  # which no export writes
    os.utime(tmp_path / ".out.partial-qrstuvwx", (1.0, 1.0))
    write_folder(tmp_path / "out", LATER_FILES)
    assert sorted(os.listdir(tmp_path)) == sorted([*(path.name for path in kept_files), ".out.partial-qrstuvwx", "out"])


def test_what_a_living_export_writes_is_left_alone(tmp_path):
    partial = _leftover(tmp_path, ".out.partial-abcdefgh")
    lock_file = leftovers.lock(partial)
    write_folder(tmp_path / "out", LATER_FILES)
    assert partial.exists() and leftovers.lock(partial) is None
    os.close(lock_file)
    write_folder(tmp_path / "out", EARLIER_FILES)
    assert os.listdir(tmp_path) == ["out"]


if __name__ == "__main__":
    kill_at_every_moment(Path(sys.argv[1]))
