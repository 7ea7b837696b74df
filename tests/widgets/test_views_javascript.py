"""The views' JavaScript: its pure parts under Node, and its types where TypeScript is installed (`npm install` in tests/js)."""

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "js"
TSC = shutil.which("tsc", path=FOLDER / "node_modules" / ".bin") or shutil.which("tsc")

pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed"),
]


def run(*command):
    completed = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def test_pure_parts():
    files = sorted(path.name for path in FOLDER.glob("*.test.js"))
    assert files == [
        "chart_view.test.js",
        "common.test.js",
        "graph_data.test.js",
        "graph_draw.test.js",
        "splitter.test.js",
        "tab_strip.test.js",
        "table_view.test.js",
        "time_axis.test.js",
        "timeline_data.test.js",
        "timeline_strip.test.js",
        "verdict_view.test.js",
    ]
    assert "# fail 0" in run("node", "--test", "--test-reporter=tap", *files)


@pytest.mark.slow
@pytest.mark.skipif(TSC is None, reason="TypeScript is not installed: npm install in tests/js")
@pytest.mark.parametrize("project", ["tsconfig.json", "tsconfig.pure.json"])
def test_types(project, tmp_path):
    """The only wrong type is one that is added here, or the test would prove nothing."""
    views = FOLDER.parents[1] / "baechi_lab" / "widgets" / "views"
    for path in (*views.glob("*.js"), *FOLDER.glob("tsconfig*.json")):
        text = path.read_text(encoding="utf-8").replace("../../baechi_lab/widgets/views/", "")
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    with open(tmp_path / "timeline_data.js", "a", encoding="utf-8") as file:
        file.write('\nconst wrong = formatTime("soon");\n')
    completed = subprocess.run([TSC, "-p", project], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    (error,) = [line for line in completed.stdout.splitlines() if "error TS" in line]
    assert error.startswith("timeline_data.js") and "TS2345" in error, completed.stdout
