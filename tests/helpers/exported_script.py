"""Runs `train.py` of an exported folder in a process that has imported TensorFlow already and cannot import baechi_lab."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from baechi_lab.workers import forked
from baechi_lab.workers.client import worker_environment


def start_script(folder: Path, *arguments: str, stderr: int | IO[bytes] = subprocess.DEVNULL):
    """Starts `train.py` with arguments; returns the process, with pipes for stdin and stdout."""
    if stderr == subprocess.DEVNULL:
        with open(os.devnull, "wb") as nowhere:
            return start_script(folder, *arguments, stderr=nowhere)
    environment = {**worker_environment(), "CUDA_VISIBLE_DEVICES": ""}
    return forked.start("exported_script", str(folder), *arguments, environment=environment, stderr=stderr)


def run_script(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `train.py` with arguments to its end."""
    with tempfile.TemporaryFile() as errors:
        process = start_script(folder, *arguments, stderr=errors)
        with process.stdin, process.stdout:
            output = process.stdout.read().decode()
        code = process.wait(120)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, code, output, errors.read().decode())


class _WithoutBaechiLab:
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "baechi_lab":
            raise ImportError(f"{name} is not available here")


def main() -> None:
    """Runs the script of the folder that is the first argument."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "baechi_lab"]:
        del sys.modules[name]
    sys.meta_path.insert(0, _WithoutBaechiLab())
    os.chdir(sys.argv[1])
    sys.argv[:] = ["train.py", *sys.argv[2:]]
    runpy.run_path("train.py", run_name="__main__")


if __name__ == "__main__":
    main()
