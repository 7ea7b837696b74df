"""What each number of the search is worth: step times with the number changed over those with its default.

    python -m studies.search_numbers --graphs FOLDER --seeds 5 --store studies/results/search_numbers.json

Every field of `SearchParameters` is set to a neutral value, with which its mechanism does nothing, to half and to twice its
default. Every search has the same count of simulations, so that no figure depends on the load of the machine. All searches of a
graph begin with the same starts.

Definitions. *Ratio*: the geometric mean over graphs and seeds of the step time with the change over the mean step time without.
*Noise*: the standard deviation over seeds of the logarithm of the geometric mean over the graphs, with the defaults. *Processor*:
processor seconds with the change over those without. A change concerns the graphs of its `scope` alone: `ordinary` (more than
`restart_ops` ops, much memory), `small`, `all` (both), `memory` (little memory), `throughput` and `step` (pipelines), `large`
(graphs that are contracted first), and `long` (budgets of several searches). The starts of large graphs and pipelines are those
of the best rule. Numbers that were dropped since keep their figures.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from baechi_lab.graph import Cluster, Link, OpGraph, Placement, generators, load_graph
from baechi_lab.graph.generators.backward import with_backward
from baechi_lab.placers import place
from baechi_lab.placers.evaluation.orders import Candidate
from baechi_lab.placers.search.budget import Budget, SearchReport
from baechi_lab.placers.search.instance import Instance
from baechi_lab.placers.search.multistart import MultiStart
from baechi_lab.placers.search.parameters import SEARCH, SearchParameters
from baechi_lab.placers.search.starts import Starts
from baechi_lab.simulator import simulate
from studies.results import result, store
from studies.search_quality import PLENTY, SHARED

NEVER = 10**9
CHAINS = 2
PAPER_B = Link(134.0, 0.0001754)


@dataclass(frozen=True, eq=False)
class Case:
    """A graph on a cluster, the simulations that a search of it may spend, and the objective."""

    name: str
    graph: OpGraph
    cluster: Cluster
    evaluations: int
    objective: str = "makespan"

    @property
    def scopes(self) -> set[str]:
        """The scopes of changes that this case measures."""
        if self.objective != "makespan":
            return {self.objective}
        if self.name.startswith(("large", "long")):
            return {self.name.split(" ")[0]}
        if "memory" in self.name:
            return {"memory"}
        return {"all", "small" if self.graph.n <= SEARCH.restart_ops else "ordinary"}


def cases(folder: str | Path | None, data: str | Path) -> Iterator[Case]:
    """Stored and generated graphs, with much and with little memory, small ones, pipelines, and large ones."""

    def uniform(devices: int, memory_bytes: int = PLENTY, link: Link = PAPER_B, speed: float = 1.0) -> Cluster:
        return Cluster.uniform(devices, memory_bytes=memory_bytes, comm="sequential", link=link, speed=speed)

    def tight(graph: OpGraph, share: float) -> Cluster:
        alone = simulate(graph, Cluster.uniform(1, memory_bytes=PLENTY), place(graph, uniform(1), "single"))
        return uniform(4, int(share * alone.peak_bytes[0]))

    layered = with_backward(generators.layered_dag(150))
    rnn = generators.unrolled_rnn(layers=2, steps=6)
    gnmt = generators.gnmt(length=3, layers=2)
    scattered = generators.random_dag(250, degree=2.0, seed=1)
    profiles = [] if folder is None else [load_graph(Path(folder) / name) for name in SHARED]
    for graph in (*profiles[1:], layered, rnn, gnmt, scattered):
        yield Case(graph.name, graph, uniform(4), 2500)
    for graph in (layered, gnmt):
        yield Case(f"{graph.name}, little memory", graph, tight(graph, 0.4), 2500)
    for seed in range(3):
        small = generators.random_dag(30, degree=1.5, duration_us=(1, 20), size_bytes=4, seed=seed)
        yield Case(f"small {seed}", small, Cluster.uniform(3, memory_bytes=PLENTY, link=Link(5.0, 0.0)), 800)
    for graph in (layered, rnn, scattered):
        yield Case(f"throughput of {graph.name}", graph, uniform(4), 1_200_000, "throughput")
        yield Case(f"step of {graph.name}", graph, uniform(4), 150, "step")
        yield Case(f"long {graph.name}", graph, uniform(4), 12_000)
    large = with_backward(generators.layered_dag(1000))
    for graph in (large, generators.gnmt(ops=4000), load_graph(Path(data) / "inception_v3-batch32.json.gz")):
        yield Case(f"large {graph.name}", graph, uniform(4), 2500)


def scaled(value: object, factor: float) -> object:
    """Returns a number, or every number of a tuple, times `factor`; the numbers of units of levels stay.

    >>> scaled(5, 0.5), scaled(((48, 0.02, 0.002),), 2.0)
    (2, ((48, 0.04, 0.004),))
    """
    if isinstance(value, tuple) and isinstance(value[0], tuple):
        return tuple((count, factor * hot, factor * cold) for count, hot, cold in value)
    if isinstance(value, tuple):
        return tuple(factor * x for x in value)
    return max(int(factor * value), 1) if isinstance(value, int) else factor * value  # type: ignore[operator]


ONE_LEVEL = ((150, 0.02, 0.0005),)
NEUTRAL: dict[str, tuple[str, object]] = {
    "levels": ("ordinary", ONE_LEVEL),
    "small_levels": ("small", SEARCH.levels),
    "combine_share": ("ordinary", 0.0),
    "coarse_labels": ("ordinary", 0),
    "structure_share": ("ordinary", 1.0),
    "unit_work": ("ordinary", 1e9),
    "joined_share": ("ordinary", 0.0),
    "fewer_runs": ("ordinary", 1.0),
    "runs_from_ops": ("ordinary", NEVER),
    "trial_starts": ("all", 1),
    "trial_share": ("all", 0.001),
    "layer_trials": ("ordinary", 1),
    "layer_trials_share": ("ordinary", 0.001),
    "rounds": ("ordinary", 1),
    "restart_ops": ("small", 0),
    "restarts": ("small", 1),
    "others": ("ordinary", 1),
    "fifo_share": ("all", 0.0),
    "slice_steps": ("all", 10),
    "slice_part": ("all", 1),
    "first_steps": ("ordinary", 1),
    "order_share": ("all", 0.0),
    "anywhere_share": ("all", 0.0),
    "run_share": ("all", 0.0),
    "whole_share": ("all", 0.0),
    "overfull_tries": ("memory", 0),
    "way_ops": ("ordinary", NEVER),
    "spare_bytes": ("all", 0),
    "page_bytes": ("all", 0),
    "period_round": ("throughput", 1_000_000),
    "period_idle": ("throughput", NEVER),
    "period_heat": ("throughput", (0.05, 1.0, 1e-3)),
    "step_heat": ("step", (1e-9, 1e-9)),
    "contract_from_ops": ("large", NEVER),
    "contracted_share": ("large", 1.0),
    "contract_rounds": ("large", 100),
    "short_transfer": ("large", 1e9),
    "short_work": ("large", 1.0),
    "chain_work": ("large", 1.0),
    "contracted_budget": ("large", 0.5),
    "contracted_starts": ("large", 1),
    "most_rounds": ("long", 5),
    "cycle_steps": ("long", 10),
    "searches": ("long", 1),
    "again_share": ("long", 0.01),
}
"""The scope of each number, and the value with which its mechanism does nothing, or the simplest one."""
ORDER = ("memory", "small", "ordinary", "all", "throughput", "step", "large", "long")
UNMEASURED = {
    "samples": "of the objective itself",
    **dict.fromkeys(
        (
            "slice_seconds",
            "fewest_steps",
            "most_steps",
            "tell_seconds",
            "rules_share",
            "reducing_time",
            "contracting_time",
        ),
        "of searches with a time limit",
    ),
    **dict.fromkeys(("improving_heat", "improving_cooling"), "of repairs and `auto`"),
    "search_seconds": "as search_ops",
    "search_ops": "as searches",
    "kept_start": "before the starts, of the time of the rules",
    "period_rounds": "a limit against idling",
    "island_rounds": "of other machines",
    "island_losses": "of other machines",
}
LONG = replace(SEARCH, search_ops=600_000)
"""Makes the long cases several searches."""


def variants() -> dict[str, tuple[str, dict[str, object]]]:
    """Returns the scope of every change and the numbers that it changes, the neutral values first."""
    neutral = {f"{name} neutral": (scope, {name: value}) for name, (scope, value) in NEUTRAL.items()}
    half = {f"{name} half": (scope, {name: scaled(getattr(SEARCH, name), 0.5)}) for name, (scope, _) in NEUTRAL.items()}
    twice = {
        f"{name} twice": (scope, {name: scaled(getattr(SEARCH, name), 2.0)}) for name, (scope, _) in NEUTRAL.items()
    }
    cheap_first = sorted(neutral.items(), key=lambda item: ORDER.index(item[1][0]))
    return {**dict(cheap_first), **half, **twice}


@cache
def all_cases(folder: str | None, data: str) -> tuple[Case, ...]:
    """Returns `cases`, made once in a process."""
    return tuple(cases(folder, data))


@cache
def starts_of(name: str, folder: str | None, data: str) -> list[Candidate]:
    """Returns the starts of all searches of a case, best first; none for pipelines."""
    case = next(case for case in all_cases(folder, data) if case.name == name)
    if case.objective != "makespan":
        return []
    return Starts(Instance(case.graph, case.cluster), ("fifo", "planned"), 0).from_rules(lambda: False)


def step_us(case: Case, starts: Sequence[Candidate], parameters: SearchParameters, seed: int) -> float:
    """Returns the step time, or the period, in microseconds that one search ends with."""
    if case.objective == "makespan" and "large" not in case.scopes:
        instance = Instance(case.graph, case.cluster, parameters=parameters)
        budget = Budget(None, case.evaluations)
        chains = MultiStart(instance, CHAINS, seed, budget, lambda us, used: None)
        chains.chains[0].start_from(starts[0])
        chains.search(starts, 0)
        return chains.best[1].makespan_us
    options: dict[str, object] = {
        "time_limit": None,
        "evaluations": case.evaluations,
        "workers": CHAINS,
        "numbers": parameters,
    }
    if case.objective == "makespan":
        options["start"] = Placement(device=starts[0].device, order=starts[0].rank)
    else:
        options["objective"] = case.objective
    placement = place(case.graph, case.cluster, "search", seed=seed, **options)
    return SearchReport.of(placement).history[-1][2]


def measure(
    scope: str, changes: dict[str, object], seeds: int, folder: str | None, data: str
) -> tuple[np.ndarray, list[str], float]:
    """Returns step times in us float64[cases, seeds], the names of the cases, and processor seconds."""
    chosen = [(case, starts_of(case.name, folder, data)) for case in all_cases(folder, data) if scope in case.scopes]
    parameters = replace(LONG if scope == "long" else SEARCH, **changes)  # type: ignore[arg-type]
    began = time.process_time()
    rows = [[step_us(case, starts, parameters, seed) for seed in range(seeds)] for case, starts in chosen]
    return np.array(rows), [case.name for case, _ in chosen], time.process_time() - began


def noise_of(makespans: np.ndarray) -> float:
    """Returns the standard deviation over seeds of the mean over graphs of the logarithm of the step time.

    >>> round(noise_of(np.array([[1.0, np.e], [1.0, np.e]])), 6)
    0.707107
    """
    return float(np.log(makespans).mean(axis=0).std(ddof=1))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line per change; `--store` keeps all."""
    parser = argparse.ArgumentParser(prog="python -m studies.search_numbers", description=__doc__)
    parser.add_argument(
        "--graphs", default=os.environ.get("BAECHI_LAB_GRAPHS"), help="folder of dnn-partitioning graphs"
    )
    parser.add_argument("--data", default="data", help="folder of the stored profiles")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0, 1, ... of every search")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="names of numbers; default: all")
    parser.add_argument("--store", type=Path)
    options = parser.parse_args(arguments)
    command = "python -m studies.search_numbers " + " ".join(arguments or sys.argv[1:])
    chosen = {k: v for k, v in variants().items() if not options.only or k.split(" ")[0] in options.only}
    measure("all", {}, 1, options.graphs, options.data)  # kernels are compiled or read before processes are forked
    rest = (options.seeds, options.graphs, options.data)
    rows: dict[str, dict[str, object]] = {}
    graphs: dict[str, list[str]] = {}
    with ProcessPoolExecutor(options.processes, get_context("fork")) as pool:
        base_calls, calls = {}, {}
        for name, (scope, changes) in chosen.items():
            if scope not in base_calls:
                base_calls[scope] = pool.submit(measure, scope, {}, *rest)
            calls[name] = pool.submit(measure, scope, changes, *rest)
        for name, call in calls.items():
            scope, (makespans, _, seconds) = chosen[name][0], call.result()
            base, names, base_seconds = base_calls[scope].result()
            logarithms = np.log(makespans).mean(axis=1) - np.log(base).mean(axis=1)
            graphs[scope] = names
            rows[name] = {
                "value": str(next(iter(chosen[name][1].values()))),
                "default": str(getattr(SEARCH, name.split(" ")[0])),
                "scope": scope,
                "ratio": round(float(np.exp(logarithms.mean())), 4),
                "noise": round(noise_of(base), 4),
                "processor": round(seconds / base_seconds, 2),
                "per_graph": [round(float(x), 4) for x in np.exp(logarithms)],
            }
            print(name, rows[name], flush=True)
            if options.store is not None:
                store(
                    options.store,
                    command,
                    seeds=list(range(options.seeds)),
                    graphs=graphs,
                    unmeasured=UNMEASURED,
                    dropped=result("search_numbers")["dropped"],
                    changes=rows,
                )


if __name__ == "__main__":
    main()
