"""Content decides what a stored or remembered result belongs to: equal contents agree, here and in another process."""

import functools
import re
import subprocess
import sys
import threading
import types
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

import baechi_lab as bl
from baechi_lab.identity import Unidentified, content_digest
from baechi_lab.memo import Memo

FACTOR = 1.0
LOG = []
TABLE = {"a": np.zeros(5000)}


def same(a, b):
    return content_digest(a) == content_digest(b)


def scaled(b):
    return FACTOR * b


def looked_up(b):
    return TABLE["a"][b]


def indirect(b):
    return scaled(b) + 1


def logged(b):
    LOG.append(b)
    return b


def counted(b):
    return b + len(LOG)


def reads_a_file(b):
    with open(f"{b}.txt") as file:
        return file.read()


def locked(b, lock=threading.Lock()):  # noqa: B008
    return b


def edited(text, name="build"):
    """A function as a notebook makes it when its cell is run."""
    space = {"__name__": "__main__", "bl": bl, "np": np}
    exec(compile(text, "<cell>", "exec"), space)
    return space[name]


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, b):
        return self.factor * b

    def times(self, b):
        return self.factor * b


@dataclass(frozen=True)
class Options:
    start: object
    limit: float = 1.0


def test_arrays_count_by_all_their_elements():
    """NumPy's text of an array leaves out the middle of a large one."""
    a, b = np.zeros(5000), np.zeros(5000)
    b[2500] = 1
    assert repr(a) == repr(b)
    assert not same(a, b) and same(a, np.zeros(5000))
    assert not same(a, a.astype(np.float32)) and not same(a, a.reshape(50, 100))
    assert not same(np.array([[1], [2, 3]], dtype=object), np.array([[1], [2, 4]], dtype=object))


def test_placements_count_by_their_devices():
    a, b = bl.Placement(device=[0, 0, 1, 1]), bl.Placement(device=[0, 1, 0, 1])
    assert repr(a) == repr(b)
    assert not same(a, b) and same(a, bl.Placement(device=[0, 0, 1, 1]))
    assert not same(Options(a), Options(b)) and same(Options(a), Options(bl.Placement(device=[0, 0, 1, 1])))


def test_functions_count_by_their_code():
    one, ten = (edited(f"def build(b): return {k} * b") for k in (1, 10))
    assert one.__qualname__ == ten.__qualname__ and one.__module__ == ten.__module__
    assert not same(one, ten)
    assert same(one, edited("# moved down\n\ndef build(b): return 1 * b"))
    assert not same(lambda b: b + 1, lambda b: b + 2)
    assert same(*(edited("def build(model): return model.eval()") for _ in range(2)))
    assert not same(
        edited("def build(b): return [x + 1 for x in [b]]"), edited("def build(b): return [x + 2 for x in [b]]")
    )
    assert not same(edited("def build(b, k=1): return k"), edited("def build(b, k=2): return k"))
    assert not same(edited("def build(b, *, k=1): return k"), edited("def build(b, *, k=2): return k"))


def test_functions_count_by_what_they_close_over():
    def make(factor):
        return lambda b: factor * b

    assert not same(make(1), make(2)) and same(make(1), make(1))
    a, b = np.zeros(5000), np.zeros(5000)
    b[2500] = 1
    assert not same(make(a), make(b))


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [
        (scaled, "FACTOR", 2.0),
        (indirect, "FACTOR", 2.0),
        (looked_up, "TABLE", {"a": np.arange(5000.0)}),
        (counted, "LOG", [1]),
    ],
)
def test_functions_count_by_the_globals_that_they_read(monkeypatch, function, name, value):
    before = content_digest(function)
    monkeypatch.setitem(globals(), name, value)
    assert content_digest(function) != before
    monkeypatch.undo()
    assert content_digest(function) == before


def test_what_a_function_only_adds_to_is_no_input(monkeypatch):
    before = content_digest(logged)
    monkeypatch.setitem(globals(), "LOG", [1, 2])
    assert content_digest(logged) == before


def test_modules_of_the_caller_count_by_what_is_used_of_them():
    def module(factor):
        own_module = types.ModuleType("my_models")
        exec(f"FACTOR = {factor}\nUNUSED = {factor}\ndef build(b): return FACTOR * b", own_module.__dict__)
        return own_module

    functions = []
    for factor in (1, 2, 1):
        function = edited("def build(b): return my_models.build(b)")
        function.__globals__["my_models"] = module(factor)
        functions.append(function)
    assert not same(functions[0], functions[1]) and same(functions[0], functions[2])


def test_bug_a_function_counted_by_what_its_cache_remembered():
    """Another thread may fill the cache meanwhile, which ended in "mutated during iteration"."""
    memo = Memo()
    empty = content_digest(lambda size: memo.recall("double", lambda n: 2 * n, size))
    memo.recall("double", lambda n: 2 * n, 3)
    assert content_digest(lambda size: memo.recall("double", lambda n: 2 * n, size)) == empty


def test_callables_count_by_their_state():
    assert not same(functools.partial(scaled, 1), functools.partial(scaled, 2))
    assert same(functools.partial(scaled, b=1), functools.partial(scaled, b=1))
    assert not same(Scale(1), Scale(2)) and same(Scale(1), Scale(1))
    assert not same(Scale(1).times, Scale(2).times) and same(Scale(1).times, Scale(1).times)
    cached = functools.lru_cache(scaled), functools.lru_cache(indirect)
    assert not same(*cached)


def test_classes_of_the_caller_count_by_their_methods():
    texts = ("class M:\n def f(self): return 1", "class M:\n def f(self): return 2")
    one, two = (edited(text, "M") for text in texts)
    assert not same(one(), two()) and same(one(), edited(texts[0], "M")())


@pytest.mark.parametrize(
    "text",
    [
        "class M(type):\n def k(self): return {0}\nclass C(metaclass=M): pass\ndef build(b): return C.k()",  # its metaclass
        "class A:\n def __init__(self): self.k = {0}\n def __getstate__(self): return None\n"
        "a = A()\ndef build(b): return a.k",  # what pickle leaves out
        "class A:\n def __init__(self): self.k = {0}\n def add(self, b): return self.k * b\n"
        "a = A()\ndef build(b): return a.add(b)",  # an `add` that returns something
        "def outer(a):\n def build(b): return a.add(b)\n return build\n"
        "class A:\n k = {0}\n def add(self, b): return self.k * b\nbuild = outer(A())",
        "D = {{k: 1 for k in sorted((1, 2), key=lambda k: k * (3 - 2 * {0}))}}\ndef build(b): return [*D]",  # an order
    ],
)
def test_bug_functions_with_equal_code_that_compute_something_else(text):
    assert not same(edited(text.format(1)), edited(text.format(2))) and same(
        edited(text.format(1)), edited(text.format(1))
    )


def test_two_that_call_each_other_and_lists_within_themselves_end():
    pair = "def build(b): return b and other(b - {0})\ndef other(b): return build(b)"
    assert not same(edited(pair.format(1)), edited(pair.format(2))) and same(
        edited(pair.format(1)), edited(pair.format(1))
    )
    loop, second_loop = [1], [1]
    loop.append(loop)
    second_loop.append(second_loop)
    assert same(loop, second_loop)


@pytest.mark.torch
def test_tensors_and_modules_count_by_their_values():
    torch = pytest.importorskip("torch")
    a = torch.zeros(5000, dtype=torch.bfloat16)
    b = a.clone()
    b[2500] = 1
    assert not same(a, b) and same(a, a.clone())
    torch.manual_seed(0)
    net, second_net = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    assert not same(net, second_net)
    second_net.load_state_dict(net.state_dict())
    assert same(net, second_net)
    assert not same(torch.zeros(3, device="meta"), torch.zeros(4, device="meta"))


@pytest.mark.parametrize(
    "value",
    [
        object(),
        threading.Lock(),
        (x for x in ()),
        reads_a_file,
        locked,
        {"a": [threading.Lock()]},
        edited("def build(b): return bl.load_graph('g.json')"),
        edited("def build(b):\n from . import mine\n return mine"),
        edited("K = 1\ndef build(b): return eval('K')"),
        edited("K = 1\ndef build(b): return globals()['K']"),
        edited("def build(b):\n import module_of_mine\n return module_of_mine.x"),
    ],
)
def test_what_has_no_content_is_said(value):
    with pytest.raises(Unidentified):
        content_digest(value)


def test_objects_of_libraries_count_by_what_they_hold():
    assert (
        not same(np.sin, np.cos)
        and not same(re.compile("a"), re.compile("b"))
        and same(re.compile("a"), re.compile("a"))
    )
    frames = pd.DataFrame({"a": range(5000)}), pd.DataFrame({"a": [*range(2500), 0, *range(2501, 5000)]})
    assert repr(frames[0]) == repr(frames[1])
    assert not same(*frames) and same(frames[0], frames[0].copy())
    links = [[bl.Link(1.0, 0.1)] * 40 for _ in range(40)]
    equal_links = [list(row) for row in links]
    equal_links[20][21] = bl.Link(9.0, 0.1)
    assert not same(bl.Cluster.uniform(40).replace(link=links), bl.Cluster.uniform(40).replace(link=equal_links))


def test_random_generators_count_by_their_state():
    a, b = np.random.default_rng(0), np.random.default_rng(0)
    assert same(a, b)
    b.random()
    assert not same(a, b)


PROGRAM = """
import functools, numpy as np, baechi_lab as bl
from baechi_lab.identity import content_digest
K = {"x", "yy", "zzz", 4}
def build(b, k={"a": 1}): return [bl.generators.chain(4, seed=x) for x in K if b in {"x", "yy"}]
class Big(dict):
    def __init__(self): self["a"] = 1
print(content_digest((build, functools.partial(build, 3), Big(), np.arange(3), K, bl.Cluster.uniform(2))))
"""


@pytest.mark.slow
@pytest.mark.subprocess
def test_another_process_agrees():
    def digest(seed):
        process = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        )
        return process.stdout

    assert digest("1") == digest("2") != ""
