"""Runs another program that ends when its parent ends: `python -m` this module replaces its process by the program."""

from __future__ import annotations

import os
import sys

from .isolated import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])
