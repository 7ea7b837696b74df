"""One JupyterLab and one Chromium for all files, as both start slowly. Each file has a folder and kernels of its own."""

import jupyter_browser as jb
import pytest

FAILED = pytest.StashKey[bool]()
"""Whether the test that ran last in a file failed."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed:
        item.getparent(pytest.Module).stash[FAILED] = True
    return report


@pytest.fixture(autouse=True)
def _begin_again_after_a_failure(request):
    """What a failed test leaves on the page is no reason for the next one to fail, where the file has a function `begin`."""
    file = request.node.getparent(pytest.Module)
    if file.stash.get(FAILED, False) and hasattr(file.obj, "begin"):
        file.stash[FAILED] = False
        page, lab = request.getfixturevalue("page"), request.getfixturevalue("lab")
        lab.end_sessions()
        jb.leave_lab(page)
        file.obj.begin(page, lab)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with jb.running_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="module")
def lab(server, request):
    yield server.in_folder(request.path.stem)
    server.end_sessions()


@pytest.fixture(scope="package")
def browser():
    """Not for the whole session: while it runs, no other test can run an event loop of its own."""
    with jb.running_browser() as context:
        yield context


@pytest.fixture(scope="package")
def lab_page(browser):
    """One page for all files: JupyterLab takes five seconds of a processor to load. `jb.lab_page_for_file` lends it."""
    with jb.browser_page(browser) as page:
        yield page
