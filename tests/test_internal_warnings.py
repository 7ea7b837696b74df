"""Warnings that one part of the package takes from another stay in their thread."""

import threading
import warnings

import pytest

import baechi_lab as bl
from baechi_lab.internal_warnings import collected_warnings, warn

CHAIN = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 8), (1, 2, 8)], forward_of=[-1, -1, 0], names=["x", "y", "x_grad"])


def test_a_thread_that_collects_takes_nothing_from_others():
    """`fit` in a workbench's thread had replaced the filters of the process: the cell that ran meanwhile warned of nothing."""
    collecting, end, collected = threading.Event(), threading.Event(), []

    def collect():
        with collected_warnings() as messages:
            bl.recompute(CHAIN, drop=["y"])
            collecting.set()
            end.wait(60)
        collected.extend(messages)

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        assert collecting.wait(60)
        with pytest.warns(UserWarning, match="recomputing saves nothing here"):
            bl.recompute(CHAIN, drop=["y"])
    finally:
        end.set()
        thread.join()
    assert [message.partition(":")[0] for message in collected] == ["recomputing saves nothing here"]


def test_filters_stay_as_they_are():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filters = list(warnings.filters)
        with collected_warnings() as outer:
            warn("first", stacklevel=1)
            with collected_warnings() as inner:
                warn("second", stacklevel=1)
            assert warnings.filters == filters
        assert (outer, inner) == (["first"], ["second"])
        with pytest.raises(UserWarning, match="third"):
            warn("third", stacklevel=1)
