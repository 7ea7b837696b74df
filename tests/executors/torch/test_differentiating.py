"""Placed steps whose code differentiates: forward-mode derivatives over devices, and losses that differentiate layers."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import baechi_lab as bl


class Tangent(nn.Module):
    """Adds a directional derivative of its layers by forward-mode differentiation."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            value, tangent = forward_ad.unpack_dual(self.b(torch.tanh(self.a(dual))))
            return value + tangent


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [None, 2])
def test_bug_forward_mode_differentiation_over_devices_raised_errors_of_pytorch(micro_batches):
    """The copies of an observed step had no tangents: `NotImplementedError` after the steps were trained."""
    step = bl.torch.TorchStep("tangent", Tangent, torch.ones(4, 8))
    graph = bl.torch.profile(step if micro_batches is None else step.micro_batches(2)[0], warmup=0, runs=1)
    placement = bl.Placement(device=(graph.colocation == graph.colocation[graph.index["b"]]).astype(int))
    cluster = bl.Cluster.uniform(2, kind="cpu")
    options = {"warmup": 0, "graph": graph, "cluster": cluster, "micro_batches": micro_batches, "pipeline": False}
    run = bl.torch.execute(step, placement, 1, return_gradients=True, **options)
    plain = step.model()
    step.run(plain)
    assert run.status == "ok" and set(placement.device.tolist()) == {0, 1}
    for name, parameter in plain.named_parameters():
        np.testing.assert_allclose(run.info["gradients"][name], parameter.grad, rtol=1e-5, atol=1e-7)


class ReturnsInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, x):
        x = x.detach().requires_grad_()
        return x, self.layers(x)


def gradient_penalty(outputs):
    x, y = outputs
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y.mean() + (slope.norm(dim=1) - 1).square().mean()


def test_bug_a_loss_that_differentiates_recomputed_layers_could_not_be_measured():
    """What the loss runs again belongs to the loss, which is no call of the model: an `IndexError`."""
    step = bl.torch.TorchStep("penalty", ReturnsInputs, torch.ones(512, 64), gradient_penalty)
    graph = bl.recompute(bl.torch.profile(step, warmup=0, runs=1), drop=["layers.1"])
    placement = bl.Placement(device=[0] * graph.n)
    cluster = bl.Cluster.uniform(1, kind="cpu")
    run = bl.torch.execute(step, placement, 1, warmup=0, graph=graph, cluster=cluster, return_gradients=True)
    plain = step.model()
    step.run(plain)
    assert any(name.endswith("/again") for name in graph.names)
    for name, parameter in plain.named_parameters():
        assert np.array_equal(run.info["gradients"][name], parameter.grad), name


class PenaltyThenHead(nn.Module):
    """A gradient penalty of three layers of 128 numbers, and then a head of its own that reads the batch."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.head = nn.Linear(32, 128), nn.Linear(128, 128), nn.Linear(128, 1), nn.Linear(32, 1)

    def forward(self, x):
        x = x.detach().requires_grad_()
        y = self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.mean() + slope.square().mean() + self.head(x).square().mean()


@pytest.mark.parametrize("head", [0, 1])
def test_bug_measured_peaks_gave_gradient_penalties_to_devices_of_later_calls(head):
    """The differentiating call was not observed, so what it made was that of the device of the loss: 7 times too much.

    The head's device has its 33 parameters with gradients, and up to six tensors of the batch's size.
    """
    step = bl.torch.TorchStep(
        "penalty", PenaltyThenHead, torch.ones(64, 32), optimizer=torch.optim.SGD, mode="training"
    )
    graph = bl.torch.profile(step, warmup=0, runs=1)
    forward_op = np.where(graph.forward_of >= 0, graph.forward_of, np.arange(graph.n))
    is_later = forward_op > graph.index["grad"]
    for k, name in enumerate(graph.names):
        is_later[k] |= name.startswith("head/")
        is_later[k] &= name.partition("/")[0] not in ("a", "b", "c")
    placement = bl.Placement(device=np.where(is_later, head, 1 - head))
    cluster = bl.Cluster.uniform(2, kind="cpu", comm="parallel")
    run = bl.torch.execute(step, placement, 1, warmup=0, graph=graph, cluster=cluster)
    measured, simulated = run.timeline.peak_bytes, bl.simulate(graph, cluster, placement).runtime_peak_bytes
    batch, layers = 4 * 64 * 32, 4 * (32 * 128 + 128 * 128)
    assert measured[head] <= 2 * 4 * 33 + 6 * batch
    assert measured[1 - head] >= 2 * layers
    assert (simulated >= 0.95 * measured).all()
