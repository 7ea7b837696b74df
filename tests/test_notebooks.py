"""What must hold for every notebook as it is stored; that they run is nbval's business."""

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_LINES = 11
INTERACTIVE = ("application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json")
PICTURES = ("image/png", "image/svg+xml")


def cells_of(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def code_of(path):
    return [(k, cell) for k, cell in enumerate(cells_of(path)) if cell["cell_type"] == "code"]


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 10


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_code_cells_are_short(path):
    long = {k: len("".join(cell["source"]).splitlines()) for k, cell in code_of(path)}
    assert {k: lines for k, lines in long.items() if lines > MOST_LINES} == {}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_prose_and_code_are_in_balance(path):
    kinds = [cell["cell_type"] for cell in cells_of(path)]
    assert kinds[0] == "markdown"
    # No long stretch of code without a word.
    assert "code code code code" not in " ".join(kinds)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_what_is_interactive_is_stored_with_a_picture(path):
    """GitHub and nbconvert run no widget and no plotly; they show the picture beside it."""
    for k, cell in code_of(path):
        for output in cell["outputs"]:
            assert output.get("name") != "stderr", f"cell {k} stores standard error"
            assert output["output_type"] != "error", f"cell {k} stores an error"
            kinds = output.get("data", {})
            if any(kind in kinds for kind in INTERACTIVE):
                assert any(kind in kinds for kind in PICTURES), f"cell {k} has {sorted(kinds)} and no picture"
            # A widget's view is of a kernel that is gone.
            assert INTERACTIVE[1] not in kinds, f"cell {k}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_code_cell_was_run(path):
    assert [k for k, cell in code_of(path) if cell["execution_count"] is None] == []


INDEX = (FOLDER.parent / "docs" / "index.md").read_text(encoding="utf-8")
ORDER = list(dict.fromkeys(re.findall(r"notebooks/(\w+)\.md", INDEX.partition("## The notebooks, in order")[2])))[
    : len(NOTEBOOKS)
]


def test_the_reading_order_has_every_notebook_once():
    assert sorted(ORDER) == [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_says_what_comes_before_and_what_next(path):
    first, at = "".join(cells_of(path)[0]["source"]), ORDER.index(path.stem)
    linked = re.findall(r"\]\((\w+)\.ipynb\)", first)
    assert linked == ORDER[max(at - 1, 0) : at] + ORDER[at + 1 : at + 2]
    assert "(../docs/glossary.md)" in first


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_papers_are_cited_by_their_authors(path):
    """Letters are explained in docs/papers.md alone."""
    prose = "\n".join("".join(cell["source"]) for cell in cells_of(path) if cell["cell_type"] == "markdown")
    assert re.findall(r"\b[Pp]apers? [\w']*,? ?(?:and )?[BCHP]\b|\b[BCHP]'s\b", prose) == []


EXTRAS = {"tensorflow": "TensorFlow", "torch": "PyTorch", "transformers": "transformers", "solvers": "OR-tools"}
"""Part -> what a notebook calls it."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_says_how_long_it_takes_and_what_it_needs(path):
    first = "".join(cells_of(path)[0]["source"])
    time_and_needs = (
        r"^\*Takes (?:about|less than) \S+ \w+ on two cores(?:, up to a minute more the first time)? · Needs (.*)\*$"
    )
    needs = re.search(time_and_needs, first, re.MULTILINE)[1]
    extras = re.findall(r"checkout}\[(.*)\]", "".join(cells_of(path)[1]["source"]))
    extra_names = extras[0].split(",") if extras else []
    assert [name for extra, name in EXTRAS.items() if name in needs] == [EXTRAS[extra] for extra in extra_names]
    assert f"pip install '.[{extras[0]}]'" in needs if extras else "nothing but `pip install .`" in needs


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_what_a_notebook_imports_is_what_it_installs(path):
    code = "\n".join("".join(cell["source"]) for _, cell in code_of(path))
    install = "".join(cells_of(path)[1]["source"])
    uses = {
        "tensorflow": r"import tensorflow|bl\.trace\(|bl\.models\.build|\"hierarchical\"",
        "torch": r"import torch",
        "transformers": r"hugging_face\(",
        "solvers": r"place\([^)]*\"(exact|metis)\"",
    }
    for extra, pattern in uses.items():
        assert bool(re.search(pattern, code)) == bool(re.search(rf"\[.*\b{extra}\b.*\]\"", install)), extra


def test_the_first_code_cell_installs_from_the_checkout_around_the_notebook(tmp_path, monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    (tmp_path / "notebooks").mkdir()
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    shell, lines = InteractiveShell(), []
    shell.register_magic_function(lines.append, magic_name="pip")
    for path in NOTEBOOKS:
        monkeypatch.chdir(tmp_path / "notebooks")
        shell.run_cell("".join(cells_of(path)[1]["source"])).raise_error()
    folder = str(tmp_path.resolve())
    assert {line.removeprefix("install -q ").strip('"').removeprefix(folder).strip("[]") for line in lines} == {
        "",
        "tensorflow",
        "solvers",
        "torch",
        "torch,transformers",
    }
    assert Path.cwd() == tmp_path / "notebooks"


def test_where_there_is_no_checkout_the_first_code_cell_says_so(tmp_path, monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    outcome = InteractiveShell().run_cell("".join(cells_of(NOTEBOOKS[0])[1]["source"]))
    assert "there is no checkout of it beside this notebook" in str(outcome.error_in_exec)
