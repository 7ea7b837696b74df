"""TensorFlow's start: its notices are kept back, as no log level or environment variable reaches those of the import."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from ...importing import uncollected


@cache
def load_tensorflow() -> None:
    """Import TensorFlow and look for GPUs, keeping what it logs meanwhile to itself unless it fails."""
    with _held_back(), uncollected():
        import tensorflow as tf

        tf.config.list_physical_devices()


@contextmanager
def _held_back() -> Iterator[None]:
    """File descriptor 2 into a file: TensorFlow's C++ logs know nothing of `sys.stderr` or its log level this early."""
    if sys.stderr is None:  # a process without one
        yield
        return
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:  # what was held back says why, whatever ended it
            held.seek(0)
            os.write(before, held.read())
            raise
        finally:
            os.dup2(before, 2)
            os.close(before)
