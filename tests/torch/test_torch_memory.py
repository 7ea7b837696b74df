"""Measured memory of PyTorch steps on CPU devices: storages that are alive, by hand."""

import torch
from torch import nn

import baechi_lab as bl
from baechi_lab.executors.torch.storages import Storages
from baechi_lab.torch.step import TorchStep


def test_a_view_is_no_storage_of_its_own():
    following = Storages()
    with following.mode():
        base = torch.zeros(8)
        view = base.view(2, 4)[0]
    assert [held.size for held in following.held] == [32]
    del base
    assert following.held[0].end_ns == -1  # the view still holds it
    del view
    assert following.held[0].end_ns > 0


def test_what_is_made_by_a_call_belongs_to_its_device():
    following = Storages(home=2)
    with following.mode():
        following.call(5, 1)
        kept = [torch.ones(2)]
        following.call(-1, 2)
        kept.append(torch.ones(4))
    assert [(held.op, held.device, held.size) for held in following.held] == [(5, 1, 8), (-1, 2, 16)]


def linear():
    return nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))


def test_peak_of_two_layers():
    """Weights 2 x 16384; batch and outputs 32 x 64 x 4 = 8192 each; gradients come with the backward pass.

    At the end of the backward pass: weights, both gradients of weights, the batch, both outputs and little else; never
    more than all storages that there are.
    """
    step = TorchStep("two", linear, (torch.ones(32, 64),))
    run = bl.torch.execute(step, bl.Placement(device=[0, 0]), 1, cluster=bl.Cluster.uniform(1, kind="cpu"))
    line, weights, rows = run.timeline, 2 * 64 * 64 * 4, 32 * 64 * 4
    assert line.info["peak"] == "storages alive" and len(run.outputs) == 3 + 1 + 1
    _, levels = line.memory.levels(0)
    assert levels[-1, 0] == weights  # persistent: the gradients of the step before are no part of it
    assert 2 * weights + rows <= line.peak_bytes[0] <= 2 * weights + 8 * rows


def test_layers_hold_their_own():
    step = TorchStep("two", linear, (torch.ones(32, 64),))
    run = bl.torch.execute(step, bl.Placement(device=[0, 1]), 1, cluster=bl.Cluster.uniform(2, kind="cpu"))
    for device in (0, 1):
        _, levels = run.timeline.memory.levels(device)
        assert levels[-1, 0] == 64 * 64 * 4
    assert run.timeline.memory.delta[run.timeline.memory.category == 3].sum() == 0
