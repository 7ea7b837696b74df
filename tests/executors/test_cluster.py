"""`bl.LocalCluster` and `backend="tensorflow-cluster"`: real transfers, faults, addresses."""

import os
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from other_users import answers_to_another_user, linux, listening_ports, needs_networks, python_of_user
from processes import have_ended

import baechi_lab as bl
from baechi_lab.executors import Worker
from baechi_lab.executors.tensorflow import cluster, server
from baechi_lab.executors.tensorflow.peers import Peers
from baechi_lab.workers import forked
from baechi_lab.workers.network import CREATE_NETWORK, REFUSED

pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def local():
    with bl.LocalCluster(2, memory_bytes="2GB") as running:
        yield running


@pytest.fixture(scope="module")
def cluster_run(local, step, placement):
    return bl.execute(step, placement, steps=4, warmup=2, traced=3, cluster=local)


def test_record_names_the_workers_devices(local):
    assert local.cluster.names == ("/job:worker/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0")
    assert local.cluster.memory_bytes.tolist() == [2_000_000_000] * 2
    assert all(address.startswith("127.0.0.1:") for address in local.addresses)


def test_workers_are_single_threaded_on_a_core_each(local):
    cores = [os.sched_getaffinity(pid) for pid in local.pids]
    assert all(len(c) == 1 for c in cores)
    if len(os.sched_getaffinity(0)) > 1:
        assert cores[0] != cores[1]


def test_threads_that_share_a_core_do_not_spin(monkeypatch):
    """They would take it from the one that works: of two threads, and of workers beyond the cores."""
    started = []

    class Stop(Exception):
        pass

    def start(*arguments, **_):
        started.append("--no-spinning" in arguments)
        raise Stop

    monkeypatch.setattr(cluster, "start", start)
    monkeypatch.setattr(cluster, "cores", lambda: 2)
    for n, threads in ((2, 1), (2, 2), (3, 1)):
        with pytest.raises(Stop):
            bl.LocalCluster(n, threads=threads)
    assert started == [False, True, True]


def test_a_worker_without_spinning_tells_tensorflow_so(monkeypatch):
    import tensorflow as tf

    configs = []

    class Server:
        def __init__(self, server_def, start):
            configs.append(server_def.default_session_config.experimental.disable_thread_spinning)

        def start(self):
            pass

    monkeypatch.setattr(tf.distribute, "Server", Server)
    monkeypatch.setattr(server, "keep_to_loopback", lambda port: None)
    for spinning in (True, False):
        server.start("127.0.0.1", 0, 2, spinning=spinning, trusted_users=True)
    assert configs == [False, True]


def test_losses_equal_the_unplaced_step(cluster_run, unplaced_losses):
    assert cluster_run.status == "ok" and cluster_run.moved_ops == ()
    np.testing.assert_allclose([float(o[0]) for o in cluster_run.outputs], unplaced_losses[:9], rtol=1e-6)


def test_transfers_carry_the_tensors_bytes(cluster_run, ops, placement):
    """Every tensor that the placement cuts is received once per reading device, after its producer has ended."""
    transfers, end = cluster_run.timeline.transfers, {}
    for op, ended in zip(cluster_run.timeline.op.tolist(), cluster_run.timeline.end_us.tolist(), strict=True):
        end[op] = ended
    free = {t for t in range(ops.tensor_count) if ops.tensor_names[t] == "^"}
    free |= {t for t, p in enumerate(ops.tensor_producer.tolist()) if ops.op_types[p] == "Const"}
    cut = {
        (t, int(placement.device[c]))
        for t, p, c in zip(ops.edge_tensor.tolist(), ops.edge_source.tolist(), ops.consumers.tolist(), strict=True)
        if placement.device[p] != placement.device[c] and t not in free
    }
    measured = list(zip(transfers.tensor.tolist(), transfers.target.tolist(), strict=True))
    assert cut == {pair for pair in measured if pair[0] not in free} and len(measured) == len(set(measured))
    for t, start, arrived in zip(
        transfers.tensor.tolist(), transfers.start_us.tolist(), transfers.end_us.tolist(), strict=True
    ):
        assert arrived >= start >= end[int(ops.tensor_producer[t])] - 1.0


def test_one_op_at_a_time_on_each_device(cluster_run):
    """Kernels of one worker do not overlap (2 us: the clock's ticks at both ends)."""
    timeline = cluster_run.timeline
    for device in range(2):
        rows = np.flatnonzero(timeline.device == device)
        rows = rows[np.argsort(timeline.start_us[rows], kind="stable")]
        assert np.all(timeline.start_us[rows][1:] >= timeline.end_us[rows][:-1] - 2.0)


def test_copies_are_counted_where_they_arrive(cluster_run):
    copies = cluster_run.timeline.memory.category == 3
    assert copies.any() and cluster_run.timeline.memory.delta[copies].sum() == 0


def test_workers_serve_one_execution_after_another(local, step, placement, unplaced_losses):
    run = bl.execute(step, placement, steps=1, warmup=0, traced=0, cluster=local)
    assert float(run.outputs[0][0]) == pytest.approx(unplaced_losses[0], rel=1e-6)


@linux
def test_what_other_users_reach(local):
    """Nothing: the ports on which workers listen are those of another network, which only the caller may join."""
    needs_networks()
    ports = [int(address.rpartition(":")[2]) for address in local.addresses]
    for pid, port in zip(local.pids, ports, strict=True):
        assert listening_ports(pid) == set() and listening_ports(pid, network_of=pid) == {port}
    assert answers_to_another_user(ports) == ["does not answer"] * 2
    code = "import sys\ntry: open(sys.argv[1])\nexcept PermissionError: print('refused')"
    command = [*python_of_user(), "-c", code, f"/proc/{local.pids[0]}/ns/net"]
    assert subprocess.run(command, capture_output=True, text=True, cwd="/").stdout == "refused\n"


@linux
def test_trusted_users_reach_the_workers():
    with bl.LocalCluster(2, trusted_users=True) as local:
        ports = [int(address.rpartition(":")[2]) for address in local.addresses]
        assert [listening_ports(pid) for pid in local.pids] == [{port} for port in ports]
        assert answers_to_another_user(ports) == ["speaks to anybody"] * 2


@linux
def test_a_worker_process_goes_to_the_cluster_that_it_runs_a_step_on(local, step, placement):
    """To a new process when the network is another one, to the same process otherwise."""
    needs_networks()
    options = {"steps": 1, "warmup": 0, "traced": 0, "progress": False}
    with bl.LocalCluster(2, trusted_users=True) as open_to_all, Worker(network=local.network) as worker:
        pids = [worker.pid]
        for target in (
            {"cluster": local},
            {"kind": "cpu"},
            {"cluster": open_to_all},
            {"cluster": open_to_all.cluster, "workers": open_to_all.addresses},
            {"cluster": local},
        ):
            assert bl.execute(step, placement, worker=worker, **target, **options).status == "ok"
            pids.append(worker.pid)
        assert pids[0] == pids[1] == pids[2] and pids[3] == pids[4]
        assert len({pids[0], pids[3], pids[5]}) == 3 and have_ended(pids[0], pids[3])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            f"{REFUSED}: Operation not permitted",
            rf"other users of this machine cannot be kept .* \({REFUSED}: Operation not permitted\); .* trusted_users=True",
        ),
        ("No module named x", "worker 0 ended before it listened: No module named x"),
    ],
)
def test_a_cluster_without_a_network_of_its_own_does_not_start(monkeypatch, words, message):
    needs_networks()  # elsewhere tests trust the users

    def start(*_, environment, stderr, network):
        assert network == CREATE_NETWORK
        return forked.run([sys.executable, "-I", "-c", f"raise SystemExit({words!r})"], environment, stderr)

    monkeypatch.setattr(cluster, "start", start)
    with pytest.raises(bl.ExecutionError, match=message):
        bl.LocalCluster(2)


def test_more_devices_than_workers(local, step, ops):
    with pytest.raises(bl.InvalidInput, match=r"is placed on device 2; the cluster has devices 0\.\.1"):
        bl.execute(step, bl.Placement(device=[2] * ops.n), cluster=local)


@pytest.mark.parametrize(("victim", "trusted"), [(0, False), (1, False), (0, True)])
def test_worker_killed_mid_step(step, placement, victim, trusted):
    """Without a timeout: TensorFlow itself waits for ever for worker 0, which leads the session."""
    with bl.LocalCluster(2, trusted_users=trusted) as local:

        def kill(result):
            if result.index == 2:
                os.kill(local.pids[victim], signal.SIGKILL)

        run = bl.execute(step, placement, steps=10**6, warmup=0, traced=1, cluster=local, on_step=kill)
        assert run.status == "died" and 3 <= len(run.outputs) < 10**6 and run.timeline is not None
        assert run.message == f"worker {victim} of the cluster ({local.addresses[victim]}) has ended"
        # Which command starts a worker at that address is no advice about a cluster that starts its own.
        with pytest.raises(
            bl.ExecutionError, match=rf"worker {victim} of the cluster .* has ended; make a new LocalCl"
        ):
            bl.execute(step, placement, cluster=local)
        with pytest.raises(bl.ExecutionError, match=r"does not answer .* start it with: baechi-lab worker --bind 127"):
            bl.execute(step, placement, workers=local.addresses)
        with pytest.raises(
            bl.ExecutionError, match=rf"worker {victim} of the cluster .* has ended; make a new LocalCl"
        ):
            bl.measure_link(0, 1, cluster=local)
    assert all(not os.path.exists(f"/proc/{pid}") for pid in local.pids)


@pytest.mark.parametrize(("victim", "seconds"), [(0, 0.0), (1, 0.5)])
def test_worker_killed_before_the_first_step(step, placement, local, victim, seconds):
    """While the session is made; the seconds that this takes vary, and with them the moment: it may be gone when first asked."""
    with bl.LocalCluster(2) as own_cluster, Peers(own_cluster.addresses, local=own_cluster) as peers:
        timer = threading.Timer(seconds, os.kill, (own_cluster.pids[victim], signal.SIGKILL))
        timer.start()
        message = f"worker {victim} of the cluster ({own_cluster.addresses[victim]}) has ended"
        try:
            run = bl.execute(step, placement, steps=10**6, traced=0, cluster=own_cluster, progress=False)
            assert (run.status, run.message) == ("died", message)
        except bl.ExecutionError as error:
            assert str(error).startswith((message, f"worker {own_cluster.addresses[victim]!r} does not answer"))
        timer.join()
        assert peers.wait_for_ended_server(5.0) == message
    # The next execution works, on another cluster.
    assert bl.execute(step, placement, steps=1, warmup=0, traced=0, cluster=local).status == "ok"


def test_a_server_that_closes_an_idle_connection_is_not_lost():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with Peers([address], seconds=0.05) as peers:
            for _ in range(3):
                listener.accept()[0].close()
                assert peers.wait_for_ended_server(0.15) is None
            listener.close()
            assert peers.wait_for_ended_server(5.0) == f"worker 0 of the cluster ({address}) has ended"


def test_address_that_does_not_answer(step, placement):
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = [server.getsockname()[1] for server in (first, second)]
    with pytest.raises(bl.ExecutionError, match=f"worker '127.0.0.1:{ports[0]}' does not answer"):
        bl.execute(step, placement, workers=[f"127.0.0.1:{port}" for port in ports])


def test_a_port_that_is_taken_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(bl.ExecutionError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            server.main(f"127.0.0.1:{port}", trusted_users=True)


@pytest.mark.parametrize("bind", ["", "host:", "1.2.3.4:99999", "a b:1", "[::1]", ":22"])
def test_a_bind_without_a_port_is_rejected(bind):
    with pytest.raises(bl.InvalidInput, match=r"--bind is .*; it must be HOST:PORT or a port"):
        server.main(bind)


def test_bind_is_loopback_unless_a_host_is_named():
    assert server.parse_bind("2222") == ("127.0.0.1", 2222)
    assert server.parse_bind("10.0.0.7:2222") == ("10.0.0.7", 2222)


@pytest.mark.parametrize("n", [0, -1, 1.5, True])
def test_bad_number_of_workers(n):
    with pytest.raises(bl.InvalidInput, match="whole number of at least 1"):
        bl.LocalCluster(n)
