"""Writes a folder atomically: into a temporary folder beside it, which then takes its name in one step.

The folder includes a list of its files' hashes. Only a folder whose files all agree with the list, and that has no other
files, is replaced: files that were added or changed are the user's work. What its script trained stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from ..errors import ExecutionError, InvalidInput
from ..graph.formats.leftovers import RANDOM, clear, lock
from ..graph.formats.reading import absolute

Writer = Callable[[BinaryIO], None]

LIST = "exported_files.json"
FORMAT = "baechi-lab exported files"
TRAINED_VALUES = "trained_values.npz"
"""The file that `train.py` writes. A later export to the folder leaves it there."""


def write_folder(folder: str | os.PathLike[str], files: Mapping[str, bytes | str | Writer]) -> Path:
    """Writes `files` (name -> content, or a function that writes it) as `folder`, with the list of their hashes.

    An existing folder is replaced only when it is empty, or holds exactly what an earlier export wrote, and perhaps what
    running it wrote: `trained_values.npz`, which stays, and the bytecode that Python keeps. A kill at any moment leaves the
    earlier or the new one (on Linux and macOS; elsewhere, at one moment, the earlier one beside). What it leaves beside is
    removed by the first export to that place a minute later.

    Raises:
        InvalidInput: the folder's place is taken by something else, or its parent does not exist.
        ExecutionError: the disk is full or not writable; then nothing is left behind and an earlier export stays.
    """
    target = check_place(folder)
    clear(target.parent, rf"\.{re.escape(target.name)}\.partial-{RANDOM}", _remove_leftover)
    try:
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    except OSError as error:
        raise ExecutionError(f"cannot write beside {target}: {error.strerror or error}") from error
    lock_file = lock(partial)
    try:
        fill_folder(partial, files)
        _link_trained_values(target, partial)
        earlier = _swap_into_place(partial, target)
    except OSError as error:
        _remove(partial)
        raise ExecutionError(f"cannot write {target}: {error.strerror or error}; nothing was left behind") from error
    except BaseException:  # Ctrl-C, and whatever a writer raises: nothing is left behind
        _remove(partial)
        raise
    finally:
        if lock_file is not None:
            os.close(lock_file)
    if earlier is not None:
        _link_trained_values(earlier, target)  # again: a training may have ended meanwhile
        _remove(earlier)
    return target


def _link_trained_values(source: Path, folder: Path) -> None:
    """Puts the trained values of folder `source`, if it has any, into `folder` as well."""
    trained, linked = source / TRAINED_VALUES, folder / TRAINED_VALUES
    if not _is_plain_file(trained) or (linked.exists() and linked.samefile(trained)):
        return
    partial = linked.with_suffix(".new")
    try:
        os.link(trained, partial)
    except OSError:  # a file system without links
        shutil.copy2(trained, partial)
    os.replace(partial, linked)


def _remove_leftover(folder: Path) -> None:
    """Removes the temporary folder of a killed export if it holds plain files only."""
    if all(map(_is_plain_file, folder.iterdir())):
        _remove(folder)


def fill_folder(partial: Path, files: Mapping[str, bytes | str | Writer]) -> None:
    """Writes the files and then their list; a folder without the list is incomplete."""
    hashes = {name: _write(partial / name, content) for name, content in files.items()}
    mask = os.umask(0)  # only its owner may open a folder made by mkdtemp: give it the usual permissions
    os.umask(mask)
    partial.chmod(0o777 & ~mask)
    manifest = json.dumps({"format": FORMAT, "version": 1, "sha256": hashes}, indent=1)
    _write(partial / LIST, manifest + "\n")
    _sync_folder(partial)


def check_place(folder: str | os.PathLike[str]) -> Path:
    """Returns the absolute path of a folder that can be written; `InvalidInput` where its place is taken, or has no parent.

    So is a name that the system does not take, or a place that it does not let us look at.
    """
    target = Path(absolute(folder, "folder", "folder"))
    try:
        if not target.parent.is_dir():
            raise InvalidInput(f"folder {target}: {target.parent} is not a folder that exists")
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            raise InvalidInput(f"folder {target} exists and is not a folder; give another name")
        if target.is_dir() and any(target.iterdir()):
            _check_unchanged(target, target)
    except OSError as error:
        raise InvalidInput(f"folder {target} cannot be used: {error.strerror or error}; give another name") from error
    return target


def _check_unchanged(folder: Path, name: Path) -> None:
    """Rejects a folder that holds anything but the unchanged files of an export; errors call it `name`."""
    hashes = _read_hashes(folder)
    if hashes is None:
        raise InvalidInput(f"folder {name} is not empty and holds no earlier export; give another name")
    for path in sorted(folder.iterdir()):
        if path.name == "__pycache__" and _is_bytecode(path):
            continue  # Python writes it when a script of the folder runs
        if path.name == TRAINED_VALUES and _is_plain_file(path):
            continue
        if path.name != LIST and path.name not in hashes:
            raise InvalidInput(
                f"folder {name} holds {path.name!r}, which no export wrote; move it, or give another name"
            )
        if path.name != LIST and (not _is_plain_file(path) or _hash(path) != hashes[path.name]):
            raise InvalidInput(f"{path.name!r} in folder {name} was changed since it was exported; give another name")


def _is_plain_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _is_bytecode(folder: Path) -> bool:
    return not folder.is_symlink() and folder.is_dir() and all(path.suffix == ".pyc" for path in folder.iterdir())


def _read_hashes(folder: Path) -> dict[str, str] | None:
    """Returns the hashes that an export wrote into `folder`; None without such a list."""
    path = folder / LIST
    if not _is_plain_file(path):
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    hashes = document.get("sha256") if isinstance(document, dict) and document.get("format") == FORMAT else None
    return hashes if isinstance(hashes, dict) else None


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _write(path: Path, content: bytes | str | Writer) -> str:
    """Writes one file to the disk; returns its hash."""
    with path.open("wb") as stream:
        if callable(content):
            content(stream)
        else:
            stream.write(content.encode() if isinstance(content, str) else content)
        stream.flush()
        os.fsync(stream.fileno())
    return _hash(path)


def _sync_folder(folder: Path) -> None:
    """Writes the names in a folder to the disk, on systems that can."""
    with contextlib.suppress(PermissionError, IsADirectoryError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _swap_into_place(partial: Path, target: Path) -> Path | None:
    """Renames `partial` to `target` in one step; returns the new path of the earlier export, or None.

    What came into the earlier export since it was looked at is seen once nobody finds it by its name any more; then
    it goes back.
    """
    try:
        os.rename(partial, target)  # POSIX: over nothing, or over an empty folder
        _sync_folder(target.parent)
        return None
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES):
            raise
    previous = exchange_folders(partial, target)
    if previous is None:
        previous = partial.with_name(partial.name.replace(".partial-", ".earlier-"))
        os.rename(target, previous)
        try:
            os.rename(partial, target)
        except OSError:
            os.rename(previous, target)
            raise
    try:
        _check_unchanged(previous, target)
    except InvalidInput:
        if previous == partial:
            exchange_folders(partial, target)
        else:
            os.rename(target, partial)
            os.rename(previous, target)
        raise
    _sync_folder(target.parent)
    return previous


def exchange_folders(partial: Path, target: Path) -> Path | None:
    """Exchanges the names of two folders in one step; returns the new path of `target`, None if the system cannot."""
    library = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    names = os.fsencode(partial), os.fsencode(target)
    current_folder, swap = -100, 2  # AT_FDCWD; RENAME_EXCHANGE, and RENAME_SWAP of macOS
    if sys.platform.startswith("linux") and hasattr(library, "renameat2"):
        error_code = library.renameat2(current_folder, names[0], current_folder, names[1], swap)  # type: ignore[union-attr]
    elif sys.platform == "darwin" and hasattr(library, "renamex_np"):
        error_code = library.renamex_np(*names, swap)  # type: ignore[union-attr]
    else:
        return None
    return None if error_code else partial


def _remove(folder: Path) -> None:
    """Removes an export, complete or not, unless files were added or changed."""
    with contextlib.suppress(OSError, InvalidInput):
        if (folder / LIST).exists():
            _check_unchanged(folder, folder)
        shutil.rmtree(folder)
