"""One JupyterLab for all files of a process: its start takes seconds. Each file has a folder and kernels of its own."""

import jupyter_browser as jb
import pytest


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with jb.running_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="module")
def lab(server, request):
    yield server.in_folder(request.path.stem)
    server.end_sessions()
