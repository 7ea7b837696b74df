"""A shorter simulation while units move: ops of a unit that run one after the other become one op.

Idea: what lies inside a unit costs no transfer wherever the unit goes, so only times inside it matter. Ops of a unit that
follow each other within a moment of the present schedule make a *run*, simulated as one op as long as all of them. Its
outputs come when it ends, and it waits for all its inputs: late by little, as what joins the first op of a run is kept
to a small share of the makespan and must have its inputs by then. What is found is projected onto the ops themselves, in the
order of the runs, and counts only as far as their own simulation confirms it.

Runs are numbered as they begin, and an op joins the last run of its unit only if no input comes from a later one: every
edge leads to a run with the same or a larger number, so that no cycle can arise.

Source: multilevel schemes coarsen along with the partition that stays put (Karypis and Kumar 1998,
doi:10.1137/S1064827595287997); here what is simulated is coarsened along with what moves. O(ops + edges), apart from sorting.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import offsets
from ...graph.kernels.jit import njit
from ..evaluation.cost import no_samples
from ..evaluation.model import Model
from ..evaluation.moves import Units, make_state
from ..evaluation.work import make_work
from .instance import Instance
from .reduced import Subproblem, homes, merged_model


class Present(NamedTuple):
    """The candidate that runs are made for: `line` its ops by `start` float64[n], a topological order; `label` int64[n],
    where only ops of one share a run; `device` int[n]; `work` float64[n] of an op; `price` float64[tensors] of a transfer."""

    line: NDArray[np.int64]
    label: NDArray[np.int64]
    device: NDArray[np.int32]
    start: NDArray[np.float64]
    work: NDArray[np.float64]
    price: NDArray[np.float64]


def with_runs(instance: Instance, subproblem: Subproblem) -> Subproblem | None:
    """Runs in place of ops for the present candidate of `subproblem`, which was simulated last; None where they are hardly fewer.

    Colocation groups and allowed devices are left to the units, which keep them.
    """
    graph, state, parameters = instance.graph, subproblem.state, instance.parameters
    if graph.n < parameters.runs_from_ops:
        return None
    start, home, devices = subproblem.objective.work.start, homes(subproblem), instance.cluster.n
    line, work = np.lexsort((instance.position, start)), subproblem.model.table.min(axis=1)
    longest_us = parameters.joined_share * float(state.cost[2])
    label = 2 * home + (subproblem.model.lane > 0)  # collectives have runs of their own
    run = runs_of_candidate(
        subproblem.model, Present(line, label, state.device, start, work, instance.price), longest_us
    )
    count = int(run.max()) + 1
    if count > parameters.fewer_runs * graph.n:
        return None
    device, place, rank = (np.zeros(count, dtype=np.int64) for _ in range(3))
    device[run], place[run], rank[:] = state.device, home, graph.n
    np.minimum.at(rank, run, state.position)
    short = merged_model(instance, run, place, np.arange(count))
    objective = subproblem.objective._replace(
        model=short, work=make_work(short, parameters), samples=no_samples(count, devices)
    )
    units = _units(place - devices, subproblem.units)
    return Subproblem(objective, make_state(device, rank, parameters), units, run)


def _units(unit: NDArray[np.int64], units: Units) -> Units:
    """`units` made of runs instead of ops: `unit` int[runs], negative where a run stays where it is."""
    count = len(units.ptr) - 1
    place = np.full(int(max(unit.max(), units.of.max())) + 1, count)
    place[units.of[units.ops[units.ptr[:-1]]]] = np.arange(count)
    moving = np.flatnonzero(unit >= 0)
    ops = moving[np.argsort(place[unit[moving]], kind="stable")]
    return Units(offsets(place[unit[ops]], count), ops.astype(np.int32), unit.astype(np.int32), units.allowed)


def projected(subproblem: Subproblem, position: NDArray[np.int32]) -> list[tuple[NDArray[np.int32], NDArray[np.int64]]]:
    """The present candidate of runs for the ops: devices, with ops in the order of the priorities of their runs and in that
    of the runs' starts in the last simulation; `position` int32[n] orders the ops of a run."""
    member, state = subproblem.member, subproblem.state
    orders = (state.position, subproblem.objective.work.start)
    return [(state.device[member], np.lexsort((position, key[member]))) for key in orders]


@njit(cache=True, nogil=True)
def runs_of_candidate(model: Model, present: Present, longest_us: float) -> NDArray[np.int64]:
    """int64[n]: the run of each op of the candidate at hand, numbered as they begin.

    `longest_us` microseconds of work join the first op of a run, and that much may lie between two of its ops.
    """
    line, label, device, start, work, price = present
    input_ptr, inputs, producer = model.input_ptr, model.inputs, model.producer
    n = len(line)
    run, last = np.full(n, -1, np.int64), np.full(label.max() + 1, -1, np.int64)
    joined, begin_us, end = np.zeros(n), np.zeros(n), np.zeros(n)
    count = 0
    for v in line:
        r, latest, ready = last[label[v]], -1, 0.0
        for e in range(input_ptr[v], input_ptr[v + 1]):
            p = producer[inputs[e]]
            latest = max(latest, run[p])
            if run[p] != r:
                ready = max(ready, start[p] + work[p] + (price[inputs[e]] if device[p] != device[v] else 0.0))
        fits = r >= 0 and r >= latest and joined[r] + work[v] <= longest_us
        if fits and start[v] <= end[r] + longest_us and ready <= begin_us[r] + longest_us:
            joined[r] += work[v]
        else:
            r = count
            begin_us[r] = start[v]
            joined[r] = work[v] if work[v] <= longest_us else 0.0
            last[label[v]] = r
            count += 1
        run[v] = r
        end[r] = start[v] + work[v]
    return run
