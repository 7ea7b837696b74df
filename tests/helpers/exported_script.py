"""Runs `train.py` of an exported folder in a process that has imported the framework already and cannot import baechi_lab."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from baechi_lab.workers import forked
from baechi_lab.workers.client import worker_environment


def start_script(
    folder: Path,
    *arguments: str,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    imports: str = forked.TENSORFLOW,
    variables: Mapping[str, str] = {},
):
    """Starts `train.py` with arguments; returns the process, with pipes for stdin and stdout."""
    if stderr == subprocess.DEVNULL:
        with open(os.devnull, "wb") as nowhere:
            return start_script(folder, *arguments, stderr=nowhere, imports=imports, variables=variables)
    environment = {**worker_environment(), "CUDA_VISIBLE_DEVICES": "", **variables}
    return forked.start(
        "exported_script", str(folder), *arguments, environment=environment, stderr=stderr, imports=imports
    )


def run_script(
    folder: Path, *arguments: str, imports: str = forked.TENSORFLOW, variables: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """Runs `train.py` with arguments to its end; with `-c` and a text, runs that text in place of `train.py`."""
    with tempfile.TemporaryFile() as errors:
        process = start_script(folder, *arguments, stderr=errors, imports=imports, variables=variables)
        with process.stdin, process.stdout:
            output = process.stdout.read().decode()
        code = process.wait(120)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, code, output, errors.read().decode())


def run_torch(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`run_script` of an exported PyTorch step, with environment variables, forked as processes of a pipeline are."""
    return run_script(folder, *arguments, imports=forked.TORCH_PIPELINE, variables=variables)


class _WithoutBaechiLab:
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "baechi_lab":
            raise ImportError(f"{name} is not available here")


def main() -> None:
    """Runs the script of the folder that is the first argument."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "baechi_lab"]:
        del sys.modules[name]
    sys.meta_path.insert(0, _WithoutBaechiLab())
    _, folder, *arguments = sys.argv
    os.chdir(folder)
    sys.path.insert(0, folder)
    if arguments[:1] == ["-c"]:
        exec(arguments[1], {"__name__": "__main__"})
        return
    sys.argv[:] = ["train.py", *arguments]
    runpy.run_path("train.py", run_name="__main__")


if __name__ == "__main__":
    main()
