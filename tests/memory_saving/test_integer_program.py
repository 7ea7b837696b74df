"""The integer program of recomputation: against enumeration on small graphs, by hand, and as one candidate among others."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.opgraph import VIEW
from baechi_lab.memory.peak import order_peak, readiness_peak
from baechi_lab.memory_saving.budget import RecomputePlans
from baechi_lab.memory_saving.integer_program import Answer, Program, Rows
from baechi_lab.memory_saving.op_sequence import OpSequence
from baechi_lab.memory_saving.recompute import graph_with_copies
from baechi_lab.memory_saving.recompute_groups import RecomputeGroups, without_unread_copies
from baechi_lab.memory_saving.state_search import MemoryStates, StateSearch
from baechi_lab.memory_saving.training_graph import TrainingGraph
from studies.budgets import skipping


@pytest.mark.parametrize("seed", range(4))
def test_once_is_never_better_than_all_plans_and_both_keep_within_budgets(seed):
    """Work of the form `once` is that of all plans or more, and a loose budget repeats nothing."""
    training = TrainingGraph(skipping(8, 3, seed))
    states, groups = MemoryStates(training), RecomputeGroups(training)
    assert states.are_few and groups.is_exact
    least, plain_peak = int(StateSearch(states).best), OpSequence(training, training.ordered).peak
    for share in (0.3, 0.6):
        budget = int(least + share * (plain_peak - least))
        optimum = StateSearch(states, budget).best
        once = Program(groups, once=True).solve(budget)
        free = Program(groups).solve(budget, start=once if once.values else None)
        assert (free.status, free.plan.peak <= budget) == ("Optimal", True)
        assert free.plan.work_us == pytest.approx(optimum, abs=1e-4)
        if once.plan is not None:
            assert once.plan.peak <= budget and once.plan.work_us >= optimum - 1e-6
    assert Program(groups, once=True).solve(2 * plain_peak).plan.work_us == 0.0
    assert groups.peak_without_recompute == plain_peak


@pytest.mark.parametrize(
    ("n", "span", "seed"),
    [
        (8, 3, 1),
        (10, 3, 1),
        (8, 4, 9),
        *[pytest.param(*case, marks=pytest.mark.slow) for case in [(11, 4, 2), (12, 5, 3), (11, 2, 2)]],
    ],
)
def test_bytes_of_single_ops_are_counted_exactly(n, span, seed):
    """The optimum of the program is that of all sequences in one order, down to the least budget: a batch is held while ops that
    read it run again, several late ops that read one op's stage hold no more than each of them, and an op that is held
    until another one has run again may be dropped then and run again itself."""
    training = TrainingGraph(skipping(n, span, seed))
    states, program = MemoryStates(training), Program(RecomputeGroups(training))
    least, plain_peak = int(StateSearch(states).best), OpSequence(training, training.ordered).peak
    for share in (0.0, 0.3, 0.5):
        budget = int(least + share * (plain_peak - least))
        solved = program.solve(budget)
        assert solved.status == "Optimal" and solved.plan.peak <= budget
        assert solved.plan.work_us == pytest.approx(StateSearch(states, budget).best, abs=1e-4)
        assert solved.bound_us == pytest.approx(solved.plan.work_us, rel=1e-3, abs=1e-4)


def test_temporaries_count_while_a_group_runs_again():
    """An op of 8 MiB of scratch runs again only where these are free: the optimum over all states says so, too."""
    graph = skipping(9, 3, 5)
    training = TrainingGraph(graph.replace(temp_bytes=np.where(np.arange(graph.n) % 4 == 2, 8 << 20, 0)))
    states, program = MemoryStates(training), Program(RecomputeGroups(training))
    least, plain_peak = int(StateSearch(states).best), OpSequence(training, training.ordered).peak
    for share in (0.1, 0.4, 0.7):
        budget = int(least + share * (plain_peak - least))
        assert program.solve(budget).plan.work_us == pytest.approx(StateSearch(states, budget).best, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "share"), [(30, 0.5), (45, 0.75)])
def test_optima_of_many_groups_are_proven(n, share):
    """The form `once` repeats less than the dynamic programs on ops that skip, and no plan of it repeats less."""
    plans = RecomputePlans(skipping(n, 4))
    budget = int(plans.least_bytes + share * (plans.peak(plans.simple_plans[0]) - plans.least_bytes))
    of_chains = [plans.best_of_chain(table, budget) for table in plans.chains]
    chains = min((plan for plan in of_chains if plan is not None), key=lambda plan: plan.work_us)
    solved = Program(plans.groups, once=True).solve(budget)
    assert (solved.status, solved.plan.peak <= budget) == ("Optimal", True)
    assert solved.plan.work_us < 0.95 * chains.work_us
    assert solved.bound_us == pytest.approx(solved.plan.work_us, rel=1e-4)


@pytest.mark.slow
def test_a_limit_of_nodes_gives_a_plan_that_is_not_proven():
    """The proof takes more than 20 nodes here. The plan keeps within the budget, and the bound is below the optimum."""
    plans = RecomputePlans(skipping(30, 4, 1))
    budget = int(plans.least_bytes + 0.25 * (plans.peak(plans.simple_plans[0]) - plans.least_bytes))
    program = Program(plans.groups, once=True)
    few, optimum = program.solve(budget, node_limit=20), program.solve(budget)
    assert (optimum.status, few.plan.peak <= budget) == ("Optimal", True) and few.status != "Optimal"
    assert few.bound_us < optimum.plan.work_us <= few.plan.work_us


@pytest.mark.slow
def test_bug_a_small_graph_was_solved_without_any_limit(monkeypatch):
    """`bl.recompute` took four minutes for a WaveNet whose step has 40 ops that may be repeated."""
    limits, solve = [], Rows.solve

    def solve_with_record(rows, time_limit, **options):
        limits.append((time_limit, options.get("node_limit")))
        return solve(rows, time_limit, **options)

    monkeypatch.setattr(Rows, "solve", solve_with_record)
    graph = skipping(30, 4, 1)
    plans = RecomputePlans(graph)
    bl.recompute(graph, budget=int(plans.least_bytes + 0.25 * (readiness_peak(graph) - plans.least_bytes)))
    assert limits and all(seconds or nodes for seconds, nodes in limits)


@pytest.mark.slow
def test_what_once_finds_is_a_plan_of_all_plans():
    """Without a node the solver has the plan that it begins with."""
    groups = RecomputeGroups(TrainingGraph(skipping(14, 4)))
    budget = int(0.75 * groups.peak_without_recompute)
    first = Program(groups, once=True).solve(budget)
    program = Program(groups)
    rows = program.build_rows(budget)
    values = program.columns_of(first)
    cost = sum(rows.cost[column] * value for column, value in values.items())
    assert cost == pytest.approx(first.plan.work_us) and cost > 0.0
    assert set(values) == set(rows.integers)
    assert rows.solve(120.0, start=values).bound <= cost + 1e-4


@pytest.mark.parametrize("reuse", [False, True])
def test_many_ops_are_merged(reuse):
    """Views belong to what they lie in; an op that one group alone reads runs with it; the smallest are kept throughout."""
    graph = skipping(40, 4, 3)
    if reuse:
        graph = graph.replace(
            reuse=np.where((np.arange(graph.n) % 5 == 3) & (np.arange(graph.n) < 40), VIEW, 0).astype(np.int8)
        )
    groups = RecomputeGroups(TrainingGraph(graph), 12)
    assert groups.count <= 12 and not groups.is_exact
    solved = Program(groups, once=True).solve(int(0.8 * groups.peak_without_recompute), 20.0)
    assert solved.plan is not None and solved.plan.work_us > 0.0
    assert order_peak(graph_with_copies(solved.plan), solved.plan.node) <= 0.8 * groups.peak_without_recompute


@pytest.mark.slow
def test_a_value_that_is_read_far_down_need_not_be_held_throughout():
    """Dynamic programs hold it, and repeat 11.95 us here; the least that any plan of one order repeats is 8.8."""
    graph = skipping(16, 4)
    plans = RecomputePlans(graph)
    budget = int(plans.least_bytes + 0.5 * (readiness_peak(graph) - plans.least_bytes))
    chains = [plans.best_of_chain(table, budget) for table in plans.chains]
    work = [bl.recompute(graph, budget=budget, time_limit=limit).duration_us.sum() for limit in (None, 120.0)]
    assert min(plan.work_us for plan in chains if plan is not None) == pytest.approx(11.95, abs=1e-3)
    assert work - graph.duration_us.sum() == pytest.approx([8.8, 8.8], abs=1e-3)


def test_a_stage_by_hand():
    """x -> a -> b -> loss, b_grad reads a and b, a_grad reads a: 80 bytes each. Holding both takes 160 besides x's 8; dropping a
    is of no use, since b_grad reads both at once, so a budget of one value has no plan and that of both repeats nothing."""
    graph = bl.OpGraph.from_edges(
        [1, 1, 1, 1, 2, 2],
        [(0, 1, 8), (1, 2, 80), (2, 3, 80), (3, 4, 8), (4, 5, 8), (1, 4, 80), (2, 4, 80), (1, 5, 80)],
        names=["x", "a", "b", "loss", "b_grad", "a_grad"],
        forward_of=[-1, -1, -1, -1, 2, 1],
    )
    program = Program(RecomputeGroups(TrainingGraph(graph)), once=True)
    assert program.solve(100).plan is None
    enough = program.solve(readiness_peak(graph) + 16)
    assert (enough.status, enough.plan.work_us, enough.bound_us) == ("Optimal", 0.0, 0.0)


def test_the_relaxation_is_rounded_where_time_is_over(monkeypatch):
    """A plan comes from the relaxation then, and repeats no less than it says."""
    solve = Rows.solve
    nothing = Answer(None, 0.0, "Time limit reached", 0.0)
    monkeypatch.setattr(
        Rows,
        "solve",
        lambda rows, limit, integer=True, start=None, node_limit=None: (
            nothing if integer else solve(rows, limit, integer=False)
        ),
    )
    training = TrainingGraph(skipping(20, 4))
    plain_peak = OpSequence(training, training.ordered).peak
    solved = Program(RecomputeGroups(training), once=True).solve(int(0.8 * plain_peak), time_limit=10.0)
    assert solved.status == "Rounded" and solved.plan.peak <= 0.8 * plain_peak
    assert 0.0 < solved.bound_us <= solved.plan.work_us + 1e-6


def test_runs_that_nobody_reads_are_left_out():
    training = TrainingGraph(skipping(6, 3))
    twice = np.concatenate([training.ordered[:4], [1, 2], training.ordered[4:]])
    assert len(without_unread_copies(OpSequence(training, np.concatenate([training.ordered, [1]]))).ops) == len(
        training.ordered
    )
    assert set(without_unread_copies(OpSequence(training, twice)).ops.tolist()) == set(range(training.graph.n))


@pytest.mark.slow
def test_the_better_plan_is_taken(monkeypatch):
    """With a time limit the program is one more candidate: never worse than without, never above the budget."""
    graph = skipping(16, 4, 1)
    plans = RecomputePlans(graph)
    budget = int(plans.least_bytes + 0.75 * (readiness_peak(graph) - plans.least_bytes))
    without = plans.best(budget)
    recomputed = bl.recompute(graph, budget=budget, time_limit=3.0)
    assert recomputed.duration_us.sum() <= without.duration_us.sum() and readiness_peak(recomputed) <= budget


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time_limit": 1.0}, "budget is None"),
        ({"budget": 9, "time_limit": 0.0}, r"time_limit is 0\.0"),
        ({"ordered": "yes"}, "must be True or False"),
    ],
)
def test_bad_input_is_rejected(arguments, message):
    with pytest.raises(bl.InvalidInput, match=message):
        bl.recompute(skipping(6, 3), **arguments)


def test_ordered_plans_have_one_peak_whatever_the_scheduler():
    """Control dependencies leave one order, so the last op to become ready may as well run first."""
    from studies.memory.predicting import in_both_orders

    graph = bl.recompute(skipping(12, 3), "sqrt", ordered=True)
    peaks = in_both_orders(graph, bl.Cluster.uniform(1), bl.Placement(device=[0] * graph.n))
    assert peaks[0].op.tolist() == peaks[1].op.tolist() and peaks[0].peak_bytes[0] == peaks[1].peak_bytes[0]
