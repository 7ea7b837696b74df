"""TensorFlow for a process that serves: without the packages that it imports only where it finds them."""

from __future__ import annotations

from typing import Any

from ..importing import absent, in_existing_folder, uncollected

OPTIONAL = ("IPython", "h5py", "keras", "pandas", "rich")
"""Tables, notebooks and files of weights: a fifth of the time of importing TensorFlow, and nothing that serves needs them."""


def import_tensorflow() -> Any:
    """The module `tensorflow`; a first import takes OPTIONAL for absent, and they can be imported afterwards.

    >>> import_tensorflow().constant(1).shape
    TensorShape([])
    """
    with absent(*OPTIONAL), uncollected(), in_existing_folder():
        import tensorflow
    return tensorflow
