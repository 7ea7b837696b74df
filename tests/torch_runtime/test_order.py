"""The submission order, who waits for it, and that nothing ever waits for ever (Shetty 2022, section 1.3.2)."""

from __future__ import annotations

import copy
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch_cases import same, train  # noqa: E402

import baechi_lab as bl  # noqa: E402
from baechi_lab.torch_runtime.gate import Gate  # noqa: E402
from baechi_lab.torch_runtime.order import Settled, make_order, submission_order  # noqa: E402
from baechi_lab.torch_steps.assigner import assign, distribution  # noqa: E402
from baechi_lab.torch_steps.tracing import trace  # noqa: E402


def run_gate(order, *, seconds: float = 20.0):
    """Reach every op in index order; returns the order of submission and the ops that got a thread."""
    gate, submitted, threads = Gate(order), [], []
    lock = threading.Lock()

    def go(op):
        gate.wait(op)
        with lock:
            submitted.append(op)
        gate.submit(op)

    def host():
        for op in range(order.n):
            if gate.reach(op):
                go(op)
            else:
                threads.append((op, threading.Thread(target=go, args=(op,), daemon=True)))
                threads[-1][1].start()
        for _, thread in threads:
            thread.join(seconds)

    main = threading.Thread(target=host, daemon=True)
    main.start()
    main.join(seconds)
    return submitted, {op for op, _ in threads}


def names(text, ops):
    return "".join(text[i] for i in ops)


# -- the paper's figures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("criterion", ["gpu", "global"])
def test_figure_2_submits_in_the_planned_order(criterion):
    """One device, code A B C D E F, plan A B E C D F: C waits for E, D for C; F may be called by the host."""
    code, plan = "ABCDEF", "ABECDF"
    rank = [plan.index(x) for x in code]
    parents = [(), (0,), (1,), (2,), (1,), (3, 4)]  # A-B, B-C-D, B-E, F joins D and E
    order = make_order(parents, rank, [0] * 6, criterion)
    assert names(code, sorted(order.waiting)) == "CD"
    submitted, threads = run_gate(order)
    assert names(code, submitted) == plan
    assert names(code, sorted(threads)) == "CD"


FIGURE_3 = {
    "code": "ABCDEFG",
    "plan": "AGBDCEF",  # G has a small planned position and comes last in the code
    "device": [0, 0, 0, 1, 0, 0, 1],  # D and G are on gpu1
    "parents": [(), (0,), (1,), (1,), (2, 3), (4,), (0,)],  # E needs D, which waits for G on gpu1
}


@pytest.mark.parametrize(("criterion", "waiting"), [("gpu", "DEF"), ("global", "BCDEF"), ("none", "")])
def test_figure_3_starts_three_threads_under_the_gpu_criterion(criterion, waiting):
    """gpu0 runs A B C E F, gpu1 runs G D. One global order makes B to F wait for G; per device only D, E, F do."""
    code, rank = FIGURE_3["code"], [FIGURE_3["plan"].index(x) for x in FIGURE_3["code"]]
    order = make_order(FIGURE_3["parents"], rank if criterion != "none" else None, FIGURE_3["device"], criterion)
    assert names(code, sorted(order.waiting)) == waiting
    submitted, threads = run_gate(order)
    assert names(code, sorted(threads)) == waiting
    assert sorted(submitted) == list(range(7))
    if criterion == "gpu":
        assert names(code, [op for op in submitted if FIGURE_3["device"][op] == 0]) == "ABCEF"
        assert names(code, [op for op in submitted if FIGURE_3["device"][op] == 1]) == "GD"


class Figure3(nn.Module):
    """The same graph as layers of a model."""

    def __init__(self) -> None:
        super().__init__()
        for name in "ABCDEFG":
            self.add_module(name, nn.Linear(3, 3) if name != "E" else nn.Bilinear(3, 3, 3))

    def forward(self, x):
        a = self.A(x)
        b = self.B(a)
        c, d = self.C(b), self.D(b)
        f = self.F(self.E(c, d))
        return f, self.G(a)


@pytest.mark.parametrize(("criterion", "threads"), [("gpu", 3), ("global", 5), ("none", 0)])
def test_figure_3_as_a_model(criterion, threads):
    torch.manual_seed(0)
    model, inputs = Figure3(), (torch.randn(2, 3),)
    traced = trace(model, inputs)
    assert [c.key for c in traced.calls] == list(FIGURE_3["code"])
    assert [traced.parents(i) for i in range(7)] == FIGURE_3["parents"]
    distributed_model = copy.deepcopy(model)
    rank = [FIGURE_3["plan"].index(x) for x in FIGURE_3["code"]]
    placement = bl.Placement(device=FIGURE_3["device"], order=rank)
    assign(distributed_model, traced, placement, bl.Cluster.uniform(2, kind="cpu"), reorder=criterion)
    session = distribution(distributed_model).session
    for step in range(3):
        assert same(train(distributed_model, inputs), train(model, inputs))
        assert session.threads_started == (threads if step else 0)  # the first step learns the shapes
    if criterion == "gpu":
        order = names(FIGURE_3["code"], session.submitted)
        assert [x for x in order if x in "DG"] == ["G", "D"]
        assert [x for x in order if x not in "DG"] == list("ABCEF")


class Counting(nn.Linear):
    """A layer that notes the number of threads that its kernels may use."""

    def forward(self, x):
        cores.append(torch.get_num_threads())
        return super().forward(x)


cores: list[int] = []


def test_bug_calls_that_wait_used_other_numbers_of_threads():
    """After `torch.set_num_threads`, kernels in waiting threads split sums over more cores: gradients had other rounding."""
    model = Figure3()
    for name in "ABCDFG":
        setattr(model, name, Counting(3, 3))
    inputs, before = (torch.randn(2, 3),), torch.get_num_threads()
    rank = [FIGURE_3["plan"].index(x) for x in FIGURE_3["code"]]
    traced = trace(model, inputs)
    assign(model, traced, bl.Placement(device=FIGURE_3["device"], order=rank), bl.Cluster.uniform(2, kind="cpu"))
    try:
        for count in (before, before, before + 1, before):
            torch.set_num_threads(count)
            cores.clear()
            train(model, inputs)
            assert set(cores) == {count}
        assert distribution(model).session.threads_started > 0
    finally:
        torch.set_num_threads(before)


# -- the rules ---------------------------------------------------------------------------------------------


def test_an_order_that_breaks_dependencies_is_followed_as_far_as_they_allow():
    assert submission_order([(), (0,), (1,)], [3, 2, 1]) == [0, 1, 2]
    assert submission_order([(), (), (0, 1)], [2, 1, 0]) == [1, 0, 2]
    assert submission_order([], None) == []


def literal_is_not_waiting(op, reached, before, parents):
    """`isNotWaiting` as the paper writes it, by recursion over the lineage."""
    precedents, p = [op], before[op]
    while p >= 0:
        precedents.append(p)
        p = before[p]
    if not all(reached[q] for q in precedents):
        return False
    if before[op] >= 0 and not literal_is_not_waiting(before[op], reached, before, parents):
        return False
    return all(literal_is_not_waiting(p, reached, before, parents) for p in parents[op])


def test_the_cached_check_is_the_papers_recursion():
    rng = np.random.default_rng(0)
    from baechi_lab.torch_runtime.order import topo_parents

    for _ in range(60):
        parents, rank, device = random_case(rng, int(rng.integers(1, 9)))
        order = make_order(parents, rank, device)
        before = topo_parents(submission_order(parents, rank), device, "gpu")
        settled, reached = Settled(order.blockers, order.dependents), [False] * order.n
        for op in range(order.n):
            reached[op] = True
            assert settled.reach(op) == literal_is_not_waiting(op, reached, before, parents)
            assert [settled[q] for q in range(op + 1)] == [
                literal_is_not_waiting(q, reached, before, parents) for q in range(op + 1)
            ]


def random_case(rng, n):
    """A DAG whose index order is topological (the code's), a random rank, random devices."""
    parents = [tuple(sorted({int(p) for p in rng.integers(0, i, rng.integers(0, 3))})) if i else () for i in range(n)]
    return parents, rng.permutation(n).tolist(), rng.integers(0, rng.integers(1, 5), n).tolist()


@pytest.mark.slow
def test_random_graphs_with_random_orders_never_deadlock():
    """Every op is submitted within bounded time, each device in the planned order, parents first."""
    rng = np.random.default_rng(7)
    for case in range(400):
        parents, rank, device = random_case(rng, int(rng.integers(1, 25)))
        criterion = ("gpu", "gpu", "global")[case % 3]
        order = make_order(parents, rank, device, criterion)
        submitted, threads = run_gate(order)
        assert len(submitted) == order.n, f"case {case} ({criterion}) did not finish"
        assert threads == order.waiting
        place = {op: k for k, op in enumerate(submitted)}
        assert all(place[b] < place[op] for op in range(order.n) for b in order.blockers[op])
        planned = submission_order(parents, rank)
        for d in set(device):
            assert [op for op in submitted if device[op] == d] == [op for op in planned if device[op] == d]


def test_code_order_needs_no_thread():
    rng = np.random.default_rng(1)
    for _ in range(50):
        parents, _, device = random_case(rng, 20)
        assert make_order(parents, None, device).waiting == frozenset()


def test_release_lets_waiting_ops_go_when_a_call_never_comes():
    """Op 0 waits for op 1 on its device; the code ends without reaching op 1."""
    gate = Gate(make_order([(), ()], [1, 0], [0, 0]))
    assert not gate.reach(0)
    finished = threading.Event()
    thread = threading.Thread(target=lambda: (gate.wait(0), gate.submit(0), finished.set()), daemon=True)
    thread.start()
    assert not finished.wait(0.05)
    gate.release()
    assert finished.wait(10)


def test_release_keeps_dependencies_on_what_was_reached():
    """2 depends on 1 and both wait for 3; after the release 2 still comes after 1."""
    gate = Gate(make_order([(), (0,), (1,), (0,)], [0, 2, 3, 1], [0, 0, 0, 0]))
    assert [gate.reach(op) for op in (0, 1, 2)] == [True, False, False]
    gate.wait(0)
    gate.submit(0)
    order, threads = [], []
    for op in (2, 1):
        threads.append(
            threading.Thread(target=lambda op=op: (gate.wait(op), order.append(op), gate.submit(op)), daemon=True)
        )
        threads[-1].start()
    gate.release()
    for thread in threads:
        thread.join(10)
    assert order == [1, 2]


def test_bug_what_comes_after_a_call_that_the_code_left_out_still_comes_after_those_before_it():
    """0 -> 1 -> 2, and 0 waits for 3, which the order has first: the code reaches 0 and 2 only."""
    gate = Gate(make_order([(), (0,), (1,), ()], [1, 2, 3, 0], [0, 0, 0, 0]))
    assert not gate.reach(0)
    assert not gate.reach(2)
    gate.release()
    assert gate.unsubmitted_blockers(2) == {0}
    gate.submit(0)
    assert gate.unsubmitted_blockers(2) == set()


def test_bug_what_waited_for_an_op_before_one_that_the_code_left_out_was_never_let_go():
    gate = Gate(make_order([(), (0,), (1,)], None, [0, 0, 0]))
    gate.reach(0), gate.reach(2)
    gate.release()
    thread = threading.Thread(target=gate.wait, args=(2,), daemon=True)
    thread.start()
    while not gate.waiters:
        time.sleep(0.001)
    gate.submit(0)
    assert not gate.waiters
    thread.join(timeout=60)
    assert not thread.is_alive()
