"""Open JupyterLab on the quickstart notebook.

In a checkout that is notebooks/00_quickstart.ipynb; elsewhere a copy of it is put into the current folder, unless
one is there. --print only says which notebook it would open.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from importlib import resources
from pathlib import Path

from ..errors import FormatError, MissingPackage
from . import output

NAME = "00_quickstart.ipynb"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--print", action="store_true", dest="only_print", help="name the notebook, open nothing")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="after `--`: options of jupyter lab")


def run(arguments: argparse.Namespace) -> int:
    """Find or copy the notebook and open it."""
    if arguments.only_print or arguments.json:
        facts = {"notebook": str(notebook(Path.cwd()))}
        output.print_json(facts) if arguments.json else print(facts["notebook"])
        return 0
    if importlib.util.find_spec("jupyterlab") is None:
        raise MissingPackage.of("jupyterlab", "lab", "baechi-lab lab")
    target = notebook(Path.cwd())
    if not target.exists():
        _copy(target)
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(target), *arguments.options])


def notebook(folder: Path) -> Path:
    """Where the quickstart is, or would be put, seen from `folder`."""
    in_checkout = folder / "notebooks" / NAME
    return in_checkout if in_checkout.exists() else folder / NAME


def _copy(target: Path) -> None:
    from ..graph.files import write_atomically

    package = Path(str(resources.files("baechi_lab")))
    # An installation has the notebook in the package; a checkout that is installed in place has it beside.
    sources = [folder / "notebooks" / NAME for folder in (package, package.parent)]
    found = next((source for source in sources if source.is_file()), None)
    if found is None:
        raise FormatError(f"{NAME} is neither in {target.parent} nor part of this installation")
    write_atomically(target, found.read_bytes())
