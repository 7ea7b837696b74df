"""Work that plans of recomputation repeat within budgets, and what is proven of it: python -m studies.budgets

Training steps of ops of random times and sizes, of which every fourth is read four further down as well: no chains. A row per
number of ops and budget, a part of the way from the least that the dynamic programs need to the peak of the plain step: the
work repeated by these, by both forms of the integer program (`baechi_lab.memory_saving`), the bound that each proves, and
its seconds. `--store` keeps them with date, seed and command.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from baechi_lab.graph import OpGraph
from baechi_lab.graph.generators import with_backward
from baechi_lab.memory_saving.budget import MOST_FREE, RecomputePlans
from baechi_lab.memory_saving.integer_program import Program, ProgramPlan
from baechi_lab.memory_saving.op_sequence import OpSequence
from studies.results import store

OPS, SHARES, SPAN = (16, 30, 60, 100, 150, 200, 250, 300), (0.25, 0.5, 0.75), 4


def skipping(ops: int, span: int = SPAN, seed: int = 0) -> OpGraph:
    """A training step of `ops` forward ops of 1 to 9 us that make 1 to 8 MiB; every `span`-th is read `span` further down, too.

    >>> skipping(8).n
    17
    """
    rng = np.random.default_rng(seed)
    size = (rng.integers(1, 9, ops) << 20).tolist()
    edges = [(i, i + 1, size[i]) for i in range(ops - 1)]
    edges += [(i, i + span, size[i]) for i in range(1, ops - span, span)]
    return with_backward(OpGraph.from_edges(rng.uniform(1, 9, ops).round(2), edges))


def measure(graph: OpGraph, shares: Sequence[float], time_limit: float) -> Iterator[dict[str, Any]]:
    """A row per budget; work is told as a part of the step."""
    plans, step_us = RecomputePlans(graph), float(graph.duration_us.sum())
    peak_bytes = plans.peak(plans.simple_plans[0])
    for share in shares:
        budget = int(plans.least_bytes + share * (peak_bytes - plans.least_bytes))
        fits = [plans.best_of_chain(table, budget) for table in plans.chains]
        row: dict[str, Any] = {
            "ops": plans.groups.count,
            "stages": plans.groups.stages,
            "share": share,
            "budget": budget,
        }
        row["chains"] = _part(min((r for r in fits if r), key=lambda runs: runs.work_us, default=None), step_us)
        once = Program(plans.groups, once=True).solve(budget, time_limit)
        row["once"] = _row(once, step_us)
        if plans.groups.count <= MOST_FREE:
            row["free"] = _row(Program(plans.groups).solve(budget, time_limit, once if once.values else None), step_us)
        yield row


def _part(sequence: OpSequence | None, step_us: float) -> float | None:
    return None if sequence is None else round(sequence.work_us / step_us, 5)


def _row(program_plan: ProgramPlan, step_us: float) -> dict[str, Any]:
    return {
        "repeated": _part(program_plan.plan, step_us),
        "bound": round(program_plan.bound_us / step_us, 5),
        "status": program_plan.status,
        "seconds": round(program_plan.seconds, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per row; `--store` keeps them, after every row."""
    parser = argparse.ArgumentParser(prog="python -m studies.budgets", description=__doc__)
    parser.add_argument("--ops", type=int, nargs="+", default=OPS, help="forward ops of each graph")
    parser.add_argument("--seconds", type=float, default=120.0, help="limit of each solution")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path, help="JSON file to write")
    options, rows = parser.parse_args(arguments), []  # type: argparse.Namespace, list[dict[str, Any]]
    command = f"python -m studies.budgets --seconds {options.seconds:g} --seed {options.seed}"
    for ops in options.ops:
        for row in measure(skipping(ops, seed=options.seed), SHARES, options.seconds):
            rows.append(row)
            print(row, flush=True)
            if options.store is not None:
                store(options.store, f"{command} --store FILE", seed=options.seed, seconds=options.seconds, rows=rows)


if __name__ == "__main__":
    main()
