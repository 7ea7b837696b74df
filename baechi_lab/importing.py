"""Contexts that make large imports, and compilers, faster and safer.

They leave out optional modules, switch off garbage collection, and replace a current folder that was deleted.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_modules(*names: str) -> Iterator[None]:
    """Within the block, modules of these names cannot be imported unless they already are.

    >>> with without_modules("antigravity"):
    ...     import antigravity
    Traceback (most recent call last):
    ModuleNotFoundError: import of antigravity halted; None in sys.modules
    """
    hidden_modules = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden_modules))  # type: ignore[arg-type]  # what Python documents as "not importable"
    try:
        yield
    finally:
        for name in hidden_modules:
            if sys.modules[name] is None:
                del sys.modules[name]


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Turns garbage collection off within the block.

    With it, importing TensorFlow or compiling kernels takes a sixth longer, and making many objects half as long again.

    >>> with without_garbage_collection():
    ...     gc.isenabled()
    False
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextmanager
def in_existing_folder() -> Iterator[None]:
    """Within the block, the root replaces a deleted current folder, which some packages resolve when they are imported.

    >>> with in_existing_folder():
    ...     os.path.isdir(os.getcwd())
    True
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        pass
    else:
        yield
        return
    deleted_folder = os.open(os.curdir, os.O_RDONLY)
    os.chdir(os.sep)
    try:
        yield
    finally:
        os.fchdir(deleted_folder)
        os.close(deleted_folder)
