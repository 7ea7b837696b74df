"""Simulated peaks of models that are not those of the study, under four placements and four optimizers, beside measured ones."""

from functools import partial
from itertools import accumulate, cycle, product

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.nn import functional
from torch.profiler import ProfilerActivity
from torch.utils.checkpoint import checkpoint

import baechi_lab as bl
from baechi_lab.memory.code_order import code_order
from baechi_lab.memory_saving.budget import plans_for
from baechi_lab.profilers.torch.layer_estimate import estimate_layers
from baechi_lab.torch_steps.step import TorchStep
from studies.memory.predicting import one_after_another
from studies.memory.report import TARGET_BELOW, TARGET_WORST

ROWS = torch.ones(16, 256)
TOKENS = torch.arange(96).view(8, 12)
PICTURES = torch.ones(4, 3, 32, 32)


class Language(nn.Module):
    """A table, a layer and scores of 4000 words; the table is that of the scores where it is `tied`."""

    def __init__(self, tied=False):
        super().__init__()
        self.table, self.layer = nn.Embedding(4000, 64), nn.Linear(64, 64)
        self.scores = nn.Linear(64, 4000, bias=False)
        if tied:
            self.scores.weight = self.table.weight

    def forward(self, x):
        return self.scores(torch.tanh(self.layer(self.table(x))))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layers, self.scores = nn.Embedding(500, 64), nn.LSTM(64, 128, 2), nn.Linear(128, 500)

    def forward(self, x):
        return self.scores(self.layers(self.table(x))[0])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(64, 64) for _ in range(4))
        self.norm = nn.LayerNorm(64)
        self.register_buffer("mask", torch.ones(64, 64).tril())

    def forward(self, x):
        scores = (self.q(x) @ self.k(x).transpose(-1, -2)).masked_fill(self.mask == 0, -1e9).softmax(-1)
        return self.norm(x + self.out(functional.dropout(scores, 0.1) @ self.v(x)))


class Gated(nn.Module):
    """Three matrices without biases: what an update has left of one is as large as what it takes of the next."""

    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(256, 256, bias=False) for _ in range(3))

    def forward(self, x):
        return x + self.down(functional.silu(self.gate(x)) * self.up(x))


class Repeated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(256, 256)

    def forward(self, x):
        for _ in range(4):
            x = torch.tanh(self.layer(x))
        return x


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(256, 512), nn.Linear(512, 512), nn.Linear(512, 256)

    def forward(self, x):
        y = self.a(x).relu_()
        z = self.b(y)
        z += y
        return self.c(z.mul_(0.5))


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(256, 256), nn.Linear(256, 1000), nn.Linear(256, 16)

    def forward(self, x):
        y = torch.relu(self.body(x))
        return {"a": self.a(y), "b": self.b(y)}


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(256, 512).to(torch.bfloat16), nn.Linear(512, 256)

    def forward(self, x):
        return self.b(torch.relu(self.a(x.to(torch.bfloat16))).float())


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)) for _ in range(3)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


def pictures():
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.Conv2d(32, 64, 3, stride=2)]
    return nn.Sequential(
        *layers, nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 500)
    )


def frozen():
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 256))
    model[2].requires_grad_(False)
    return model


def words(scores, targets):
    return functional.cross_entropy(scores.flatten(0, -2), targets.flatten())


def both_heads(outputs):
    return outputs["a"].square().mean() + outputs["b"].logsumexp(-1).mean()


STEPS = {
    "language": (Language, TOKENS, {"loss": words, "targets": TOKENS}),
    "tied": (partial(Language, tied=True), TOKENS, {"loss": words, "targets": TOKENS}),
    "recurrent": (Recurrent, TOKENS, {"loss": words, "targets": TOKENS}),
    "attention": (Attention, torch.ones(8, 64, 64), {}),
    "gated": (Gated, ROWS, {}),
    "repeated": (Repeated, ROWS, {}),
    "in place": (InPlace, ROWS, {}),
    "heads": (Heads, ROWS, {"loss": both_heads}),
    "mixed": (Mixed, ROWS, {}),
    "checkpointed": (Checkpointed, ROWS, {}),
    "pictures": (pictures, PICTURES, {}),
    "frozen": (frozen, ROWS, {}),
    "bfloat16": (lambda: Gated().to(torch.bfloat16), ROWS.to(torch.bfloat16), {}),
}

OPTIMIZERS = {
    "sgd": partial(optim.SGD, lr=0.01),
    "momentum": partial(optim.SGD, lr=0.01, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adam": optim.Adam,
    "adamw at once": partial(optim.AdamW, foreach=True, amsgrad=True),
}


STEPS_WITH_OPTIMIZERS = [
    *dict.fromkeys([*zip(STEPS, cycle(OPTIMIZERS), strict=False), *product(["gated"], OPTIMIZERS)])
]
"""Each model with one optimizer, and one model with all of them."""


def placements(graph, cluster):
    """Three rules, by durations that are the same on every machine, and each group on a device drawn."""
    even = graph.replace(duration_us=np.ones(graph.n))
    for rule in ("single", "m-topo", "m-etf"):
        yield rule, bl.Placement(device=bl.place(even, cluster, rule).on(even).device)
    drawn = np.random.default_rng(1).integers(0, cluster.n, len(graph.colocation_names))
    yield "random", bl.Placement(device=drawn[graph.colocation].astype(np.int32))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "optimizer"), STEPS_WITH_OPTIMIZERS)
def test_simulated_peaks_meet_the_target(name, optimizer):
    """On every device that holds more than 100 KB; devices of one process work one after another."""
    build, inputs, options = STEPS[name]
    step = TorchStep(name, build, (inputs,), optimizer=OPTIMIZERS[optimizer], **options)
    graph = bl.torch.profile(step, warmup=0, runs=1)
    cluster = bl.Cluster.uniform(2, kind="cpu", comm="parallel")
    for rule, placement in placements(graph, cluster):
        simulated = bl.simulate(one_after_another(graph), cluster, placement).peak_bytes
        measured = bl.torch.execute(step, placement, 1, warmup=1, cluster=cluster, graph=graph).timeline.peak_bytes
        for d in np.flatnonzero(measured > 100_000):
            assert -TARGET_BELOW <= simulated[d] / measured[d] - 1 <= TARGET_WORST, (rule, int(d))


def allocated(step):
    """Peak of the allocator's events of one plain `TorchStep.run`, beside what is there before: what people see."""
    model = step.model()
    optimizer = step.optimizer(model.parameters())
    for _ in range(2):
        step.run(model, optimizer)
    optimizer.zero_grad(set_to_none=True)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step.run(model, optimizer)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    levels = accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    states = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    resident_tensors = [*model.parameters(), *model.buffers(), *step.inputs, *step.targets, *states]
    return max(levels) + sum(t.nbytes for t in resident_tensors)


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer", [optim.Adam, optim.AdamW, optim.NAdam, optim.Adagrad, optim.RMSprop, optim.Adadelta]
)
def test_bug_estimates_for_a_cpu_forgot_the_temporaries_of_updates(optimizer):
    """The peak of a small batch is in the update: up to 17 % too low."""
    step = TorchStep(
        "wide",
        lambda: nn.Sequential(nn.Linear(100, 300), nn.Linear(300, 300), nn.Linear(300, 10)),
        (torch.ones(2, 100),),
        optimizer=partial(optimizer, lr=0.1),
        mode="training",
    )
    graph, measured = bl.torch.profile(step, hardware="cpu-core"), allocated(step)
    cluster = bl.Cluster.uniform(1, kind="cpu-core")
    simulated = bl.simulate(graph, cluster, bl.Placement(device=[0] * graph.n)).peak_bytes[0]
    assert -0.001 <= simulated / measured - 1 <= 0.02


@pytest.mark.slow
def test_bug_estimates_for_a_cpu_keep_what_its_attention_keeps():
    """The estimate assumed the fused kernels of GPUs: 57 % too low."""
    layer = nn.TransformerEncoderLayer(32, 4, 128, batch_first=True)
    step = TorchStep(
        "encoder",
        lambda: nn.TransformerEncoder(layer, 2),
        (torch.ones(4, 64, 32),),
        optimizer=partial(optim.SGD, lr=0.1),
        mode="training",
    )
    graph = bl.torch.profile(step, hardware="cpu-core")
    cluster = bl.Cluster.uniform(1, kind="cpu-core")
    simulated = bl.simulate(graph, cluster, bl.place(graph, cluster, "single")).peak_bytes[0]
    assert -TARGET_BELOW <= simulated / allocated(step) - 1 <= TARGET_WORST


class NormsOfTime(nn.Module):
    """A batch norm over the features of a sequence, as in time series: three layers read its transposed result."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(64) for _ in range(4))
        self.q, self.k, self.v = (nn.ModuleList(nn.Linear(64, 64) for _ in range(4)) for _ in range(3))

    def forward(self, x):
        for norm, q, k, v in zip(self.norms, self.q, self.k, self.v, strict=True):
            y = norm(x.transpose(1, 2)).transpose(1, 2)
            x = x + q(y) + k(y) + v(y)
        return x


@pytest.mark.slow
def test_bug_estimates_for_a_cpu_took_results_of_batch_norms_for_transposed():
    """A CPU writes them in order, so that linear layers copy what they read: PatchTST needed 14 % more than was estimated."""
    step = TorchStep("norms", NormsOfTime, (torch.ones(64, 32, 64),), optimizer=OPTIMIZERS["sgd"], mode="training")
    graph = bl.torch.profile(step, hardware="cpu-core")
    cluster = bl.Cluster.uniform(1, kind="cpu-core")
    simulated = bl.simulate(graph, cluster, bl.Placement(device=[0] * graph.n)).peak_bytes[0]
    assert -TARGET_BELOW <= simulated / allocated(step) - 1 <= TARGET_WORST


class Permuted(nn.Module):
    """A convolution of channels that a norm before it has put last, as in ConvNeXt or the neck of SAM."""

    def __init__(self):
        super().__init__()
        self.norm, self.convolution = nn.LayerNorm(128), nn.Conv2d(128, 128, 3, padding=1)

    def forward(self, x):
        return self.convolution(self.norm(x).permute(0, 3, 1, 2))


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(256, 256)
        self.register_buffer("mask", torch.ones(256, 256, dtype=torch.bool))

    def forward(self, x):
        return torch.tanh(self.layer(x) * self.mask)


class Transposed(nn.Module):
    """A layer that reads transposed pictures."""

    def __init__(self, layer):
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(1)), layer

    def forward(self, x):
        return self.layer((x * self.scale).transpose(2, 3))


class Pairs(nn.Module):
    """A bilinear layer. Its backward pass multiplies all pairs of numbers of each row."""

    def __init__(self):
        super().__init__()
        self.layer, self.scores = nn.Linear(256, 128), nn.Bilinear(128, 128, 4)

    def forward(self, x):
        y = self.layer(x)
        return self.scores(y, y)


class Heads4(nn.Module):
    """Attention of four heads, whose gradient comes head by head: its backward pass copies it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 96)

    def forward(self, x):
        y = self.layer(x).view(*x.shape[:2], 3, 4, -1)
        return functional.scaled_dot_product_attention(*y.permute(2, 0, 3, 1, 4))


class Trapezoid(nn.Module):
    """A layer with three readers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(256, 256)

    def forward(self, x):
        return torch.trapezoid(self.layer(x))


def scaled_gradient():
    """A layer with a hook of its weight, which makes a second gradient."""
    layer = nn.Linear(256, 256)
    layer.weight.register_hook(lambda gradient: gradient * 3)
    return layer


LARGE, LARGE_INPUTS = torch.full((256, 256), 0.5), torch.ones(256, 256)
PICTURES_OF_8 = torch.ones(2, 8, 32, 32)
HIDDEN_BYTES = {
    "mse_loss": (lambda: nn.Linear(256, 256), LARGE_INPUTS, functional.mse_loss),
    "smooth_l1_loss": (lambda: nn.Linear(256, 256), LARGE_INPUTS, functional.smooth_l1_loss),
    "huber_loss": (lambda: nn.Linear(256, 256), LARGE_INPUTS, functional.huber_loss),
    "soft_margin_loss": (lambda: nn.Linear(256, 256), LARGE_INPUTS, functional.soft_margin_loss),
    "binary_cross_entropy": (
        lambda: nn.Sequential(nn.Linear(256, 256), nn.Sigmoid()),
        LARGE_INPUTS,
        functional.binary_cross_entropy,
    ),
    "with logits": (lambda: nn.Linear(256, 256), LARGE_INPUTS, functional.binary_cross_entropy_with_logits),
    "weighted": (
        lambda: nn.Linear(256, 256),
        LARGE_INPUTS,
        partial(functional.binary_cross_entropy_with_logits, pos_weight=torch.ones(256)),
    ),
    "gradients added up": (Trapezoid, torch.ones(512, 256), lambda y, targets: y.square().mean()),
    "selected": (
        lambda: nn.Linear(256, 256),
        LARGE_INPUTS,
        lambda y, targets: y.masked_scatter(targets[:, :1] > 0, y).square().mean(),
    ),
    "logsumexp": (lambda: nn.Linear(256, 256), LARGE_INPUTS, lambda y, targets: y.logsumexp(-1).mean()),
    "distance": (lambda: nn.Linear(256, 256), LARGE_INPUTS, torch.dist),
    "mask": (Masked, LARGE_INPUTS, lambda y, targets: y.sum()),
    "bilinear": (Pairs, torch.ones(32, 256), lambda y, targets: y.square().mean()),
    "attention": (Heads4, torch.ones(2, 64, 32), lambda y, targets: y.square().mean()),
    "median": (lambda: nn.Linear(256, 256), LARGE_INPUTS, lambda y, targets: y.median()),
    "maximum": (lambda: nn.Linear(256, 256), LARGE_INPUTS, lambda y, targets: y.max()),
    "singular values": (lambda: nn.Linear(64, 64), torch.ones(64, 64), lambda y, _: torch.linalg.svdvals(y).sum()),
    "hook": (scaled_gradient, torch.ones(4, 256), lambda y, targets: y.square().mean()),
    "transposed": (partial(Transposed, nn.LayerNorm(64)), torch.ones(2, 8, 64, 64), lambda y, targets: y.sum()),
    "upsampled": (
        lambda: nn.Sequential(nn.Conv2d(8, 8, 1), nn.Upsample(scale_factor=2)),
        PICTURES_OF_8,
        lambda y, _: y.sum(),
    ),
    "volume, windows of one": (
        lambda: nn.Sequential(nn.Conv3d(4, 4, 1), nn.Conv3d(4, 2, 1)),
        torch.ones(1, 4, 32, 32, 32),
        lambda y, targets: y.square().mean(),
    ),
    "volume": (
        lambda: nn.Sequential(nn.Conv3d(4, 4, 1), nn.Conv3d(4, 4, 3, padding=1)),
        torch.ones(1, 4, 32, 32, 32),
        lambda y, targets: y.square().mean(),
    ),
    "channels last": (Permuted, torch.ones(2, 4, 4, 128), lambda y, targets: y.square().mean()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HIDDEN_BYTES)
def test_bug_estimates_left_out_what_operators_hold_beside_their_shapes(name):
    """The mean of a loss may lie in memory as large as its input; a VideoMAE needed 6 % more, the neck of SAM 16 %, and a
    UNETR of one sample 155 %. A bilinear layer was too low as well, singular values 17 %, attention 10 %.
    """
    build, inputs, loss = HIDDEN_BYTES[name]
    step = TorchStep(name, build, (inputs,), loss, LARGE, optimizer=OPTIMIZERS["sgd"], mode="training")
    graph = bl.torch.profile(step, hardware="cpu-core")
    cluster = bl.Cluster.uniform(1, kind="cpu-core")
    simulated = bl.simulate(graph, cluster, bl.Placement(device=[0] * graph.n)).peak_bytes[0]
    assert -TARGET_BELOW <= simulated / allocated(step) - 1 <= TARGET_WORST


RECURRENT_KINDS = {
    nn.LSTM: ("narrow", "wide", "layers", "directions", "samples first", "long", "long, weights"),
    nn.GRU: ("wide", "directions", "samples first", "long"),
    nn.RNN: ("narrow", "layers", "long, weights"),
}
RECURRENT_SHAPES = {
    "narrow": (torch.ones(16, 8, 64), {"hidden_size": 16}, 0.01),
    "wide": (torch.ones(8, 8, 16), {"hidden_size": 256}, 0.01),
    "layers": (torch.ones(8, 8, 64), {"hidden_size": 96, "num_layers": 2}, 0.1),
    "directions": (torch.ones(16, 8, 64), {"hidden_size": 64, "bidirectional": True, "num_layers": 2}, 0.2),
    "samples first": (torch.ones(24, 8, 64), {"hidden_size": 64, "batch_first": True}, 0.01),
    "long": (torch.ones(300, 8, 64), {"hidden_size": 64}, 0.03),
    "long, weights": (torch.ones(260, 1, 32), {"hidden_size": 512}, 0.2),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape"), [(kind, shape) for kind in RECURRENT_KINDS for shape in RECURRENT_KINDS[kind]]
)
def test_bug_estimates_for_a_cpu_missed_what_recurrent_layers_hold(kind, shape):
    """An LSTM of 16 from 64 numbers was 31 % too low: the tensors of oneDNN are as wide as the wider of both. A GRU of one layer
    was 40 % too high, because autograd made zeros for its workspace, and an RNN of 512 numbers 19 % too low.
    """
    inputs, sizes, largest_error = RECURRENT_SHAPES[shape]
    options = {"optimizer": OPTIMIZERS["sgd"], "mode": "training"}
    build = partial(kind, inputs.shape[-1], **sizes)
    step = TorchStep("layers", build, inputs, lambda y: y[0].square().mean(), **options)
    graph = bl.torch.profile(step, hardware="cpu-core")
    cluster = bl.Cluster.uniform(1, kind="cpu-core")
    simulated = bl.simulate(graph, cluster, bl.Placement(device=[0] * graph.n)).peak_bytes[0]
    assert -0.005 <= simulated / allocated(step) - 1 <= largest_error


def probabilities():
    return nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 600), nn.Softmax(-1)
    )


class Squared(nn.Module):
    """An op that reads one tensor twice, and a norm by hand."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 512), nn.Linear(512, 8)

    def forward(self, x):
        h = self.a(x)
        return self.b(h * h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6))


class Named(nn.Module):
    """Every result has a name until the forward returns; a few of them are read again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(64, 512), nn.Linear(512, 512), nn.Linear(512, 8)

    def forward(self, x):
        a = self.a(x)
        b = torch.relu(a)
        c = b * 2 + 1
        d = c.abs()
        e = self.b(d)
        f = torch.tanh(e)
        return self.c(f)


class Skips(nn.Module):
    """A U-Net of two levels; its skips wait in a list."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 8), (8, 16), (16, 32)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in ((32, 16), (16, 8)))
        self.merge = nn.ModuleList(nn.Conv2d(2 * c, c, 3, padding=1) for c in (16, 8))
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        skips = []
        for layer in self.down:
            skips.append(torch.relu(layer(x)))
            x = functional.max_pool2d(skips[-1], 2)
        x = skips.pop()
        for upsample, merge in zip(self.up, self.merge, strict=True):
            x = torch.relu(merge(torch.cat([skips.pop(), upsample(x)], 1)))
        return self.out(x)


class Scan(nn.Module):
    """Selective state spaces: einsum, exp, cumsum, gates."""

    def __init__(self):
        super().__init__()
        self.inner, self.step, self.out = nn.Linear(32, 128), nn.Linear(64, 80), nn.Linear(64, 32)
        self.rate = nn.Parameter(torch.ones(64, 8))

    def forward(self, x):
        y, gate = self.inner(x).chunk(2, -1)
        y = functional.silu(y)
        delta, b, c = self.step(y).split([64, 8, 8], -1)
        delta = functional.softplus(delta)
        decay = torch.einsum("bld,dn->bldn", delta, -torch.exp(self.rate)).cumsum(1)
        state = (torch.einsum("bld,bln,bld->bldn", delta, b, y) * torch.exp(-decay)).cumsum(1) * torch.exp(decay)
        return x + self.out((torch.einsum("bldn,bln->bld", state, c) + y) * functional.silu(gate))


class Dilated(nn.Module):
    """WaveNet: tanh times sigmoid, residuals, and a sum of skips."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv1d(1, 16, 1), nn.Conv1d(32, 64, 1)
        self.filters, self.gates = (
            nn.ModuleList(nn.Conv1d(16, 16, 2, dilation=2**k) for k in range(4)) for _ in range(2)
        )
        self.residual = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(4))
        self.skip = nn.ModuleList(nn.Conv1d(16, 32, 1) for _ in range(4))

    def forward(self, x):
        x, total = self.first(x), 0
        for k, (f, g, r, s) in enumerate(zip(self.filters, self.gates, self.residual, self.skip, strict=True)):
            y = functional.pad(x, (2**k, 0))
            y = torch.tanh(f(y)) * torch.sigmoid(g(y))
            total, x = total + s(y), x + r(y)
        return self.last(torch.relu(total))


class Cells(nn.Module):
    """A GRU by hand: parts of one tensor, step by step, in a list."""

    def __init__(self):
        super().__init__()
        self.x, self.h, self.out = nn.Linear(32, 192), nn.Linear(64, 192), nn.Linear(64, 20)

    def forward(self, x):
        h, states = x.new_zeros(x.shape[0], 64), []
        for t in range(x.shape[1]):
            (a, b, c), (d, e, f) = self.x(x[:, t]).chunk(3, -1), self.h(h).chunk(3, -1)
            reset, update = torch.sigmoid(a + d), torch.sigmoid(b + e)
            h = (1 - update) * torch.tanh(c + reset * f) + update * h
            states.append(h)
        return self.out(torch.stack(states, 1))


PLAIN = {
    "a loss reads its input twice": (probabilities, torch.ones(500, 64), lambda y: (y * y).sum(), ()),
    "entropy": (probabilities, torch.ones(500, 64), lambda y: -(y * torch.log(y + 1e-6)).sum(), ()),
    "squared": (Squared, torch.ones(500, 64), lambda y: y.mean(), ()),
    "language": (Language, TOKENS, words, (TOKENS,)),
    "named": (Named, torch.ones(512, 64), None, ()),
    "skips": (Skips, torch.ones(4, 3, 32, 32), functional.cross_entropy, (torch.zeros(4, 32, 32, dtype=torch.long),)),
    "scan": (Scan, torch.ones(8, 32, 32), None, ()),
    "dilated": (Dilated, torch.ones(4, 1, 256), functional.cross_entropy, (torch.zeros(4, 256, dtype=torch.long),)),
    "cells": (Cells, torch.ones(8, 12, 32), None, ()),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "optimizer"), [*zip(PLAIN, cycle(["sgd", "adam"]), strict=False), ("language", "sgd")]
)
def test_bug_peaks_of_the_loop_that_people_write(name, optimizer):
    """`out = model(x); loss = loss_fn(out, y); loss.backward(); optimizer.step()` names outputs and loss until it ends.

    `bl.torch.execute` ran a loop without these names, in which autograd added up gradients out of place, and the simulation
    knew nothing of what the code holds. Logits of 96 x 4000 were 22 % of a peak.
    """
    build, inputs, loss, targets = PLAIN[name]
    step = TorchStep(name, build, (inputs,), loss, targets, optimizer=OPTIMIZERS[optimizer])
    graph, cluster = bl.torch.profile(step, warmup=0, runs=1), bl.Cluster.uniform(1, kind="cpu")
    placement, plain = bl.Placement(device=[0] * graph.n), allocated(step)
    run = bl.torch.execute(step, placement, 1, warmup=1, cluster=cluster, graph=graph)
    assert run.timeline.peak_bytes[0] == pytest.approx(plain, rel=0.005)
    assert 0.995 <= bl.simulate(graph, cluster, placement).peak_bytes[0] / plain <= 1.25


class Rounded(nn.Module):
    """An encoder whose codes are integers, as of audio codecs: no gradient reaches it, and its graph ends with its names."""

    def __init__(self):
        super().__init__()
        layers = (layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.Tanh()))
        self.encoder, self.table = nn.Sequential(*layers), nn.Embedding(128, 64)
        self.decoder = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64))

    def codes(self, x):
        y = self.encoder(x)
        return (y * 2).argmax(-1) + (y.argmin(-1) > 64)

    def forward(self, x):
        return self.decoder(self.table(self.codes(x).clamp(max=127)))


class Stepped(nn.Module):
    """A state space computed step by step, as Mamba's without its kernels: each step reads a slice of large tensors."""

    def __init__(self):
        super().__init__()
        self.gate, self.inner, self.out = nn.Linear(32, 8), nn.Linear(32, 64), nn.Linear(64, 32)
        self.rate, self.weight = nn.Parameter(torch.ones(64, 8)), nn.Parameter(torch.ones(64, 8))

    def forward(self, x):
        gate, y = self.gate(x), functional.softplus(self.inner(x))
        decay, inputs = torch.exp(-y[..., None] * self.rate), y[..., None] * self.weight
        state, states = x.new_zeros(x.shape[0], 64, 8), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + inputs[:, t]
            states.append((state @ gate[:, t, :, None])[..., 0])
        return self.out(torch.stack(states, 1))


OBSERVED = {
    "rounded": (Rounded, torch.ones(512, 128), None),
    "stepped": (Stepped, torch.ones(8, 24, 32), None),
    "gru": (partial(nn.GRU, 64, 128, 2), torch.ones(40, 8, 64), lambda outputs: outputs[0].square().mean()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OBSERVED)
def test_bug_measured_peaks_were_those_of_the_observer(name):
    """It held autograd graphs that the model drops, held what a call saved until the call's last node had run, and
    assigned the gradients of a slice to the slow end of the loop that reads slices: 78 % (Mimi), 21 and 16 % too high.
    """
    build, inputs, loss = OBSERVED[name]
    step = TorchStep(name, build, (inputs,), loss, optimizer=OPTIMIZERS["sgd"], mode="training")
    graph, cluster = bl.torch.profile(step, warmup=0, runs=1), bl.Cluster.uniform(1, kind="cpu")
    on_one_device, plain = bl.Placement(device=[0] * graph.n), allocated(step)
    in_code_order = bl.Placement(device=[0] * graph.n, order=np.argsort(code_order(graph)))
    run = bl.torch.execute(step, on_one_device, 1, warmup=1, cluster=cluster, graph=graph)
    assert run.timeline.peak_bytes[0] == pytest.approx(plain, rel=0.005)
    # A device that runs ops as they get ready holds other tensors than the measured step, which ran in code order.
    for placement, largest_ratio in ((in_code_order, 1.05), (on_one_device, 1.2 if name == "stepped" else 1.05)):
        assert 0.995 <= bl.simulate(graph, cluster, placement).peak_bytes[0] / plain <= largest_ratio


class Product(nn.Module):
    """A layer whose rows are multiplied."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 128)

    def forward(self, x):
        return self.layer(x).prod(-1)


def test_bug_gradients_of_products_took_another_path_while_observed():
    """Under a dispatch mode, autograd assumes zeros among the factors, and holds 96 % more than in a plain step."""
    step = TorchStep("product", Product, (torch.ones(512, 64),), optimizer=OPTIMIZERS["sgd"])
    cluster = bl.Cluster.uniform(2, kind="cpu")
    graph = bl.torch.profile(step, warmup=0, runs=1)
    for device in range(2):
        placement = bl.Placement(device=[device] * graph.n)
        measured = bl.torch.execute(step, placement, 1, warmup=1, cluster=cluster, graph=graph).timeline.peak_bytes
        assert measured[device] == pytest.approx(allocated(step), rel=0.005)
        assert bl.simulate(graph, cluster, placement).peak_bytes[device] == pytest.approx(measured[device], rel=0.005)


def test_estimates_hold_a_graph_that_no_gradient_reaches_as_long_as_its_names():
    step = TorchStep("rounded", Rounded, (torch.ones(512, 128),), optimizer=OPTIMIZERS["sgd"], mode="training")
    graph, cluster = bl.torch.profile(step, hardware="cpu-core"), bl.Cluster.uniform(1, kind="cpu-core")
    simulated = bl.simulate(graph, cluster, bl.Placement(device=[0] * graph.n)).peak_bytes[0]
    assert -TARGET_BELOW <= simulated / allocated(step) - 1 <= 0.05


def test_calls_that_no_gradient_reaches_have_no_backward_op():
    graph = bl.torch.profile(Rounded().train(), torch.ones(8, 128), warmup=0, runs=1)
    assert [name for name in graph.names if name.startswith("encoder") and name.endswith("/backward")] == []
    assert {"table/backward", "decoder.0/backward"} <= set(graph.names)


def test_bug_recomputation_dropped_what_the_forward_still_names():
    """Of four results that backward ops read, names hold all until the forward returns: nothing is to be saved.

    A budget of nine tenths of the peak was promised, and exceeded by 11 %.
    """
    step = TorchStep("named", Named, (torch.ones(512, 64),), optimizer=OPTIMIZERS["sgd"])
    graph = bl.torch.profile(step, warmup=0, runs=1)
    assert {"relu/named", "add/named", "abs/named"} <= set(graph.names)
    peak = bl.simulate(graph, bl.Cluster.uniform(1, kind="cpu"), bl.Placement(device=[0] * graph.n)).peak_bytes[0]
    with pytest.raises(bl.InfeasiblePlacement):
        bl.recompute(graph, budget=int(0.9 * peak))
    with pytest.raises(bl.InvalidInput, match="holds its output by a name"):
        bl.recompute(graph, drop=["relu"])


def test_a_value_that_is_read_twice_is_not_held_twice():
    """Square of 100 x 100: both halves of its gradient (80 kB), added up in place, beside the tensor that is squared (40 kB)."""
    step = TorchStep("square", lambda: nn.Linear(100, 100), (torch.ones(100, 100),), lambda y: (y * y).sum())
    graph = bl.torch.profile(step, warmup=0, runs=1)
    placement = bl.Placement(device=[0] * graph.n)
    run = bl.torch.execute(step, placement, 1, warmup=1, cluster=bl.Cluster.uniform(1, kind="cpu"), graph=graph)
    resident_bytes = (100 * 100 + 100) * 4 + 100 * 100 * 4  # parameters and the batch
    assert run.timeline.peak_bytes[0] - resident_bytes == pytest.approx(3 * 40_000, abs=1000)


class CheckpointedAttention(nn.Module):
    """What a block saves is computed again until the last saved tensor is there, which ends the block in the middle."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


@pytest.mark.slow
def test_bug_a_measured_step_held_what_a_region_had_computed_again():
    """The observer kept the autograd nodes of the call that recomputation ends in: a GPT-2 took 37 % more when measured."""
    inputs = (torch.ones(8, 64, 64),)
    step = TorchStep("regions", CheckpointedAttention, inputs, lambda y: y.square().mean(), optimizer=OPTIMIZERS["sgd"])
    graph = bl.torch.profile(step, warmup=0, runs=1)
    placement = bl.Placement(device=[0] * graph.n)
    run = bl.torch.execute(step, placement, 1, warmup=1, cluster=bl.Cluster.uniform(1, kind="cpu"), graph=graph)
    assert run.timeline.peak_bytes[0] == pytest.approx(allocated(step), rel=0.01)


class RecomputingFunction(torch.autograd.Function):
    """Runs blocks without saving anything but their input, and each of them again in its backward pass."""

    @staticmethod
    def forward(ctx, x, blocks):
        ctx.save_for_backward(x)
        ctx.blocks = blocks
        for block in blocks:
            x = x + block(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        x = first = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            for block in ctx.blocks:
                x = x + block(x)
        x.backward(gradient)
        return first.grad, None


class Reversible(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(64, 64)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)) for _ in range(4))

    def forward(self, x):
        return RecomputingFunction.apply(self.stem(x), self.blocks)


@pytest.mark.slow
def test_bug_blocks_that_a_function_runs_again_were_left_out_or_counted_twice():
    """A Reformer's measured profile was 10 % above the allocator, its estimate 9 % below and without most of its work."""
    step = TorchStep("reversible", Reversible, (torch.ones(256, 64),), optimizer=OPTIMIZERS["sgd"], mode="training")
    for options in ({"warmup": 0, "runs": 1}, {"hardware": "cpu-core"}):
        graph = bl.torch.profile(step, **options)
        cluster = bl.Cluster.uniform(1, kind="cpu-core" if "hardware" in options else "cpu")
        simulated = bl.simulate(graph, cluster, bl.Placement(device=[0] * graph.n)).peak_bytes[0]
        assert simulated == pytest.approx(allocated(step), rel=0.02)
    stem, product = 2 * 256 * 64 * 64, 2 * 256 * 64 * 512  # the stem's input needs no gradient
    products = 4 * 2 * (1 + 1 + 2)  # forward, again, and gradients of the input and the weight
    estimate = estimate_layers(Reversible(), torch.ones(256, 64), mode="training")
    assert estimate.flops == 2 * stem + products * product


@pytest.mark.slow
@pytest.mark.parametrize("name", ["skips", "squared", "dilated"])
def test_bug_budgets_of_recomputation_were_exceeded(name, monkeypatch):
    """A call that had run again for the last time kept its arguments: U-Nets, diffusion and mixers took 4 to 7 % more."""
    monkeypatch.setattr(
        "baechi_lab.memory_saving.budget.MOST_SOLVED", 0
    )  # the integer program takes ten seconds a budget
    build, inputs, loss, targets = PLAIN[name]
    step = TorchStep(name, build, (inputs,), loss, targets, optimizer=OPTIMIZERS["sgd"])
    measured, cluster = bl.torch.profile(step, warmup=0, runs=1), bl.Cluster.uniform(1, kind="cpu")
    graph = measured.replace(duration_us=1.0 + measured.output_bytes / 1e4)  # the same plans in every run of this test
    least = plans_for(graph, in_code_order=True).least_bytes
    highest = bl.simulate(graph, cluster, bl.Placement(device=[0] * graph.n)).peak_bytes[0]
    for share in (0.0, 0.3, 0.6):
        changed = bl.recompute(graph, budget=(budget := int(least + share * (highest - least))))
        alone = bl.Placement(device=[0] * changed.n)
        run = bl.torch.execute(step, alone, 1, warmup=1, cluster=cluster, graph=changed)
        assert run.timeline.peak_bytes[0] <= 1.01 * budget


class Scorer(nn.Module):
    """Computes its own loss and returns the scores beside it, as language models do."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))
        self.scores = nn.Linear(64, 400)

    def forward(self, x, labels):
        scores = self.scores(self.layers(x))
        return {"loss": functional.cross_entropy(scores, labels), "scores": scores}


@pytest.mark.parametrize("share", [0.7, 0.85])
def test_bug_recomputation_counted_outputs_that_the_loop_names_as_freed(share):
    """ModernBERT took 20 % more than its budget: the plan made the scores twice, and the training loop held the first ones."""
    inputs = {"x": torch.ones(512, 64), "labels": torch.zeros(512, dtype=torch.long)}
    step = TorchStep("scorer", Scorer, inputs, optimizer=OPTIMIZERS["sgd"])
    graph, cluster = bl.torch.profile(step, warmup=0, runs=1), bl.Cluster.uniform(1, kind="cpu")
    with pytest.raises(bl.InvalidInput, match="holds its output by a name"):
        bl.recompute(graph, drop=["scores"])
    budget = int(share * bl.simulate(graph, cluster, bl.Placement(device=[0] * graph.n)).peak_bytes[0])
    try:
        changed = bl.recompute(graph, budget=budget)
    except bl.InfeasiblePlacement:
        return
    alone = bl.Placement(device=[0] * changed.n)
    run = bl.torch.execute(step, alone, 1, warmup=1, cluster=cluster, graph=changed)
    assert run.timeline.peak_bytes[0] <= 1.01 * budget


class Cache:
    """An object that hides tensors, as the caches of language models do."""

    def __init__(self):
        self.keys = []


class Caching(nn.Module):
    """Returns its loss, an encoded sequence, and a cache that holds what the backward pass reads too."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64))
        self.decoder = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))

    def forward(self, x):
        cache, y = Cache(), (encoded := self.encoder(x))
        for layer in self.decoder:
            y = functional.gelu(layer(y))
            cache.keys.append(y)
        return {"loss": y.square().mean(), "encoded": encoded, "cache": cache}


@pytest.mark.slow
def test_bug_recomputation_counted_what_a_returned_cache_holds_as_freed():
    """Whisper took 19 % more than its budget: the training loop holds its outputs, and with them the keys and values.

    Here 4.07 MB were promised. 5.25 MB were needed.
    """
    step = TorchStep("caching", Caching, (torch.ones(512, 64),), optimizer=OPTIMIZERS["sgd"], mode="training")
    graph, cluster = bl.torch.profile(step, warmup=0, runs=1), bl.Cluster.uniform(1, kind="cpu")
    least = plans_for(graph, in_code_order=True).least_bytes
    changed = bl.recompute(graph, budget=least)
    alone = bl.Placement(device=[0] * changed.n)
    run = bl.torch.execute(step, alone, 1, warmup=1, cluster=cluster, graph=changed)
    assert run.timeline.peak_bytes[0] <= 1.01 * least


class Pairs(nn.Module):
    """Two inputs through the same layers, one after the other; on several devices the second does not wait for the first."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2304, 64))

    def forward(self, a, b):
        return (self.layers(a) - self.layers(b)).square().sum(-1)


@pytest.mark.slow
def test_peaks_with_their_margin_hold_on_devices_that_work_in_turns():
    """`bl.simulate` alone was up to 16 % too low; the margin says what the order of the code takes."""
    step = TorchStep(
        "pairs", Pairs, (torch.ones(16, 1, 28, 28), torch.ones(16, 1, 28, 28)), optimizer=OPTIMIZERS["sgd"]
    )
    graph, cluster = bl.torch.profile(step, warmup=0, runs=1), bl.Cluster.uniform(2, kind="cpu", comm="parallel")
    for rule, placement in placements(graph, cluster):
        simulated = bl.simulate(graph, cluster, placement)
        measured = bl.torch.execute(step, placement, 1, warmup=1, cluster=cluster, graph=graph).timeline.peak_bytes
        for d in np.flatnonzero(measured > 100_000):
            assert simulated.runtime_peak_bytes[d] >= (1 - TARGET_BELOW) * measured[d], (rule, int(d))


class Centered(nn.Module):
    """Reads what a layer gives without gradients first, then with them."""

    def __init__(self, without_gradients=torch.no_grad):
        super().__init__()
        self.layer, self.without_gradients = nn.Linear(256, 256), without_gradients

    def forward(self, x):
        y = self.layer(x)
        with self.without_gradients():
            mean = y.mean(0)
        return y * torch.sigmoid(y) - mean.clone()


@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_bug_a_copy_that_is_read_without_gradients_first_had_none(without_gradients):
    """A device receives a tensor once. The step raised a RuntimeError of PyTorch, or its peak lacked the gradients."""
    step = TorchStep("centered", partial(Centered, without_gradients), torch.ones(512, 256), optimizer=optim.SGD)
    graph, cluster = bl.torch.profile(step, warmup=0, runs=1), bl.Cluster.uniform(2, kind="cpu", comm="parallel")
    first_device = [name.startswith(("layer", "targets")) for name in graph.names]
    placement = bl.Placement(device=[int(not is_first) for is_first in first_device], graph_key=graph.key)
    run = bl.torch.execute(step, placement, 1, warmup=0, cluster=cluster, graph=graph)
    simulated = bl.simulate(graph, cluster, placement).peak_bytes
    assert simulated[1] == pytest.approx(run.timeline.peak_bytes[1], rel=0.01)
    assert simulated[0] >= run.timeline.peak_bytes[0] > 2 * step.model().layer.weight.nbytes + step.inputs[0].nbytes
