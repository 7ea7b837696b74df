"""Runs: ops of a unit that run one after the other are simulated as one op, which makes simulations shorter.

Idea: edges inside a unit need no transfer wherever the unit is, so only its times matter. Ops of a unit that follow each other
closely in the current schedule form a *run*, which is simulated as one op with the sum of their durations. Its outputs are
produced at its end, and it waits for all its inputs. The error is small, because a run takes at most a small share of the
makespan, and its ops must have their inputs when the first op starts. The result is projected onto the ops, in the order of the
runs, and is used only if a simulation of the ops confirms it.

Runs are numbered by their start, and an op joins the last run of its unit only if no input comes from a later run. So every
edge leads to a run with the same or a larger number, and no cycle can arise.

Source: multilevel schemes coarsen a graph along the partition that stays fixed (Karypis and Kumar 1998,
doi:10.1137/S1064827595287997); here the simulated graph is coarsened along the moving units. O(ops + edges), apart from sorting.
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
from .reduced import Subproblem, locations, merged_model


class Present(NamedTuple):
    """The candidate for which runs are made.

    `line`: its ops by `start` float64[n], a topological order. `label` int64[n]: only ops with equal labels share a run.
    `device` int[n]. `work` float64[n] of an op. `price` float64[tensors] of a transfer."""

    line: NDArray[np.int64]
    label: NDArray[np.int64]
    device: NDArray[np.int32]
    start: NDArray[np.float64]
    work: NDArray[np.float64]
    price: NDArray[np.float64]


def with_runs(instance: Instance, subproblem: Subproblem) -> Subproblem | None:
    """Returns `subproblem` with runs of its current candidate, simulated last, in place of ops; None if they are hardly fewer.

    Units, and not runs, keep colocation groups and allowed devices.
    """
    graph, state, parameters = instance.graph, subproblem.state, instance.parameters
    if graph.n < parameters.runs_from_ops:
        return None
    start, location, devices = subproblem.objective.work.start, locations(subproblem), instance.cluster.n
    line, work = np.lexsort((instance.position, start)), subproblem.model.table.min(axis=1)
    longest_us = parameters.joined_share * float(state.cost[2])
    label = 2 * location + (subproblem.model.lane > 0)  # collectives have runs of their own
    run = runs_of_candidate(
        subproblem.model, Present(line, label, state.device, start, work, instance.price), longest_us
    )
    count = int(run.max()) + 1
    if count > parameters.fewer_runs * graph.n:
        return None
    device, place, rank = (np.zeros(count, dtype=np.int64) for _ in range(3))
    device[run], place[run], rank[:] = state.device, location, graph.n
    np.minimum.at(rank, run, state.position)
    short = merged_model(instance, run, place, np.arange(count))
    objective = subproblem.objective._replace(
        model=short, work=make_work(short, parameters), samples=no_samples(count, devices)
    )
    units = _units(place - devices, subproblem.units)
    return Subproblem(objective, make_state(device, rank, parameters), units, run)


def _units(unit: NDArray[np.int64], units: Units) -> Units:
    """Returns `units` of runs instead of ops: `unit` int[runs], negative for a run that does not move."""
    count = len(units.ptr) - 1
    place = np.full(int(max(unit.max(), units.of.max())) + 1, count)
    place[units.of[units.ops[units.ptr[:-1]]]] = np.arange(count)
    moving = np.flatnonzero(unit >= 0)
    ops = moving[np.argsort(place[unit[moving]], kind="stable")]
    return Units(offsets(place[unit[ops]], count), ops.astype(np.int32), unit.astype(np.int32), units.allowed)


def project_to_ops(
    subproblem: Subproblem, position: NDArray[np.int32]
) -> list[tuple[NDArray[np.int32], NDArray[np.int64]]]:
    """Projects the current candidate of runs onto the ops: devices, and two orders of ops.

    The orders follow the priorities of the runs, and their starts in the last simulation; `position` int32[n] orders the ops of
    a run."""
    member, state = subproblem.member, subproblem.state
    orders = (state.position, subproblem.objective.work.start)
    return [(state.device[member], np.lexsort((position, key[member]))) for key in orders]


@njit(cache=True, nogil=True)
def runs_of_candidate(model: Model, present: Present, longest_us: float) -> NDArray[np.int64]:
    """Returns int64[n]: the run of each op of the candidate, numbered by their start.

    A run has at most `longest_us` of work after its first op, and gaps of at most `longest_us` between its ops.
    """
    line, label, device, start, work, price = present
    input_ptr, inputs, producer = model.input_ptr, model.inputs, model.producer
    n = len(line)
    run, last = np.full(n, -1, np.int64), np.full(label.max() + 1, -1, np.int64)
    run_us, begin_us, end = np.zeros(n), np.zeros(n), np.zeros(n)
    count = 0
    for v in line:
        r, latest, ready = last[label[v]], -1, 0.0
        for e in range(input_ptr[v], input_ptr[v + 1]):
            p = producer[inputs[e]]
            latest = max(latest, run[p])
            if run[p] != r:
                ready = max(ready, start[p] + work[p] + (price[inputs[e]] if device[p] != device[v] else 0.0))
        fits = r >= 0 and r >= latest and run_us[r] + work[v] <= longest_us
        if fits and start[v] <= end[r] + longest_us and ready <= begin_us[r] + longest_us:
            run_us[r] += work[v]
        else:
            r = count
            begin_us[r] = start[v]
            run_us[r] = work[v] if work[v] <= longest_us else 0.0
            last[label[v]] = r
            count += 1
        run[v] = r
        end[r] = start[v] + work[v]
    return run
