"""What keeps a setting from a better answer, in one sentence, and the change of the setting that mends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BaechiLabError
from ..graph import OpGraph
from ..graph.units import format_bytes
from ..memo import Memo
from ..passes.optimize import PASSES
from ..placers.auto import Auto
from ..step_summary import (
    AT_THE_BOUND,
    SLOWER,
    WELL_DIVIDED,
    against_one_device,
    change_in_words,
    coarse_in_words,
    finer,
    too_coarse,
)
from .compute import Outcome, Report, laid_out, optimized, placed, silent, simulated
from .setting import Setting

QUICK = ("single", "m-topo", "m-etf", "contiguous")
"""Whom `auto` asks when it is only tried whether anything fits."""
SECONDS, BETTER = 2.0, 0.995
"""A setting that took less is tried in its finer form before that is offered: is its step that much shorter?"""


@dataclass(frozen=True)
class Remedy:
    """What is wrong, the words of the button that mends it, and the fields of the setting that it changes."""

    sentence: str
    button: str
    changes: Mapping[str, Any]


STAGES = Remedy(
    "contiguous places single ops in stages that follow each other",
    "Place stages",
    {"placer": "contiguous", "params": {}, "passes": (), "moves": ()},
)
"""Where a schedule needs stages, and a placement has none; groups of ops need not have any either."""


def remedy_of(outcome: Outcome, memo: Memo, report: Report = silent) -> Remedy | None:
    """What to change about an outcome: memory first, then passes, then the placer; None where nothing is seen.

    Raises:
        what `report` raises.
    """
    setting = outcome.setting
    if not outcome.timeline.feasible:
        return fitting_passes(setting, outcome.graph, memo, report)
    if outcome.gap < AT_THE_BOUND:
        return None
    divided = outcome.timeline.makespan_us <= WELL_DIVIDED * outcome.one_device_us
    if not divided and too_coarse(outcome.graph, outcome.coarse, setting.cluster):
        return _finer_groups(outcome, memo, report)
    slower = outcome.timeline.makespan_us > SLOWER * outcome.one_device_us
    if not slower or setting.moves or setting.cluster.n == 1:
        return None
    comparison = against_one_device(outcome.timeline.makespan_us, outcome.one_device_us)
    if not setting.passes and setting.placer != Auto.name:
        return Remedy(f"{comparison}: ops are placed one by one", "Place groups of ops", {"passes": PASSES})
    if setting.placer != Auto.name:
        changes = {"placer": Auto.name, "params": {}}
        return Remedy(f"{comparison}: another placer may do better", "Ask every placer (auto)", changes)
    return None


def _finer_groups(outcome: Outcome, memo: Memo, report: Report) -> Remedy | None:
    """The most passes that leave something to divide and whose step is shorter; None where none is.

    What took long is not asked twice: `QUICK` placers stand in, and where these are faster, so is more than they.
    """
    setting, before = outcome.setting, outcome.timeline.makespan_us
    own_params = setting.params if setting.placer == Auto.name else {}
    quick = {"placer": Auto.name, "params": {**own_params, "placers": QUICK}} if outcome.seconds > SECONDS else {}
    asks_all = setting.placer == Auto.name and not setting.params.get("placers")
    for passes in finer(setting.passes):
        changed = setting.replace(passes=passes, moves=(), **quick)
        groups = optimized(changed, outcome.graph, memo)
        if too_coarse(outcome.graph, groups, setting.cluster):
            continue
        report(f"is it faster with {', '.join(passes) or 'no passes'}?", 0.97)
        step_us = _step_us(changed, outcome, memo)
        if step_us < BETTER * before:
            faster = f"and {change_in_words(step_us, before)} without these passes"
            faster += f", placed by {Auto.name} among {', '.join(QUICK)}" if quick else ""
            changes = {"passes": passes, **({} if asks_all else quick)}
            return Remedy(f"{coarse_in_words(outcome.coarse)}, {faster}", _without(setting.passes, passes), changes)
    return None


def _step_us(setting: Setting, outcome: Outcome, memo: Memo) -> float:
    """The simulated step under another setting of the same graph; infinite where it does not fit."""
    try:
        base = placed(setting, optimized(setting, outcome.graph, memo), memo)
        line = simulated(setting, outcome.graph, laid_out(setting, outcome.graph, base), memo)
    except BaechiLabError:  # no placement, or no stages
        return float("inf")
    return line.makespan_us if line.feasible else float("inf")


def _without(passes: tuple[str, ...], kept_passes: tuple[str, ...]) -> str:
    """The words of a button: `Place without fusion`, or without passes at all."""
    return "Place without " + (
        " and ".join(name for name in passes if name not in kept_passes) if kept_passes else "passes"
    )


def fitting_passes(setting: Setting, graph: OpGraph, memo: Memo, report: Report = silent) -> Remedy | None:
    """The most passes under which the placer's answer fits; None where there are none, or it never fits."""
    tried = setting.replace(params={**setting.params, "placers": QUICK}) if setting.placer == Auto.name else setting
    for passes in finer(setting.passes):
        changed = tried.replace(passes=passes)
        report(f"does it fit with {', '.join(passes) or 'no passes'}?", 0.6)
        try:
            base = placed(changed, optimized(changed, graph, memo), memo, report)
            line = simulated(changed, graph, laid_out(changed.replace(moves=()), graph, base), memo)
        except BaechiLabError:  # this one does not fit either
            continue
        if line.feasible:
            button, peak = _without(setting.passes, passes), format_bytes(int(line.peak_bytes.max(initial=0)))
            left_out = button.removeprefix("Place ")
            return Remedy(f"{left_out} it fits, with a peak of {peak}", button, {"passes": passes})
    return None
