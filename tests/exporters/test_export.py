"""Exports: the script trains without baechi_lab; no half-written folder, whatever happens."""

import json
import os
import re
import resource
import runpy
import shutil
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import baechi_lab as bl

pytest.importorskip("tensorflow")
from exported_script import run_script, start_script
from other_users import needs_networks

BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"baechi_lab"}:
            raise ImportError(f"{name} is not available here")
sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture(scope="module")
def step():
    import tensorflow as tf

    rng = np.random.default_rng(5)
    variables = [tf.Variable((rng.normal(size=(12, 12)) / 3).astype(np.float32), name=f"w{i}") for i in range(2)]

    def fit(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.nn.tanh(x @ variables[0]) @ variables[1] - y) ** 2)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.3 * gradient)
        return loss

    x, y = (rng.normal(size=(6, 12)).astype(np.float32) for _ in range(2))
    traced = bl.trace(fit, x, y)
    losses = [float(fit(x, y)) for _ in range(5)]
    return replace(traced, info={**traced.info, "losses": losses})


@pytest.fixture(scope="module")
def placement(step):
    graph = bl.profile(step, mode="estimated")
    return bl.Placement(device=np.arange(graph.n) * 2 // graph.n, placer="halves")


@pytest.fixture
def folder(step, placement, tmp_path):
    return bl.export(step, placement, tmp_path / "placed training")


def losses_of(output):
    """The losses that a script has printed, one per step."""
    return [float(line.split()[-1]) for line in output.splitlines()]


def test_script_trains_without_baechi_lab(folder, step):
    """In a new process, which other tests save: they run scripts where TensorFlow has been imported."""
    start = "import runpy\nsys.argv = ['train.py', '--steps', '5']\nrunpy.run_path('train.py', run_name='__main__')"
    command = [sys.executable, "-I", "-c", f"{BLOCKER}\n{start}"]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.run(command, cwd=folder, env=quiet, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr[-2000:]
    np.testing.assert_allclose(losses_of(process.stdout), step.info["losses"], rtol=1e-6)
    with np.load(folder / "trained_values.npz", allow_pickle=False) as trained:
        assert all(np.all(trained[f"variable_{i}"] != v) for i, v in enumerate(step.initial_values))


def test_script_of_a_recomputed_graph_trains_the_same(step, tmp_path):
    """tanh of 6 x 12 numbers is computed again for the backward pass; the losses are those without."""
    graph = bl.profile(step, mode="estimated")
    (tanh,) = [name for name, kind in zip(graph.names, graph.op_types, strict=True) if kind == "Tanh"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="recomputing saves nothing")
        recomputed = bl.recompute(graph, drop=[tanh])
    placement = bl.Placement(device=np.zeros(recomputed.n, dtype=int))
    folder = bl.export(step, placement, tmp_path / "again", graph=recomputed)
    process = run_script(folder, "--steps", "5")
    assert process.returncode == 0, process.stderr[-2000:]
    np.testing.assert_allclose(losses_of(process.stdout), step.info["losses"], rtol=1e-6)
    assert f"{tanh}/again".encode() in (folder / "placed_graph.pb").read_bytes()


def test_bug_options_of_workers_where_the_export_has_none(folder, monkeypatch, capsys):
    """They ended in a traceback: worker.py and tunnel.py are written for clusters alone."""
    for options in (["--worker", "127.0.0.1:0"], ["--secret", "x.pem"]):
        monkeypatch.setattr(sys, "argv", ["train.py", *options])
        with pytest.raises(SystemExit, match="2"):
            runpy.run_path(str(folder / "train.py"), run_name="__main__")
        assert "without workers" in capsys.readouterr().err


def test_script_is_short_and_imports_only_tensorflow_and_numpy(folder):
    text = (folder / "train.py").read_text()
    assert len(text.splitlines()) < 145
    imported = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))
    assert imported - set(sys.stdlib_module_names) == {"tensorflow", "numpy"}
    assert text.count("PLUG IN YOUR INPUT ITERATOR HERE") == 1


def test_plan_and_graph_agree(folder, step, placement):
    import tensorflow as tf

    plan = json.loads((folder / "placement.json").read_text())
    graph = tf.compat.v1.GraphDef.FromString((folder / "placed_graph.pb").read_bytes())
    for node in graph.node:
        if node.name in plan["placement"] and node.name not in plan["moved_ops"]:
            assert node.device == plan["devices"][plan["placement"][node.name]]
    assert list(plan["placement"].values()) == placement.device.tolist()
    assert [v["name"] for v in plan["variables"]] == [v.name for v in step.variables]
    with np.load(folder / "initial_values.npz", allow_pickle=False) as stored:
        for i, value in enumerate(step.initial_values):
            np.testing.assert_array_equal(stored[f"variable_{i}"], value)


def test_cluster_export_names_every_worker_to_start(step, placement, tmp_path):
    folder = bl.export(step, placement, tmp_path / "out", workers=["10.0.0.1:2222", "10.0.0.2:2222"])
    text = (folder / "README.md").read_text()
    for address in ("10.0.0.1:2222", "10.0.0.2:2222"):
        assert f"python train.py --worker {address} --secret cluster.pem\n" in text
    assert "python train.py --steps 100 --secret cluster.pem\n" in text and "NO AUTHENTICATION" in text
    assert json.loads((folder / "placement.json").read_text())["workers"] == ["10.0.0.1:2222", "10.0.0.2:2222"]


def test_exported_worker_refuses_a_network_that_nobody_called_trusted(step, placement, tmp_path):
    folder = bl.export(step, placement, tmp_path / "out", workers=["10.0.0.1:2222", "10.0.0.2:2222"])
    process = run_script(folder, "--worker", "0.0.0.0:2222")
    assert process.returncode == 1 and "say so with --trusted-network" in process.stderr.splitlines()[-1]


def test_same_export_twice_is_the_same_and_replaces(step, placement, tmp_path):
    first = bl.export(step, placement, tmp_path / "out")
    before = {p.name: p.read_bytes() for p in first.iterdir() if p.suffix != ".npz"}
    second = bl.export(step, placement, tmp_path / "out")
    after = {p.name: p.read_bytes() for p in second.iterdir() if p.suffix != ".npz"}
    del before["exported_files.json"], after["exported_files.json"]  # an .npz tells when it was written
    assert after == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_trained_values_are_never_replaced(step, placement, tmp_path):
    folder = bl.export(step, placement, tmp_path / "out")
    (folder / "trained_values.npz").write_bytes(b"a week's work")
    bl.export(step, placement, tmp_path / "out")
    assert (folder / "trained_values.npz").read_bytes() == b"a week's work"


# -- refusals and faults ---------------------------------------------------------------------------------


def test_foreign_folder_is_left_alone(step, placement, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(bl.InvalidInput, match="not empty and holds no earlier export"):
        bl.export(step, placement, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_place_taken_by_a_file(step, placement, tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(bl.InvalidInput, match="exists and is not a folder"):
        bl.export(step, placement, tmp_path / "out")


def test_parent_that_does_not_exist(step, placement, tmp_path):
    with pytest.raises(bl.InvalidInput, match="is not a folder that exists"):
        bl.export(step, placement, tmp_path / "no" / "out")


def test_placement_for_another_graph(step, tmp_path):
    with pytest.raises(bl.InvalidInput, match="made for another graph, of 2 ops"):
        bl.export(step, bl.Placement(device=[0, 1]), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_fewer_workers_than_devices_are_rejected(step, placement, tmp_path):
    with pytest.raises(bl.InvalidInput, match="uses 2 devices; workers has 1 addresses"):
        bl.export(step, placement, tmp_path / "out", workers=["127.0.0.1:2222"])


@contextmanager
def file_size_limit(size):
    """A disk that takes no file above a size: writing on raises OSError (EFBIG), as a full disk does (ENOSPC).

    Only for the body of the `with`: the test runner's own report may be a longer file.
    """
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.skipif(not Path("/proc").exists(), reason="file-size limits as on Linux")
def test_full_disk_leaves_nothing(step, placement, tmp_path):
    with file_size_limit(2000), pytest.raises(bl.ExecutionError, match=r"cannot write .*nothing was left behind"):
        bl.export(step, placement, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc").exists(), reason="file-size limits as on Linux")
def test_full_disk_keeps_the_earlier_export(step, placement, tmp_path):
    folder = bl.export(step, placement, tmp_path / "out")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with file_size_limit(2000), pytest.raises(bl.ExecutionError, match="nothing was left behind"):
        bl.export(step, placement, tmp_path / "out")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def listeners(port):
    """The interface of every socket that listens on a port, as `ss` tells it; "*" is all of them."""
    if shutil.which("ss") is None:
        pytest.skip("ss is not installed")
    rows = subprocess.run(["ss", "-Hltn", f"sport = :{port}"], capture_output=True, text=True, check=True).stdout
    places = [row.split()[3].rpartition(":")[0] for row in rows.splitlines()]
    return [place.partition("%")[2] or place for place in places]


def free_ports(count):
    import socket

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture(scope="module")
def third(step):
    """The step of two of the six samples, and its layers on two devices: three of them make the step."""
    import tensorflow as tf

    variables = [tf.Variable(value, name=f"w{i}") for i, value in enumerate(step.initial_values)]

    def fit(x, y):
        with tf.GradientTape() as tape:
            hidden = tf.nn.tanh(x @ variables[0], name="first")
            loss = tf.reduce_mean((tf.matmul(hidden, variables[1], name="second") - y) ** 2)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.3 * gradient)
        return loss

    traced = bl.trace(fit, *(value[:2] for value in step.example_inputs))
    graph = bl.profile(traced, mode="estimated").replace(duration_by_kind={})
    cluster = bl.Cluster.uniform(2, link=bl.Link(0.0, 0.0), comm="parallel")
    return traced, bl.place(graph, cluster, "contiguous", objective="throughput")


def feed_whole_batches(folder, step):
    """Plug in an input iterator, as a reader would: the six samples."""
    np.savez(folder / "mine.npz", x=step.example_inputs[0], y=step.example_inputs[1])
    text = (folder / "train.py").read_text()
    own_batches = '(lambda f: (f["x"], f["y"]))(np.load(HERE / "mine.npz"))'
    (folder / "train.py").write_text(text.replace("itertools.repeat(example)", f"itertools.repeat({own_batches})"))


def test_script_of_micro_batches_trains_the_undivided_step(third, step, tmp_path):
    folder = bl.export(*third, tmp_path / "out", micro_batches=3, schedule="1f1b")
    plan = json.loads((folder / "placement.json").read_text())
    assert plan["micro_batches"] == 3 and len(plan["inputs"]) == 2 and len(plan["feeds"]) == 6
    assert (
        plan["schedule"].splitlines()[0] == "0F0 0F1 0B0 0F2 0B1 0B2"
        and plan["schedule"] in (folder / "README.md").read_text()
    )
    example = run_script(folder, "--steps", "1")
    assert example.returncode == 0, example.stderr[-2000:]
    feed_whole_batches(folder, step)
    process = run_script(folder, "--steps", "5")
    assert process.returncode == 0, process.stderr[-2000:]
    np.testing.assert_allclose(losses_of(process.stdout), step.info["losses"], rtol=1e-6)


def test_micro_batches_on_workers(third, step, tmp_path):
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    traced, placement = third
    shared = placement.replace(device=np.zeros_like(placement.device), replicas=[(0, 1)])  # both run all of the step
    folder = bl.export(traced, shared, tmp_path / "out", micro_batches=3, schedule="1f1b", workers=workers)
    feed_whole_batches(folder, step)
    train_on_workers(folder, workers, step, ["--trusted-users"], [])
    with np.load(folder / "trained_values.npz") as trained:
        assert len(trained.files) == 4 and all(
            np.array_equal(trained[f"variable_{i}"], trained[f"variable_{i + 2}"]) for i in (0, 1)
        )


def test_cluster_export_trains_on_the_workers_that_its_readme_names(step, placement, tmp_path):
    """With a secret, which keeps other users out; and with none, where these are trusted."""
    pytest.importorskip("cryptography")
    needs_networks()
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    folder = bl.export(step, placement, tmp_path / "out", workers=workers)
    text = (folder / "README.md").read_text()
    assert re.findall(r"python train\.py --worker (\S+) --secret cluster\.pem\n", text) == workers
    assert "python train.py --steps 100 --secret cluster.pem\n" in text and "`--trusted-users`" in text
    secret = ["--secret", str(bl.make_secret(tmp_path / "cluster.pem"))]
    train_on_workers(folder, workers, step, secret, secret)
    train_on_workers(folder, workers, step, ["--trusted-users"], [], lose=0)


def test_exported_worker_refuses_users_that_nobody_called_trusted(step, placement, tmp_path):
    folder = bl.export(step, placement, tmp_path / "out", workers=["127.0.0.1:2222", "127.0.0.1:2223"])
    completed = run_script(folder, "--worker", "127.0.0.1:2222")
    assert (
        completed.returncode == 1
        and "give --secret FILE, which keeps them out, or --trusted-users" in completed.stderr.splitlines()[-1]
    )


def test_a_cluster_that_no_script_reaches_is_not_exported_for(step, placement, tmp_path):
    """Its workers have a network of their own."""
    needs_networks()
    with (
        bl.LocalCluster(2) as local,
        pytest.raises(bl.InvalidInput, match=r"whose network no script reaches; .* trusted_users=True"),
    ):
        bl.export(step, placement, tmp_path / "out", cluster=local)


def train_on_workers(folder, workers, step, serving, training, lose=None):
    """Start workers with some options, then train with others: the losses without baechi_lab; then `lose` a worker."""
    started = [start_script(folder, "--worker", address, *serving) for address in workers]
    try:
        for process in started:
            assert process.stdout.readline().startswith(b"worker 127.0.0.1:")
        for address in workers:
            assert listeners(int(address.rpartition(":")[2])) == (["127.0.0.1"] if training else ["lo"])
        completed = run_script(folder, "--steps", "5", *training)
        if lose is not None:
            check_lost(folder, workers[lose], started[lose])
    finally:
        for process in started:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
    assert completed.returncode == 0, completed.stderr[-2000:]
    np.testing.assert_allclose(losses_of(completed.stdout), step.info["losses"], rtol=1e-6)


def check_lost(folder, address, worker):
    """Training whose worker is killed ends within seconds, with a sentence; it waited for worker 0 for ever."""
    with tempfile.TemporaryFile() as errors:
        training = start_script(folder, "--steps", "1000000", stderr=errors)
        too_late = threading.Timer(60, training.kill)
        with training.stdin, training.stdout:
            try:
                assert training.stdout.readline().startswith(b"step 0 ")
                worker.kill()
                too_late.start()
                training.stdout.read()
                assert training.wait(60) == 1
            finally:
                too_late.cancel()
                training.kill()
        errors.seek(0)
        message = errors.read().decode()
    assert re.search(rf"^worker \d of the cluster \({address}\) has ended$", message.strip().splitlines()[-1])


def test_replicated_constants_run_and_export_to_the_same_losses(step, tmp_path):
    """A placement of a graph with copied constants: a real run and the exported script give the unplaced step's losses."""
    graph = bl.profile(step, mode="estimated")
    copied = bl.optimize(graph, passes=("replicate",))
    assert copied.n > graph.n  # the step has constants that several ops read
    placement = bl.place(copied, bl.Cluster.uniform(2, memory_bytes=1 << 30), "m-topo")
    assert len(set(placement.on(graph).device.tolist())) == 2
    run = bl.execute(step, placement, steps=3, kind="cpu")
    assert run.status == "ok"
    np.testing.assert_allclose([float(outputs[0]) for outputs in run.outputs[:5]], step.info["losses"], rtol=1e-6)
    process = run_script(bl.export(step, placement, tmp_path / "replicated"), "--steps", "5")
    assert process.returncode == 0, process.stderr[-2000:]
    np.testing.assert_allclose(losses_of(process.stdout), step.info["losses"], rtol=1e-6)


def test_replicas_are_refused(step, tmp_path):
    graph = bl.profile(step, mode="estimated")
    placement = bl.Placement(device=[0] * graph.n, replicas=[(0, 1)])
    with pytest.raises(bl.InvalidInput, match=r"replicas is .*; bl.export runs every op on one device"):
        bl.export(step, placement, tmp_path / "new")
    with pytest.raises(bl.InvalidInput, match=r"replicas is .*; bl.execute runs every op on one device"):
        bl.execute(step, placement)
    with pytest.raises(bl.InvalidInput, match=r"replicas is .*; bl.apply runs every op on one device"):
        bl.apply(step, placement)
    assert not (tmp_path / "new").exists()


def test_training_does_not_wait_for_a_worker_that_wants_a_secret(monkeypatch):
    """It answers as TLS does: with an alert, and the connection ends."""
    from baechi_lab.executors.tensorflow import keepalive

    monkeypatch.setitem(sys.modules, "keepalive", keepalive)
    from baechi_lab.exporters.tensorflow import watch

    class Alert(socketserver.BaseRequestHandler):
        def handle(self):
            if self.request.recv(24):
                self.request.sendall(bytes([21, 3, 3, 0, 2, 2, 70]))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Alert) as server:  # the first connection says nothing
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        with pytest.raises(SystemExit, match=r"is no TensorFlow server that is open .*train\.py --secret FILE"):
            watch.watch_workers([address], None).__enter__()
        server.shutdown()
