"""Measure frame and first-picture times of the canvas views in a browser: python -m studies.frames

Runs `tests/benchmarks/test_widget_frames.py` of a checkout (a real JupyterLab in headless Chromium, software rendering).
`--store` keeps command, date, processor count, load of the machine before the run, frames per second and the 95th
percentile of a frame's time (median of three rounds of 90 redraws), processor time of the page's main thread per frame;
seconds from the placement of 22,856 ops to the drawn picture (three), and what Python computes of that; seconds to a
picture of 300 boxes (least and median of three).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from studies.results import store

BENCHMARK = "tests/benchmarks/test_widget_frames.py"


def measured(checkout: Path) -> list[dict[str, Any]]:
    """The benchmark's own report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", "-q", BENCHMARK, "--benchmark-only", f"--benchmark-json={report}"]
        subprocess.run(command, cwd=checkout, check=True)
        benchmarks: list[dict[str, Any]] = json.loads(report.read_text())["benchmarks"]
        return benchmarks


def row(benchmark: dict[str, Any]) -> dict[str, Any]:
    """One line of the file."""
    benchmark_name = benchmark["name"].removeprefix("test_")
    if "frames_per_second" in benchmark["extra_info"] or "seconds" in benchmark["extra_info"]:
        return {"what": benchmark_name, **benchmark["extra_info"]}
    stats = benchmark["stats"]
    return {"what": benchmark_name, "least_s": round(stats["min"], 3), "median_s": round(stats["median"], 3)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows; `--store` keeps them."""
    parser = argparse.ArgumentParser(prog="python -m studies.frames", description=__doc__)
    parser.add_argument("--checkout", type=Path, default=Path(), help="folder that holds tests/benchmarks")
    parser.add_argument("--store", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    rows = [row(benchmark) for benchmark in measured(options.checkout)]
    print(json.dumps(rows, indent=1))
    if options.store is not None:
        about = {"processors": os.cpu_count(), "load_before": round(load, 1)}
        store(options.store, "python -m studies.frames --store FILE", **about, rows=rows)


if __name__ == "__main__":
    main()
