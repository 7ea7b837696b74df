"""Commands that run a module in a Python process that imports nothing from the current folder.

`python -m`, `python -c` and a PYTHONPATH that names the current folder import whatever lies there under the name of a library:
a `random.py` in a folder of data would run. So a child gets the caller's `sys.path` without the current folder and with the
standard library first, in an interpreter that Python calls isolated (`-I`), and this package from where the caller has it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PACKAGE = Path(__file__).resolve().parents[1]

_START = """
import importlib, importlib.util, json, os, runpy, sys
try:
    os.getcwd()
except FileNotFoundError:  # it was deleted, and packages that resolve it could not be imported
    os.chdir(os.sep)
settings = json.loads(sys.argv[1])
sys.path[:] = settings["path"]
spec = importlib.util.spec_from_file_location(settings["name"], settings["init"], submodule_search_locations=[settings["folder"]])
package = importlib.util.module_from_spec(spec)
sys.modules[settings["name"]] = package
spec.loader.exec_module(package)
if settings["network"] is not None:
    importlib.import_module(settings["name"] + ".workers.network").enter(settings["network"])
sys.argv[:] = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def isolated_command(module: str, *arguments: str, network: int | None = None) -> list[str]:
    """Returns the command that runs `module` as a program with `arguments`, in the network `network` where one is named."""
    package = {"name": _PACKAGE.name, "init": str(_PACKAGE / "__init__.py"), "folder": str(_PACKAGE)}
    settings = json.dumps({**package, "path": child_path(), "network": network})
    flags = ["-I", *(["-B"] if sys.dont_write_bytecode else [])]
    if sys.pycache_prefix:
        # `-I` ignores the variable PYTHONPYCACHEPREFIX, so the child would compile all that it imports.
        flags += ["-X", f"pycache_prefix={sys.pycache_prefix}"]
    return [sys.executable, *flags, "-c", _START, settings, module, *arguments]


def child_path(paths: Sequence[str] | None = None) -> list[str]:
    """Returns `sys.path` (or `paths`) without the current folder, the standard library first."""
    folder_to_skip = current_folder()
    absolute = [
        p for p in (sys.path if paths is None else paths) if p and (folder_to_skip is not None or os.path.isabs(p))
    ]
    folders = [p for p in absolute if os.path.realpath(p) != folder_to_skip]
    library = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    library |= {os.path.join(folder, "lib-dynload") for folder in library}
    return sorted(dict.fromkeys(folders), key=lambda p: os.path.realpath(p) not in library and not p.endswith(".zip"))


def current_folder() -> str | None:
    """Returns the real path of the current folder; None if it was deleted."""
    try:
        return os.path.realpath(os.getcwd())
    except FileNotFoundError:
        return None


def die_with_parent() -> None:
    """Asks the kernel to kill this process when the thread that started it ends.

    On Linux this works even during a long call into a library. On other systems a process notices the end of stdin.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
