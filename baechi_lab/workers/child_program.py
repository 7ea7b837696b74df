"""A foreign program that ends with whoever started it: this module's process becomes the program."""

from __future__ import annotations

import os
import sys

from .isolated import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])
