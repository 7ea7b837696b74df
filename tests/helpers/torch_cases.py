"""Small models and helpers that the torch tests share."""

from __future__ import annotations

import ast

import numpy as np
import torch
from exported_script import run_torch
from torch import nn
from torch.nn import functional as F

from baechi_lab.graph import Placement
from baechi_lab.torch_runtime.transport import HostTransport
from baechi_lab.torch_runtime.tree import map_tensors, tensors

SMALL = {
    "inception_v3": {"batch_size": 2, "image_size": 75, "scale": 1 / 32, "classes": 5},
    "resnet50": {"batch_size": 2, "image_size": 32, "width": 4, "blocks": (1, 2), "classes": 5},
    "transformer": {"batch_size": 2, "length": 5, "vocabulary": 11, "width": 8, "heads": 2, "inner": 16, "layers": 2},
    "gnmt": {"batch_size": 2, "length": 4, "vocabulary": 11, "width": 6, "layers": 3},
    "bert": {"batch_size": 2, "length": 6, "vocabulary": 11, "width": 8, "heads": 2, "inner": 16, "layers": 2},
}


class Block(nn.Module):
    """In-place layers, a module called twice, dropout, and an in-place addition."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.bn, self.relu = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True)
        self.c2, self.d = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x):
        y = self.relu(self.bn(self.c1(x)))
        y = self.d(self.c2(y))
        y += x
        return self.relu(y)


class Odd(nn.Module):
    """Loose parameters and buffers, attention, views, and the embedding's weight read by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.b = nn.Embedding(7, 4), nn.Sequential(Block(), Block())
        self.a = nn.MultiheadAttention(4, 2, batch_first=True)
        self.register_buffer("p", torch.randn(5, 4))
        self.w = nn.Parameter(torch.randn(4))

    def forward(self, i):
        x = self.e(i) + self.p
        x = self.b(x.view(-1, 4)).view(2, 5, 4) * self.w
        a, _ = self.a(x, x, x, key_padding_mask=i == 0, need_weights=False)
        q, k = a.chunk(2, -1)
        return F.linear(torch.cat([q, k], -1), self.e.weight)


class Branches(nn.Module):
    """Independent branches, so that an order other than the code's is possible; views and slices between layers."""

    def __init__(self, count: int = 5) -> None:
        super().__init__()
        self.br = nn.ModuleList(
            nn.Sequential(
                nn.Linear(4, 4), nn.Dropout(0.3) if i % 2 else nn.Tanh(), nn.Linear(4, 4), nn.ReLU(inplace=True)
            )
            for i in range(count)
        )
        self.o = nn.Linear(4 * count, 3)

    def forward(self, x):
        ys = [branch(x) for branch in self.br]
        z = torch.cat([y.view(y.shape[0], 2, 2).transpose(1, 2).reshape(-1, 4) for y in ys], -1)
        return self.o(z) + sum(y[:, :3] for y in ys)


ODD = {"odd": (Odd, lambda: torch.randint(1, 7, (2, 5))), "branches": (Branches, lambda: torch.randn(6, 4))}


class Copying(HostTransport):
    """Clones every input that is on another logical device, as if the devices had separate memory."""

    def begin(self, state):
        self.device_of_id, self.outputs = {}, []  # outputs stay alive, so that no id is used twice

    def device_of_value(self, state, value):
        return next((self.device_of_id[id(t)] for t in tensors(value) if id(t) in self.device_of_id), 0)

    def arrive(self, state, value, device):
        return map_tensors(value, lambda t: t if self.device_of_id.get(id(t), device) == device else t.clone())

    def depart(self, state, outputs, op, device, sends, remote=True):
        map_tensors(outputs, lambda t: (self.outputs.append(t), self.device_of_id.__setitem__(id(t), device)))

    def inherit(self, state, outputs, inputs, device):
        self.depart(state, outputs, -1, device, ())


def random_placement(trace, devices: int, rng: np.random.Generator, *, reorder: bool) -> Placement:
    """Any device for every group of calls, and (where `reorder`) any order."""
    device = rng.integers(0, devices, len(trace.calls))
    for group in trace.groups:
        device[list(group)] = device[group[0]]
    return Placement(device=device, order=rng.permutation(len(device)) if reorder else None)


def train(model, inputs, seed: int = 3):
    """Outputs, gradients and buffers after one forward and backward."""
    torch.manual_seed(seed)
    model.zero_grad()
    outputs = model(*inputs)
    flat = outputs if isinstance(outputs, tuple) else (outputs,)
    sum(t.square().mean() for t in flat).backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [*(t.detach().clone() for t in flat), *gradients, *(b.clone() for b in model.buffers())]


def same(a, b) -> bool:
    """Bit for bit."""
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def said_by(folder, code: str):
    """What Python code prints last, as a literal: run in an exported folder, by torch alone."""
    process = run_torch(folder, "-c", f"import torch; torch.set_num_threads(1)\n{code}")
    assert process.returncode == 0, process.stderr
    return ast.literal_eval(process.stdout.splitlines()[-1])
