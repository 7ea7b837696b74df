"""Open JupyterLab on the quickstart notebook.

That is notebooks/00_quickstart.ipynb below the current folder, as in a checkout. If it is missing, the notebook is copied
there, and its graph is copied to data/. --print only prints which notebook would open.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

from ..errors import FormatError, MissingPackage
from ..workers.isolated import isolated_command
from . import output

NOTEBOOK = "notebooks/00_quickstart.ipynb"
FILES = (NOTEBOOK, "data/gnmt-length40-batch128.json.gz")
"""The notebook and its data; the installed package contains both."""
OPTIONS = (f"--LabApp.default_url=/lab/tree/{NOTEBOOK}", "--ServerApp.answer_yes=True")
"""JupyterLab prints and opens the notebook's address instead of its start page. One Ctrl+C ends it without a question, which
nobody could answer without a terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "--print", action="store_true", dest="only_print", help="print which notebook would open, and open nothing"
    )
    parser.add_argument("options", nargs="*", metavar="OPTION", help="options of jupyter lab, after `--`")


def run(arguments: argparse.Namespace) -> int:
    """Finds or copies the notebook and opens it."""
    if arguments.only_print or arguments.json:
        facts = {"notebook": str(Path.cwd() / NOTEBOOK)}
        output.print_json(facts) if arguments.json else print(facts["notebook"])
        return 0
    if importlib.util.find_spec("jupyterlab") is None:
        raise MissingPackage.of("jupyterlab", "", "baechi-lab lab")
    from ..graph.formats.files import write_atomically

    folder, package = Path.cwd(), Path(str(resources.files("baechi_lab")))
    for name in FILES:
        if not (folder / name).exists():
            # An installation has the files in the package, a checkout beside it.
            source = next((path for path in (package / name, package.parent / name) if path.is_file()), None)
            if source is None:
                raise FormatError(f"{name} is neither in {folder} nor part of this installation")
            (folder / name).parent.mkdir(exist_ok=True)
            contents = source.read_bytes()
            if name == NOTEBOOK:
                contents = without_dead_links(contents.decode(), (folder / name).parent).encode()
            write_atomically(folder / name, contents)
    return _replace_process(
        isolated_command("jupyterlab", *OPTIONS, f"--ServerApp.root_dir={folder}", *arguments.options)
    )


def _replace_process(command: list[str]) -> int:
    """Replaces this process by `command`, so ending the process ends JupyterLab."""
    if sys.platform == "win32":
        return subprocess.call(command)
    sys.stdout.flush()
    os.execv(command[0], command)


def without_dead_links(text: str, folder: Path) -> str:
    """Returns Markdown in which links to files that `folder` does not have are plain text.

    >>> without_dead_links("[Next](no-such.ipynb), [here](https://example.org)", Path())
    'Next, [here](https://example.org)'
    """

    def live_link_or_text(link: re.Match[str]) -> str:
        return link[0] if ":" in link[2] or (folder / link[2]).exists() else link[1]

    return re.sub(r"(?<!!)\[([^\][]+)\]\(([^()\s\\\"#]+\.(?:ipynb|md))\)", live_link_or_text, text)
