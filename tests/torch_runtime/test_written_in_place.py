"""What a layer or function writes in place reaches the tensor that the code goes on with, whichever device that is on."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch_cases import Copying  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.torch_runtime.tree import split_batch  # noqa: E402
from baechi_lab.torch_steps.assigner import assign, distribution  # noqa: E402
from baechi_lab.torch_steps.plan import make_plan  # noqa: E402
from baechi_lab.torch_steps.tracing import trace  # noqa: E402


class Constant(nn.Module):
    """Assembles its result in a tensor that no call computes, as mixtures of experts do."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        y = self.a(x)
        total = torch.zeros(6, 4, dtype=x.dtype, device=y.device)
        total[:, :2] = y[:, 2:]
        total.index_add_(0, torch.tensor([3, 0]), self.b(y)[:2])
        return self.c(total)


class Input(Constant):
    """Writes into the batch, through a view as well; a layer does, too."""

    def forward(self, x):
        y = self.a(x.clone())
        x[:, 0] = y.detach()[:, 1]
        x[:, 1:3].mul_(0.5)
        nn.functional.relu_(x[:, 3])
        return self.c(self.b(x) * y)


class Buffer(Constant):
    """Writes into a buffer, by a method and as the output argument of a function, after another layer has read it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2, 4, dtype=torch.float64))

    def forward(self, x):
        y = self.b(torch.tanh(self.a(x) - self.mean[0]))
        self.mean[0].lerp_(y.detach().mean(0), 0.5)
        torch.sum(y.detach(), 0, out=self.mean[1])
        return self.c(y - self.mean.sum(0))


def trained(model, x, steps=3):
    """Weights, buffers and the last gradients after some steps, in float64."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x.clone()).square().mean().backward()
        optimizer.step()
    return {**model.state_dict(), **{f"{name}.grad": p.grad for name, p in model.named_parameters()}}


@pytest.mark.parametrize("kind", [Constant, Input, Buffer])
@pytest.mark.parametrize("odd", [0, 1])
def test_bug_writes_from_another_device_were_lost(kind, odd):
    torch.manual_seed(0)
    model, x = kind().double(), torch.randn(6, 4, dtype=torch.float64)
    plain = trained(copy.deepcopy(model), x)
    traced = trace(model, x)
    device = [(i + odd) % 2 for i in range(len(traced.calls))]
    for group in traced.groups:
        for i in group:
            device[i] = device[group[0]]
    assign(model, traced, bl.Placement(device=device), bl.Cluster.uniform(2, kind="cpu"))
    session = distribution(model).session
    session.transport, session.plain = Copying(session.plan.devices), False
    distributed_values = trained(model, x)
    assert distributed_values.keys() == plain.keys()
    for name, values in plain.items():
        torch.testing.assert_close(distributed_values[name], values, rtol=1e-12, atol=1e-15)


class ReadsWritten(nn.Linear):
    """Writes into the batch, which the backward pass reads."""

    def forward(self, x):
        x[:, 0] = 1.0
        return super().forward(x)


def test_bug_a_write_into_one_micro_batch_was_a_write_into_all():
    x = torch.randn(6, 4)
    undivided, divided = ReadsWritten(4, 2), ReadsWritten(4, 2)
    divided.load_state_dict(undivided.state_dict())
    undivided(x.clone()).square().mean().backward()
    for loss in [divided(micro_batch).square().mean() / 2 for micro_batch in split_batch(x.clone(), 2)]:
        loss.backward()
    torch.testing.assert_close(divided.weight.grad, undivided.weight.grad)


def test_bug_writes_in_inference_mode_were_lost():
    model, x = Constant().double(), torch.randn(6, 4, dtype=torch.float64)
    traced = trace(model, x)
    with torch.inference_mode():
        plain = model(x)
        device = [int(call.inplace) for call in traced.calls]
        assign(model, traced, bl.Placement(device=device), bl.Cluster.uniform(2, kind="cpu"))
        session = distribution(model).session
        session.transport, session.plain = Copying(session.plan.devices), False
        torch.testing.assert_close(model(x), plain)


def test_bug_buffers_of_a_layer_were_where_a_function_reads_them():
    class Normalized(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(x - self.norm.running_mean)

    traced = trace(Normalized(), torch.randn(6, 4))
    assert [call.key for call in traced.calls] == ["sub", "norm"]
    plan = make_plan(traced, bl.Placement(device=[0, 1]), ("cpu", "cpu"))
    assert plan.parameters["norm.running_mean"] == 1


class Penalized(nn.Module):
    """A gradient penalty, computed in the forward pass. A gradient that is not there would be left out without a word."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        x = x.detach().clone().requires_grad_(True)
        y = self.b(torch.tanh(self.a(x)))
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True, allow_unused=True)
        return y if gradient is None else y + (gradient.norm(dim=1, keepdim=True) - 1) ** 2


@pytest.mark.parametrize("recomputed", [False, True])
def test_bug_gradients_within_a_forward_pass_were_taken_of_copies(recomputed):
    torch.manual_seed(0)
    model, x = Penalized().double(), torch.randn(6, 4, dtype=torch.float64)
    plain = trained(copy.deepcopy(model), x)
    traced = trace(model, x)
    placement, graph = bl.Placement(device=[i % 2 for i in range(len(traced.calls))]), None
    if recomputed:
        profile = bl.torch.profile(model, x, runs=1, warmup=0)
        assert "grad" in profile.info["unrepeatable"]["it differentiates what ran before it"]
        dropped = [c.key for c in traced.calls if c.key not in ("clone", "grad")]
        graph = bl.recompute(profile, drop=dropped)
        call_of = np.where(graph.forward_of < 0, np.arange(graph.n), graph.forward_of)
        placement = bl.Placement(device=call_of % 2, graph_key=graph.key)
    assign(model, traced, placement, bl.Cluster.uniform(2, kind="cpu"), graph=graph)
    session = distribution(model).session
    session.transport, session.plain = Copying(session.plan.devices), False
    for name, values in trained(model, x).items():
        torch.testing.assert_close(values, plain[name], rtol=1e-12, atol=1e-15)
