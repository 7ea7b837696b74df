"""TensorFlow for a process that serves: without the packages that it imports only where it finds them."""

from __future__ import annotations

import sys
from typing import Any

OPTIONAL = ("IPython", "h5py", "keras", "pandas", "rich")
"""Tables, notebooks and files of weights: a fifth of the time of importing TensorFlow, and nothing that serves needs them."""


def import_tensorflow() -> Any:
    """The module `tensorflow`; a first import takes OPTIONAL for absent, and they can be imported afterwards.

    >>> import_tensorflow().constant(1).shape
    TensorShape([])
    """
    hidden = [name for name in OPTIONAL if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # what Python documents as "not importable"
    try:
        import tensorflow
    finally:
        for name in hidden:
            if sys.modules[name] is None:
                del sys.modules[name]
    return tensorflow
