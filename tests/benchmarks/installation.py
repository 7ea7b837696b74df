"""Times an installation in an empty home and the first commands: python tests/benchmarks/installation.py

In a fresh virtual environment and an empty home (no caches of pip or numba): `pip install .`, then commands on a graph file, each
in a process of its own, the first of them twice; with `--tensorflow` then `'.[tensorflow]'` and the demo. The table is printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GRAPH = ROOT / "data" / "gnmt-length40-batch128.json.gz"
COMMANDS = {
    "place (first call)": ["place", str(GRAPH), "--placer", "m-etf"],
    "place again": ["place", str(GRAPH), "--placer", "m-etf"],
    "compare three rules": ["compare", str(GRAPH), "--placers", "m-topo,m-etf,m-sct"],
    "doctor": ["doctor"],
    "run mlp (one sentence)": ["run", "mlp"],
}


def megabytes(folder: Path) -> float:
    """Returns the megabytes of the files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6


def main() -> None:
    """Installs, runs the commands, and prints a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensorflow", action="store_true", help="then install TensorFlow, and run the demo")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home, environment = Path(folder, "home"), Path(folder, "venv")
        home.mkdir()
        variables = {**os.environ, "HOME": str(home), "PIP_NO_CACHE_DIR": "1", "NUMBA_CACHE_DIR": str(home / "numba")}
        variables.pop("PYTHONPATH", None)

        def row(label: str, *command: str) -> None:
            started = time.perf_counter()
            completed = subprocess.run(command, cwd=home, env=variables, capture_output=True, text=True)
            seconds = time.perf_counter() - started
            error_line = (completed.stdout + completed.stderr).strip().splitlines()[-1:] if completed.returncode else []
            print(
                f"{label:<36} {seconds:7.1f} s {megabytes(environment):8.0f} MB  exit {completed.returncode}",
                *error_line,
                flush=True,
            )

        row("python -m venv", sys.executable, "-m", "venv", str(environment))
        pip, command = str(environment / "bin" / "pip"), str(environment / "bin" / "baechi-lab")
        row("pip install .", pip, "install", "-q", str(ROOT))
        for label, arguments_of_command in COMMANDS.items():
            row(label, command, *arguments_of_command)
        if arguments.tensorflow:
            row("pip install '.[tensorflow]'", pip, "install", "-q", f"{ROOT}[tensorflow]")
            row("demo", command, "demo")


if __name__ == "__main__":
    main()
