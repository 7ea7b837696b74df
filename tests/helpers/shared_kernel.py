"""One Jupyter kernel for all notebooks that a test process runs.

A new kernel imports the libraries again, which takes longer than most notebooks do. Its first worker is forked, as those of
tests are. Between two notebooks the namespace is emptied, widgets are closed, and what they compute in the background ends.
After a cell that did not end in time the next notebook gets a new kernel.
"""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

from nbval import plugin
from nbval.kernel import RunningKernel

START = f"""
import sys as _sys
_sys.path.append({str(Path(__file__).parent)!r})
from first_workers import fork_first_workers as _fork_first_workers
_fork_first_workers()
_sys.path.pop()
"""
EMPTY = """
import os as _os, sys as _sys
_os.chdir({folder!r})
if "ipywidgets" in _sys.modules:
    _sys.modules["ipywidgets"].Widget.close_all()
if "baechi_lab.widgets.background" in _sys.modules:
    _sys.modules["baechi_lab.widgets.background"]._end_jobs()
get_ipython().reset(new_session=True, aggressive=False)
__import__("gc").freeze()
"""
"""What is alive afterwards, such as imported frameworks, stays: no later search for garbage goes through it."""
SECONDS = 60
_running: list[RunningKernel] = []


def share_kernel() -> None:
    """From now on nbval runs notebooks in one kernel."""
    plugin.RunningKernel = _shared_kernel
    plugin.IPyNbFile.teardown = _end_after_timeout


def end_shared_kernel() -> None:
    """Ends the kernel, if one is running."""
    while _running:
        kernel = _running.pop()
        if kernel.is_alive():
            kernel.stop()


def _shared_kernel(kernel_name: str, cwd: str, startup_timeout: float) -> RunningKernel:
    empty = EMPTY.format(folder=cwd)
    if _running and _running[0].is_alive() and _runs(_running[0], empty):
        return _running[0]
    end_shared_kernel()
    kernel = RunningKernel(kernel_name, cwd=cwd, startup_timeout=startup_timeout)
    _running.append(kernel)
    _runs(kernel, START)
    return kernel


def _runs(kernel: RunningKernel, code: str) -> bool:
    """Runs code; False if the kernel does not end it in time."""
    message = kernel.kc.execute(code, silent=True, store_history=False)
    try:
        return kernel.kc.get_shell_msg(timeout=SECONDS)["parent_header"].get("msg_id") == message
    except queue.Empty:
        return False


def _end_after_timeout(notebook: Any) -> None:
    if notebook.timed_out:
        end_shared_kernel()
