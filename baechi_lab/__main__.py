"""`python -m baechi_lab` is the command `baechi-lab`."""

import os
import sys

if __name__ == "__main__":
    # `python -m` puts the current folder first: a random.py there would be imported for Python's own.
    sys.path[:] = [p for p in sys.path if os.path.realpath(p) != os.path.realpath(os.curdir)]
    from baechi_lab.cli import main

    sys.exit(main())
