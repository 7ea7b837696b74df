"""The distributed model computes what the original computes, bit for bit on CPU devices."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch_cases import ODD, SMALL, Copying, random_placement, same, train  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.torch_steps.assigner import assign, distribution, gather  # noqa: E402
from baechi_lab.torch_steps.tracing import trace  # noqa: E402

pytestmark = [pytest.mark.slow]


def case(name):
    """Returns the module and inputs of a benchmark model, or of a hand-made one."""
    if name in SMALL:
        step = bl.torch.models.build(name, **SMALL[name])
        return step.model(), step.inputs
    torch.manual_seed(0)
    make, inputs = ODD[name]
    return make(), (inputs(),)


@pytest.mark.parametrize("name", [*SMALL, *ODD])
def test_random_placements_are_bit_equal(name):
    """Half of them with a random order, so that calls wait in threads; two steps each, the first learns the shapes."""
    model, inputs = case(name)
    traced = trace(model, inputs, atomic=("ConvBNReLU",))  # as the paper places Inception-V3
    reference, rng = copy.deepcopy(model), np.random.default_rng(0)
    expected = [train(reference, inputs), train(reference, inputs)]
    threads = 0
    for k in range(8):
        devices, reorder = int(rng.integers(2, 5)), k % 2 == 1
        distributed_model = copy.deepcopy(model)
        placement = random_placement(traced, devices, rng, reorder=reorder)
        assign(distributed_model, traced, placement, bl.Cluster.uniform(devices, kind="cpu"))
        for values in expected[: 2 if reorder else 1]:
            assert same(train(distributed_model, inputs), values), f"placement {k}"
        threads += distribution(distributed_model).session.threads_started
        gather(distributed_model)
        assert "forward" not in distributed_model.__dict__ and same(
            [*distributed_model.parameters()], [*model.parameters()]
        )
    assert threads > 0


@pytest.mark.parametrize("name", [*SMALL, *ODD])
def test_copies_between_devices_change_only_rounding(name):
    """If devices have separate memory, a tensor that two devices read is two tensors whose gradients are summed."""
    model, inputs = case(name)
    traced, rng = trace(model, inputs), np.random.default_rng(1)
    expected = train(copy.deepcopy(model), inputs)
    for _ in range(3):
        distributed_model = copy.deepcopy(model)
        assign(
            distributed_model,
            traced,
            random_placement(traced, 3, rng, reorder=False),
            bl.Cluster.uniform(3, kind="cpu"),
        )
        session = distribution(distributed_model).session
        session.transport, session.plain = Copying(session.plan.devices), False
        for a, b in zip(train(distributed_model, inputs), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
