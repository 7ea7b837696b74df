"""Kernels are compiled once per signature: callers pass arrays of one layout, of which all or none can be written."""

import numpy as np
import pytest
from readable import readable

from baechi_lab import Cluster, Device, Link, OpGraph, Placement, robustness, simulate
from baechi_lab.graph import generators
from baechi_lab.memory import peak
from baechi_lab.placers.pipeline_stages.device_chain import make_device_chain
from baechi_lab.placers.pipeline_stages.pipeline_units import make_pipeline_units
from baechi_lab.placers.search import reduced
from baechi_lab.placers.search.instance import Instance
from baechi_lab.placers.search.reduced import merged_model
from baechi_lab.simulator import buffer_reuse, kernel, paths

typeof = pytest.importorskip("numba").typeof
CLUSTER = Cluster.uniform(3, memory_bytes=1 << 30, link=Link(20.0, 0.001))


def signatures(monkeypatch, modules, kernel_name, calls):
    """Signatures with which the calls call a kernel of the modules."""
    recorded = set()

    def recording(kernel):
        def record(*arguments):
            recorded.add(tuple(map(typeof, arguments)))
            return readable(kernel)(*arguments)  # which compiles nothing

        return record

    for module in modules:
        monkeypatch.setattr(module, kernel_name, recording(getattr(module, kernel_name)))
    for call in calls:
        call()
    return recorded


def test_bug_the_search_was_compiled_twice_for_runs_of_ops():
    instance = Instance(generators.random_dag(40, seed=1), CLUSTER)
    by_op = np.arange(40)
    assert typeof(merged_model(instance, by_op, by_op, instance.graph.order.astype(np.int64))) == typeof(instance.model)


def test_bug_buffers_were_compiled_three_times(monkeypatch):
    graph = OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (1, 2, 30)], reuse=[0, 1, 0])
    calls = [
        lambda: peak.reuse_peak(graph, graph.order),  # int32
        lambda: peak.reuse_peak(graph, np.arange(3)),
        lambda: simulate(graph, CLUSTER, Placement(device=[0, 1, 1])),
    ]
    assert len(signatures(monkeypatch, (peak, buffer_reuse), "apply_events", calls)) == 1


def test_bug_line_cuts_were_compiled_for_columns_and_for_rows():
    chain = generators.pipeline([8.0, 11.0, 2.0, 1.0], [16.0, 22.0, 4.0, 2.0], output_bytes=4)
    two_kinds = Cluster([Device("fast", "gpu", 1 << 30, speed=3.0), Device("slow", "gpu", 1 << 30)], Link(20.0, 0.001))
    chains = [
        make_device_chain(make_pipeline_units(chain, cluster), cluster, range(cluster.n), sum=False, replicas=False)
        for cluster in (CLUSTER, two_kinds)
    ]
    assert typeof(chains[0]) == typeof(chains[1])


@pytest.mark.parametrize("kernel_name", ["tails", "_heads"])
def test_bug_longest_paths_were_compiled_for_weights_that_cannot_be_written(kernel_name, monkeypatch):
    graph = generators.random_dag(40, seed=1)
    assert not graph.duration_us.flags.writeable
    calls = [
        lambda: paths.heads_and_tails(graph, graph.duration_us),
        lambda: paths.heads_and_tails(graph, graph.duration_us.copy()),
    ]
    assert len(signatures(monkeypatch, [paths], kernel_name, calls)) == 1


def test_bug_longest_paths_were_compiled_for_runs_of_ops(monkeypatch):
    instance = Instance(generators.random_dag(40, seed=1), CLUSTER)
    graph, by_op = instance.graph, np.arange(40)
    calls = [
        lambda: paths.heads_and_tails(graph, graph.duration_us),
        lambda: merged_model(instance, by_op, by_op, graph.order.astype(np.int64)),
    ]
    assert len(signatures(monkeypatch, (paths, reduced), "tails", calls)) == 1


def test_bug_the_simulator_was_compiled_for_links_that_vary(monkeypatch):
    graph = generators.random_dag(10, seed=1)
    placement = Placement(device=np.arange(10) % 3)
    calls = [
        lambda: simulate(graph, CLUSTER, placement),
        lambda: robustness(graph, CLUSTER, placement, error=0.1, samples=1),
    ]
    assert len(signatures(monkeypatch, [kernel], "_run", calls)) == 1
