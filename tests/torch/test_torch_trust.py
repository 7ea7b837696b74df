"""Where waiting could change a result, code order is kept: random modules of dangerous parts under random orders.

`BAECHI_TRUST_CASES=2000 pytest tests/torch/test_torch_trust.py` runs 2,000 of them.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import random_modules as rm  # noqa: E402
from fewer import fast  # noqa: E402
from torch import nn  # noqa: E402
from torch_cases import random_placement  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.errors import CodeOrderKept  # noqa: E402
from baechi_lab.torch.assigner import assign, distribution  # noqa: E402
from baechi_lab.torch.tracing import trace  # noqa: E402

CASES = int(os.environ.get("BAECHI_TRUST_CASES", "30"))
FIRST = int(os.environ.get("BAECHI_TRUST_FIRST", "0"))
# In these the code takes another path in a later step, and leaves out calls that others were to come after.
BRANCHES = (744, 1133)


@pytest.mark.parametrize("seed", fast([*BRANCHES, *range(FIRST, FIRST + CASES)], 4))
def test_a_random_module_trains_as_the_undivided_one(seed):
    """Outputs, gradients, buffers, attributes and random states of five steps, bit for bit; tracing leaves no trace."""
    model = rm.random_module(seed)
    expected = rm.train(rm.twin(model), 5, seed)
    before = rm.everything(model)
    found = trace(model, torch.ones(6, rm.WIDTH).requires_grad_())
    assert all(map(torch.equal, before, rm.everything(model)))
    devices = 2 + seed % 2
    placement = random_placement(found, devices, np.random.default_rng(seed), reorder=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CodeOrderKept)
        assign(model, found, placement, bl.Cluster.uniform(devices, kind="cpu"))
        seen = rm.train(model, 5, seed)
    for step, (ours, theirs) in enumerate(zip(seen, expected, strict=True)):
        wrong = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if not torch.equal(a, b)]
        assert not wrong, f"step {step} differs at {wrong}"


class Two(nn.Module):
    """Two branches; an order that runs the second first makes the first wait, were it not for the Function."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return rm.square(self.a(x)) + self.b(x)


def test_the_plan_says_before_the_first_step_where_it_keeps_code_order():
    model, x = Two(), torch.ones(2, 4)
    found = trace(model, x)
    rank = [-1 if call.key == "b" else i for i, call in enumerate(found.calls)]
    placement = bl.Placement(device=[0] * len(rank), order=rank)
    with pytest.warns(
        CodeOrderKept, match=r"2 of 4 calls keep code order.*the autograd Function Square \(2, such as 'a'"
    ):
        assign(model, found, placement, bl.Cluster.uniform(2, kind="cpu"))
    assert "a" not in distribution(model).plan.waiting
    for _ in range(2):
        model.zero_grad()
        model(x).sum().backward()
        assert model.a.weight.grad is not None


class Turns(nn.Module):
    """Its other branch draws numbers that the trace has not seen, after those of a dropout that waits."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.d, self.e = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.5), nn.Dropout(0.5)
        self.turn = False

    def forward(self, x):
        first = self.d(self.a(x))
        noise = torch.rand(2, 4) if self.turn else 2.0
        second = self.b(x)
        return first + self.e(second) * noise


def test_bug_numbers_drawn_where_the_code_takes_another_path():
    model, x = Turns(), torch.ones(2, 4)
    twin = rm.twin(model)
    found = trace(model, x)
    rank = [-1 if call.key == "b" else i for i, call in enumerate(found.calls)]
    assign(model, found, bl.Placement(device=[0] * len(rank), order=rank), bl.Cluster.uniform(2, kind="cpu"))
    assert "a" in distribution(model).plan.waiting
    for turn in (False, False, True, True):
        model.turn = twin.turn = turn
        torch.manual_seed(1)
        seen = model(x)
        torch.manual_seed(1)
        assert torch.equal(seen, twin(x))


@pytest.mark.parametrize("layer", [True, False])
def test_profiling_leaves_a_replaced_buffer_as_it_was(layer):
    counting = rm.Counting()
    model = nn.Sequential(counting) if layer else nn.Sequential(nn.Sequential(counting, nn.Linear(4, 4)))
    bl.torch.profile(model, torch.ones(2, 4), warmup=0, runs=2)
    assert float(counting.n) == 0
