"""What is found by name works by name: every pass, scheduler and reader, new ones as well, on a few random cases.

Placers have theirs in `placers/test_properties.py`, kernels in `test_without_numba.py`. None of these tests is slow, so the
fast tests cover everything that is registered; the last test sees to that.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from random_cases import random_cluster, random_graph

import baechi_lab as bl
from baechi_lab.graph.formats import files
from baechi_lab.passes import list_passes
from baechi_lab.simulator.schedulers import SCHEDULERS

TESTS = Path(__file__).parent


@pytest.mark.parametrize("name", list_passes())
def test_every_pass(name):
    """The same graph twice gives the same bytes; the input stays; whatever is placed on the result is a valid step."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        graph, cluster = random_graph(rng, groups=True), random_cluster(rng)
        before = graph.key
        coarse = bl.optimize(graph, cluster, passes=(name,))
        assert graph.key == before and coarse.key == bl.optimize(graph, cluster, passes=(name,)).key
        placement = bl.place(coarse, cluster, "m-etf")
        assert bl.check(coarse, cluster, placement, bl.simulate(coarse, cluster, placement)) == ()


@pytest.mark.parametrize("name", SCHEDULERS.names())
def test_every_scheduler(name):
    rng = np.random.default_rng(0)
    for _ in range(20):
        graph, cluster = random_graph(rng), random_cluster(rng)
        placement = bl.Placement(device=rng.integers(0, cluster.n, graph.n), order=rng.permutation(graph.n))
        timeline = bl.simulate(graph, cluster, placement, name)
        assert bl.check(graph, cluster, placement, timeline) == ()
        assert bl.bounds(graph, cluster).best <= timeline.makespan_us * (1 + 1e-12)


def test_every_reader(tmp_path):
    """Every `load_...` reads what was saved, and refuses what is another's."""
    graph, cluster = bl.OpGraph.from_edges([2.0, 3.0], [(0, 1, 4)]), bl.Cluster.uniform(2)
    placement = bl.place(graph, cluster, "heft")
    timeline = bl.simulate(graph, cluster, placement)
    records = {"load_graph": graph, "load_cluster": cluster, "load_placement": placement, "load_timeline": timeline}
    assert sorted(records) == sorted(name for name in vars(files) if name.startswith("load_"))
    for name, record in records.items():
        for ending in (".json", ".json.gz"):
            files.save(record, tmp_path / f"{name}{ending}")
            assert repr(getattr(files, name)(tmp_path / f"{name}{ending}")) == repr(record)
        for other_name in records.keys() - {name}:
            with pytest.raises(bl.FormatError):
                getattr(files, other_name)(tmp_path / f"{name}.json")


@pytest.mark.parametrize("file", ["placers/test_properties.py", "test_registered.py"])
def test_none_of_these_is_slow(file):
    names = {
        node.attr for node in ast.walk(ast.parse((TESTS / file).read_text("utf-8"))) if isinstance(node, ast.Attribute)
    }
    assert "slow" not in names
