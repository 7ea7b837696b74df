"""`bl.measure_link` and `bl.measure_cluster`: between logical devices, between workers, and what is refused."""

import socket

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors import measure_links
from baechi_lab.executors.tensorflow import links
from baechi_lab.executors.tensorflow.links import Probe, with_overhead

tf = pytest.importorskip("tensorflow")

SIZES = (4, 1 << 12, 1 << 22)


@pytest.fixture(scope="module")
def local():
    with bl.LocalCluster(2, memory_bytes="2GB") as running:
        yield running


@pytest.fixture(scope="module")
def fitted(local):
    return measure_links(local, sizes=SIZES, repeats=3, progress=False, timeout=200)


def test_between_two_cpu_devices():
    fit = bl.measure_link(sizes=SIZES, repeats=3, progress=False)
    assert fit.seconds.shape == (3, 3) and np.all(fit.seconds > 0)
    assert fit.link.latency_us >= 0 and fit.link.us_per_byte >= 0 and fit.residual >= 0
    assert fit.size_bytes.tolist() == list(SIZES)
    assert "/device:CPU:0 -> /device:CPU:1" in repr(fit)


def test_between_the_workers_of_a_cluster(local):
    """4 MB over a socket take far longer than 4 bytes; a pointer that changes hands would not."""
    fit = bl.measure_link(1, local.cluster.names[0], cluster=local, sizes=SIZES, repeats=5, progress=False)
    assert (fit.source, fit.target) == (local.cluster.names[1], local.cluster.names[0])
    fastest = fit.seconds.min(axis=1)  # the median is that of the load where other programs run
    assert fastest[2] > 2 * fastest[0] > 0
    assert fit.link.us_per_byte > 0


def test_whole_cluster_has_a_link_per_ordered_pair(local, fitted, tmp_path):
    cluster = fitted.cluster
    assert cluster.names == local.cluster.names and np.array_equal(cluster.memory_bytes, local.cluster.memory_bytes)
    assert [(fit.source, fit.target) for fit in fitted.links] == [cluster.names, cluster.names[::-1]]
    assert cluster.link_between(0, 1) == fitted.links[0].link and cluster.link_between(1, 0) == fitted.links[1].link
    assert all(0 <= share <= 1 for probe in fitted.probes for share in (probe.same_direction, probe.opposite))
    assert cluster.comm in [probe.comm for probe in fitted.probes]
    bl.save_cluster(cluster, tmp_path / "measured.json")
    assert bl.load_cluster(tmp_path / "measured.json") == cluster


def test_measured_cluster_is_what_the_simulator_takes(fitted):
    graph = bl.OpGraph.from_edges([10.0, 10.0], [(0, 1, 1 << 20)])
    cost = fitted.links[0].link.cost_us(1 << 20)
    assert bl.simulate(graph, fitted.cluster, bl.Placement(device=[0, 1])).makespan_us == pytest.approx(20 + cost)


def test_overheads_of_a_local_cluster(local, fitted, monkeypatch):
    """Sending takes 30 and receiving 20 of a processor: 25 each, and no longer part of the latency."""
    from baechi_lab.executors.tensorflow import calibration

    costs = calibration.Calibration(0.0, 0.0, bl.Link(30.0, 0.0), bl.Link(20.0, 0.0), bl.Link(1.0, 0.0), 1.0)
    monkeypatch.setattr(calibration, "calibrate", lambda cluster: costs)
    monkeypatch.setattr(links, "measure_links", lambda *_, **__: fitted)
    measured_cluster = bl.measure_cluster(local, progress=False)
    for a, b in ((0, 1), (1, 0)):
        assert measured_cluster.link_between(a, b) == with_overhead(fitted.cluster.link_between(a, b), 25.0)
    assert bl.measure_cluster(local, overhead=False, progress=False) == fitted.cluster


def test_overhead_is_never_more_than_what_a_message_takes():
    assert with_overhead(bl.Link(10.0, 0.5), 30.0) == bl.Link(0.0, 0.5, 5.0)


def test_one_device_has_no_links():
    alone = bl.Cluster((bl.Device("cpu:0", "cpu", 1 << 30),))
    assert bl.measure_cluster(alone, progress=False) == alone


@pytest.mark.parametrize(
    ("same", "opposite", "mode"), [(0, 0, "parallel"), (0.8, 0.1, "duplex"), (0.9, 1, "sequential")]
)
def test_mode_of_a_probe(same, opposite, mode):
    assert Probe("a", "b", same, opposite).comm == mode


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("cpu", "/device:CPU:1"), {}, "unknown device 'cpu'"),
        (("/device:CPU:0", "/device:CPU:0"), {}, "costs nothing"),
        ((), {"sizes": (4,)}, "at least two different"),
        ((), {"sizes": (4, 6)}, "multiples of 4"),
        ((), {"repeats": 0}, "repeats is 0"),
        ((0, 2), {"cluster": bl.Cluster.uniform(2)}, "device is 2; it must be one of the 2 devices"),
        (("gpu:0", "gpu:7"), {"cluster": bl.Cluster.uniform(2)}, "unknown device 'gpu:7'"),
        ((0, 1), {"cluster": "two"}, "cluster is a str"),
    ],
)
def test_bad_arguments_of_measured_links_are_rejected(arguments, options, message):
    with pytest.raises(bl.InvalidInput, match=message):
        bl.measure_link(*arguments, progress=False, **options)


def test_device_that_is_not_attached():
    with pytest.raises(bl.ExecutionError, match="device '/device:GPU:77' is not attached"):
        bl.measure_link("/device:CPU:0", "/device:GPU:77", progress=False)


def test_worker_that_does_not_answer(local):
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = [server.getsockname()[1] for server in (first, second)]
    with pytest.raises(bl.ExecutionError, match=f"worker '127.0.0.1:{ports[0]}' does not answer"):
        bl.measure_link(0, 1, cluster=local.cluster, workers=[f"127.0.0.1:{port}" for port in ports], progress=False)


def test_workers_without_their_addresses(local):
    with pytest.raises(
        bl.ExecutionError, match=r"belongs to a TensorFlow server; give the servers' addresses as workers="
    ):
        bl.measure_cluster(local.cluster, progress=False)


def test_links_without_a_result_in_time_are_an_error():
    with pytest.raises(bl.ExecutionError, match=r"links were not measured: no result within 0\.2 s"):
        bl.measure_link(progress=False, timeout=0.2)


@pytest.mark.gpu
def test_between_cpu_and_gpu():
    """A megabyte has to be copied over the bus, which takes longer than four bytes."""
    fit = bl.measure_link("/device:CPU:0", "/device:GPU:0", sizes=SIZES, repeats=5, progress=False)
    assert fit.link.us_per_byte > 0 and fit.median_us[2] > fit.median_us[0]
