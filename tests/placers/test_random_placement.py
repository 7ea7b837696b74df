"""`random` draws allowed devices evenly; `cpu-only` and `gpu-only` put everything on one device of their kind."""

import numpy as np
import pytest

from baechi_lab import Cluster, Device, Link, OpGraph, check, place, simulate
from baechi_lab.errors import InfeasiblePlacement, InvalidInput
from baechi_lab.graph import generators


def cpu_and_gpus(cpu_bytes=1000, gpu_bytes=100):
    devices = (
        Device("cpu:0", "cpu", cpu_bytes, 0.5),
        Device("gpu:0", "gpu", gpu_bytes),
        Device("gpu:1", "gpu", gpu_bytes, 2.0),
    )
    return Cluster(devices, Link(1.0, 0.0))


def test_draws_are_even_and_follow_the_seed():
    graph = OpGraph.from_edges([1.0] * 3000)
    cluster = Cluster.uniform(3, memory_bytes=10)
    first = place(graph, cluster, "random", seed=1)
    assert first == place(graph, cluster, "random", seed=1)
    assert first != place(graph, cluster, "random", seed=2)
    # Binomial(3000, 1/3): mean 1000, standard deviation sqrt(3000 * 2/9) = 26.
    assert np.all(np.abs(np.bincount(first.device) - 1000) < 5 * 26)


@pytest.mark.parametrize("seed", range(6))
def test_keeps_colocation_and_allowed_devices(seed):
    graph = generators.random_dag(30, colocation_groups=4, seed=seed)
    kind = np.where((np.arange(30) % 5 == 0) & (graph.colocation < 0), 0, -1)
    graph = graph.replace(allowed=kind, allowed_sets=(("gpu",),))
    cluster = cpu_and_gpus(1 << 40, 1 << 40)
    placement = place(graph, cluster, "random", seed=seed)
    assert not check(graph, cluster, placement, simulate(graph, cluster, placement))


def test_draws_again_until_memory_suffices():
    # Four ops of 50 on two devices of 100: 6 of 16 draws fit.
    graph = OpGraph.from_edges([1.0] * 4, persistent_bytes=[50] * 4)
    for seed in range(8):
        placement = place(graph, Cluster.uniform(2, memory_bytes=100), "random", seed=seed)
        assert np.bincount(placement.device).tolist() == [2, 2]
    with pytest.raises(InfeasiblePlacement):
        place(graph, Cluster.uniform(2, memory_bytes=60), "random")


def test_cpu_only_and_gpu_only_use_the_fastest_device_of_their_kind():
    # 10 + 20 us of work: the CPU at half speed takes 60, the faster GPU 15.
    graph = OpGraph.from_edges([10.0, 20.0], [(0, 1, 4)])
    cpu, gpu = (place(graph, cpu_and_gpus(), name) for name in ("cpu-only", "gpu-only"))
    assert (cpu.device.tolist(), gpu.device.tolist()) == ([0, 0], [2, 2])
    assert (simulate(graph, cpu_and_gpus(), cpu).makespan_us, simulate(graph, cpu_and_gpus(), gpu).makespan_us) == (
        60.0,
        15.0,
    )


def test_what_a_gpu_may_not_run_goes_to_the_cpu():
    graph = OpGraph.from_edges([10.0, 20.0], [(0, 1, 4)], allowed=[0, -1], allowed_sets=(("cpu",),))
    assert place(graph, cpu_and_gpus(), "gpu-only").device.tolist() == [0, 2]


def test_a_missing_kind_and_a_full_device_are_errors():
    with pytest.raises(
        InvalidInput, match="'cpu-only' needs a device of kind 'cpu'; the cluster has devices of kind gpu"
    ):
        place(OpGraph.from_edges([1.0]), Cluster.uniform(2), "cpu-only")
    with pytest.raises(InfeasiblePlacement, match=r"gpu:1 needs"):
        place(OpGraph.from_edges([1.0], persistent_bytes=[500]), cpu_and_gpus(), "gpu-only")
    with pytest.raises(InvalidInput, match="attempts is 0; it must be a whole number of at least 1"):
        place(OpGraph.from_edges([1.0]), cpu_and_gpus(), "random", attempts=0)
    assert place(OpGraph.from_edges([]), cpu_and_gpus(), "random").n == 0
