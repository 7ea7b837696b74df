"""Imports TensorFlow: without the notices of its start, and in worker processes without optional packages."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..frameworks import require_framework
from ..importing import in_existing_folder, without_garbage_collection, without_modules

OPTIONAL = ("IPython", "h5py", "keras", "pandas", "rich")
"""Optional packages for tables, notebooks and weight files: a fifth of TensorFlow's import time, and no worker needs them."""


def import_tensorflow() -> Any:
    """Returns the module `tensorflow`, for worker processes. Its first import leaves out OPTIONAL, which may be imported later.

    `load_tensorflow` is for the user's own process, which may need all of TensorFlow.
    """
    with without_modules(*OPTIONAL), without_garbage_collection(), in_existing_folder():
        import tensorflow
    return tensorflow


_NOTICE = re.compile(
    rb"(WARNING: All log messages before absl::InitializeLog"
    rb"|[IWEF]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ \S+:\d+\]"
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWEF] "
    rb"|To enable the following instructions:)"
)
"""How lines of TensorFlow's C++ logs begin."""
_lock = threading.Lock()
_loaded = False


def load_tensorflow() -> Any:
    """Returns the module `tensorflow`, imported without the notices of its start; they are shown only where that fails.

    No log level or environment variable suppresses these notices during the import.

    Raises:
        MissingPackage: TensorFlow is not installed.

    >>> load_tensorflow().constant(1).shape
    TensorShape([])
    """
    global _loaded
    require_framework("tensorflow", "a TensorFlow step")
    with _lock:  # two threads that redirect standard error would restore each other's redirection
        if not _loaded:
            with without_notices(), without_garbage_collection(), in_existing_folder():
                import tensorflow

                tensorflow.config.list_physical_devices()
            _loaded = True
    return sys.modules["tensorflow"]


@contextmanager
def without_notices() -> Iterator[None]:
    """Redirects file descriptor 2 into a file; lines that are not notices of TensorFlow are written out afterwards.

    This early, TensorFlow's C++ logs ignore `sys.stderr` and its log level. Other threads may write as well.
    """
    if sys.stderr is None:  # a process without one
        yield
        return
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        has_failed = True
        try:
            yield
            has_failed = False
        except KeyboardInterrupt:  # no failure of TensorFlow's
            has_failed = False
            raise
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            for line in file:
                if has_failed or not _NOTICE.match(line):  # after a failure the notices may say why
                    os.write(2, line)
