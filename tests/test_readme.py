"""What the README shows works, and its two commands are the ones that CI runs. It is about one screen."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

import pytest

from baechi_lab.cli.lab import FILES

ROOT = Path(__file__).resolve().parents[1]


def blocks(language: str) -> list[str]:
    """The fenced blocks of the README in one language."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_first_two_commands():
    install, tests = blocks("bash")[:2]
    assert install.count("\n") == tests.count("\n") == 1
    assert "baechi-lab demo" in install
    assert "pytest" in tests


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1_100


def test_news_is_one_line_each():
    fragments = [path for path in (ROOT / "changes").glob("*.md") if path.name != "README.md"]
    assert all(path.name.split(".")[1] in ("added", "changed", "fixed") for path in fragments)
    texts = {path.name: path.read_text(encoding="utf-8") for path in fragments}
    assert not [name for name, text in texts.items() if text.strip().count("\n")]
    assert not [name for name, text in texts.items() if len(text.split()) > 80]  # changes/README.md: about 60 at most


def test_first_example_is_short():
    code = [line for line in blocks("python")[0].splitlines() if line and not line.startswith("import ")]
    assert len(code) <= 8


@pytest.mark.tensorflow
@pytest.mark.subprocess
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_examples_run(tmp_path, monkeypatch, capsys):
    """In this process, whose workers are forked from one that has imported TensorFlow."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks("python")), "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert "<Run ok: 5 steps" in printed
    step_ms = {placer: float(us) / 1e3 for placer, us in re.findall(r"^ *(\S+) +([\d.]+) ", printed, re.MULTILINE)}
    sentence = "`m-topo`, `m-etf` and `auto` take {m-topo:.0f}, {m-etf:.0f} and {auto:.0f} ms".format_map(step_ms)
    assert sentence in (ROOT / "README.md").read_text(encoding="utf-8")
    assert (tmp_path / "placed_training" / "train.py").is_file()


def test_an_installed_copy_has_every_file_of_the_package():
    """Tests import the checkout, users what is installed."""
    installed = {str(path) for path in distribution("baechi-lab").files or ()}
    if "baechi_lab/__init__.py" not in installed:
        pytest.skip("installed in place")
    files = [path for path in (ROOT / "baechi_lab").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    missing = {path.relative_to(ROOT).as_posix() for path in files} - installed
    assert len(files) > 500 and missing == set(), "install again if these files are new"
    assert {f"baechi_lab/{name}" for name in FILES} <= installed


def test_pictures_exist():
    for path in re.findall(r"!\[.*?\]\((.*?)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / path).is_file(), path


def test_every_command_is_described():
    from baechi_lab.cli import COMMANDS

    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert re.search(rf"`{command}\b", text), command
