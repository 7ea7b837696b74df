"""Outputs in records of every kind are profiled, placed, distributed and executed, whatever their classes check or derive."""

from __future__ import annotations

import collections
import copy
import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from fewer import fast

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch_cases import same  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.torch_runtime.tree import map_tensors, outline, tensors  # noqa: E402
from baechi_lab.torch_steps.step import TorchStep  # noqa: E402


@dataclass
class Checked:
    """Accepts only a matrix, and derives an attribute from it that is no field."""

    logits: Any
    scale: float = 2.0

    def __post_init__(self) -> None:
        if not isinstance(self.logits, torch.Tensor) or self.logits.dim() != 2:
            raise TypeError("logits must be a matrix")
        self.total = self.logits.sum(1)


@dataclass(frozen=True)
class Frozen:
    logits: Any
    total: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.logits.sum(1))


@dataclass(frozen=True, slots=True)
class Slotted:
    logits: Any
    total: Any

    def __post_init__(self) -> None:
        if self.total.shape != self.logits.shape[:1]:
            raise ValueError("a total per row")


@dataclass
class Parent:
    logits: Any


@dataclass
class Child(Parent):
    """Its arguments are not its fields."""

    total: Any = None

    def __init__(self, rows):
        self.logits, self.total = rows, rows.sum(1)


class Named(NamedTuple):
    logits: Any
    total: Any


class NamedAndChecked(Named):
    def __new__(cls, logits, total):
        if logits.shape[0] != total.shape[0]:
            raise ValueError("a total per row")
        return super().__new__(cls, logits, total)


class Attributes:
    """A class like those of attrs: its fields are listed, and it checks its arguments."""

    __attrs_attrs__ = (
        collections.namedtuple("Attribute", "name")("logits"),
        collections.namedtuple("Attribute", "name")("total"),
    )

    def __init__(self, logits, total):
        if not isinstance(logits, torch.Tensor):
            raise TypeError("logits must be a tensor")
        self.logits, self.total = logits, total


class Dict(collections.OrderedDict):
    """A dict whose constructor takes only its own keywords."""

    def __init__(self, *, logits, total):
        super().__init__(logits=logits, total=total)
        self.logits, self.total = logits, total


@functools.cache
def hugging_face():
    pytest.importorskip("transformers")
    from transformers.utils import ModelOutput

    @dataclass
    class Output(ModelOutput):
        logits: Any = None
        total: Any = None
        hidden: Any = None

    @dataclass
    class Derived(Output):
        def __post_init__(self):
            super().__post_init__()
            if not isinstance(self.logits, torch.Tensor):
                raise TypeError("logits must be a tensor")
            self["total"] = self.logits.sum(1)

    return Output, Derived


KINDS = {
    "checked": Checked,
    "frozen": Frozen,
    "slots": lambda y: Slotted(y, y.sum(1)),
    "own arguments": Child,
    "named tuple": lambda y: Named(y, y.sum(1)),
    "checked tuple": lambda y: NamedAndChecked(y, y.sum(1)),
    "attrs": lambda y: Attributes(y, y.sum(1)),
    "dict": lambda y: Dict(logits=y, total=y.sum(1)),
    "Hugging Face": lambda y: hugging_face()[0](logits=y, total=y.sum(1)),
    "Hugging Face derived": lambda y: hugging_face()[1](logits=y),
    "nested": lambda y: {"out": [Checked(y)], "more": Frozen(y)},
    "two fields alike": lambda y: Slotted(y.view(-1, 1), y.view(-1)),
    "defaultdict": lambda y: collections.defaultdict(list, logits=y, total=y.sum(1)),
}


class Layer(nn.Module):
    """One call that returns a record."""

    def __init__(self, kind):
        super().__init__()
        self.linear, self.kind = nn.Linear(4, 3), kind

    def forward(self, x):
        return KINDS[self.kind](self.linear(x))


class Model(nn.Module):
    """Returns the record, or reads that of a layer and returns another."""

    def __init__(self, kind, inner):
        super().__init__()
        self.first, self.last, self.kind = Layer(kind) if inner else nn.Linear(4, 3), nn.Linear(3, 3), kind

    def forward(self, x):
        hidden = self.first(x)
        rows = next(tensors(hidden))
        return KINDS[self.kind](self.last(rows.reshape(-1, 3)))


def loss(outputs):
    return sum(t.square().sum() for t in tensors(outputs))


@pytest.mark.parametrize("inner", fast([False, True], 1))
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_is_profiled_placed_distributed_and_executed(kind, inner):
    torch.manual_seed(0)
    model, x, cluster = Model(kind, inner), torch.randn(4, 4), bl.Cluster.uniform(2, kind="cpu")
    atomic = ("Layer",)
    step = TorchStep(kind, lambda: copy.deepcopy(model), (x,), loss=loss, atomic=atomic)
    graph = bl.torch.profile(step, runs=1, warmup=0)
    device = [int(name.startswith("last")) for name in graph.names]
    placement = bl.Placement(device=device)
    run = bl.torch.execute(step, placement, 1, warmup=0, graph=graph, cluster=cluster)
    expected = model(x)
    assert run.outputs[0][0] == pytest.approx(float(loss(expected).detach()))
    output = bl.torch.distribute(copy.deepcopy(model), x, cluster, placement, graph=graph, atomic=atomic)(x)
    assert type(output) is type(expected) and same(list(tensors(output)), list(tensors(expected)))
    assert len(list(tensors(output))) == (4 if kind == "nested" else 2)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_a_record_are_changed_each_once_and_the_record_is_left(kind):
    record = KINDS[kind](torch.arange(6.0).view(2, 3))
    before = list(tensors(record))
    count = iter(range(10))
    changed = map_tensors(record, lambda t: t + next(count))
    assert next(count) == len(before)
    assert [t.tolist() for t in tensors(changed)] == [(t + k).tolist() for k, t in enumerate(before)]
    assert all(a is b for a, b in zip(tensors(record), before, strict=True)) and type(changed) is type(record)
    if isinstance(record, collections.OrderedDict):
        assert changed["logits"] is changed.logits and list(changed) == list(record)
    assert list(tensors(map_tensors(record, lambda t: None))) == []
    assert outline(record) is not None and outline(record) == outline(map_tensors(record, torch.clone))


def test_a_record_without_tensors_is_passed_through():
    @dataclass
    class Options:
        size: int = 3

    options = Options()
    assert map_tensors((options, [1]), torch.clone)[0] is options
