"""What all tests share: markers by folder, skips where the hardware is missing, and reproducible hypothesis runs."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
MARKERS = {
    "notebooks": ("notebook", "slow"),
    "tests/executors": ("tensorflow", "subprocess", "slow"),
    "tests/executors/torch": ("torch",),
    "tests/exporters": ("tensorflow", "subprocess", "slow"),
    "tests/models": ("tensorflow",),
    "tests/profilers": ("tensorflow",),
    "tests/profilers/torch": ("torch",),
    "tests/torch": ("torch",),
    "tests/torch_runtime": ("torch",),
    "tests/torch_steps": ("torch",),
    "tests/ui": ("ui", "subprocess", "slow"),
}
"""Folder -> markers of everything in it; single tests have theirs at the test."""
STARTED_ONCE = ("tests/ui/", "notebooks/")
"""Folders whose files share what starts slowly: JupyterLab with its kernels and Chromium; the kernel of all notebooks."""

# As the command sets them: a process that workers are forked from serves those with the same variables alone.
for _variable, _level in (("TF_CPP_MIN_LOG_LEVEL", "2"), ("TORCH_CPP_LOG_LEVEL", "ERROR"), ("KINETO_LOG_LEVEL", "99")):
    os.environ.setdefault(_variable, _level)
# Notebooks and programs that tests start import this checkout, not an installed copy: it is what is tested, and its kernels
# are compiled once (a copy keeps its own: 90 seconds of a processor again).
LIGHTER = ROOT / "tests" / "helpers" / "without_address_grammar"  # what Jupyter imports takes two seconds less
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), str(LIGHTER), os.environ.get("PYTHONPATH")]))
# Tests run on all cores already, and threads that wait for small products take time from them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("BAECHI_LAB_SECOND_COMPILER", "0")  # so does a second compiler
# Beside pytest's own cache: nothing else may be written into a checkout.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(ROOT / ".pytest_cache" / "hypothesis"))

import numpy as np  # noqa: E402  (its threads are counted when it is imported)

gc.disable()  # until all tests are collected: modules that they import leave no garbage, and a seventh of the time searches it

if sys.dont_write_bytecode:
    # Tests start dozens of processes that import this package, some of them a framework, and pytest rewrites every assertion.
    # Where Python may not store compiled modules, each process compiles all of that again, in a third of the time of collecting.
    # Modules of a checkout are stored beside numba's kernels.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if not os.path.exists(np.__cached__):  # packages were installed without compiled modules
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(ROOT / ".pytest_cache" / "bytecode")

try:
    from hypothesis import HealthCheck, settings
except ImportError:
    pass
else:
    # Machines differ in speed, so no deadline; in CI the same examples every time.
    settings.register_profile(
        "baechi_lab", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("baechi_lab")


def pytest_configure(config: pytest.Config) -> None:
    """Of files that several processes share, `_longest_first` chooses the order; pytest-xdist would go by number of tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    if config.pluginmanager.hasplugin("nbval"):
        import shared_kernel

        shared_kernel.share_kernel()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """With `--dist loadfile`, one process runs all files of a folder of `STARTED_ONCE`."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class _Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next(filter(nodeid.startswith, STARTED_ONCE), None) or super()._split_scope(nodeid)

    return _Scheduling(config, log)


def pytest_unconfigure() -> None:
    """End what all tests of this process shared."""
    if "shared_kernel" in sys.modules:
        sys.modules["shared_kernel"].end_shared_kernel()


def _gpus() -> int:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    return count.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by folder; skip `gpu` tests without a GPU and `ui` tests without a Chromium."""
    for item in items:
        folder = item.path.parent
        name = folder.relative_to(ROOT).as_posix() if folder.is_relative_to(ROOT) else ""
        for marker in MARKERS.get(name, ()):
            item.add_marker(marker)
    if os.environ.get("PYTEST_XDIST_WORKER"):
        _longest_first(items)
    if any(item.get_closest_marker("gpu") for item in items) and not _gpus():
        _skip(items, "gpu", "no GPU is attached")
    browsers = ("chromium", "chromium-browser", "google-chrome")
    if any(item.get_closest_marker("ui") for item in items) and not any(map(shutil.which, browsers)):
        _skip(items, "ui", "no Chromium is installed")


@pytest.fixture(scope="session", autouse=True)
def local_clusters_start() -> None:
    """Where the system lets its users make no networks, a `bl.LocalCluster` trusts them; tests of networks skip."""
    from other_users import networks_can_be_made

    if not networks_can_be_made():
        from baechi_lab.executors.tensorflow.cluster import LocalCluster

        start = LocalCluster.__init__

        @functools.wraps(start)
        def start_trusting(*arguments: Any, **options: Any) -> None:
            start(*arguments, **{**options, "trusted_users": True})

        LocalCluster.__init__ = start_trusting


@pytest.fixture(scope="session", autouse=True)
def first_workers_are_forked() -> None:
    """Those of notebooks as well (`shared_kernel.py`)."""
    from first_workers import fork_first_workers

    fork_first_workers()


def _end_jobs() -> None:
    if background := sys.modules.get("baechi_lab.widgets.background"):
        for each in list(background._BACKGROUNDS):
            each.cancel()
            each.wait()


@pytest.fixture(scope="module", autouse=True)
def no_job_outlives_its_file() -> Iterator[None]:
    """The thread of a workbench that still computes takes time from later tests."""
    yield
    _end_jobs()


@pytest.fixture
def no_job_of_an_earlier_test() -> None:
    """For a test that looks at what jobs change for a while, such as functions of PyTorch."""
    _end_jobs()


@pytest.fixture(scope="module", autouse=True)
def no_later_search_for_garbage_visits_what_a_file_leaves() -> Iterator[None]:
    """What is alive after a file, such as a framework that it imported, stays until the end: no later search for garbage
    goes through it. Tracing a PyTorch model searches twice, for a second each where both frameworks are imported."""
    yield
    _keep_what_is_alive()


_modules_kept = 0


def _keep_what_is_alive(and_garbage: bool = False) -> None:
    global _modules_kept
    _modules_kept = len(sys.modules)
    if not and_garbage:
        gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """So does what a test imported, where that is much."""
    if len(sys.modules) > _modules_kept + 100:
        _keep_what_is_alive()


@pytest.fixture
def eager_networks() -> Iterator[None]:
    """TensorFlow runs the planner's networks op by op, and compiles none: a second per shape, and a tenth of it per update.
    For tests with few updates."""
    tf = pytest.importorskip("tensorflow")
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture(autouse=True)
def one_torch_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests of PyTorch run on one thread: small models lose time to more, and machines are shared."""
    if not request.node.get_closest_marker("torch"):
        yield
        return
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_collection_finish() -> None:
    """What collecting made stays until the end: no search for garbage goes through it (a seventh of the time of tests that
    import a framework, and a second for its own little garbage)."""
    gc.set_threshold(20_000, 20, 100)
    _keep_what_is_alive(and_garbage=True)
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before fixtures of whole files
def pytest_runtest_setup() -> None:
    """Numbers that a test draws without a seed of its own are the same in every run: weights of Keras (by way of Python's
    generator), of PyTorch, and numpy's old interface. TensorFlow's seed stays unset, as it becomes part of graphs."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch = sys.modules.get("torch")
    if hasattr(torch, "manual_seed"):
        torch.manual_seed(0)


def _longest_first(items: list[pytest.Item]) -> None:
    """Folders of `STARTED_ONCE` come first, and then files with slow tests, most of them at the head: no process is left with
    a long one at the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (not item.nodeid.startswith(STARTED_ONCE), -slow[item.path]))


def _skip(items: list[pytest.Item], marker: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason))
