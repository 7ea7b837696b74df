"""Runs draw under the step's seed, and leave the generators of their caller as they were."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import baechi_lab as bl  # noqa: E402
from baechi_lab.torch_runtime.random import generator_states, host_states, same_host_states, same_states  # noqa: E402


class DrawnByHost(torch.nn.Module):
    """Weights from NumPy, a scale from Python, and a factor that NumPy draws in every forward pass."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(np.random.randn(4, 4), dtype=torch.float32))  # noqa: NPY002
        self.scale = random.uniform(1, 2)

    def forward(self, x):
        return torch.nn.functional.dropout(x @ self.weight, 0.5) * (self.scale + float(np.random.rand()))  # noqa: NPY002


STEP = bl.torch.TorchStep("drawn", DrawnByHost, (torch.ones(6, 4),), optimizer=torch.optim.SGD)


def run(**options):
    calls = len(bl.torch.trace(STEP.model(), STEP.inputs).calls)
    return bl.torch.execute(STEP, bl.Placement(device=[0] * calls), 2, warmup=0, **options)


def test_bug_a_step_started_from_other_parameters_where_numpy_or_python_drew_them():
    first, second = STEP.model(), STEP.model()
    assert torch.equal(first.weight, second.weight) and first.scale == second.scale


def test_bug_a_step_drew_other_numbers_of_numpy_in_every_run():
    assert run().outputs == run().outputs


@pytest.mark.parametrize("options", [{}, {"micro_batches": 2, "pipeline": False}], ids=["batch", "micro-batches"])
def test_bug_a_run_reseeded_the_generators_of_its_caller(options):
    """After two runs in a loop, callers shuffled and initialized with the same numbers as before."""
    states, hosts = generator_states(), host_states()
    run(**options)
    assert same_states(states, generator_states()) and same_host_states(hosts, host_states())
    STEP.model()
    assert same_states(states, generator_states()) and same_host_states(hosts, host_states())
