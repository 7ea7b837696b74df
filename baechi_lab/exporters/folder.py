"""Write a folder whole or not at all: beside its place first, then renamed into it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from ..errors import ExecutionError, InvalidInput

Writer = Callable[[BinaryIO], None]


def write_folder(folder: str | os.PathLike[str], files: Mapping[str, bytes | str | Writer], marker: str) -> Path:
    """Write `files` (name -> content, or a function that writes it) as `folder`.

    An existing folder is replaced only when it is empty or an earlier export, which holds the file `marker`.

    Raises:
        InvalidInput: the folder's place is taken by something else, or its parent does not exist.
        ExecutionError: the disk is full or not writable; then nothing is left behind and an earlier export stays.
    """
    target = Path(os.path.abspath(folder))
    _check_place(target, marker)
    try:
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    except OSError as error:
        raise ExecutionError(f"cannot write beside {target}: {error.strerror or error}") from error
    try:
        for name, content in files.items():
            _write(partial / name, content)
        _make_readable(partial)
        _rename(partial, target)
    except OSError as error:
        raise ExecutionError(f"cannot write {target}: {error.strerror or error}; nothing was left behind") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _check_place(target: Path, marker: str) -> None:
    if not target.parent.is_dir():
        raise InvalidInput(f"folder {target}: {target.parent} is not a folder that exists")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InvalidInput(f"folder {target} exists and is not a folder; give another name")
    if target.is_dir() and any(target.iterdir()) and not (target / marker).is_file():
        raise InvalidInput(f"folder {target} is not empty and holds no earlier export; give another name")


def _write(path: Path, content: bytes | str | Writer) -> None:
    with path.open("wb") as stream:
        if callable(content):
            content(stream)
        else:
            stream.write(content.encode() if isinstance(content, str) else content)
        stream.flush()
        os.fsync(stream.fileno())


def _make_readable(folder: Path) -> None:
    """Give a folder made by mkdtemp, which only its owner may open, the usual permissions."""
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)


def _rename(partial: Path, target: Path) -> None:
    """Put `partial` in place; an earlier export goes only once the new one is there, and comes back if that fails."""
    if not target.exists() or not any(target.iterdir()):
        os.rename(partial, target)
        return
    earlier = Path(tempfile.mkdtemp(prefix=f".{target.name}.earlier-", dir=target.parent))
    os.rename(target, earlier)
    try:
        os.rename(partial, target)
    except OSError:
        os.rename(earlier, target)
        raise
    shutil.rmtree(earlier, ignore_errors=True)
