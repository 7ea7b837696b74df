"""Layers that read computed tensors as attributes: replaced weights, and what the code of the model stores in a layer."""

from functools import partial

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.torch_steps.step import TorchStep  # noqa: E402
from baechi_lab.torch_steps.tracing import trace  # noqa: E402

TWO = bl.Cluster.uniform(2, kind="cpu", comm="parallel")
ROWS = torch.ones(16, 64)


class HalvedWeights(nn.Module):
    """A layer that runs with half its weights, by `functional_call`."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        halves = {name: p * 0.5 for name, p in self.a.named_parameters()}
        return self.b(torch.func.functional_call(self.a, halves, (x,)))


class GeneratedWeight(nn.Module):
    """A hypernetwork: one layer computes the weight of another, which has no gradients of its own."""

    def __init__(self):
        super().__init__()
        self.generator, self.inner = nn.Linear(64, 8 * 64), nn.Linear(64, 8)
        self.inner.requires_grad_(False)

    def forward(self, x):
        weight = self.generator(x.mean(0)).view(8, 64)
        return torch.func.functional_call(self.inner, {"weight": weight}, (x,))


class Shifted(nn.Module):
    def forward(self, x):
        return x + self.shift


class StoredShift(nn.Module):
    """The code stores a computed tensor in a layer, which reads it."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.shifted = nn.Linear(64, 64), nn.Linear(64, 64), Shifted()

    def forward(self, x):
        self.shifted.shift = self.a(x)
        return self.shifted(self.b(x))


READERS = {HalvedWeights: ("mul", "a"), GeneratedWeight: ("generator", "inner"), StoredShift: ("a", "shifted")}


@pytest.mark.parametrize("model", READERS)
def test_bug_calls_that_read_attributes_depended_on_nothing(model):
    """A placement could compute a weight on one device and use it on another, where GPUs refuse, without a word; the gradient
    of the weight's maker was in no op.
    """
    maker, reader = READERS[model]
    model_trace = trace(model(), ROWS)
    index = model_trace.index
    assert (maker, reader) in model_trace.edges
    assert any({index[maker], index[reader]} <= set(group) for group in model_trace.groups)
    assert index[reader] in model_trace.fixed
    assert model_trace.calls[index[maker]].requires_grad


@pytest.mark.parametrize("model", READERS)
def test_peaks_and_gradients_of_layers_that_read_attributes(model):
    step = TorchStep("attributes", model, ROWS, optimizer=partial(torch.optim.SGD, lr=0.1))
    graph = bl.torch.profile(step, warmup=0, runs=1)
    placement = bl.Placement(device=graph.colocation % 2)
    options = {"warmup": 0, "cluster": TWO, "graph": graph, "return_gradients": True}
    run = bl.torch.execute(step, placement, 1, **options)
    plain = step.model()
    step.run(plain)
    for name, parameter in plain.named_parameters():
        if parameter.grad is not None:
            assert torch.equal(parameter.grad, torch.as_tensor(run.info["gradients"][name])), name
    alone = bl.Placement(device=[0] * graph.n)
    measured = bl.torch.execute(step, alone, 1, **options).timeline.peak_bytes[0]
    assert -0.01 <= bl.simulate(graph, TWO, alone).peak_bytes[0] / measured - 1 <= 0.05
