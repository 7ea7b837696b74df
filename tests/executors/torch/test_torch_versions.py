"""Running PyTorch steps uses private names of torch; a version without them is refused in one sentence."""

import importlib
import sys

import pytest
from torch.distributed.pipelining import stage

import baechi_lab as bl
from baechi_lab.executors.torch import pipeline_process
from baechi_lab.torch_steps.pipelines import worker


@pytest.fixture
def older_torch(monkeypatch):
    """PyTorch before 2.13, as far as the pipelines go."""
    monkeypatch.delattr(stage, "InferenceMode")
    for module in (worker, pipeline_process):
        monkeypatch.delitem(sys.modules, module.__name__)


@pytest.mark.parametrize(
    ("module", "error"), [(worker.__name__, ImportError), (pipeline_process.__name__, bl.MissingPackage)]
)
def test_another_version_of_torch_is_one_sentence(older_torch, module, error):
    with pytest.raises(error, match=r"private names of torch\.distributed\.pipelining that torch 2\.\S+ lacks: pip"):
        importlib.import_module(module)
