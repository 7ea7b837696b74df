"""Measure frame and first-picture times of the canvas views in a browser: python notebooks/frames.py

Runs `tests/benchmarks/test_widget_frames.py` (a real JupyterLab in headless Chromium, software rendering) and writes
`frames.json`: command, date, processor count, load of the machine before the run, frames per second (median of three
rounds of 90 redraws) and seconds to the first picture of 5,000 nodes (least and median of three).
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
BENCHMARK = "tests/benchmarks/test_widget_frames.py"


def measured() -> list[dict]:
    """The benchmark's own report."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", "-q", BENCHMARK, "--benchmark-only", f"--benchmark-json={report}"]
        subprocess.run(command, cwd=HERE.parent, check=True)
        return json.loads(report.read_text())["benchmarks"]


def row(benchmark: dict) -> dict:
    """One line of the file."""
    what = benchmark["name"].removeprefix("test_")
    if "frames_per_second" in benchmark["extra_info"]:
        return {"what": what, "frames_per_second": benchmark["extra_info"]["frames_per_second"]}
    stats = benchmark["stats"]
    return {"what": what, "least_s": round(stats["min"], 3), "median_s": round(stats["median"], 3)}


def main() -> None:
    load = os.getloadavg()[0]
    result = {
        "command": "python notebooks/frames.py", "date": datetime.date.today().isoformat(),
        "processors": os.cpu_count(), "load_before": round(load, 1), "rows": [row(b) for b in measured()],
    }  # fmt: skip
    (HERE / "frames.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
