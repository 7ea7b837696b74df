"""Optimizers are tried before a step runs: closures are refused, and stages of a pipeline get no optimizer that couples them."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.errors import InvalidInput  # noqa: E402
from baechi_lab.torch_steps.optimizer_trial import (  # noqa: E402
    new_optimizer,
    try_optimizer,
    update,
    updates_ranks_alike,
)


class Limited(torch.optim.SGD):
    """Limits the norm of all gradients before each update."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        return super().step(closure)


class LimitedAdam(torch.optim.Adam):
    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        return super().step(closure)


class SkipsOverflow(torch.optim.SGD):
    """Updates nothing where a gradient is infinite, as a loss scaler does."""

    def step(self, closure=None):
        if all(p.grad.isfinite().all() for group in self.param_groups for p in group["params"]):
            super().step(closure)


class SkipsOverflowOfEach(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = p.grad if p.grad.isfinite().all() else None
        super().step(closure)


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


class WithinBackward(torch.optim.Optimizer):
    """Registers hooks that update in the backward pass."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        for p in self.param_groups[0]["params"]:
            p.register_post_accumulate_grad_hook(self.update)

    @torch.no_grad()
    def update(self, p):
        p -= 0.1 * p.grad
        p.grad = None

    def step(self, closure=None):
        """Everything has been updated."""


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
        (partial(SkipsOverflow, lr=0.1), False),
        (partial(SkipsOverflowOfEach, lr=0.1), True),
    ],
)
def test_an_optimizer_of_all_parameters_is_told_from_one_of_each(optimizer, alike):
    step = as_step(optimizer)
    model = step.model()
    model[0].weight.grad = torch.ones(3, 3)
    before = [p.detach().clone() for p in model.parameters()]
    assert updates_ranks_alike(step, model, [list(layer.parameters()) for layer in model]) is alike
    assert all(map(torch.equal, before, model.parameters()))
    assert torch.equal(model[0].weight.grad, torch.ones(3, 3)) and model[1].weight.grad is None


def test_bug_optimizers_that_cannot_update_were_foreign_errors():
    for optimizer in (torch.optim.LBFGS, closed, partial(torch.optim.SparseAdam, lr=0.1), partial(by_position, 1)):
        step = as_step(optimizer)
        model = step.model()
        step.run(model)
        with pytest.raises(InvalidInput, match=r"optimizer of step 'two' (is LBFGS, whose|cannot update|failed)"):
            update(step, new_optimizer(step, model.parameters()))


@pytest.mark.parametrize("given_to", ["model", "optimizer"])
def test_bug_an_update_within_the_backward_pass_ran_in_every_micro_batch(given_to):
    step = as_step(WithinBackward if given_to == "optimizer" else None)
    model = step.model()
    if given_to == "model":
        model[0].weight.register_post_accumulate_grad_hook(lambda parameter: None)
    try_optimizer(step, model, 1)
    with pytest.raises(InvalidInput, match=r"parameter '0\.weight' .* has a hook that runs after each backward pass"):
        try_optimizer(step, model, 4)
    assert not model[1].weight._post_accumulate_grad_hooks


def test_an_optimizer_that_registers_hooks_registers_them_once():
    """A trial on the model's own parameters left its hooks there, so that each gradient was used twice."""
    step = as_step(WithinBackward)
    graph = bl.torch.profile(step, warmup=0, runs=1)
    run = bl.torch.execute(step, bl.Placement(device=[0] * graph.n), 3, warmup=0, graph=graph)
    model = step.model()
    optimizer = step.optimizer(model.parameters())
    assert [loss for (loss,) in run.outputs[:3]] == [float(step.run(model, optimizer).detach()) for _ in range(3)]


def test_bug_stages_of_a_pipeline_limited_the_norms_of_their_own_gradients():
    step = as_step(partial(Limited, lr=0.1))
    graph = bl.torch.profile(step.micro_batches(2)[0], warmup=0, runs=1)
    cluster = bl.Cluster.uniform(2, kind="cpu")
    placement = bl.Placement(device=[int(not name.startswith("0")) for name in graph.names])
    with pytest.raises(InvalidInput, match="updates the parameters of a pipeline stage otherwise than together"):
        bl.torch.execute(step, placement, 1, graph=graph, cluster=cluster, micro_batches=2, pipeline=True)
    run = bl.torch.execute(step, placement, 2, warmup=0, graph=graph, cluster=cluster, micro_batches=2)
    model = step.model()
    optimizer = step.optimizer(model.parameters())
    losses = [float(step.run(model, optimizer).detach()) for _ in range(2)]
    assert run.info["runtime"] == "session"
    assert [loss for (loss,) in run.outputs[:2]] == pytest.approx(losses, rel=1e-5)
