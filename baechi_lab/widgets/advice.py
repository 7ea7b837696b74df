"""Advice: simulated changes of a setting with the step before and after each, and the smallest change that makes it fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ..errors import BaechiLabError
from ..fitting.record import KEPT_IN_WORDS
from ..graph import OpGraph, Placement, Step, Timeline
from ..graph.units import format_bytes, format_us, plural
from ..internal_warnings import collected_notes
from ..memo import Memo
from ..passes.optimize import PASSES
from ..placers.auto import Auto
from ..placers.memory_trades.memory_ladder import FAST_PLACERS
from ..placers.registry import placer_class
from ..simulator.schedulers import SCHEDULERS
from ..step_summary import (
    AT_THE_BOUND,
    coarse_in_words,
    from_to_in_words,
    shorter_passes,
    too_coarse,
)
from .compute import (
    Outcome,
    Report,
    Subject,
    compute,
    is_torch_step,
    optimize_under,
    place_groups_under,
    place_under,
    silent,
    simulate_under,
    source,
    with_moves_and_replicas,
)
from .setting import Setting

QUICK = ("single", "m-topo", "m-etf", "contiguous")
"""Placers that `auto` runs when advice only tries whether a setting fits or is faster."""
QUICK_FOR_PIPELINES = (*QUICK, "metis", "scotch")
"""The same for a step in micro-batches, where the best cut of a line is often slower than a cut of the graph."""
SECONDS, BETTER = 2.0, 0.995
"""What was placed in less is placed in other groups by the same placer. Steps that are hardly shorter are no advice."""
MOST_OPS = 60_000
"""Most ops or groups that are placed again for advice, and most ops of a step in micro-batches: seconds in the background."""
MOST_OPS_OF_AUTO = 25_000
"""Most ops that every placer of `auto` places for advice: 3 processor seconds. Above, it asks the `QUICK` placers alone."""
MICRO_BATCHES, PIPELINE = 8, "1f1b"  # first number that is tried, and the schedule
ONE_AT_A_TIME = 1.1
"""Mean number of busy devices up to which devices are said to work one at a time."""
MOST_ADVICE, MOST_CHARACTERS = 2, 85
"""Most advices on the screen, and most characters of a cause."""
GROUPED_OPS = {
    True: ("forward only: backward ops go where their forward ops are", "Place forward ops only"),
    False: ("not forward only: backward ops are placed on their own", "Place backward ops, too"),
}
"""The advice for each value of the control "forward only", and the text of its button."""


@dataclass(frozen=True)
class Advice:
    """A change of the setting in words, with the text of the button that applies it.

    Two causes stand beside each other on a low screen, each on two lines: `cause` has at most `MOST_CHARACTERS`, and what it
    leaves out stands in `details`, its tooltip. `before_us` and `after_us` are simulated steps; NaN where the previous setting
    had no placement. `notes` are what the package warned of under the changed setting.
    """

    cause: str
    button: str
    changes: Mapping[str, Any]
    before_us: float = float("nan")
    after_us: float = float("nan")
    notes: tuple[str, ...] = ()
    details: str = ""

    @property
    def sentence(self) -> str:
        """The advice in words, with the step before and after.

        >>> Advice("same placement, order pct", "Use pct", {}, 422_800.0, 351_800.0).sentence
        'same placement, order pct: 422.8 -> 351.8 ms'
        """
        return f"{self.cause}: {self.change}" if self.change else self.cause

    @property
    def change(self) -> str:
        """The step before and after; empty if there was none before."""
        return from_to_in_words(self.before_us, self.after_us)


STAGES = Advice(
    "contiguous places single ops in stages that follow each other",
    "Place stages",
    {"placer": "contiguous", "params": {}, "passes": (), "moves": ()},
)
"""Remedy if a schedule needs pipeline stages and the placement has none, since groups of ops need not form stages."""


def quick_advice(outcome: Outcome, subject: Subject | None, memo: Memo, report: Report = silent) -> tuple[Advice, ...]:
    """Returns the advice that is quick to find: another order; if the outcome does not fit, passes or recomputation that do."""
    setting, before_us = outcome.setting, outcome.timeline.makespan_us
    if not outcome.timeline.feasible:
        passes = fitting_passes(setting, outcome.graph, memo, report)
        recomputation = fitting_recomputation(setting, subject, memo, report, before_us)
        return tuple(advice for advice in (passes, recomputation) if advice)
    return () if outcome.gap < AT_THE_BOUND else best_advice([*_other_order(outcome, memo)])


def all_advice(
    outcome: Outcome,
    subject: Subject | None,
    memo: Memo,
    report: Report = silent,
    on_advice: Callable[[tuple[Advice, ...]], None] = lambda advice: None,
) -> tuple[Advice, ...]:
    """Returns changes that make the step shorter, largest gain first: another order, groups, placer, micro-batches.

    `on_advice` is called with the best advice so far when there is better. What `report` raises ends the search.
    """
    if not outcome.timeline.feasible:
        return quick_advice(outcome, subject, memo, report)
    searches: list[Iterator[Advice]] = []
    if not outcome.gap < AT_THE_BOUND:
        searches = [
            _other_order(outcome, memo),
            _groups_of_other_ops(outcome, memo, report),
            _finer_groups(outcome, memo, report),
            _single_ops(outcome, memo, report),
            _other_placement(outcome, memo, report),
        ]
    searches.append(_micro_batches_of_step(outcome, subject, memo, report))
    candidates: list[Advice] = []
    best: tuple[Advice, ...] = ()
    for candidate in chain.from_iterable(searches):
        candidates.append(candidate)
        if best != (best := best_advice(candidates)):
            on_advice(best)
    # Several steps do other work than one, so this advice comes last.
    several_steps = best_advice([*_micro_batches_of_graph(outcome, memo, report)])
    return (*best, *several_steps)[:MOST_ADVICE]


def best_advice(candidates: list[Advice]) -> tuple[Advice, ...]:
    """Returns the advice with the largest gains.

    Of changes that lead to the same step it is the first one, and of those with the same button the one with the largest gain.
    """
    first_with_step: dict[float, Advice] = {}
    for advice in candidates:
        if advice.after_us < BETTER * advice.before_us:
            first_with_step.setdefault(float(f"{advice.after_us:.9g}"), advice)
    best_with_button: dict[str, Advice] = {}
    for advice in sorted(first_with_step.values(), key=lambda a: a.after_us / a.before_us):
        best_with_button.setdefault(advice.button, advice)
    return tuple(best_with_button.values())[:MOST_ADVICE]


def _other_order(outcome: Outcome, memo: Memo) -> Iterator[Advice]:
    """Yields the advice to run the same placement under the scheduler with the shortest step."""
    setting = outcome.setting
    if setting.schedule is not None:
        return
    steps = _steps_of_orders(setting, outcome.graph, outcome.placement, memo)
    steps.pop(setting.scheduler, None)  # the order on the screen
    best = min(steps, key=lambda name: steps[name])
    cause, button = f"same placement, {_order_in_words(best, setting)}", f"Use {best or 'the planned order'}"
    yield Advice(cause, button, {"scheduler": best}, outcome.timeline.makespan_us, steps[best])


def _steps_of_orders(setting: Setting, graph: OpGraph, placement: Placement, memo: Memo) -> dict[str | None, float]:
    """Returns the step of a placement under every scheduler; None is the order that its placer planned, if it did."""
    names: list[str | None] = [name for name in SCHEDULERS.names() if name != "planned"]
    if placement.rank is not None:
        names.insert(0, None)
    return {name: _simulated_us(setting.replace(scheduler=name), graph, placement, memo) for name in names}


def _order_in_words(scheduler: str | None, setting: Setting) -> str:
    return f"order {scheduler}" if scheduler else f"the order that {setting.placer} planned"


def _simulated_us(setting: Setting, graph: OpGraph, placement: Placement, memo: Memo) -> float:
    """Returns the step of a placement of a graph under another setting; infinite if it does not fit."""
    try:
        timeline = simulate_under(setting, graph, placement, memo)
    except BaechiLabError:
        return float("inf")
    return timeline.makespan_us if timeline.feasible else float("inf")


def _groups_of_other_ops(outcome: Outcome, memo: Memo, report: Report) -> Iterator[Advice]:
    """Yields the advice to place forward ops alone, or backward ops on their own, by the same rule and in the best order."""
    setting = outcome.setting
    is_rule = setting.placer != Auto.name and not placer_class(setting.placer).anytime
    if not is_rule or not setting.passes or setting.moves or setting.pipeline or not _is_placed_quickly(outcome):
        return
    for forward_only, (cause, button) in GROUPED_OPS.items():
        changed_setting = setting.replace(forward_only=forward_only)
        coarse = optimize_under(changed_setting, outcome.graph, memo)
        shown_groups = outcome.coarse.group_of
        if coarse.group_of is None or (shown_groups is not None and np.array_equal(coarse.group_of, shown_groups)):
            continue
        report(f"is it faster with {cause}?", 0.97)
        try:
            base = place_under(changed_setting, coarse, memo, report)
            placement = with_moves_and_replicas(changed_setting, outcome.graph, base)
        except BaechiLabError:  # no placement of these groups fits
            continue
        steps = _steps_of_orders(setting, outcome.graph, placement, memo)
        best = min(steps, key=lambda name: (steps[name], name != setting.scheduler))
        order = "" if best == setting.scheduler else f", {_order_in_words(best, setting)}"
        changes = {"forward_only": forward_only, "scheduler": best}
        yield Advice(f"{cause}{order}", button, changes, outcome.timeline.makespan_us, steps[best])


def _is_placed_quickly(outcome: Outcome) -> bool:
    """Whether other groups can be placed by the same placer, also where the first call waited for other programs."""
    is_fast = outcome.setting.placer in FAST_PLACERS and outcome.coarse.n <= MOST_OPS
    return is_fast or outcome.base.seconds <= SECONDS


def _finer_groups(outcome: Outcome, memo: Memo, report: Report) -> Iterator[Advice]:
    """Yields the advice to leave out the fewest passes with which the step is shorter, where groups can be divided.

    The same placer is tried unless it took long, and the `QUICK` placers.
    """
    setting, before = outcome.setting, outcome.timeline.makespan_us
    if not too_coarse(outcome.graph, outcome.coarse, setting.cluster):
        return
    by_quick = f", {fastest_of(QUICK)}"
    placers: dict[str, dict[str, object]] = {"": {}} if _is_placed_quickly(outcome) else {}
    if setting.placer != Auto.name or not placers:
        placers[by_quick] = _asking_quick_placers(setting)
    for passes in shorter_passes(setting.passes):
        finer_setting = setting.replace(passes=passes, moves=())
        if too_coarse(outcome.graph, optimize_under(finer_setting, outcome.graph, memo), setting.cluster):
            continue
        report(f"is it faster with {', '.join(passes) or 'no passes'}?", 0.97)
        steps = {by: _step_us(finer_setting.replace(**change), outcome, memo, report) for by, change in placers.items()}
        by = min(steps, key=lambda text: steps[text])
        if steps[by] < BETTER * before:
            left_out = _without(setting.passes, passes)
            cause = f"only {outcome.coarse.n:,} {plural('group', outcome.coarse.n)} to place; {left_out}{by}"
            details = "; ".join([coarse_in_words(outcome.coarse), *([all_named(QUICK)] if by else [])])
            changes = {"passes": passes, "moves": (), **placers[by]}
            button = "Place smaller groups" if passes else "Place single ops"
            yield Advice(cause, button, changes, before, steps[by], details=details)
            return


def _single_ops(outcome: Outcome, memo: Memo, report: Report) -> Iterator[Advice]:
    """Yields the advice to have `auto` place single ops, where groups are placed."""
    setting, graph = outcome.setting, outcome.graph
    if outcome.coarse is graph or graph.n > MOST_OPS or setting.moves or setting.pipeline or setting.cluster.n == 1:
        return
    cause, details = f"single ops instead of groups, placed by {Auto.name}", ""
    params: dict[str, object] = {**(setting.params if setting.placer == Auto.name else {}), "optimized": False}
    if graph.n > MOST_OPS_OF_AUTO:
        cause, details = f"single ops instead of groups, placed {fastest_of(QUICK)}", all_named(QUICK)
        params["placers"] = QUICK
    changes = {"placer": Auto.name, "params": params, "passes": (), "scheduler": None}
    report(f"is it faster: {cause}?", 0.97)
    after = _step_us(setting.replace(**changes), outcome, memo, report)
    yield Advice(cause, "Place single ops (auto)", changes, outcome.timeline.makespan_us, after, details=details)


def _other_placement(outcome: Outcome, memo: Memo, report: Report) -> Iterator[Advice]:
    """Yields the advice to place groups instead of single ops, or to use a quick placer, if the placer is a rule."""
    setting = outcome.setting
    ask_all = setting.placer != Auto.name and not placer_class(setting.placer).anytime
    if not ask_all or setting.moves or setting.cluster.n == 1:
        return
    options: dict[tuple[str, str, str], dict[str, object]] = {}
    if setting.pipeline:
        if (setting.micro_batches or 1) * outcome.graph.n <= MOST_OPS:
            words, details = f"single ops, placed {fastest_of(QUICK_FOR_PIPELINES)}", all_named(QUICK_FOR_PIPELINES)
            options[words, "Ask these placers (auto)", details] = _FOR_PIPELINES
            if setting.schedule:
                free_changes = {**_FOR_PIPELINES, "schedule": None, "scheduler": None}
                options[f"without a schedule, {words}", "Use no schedule", details] = free_changes
        yield from _simulated_options(options, outcome, memo, report)
        return
    if not setting.passes and outcome.timeline.makespan_us > outcome.one_device_us:
        options["groups of ops instead of single ones", "Place groups of ops", ""] = {"passes": PASSES}
    if outcome.coarse.n <= MOST_OPS:
        options[f"placed {fastest_of(QUICK)}", "Ask these placers (auto)", all_named(QUICK)] = _asking_quick_placers(
            setting
        )
    yield from _simulated_options(options, outcome, memo, report)


def _simulated_options(
    options: Mapping[tuple[str, str, str], dict[str, object]], outcome: Outcome, memo: Memo, report: Report
) -> Iterator[Advice]:
    """Yields an advice for each change of the setting, by its cause, the text of its button and its details."""
    for (cause, text, details), changes in options.items():
        report(f"is it faster: {cause}?", 0.97)
        after = _step_us(outcome.setting.replace(**changes), outcome, memo, report)
        yield Advice(cause, text, changes, outcome.timeline.makespan_us, after, details=details)


def works_one_at_a_time(outcome: Outcome) -> bool:
    """Whether the placement uses several devices and hardly ever two of them at once."""
    timeline = outcome.timeline
    return outcome.setting.cluster.n > 1 and float(timeline.busy_us.sum()) <= ONE_AT_A_TIME * timeline.makespan_us


def _micro_batches_of_graph(outcome: Outcome, memo: Memo, report: Report) -> Iterator[Advice]:
    """Yields the advice to pipeline several whole steps, for a graph that cannot be built for a smaller batch."""
    setting = outcome.setting
    if (
        outcome.step is not None
        or setting.takes_batches
        or setting.pipeline
        or setting.cluster.n == 1
        or not works_one_at_a_time(outcome)
    ):
        return
    count = next((m for m in (MICRO_BATCHES, 4, 2) if m * outcome.graph.n <= MOST_OPS), 0)
    if not count:
        return
    cause = f"one device works at a time; {count} such steps at once as micro-batches{{}}"
    before = count * outcome.timeline.makespan_us
    yield from _pipelines(setting, count, lambda _: outcome.graph, cause, before, memo, report)


def _micro_batches_of_step(outcome: Outcome, subject: Subject | None, memo: Memo, report: Report) -> Iterator[Advice]:
    """Yields the advice to cut the batch into micro-batches, for a model that can be built again. Building takes seconds."""
    setting, step = outcome.setting, outcome.step
    is_torch = is_torch_step(step)  # its batch can be cut
    batch = outcome.samples if is_torch else setting.batch_size
    rebuilt = is_torch or setting.takes_batches or (isinstance(step, Step) and step.built_from is not None)
    if not rebuilt or setting.profile != "estimated" or batch is None or setting.pipeline:
        return
    count = next((m for m in (MICRO_BATCHES, 4, 2) if batch % m == 0 and m * outcome.graph.n <= MOST_OPS), 0)
    if not count or not works_one_at_a_time(outcome):
        return
    build = lambda changed_setting: source(changed_setting, subject, memo, report)[1]  # noqa: E731
    cause = f"one device works at a time; {count} micro-batches{{}}"
    yield from _pipelines(setting, count, build, cause, outcome.timeline.makespan_us, memo, report)


def _pipelines(
    setting: Setting,
    count: int,
    build: Callable[[Setting], OpGraph],
    cause: str,
    before: float,
    memo: Memo,
    report: Report,
) -> Iterator[Advice]:
    """Yields the ways to run `count` micro-batches that fit; `cause` has a place for the order in words."""
    for changes in _pipeline_options(count):
        changed_setting = setting.replace(**changes)
        order = f" under {PIPELINE.upper()}" if changed_setting.schedule else f", {fastest_of(QUICK_FOR_PIPELINES)}"
        report(f"is it faster with {count} micro-batches{order}?", 0.98)
        try:
            with collected_notes() as notes:
                graph = build(changed_setting)
                base = place_under(changed_setting, optimize_under(changed_setting, graph, memo), memo, report)
                placement = with_moves_and_replicas(changed_setting, graph, base)
                if changed_setting.schedule:
                    steps: dict[str | None, float] = {None: _simulated_us(changed_setting, graph, placement, memo)}
                else:
                    steps = _steps_of_orders(changed_setting, graph, placement, memo)
        except BaechiLabError:  # no stages, or they do not fit
            continue
        scheduler = min(steps, key=lambda name: steps[name])
        changes["scheduler"] = scheduler
        details = "placed in stages by contiguous"
        if not changed_setting.schedule:
            order, details = f", order {scheduler or 'planned'}", all_named(QUICK_FOR_PIPELINES)
        button = f"Use {count} micro-batches"
        yield Advice(cause.format(order), button, changes, before, steps[scheduler], tuple(notes), details)


_FOR_PIPELINES: dict[str, object] = {"placer": Auto.name, "params": {"placers": QUICK_FOR_PIPELINES}, "passes": ()}


def _pipeline_options(count: int) -> tuple[dict[str, object], ...]:
    """Returns the changes of a setting that divide the step into `count` micro-batches, with and without a schedule."""
    shared: dict[str, object] = {"micro_batches": count, "moves": (), "scheduler": None, "passes": ()}
    stages = {**shared, "placer": "contiguous", "params": {}, "schedule": PIPELINE}
    return stages, {**shared, **_FOR_PIPELINES, "schedule": None}


def fastest_of(placers: tuple[str, ...]) -> str:
    """Says how many placers `auto` asks."""
    return f"by the fastest of {len(placers)} placers"


def all_named(placers: tuple[str, ...]) -> str:
    """Names the placers that `auto` asks."""
    return f"{Auto.name} asks {', '.join(placers)}"


def _asking_quick_placers(setting: Setting) -> dict[str, object]:
    """Returns the changes of a setting that make `auto` run the quick placers; its other parameters stay."""
    own_params = setting.params if setting.placer == Auto.name else {}
    return {"placer": Auto.name, "params": {**own_params, "placers": QUICK}}


def _step_us(setting: Setting, outcome: Outcome, memo: Memo, report: Report) -> float:
    """Returns the simulated step under another setting of the same graph; infinite if it does not fit."""
    try:
        timeline = placed_timeline(setting, outcome.graph, memo, report)
    except BaechiLabError:  # no placement, or no stages
        return float("inf")
    return timeline.makespan_us if timeline.feasible else float("inf")


def _without(passes: tuple[str, ...], kept_passes: tuple[str, ...]) -> str:
    """Names the passes that are left out: `without fusion`, or all passes."""
    left_out = " and ".join(name for name in passes if name not in kept_passes)
    return f"without {left_out if kept_passes else 'passes'}"


def fitting_passes(setting: Setting, graph: OpGraph, memo: Memo, report: Report = silent) -> Advice | None:
    """Returns the most passes under which the placer's placement fits; None if no subset of the passes does."""
    quick = _asking_quick_placers(setting) if setting.placer == Auto.name else {}
    for passes in shorter_passes(setting.passes):
        changes = {"passes": passes, "moves": (), **quick}
        report(f"does it fit with {', '.join(passes) or 'no passes'}?", 0.6)
        with suppress(BaechiLabError):  # this one does not fit either
            timeline = placed_timeline(setting.replace(**changes), graph, memo, report)
            if timeline.feasible:
                left_out = _without(setting.passes, passes)
                return Advice(f"{left_out} {_fits_in_words(timeline)}", f"Place {left_out}", changes)
    return None


def fitting_recomputation(
    setting: Setting, subject: Subject | None, memo: Memo, report: Report = silent, before_us: float = float("nan")
) -> Advice | None:
    """Returns the first recomputation with which the step fits; None if none does.

    The placer of the setting is tried before the `QUICK` placers. The step without recomputation takes `before_us`.
    """
    original_graph = source(setting, subject, memo)[1]
    quick = _asking_quick_placers(setting)
    for placing in [quick] if setting.placer == Auto.name else [{}, quick]:
        for keep, words in KEPT_IN_WORDS.items():
            changes: dict[str, object] = {"recompute": keep, "moves": (), **placing}
            changed_setting = setting.replace(**changes)
            report(f"does it fit with recomputation ({keep})?", 0.6)
            with suppress(BaechiLabError), collected_notes() as notes:
                graph = source(changed_setting, subject, memo)[1]
                if graph is original_graph:
                    continue
                timeline = placed_timeline(changed_setting, graph, memo, report)
                if timeline.feasible:
                    after_us = timeline.makespan_us
                    step = "" if math.isfinite(before_us) else f" and a step of {format_us(after_us)}"
                    cause = f"with recomputation {_fits_in_words(timeline)}{step}"
                    button, details = f"Recompute ({keep})", f"{keep}: {words}"
                    return Advice(cause, button, changes, before_us, after_us, tuple(notes), details)
    return None


def placed_timeline(setting: Setting, graph: OpGraph, memo: Memo, report: Report) -> Timeline:
    """Places a graph under a setting and simulates it."""
    coarse = optimize_under(setting, graph, memo)
    base = place_groups_under(setting, graph, coarse, memo, report)[1]
    return simulate_under(setting, graph, with_moves_and_replicas(setting, graph, base), memo)


def _fits_in_words(timeline: Timeline) -> str:
    return f"it fits, with a peak of {format_bytes(int(timeline.peak_bytes.max(initial=0)))}"


@dataclass(frozen=True, eq=False)
class FittingChange:
    """A changed setting that fits, in place of one that does not: its outcome, and the field that was changed."""

    outcome: Outcome
    changed: str


def find_fitting_change(setting: Setting, subject: Subject | None, memo: Memo) -> FittingChange | None:
    """Finds the smallest change that makes a setting fit: passes, the placer, recomputation, more devices; None if none does."""
    for changed_field, changes in _fitting_changes(setting, subject, memo):
        try:
            outcome = compute(setting.replace(**changes), subject, memo)
        except BaechiLabError:
            continue
        if outcome.timeline.feasible:
            return FittingChange(outcome, changed_field)
    return None


def _fitting_changes(
    setting: Setting, subject: Subject | None, memo: Memo
) -> Iterator[tuple[str, Mapping[str, object]]]:
    for passes in shorter_passes(setting.passes):
        yield "passes", {"passes": passes, "moves": ()}
    quick = _asking_quick_placers(setting)
    if setting.placer != Auto.name:
        yield "placer", {**quick, "moves": ()}
        yield "passes and placer", {**quick, "passes": (), "moves": ()}
    if advice := fitting_recomputation(setting, subject, memo):
        yield f"recompute ({setting.recompute or 'nothing'} to {advice.changes['recompute']})", advice.changes
    for count in (setting.cluster.n * factor for factor in (2, 4, 8, 16)):
        if count <= 64 and len(np.unique(setting.cluster.memory_bytes)) == 1:
            yield f"devices ({setting.cluster.n} to {count})", {"cluster": setting.cluster.resized(count), **quick}
