"""`python -m baechi_lab` is the command `baechi-lab`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
