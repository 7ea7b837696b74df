"""Recomputation: what is dropped is computed again, as late as it can be; the program finds the least work to repeat."""

import itertools
import math
import warnings

import numpy as np
import pytest
from fewer import fast, slow

import baechi_lab as bl
from baechi_lab.graph.opgraph import OVERWRITES, VIEW
from baechi_lab.memory.peak import readiness_peak
from baechi_lab.memory_saving import budget as budget_module
from baechi_lab.memory_saving.budget import RecomputePlans
from baechi_lab.memory_saving.chain import Chain, Table
from baechi_lab.memory_saving.op_sequence import OpSequence
from baechi_lab.memory_saving.recompute import graph_with_copies
from baechi_lab.memory_saving.state_search import MemoryStates, StateSearch
from baechi_lab.memory_saving.training_graph import TrainingGraph
from baechi_lab.passes import contract
from baechi_lab.passes.roles import BACKWARD, roles

ONE = bl.Cluster.uniform(1)


def training_chain(sizes, us=None, read=None, source=1000, **columns):
    """x -> f1 -> ... -> fn -> loss -> bn -> ... -> b1; bi reads fi (where read[i-1]) and the gradient, which has no bytes.

    `sizes` are those of f1..fn; x has `source` bytes. Backward ops take twice as long as their forward op.
    """
    n = len(sizes)
    us = [1.0] * n if us is None else list(us)
    names = ["x", *(f"f{i}" for i in range(1, n + 1)), "loss", *(f"b{i}" for i in range(n, 0, -1))]
    at = {name: i for i, name in enumerate(names)}
    edges = [(0, 1, source)]
    for i in range(1, n + 1):
        follows = at[f"f{i + 1}"] if i < n else at["loss"]
        edges += [(at[f"f{i}"], follows, sizes[i - 1]), (at[f"b{i + 1}"] if i < n else at["loss"], at[f"b{i}"], 0)]
        if read is None or read[i - 1]:
            edges.append((at[f"f{i}"], at[f"b{i}"], sizes[i - 1]))
    forward_of = [at["f" + name[1:]] if name[0] == "b" else -1 for name in names]
    duration = [0.0, *us, 0.0, *(2 * u for u in us[::-1])]
    columns = {"forward_of": forward_of, "names": names, **columns}
    return bl.OpGraph.from_edges(duration, edges, **columns)


def on_one(graph):
    timeline = bl.simulate(graph, ONE, placement := bl.Placement(device=[0] * graph.n))
    assert bl.check(graph, ONE, placement, timeline) == ()
    return timeline


def peak_in_thousands(graph):
    """Simulated peak without control dependencies, where all other bytes are multiples of 1000."""
    return int(on_one(graph).peak_bytes[0]) // 1000 * 1000


def readers(graph, name):
    tensors = graph.outputs(graph.index[name])
    return {graph.names[i] for t in tensors if graph.tensor_bytes[t] != 4 for i in graph.tensor_consumers(t)}


# -- the copies --------------------------------------------------------------------------------------------


def test_a_chain_by_hand():
    graph = training_chain([1000] * 4, source=0)
    recomputed = bl.recompute(graph, keep=["f2", "f4"])
    assert recomputed.names == (*graph.names, "f1/again", "f3/again")
    assert readers(recomputed, "f3") == {"f4"} and readers(recomputed, "f3/again") == {"b3"}
    assert readers(recomputed, "f2") == {"f3", "b2", "f3/again"} and readers(recomputed, "x") == {"f1", "f1/again"}
    assert recomputed.forward_of[-2:].tolist() == [recomputed.index["f1"], recomputed.index["f3"]]
    # Forward 4, backward 8, two ops again.
    assert on_one(graph).makespan_us == 12 and on_one(recomputed).makespan_us == 14
    # All four outputs before; then f2, f4 and at most one more: f3 before f4 ends, or f3 again after f4 was freed.
    assert peak_in_thousands(graph) == 4000 and peak_in_thousands(recomputed) == 3000


def test_a_copy_waits_for_the_op_that_makes_it_due():
    recomputed = bl.recompute(training_chain([1000] * 4), keep=["f2", "f4"])
    timeline = on_one(recomputed)
    start = dict(zip((recomputed.names[i] for i in timeline.op), timeline.start_us, strict=True))
    # x, f1..f4 end at 4, b4 at 6, f3 again, b3 at 9, b2 at 11, f1 again at 12, b1
    assert (start["f3/again"], start["b3"], start["f1/again"], start["b1"]) == (6, 7, 11, 12)


def test_the_start_of_the_backward_pass_waits_for_the_forward_pass():
    recomputed = bl.recompute(training_chain([1000] * 2), drop=["f1", "f2"])
    timeline = on_one(recomputed)
    executed = [recomputed.names[i] for i in timeline.op[np.argsort(timeline.start_us, kind="stable")]]
    assert executed.index("loss") < executed.index("f1/again") < executed.index("f2/again") < executed.index("b2")


def test_keep_all_is_the_graph_itself():
    graph = training_chain([1000] * 3)
    assert bl.recompute(graph, "all") is graph
    assert bl.recompute(graph, drop=[]) is graph
    forward_only = bl.generators.chain(5)
    assert bl.recompute(forward_only) is forward_only
    assert bl.recompute(bl.OpGraph.from_edges([])).n == 0


@pytest.mark.parametrize("n", [4, 9, 16, 25, 36])
def test_square_root_of_equal_stages(n):
    root = int(n**0.5)
    graph = training_chain([1000] * n)
    recomputed = bl.recompute(graph, "sqrt")
    # root segments of root ops: one op of each but the last is kept, and the last whole.
    assert recomputed.n - graph.n == (root - 1) * (root - 1)
    assert on_one(recomputed).makespan_us == 3 * n + (root - 1) ** 2
    # x, the root - 1 kept ends, and the last segment.
    assert peak_in_thousands(recomputed) == 1000 * (1 + (root - 1) + root)


def test_boundaries_are_read_by_another_layer():
    graph = training_chain([1000] * 4)
    scoped = ["x", "one/f1", "one/f2", "two/f3", "two/f4", *graph.names[5:]]
    recomputed = bl.recompute(graph.replace(names=scoped), "boundaries")
    assert set(recomputed.names) - set(scoped) == {"one/f1/again", "two/f3/again"}
    grouped = graph.replace(colocation=[-1, 0, 0, 0, 1, *[-1] * 5], colocation_names=("a", "b"))
    assert {"f1/again", "f2/again"} == set(bl.recompute(grouped, "boundaries").names) - set(graph.names)


def test_copies_keep_their_group_and_no_bytes():
    persistent = [0, 500, 0, 0, 0, 0, 0, 0]
    graph = training_chain(
        [1000] * 3,
        persistent_bytes=persistent,
        colocation=[-1, -1, 0, -1, -1, 0, -1, -1],
        colocation_names=("g",),
        temp_bytes=[0, 7, 0, 0, 0, 0, 0, 0],
    )
    recomputed = bl.recompute(graph, drop=["f1", "f2"])
    first, second = recomputed.index["f1/again"], recomputed.index["f2/again"]
    assert recomputed.persistent_bytes.sum() == 500 and recomputed.temp_bytes[first] == 7
    assert recomputed.colocation[first] == recomputed.colocation[recomputed.index["f1"]] >= 0
    assert recomputed.colocation[second] == recomputed.colocation[recomputed.index["f2"]] == 0


def test_what_only_the_forward_pass_reads_is_not_computed_again():
    graph = training_chain([1000] * 3, read=[False, False, True])
    assert bl.recompute(graph, drop=["f1", "f2"]) is graph
    # f3 is read, so all that leads to it is needed.
    assert bl.recompute(graph, drop=["f1", "f2", "f3"]).n == graph.n + 3


def test_an_op_that_reads_a_variable_runs_again_before_its_update():
    names = ["w", "x", "f", "g", "g_grad", "f_grad", "update"]
    edges = [(0, 2, 8), (1, 2, 8), (2, 3, 8), (3, 4, 8), (2, 4, 8), (4, 5, 8), (1, 5, 8), (5, 6, 8), (0, 6, 8)]
    types = ["Variable", "Data", "MatMul", "Relu", "ReluGrad", "MatMulGrad", "ApplyGradientDescent"]
    graph = bl.OpGraph.from_edges([1] * 7, edges, names=names, op_types=types, forward_of=[-1] * 4 + [3, 2, -1])
    recomputed = bl.recompute(graph, drop=["f"])
    copy = recomputed.index["f/again"]
    assert recomputed.index["update"] in {
        int(i) for t in recomputed.outputs(copy) for i in recomputed.tensor_consumers(t)
    }


def test_unrolled_and_recomputed_either_way():
    graph = training_chain([1000] * 4)
    one = bl.unroll(bl.recompute(graph, drop=["f1", "f2"]), 3)
    two = bl.recompute(bl.unroll(graph, 3), drop=[f"f{i}/mb{k}" for i in (1, 2) for k in range(3)])
    assert one.n == two.n and one.duration_us.sum() == two.duration_us.sum()
    placement = bl.place(graph, ONE, "single")
    assert bl.check(two, ONE, placement, bl.simulate(two, ONE, placement)) == ()
    assert two.micro_batch[two.index["f1/mb2/again"]] == 2


@pytest.mark.parametrize("keep", ["boundaries", "sqrt", ()])
def test_recomputed_networks_run_every_late_op(keep):
    """Every late op still runs, every copy is a backward op, nothing that may not be repeated is."""
    rng = np.random.default_rng(0)
    for seed in range(6):
        forward = bl.generators.layered_dag(int(rng.integers(2, 40)), seed=seed)
        graph = bl.generators.with_backward(forward)
        training = TrainingGraph(graph)
        assert np.all(training.rank[graph.edge_source] < training.rank[graph.consumers])
        assert training.may_repeat.tolist() == [not training.obstacle(op) for op in range(graph.n)]
        recomputed = bl.recompute(graph, keep)
        copies = np.arange(graph.n, recomputed.n)
        assert np.all(roles(recomputed)[copies] == BACKWARD)
        assert np.all(training.may_repeat[recomputed.forward_of[copies]])
        repeated = graph.duration_us[recomputed.forward_of[copies]].sum()
        assert recomputed.duration_us.sum() == pytest.approx(graph.duration_us.sum() + repeated)
        on_one(recomputed)


# -- what may not be repeated ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op_type", "reason"),
    [
        ("RandomUniform", "is random"),
        ("Dropout", "is random"),
        ("FusedBatchNormV3", "statistics"),
        ("ResourceGather", "side effects"),
        ("StatefulPartitionedCall", "side effects"),
        ("QueueDequeueV2", "side effects"),
        ("Print", "side effects"),
    ],
)
def test_ops_that_are_never_repeated(op_type, reason):
    graph = training_chain([1000] * 3)
    graph = graph.replace(op_types=["x", "MatMul", op_type, *["MatMul"] * 5])
    assert "f2/again" not in bl.recompute(graph, keep=()).names
    training = TrainingGraph(graph)
    assert training.may_repeat.tolist() == [not training.obstacle(op) for op in range(graph.n)]
    with pytest.raises(bl.InvalidInput, match=f"'f2' in drop cannot be computed again.*{reason}"):
        bl.recompute(graph, drop=["f2"])


def test_bad_input_is_rejected():
    graph = training_chain([1000] * 3)
    for op, reason in (("x", "reads nothing"), ("b2", "no forward op")):
        with pytest.raises(bl.InvalidInput, match=reason):
            bl.recompute(graph, drop=[op])
    for key in ("keep", "drop"):
        with pytest.raises(bl.UnknownOpError, match=f"{key} names op 'nobody'"):
            bl.recompute(graph, **{key: ["f1", "nobody"]})
    with pytest.raises(bl.UnknownNameError, match="did you mean 'sqrt'"):
        bl.recompute(graph, "sqr")
    with pytest.raises(bl.InvalidInput, match="keep and budget"):
        bl.recompute(graph, "sqrt", budget=8)
    with pytest.raises(bl.InvalidInput, match="list of op names"):
        bl.recompute(graph, drop="f1")
    with pytest.raises(bl.InvalidInput, match="list of op names"):
        bl.recompute(graph, 7)
    for budget in (-1, 2.5, True):
        with pytest.raises(bl.InvalidInput, match="budget"):
            bl.recompute(graph, budget=budget)
    with pytest.raises(bl.InvalidInput, match="budget: '3 apples' is not an amount of memory; write for example 8GB"):
        bl.recompute(graph, budget="3 apples")
    with pytest.raises(bl.InvalidInput, match="coarse"):
        bl.recompute(contract(graph, [0, 0, *range(1, graph.n - 1)]))


# -- budgets -----------------------------------------------------------------------------------------------


def advances(steps, snapshots):
    """Griewank and Walther 2000: least forward steps to reverse `steps` steps with so many snapshots, the first state included.

    `r steps - beta(s + 1, r - 1)`, where beta(s, r) = (s + r)! / (s! r!) and beta(s, r - 1) < steps <= beta(s, r).
    """
    beta = lambda s, r: math.comb(s + r, s) if r >= 0 else 0  # noqa: E731
    r = 0
    while beta(snapshots, r) < steps:
        r += 1
    return r * steps - beta(snapshots + 1, r - 1)


def graded_chain(n, reads="output", source=0, size=1000):
    """A chain whose gradients are as large as its outputs; backward op i reads its forward op's output, or its input."""
    plain = training_chain([size] * n, source=source)
    at, edges = plain.index, []
    for i in range(n, 0, -1):
        edges.append((at[f"b{i + 1}"] if i < n else at["loss"], at[f"b{i}"], size))
        if reads in ("output", "both"):
            edges.append((at[f"f{i}"], at[f"b{i}"], size))
        if reads in ("input", "both") and i > 1:
            edges.append((at[f"f{i - 1}"], at[f"b{i}"], size))
    edges += [(at["x"], at["f1"], source)] + [(at[f"f{i}"], at[f"f{i + 1}"], size) for i in range(1, n)]
    edges.append((at[f"f{n}"], at["loss"], size))
    return bl.OpGraph.from_edges(plain.duration_us, edges, names=plain.names, forward_of=plain.forward_of)


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 7, 12, 40])
@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_the_binomial_optimum_on_equal_stages(n, slots):
    """While op bi runs there are its output fi, two gradients, and what else is held: slots - 1 outputs. x has no bytes.

    Reversing states 0 (x) .. n takes n + 1 steps; what bi reads is the state that its step begins with. The n ops of
    the forward pass are among the advances.
    """
    graph = graded_chain(n)
    recomputed = bl.recompute(graph, budget=1000 * (slots + 2))
    assert recomputed.n - graph.n == advances(n + 1, slots) - n
    assert on_one(recomputed).peak_bytes[0] <= 1000 * (slots + 2)


@pytest.mark.parametrize("reads", ["output", "input", "both"])
def test_chains_and_small_graphs_are_solved_alike(reads):
    """The dynamic program of chains finds what going through all states finds, for every budget."""
    for n in (4, 8):
        graph = graded_chain(n, reads, source=1000)
        plans = RecomputePlans(graph)
        assert plans.states.are_few
        for budget in range(4000, 1000 * (n + 5), 1000):
            exact = StateSearch(plans.states, budget)
            chain = plans.best_of_chain(plans.chains[0], budget)
            assert (chain is not None) == np.isfinite(exact.best)
            if chain is not None:
                assert chain.work_us == pytest.approx(exact.best, abs=1e-3)


def half_free(seed):
    """A random training graph of up to 26 ops, half of them without duration, half of them with scratch."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(3, 14))
    make = bl.generators.random_dag if seed % 2 else bl.generators.chain
    graph = bl.generators.with_backward(make(size, seed=seed))
    duration = np.where(rng.random(graph.n) < 0.5, 0.0, graph.duration_us)
    return graph.replace(
        duration_us=duration, temp_bytes=rng.integers(0, 10_000, graph.n) * (rng.random(graph.n) < 0.5)
    )


@pytest.mark.parametrize("seed", [414, 451, 0, 1])
def test_a_plan_in_which_work_is_free_comes_to_its_end(seed, monkeypatch):
    """Running a group again for 0 us costs no more than not running it. Reading the plan must choose the latter, or never end."""
    table = Table(Chain(TrainingGraph(half_free(seed))))
    calls, costs = [], Table.costs_with_nothing_held

    def counted_costs(self, *arguments):
        calls.append(arguments)
        assert len(calls) < 10_000
        return costs(self, *arguments)

    monkeypatch.setattr(Table, "costs_with_nothing_held", counted_costs)
    for level in table.levels():
        assert set(table.chain.backward_ops) <= set(table.plan(level).tolist())
        calls.clear()


@pytest.mark.parametrize("max_groups", [3, 100])
def test_a_chain_without_anything_to_repeat(max_groups):
    """Nothing is read by the backward pass: no groups, and no plans."""
    table = Table(Chain(TrainingGraph(half_free(51)), max_groups))
    assert table.chain.count == 0 and table.levels() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_choice_of_single_copies_is_better(seed):
    """All subsets of dropped ops, simulated in graphs of about 12 ops: none within the budget repeats less work."""
    rng = np.random.default_rng(seed)
    forward = bl.generators.random_dag(6, seed=seed) if seed % 2 else bl.generators.chain(6, seed=seed)
    graph = bl.generators.with_backward(forward)
    graph = graph.replace(temp_bytes=rng.integers(0, 10_000, graph.n))
    training = TrainingGraph(graph)
    repeatable = [name for name, may in zip(graph.names, training.may_repeat, strict=True) if may]
    every = []
    for k in range(len(repeatable) + 1):
        for drop in itertools.combinations(repeatable, k):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                timeline = on_one(bl.recompute(graph, drop=drop))
            every.append((int(timeline.peak_bytes[0]), timeline.makespan_us))
    before = np.inf
    for budget in sorted({peak for peak, _ in every}):
        timeline = on_one(bl.recompute(graph, budget=budget))
        best = min(makespan for peak, makespan in every if peak <= budget)
        assert timeline.peak_bytes[0] <= budget and timeline.makespan_us <= min(best, before) + 1e-6
        before = timeline.makespan_us


@pytest.mark.parametrize("seed", fast(range(3), 1))
def test_the_search_finds_the_best_of_all_sequences(seed):
    """Every sequence of runs, ops repeated up to three times each, by depth-first enumeration."""
    rng = np.random.default_rng(seed)
    n = 3
    graph = training_chain((1000 * rng.integers(1, 6, n)).tolist(), rng.integers(1, 9, n).astype(float), source=2000)
    training = TrainingGraph(graph)
    backward_ops = [op for op in training.ordered.tolist() if training.is_backward[op]]
    repeatable = np.flatnonzero(training.may_repeat).tolist()
    forward = [op for op in training.ordered.tolist() if not training.is_backward[op]]
    choices = [c for k in range(len(repeatable) + 1) for c in itertools.combinations(repeatable, k)]
    candidates = []
    for choice in itertools.product(choices, repeat=len(backward_ops)):
        ops = forward + [op for before, step in zip(choice, backward_ops, strict=True) for op in (*before, step)]
        plan = OpSequence(training, np.array(ops))
        candidates.append((plan.peak, plan.work_us))
    states = MemoryStates(training)
    assert StateSearch(states).best == min(peak for peak, _ in candidates)
    for budget in sorted({peak for peak, _ in candidates}):
        best = min(work for peak, work in candidates if peak <= budget)
        plan = OpSequence(training, StateSearch(states, budget).sequence())
        assert plan.peak <= budget and plan.work_us == pytest.approx(best)


@pytest.mark.parametrize("kind", slow(["small", "layered", "few plans read"], "few plans read"))
def test_budgets_down_to_the_least(kind, monkeypatch):
    """A smaller budget is never faster, every budget is kept when simulated, and below the least there is nothing."""
    if kind == "few plans read":  # as in large graphs
        monkeypatch.setattr(budget_module, "READ_ALL", 10)
        monkeypatch.setattr(budget_module, "MOST_LEVELS", 4)
        budget_module.plans_for.cache_clear()
    many = {"layered": 24, "few plans read": 40}
    forward = bl.generators.layered_dag(many[kind], seed=3) if kind in many else bl.generators.random_dag(5, seed=3)
    graph = bl.generators.with_backward(forward)
    assert (
        RecomputePlans(graph).states.are_few or max(len(table.levels()) for table in RecomputePlans(graph).chains) > 10
    )
    with pytest.raises(bl.InfeasiblePlacement, match="budget is 1;") as error:
        bl.recompute(graph, budget=1)
    least, plain_peak = error.value.needed_bytes, readiness_peak(graph)
    assert least <= plain_peak and bl.recompute(graph, budget=plain_peak) is graph
    before = np.inf
    for budget in np.unique(np.linspace(least, plain_peak, 7).astype(int)).tolist():
        timeline = on_one(bl.recompute(graph, budget=budget))
        assert timeline.peak_bytes[0] <= budget and timeline.makespan_us <= before + 1e-9
        before = timeline.makespan_us
    with pytest.raises(bl.InfeasiblePlacement):
        bl.recompute(graph, budget=least - 1)
    if kind == "small":  # the least is proven: no plan needs less
        assert RecomputePlans(graph).lower_bound == least and f"one device needs at least {least} bytes" in str(
            error.value
        )
    budget_module.plans_for.cache_clear()


def test_many_ops_are_grouped(monkeypatch):
    monkeypatch.setattr(budget_module, "GROUPS", (30, 10))
    graph = graded_chain(120)
    recomputed = bl.recompute(graph, budget="30kB")
    assert recomputed == bl.recompute(graph, budget=30_000)
    assert on_one(recomputed).peak_bytes[0] <= 30_000 and recomputed.n < graph.n + 2 * 120


def test_the_order_of_a_plan_can_be_kept():
    """Two branches: in the order of readiness both outputs are there at once, one after the other they are not."""
    names = ["x", "a", "c", "a_sum", "c_sum", "end"]
    edges = [(0, 1, 8), (0, 2, 8), (1, 3, 1000), (2, 4, 1000), (3, 5, 8), (4, 5, 8)]
    graph = bl.OpGraph.from_edges([1] * 6, edges, names=names)
    plan = OpSequence(TrainingGraph(graph), np.array([0, 1, 3, 2, 4, 5]))
    assert (
        on_one(graph).peak_bytes[0]
        > 2000
        > 1016
        == plan.peak
        == on_one(graph_with_copies(plan, plan.node)).peak_bytes[0]
    )


def test_the_peak_in_the_order_of_readiness():
    for seed in range(6):
        graph = bl.generators.with_backward(bl.generators.random_dag(20, seed=seed, temp_bytes=100))
        graph = graph.replace(duration_us=np.where(np.arange(graph.n) % 3 == 0, 0, graph.duration_us))
        assert readiness_peak(graph) == on_one(graph).peak_bytes[0]


def test_bug_collectives_beside_other_ops_exceeded_the_budget():
    """What runs on both lanes at once is in memory at once; the order of the plan is kept where only that fits."""
    for seed in (8, 12, 16, 20, 25):
        rng = np.random.default_rng(seed)
        forward = bl.generators.random_dag(
            int(rng.integers(4, 9)), degree=1.3, duration_us=(1, 20), size_bytes=(10, 300), seed=seed
        )
        graph = bl.generators.with_backward(forward)
        graph = graph.replace(op_types=["all_reduce" if rng.random() < 0.3 else "op" for _ in range(graph.n)])
        peak = bl.simulate(graph, ONE, bl.Placement(device=[0] * graph.n)).peak_bytes[0]
        budget = int(0.9 * peak)
        within = bl.recompute(graph, budget=budget)
        assert bl.simulate(within, ONE, bl.Placement(device=[0] * within.n)).peak_bytes[0] <= budget


def test_a_choice_that_saves_nothing_is_no_silent_one():
    """All outputs are read at the start of the backward pass, so copies are there at once like the originals."""
    names = ["x", "f1", "f2", "loss", "b1", "b2"]
    edges = [(0, 1, 8), (1, 2, 1000), (2, 3, 1000), (3, 4, 8), (1, 4, 1000), (2, 4, 1000), (4, 5, 8)]
    graph = bl.OpGraph.from_edges([1] * 6, edges, names=names, forward_of=[-1, -1, -1, -1, 1, 2])
    with pytest.warns(UserWarning, match="saves nothing here"):
        bl.recompute(graph, "boundaries")
    with pytest.warns(UserWarning, match="saves nothing here"):
        assert bl.recompute(graph, drop=["f1", "f2"]).n == graph.n + 2
    chain = bl.generators.chain(3)  # without a backward pass
    for keep in ("boundaries", "sqrt"):
        with pytest.warns(UserWarning, match=f"'{keep}' drops no output of graph 'chain-3'"):
            assert bl.recompute(chain, keep) is chain
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bl.recompute(chain, "all") is bl.recompute(chain, drop=[]) is bl.recompute(chain, budget="1GB") is chain


def test_updates_do_not_wait_for_the_end_of_the_step():
    """w1, w2, f1, f2, g2, g1, u1, u2 as the graph lists them; u2 needs g2 alone, and frees it before g1 is made."""
    graph = bl.OpGraph.from_edges(
        [0, 0, 1, 1, 1, 1, 1, 1],
        [(0, 2, 8), (2, 3, 8), (1, 3, 8), (3, 4, 8), (4, 5, 8), (5, 6, 8), (4, 7, 8), (0, 6, 8), (1, 7, 8)],
        names=["w1", "w2", "f1", "f2", "g2", "g1", "u1", "u2"],
        op_types=["Variable", "Variable", "MatMul", "MatMul", "MatMulGrad", "MatMulGrad", "Update", "Update"],
        forward_of=[-1, -1, -1, -1, 3, 2, -1, -1],
    )
    assert [graph.names[i] for i in TrainingGraph(graph).ordered] == ["w1", "w2", "f1", "f2", "g2", "u2", "g1", "u1"]


def test_a_step_that_fits_because_outputs_share_memory_needs_no_copies():
    """f2 and f3 each write over the one before: 1000 bytes, 2000 counted without. Nothing runs again."""
    plain = training_chain([1000, 1000, 1000], read=[False, False, True], source=0)
    graph = plain.replace(reuse=[OVERWRITES if name in ("f2", "f3") else 0 for name in plain.names])
    assert (peak_in_thousands(graph), peak_in_thousands(plain)) == (1000, 2000)
    assert bl.recompute(graph, budget=int(on_one(graph).peak_bytes[0])) is graph
    with pytest.raises(bl.InfeasiblePlacement, match="one device needs at least 1000 bytes"):
        bl.recompute(graph, budget=0)


@pytest.mark.parametrize("seed", [0, 1])
def test_no_plan_that_fits_as_simulated_repeats_less(seed, monkeypatch):
    """Two of three ops write over what they read or view it, so plans hold less than their outputs have bytes."""
    monkeypatch.setattr(budget_module, "GROUPS", (20,))
    plain = bl.generators.with_backward(bl.generators.layered_dag(30, size_bytes=(1000, 1000), seed=seed))
    graph = plain.replace(reuse=np.random.default_rng(seed).choice([0, OVERWRITES, VIEW], plain.n))
    plans, before = RecomputePlans(graph), np.inf
    table = plans.chains[0]
    known_plans = [OpSequence(plans.training, table.plan(level)) for level in table.levels()]
    peaks = [int(on_one(graph_with_copies(plan, plan.node)).peak_bytes[0]) for plan in known_plans]
    assert not plans.states.are_few and any(peak < plan.peak for peak, plan in zip(peaks, known_plans, strict=True))
    for budget in sorted(set(peaks)):
        best = plans.best(budget)
        assert on_one(best).peak_bytes[0] <= budget
        work = float(best.duration_us.sum() - graph.duration_us.sum())
        least = min(plan.work_us for peak, plan in zip(peaks, known_plans, strict=True) if peak <= budget)
        assert work <= least + 1e-9 and work <= before + 1e-9
        before = work


def test_a_view_keeps_what_it_lies_in():
    """f1's 1000 bytes are not gone when f2 has read 10 of them: the view holds all 1000 beside f3's."""
    graph = training_chain([1000, 10, 1000], source=0)
    graph = graph.replace(reuse=[VIEW if name == "f2" else 0 for name in graph.names])
    with pytest.raises(bl.InfeasiblePlacement) as refused:
        bl.recompute(graph, budget=1500)
    assert refused.value.needed_bytes == 2000 == on_one(bl.recompute(graph, budget=2000)).peak_bytes[0]


def test_all_copies_of_an_op_with_bytes_are_in_its_group():
    """Within the least memory f1 runs three times; its 100 persistent bytes are there once."""
    graph = training_chain([1000] * 5, source=0, persistent_bytes=[0, 100] + [0] * 10)
    with pytest.raises(bl.InfeasiblePlacement) as refused:
        bl.recompute(graph, budget=0)
    recomputed = bl.recompute(graph, budget=refused.value.needed_bytes)
    copies = [i for i, name in enumerate(recomputed.names) if name.startswith("f1")]
    assert (
        len(copies) >= 3
        and set(recomputed.colocation[copies].tolist()) == {0}
        and recomputed.colocation_names == ("f1",)
    )
    assert recomputed.persistent_bytes.sum() == 100


@pytest.mark.parametrize("seed", [0, 4])
def test_the_least_that_is_told_is_a_budget_that_there_is_a_plan_for(seed):
    """Where outputs share memory the exact plan of least bytes holds less than it was asked to."""
    plain = bl.generators.with_backward(bl.generators.random_dag(6, seed=seed))
    graph = plain.replace(reuse=np.random.default_rng(seed).choice([0, OVERWRITES, VIEW], plain.n))
    with pytest.raises(bl.InfeasiblePlacement) as refused:
        bl.recompute(graph, budget=0)
    least = refused.value.needed_bytes
    assert on_one(bl.recompute(graph, budget=least)).peak_bytes[0] <= least
