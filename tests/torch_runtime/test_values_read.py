"""Shapes that depend on values: calls that have such shapes keep code order, and training goes on whatever the data."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
from fewer import slow

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_cases import same  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.errors import CodeOrderKept  # noqa: E402
from baechi_lab.torch_runtime.values_read import ValuesRead  # noqa: E402
from baechi_lab.torch_steps.tracing import trace  # noqa: E402


class Positive(nn.Module):
    """A layer whose output has as many rows as its input has of positive sums."""

    def forward(self, x):
        return x[x.sum(1) > 0]


class Model(nn.Module):
    """Two branches from the input, so that an order may put off either; `code` is what lies between layers."""

    def __init__(self, code):
        super().__init__()
        self.a, self.b, self.c, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.experts, self.table, self.positive = (
            nn.ModuleList(nn.Linear(8, 8) for _ in range(3)),
            nn.Embedding(9, 8),
            Positive(),
        )
        self.code = code

    def forward(self, x):
        return self.code(self, x, self.a(x), self.b(x))


def rows(m, x, h, k):
    return m.out(k[(h.sum(1) > 0).nonzero().flatten()])


def mask(m, x, h, k):
    return m.out(m.c(k[h.sum(1) > 0]))


def select(m, x, h, k):
    return k.masked_select(h > 0).sum() + m.out(m.c(x)).sum()


def selects_rows(m, x, h, k):
    return m.out(m.c(k)[torch.where(h.sum(1) > 0)])


def unique(m, x, h, k):
    unique_values, inverse = torch.unique((x.sum(1) * 2).long(), return_inverse=True)
    return m.out(m.c(torch.zeros(len(unique_values), 8).index_add(0, inverse, k))) + h.mean()


def repeat(m, x, h, k):
    return m.out(m.c(k.repeat_interleave((x[:, 0].abs() * 2).long() + 1, 0))) + h.mean()


def number(m, x, h, k):
    n = int((x[:, 0] > 0).sum()) + 1
    return m.out(m.c(k[:n])) + h[:n].mean()


def number_in_a_slice(m, x, h, k):
    n = (x[:, 0] > 0).sum() + 1
    return m.out(m.c(k[:n])) + h[:n].mean()


def lengths(m, x, h, k):
    n = (x[:4, 0] > 0).sum().tolist() + 1
    first, second = k.split([n, 6 - n])
    return m.out(m.c(first)).sum() + m.out(second).sum() + h.mean()


def experts(m, x, h, k):
    expert, out = h.detach()[:, :3].argmax(1), torch.zeros_like(h)
    for e in range(3):
        rows = (expert == e).nonzero().flatten()
        if len(rows):
            out.index_add_(0, rows, m.experts[e](k[rows]))
    return m.out(out) + m.c(x).mean()


def branch(m, x, h, k):
    return m.out(m.c(k[:3] if h.sum() > 0 else k)) + h.mean()


def loop(m, x, h, k):
    for _ in range(int(x[0, 0].abs() * 3)):
        k = torch.tanh(m.c(k))
    return m.out(k) + h.mean()


def positions(m, x, h, k):
    k = k[(h.sum(1) > 0).nonzero().flatten()]
    return m.out(m.c(k + m.table(torch.arange(k.shape[0]))))


def unbound(m, x, h, k):
    return sum((m.out(row) for row in k[x.sum(1) > 0].unbind(0)), m.c(h).mean())


def in_a_layer(m, x, h, k):
    return m.out(m.c(m.positive(k))) + h.mean()


def packed(m, x, h, k):
    sizes = ((x[:, 0].abs() * 2).long() + 1).clamp(max=3)
    sequence = nn.utils.rnn.pack_padded_sequence(
        k[:, None].expand(-1, 3, -1), sizes, batch_first=True, enforce_sorted=False
    )
    return m.out(m.c(sequence.data)) + h.mean()


def classes(m, x, h, k):
    return m.out(m.c(k)) + F.one_hot((x[:, 0].abs() * 2).long()).float().sum() + h.mean()


CODE = [
    rows,
    mask,
    select,
    selects_rows,
    unique,
    repeat,
    number,
    number_in_a_slice,
    lengths,
    experts,
    branch,
    loop,
    positions,
    unbound,
    in_a_layer,
    packed,
    classes,
]


def distributed(model, x, seed):
    """The model in some order on three devices, and whether it was said that calls keep code order."""
    traced, draw = trace(model, x), np.random.default_rng(seed)
    device = draw.integers(0, 3, len(traced.calls))
    for group in traced.groups:
        device[list(group)] = device[group[0]]
    placement = bl.Placement(device=device, order=draw.permutation(len(traced.calls)).astype(float))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = bl.torch.distribute(model, x, bl.Cluster.uniform(3, kind="cpu"), placement)
    return model, any(w.category is CodeOrderKept and "may depend on values" in str(w.message) for w in caught)


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", slow(CODE, selects_rows, unique, repeat, number, *CODE[8:]), ids=lambda code: code.__name__
)
@pytest.mark.filterwarnings("ignore::baechi_lab.errors.CodeOrderKept")
def test_training_goes_on_whatever_the_data(code):
    """A call that waited promised the shape that it had in the first step, and a later step failed."""
    torch.manual_seed(0)
    model, x = Model(code), torch.randn(6, 8)
    batches = [torch.randn(6, 8, generator=torch.Generator().manual_seed(k)) for k in range(5)]
    for seed in range(4):
        plain = copy.deepcopy(model)
        distributed_model, _ = distributed(copy.deepcopy(model), x, seed)
        for batch in batches:
            results = []
            for each in (plain, distributed_model):
                each.zero_grad()
                outputs = each(batch)
                outputs.square().sum().backward()
                results.append([outputs, *(p.grad for p in each.parameters() if p.grad is not None)])
            assert same(*results)


@pytest.mark.parametrize("code", [rows, unique, experts, in_a_layer])
def test_it_is_said_before_the_first_step(code):
    x = torch.randn(6, 8)
    assert any(distributed(Model(code), x, seed)[1] for seed in range(20))


def test_what_has_the_shape_of_another_tensor_may_wait():
    """Rows that are put back where they came from leave the shape as it was; the experts themselves are fixed."""
    torch.manual_seed(0)
    traced = trace(Model(experts), torch.randn(6, 8))
    fixed = {traced.calls[i].key for i in traced.fixed}
    assert "experts.0" in fixed and not fixed & {"a", "b", "c", "out"}


@pytest.mark.parametrize(
    ("run", "reads"),
    [
        (lambda x: x[torch.tensor([0, 1])], False),
        (lambda x: x[x > 0], True),
        (lambda x: torch.where(x > 0, x, -x), False),
        (lambda x: torch.where(x > 0), True),
        (lambda x: x.tolist(), True),
        (lambda x: x.numpy(), True),
        (lambda x: bool((x > 0).all()), True),
        (lambda x: x.repeat_interleave(2), False),
        (lambda x: x.repeat_interleave(torch.tensor([1, 2])), True),
        (lambda x: F.one_hot(x.long()), True),
        (lambda x: x.topk(1), False),
    ],
)
def test_calls_that_read_values_are_noticed(run, reads):
    with ValuesRead() as values:
        run(torch.ones(2))
    assert values.reads_values == reads
