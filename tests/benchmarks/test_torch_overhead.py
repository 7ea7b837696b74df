"""Host cost of a distributed CPU model of 200 layers: pytest tests/benchmarks/test_torch_overhead.py --benchmark-only

`original` is the model itself, `one device` the model distributed onto one device (nothing is wrapped), `wrapped` the
same with every call intercepted, as on several devices.
"""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.torch_runtime.intercept import Interceptor  # noqa: E402
from baechi_lab.torch_steps.assigner import distribution  # noqa: E402


@pytest.mark.parametrize("width", [8, 256])
@pytest.mark.parametrize("kind", ["original", "one device", "wrapped"])
def test_forward_and_backward_of_200_layers(benchmark, kind, width):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, x = (
        nn.Sequential(*(nn.Linear(width, width) if i % 2 else nn.ReLU() for i in range(200))),
        torch.randn(16, width),
    )
    if kind != "original":
        bl.torch.distribute(model, x, bl.Cluster.uniform(1, kind="cpu"), "single", warmup=0, runs=1)
    if kind == "wrapped":
        divided = distribution(model)
        model = copy.copy(model)
        Interceptor(model, divided.plan.layers, divided.session).install()

    def step():
        model(x).sum().backward()

    benchmark.pedantic(step, rounds=100, warmup_rounds=5)
