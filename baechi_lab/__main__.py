"""`python -m baechi_lab` is the command `baechi-lab`."""

import os
import sys


def _real(path: str) -> str:
    """Returns the real path; empty where it depends on a current folder that was deleted."""
    try:
        return os.path.realpath(path)
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    # `python -m` puts the current folder first: a random.py there would be imported for Python's own.
    sys.path[:] = [p for p in sys.path if _real(p) != _real(os.curdir)]
    from baechi_lab.cli import main

    sys.exit(main())
