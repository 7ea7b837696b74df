"""The integer program of recomputation: against enumeration on small graphs, by hand, and as one candidate among others."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.highs import silent_highs
from baechi_lab.passes import checkpoint_milp
from baechi_lab.passes.checkpoint_budget import Plans
from baechi_lab.passes.checkpoint_exact import Search, States
from baechi_lab.passes.checkpoint_milp import Program, pruned
from baechi_lab.passes.peak import readiness_peak
from baechi_lab.passes.repeatable import Parts
from baechi_lab.passes.runs import Runs


def skipping(n: int, span: int, seed: int = 0):
    """A chain in which every `span`-th output is read `span` ops further down as well, and its gradients."""
    rng = np.random.default_rng(seed)
    sizes = (rng.integers(1, 9, n) << 20).tolist()
    edges = [(i, i + 1, sizes[i]) for i in range(n - 1)]
    edges += [(i, i + span, sizes[i]) for i in range(1, n - span, span)]
    return bl.generators.with_backward(bl.OpGraph.from_edges(rng.uniform(1, 9, n).round(2), edges))


@pytest.mark.parametrize("seed", range(4))
def test_against_enumeration(seed):
    """No plan beats the best of all sequences, and each keeps within its budget; a loose budget repeats nothing."""
    graph = skipping(8, 3, seed)
    parts = Parts(graph)
    states, program = States(parts), Program(parts)
    assert states.few
    least, most = int(Search(states).best), Runs(parts, parts.ordered).peak
    for share in (0.3, 0.6):
        budget = int(least + share * (most - least))
        solved = program.solve(budget, time_limit=10.0)
        if solved.runs is None:
            continue
        optimum = Search(states, budget).best
        assert solved.runs.peak <= budget and solved.runs.work_us >= optimum - 1e-6
        assert solved.bound_us <= solved.runs.work_us + 1e-3 or solved.status != "Optimal"
    assert program.solve(2 * most, time_limit=10.0).runs.work_us == 0.0


@pytest.mark.parametrize(("n", "span", "seed"), [(8, 3, 1), (10, 3, 1), (11, 4, 2), (12, 5, 3)])
def test_bytes_of_single_ops_are_counted_exactly(n, span, seed):
    """The optimum of the program is that of all sequences in one order, down to the least budget: a batch is held while ops that
    read it run again, and several late ops that read one op's stage hold no more than each of them."""
    parts = Parts(skipping(n, span, seed))
    states, program = States(parts), Program(parts)
    least, most = int(Search(states).best), Runs(parts, parts.ordered).peak
    for share in (0.0, 0.3, 0.6):
        budget = int(least + share * (most - least))
        solved = program.solve(budget, time_limit=120.0)
        assert solved.status == "Optimal" and solved.runs.peak <= budget
        assert solved.runs.work_us == pytest.approx(Search(states, budget).best, abs=1e-4)
        assert solved.bound_us == pytest.approx(solved.runs.work_us, rel=1e-3, abs=1e-4)


def test_a_start_is_a_plan_of_the_program(monkeypatch):
    """What is held in each stage of a plan gives its work again, so the solver begins with it and no node is needed."""
    parts = Parts(skipping(20, 4))
    program, plans = Program(parts), Plans(parts.graph)
    budget = int(plans.least + 0.5 * (plans.peak(plans.simple[0]) - plans.least))
    start = min(plans._sequences(budget, None), key=lambda runs: runs.work_us)
    again = program._decode(program._repeats(program._held(start)))
    assert again.work_us == pytest.approx(start.work_us) and again.peak <= budget
    monkeypatch.setattr(checkpoint_milp, "silent_highs", lambda **options: silent_highs(**options, mip_max_nodes=0))
    assert program.solve(budget, time_limit=120.0, start=start).runs.work_us <= start.work_us + 1e-6


def test_a_value_that_is_read_far_down_need_not_be_held_throughout():
    """Dynamic programs hold it, and repeat 11.95 us here; the least that any plan of one order repeats is 8.8."""
    graph = skipping(16, 4)
    plans = Plans(graph)
    budget = int(plans.least + 0.5 * (readiness_peak(graph) - plans.least))
    work = [bl.recompute(graph, budget=budget, time_limit=limit).duration_us.sum() for limit in (None, 120.0)]
    assert work - graph.duration_us.sum() == pytest.approx([11.95, 8.8], abs=1e-3)


def test_a_stage_by_hand():
    """x -> a -> b -> loss, b_grad reads a and b, a_grad reads a: 80 bytes each. Holding both takes 160 besides x's 8; dropping a
    is of no use, since b_grad reads both at once, so a budget of one value has no plan and that of both repeats nothing."""
    graph = bl.OpGraph.from_edges(
        [1, 1, 1, 1, 2, 2],
        [(0, 1, 8), (1, 2, 80), (2, 3, 80), (3, 4, 8), (4, 5, 8), (1, 4, 80), (2, 4, 80), (1, 5, 80)],
        names=["x", "a", "b", "loss", "b_grad", "a_grad"], forward_of=[-1, -1, -1, -1, 2, 1],
    )  # fmt: skip
    program = Program(Parts(graph))
    assert program.solve(100, time_limit=5.0).runs is None
    enough = program.solve(readiness_peak(graph) + 16, time_limit=5.0)
    assert (enough.status, enough.runs.work_us, enough.bound_us) == ("Optimal", 0.0, 0.0)


def test_the_relaxation_is_rounded_where_the_program_is_too_large(monkeypatch):
    monkeypatch.setattr(checkpoint_milp, "EXACT", 0)
    parts = Parts(skipping(20, 4))
    program, most = Program(parts), Runs(parts, parts.ordered).peak
    solved = program.solve(int(0.8 * most), time_limit=10.0)
    assert solved.status == "Relaxed" and solved.runs.peak <= 0.8 * most
    assert 0.0 <= solved.bound_us <= solved.runs.work_us + 1e-6


def test_runs_that_nobody_reads_are_left_out():
    parts = Parts(skipping(6, 3))
    twice = np.concatenate([parts.ordered[:4], [1, 2], parts.ordered[4:]])
    assert len(pruned(Runs(parts, np.concatenate([parts.ordered, [1]]))).ops) == len(parts.ordered)
    assert set(pruned(Runs(parts, twice)).ops.tolist()) == set(range(parts.graph.n))


def test_the_better_plan_is_taken(monkeypatch):
    """With a time limit the program is one more candidate: never worse than without, never above the budget."""
    graph = skipping(16, 4, 1)
    plans = Plans(graph)
    budget = int(plans.least + 0.75 * (readiness_peak(graph) - plans.least))
    without = plans.best(budget)
    found = bl.recompute(graph, budget=budget, time_limit=3.0)
    assert found.duration_us.sum() <= without.duration_us.sum() and readiness_peak(found) <= budget


@pytest.mark.parametrize(
    ("given", "said"),
    [({"time_limit": 1.0}, "budget is None"), ({"budget": 9, "time_limit": 0.0}, r"time_limit is 0\.0"),
     ({"ordered": "yes"}, "must be True or False")],
)  # fmt: skip
def test_bad_input(given, said):
    with pytest.raises(bl.InvalidInput, match=said):
        bl.recompute(skipping(6, 3), **given)


def test_ordered_plans_have_one_peak_whatever_the_scheduler():
    """Control dependencies leave one order, so the last op to become ready may as well run first."""
    from baechi_lab.experiments.memory.predicting import in_both_orders

    graph = bl.recompute(skipping(12, 3), "sqrt", ordered=True)
    both = in_both_orders(graph, bl.Cluster.uniform(1), bl.Placement(device=[0] * graph.n))
    assert both[0].op.tolist() == both[1].op.tolist() and both[0].peak_bytes[0] == both[1].peak_bytes[0]
