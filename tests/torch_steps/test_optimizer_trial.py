"""Optimizers are tried before a step runs: closures are refused, and stages of a pipeline get no optimizer that couples them."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.errors import InvalidInput  # noqa: E402
from baechi_lab.torch_steps.optimizer_trial import new_optimizer, update, updates_parts_alike  # noqa: E402


class Limited(torch.optim.SGD):
    """Limits the norm of all gradients before each update."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        return super().step(closure)


class LimitedAdam(torch.optim.Adam):
    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        return super().step(closure)


def by_position(parameters):
    parameters = list(parameters)
    return torch.optim.SGD([{"params": parameters[:1], "lr": 0.5}, {"params": parameters[1:], "lr": 0.1}])


def by_shape(parameters):
    parameters = list(parameters)
    matrices, vectors = ([p for p in parameters if (p.ndim > 1) == kind] for kind in (True, False))
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}])


def closed(parameters):
    class Closed(torch.optim.SGD):
        def step(self, closure=None):
            assert closure is not None, "a closure is required"

    return Closed(parameters)


def as_step(optimizer):
    return bl.torch.TorchStep("two", Two, (torch.ones(4, 3),), optimizer=optimizer)


class Two(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 3), nn.Linear(3, 3))


@pytest.mark.parametrize(
    ("optimizer", "alike"),
    [
        (None, True),
        (partial(torch.optim.Adam, lr=0.1), True),
        (by_shape, True),
        (partial(Limited, lr=0.1), False),
        (LimitedAdam, False),
        (by_position, False),
    ],
)
def test_an_optimizer_of_all_parameters_is_told_from_one_of_each(optimizer, alike):
    step = as_step(optimizer)
    model = step.model()
    model[0].weight.grad = torch.ones(3, 3)
    before = [p.detach().clone() for p in model.parameters()]
    assert updates_parts_alike(step, model, [list(layer.parameters()) for layer in model]) is alike
    assert all(map(torch.equal, before, model.parameters()))
    assert torch.equal(model[0].weight.grad, torch.ones(3, 3)) and model[1].weight.grad is None


def test_bug_optimizers_that_cannot_update_were_foreign_errors():
    for optimizer in (torch.optim.LBFGS, closed, partial(torch.optim.SparseAdam, lr=0.1), partial(by_position, 1)):
        step = as_step(optimizer)
        model = step.model()
        step.run(model)
        with pytest.raises(InvalidInput, match=r"optimizer of step 'two' (is LBFGS, whose|cannot update|failed)"):
            update(step, new_optimizer(step, model.parameters()))


def test_bug_stages_of_a_pipeline_limited_the_norms_of_their_own_gradients():
    step = as_step(partial(Limited, lr=0.1))
    graph = bl.torch.profile(step.micro_batches(2)[0], warmup=0, runs=1)
    cluster = bl.Cluster.uniform(2, kind="cpu")
    placed = bl.Placement(device=[int(not name.startswith("0")) for name in graph.names])
    with pytest.raises(InvalidInput, match="updates the parameters of a pipeline stage otherwise than together"):
        bl.torch.execute(step, placed, 1, graph=graph, cluster=cluster, micro_batches=2, pipeline=True)
    run = bl.torch.execute(step, placed, 2, warmup=0, graph=graph, cluster=cluster, micro_batches=2)
    model = step.model()
    optimizer = step.optimizer(model.parameters())
    losses = [float(step.run(model, optimizer).detach()) for _ in range(2)]
    assert run.info["runtime"] == "session"
    assert [loss for (loss,) in run.outputs[:2]] == pytest.approx(losses, rel=1e-5)
