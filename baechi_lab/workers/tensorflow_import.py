"""Imports TensorFlow in worker processes, without the optional packages that it would import as well."""

from __future__ import annotations

from typing import Any

from ..importing import absent, in_existing_folder, uncollected

OPTIONAL = ("IPython", "h5py", "keras", "pandas", "rich")
"""Optional packages for tables, notebooks and weight files: a fifth of TensorFlow's import time, and no worker needs them."""


def import_tensorflow() -> Any:
    """Returns the module `tensorflow`. Its first import does not import OPTIONAL; they can be imported afterwards.

    >>> import_tensorflow().constant(1).shape
    TensorShape([])
    """
    with absent(*OPTIONAL), uncollected(), in_existing_folder():
        import tensorflow
    return tensorflow
