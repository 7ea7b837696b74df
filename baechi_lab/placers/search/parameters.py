"""Parameters of the search in one frozen object, each with its unit, meaning and origin.

Origin *by hand*: chosen when its part was written, and kept when the whole search was measured; `docs/search-log.md` has the
gain of each part. Shares of the budget refer to the budget that is left when the part begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..evaluation.parameters import EvaluationParameters, number

Level = tuple[int | NDArray[np.int64], float, float]
"""Number of units (or the labels int64[n] of which they are made), and first and last temperature in makespans."""


@dataclass(frozen=True)
class SearchParameters(EvaluationParameters):
    """Parameters of `placers.search`, including those of the evaluation.

    What they name:

    - A *unit* is a set of ops that one move sends to another device. A *layer* is the ops that share a weight; the ops of a
      layer may become one unit.
    - A *chain* is one candidate that is annealed. A *level* anneals it with units of about one number, from a first to a last
      temperature. A *cycle* goes through levels from few large units to single ops.
    - *Trials* are the first cycles, from different starts. *Rounds* follow: in each, every chain runs a cycle and then learns
      the best candidates of the others. An *island* is a search of its own in another process or machine.

    `dataclasses.replace(SEARCH, rounds=8)` changes one; `describe` lists all with units, meanings and origins.

    >>> name, value, unit, meaning, origin = SearchParameters().describe()[-1]
    >>> name, value, unit
    ('contracted_starts', 8, 'candidates')
    """

    # Calls of compiled code (`search.chain`).
    slice_seconds: float = number(
        0.03, "s", "compiled code runs before time, callback and interruption are looked at", "by hand: not to be felt"
    )
    slice_steps: int = number(
        2000,
        "simulations",
        "the most of a slice where simulations are counted, so that temperatures do not depend on the machine",
    )
    slice_part: int = number(60, "slices", "fewest that such a budget is divided into")
    first_steps: int = number(50, "simulations", "of the first slice, after which it is known how long one takes")
    fewest_steps: int = number(5, "simulations", "fewest of any slice")
    most_steps: int = number(200_000, "simulations", "most of any slice")

    # One cycle from coarse to fine.
    levels: tuple[Level, ...] = number(
        ((48, 0.005, 0.0005), (150, 0.0025, 0.00025), (500, 0.00125, 0.000125)),
        "units, makespans, makespans",
        "of one cycle: about how many units, and first and last temperature",
        "measured: a quarter of earlier ones does what drawn temperatures and cold later rounds did",
    )
    small_levels: tuple[Level, ...] = number(
        ((48, 0.15, 0.01), (48, 0.05, 0.002)),
        "units, makespans, makespans",
        "the levels of small graphs, where a single op is a large part of the makespan: as hot in every cycle",
        "by hand; 38 of 40 small instances then ended with the proven optimum, later 99 of 100",
    )
    combine_share: float = number(
        0.15,
        "share of a cycle",
        "goes to what other placements do better",
        "with others: 0.872 to 0.858 of the best rule on five cases, 10 s, medians of three seeds",
    )

    # Units (`search.structure`, `search.coarsen`).
    coarse_labels: int = number(
        100,
        "labels",
        "most layers that are units of trials: few enough that each is moved hundreds of times within seconds",
    )
    structure_share: float = number(0.5, "layers per group", "most layers that say anything")
    unit_work: float = number(2.5, "mean works", "most work of a unit that merging makes")

    # Reduced models (`search.runs`).
    joined_share: float = number(
        1.0 / 1500.0,
        "makespans",
        "most work that joins the first op of a run, and that may lie between two of its ops",
        "runs made the search of GNMT 4 times as fast, with times within 3 %",
    )
    fewer_runs: float = number(0.75, "runs per op", "most that are worth simulating")
    runs_from_ops: int = number(400, "ops", "below which runs are not tried")

    # Several chains: trials, then rounds (`search.multistart`).
    trial_starts: int = number(4, "starts", "that get a cycle where there are no layers, or too many")
    trial_share: float = number(0.15, "share of the budget", "for these trials")
    layer_trials: int = number(8, "trials", "that move whole layers, from the best start")
    layer_trials_share: float = number(
        0.4,
        "share of the budget",
        "for these trials",
        "with all of the trials: 0.853 to 0.850 of the best rule in 10 s, on a slower machine",
    )
    rounds: int = number(
        5,
        "rounds",
        "fewest in which the chains share what they found",
        "12, then 8, then 5, as trials and longer rounds were added",
    )
    most_rounds: int = number(25, "rounds", "most of them", "a longer cycle found more than a further one beyond these")
    cycle_steps: int = number(
        3000,
        "simulations",
        "of a chain in one of the rounds between: a new cycle from coarse to fine finds more than a "
        "longer one, up to about this many",
    )
    restart_ops: int = number(
        40,
        "ops",
        "most of a small graph, where every second round starts from a random candidate: there one good start "
        "is not worth much",
        "by hand; see small_levels",
    )
    restarts: int = number(24, "rounds", "on graphs that small", "by hand; see small_levels")
    searches: int = number(
        5,
        "searches",
        "most that a long budget is divided into",
        "3 took 0.823 to 0.819 of the best rule in 60 s; 5, with combining, 0.817",
    )
    search_seconds: float = number(12.0, "s", "of the budget that make one search", "by hand; see searches")
    search_ops: int = number(
        300_000_000,
        "simulated ops of a chain",
        "that make one search where simulations are counted",
        "about as long as search_seconds",
    )
    again_share: float = number(
        0.4, "share of the budget", "for going on from the best of several searches", "by hand; see searches"
    )
    others: int = number(
        8,
        "placements",
        "found of late that are kept for chains to take segments from; half may come from trials",
        "by hand; see combine_share",
    )
    tell_seconds: float = number(0.2, "s", "between two reports of progress")

    # For pipelines (`search.period`, `search.stages`).
    period_round: int = number(50_000, "moves", "of a chain between two measurements of a period")
    period_rounds: int = number(
        400, "rounds", "most for a period: where nothing is left to be found, time is not spent"
    )
    period_idle: int = number(12, "rounds", "without a better period after which a chain begins at random")
    period_heat: tuple[float, float, float] = number(
        (0.05, 0.5, 1e-3),
        "periods, times, times",
        "first temperature of a chain, what it is multiplied by in each of four "
        "idle rounds, and the last one as a part of it",
    )
    step_heat: tuple[float, float] = number((0.03, 0.0005), "best steps", "first and last temperature")

    # On islands (`search.islands`).
    island_rounds: int = number(4, "rounds", "after each of which islands exchange what they found")
    island_losses: int = number(3, "times", "a call is sent again whose machine was lost", "as often as a sweep's row")

    # Starts of a search (`search.starts`, `search.contract`, `search.placer`).
    fifo_share: float = number(
        0.25, "share of the starts", "first in, first out where priorities are allowed: those find more"
    )
    kept_start: float = number(1.6, "times the best start", "slowest one that is kept")
    rules_share: float = number(0.2, "share of the time", "most that asking the rules may take", "0.35 at first")
    samples: int = number(
        16, "samples", 'of the profile error, for `objective="p90"`', "by hand: the 15th is the percentile"
    )
    contract_from_ops: int = number(1500, "ops", "fewest of a graph that is searched contracted first")
    contracted_share: float = number(0.5, "ops left per op", "most of a contracted graph that is searched")
    contract_rounds: int = number(12, "rounds", "of merging, most", "enough that nothing merges any more; not tuned")
    short_transfer: float = number(0.3, "mean transfers", "short is less than this")
    short_work: float = number(1.0 / 2000.0, "share of all work", "short is less than this, too")
    chain_work: float = number(4.0, "times what is short", "most work of a merged part")
    contracted_budget: float = number(0.7, "share of the budget", "for the contracted graph", "0.5 at first")
    reducing_time: float = number(
        15.0,
        "times making its `Instance`",
        "what optimizing a graph takes, which cannot be stopped",
        "graphs of a million ops",
    )
    contracting_time: float = number(
        5.0,
        "times making its `Instance`",
        "what contracting a graph takes, which cannot be stopped",
        "as reducing_time",
    )
    contracted_starts: int = number(8, "candidates", "that are restricted to the contracted graph")


SEARCH = SearchParameters()
"""The default parameters."""
