"""Options of `bl.execute` and `bl.export`: a framework's own, by keyword, and refused for the other framework."""

from __future__ import annotations

import gc
import inspect

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors import dispatch
from baechi_lab.executors.dispatch import TensorFlowOptions, TorchOptions
from baechi_lab.frameworks import FRAMEWORKS, framework_of, framework_part, options_of

OPTIONS = {"tensorflow": ("virtual", "kind"), "torch": ("reorder",)}


def test_options_of_the_framework_pass_and_unset_ones_of_the_other_do_not():
    assert options_of("tensorflow", {"virtual": None, "kind": "cpu"}, OPTIONS, "execute") == {
        "virtual": None,
        "kind": "cpu",
    }
    assert options_of("torch", {"virtual": None, "reorder": "plan"}, OPTIONS, "execute") == {"reorder": "plan"}
    with pytest.raises(bl.InvalidInput, match="reorder is 'plan'; that option is for PyTorch steps, not for a TensorF"):
        options_of("tensorflow", {"reorder": "plan"}, OPTIONS, "execute")
    with pytest.raises(TypeError, match=r"execute\(\) got an unexpected keyword argument 'virtuel'"):
        options_of("tensorflow", {"virtuel": 2}, OPTIONS, "execute")


def test_a_documented_option_is_a_keyword_of_the_function_behind_it():
    execute = framework_part("executors", "torch").execution.execute
    assert set(TorchOptions.__annotations__) <= set(inspect.signature(execute).parameters)
    execute = framework_part("executors", "tensorflow").execute
    assert inspect.signature(execute).parameters["options"].annotation == "Unpack[TensorFlowOptions]"


def test_execute_takes_what_both_frameworks_have_and_options():
    common = inspect.signature(bl.execute).parameters
    assert not set(common) & (set(TensorFlowOptions.__annotations__) | set(TorchOptions.__annotations__))
    assert [p.kind for p in common.values()][-1] is inspect.Parameter.VAR_KEYWORD


def test_every_framework_follows_the_protocols():
    for framework in FRAMEWORKS:
        for package, names in {
            "profilers": ("profile_with_report",),
            "executors": ("attached_cluster", "execute", "native_runners", "step_timer"),
            "exporters": ("export",),
        }.items():
            assert all(callable(getattr(framework_part(package, framework), name)) for name in names)
    with pytest.raises(bl.UnknownNameError, match="unknown framework 'jax'"):
        framework_part("executors", "jax")


def test_the_framework_of_steps_and_functions():
    torch = pytest.importorskip("torch")
    assert framework_of(torch.nn.ReLU()) == "torch"
    assert framework_of(bl.torch.models.build("resnet50", batch_size=1, image_size=32, width=4)) == "torch"
    assert framework_of(np.sum) == framework_of(None) == "tensorflow"


def test_export_refuses_options_of_the_other_framework(tmp_path):
    pytest.importorskip("torch")
    step = bl.torch.models.build("gnmt", batch_size=1, length=2, vocabulary=7, width=4, layers=2)
    with pytest.raises(bl.InvalidInput, match=r"workers is \['a:1'\]; that option is for TensorFlow steps"):
        bl.export(step, bl.Placement(device=[0] * 19), tmp_path / "folder", workers=["a:1"])
    with pytest.raises(TypeError, match="unexpected keyword argument 'worker'"):
        bl.export(step, bl.Placement(device=[0] * 19), tmp_path / "folder", worker="a:1")


def test_bug_workers_that_time_placements_were_never_closed(monkeypatch):
    workers = []

    class CountedWorker:
        """In place of a process: alive until it is closed, or until it has run once."""

        def __init__(self):
            self.alive, self.closed = True, False
            workers.append(self)

        def close(self):
            self.alive, self.closed = False, True

    def run_once(*_, worker, **options):
        worker.alive = False
        return bl.Run(timeline=None, step_seconds=np.ones(1), outputs=(), status="ok")

    monkeypatch.setattr("baechi_lab.workers.client.Worker", CountedWorker)
    monkeypatch.setattr(dispatch, "execute", run_once)
    timer = dispatch.step_timer(None, bl.Cluster.uniform(1), 1, 0)
    assert timer(bl.Placement(device=[0])) == timer(bl.Placement(device=[0])) == 1.0
    assert [worker.closed for worker in workers] == [True, False]  # the first one had ended
    del timer
    gc.collect()
    assert [worker.closed for worker in workers] == [True, True]
