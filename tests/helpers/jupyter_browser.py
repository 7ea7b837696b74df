"""A real JupyterLab on the loopback interface, and a page of Debian's Chromium in it; all files below a temp folder."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from addresses import free_port
from forked_kernels import fork_server

CHROMIUM_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
]
UNUSED_EXTENSIONS = [
    *(
        f"@jupyterlab/{name}-extension"
        for name in (
            "audio celltags completer console csvviewer debugger documentsearch extensionmanager fileeditor help htmlviewer hub "
            "imageviewer inspector javascript json json-lines launcher logconsole lsp markdownviewer mermaid metadataform pdf "
            "pluginmanager settingeditor terminal tooltip vega5 video workspaces"
        ).split()
    ),
    "@jupyterlab/apputils-extension:splash",
    "@voila-dashboards/jupyterlab-preview",
]
"""Parts of JupyterLab that show nothing beside a notebook's cells: a fifth of the time until a notebook is open. The splash
fades for a second after every change of the theme."""
UNUSED_SERVER_EXTENSIONS = [
    "jupyter_lsp",
    "jupyter_server_terminals",
    "nbclassic",
    "notebook",
    "voila",
    "voila.server_extension",
]
"""Parts of the server that no test asks for: a quarter of the time until it answers. The first starts programs of its own."""
ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = ROOT / ".pytest_cache" / "screenshots"
"""Where screenshots are stored if the variable BAECHI_LAB_SCREENSHOTS is 1."""


def _cell(number: int, text: str) -> dict:
    empty = {"metadata": {}, "outputs": [], "execution_count": None}
    return {"cell_type": "code", "id": f"cell{number}", "source": text, **empty}


@dataclass
class Lab:
    """A running server: its address, token and notebook folder, which the server calls `path`."""

    url: str
    token: str
    folder: Path
    path: str = ""

    def add_notebook(self, name: str, cells: list[str]) -> str:
        """Write a notebook of code cells and return its address."""
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        document = {"cells": [_cell(i, text) for i, text in enumerate(cells)], "nbformat": 4, "nbformat_minor": 5}
        document["metadata"] = {"kernelspec": kernel}
        (self.folder / name).write_text(json.dumps(document))
        return self.address(name)

    def address(self, name: str) -> str:
        """Where JupyterLab opens a notebook of the folder."""
        return f"{self.url}/doc/tree/{self.path}{name}?token={self.token}"

    @property
    def data_folder(self) -> Path:
        """The server's Jupyter data: as a `JUPYTER_PATH`, it gives other programs the server's forked kernels."""
        return self.folder.parent / "data"

    def in_folder(self, name: str) -> Lab:
        """The same server with a folder below this one."""
        (self.folder / name).mkdir(exist_ok=True)
        return replace(self, folder=self.folder / name, path=f"{self.path}{name}/")

    def end_sessions(self) -> None:
        """Ends all kernels and forgets what pages have set, such as the theme."""
        for session in self._ask("sessions", "GET"):
            self._ask(f"sessions/{session['id']}", "DELETE")
        self._ask("settings/@jupyterlab/apputils-extension:themes", "PUT", {"raw": "{}"}, root="lab/api")

    def _ask(self, place: str, method: str, content: object = None, root: str = "api"):
        body = None if content is None else json.dumps(content).encode()
        address = f"{self.url}/{root}/{place}"
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(address, body, headers, method=method), timeout=60
        ) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def _environment(folder: Path) -> dict[str, str]:
    """Jupyter's configuration, data and runtime folders below `folder`; this checkout on the path."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTER") or k == "JUPYTER_PATH"}
    return {
        **environment,
        "HOME": str(folder),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_PREFER_ENV_PATH": "no",  # the kernels in the data folder come before those of the installation
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


@contextmanager
def _serving(command: list[str], folder: Path, probe: str):
    """A server from the moment that it answers `probe` until the block ends."""
    log_file = folder / "server.log"
    with open(log_file, "wb") as log:
        server = subprocess.Popen(command, env=_environment(folder), cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        _await_server(probe, server, log_file)
        yield
    finally:
        server.terminate()
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@contextmanager
def running_voila(folder: Path, cells: list[str]):
    """Serve a notebook of code cells as a Voila page; gives its address."""
    port = free_port()
    lab = Lab(f"http://127.0.0.1:{port}", "", folder)
    lab.add_notebook("page.ipynb", cells)
    options = [f"--port={port}", "--no-browser", "--Voila.ip=127.0.0.1", "--VoilaConfiguration.show_tracebacks=True"]
    command = [sys.executable, "-m", "voila", str(folder / "page.ipynb"), *options]
    # Any page tells that it listens; the notebook itself would be executed for the probe.
    with _serving(command, folder, f"{lab.url}/voila/static/missing"):
        yield lab.url


@contextmanager
def running_lab(folder: Path):
    """Start JupyterLab with its own configuration, data and runtime folders; stop it afterwards."""
    port, token = free_port(), secrets.token_hex(16)
    notebooks = folder / "notebooks"
    notebooks.mkdir(parents=True, exist_ok=True)
    notices = folder / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    notices.parent.mkdir(parents=True)
    notices.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    page_config = folder / "config" / "labconfig" / "page_config.json"
    page_config.parent.mkdir(parents=True)
    page_config.write_text(json.dumps({"disabledExtensions": dict.fromkeys(UNUSED_EXTENSIONS, True)}))
    server_config = {"ServerApp": {"jpserver_extensions": dict.fromkeys(UNUSED_SERVER_EXTENSIONS, False)}}
    (folder / "config" / "jupyter_server_config.json").write_text(json.dumps(server_config))
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "IdentityProvider.token": token,
        "ServerApp.root_dir": notebooks,
        "ServerApp.open_browser": False,
        "LabApp.collaborative": False,
        "LabApp.expose_app_in_browser": True,
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "LabApp.user_settings_dir": folder / "settings",
        "LabApp.workspaces_dir": folder / "workspaces",
    }
    command = [sys.executable, "-m", "jupyterlab", "--allow-root", *(f"--{k}={v}" for k, v in options.items())]
    lab = Lab(f"http://127.0.0.1:{port}", token, notebooks)
    with fork_server(folder, _environment(folder)), _serving(command, folder, f"{lab.url}/api/status?token={token}"):
        yield lab


def _await_server(probe: str, server: subprocess.Popen, log: Path, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with code {server.returncode}: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(probe, timeout=2):
                return
        except urllib.error.HTTPError as answer:  # it answers, if only that it serves no such page
            if answer.code in (403, 404):
                return
            time.sleep(0.2)
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"the server did not answer within {seconds} s: {log.read_text()[-2000:]}")


def missing() -> str:
    """Why browser tests cannot run here; empty if they can."""
    for package in ("playwright", "jupyterlab", "anywidget"):
        try:
            __import__(package)
        except ImportError:
            return f"the Python package {package} is not installed"
    return "" if shutil.which("chromium") else "no chromium on the PATH"


@contextmanager
def running_browser():
    """A headless Chromium; gives the context of its pages. What one page has loaded and compiled, the next need not."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_ARGUMENTS)
        try:
            yield browser.new_context()
        finally:
            browser.close()


@contextmanager
def browser_page(browser, width: int = 1500, height: int = 1300):
    """A new page of a running browser, closed at the end."""
    page = browser.new_page()
    page.set_viewport_size({"width": width, "height": height})
    page.set_default_timeout(60_000)  # of a page on a machine that does other things as well
    try:
        yield page
    finally:
        page.close()


@contextmanager
def lab_page_for_file(page, width: int, height: int):
    """Lends the page of JupyterLab to one test file: its size, no notebook but its own, and errors of the page in `problems`."""
    page.set_viewport_size({"width": width, "height": height})
    page.problems = []
    add_problem = lambda error: page.problems.append(str(error))  # noqa: E731 - the listener is removed again
    page.on("pageerror", add_problem)
    try:
        yield page
    finally:
        page.remove_listener("pageerror", add_problem)
        page.evaluate("() => window.jupyterapp?.shell.currentWidget?.dispose()")


def leave_lab(page) -> None:
    """Shows an empty page, whatever was not saved or asked on this one. A notebook is opened in a new JupyterLab then."""
    accept = lambda dialog: dialog.accept()  # noqa: E731 - the listener is removed again
    page.on("dialog", accept)
    page.goto("about:blank")
    page.remove_listener("dialog", accept)
    page.problems.clear()


def eventually(page, check, seconds: float = 60.0):
    """Calls `check` until it raises no AssertionError, and returns its value. The page goes on drawing and listening meanwhile.

    What a page shows after an action follows one or more frames later, and after an answer of the kernel. Two parts of a
    page follow one after the other: that one is there does not mean that the other is.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > end:
                raise
        page.wait_for_timeout(50)


EXECUTE = """async ([code, isAwaited]) => {
  const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
  const { done } = kernel.requestExecute({ code, silent: true });
  return isAwaited ? (await done).content.evalue ?? '' : '';
}"""


def execute(page, code: str, is_awaited: bool = True) -> None:
    """Has the kernel of the opened notebook execute code, without a cell; clicks are handled in another thread of it.

    Unless `is_awaited`, that thread may handle what the page does next before the code has ended.
    """
    error = page.evaluate(EXECUTE, [code, is_awaited])
    assert not error, error


def await_drawing(page) -> None:
    """Waits until the page has drawn what follows from the last action, if no kernel is asked."""
    page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")


def screenshot(page, name: str, part=None) -> None:
    """Stores a picture of the page, or of `part` of it, where pictures are asked for; else waits until the page is drawn."""
    if os.environ.get("BAECHI_LAB_SCREENSHOTS") != "1":
        await_drawing(page)
        return
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    (part or page).screenshot(path=ARTIFACTS / f"{name}.png")


SETTLED = """async () => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  await kernel.requestExecute({ code: '', silent: true, store_history: false }).done;
  const frame = () => new Promise((drawn) => requestAnimationFrame(drawn));
  const places = () => JSON.stringify([...document.querySelectorAll('.bl-workbench, .bl-workbench canvas')].map((e) => {
    const { x, y, width, height } = e.getBoundingClientRect();
    return [x, y, width, height];
  }));
  for (let [before, same] = [places(), 0]; same < 3;) {
    await frame();
    const now = places();
    [before, same] = [now, now === before ? same + 1 : 0];
  }
}"""


def settle(page) -> None:
    """Waits until the kernel has answered all that it was asked, and no part of the workbench moves any more.

    To be called before places on the page are measured. What the kernel computes in the background may still come.
    """
    page.evaluate(SETTLED)


def hover(page, x: float, y: float) -> None:
    """Moves the mouse and waits until the page has drawn what follows from it."""
    page.mouse.move(x, y)
    await_drawing(page)


TOOLTIP = """([selector, places, wanted]) => {
  const canvas = document.querySelector(selector);
  const tooltip = canvas.closest('.bl-stage').querySelector('.bl-tooltip');
  return places.find(([clientX, clientY]) => {
    canvas.dispatchEvent(new PointerEvent('pointermove', { clientX, clientY, bubbles: true }));
    return !tooltip.hidden && new RegExp(wanted).test(tooltip.innerText);
  });
}"""


def hover_where(page, canvas: str, places, pattern: str) -> tuple[float, float, str]:
    """Moves the mouse to the first of `places` whose tooltip matches `wanted`, a regular expression.

    The page searches, without drawing. Returns the place and its tooltip.
    """
    place = page.evaluate(TOOLTIP, [canvas, [[round(x), round(y)] for x, y in places], pattern])
    assert place, f"no tooltip of {canvas} matches {pattern}"
    page.mouse.move(0, 0)
    hover(page, *place)
    text = page.locator(f".bl-stage:has({canvas}) .bl-tooltip").inner_text()
    assert re.search(pattern, text), text
    return *place, text


READY = """async (path) => {
  const app = window.jupyterapp;
  if (!app || !app.shell.currentWidget || !app.shell.currentWidget.context) return false;
  const panel = app.shell.currentWidget;
  if (panel.context.path !== path) return false;
  await panel.context.ready;
  await panel.sessionContext.ready;
  return Boolean(panel.sessionContext.session && panel.sessionContext.session.kernel);
}"""
OPEN_INSTEAD = """async (path) => {
  const app = window.jupyterapp;
  const before = app.shell.currentWidget;
  await app.commands.execute('docmanager:open', { path, factory: 'Notebook' });
  before?.dispose();
}"""


def open_notebook(page, address: str) -> None:
    """Opens a notebook and waits until it is connected to its kernel.

    A page that shows another notebook of the server opens it in that one's place: loading JupyterLab takes seconds.
    """
    server, path = address.partition("?")[0].split("/doc/tree/")
    if page.url.startswith(f"{server}/doc/tree/"):
        page.evaluate(OPEN_INSTEAD, path)
    else:
        page.goto(address)
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    page.wait_for_function(READY, arg=path, timeout=60_000)


def run_first(page, count: int, last_output: str, timeout: float = 90_000) -> None:
    """Run the first `count` cells, fewer than all, and wait for a selector of the last one's output."""
    page.evaluate(
        """(count) => {
          window.jupyterapp.shell.currentWidget.content.activeCellIndex = count;
          window.jupyterapp.commands.execute('notebook:run-all-above');
        }""",
        count,
    )
    page.wait_for_selector(last_output, timeout=timeout)


def run_all(page, last_output: str, timeout: float = 90_000) -> None:
    """Run all cells and wait for a selector of the last one's output."""
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    page.wait_for_selector(last_output, timeout=timeout)
