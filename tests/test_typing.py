"""`import baechi_lab as bl` is typed: what exists has its own type in an editor, what does not is an error in mypy."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from baechi_lab.lazy import lazy_names

ROOT = Path(__file__).resolve().parents[1]
FACADES = (
    "baechi_lab",
    "baechi_lab.profilers",
    "baechi_lab.executors",
    "baechi_lab.executors.torch",
    "baechi_lab.torch",
    "baechi_lab.torch.models",
    "baechi_lab.widgets",
    "baechi_lab.placers",
)


@pytest.mark.parametrize("package", FACADES)
def test_every_lazy_name_is_public_and_found(package):
    if ".torch" in package:
        pytest.importorskip("torch")
    module = importlib.import_module(package)
    look_up, names = lazy_names(package)
    assert set(module.__all__) <= set(names()) and set(names()) <= set(dir(module))
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'no_such_thing'"):
        look_up("no_such_thing")


def test_a_missing_package_is_named_with_what_brings_it(monkeypatch):
    from baechi_lab import MissingPackage

    look_up, _ = lazy_names("baechi_lab.torch", needs=("torch",), extra="torch")
    for name in [name for name in sys.modules if name.startswith(("baechi_lab.torch.", "baechi_lab.torch_"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        MissingPackage,
        match=r"baechi_lab.torch.TorchStep needs .* pip install 'torch>=2.13,<2.14' \(in a checkout: pip install '\.\[torch\]'\)",
    ):
        look_up("TorchStep")


@pytest.mark.slow
def test_mypy_knows_the_public_names_and_no_others(tmp_path):
    """mypy reads the types of `bl.place`, `bl.torch.distribute`, `bl.models.build`; a name that is not there is an error."""
    known_names = ("bl.place", "bl.simulate", "bl.bounds", "bl.torch.distribute", "bl.models.build", "bl.Workbench")
    unknown = ("bl.no_such_thing", "bl.torch.no_such_thing", "bl.models.no_such_thing")
    lines = ["import baechi_lab as bl", *(f"reveal_type({name})" for name in known_names), *unknown]
    program = tmp_path / "program.py"
    program.write_text("\n".join(lines) + "\n")
    completed = (
        subprocess.run(  # with the project's own settings and cache: what mypy has read once, it does not read again
            [sys.executable, "-m", "mypy", str(program)],
            capture_output=True,
            text=True,
            timeout=250,
            cwd=ROOT,
            env={**os.environ, "MYPYPATH": "."},
        )
    )
    lines_of_mypy = completed.stdout.splitlines()
    for number, name in enumerate(known_names, 2):
        note = next(line for line in lines_of_mypy if f"program.py:{number}: note" in line)
        assert "Revealed type is" in note and '"Any"' not in note, name
    for number, _ in enumerate(unknown, len(known_names) + 2):
        assert any(f"program.py:{number}: error" in line and "no_such_thing" in line for line in lines_of_mypy), (
            lines_of_mypy
        )
