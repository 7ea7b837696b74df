"""Where waiting could change a result, code order is kept: random modules of dangerous parts under random orders.

`BAECHI_TRUST_CASES=2000 pytest tests/torch_steps/test_code_order.py` runs 2,000 of them.
"""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import random_modules as rm  # noqa: E402
from fewer import fast  # noqa: E402
from torch import nn  # noqa: E402
from torch_cases import random_placement  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.errors import CodeOrderKept  # noqa: E402
from baechi_lab.torch_steps.assigner import assign, distribution  # noqa: E402
from baechi_lab.torch_steps.tracing import trace  # noqa: E402

CASES = int(os.environ.get("BAECHI_TRUST_CASES", "12"))
FIRST = int(os.environ.get("BAECHI_TRUST_FIRST", "0"))
# In these the code takes another path in a later step, and leaves out calls that others were to come after.
BRANCHES = (1133, 744)
# A layer of this one draws a number from a generator that is not of PyTorch.
DRAWS = 14


@pytest.mark.slow
@pytest.mark.parametrize("seed", fast([BRANCHES[0], *range(FIRST, FIRST + CASES), *BRANCHES[1:], DRAWS], 3))
def test_a_random_module_trains_as_the_undivided_one(seed):
    """Outputs, gradients, buffers, attributes and random states of five steps, bit for bit; tracing leaves no trace."""
    model = rm.random_module(seed)
    expected = rm.train(rm.twin(model), 5, seed)
    before = rm.everything(model)
    traced = trace(model, torch.ones(6, rm.WIDTH).requires_grad_())
    assert all(map(torch.equal, before, rm.everything(model)))
    devices = 2 + seed % 2
    placement = random_placement(traced, devices, np.random.default_rng(seed), reorder=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CodeOrderKept)
        assign(model, traced, placement, bl.Cluster.uniform(devices, kind="cpu"))
        outputs = rm.train(model, 5, seed)
    for step, (ours, theirs) in enumerate(zip(outputs, expected, strict=True)):
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
    traced = trace(model, x)
    rank = [-1 if call.key == "b" else i for i, call in enumerate(traced.calls)]
    placement = bl.Placement(device=[0] * len(rank), order=rank)
    with pytest.warns(
        CodeOrderKept, match=r"2 of 4 calls keep code order.*the autograd Function Square \(2, such as 'a'"
    ):
        assign(model, traced, placement, bl.Cluster.uniform(2, kind="cpu"))
    assert "a" not in distribution(model).plan.waiting
    for _ in range(2):
        model.zero_grad()
        model(x).sum().backward()
        assert model.a.weight.grad is not None


class Alternating(nn.Module):
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
    model, x = Alternating(), torch.ones(2, 4)
    twin = rm.twin(model)
    traced = trace(model, x)
    rank = [-1 if call.key == "b" else i for i, call in enumerate(traced.calls)]
    assign(model, traced, bl.Placement(device=[0] * len(rank), order=rank), bl.Cluster.uniform(2, kind="cpu"))
    assert "a" in distribution(model).plan.waiting
    for branch in (False, False, True, True):
        model.turn = twin.turn = branch
        torch.manual_seed(1)
        outputs = model(x)
        torch.manual_seed(1)
        assert torch.equal(outputs, twin(x))


@pytest.mark.parametrize("layer", [True, False])
def test_profiling_leaves_a_replaced_buffer_as_it_was(layer):
    counting = rm.Counting()
    model = nn.Sequential(counting) if layer else nn.Sequential(nn.Sequential(counting, nn.Linear(4, 4)))
    bl.torch.profile(model, torch.ones(2, 4), warmup=0, runs=2)
    assert float(counting.n) == 0


def shuffled(model, x):
    """The model distributed so that its layer 'b' comes first, and an equal one."""
    twin, traced = rm.twin(model), trace(model, x)
    rank = [-1 if call.key == "b" else i for i, call in enumerate(traced.calls)]
    assign(model, traced, bl.Placement(device=[0] * len(rank), order=rank), bl.Cluster.uniform(2, kind="cpu"))
    return model, twin


class Lent(nn.Module):
    """A layer that is called with other parameters, which are given back before it would run if it waited."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        half = {name: p * 0.5 for name, p in self.a.named_parameters()}
        lent = torch.func.functional_call(self.a, half, (x,))
        return torch.func.functional_call(self.c, dict(self.a.named_parameters()), (lent,)) + self.b(x)


@pytest.mark.filterwarnings("ignore::baechi_lab.errors.CodeOrderKept")
def test_bug_a_layer_with_lent_parameters_waited_and_ran_with_its_own():
    """Where the lent ones waited too, the forward never ended."""
    x = torch.ones(2, 4)
    model, twin = shuffled(Lent(), x)
    for _ in range(3):
        assert all(map(torch.equal, trained(model, x), trained(twin, x)))


def trained(model, x, **settings):
    """Output and gradients of one step; `settings` are those of autocast."""
    model.zero_grad(), setattr(x, "grad", None)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(settings), **settings):
        y = model(x)
    y.float().square().sum().backward()
    return [
        y.detach(),
        *(p.grad.clone() for p in model.parameters() if p.grad is not None),
        *([x.grad.clone()] if x.requires_grad else []),
    ]


@pytest.mark.parametrize("kind", ["an input with a gradient", "a shared weight", "neither"])
def test_bug_what_autocast_casts_once_for_several_layers_was_cast_for_each(kind):
    """Gradients then differed by rounding; and a layer in a thread emptied the cache that all threads share."""
    torch.manual_seed(0)
    model, x = Alternating(), torch.randn(64, 4, requires_grad=kind.startswith("an"))
    model.d, model.e, model.turn = nn.Identity(), nn.Tanh(), False
    if kind == "a shared weight":
        model.b.weight = model.a.weight
    model, twin = shuffled(model, x)
    waits = 0
    for step in range(3):
        with pytest.warns(CodeOrderKept, match="autocast") if kind != "neither" and not step else nullcontext():
            ours = trained(model, x, cache_enabled=True)
        waits += distribution(model).session.threads_started
        assert all(map(torch.equal, ours, trained(twin, x, cache_enabled=True)))
    assert bool(waits) == (kind == "neither")


class Inferring(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        with torch.inference_mode():
            scale = torch.tanh(self.a(x))
        return self.b(x) * scale.clone()


@pytest.mark.filterwarnings("ignore::baechi_lab.errors.CodeOrderKept")
def test_bug_a_part_in_inference_mode_was_no_model_that_could_be_traced():
    x = torch.ones(2, 4)
    model, twin = shuffled(Inferring(), x)
    for _ in range(2):
        assert torch.equal(model(x), twin(x))


class Swaps(nn.Module):
    """Two layers that draw random numbers and come in either order."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.turn = nn.Dropout(0.5), nn.Dropout(0.5), nn.Linear(4, 4), False

    def forward(self, x):
        first, second = (self.b, self.a) if self.turn else (self.a, self.b)
        y = second(torch.tanh(first(x)))
        return y * 2 + self.c(x)


def test_bug_layers_that_come_in_another_order_waited_for_each_other():
    """In the trace a comes before b; where b came first, it waited for a, and a for what b makes."""
    x = torch.ones(2, 4)
    model = Swaps()
    twin, traced = rm.twin(model), trace(model, x)
    rank = [-1 if call.key == "c" else i for i, call in enumerate(traced.calls)]
    assign(model, traced, bl.Placement(device=[0] * len(rank), order=rank), bl.Cluster.uniform(2, kind="cpu"))
    for branch in (False, False, True, False, True):
        model.turn = twin.turn = branch
        torch.manual_seed(1)
        ours = model(x)
        torch.manual_seed(1)
        assert torch.equal(ours, twin(x))
    assert distribution(model).session.forced


class Written(nn.Module):
    """A view that a layer writes: behind it, autograd goes on through the nodes of the tensor that it is of."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.r = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, x):
        near, middle = x * 0.3, x.sin()
        far = torch.tanh(self.a(near)).clone()
        self.r(far[:, :2])
        return far * 1.7 + middle + self.b(x) * x


@pytest.mark.filterwarnings("ignore::baechi_lab.errors.CodeOrderKept")
def test_bug_nodes_before_a_written_view_were_numbered_anew():
    """Gradients of what they read were then summed in another order."""
    torch.manual_seed(0)
    x = torch.randn(64, 4, requires_grad=True)
    model, twin = shuffled(Written(), x)
    for _ in range(3):
        assert all(map(torch.equal, trained(model, x), trained(twin, x)))
    assert "r" in distribution(model).plan.waiting
