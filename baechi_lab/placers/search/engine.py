"""The parts of a search: what is searched (`Space`), how much may be spent (`Budget`), and one line of work (`Walk`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, allowed_devices
from ...graph.kernels.compiling import working_seconds
from ..evaluation.evaluate import make_model, make_work, memory_matters, positions
from ..evaluation.orders import Candidate, topological_position
from ..problem import groups_of, transfer_us
from .anneal import Samples, anneal, back_to_best, make_state, make_units, no_samples, settle
from .coarsen import coarsen
from .combine import LINES, combine, line_of, renumbered
from .form import Form, lean
from .regions import around, in_time, part
from .runs import read, shorter
from .structure import structures

SLICE_SECONDS = 0.03
"""How long compiled code runs before time, callback and interruption are looked at."""

SLICE_STEPS = 2000
"""The same where simulations are counted, so that the temperatures do not depend on the machine."""

PACE = 50
"""Simulations of the first slice, after which it is known how long one takes."""

LEVELS = ((48, 0.02, 0.002), (150, 0.01, 0.001), (500, 0.005, 0.0005))
"""One cycle: about how many units, and first and last temperature in units of the makespan."""

LATE_LEVELS = ((150, 0.0005, 0.00005), (500, 0.0003, 0.00003), (2000, 0.0001, 0.00001))
"""The same once a candidate is good: what is hotter leads away from it and has no time to come back."""

HEATS = (0.25, 1.2)
"""By what each cycle multiplies these temperatures, at random: which are best differs from graph to graph."""

SMALL_LEVELS = ((48, 0.15, 0.01), (48, 0.05, 0.002))
"""The levels of small graphs, where a single op is a large part of the makespan: as hot in every cycle."""


COMBINE = 0.15
"""Which share of a cycle goes to what other placements do better."""

PARTS, PART_UNITS, PART_HEAT = 6, 60, (0.003, 0.0003)
"""After these levels: how many parts are re-optimised, and the units and temperatures of each."""

COARSE = 100
"""Most labels of a coarse structure: few enough that every unit is moved hundreds of times within seconds."""

NEAREST = 0.75
"""How often units are made along the structure that has about as many labels as units are wanted."""


class Budget:
    """Seconds or simulations, whichever is given; `evaluations` makes a search reproducible on any machine.

    The seconds in which kernels are compiled, once per installation, are not counted.
    """

    def __init__(self, seconds: float | None, evaluations: int | None):
        self.seconds, self.evaluations = seconds, evaluations
        self.began = working_seconds()
        self.stopped = False

    @property
    def elapsed(self) -> float:
        return working_seconds() - self.began

    def part(self, share: float, among: int) -> Budget:
        """A budget of `share` of this one: its seconds side by side, its simulations divided `among` walks."""
        seconds = None if self.seconds is None else self.seconds * share
        count = None if self.evaluations is None else max(int(self.evaluations * share / among), 1)
        return Budget(seconds, count)

    def spent(self, used: int) -> float:
        """Share of the budget that is gone (1: all), given the simulations done."""
        if self.stopped:
            return 1.0
        by_count = 0.0 if self.evaluations is None else used / max(self.evaluations, 1)
        by_time = 0.0 if self.seconds is None else self.elapsed / max(self.seconds, 1e-9)
        return min(1.0, max(by_count, by_time))


class Space:
    """The problem as arrays, shared by all walks (nothing here changes)."""

    def __init__(self, graph: OpGraph, cluster: Cluster, samples: Samples | None = None):
        self.graph, self.cluster = graph, cluster
        self.model = make_model(graph, cluster)
        self.samples = no_samples(graph.n, cluster.n) if samples is None else samples
        if samples is not None:  # the longest path after an op must hold for every sample
            least = np.minimum(self.samples.table.min(axis=0), self.model.table)
            self.model = make_model(graph, cluster, least)._replace(table=self.model.table)
        self.track = memory_matters(self.model)
        self.position = topological_position(graph)
        self.group = groups_of(graph)
        self.allowed = allowed_devices(graph, cluster)
        self.price = transfer_us(graph, cluster)
        self.edge_cost = (self.price / np.maximum(np.diff(graph.consumer_ptr), 1))[graph.edge_tensor]
        self.work = self.model.table.min(axis=1) + 1e-9
        self.groups = make_units(self.group, self.position, self.allowed)

    def weight(self, price: float) -> NDArray[np.float64]:
        """Weights of the cost: `price` microseconds for exceeding the smallest limit by all of it; infinite: not for any time.

        What is remembered as best never pays with bytes.
        """
        never = 1e30 if self.track else 0.0
        smallest = max(float(self.model.limit.min()), 1.0)
        return np.array([1.0, min(price / smallest, never), 0.0, never])

    @cached_property
    def structures(self) -> list[NDArray[np.int64]]:
        """Labels along which units are made, the coarsest first: structures of the graph, then its colocation groups."""
        return [*structures(self.graph, self.group), self.group.astype(np.int64)]

    @cached_property
    def layers(self) -> list[NDArray[np.int64]]:
        """The coarse structures of the graph, the coarsest first; with hardly more parts than devices there is no choice."""
        return [labels for labels in self.structures[:-1] if 2 * self.cluster.n <= labels.max() < COARSE]

    def along(self, wanted: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The labels to make about `wanted` units from: mostly the structure that is nearest to that, else any."""
        if rng.random() < NEAREST:
            return min(self.structures, key=lambda labels: abs(np.log((labels.max() + 1) / wanted)))
        fine = [labels for labels in self.structures if labels.max() >= wanted / 3] or self.structures[-1:]
        return fine[int(rng.integers(0, len(fine)))]

    def units(self, device: NDArray[np.int32], wanted: int | NDArray[np.int64], rng: np.random.Generator) -> Any:
        """About `wanted` units, each on one device; or the units of a structure, given as labels int64[n]."""
        graph = self.graph
        label, count = (wanted, COARSE) if isinstance(wanted, np.ndarray) else (self.along(wanted, rng), wanted)
        label = coarsen(
            label * self.cluster.n + device, device, graph.edge_source, graph.consumers, self.edge_cost, self.work, count, rng
        )  # fmt: skip
        return make_units(label, self.position, self.allowed)


@dataclass
class Walk:
    """One line of search: its own candidate, scratch space and random numbers; `best` is what it has found."""

    space: Space
    rng: np.random.Generator
    name: str = ""
    by_rank: bool = False
    state: Any = None
    used: int = 0

    def __post_init__(self) -> None:
        self.work = make_work(self.space.model)
        self.weight = self.space.weight(np.inf)
        self.kept: tuple[float, Candidate] | None = None

    def begin(self, start: Candidate, afresh: bool = False) -> None:
        """Search on from `start`; `afresh`: what was found before stays known as a result."""
        self.kept = (self.cost, self.best) if afresh and self.state is not None else None
        self.name, self.by_rank = start.name, start.rank is not None
        self.state = make_state(start.device, start.rank)
        self._settle(self._own(self.space.groups))

    @property
    def here(self) -> float:
        """Cost of the best candidate since the search last began afresh."""
        return float(self.state.cost[1])

    @property
    def cost(self) -> float:
        """Cost of the best candidate: its time, plus a prohibitive amount for every byte above a limit."""
        return self.here if self.kept is None else min(self.here, self.kept[0])

    @property
    def best(self) -> Candidate:
        """The best candidate so far."""
        return self.found if self.kept is None or self.here < self.kept[0] else self.kept[1]

    @property
    def found(self) -> Candidate:
        """The best candidate since the search last began afresh."""
        rank = self.state.best_position.astype(np.float64) if self.by_rank else None
        over = float(self.state.cost[3]) if self.space.track else 0.0
        return Candidate(self.name, self.state.best_device.copy(), rank, float(self.state.cost[2]), over)

    def cycle(
        self, share: Budget, levels: Any = LEVELS, parts: float = 0.0, others: Sequence[Candidate] = ()
    ) -> None:  # fmt: skip
        """Coarse to fine: anneal on every level, then, for a share `parts`, in parts of the graph alone, each time from the best.

        Where there are `others`, the cycle begins with taking over what they do better (`search.combine`).

        Temperatures differ from cycle to cycle but on small graphs.
        Where memory may run out, half of the cycles may exceed it on the way, at a price that differs from cycle to cycle.
        """
        soft = self.space.track and self.rng.random() < 0.5
        self.weight = self.space.weight(
            float(self.state.cost[2]) * 10.0 ** self.rng.uniform(-0.5, 1.0) if soft else np.inf
        )
        before, first, last = self.used, COMBINE if others else 0.0, 1.0 - parts
        if others:
            self._combine(others, share, before, first)
        heat = 1.0 if levels is SMALL_LEVELS else float(np.exp(self.rng.uniform(*np.log(HEATS))))
        for k, (wanted, hot, cold) in enumerate(levels):
            back_to_best(self.state)
            units = self.space.units(self.state.device, wanted, self.rng)
            if len(units.ptr) < 2:
                return
            step = (last - first) / len(levels)
            self._level(units, heat * hot, heat * cold, share, before, first + step * k, first + step * (k + 1))
        for k in range(PARTS if parts else 0):
            back_to_best(self.state)
            step = (1.0 - last) / PARTS
            self._level(self._part(), *PART_HEAT, share, before, last + step * k, last + step * (k + 1))
        back_to_best(self.state)

    def _combine(self, others: Sequence[Candidate], share: Budget, before: int, last: float) -> None:
        """Take over what `others` do better, until a share `last` of the budget is spent or none is different."""
        space, turn, left = self.space, 0, list(others)
        back_to_best(self.state)
        own = self._own(space.groups)
        self._settle(own)
        while left and share.spent(self.used - before) < last:
            one = int(self.rng.integers(0, len(left)))
            other = left[one]
            device = renumbered(other.device, self.state.device, space.work, space.cluster.n)
            line = line_of(turn % LINES, space.graph, own.units, space.structures, space.position, self.rng)
            steps = PACE
            if share.evaluations is not None:
                steps = max(1, min(PACE, int(np.ceil(last * share.evaluations)) - (self.used - before)))
            done = combine(
                own.model, own.work, own.units, own.state, own.samples, self.by_rank, space.track, self.weight, line,
                device, positions(other.rank, space.graph.n)[1], other.rank is not None, steps, self.rng,
            )  # fmt: skip
            if done == 0:
                del left[one]
            self.used, turn = self.used + done, turn + 1

    def _part(self) -> Any:
        """Units of a random part of the graph, near each other by edges or in time, as fine as they can be."""
        space, rng = self.space, self.rng
        if rng.random() < 0.5:
            return part(space.groups, around(space.graph, space.groups, PART_UNITS, rng))
        self._settle(self._own(space.groups))
        return part(space.groups, in_time(self.work.start, space.groups, PART_UNITS, rng))

    def _level(
        self, units: Any, hot: float, cold: float, share: Budget, before: int, first: float, last: float
    ) -> None:
        """Anneal `units` between the shares `first` and `last` of a budget, on runs of ops where that is shorter."""
        own = self._own(units)
        form = None
        if self.by_rank and not len(own.samples.table):
            self._settle(own)
            form = shorter(self.space, own)
        if form is None:
            self._anneal(lean(self.space, own), hot, cold, share, before, first, last)
            return
        self._settle(form)
        self._anneal(form, hot, cold, share, before, first, last)
        back_to_best(form.state)
        self._settle(form)
        for device, line in read(form, self.state.position):
            self.state.device[:], self.state.at[:] = device, line
            self.state.position[line] = np.arange(len(line))
            self._settle(own)

    def _own(self, units: Any) -> Form:
        """The ops themselves, of which `units` move."""
        return Form(self.space.model, self.work, self.state, self.space.samples, units)

    def _settle(self, form: Form) -> None:
        settle(form.model, form.work, form.state, form.samples, self.by_rank, self.space.track, self.weight)
        self.used += 1

    def _anneal(
        self, form: Form, hot: float, cold: float, share: Budget, before: int, first: float, last: float
    ) -> None:
        scale, pace = float(form.state.cost[2]), PACE
        while (gone := share.spent(self.used - before)) < last:
            part = min(max((gone - first) / (last - first), 0.0), 1.0)
            temperature = scale * hot * (cold / hot) ** part
            steps = pace
            if share.evaluations is not None:
                left = int(np.ceil(last * share.evaluations)) - (self.used - before)
                steps = max(1, min(1 + share.evaluations // 60, SLICE_STEPS, left))
            began = time.perf_counter()
            self.used += anneal(
                form.model, form.work, form.units, form.state, form.samples, self.by_rank, self.space.track, self.weight,
                temperature, temperature, steps, False, self.rng,
            )  # fmt: skip
            took = max(time.perf_counter() - began, 1e-6)
            pace = max(5, min(200_000, int(steps * SLICE_SECONDS / took)))
