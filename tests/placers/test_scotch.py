"""Static mapping: work by capacity, little communication, links told apart; Scotch's own files read and written."""

import stat
import sys

import numpy as np
import pytest

from baechi_lab import Cluster, Device, Link, OpGraph, check, place, simulate
from baechi_lab.errors import ExecutionError, InfeasiblePlacement, InvalidInput
from baechi_lab.graph import generators
from baechi_lab.placers.scotch import make_vertices, refine, source_graph

pytest.importorskip("pymetis")


def test_work_follows_capacity():
    # 400 equal free ops on speeds 1 and 3: a quarter and three quarters, within the tolerance of 5 %.
    graph = OpGraph.from_edges([1.0] * 400)
    cluster = Cluster((Device("a", "x", 1000), Device("b", "x", 1000, 3.0)), Link(1.0, 0.0))
    placement = place(graph, cluster, "scotch", program="metis")
    assert abs(np.bincount(placement.device)[0] - 100) <= 0.05 * 100 + 1


def test_capacity_comes_from_the_durations_of_each_kind():
    graph = OpGraph.from_edges([1.0] * 100, duration_by_kind={"cpu": [9.0] * 100})
    cluster = Cluster((Device("cpu:0", "cpu", 1000), Device("gpu:0", "gpu", 1000)), Link(1.0, 0.0))
    # Together done at 0.9 of the GPU alone: 1/9 of its pace for the CPU, so 10 and 90 ops.
    assert make_vertices(graph, cluster).share.tolist() == pytest.approx([0.1, 0.9])
    assert abs(np.bincount(place(graph, cluster, "scotch", program="metis").device)[0] - 10) <= 1


def test_bug_a_graph_estimated_for_named_hardware():
    """Every such graph was rejected: METIS got devices of a kind for which it has no durations."""
    graph = OpGraph.from_edges([1.0] * 400, duration_by_kind={"gpu": [1.0] * 400, "h100": [1.0] * 400})
    for cluster in (Cluster.uniform(4, link=Link(1.0, 0.0)), Cluster.uniform(4, link=Link(1.0, 0.0), kind="h100")):
        device = place(graph, cluster, "scotch", program="metis").device
        assert np.bincount(device).tolist() == pytest.approx(
            [100] * 4, abs=0.05 * 100 + 1
        )  # a quarter each, within 5 %


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("placer", ["metis", "scotch"])
@pytest.mark.parametrize(
    ("durations", "free", "speed"), [([1, 2], [0, 0], 1), ([1, 2], [1, 2], 1e-12), ([5e-324] * 2,) * 2 + (1,)]
)
def test_bug_shares_of_next_to_nothing(placer, durations, free, speed):
    """A device that takes no time, or a trillion times as much; METIS ended in an error of its own, and `auto` with it."""
    graph = OpGraph.from_edges(durations, duration_by_kind={"free": free})
    devices = (Device("a", "x", 1000, speed), Device("b", "free", 1000))
    placement = place(
        graph, Cluster(devices, Link(1.0, 0.0)), placer, **({"program": "metis"} if placer == "scotch" else {})
    )
    assert placement.n == 2


def test_two_cliques_are_not_torn_apart():
    edges = [(i, j, 100) for base in (0, 5) for i in range(base, base + 5) for j in range(i + 1, base + 5)]
    graph = OpGraph.from_edges([1.0] * 10, [*edges, (4, 5, 1)])
    device = place(graph, Cluster.uniform(2, link=Link(0.0, 1.0)), "scotch", program="metis").device
    assert len(set(device[:5])) == len(set(device[5:])) == 1 and device[0] != device[5]


def test_refinement_prefers_the_cheap_link():
    # Op 0 on device 0 talks to op 1; moving op 1 from device 2 (10 us away) to device 1 (1 us) costs no balance.
    rows = [[Link(float(abs(a - b) ** 2), 0.0) for b in range(3)] for a in range(3)]
    cluster = Cluster(tuple(Device(f"d{i}", "x", 100) for i in range(3)), rows)
    graph = OpGraph.from_edges([1.0, 1.0, 0.0], [(0, 1, 8)])
    home = np.array([0, 2, 0])
    # Fair share is 2/3 of an op, so one op is 1.5 shares: a tolerance of 0.6 lets one op per device.
    assert refine(make_vertices(graph, cluster), home, 0.6) == 1
    assert home.tolist() in ([0, 1, 0], [1, 2, 0])


def test_scotch_format_by_hand():
    # Vertices of work 1 and 2 (scaled to 32768, 65536), one edge of the only weight, listed from both ends.
    graph = OpGraph.from_edges([1.0, 2.0], [(0, 1, 8)])
    assert source_graph(make_vertices(graph, Cluster.uniform(2))) == "0\n2 2\n0 011\n32768 1 65536 1\n65536 1 65536 0\n"


def mapper(folder, body):
    file = folder / "gmap"
    file.write_text(f"#!{sys.executable}\nimport sys\nbalance, source, target, mapping = sys.argv[1:]\n{body}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def test_an_installed_mapper_is_used(tmp_path):
    # Stands in for gmap: reads how many vertices and devices there are, gives the last vertex the last device.
    body = (
        "n = int(open(source).read().split()[1]); d = int(open(target).read().split()[1])\n"
        "rows = [f'{i}\\t{d - 1 if i == n - 1 else 0}' for i in range(n)]\n"
        "open(mapping, 'w').write('\\n'.join([str(n), *rows]) + '\\n')"
    )
    graph = OpGraph.from_edges([1.0] * 4)
    placement = place(graph, Cluster.uniform(3), "scotch", program=mapper(tmp_path, body))
    assert placement.device.tolist() == [0, 0, 0, 2] and placement.info["mapper"] == "scotch"
    with pytest.raises(ExecutionError, match="ended with code 3: no licence"):
        place(
            graph,
            Cluster.uniform(3),
            "scotch",
            program=mapper(tmp_path, "sys.exit(print('no licence', file=sys.stderr) or 3)"),
        )


@pytest.mark.parametrize("seed", range(5))
def test_keeps_colocation_allowed_devices_and_memory(seed):
    graph = generators.random_dag(40, colocation_groups=4, persistent_bytes=(10, 100), seed=seed)
    kind = np.where((np.arange(40) % 7 == 0) & (graph.colocation < 0), 0, -1)
    graph = graph.replace(allowed=kind, allowed_sets=(("gpu:1",),))
    total = int(graph.persistent_bytes.sum() + graph.tensor_bytes.sum())
    cluster = Cluster.uniform(3, memory_bytes=int(0.7 * total))
    placement = place(graph, cluster, "scotch", program="metis")
    assert not check(graph, cluster, placement, simulate(graph, cluster, placement))
    assert placement == place(graph, cluster, "scotch", program="metis")


def test_no_op_one_device_a_full_device_and_a_missing_program():
    assert place(OpGraph.from_edges([]), Cluster.uniform(2), "scotch").n == 0
    assert place(OpGraph.from_edges([1.0, 1.0]), Cluster.uniform(1), "scotch").device.tolist() == [0, 0]
    with pytest.raises(InfeasiblePlacement):
        place(OpGraph.from_edges([1.0], persistent_bytes=[500]), Cluster.uniform(2, memory_bytes=100), "scotch")
    with pytest.raises(InvalidInput, match="program is '/no/such'; it must be 'auto', 'metis' or an executable file"):
        place(OpGraph.from_edges([1.0]), Cluster.uniform(2), "scotch", program="/no/such")
