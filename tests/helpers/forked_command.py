"""The command `baechi-lab` in a process that is forked, so that it need not import TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from typing import IO

from baechi_lab.cli import main
from baechi_lab.workers import forked
from baechi_lab.workers.client import worker_environment


def start_command(*arguments: str, stderr: int | IO[bytes] = subprocess.PIPE):
    """Starts the command with pipes for stdin and stdout; it sees no GPU."""
    environment = worker_environment({"CUDA_VISIBLE_DEVICES": ""})
    return forked.start("forked_command", *arguments, environment=environment, stderr=stderr)


if __name__ == "__main__":
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  # the inherited one cannot be configured anew for another file
    sys.exit(main())
