"""The undivided step as PyTorch runs it, eager and compiled."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch._inductor.config as inductor_config  # noqa: E402
from torch import nn  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.executors.native import native_runners  # noqa: E402
from baechi_lab.executors.torch import native  # noqa: E402

CALLS: list[str] = []


class Counting(nn.Module):
    """Counts its calls where nobody puts it back, and keeps a running number where everybody should."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 2), nn.BatchNorm1d(2)

    def forward(self, x):
        CALLS.append("eager")
        return self.norm(self.layer(x))


def step_of(model, **options):
    return bl.torch.TorchStep(
        "counting", lambda: model, (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),), **options
    )


def without_a_compiler(monkeypatch):
    """For this module only: PyTorch's own search remembers what it found."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(native, "shutil", SimpleNamespace(which=lambda name: None))


def test_eager_runs_the_users_model_and_puts_everything_back(monkeypatch):
    without_a_compiler(monkeypatch)
    model = Counting()
    step = step_of(model, optimizer=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.get_rng_state()
    CALLS.clear()
    graph = bl.torch.profile(model, step.inputs, warmup=0, runs=1)
    placement = bl.Placement(device=[0] * graph.n)
    profiled = len(CALLS)
    runners = native_runners(step, True, placements=[placement])
    assert list(runners) == ["eager", "torch.compile"]
    output = runners["eager"](steps=3, warmup=1)
    assert len(CALLS) == profiled + 4 and output.status == "ok" and len(output.step_seconds) == 3
    losses = [float(o[0]) for o in output.outputs]
    assert len(set(losses)) == 4  # it trains
    assert [float(o[0]) for o in runners["eager"](steps=1, warmup=0).outputs] == losses[:1]  # and starts again
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters()) and torch.equal(drawn, torch.get_rng_state())
    # Without a compiler that is said, and nothing is run.
    compiled = runners["torch.compile"](steps=1)
    assert compiled.message == "torch.compile needs a C++ compiler, and none is here (g++, clang++, or CXX)"
    assert not len(compiled.step_seconds)


def test_execute_and_compare_have_it(monkeypatch):
    without_a_compiler(monkeypatch)
    step = bl.torch.TorchStep("tiny", lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), (torch.ones(3, 4),))
    graph = bl.torch.profile(step, warmup=0, runs=1)
    run = bl.execute(step, bl.Placement(device=[0] * graph.n), 2, warmup=0, graph=graph, native=True)
    assert run.outputs[0] == run.native["eager"].outputs[0]
    assert run.native_ratio == run.median_seconds / run.native["eager"].median_seconds
    cluster = bl.Cluster.uniform(2, kind="cpu", memory_bytes="1GB")
    table = bl.compare(graph, cluster, ["single"], step=step, native=True, steps=2, progress=False)
    assert table["placer"].tolist() == ["single", "native (eager)", "native (torch.compile)"]
    assert table["native_ratio"][1] == 1.0 and np.isnan(table["native_ratio"][2]) and "CXX" in table["error"][2]
    with pytest.raises(bl.InvalidInput, match="unknown native way 'compile'"):
        bl.execute(step, bl.Placement(device=[0] * graph.n), 2, native="compile")


@pytest.mark.slow
def test_compiled_where_a_compiler_is(monkeypatch):
    """PyTorch compiles six test programs to learn which vectors the CPU has. Here it takes none, and compiles two kernels."""
    monkeypatch.setattr(inductor_config.cpp, "vec_isa_ok", False)
    monkeypatch.setattr(inductor_config, "cpp_cache_precompile_headers", False)
    if native.no_compiler("cpu"):
        pytest.skip(native.no_compiler("cpu"))
    step = bl.torch.TorchStep("tiny", lambda: nn.Linear(4, 2), (torch.ones(3, 4),))
    runners = native_runners(step, True)
    compiled, eager = (runners[mode](steps=2, warmup=1) for mode in ("torch.compile", "eager"))
    assert (compiled.status, compiled.message) == ("ok", "") and len(compiled.step_seconds) == 2
    np.testing.assert_allclose(compiled.outputs, eager.outputs, rtol=1e-5)
