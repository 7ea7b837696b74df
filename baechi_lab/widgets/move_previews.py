"""Previews of moving the selection: the simulated step for every device, or the reason why the ops may not run there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import BaechiLabError
from ..graph import allowed_devices
from ..memo import Memo
from ..step_summary import change_in_words, from_to_in_words
from .compute import Outcome, simulate_under, with_moves_and_replicas
from .moves import move, with_colocated_ops

SECONDS = 4.0
"""Seconds for all previews; devices that are not simulated by then have none."""


@dataclass(frozen=True)
class MovePreview:
    """`change` of the step in few words, for a button; `sentence` for its tooltip."""

    change: str
    sentence: str


def preview_moves(
    outcome: Outcome, ops: Sequence[int], memo: Memo, check: Callable[[], None] = lambda: None
) -> dict[str, MovePreview]:
    """Returns the effect of moving `ops` and their colocation groups to each device, by name.

    Devices that hold all of them already have no entry. `check` is called before each simulation, and may raise to stop.
    """
    setting, graph, began = outcome.setting, outcome.graph, time.monotonic()
    base = move(outcome.base, graph, setting.share, setting.moves)
    allowed = allowed_devices(graph, setting.share)
    moved_ops = with_colocated_ops(graph, np.asarray(ops, dtype=np.int64))
    previews: dict[str, MovePreview] = {}
    for index, name in enumerate(setting.share.names):
        if time.monotonic() - began > SECONDS:
            break
        if (base.device[moved_ops] == index).all():
            continue
        if not allowed[moved_ops, index].all():
            previews[name] = MovePreview("–", "may not run there")
            continue
        check()
        device = base.device.copy()
        device[moved_ops] = index
        placement = with_moves_and_replicas(setting.replace(moves=()), graph, base.replace(device=device))
        try:
            timeline = simulate_under(setting, graph, placement, memo)
        except BaechiLabError as error:  # for example stages that form no pipeline
            previews[name] = MovePreview("–", str(error))
            continue
        before, after = outcome.timeline.makespan_us, timeline.makespan_us
        times = from_to_in_words(before, after)
        if timeline.feasible:
            previews[name] = MovePreview(change_in_words(after, before), f"step time {times}")
        else:
            previews[name] = MovePreview("full", f"step time {times}, but it does not fit in memory")
    return previews
