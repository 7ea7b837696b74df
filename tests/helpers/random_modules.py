"""Random modules made of what makes waiting dangerous: a program of parts over a list of values, drawn from a seed.

Parts: layers, checkpointed regions of both kinds, autograd Functions, hooks of every kind, buffers that are written or
replaced, dropout and other random numbers, in-place functions, shared weights, caches and counters in attributes,
branches on data, regions under `no_grad`, containers within containers.
"""

from __future__ import annotations

import copy
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

WIDTH = 4


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


class Mix(torch.autograd.Function):
    """Two inputs, two outputs, gradients that are not those of its forward; the newer style of contexts."""

    @staticmethod
    def forward(a, b, scale):
        return (a + b) * scale, torch.from_numpy((a - b).detach().numpy().copy())

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[2]

    @staticmethod
    def backward(ctx, g, h):
        return g * ctx.scale * 0.5, h - g, None


class Through(torch.autograd.Function):
    """Hands its input through and turns the gradient round."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


square = Square.apply  # bound long before any model is distributed, as is usual


class Counting(nn.Module):
    """A layer that replaces its buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x):
        self.n = self.n + 1
        return x * (1 + 0.1 * self.n)


class Averaging(nn.Module):
    """A layer that writes a buffer in place, out of autograd's sight."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        self.mean.data.mul_(0.5).add_(0.5 * x.detach().mean(0))
        return x - self.mean


class Remembering(nn.Module):
    """A layer with a cache in an attribute."""

    def __init__(self):
        super().__init__()
        self.last, self.log = None, []

    def forward(self, x):
        before = self.last
        self.last = x.detach()
        self.log.append(len(self.log))
        return x if before is None else x + 0.1 * before


class Rolling(nn.Module):
    """A layer that draws from Python's and NumPy's generators."""

    def forward(self, x):
        return x * (0.5 + random.random()) + float(np.random.rand())  # noqa: NPY002


class Bare(nn.Module):
    """A layer with a parameter and a Function inside."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return square(x * self.w)


LAYERS = [
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Dropout(0.4),
    nn.Tanh,
    lambda: nn.BatchNorm1d(WIDTH),
    lambda: nn.LayerNorm(WIDTH),
    Counting,
    Averaging,
    Remembering,
    Rolling,
    Bare,
]
PLAIN = LAYERS[:6]


def sequence(rng, count=2):
    return nn.Sequential(*(PLAIN[rng.integers(len(PLAIN))]() for _ in range(count)))


class Palette:
    """What one module is made of: a few kinds only, so that most modules have room to wait."""

    def __init__(self, rng):
        self.parts = [STATEMENTS[i] for i in rng.choice(len(STATEMENTS), 4, replace=False)]
        self.layers = [LAYERS[i] for i in rng.choice(len(LAYERS), 4, replace=False)]


class Statement(nn.Module):
    """One statement; subclasses take values and return one."""

    takes = 1


class Layer(Statement):
    def __init__(self, rng, palette):
        super().__init__()
        self.inner = palette.layers[rng.integers(len(palette.layers))]()
        self.hook(rng)

    def hook(self, rng):
        kind, module = rng.integers(10), self.inner
        if kind == 0:
            module.register_forward_hook(lambda m, i, o: o * 1.5)
        elif kind == 1:
            module.register_forward_pre_hook(lambda m, i: (i[0] * 0.5,))
        elif kind == 2:
            module.register_full_backward_hook(lambda m, i, o: tuple(None if g is None else g * 3 for g in i))
        elif kind == 3:
            module.register_full_backward_pre_hook(lambda m, o: tuple(None if g is None else g * 2 for g in o))

    def forward(self, x):
        return self.inner(x)


class Block(Layer):
    """A container, perhaps with hooks."""

    def __init__(self, rng, palette):
        nn.Module.__init__(self)
        self.inner = sequence(rng, 3)
        self.hook(rng)


class Checkpointed(Statement):
    takes = 2

    def __init__(self, rng, palette):
        super().__init__()
        self.a, self.b, self.reentrant = sequence(rng), sequence(rng), bool(rng.integers(2))
        self.enclosed, self.deep = bool(rng.integers(2)), bool(rng.integers(2))

    def add_inputs(self, x, y):
        return self.a(x) + self.b(y)

    def forward(self, x, y):
        if self.deep:
            return checkpoint(self.a, x, use_reentrant=self.reentrant) * y
        if self.enclosed and not self.reentrant:
            return checkpoint(lambda t: self.add_inputs(t, y), x, use_reentrant=False)
        return checkpoint(self.add_inputs, x, y, use_reentrant=self.reentrant)


class Functions(Statement):
    takes = 2

    def __init__(self, rng, palette):
        super().__init__()
        self.kind, self.a, self.b = rng.integers(4), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, y):
        if self.kind == 0:
            return square(self.a(x)) + self.b(y)
        if self.kind == 1:
            u, v = Mix.apply(self.a(x), y, 0.7)
            return u - v
        if self.kind == 2:
            return Through.apply(x) + self.b(y)
        return self.b(Square.apply(Through.apply(self.a(x)))) * y


class Inplace(Statement):
    takes = 2

    def __init__(self, rng, palette):
        super().__init__()
        self.kind, self.a, self.relu = rng.integers(4), nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)

    def forward(self, x, y):
        z = self.a(x)
        if self.kind == 0:
            z += y
        elif self.kind == 1:
            z = self.relu(z)
        elif self.kind == 2:
            z = z * 1
            z[:, 1:] = y[:, :-1]
        else:
            z = torch.cat([z, y], 1).mul_(0.5)[:, 2 : 2 + WIDTH]
        return z


class Shared(Statement):
    takes = 2

    def __init__(self, rng, palette):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2))
        self.tied = nn.Linear(WIDTH, WIDTH)
        self.tied.weight = self.a[0].weight

    def forward(self, x, y):
        return self.a(x) * self.tied(y) + F.linear(self.a(y), self.a[0].weight)


class Stateful(Statement):
    """Buffers of the container: counted, averaged, read between layers."""

    def __init__(self, rng, palette):
        super().__init__()
        self.kind, self.a, self.bn = rng.integers(4), nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.register_buffer("n", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        y = self.a(x)
        if self.kind == 0:
            self.n = self.n + 1
            return y + self.n
        if self.kind == 1:
            z = y - self.mean
            self.mean.lerp_(y.detach().mean(0), 0.3)
            return z
        if self.kind == 2:
            self.mean = y.detach().mean(0)
            return y
        return self.bn(y) + self.bn.running_mean


class Cache(Statement):
    takes = 2

    def __init__(self, rng, palette):
        super().__init__()
        self.kind, self.a = rng.integers(4), nn.Linear(WIDTH, WIDTH)
        self.kept, self.count, self.table = [], 0, {}

    def forward(self, x, y):
        z = self.a(x)
        if self.kind == 0:
            self.kept.append(z.detach())
            return torch.cat(self.kept, 0)[-len(z) :] + y
        if self.kind == 1:
            self.count += 1
            return z if self.count % 2 else z * y
        if self.kind == 2:
            self.table["z"] = z
            return square(self.table.pop("z")) + y
        self.last = z
        return z + y


class Rare(Statement):
    """Settings of a region, data that is read, random numbers between layers."""

    takes = 2

    def __init__(self, rng, palette):
        super().__init__()
        self.kind, self.a, self.b, self.d = (
            rng.integers(8),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Dropout(0.3),
        )

    def forward(self, x, y):
        a = self.a(x)
        if self.kind == 0:
            with sdpa_kernel(SDPBackend.MATH):
                return F.scaled_dot_product_attention(a[None], self.b(y)[None], y[None])[0]
        if self.kind == 1:
            return a * 2 if a.mean() > 0 else self.b(a)
        if self.kind == 2:
            with torch.no_grad():
                z = self.d(self.b(y))
            return a + z
        if self.kind == 3:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(5)
                z = F.dropout(a, 0.5)
            return z + self.d(y)
        if self.kind == 4:
            return a * torch.rand_like(y) + self.d(self.b(y))
        if self.kind == 5:
            if a.requires_grad:
                a.register_hook(lambda g: g * 2)
            return a + self.b(y)
        if self.kind == 6:
            return square(a) if float(a.sum()) > 0 else Through.apply(self.b(a))
        with torch.autograd.graph.save_on_cpu():
            return self.b(torch.tanh(a)) * y


STATEMENTS = [Layer, Layer, Block, Checkpointed, Functions, Inplace, Shared, Stateful, Cache, Rare]


class Program(nn.Module):
    """Statements over a list of values; the result is made of the last ones, so that branches are independent."""

    def __init__(self, rng, palette, depth=1):
        super().__init__()
        self.parts, self.reads, values = nn.ModuleList(), [], 1
        for _ in range(int(rng.integers(3, 8))):
            kind = palette.parts[rng.integers(len(palette.parts))]
            nested = depth and rng.integers(6) == 0
            statement = Program(rng, palette, depth - 1) if nested else kind(rng, palette)
            self.parts.append(statement)
            # mostly of the first values, so that parts rarely depend on each other
            self.reads.append(
                [int(min(rng.integers(values), rng.integers(values))) for _ in range(getattr(statement, "takes", 1))]
            )
            values += 1
        self.again = int(rng.integers(len(self.parts)))

    def forward(self, x):
        values = [x]
        for statement, reads in zip(self.parts, self.reads, strict=True):
            values.append(statement(*(values[i] for i in reads)))
        values.append(
            self.parts[self.again](*(values[i] for i in self.reads[self.again]))
        )  # the same modules once more
        return torch.tanh(sum(values[1:]))


def random_module(seed: int) -> nn.Module:
    """The module of that seed; torch's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rng = np.random.default_rng(seed)
        return Program(rng, Palette(rng))


def states():
    """The state of every generator."""
    return [
        torch.get_rng_state(),
        torch.tensor([hash(random.getstate())]),
        torch.from_numpy(np.random.get_state()[1].astype(np.int64)),  # noqa: NPY002
    ]


def attributes(model):
    """Plain attributes of all modules and the tensors in them, as tensors."""
    found_names = []
    for module in model.modules():
        for key, value in sorted(vars(module).items()):
            if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "call_super_init":
                found_names.append(torch.tensor(float(value)))
            elif isinstance(value, (list, dict)) and not key.startswith("_") and key != "hf_device_map":
                entries = list(value.values()) if isinstance(value, dict) else value
                found_names.extend(t.detach().clone() for t in entries if isinstance(t, torch.Tensor))
                found_names.append(torch.tensor(float(len(entries))))
            elif type(value) is torch.Tensor or (
                isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
            ):
                found_names.append(value.detach().clone())
    return found_names


def everything(model):
    """Parameters, gradients, buffers and attributes of a model, and the generators' states."""
    gradients = [torch.zeros(0) if p.grad is None else p.grad.clone() for p in model.parameters()]
    return [
        *(p.detach().clone() for p in model.parameters()),
        *gradients,
        *(b.clone() for b in model.buffers()),
        *attributes(model),
        *states(),
    ]


def train(model, steps, seed):
    """Outputs, gradients and states of every step of a training with updates."""
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)  # noqa: NPY002
    losses_and_states = []
    parameters = list(model.parameters()) or [nn.Parameter(torch.zeros(1))]  # some have none, which SGD refuses
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    for step in range(steps):
        x = torch.sin(torch.arange(6 * WIDTH, dtype=torch.float32).reshape(6, WIDTH) * (step + 1)).requires_grad_()
        optimizer.zero_grad()
        outputs = model(x)
        outputs.square().mean().backward()
        losses_and_states.append(
            [outputs.detach().clone(), torch.zeros(0) if x.grad is None else x.grad.clone(), *everything(model)]
        )
        optimizer.step()
    return losses_and_states


def twin(model):
    """An equal model of its own."""
    return copy.deepcopy(model)
