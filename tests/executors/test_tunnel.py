"""Workers on the network let in who has the secret: through TLS, and nobody else, as a second machine would find."""

import contextlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from addresses import own_address

import baechi_lab as bl
from baechi_lab.executors.tensorflow import loopback, server, tunnel
from baechi_lab.executors.tensorflow.peers import Peers
from baechi_lab.workers.isolated import isolated

pytest.importorskip("cryptography")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="binds sockets to a device as on Linux")


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    return bl.make_secret(tmp_path_factory.mktemp("secret") / "cluster.pem")


@pytest.fixture(scope="module")
def other_secret(tmp_path_factory):
    return bl.make_secret(tmp_path_factory.mktemp("other") / "cluster.pem")


@contextlib.contextmanager
def echo():
    """The port of a server that greets, and sends back what it gets."""

    def answer(connection):
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"!")
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    def accept(listener):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]


def ask_proxy(url, address, password=None):
    """A connection to `address` as gRPC makes it, and the first line of the proxy's answer."""
    import base64

    user, given, port = re.fullmatch(r"http://(\w+):(\S+)@127\.0\.0\.1:(\d+)", url).groups()
    connection = socket.create_connection(("127.0.0.1", int(port)), timeout=10)
    shown = base64.b64encode(f"{user}:{password or given}".encode()).decode()
    connection.sendall(f"CONNECT {address} HTTP/1.1\r\nProxy-Authorization: Basic {shown}\r\n\r\n".encode())
    stream = connection.makefile("rb")
    line = stream.readline().decode().strip()
    while stream.readline() not in (b"\r\n", b""):
        continue
    return connection, stream, line


def test_bytes_go_there_and_back(secret):
    with echo() as port:
        gate = tunnel.Gate("127.0.0.1", 0, port, secret)
        connection, stream, line = ask_proxy(tunnel.Proxy(secret).url, f"127.0.0.1:{gate.port}")
        sent = bytes(range(256)) * 8192  # 2 MiB, more than any buffer
        threading.Thread(target=connection.sendall, args=(sent,)).start()
        assert line == "HTTP/1.1 200 Connection established"
        assert stream.read(1 + len(sent)) == b"!" + sent
        stream.close()
        connection.close()


def test_the_proxy_asks_for_its_password(secret):
    with echo() as port:
        gate = tunnel.Gate("127.0.0.1", 0, port, secret)
        connection, stream, line = ask_proxy(tunnel.Proxy(secret).url, f"127.0.0.1:{gate.port}", password="guess")
        assert line == "HTTP/1.1 407 Proxy Authentication Required" and stream.read() == b""
        stream.close()
        connection.close()


def test_another_secret_plain_text_and_nobody(secret, other_secret):
    with echo() as port:
        gate = tunnel.Gate("127.0.0.1", 0, port, secret)
        address = f"127.0.0.1:{gate.port}"
        with pytest.raises(bl.ExecutionError, match=f"'{address}' and this machine have no secret in common"):
            Peers([address], secret=str(other_secret))
        with pytest.raises(
            bl.ExecutionError, match=f"'{address}' is no TensorFlow server that is open .* --secret FILE"
        ):
            Peers([address])  # without one, TensorFlow itself waits for ever
        with socket.create_connection(("127.0.0.1", gate.port), timeout=10) as plain:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert not plain.recv(1 << 16).startswith(b"!")  # an alert of TLS at most, nothing of the server's
        nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE
        bare = socket.create_connection(("127.0.0.1", gate.port), timeout=10)
        with nobody.wrap_socket(bare) as wrapped, contextlib.suppress(ssl.SSLError):
            assert wrapped.recv(1) == b""
        with pytest.raises(bl.InvalidInput, match=f"workers names '{address}' more than once"):
            Peers([address, address], secret=str(secret))
        with Peers([address], secret=str(secret)) as peers:
            assert peers.lost() is None


@linux
def test_two_workers_on_an_address_of_the_network(secret, other_secret, step, placement, unplaced_losses):
    """As on two machines: addresses that are not loopback, and the servers behind them on the loopback device alone."""
    host = own_address()
    workers, addresses = [], []
    try:
        for _ in range(2):
            command = isolated("baechi_lab", "worker", "--bind", f"{host}:0", "--secret", str(secret), "--follow-stdin")
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
            workers.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
                )
            )
        addresses = [worker.stdout.readline().decode().split()[1] for worker in workers]
        assert all(address.startswith(f"{host}:") for address in addresses)
        run = bl.execute(step, placement, steps=2, workers=addresses, secret=secret, progress=False)
        assert run.status == "ok" and not run.moved_ops
        np.testing.assert_allclose([float(x[0]) for x in run.outputs], unplaced_losses[: len(run.outputs)], rtol=1e-5)
        with pytest.raises(bl.ExecutionError, match="no secret in common"):
            bl.execute(step, placement, workers=addresses, secret=other_secret)
        if shutil.which("ss"):
            for worker in workers:
                rows = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
                places = {row.split()[3].rpartition(":")[0] for row in rows if f"pid={worker.pid}," in row}
                assert places == {host}  # the gate; TensorFlow's server is in a network of its own
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def listening_ports(pid):
    """The ports of this process' network on which process `pid` listens, as the kernel's tables tell."""
    files = (os.path.join(f"/proc/{pid}/fd", name) for name in os.listdir(f"/proc/{pid}/fd"))
    inodes = {os.readlink(file).removeprefix("socket:[").removesuffix("]") for file in files}
    tables = (Path("/proc/self/net", table).read_text().splitlines()[1:] for table in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in table]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes}


def other_users_python():
    """An interpreter that another user can run; skips where there is none, or where this user cannot become another."""
    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("only root can try what another user could do")
    for python in (sys.executable, "/usr/bin/python3"):
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python]
        if shutil.which(python) and not subprocess.run([*command, "-c", ""], capture_output=True, cwd="/").returncode:
            return command
    pytest.skip("no interpreter that another user can run")


ATTACK = """
import socket, sys
for port in map(int, sys.argv[1:]):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as server:
        server.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        try:
            answer = server.recv(9)
        except ConnectionError:
            answer = b""
        print(port, "speaks to anybody" if answer[3:4] == b"\\x04" else "does not answer")
"""  # the settings with which an HTTP/2 server begins (RFC 9113, 6.5)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("with_secret", [True, False])
def test_what_other_users_of_the_machine_reach(with_secret, secret):
    """Nothing of a worker with a secret; a worker without one, which says so."""
    as_other_user = other_users_python()
    command = isolated("baechi_lab", "worker", "--follow-stdin", *(["--secret", str(secret)] if with_secret else []))
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    )
    try:
        gate = int(worker.stdout.readline().rpartition(":")[2])
        ports = listening_ports(worker.pid)
        assert ports == {gate}
        attack = subprocess.run([*as_other_user, "-c", ATTACK, str(gate)], capture_output=True, text=True, cwd="/")
        answer = "does not answer" if with_secret else "speaks to anybody"
        assert attack.stdout == f"{gate} {answer}\n", attack.stderr
    finally:
        said = worker.communicate("")[1]
    assert ("all users of this machine can run code as you" in said) is not with_secret


NETWORK = """
import os, socket, sys, threading
sys.path.insert(0, sys.argv[1])
from loopback import leave_network
if sys.argv[2] == "threads":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
outside = socket.create_server(("127.0.0.1", 0))
leave_network()
with socket.create_server(("127.0.0.1", 0)) as inside:
    socket.create_connection(inside.getsockname(), timeout=5).close()
try:
    socket.create_connection(outside.getsockname(), timeout=5)
except ConnectionRefusedError:
    print(os.getuid(), "is alone", flush=True)
os._exit(7)
"""


@linux
@pytest.mark.parametrize("threads", ["alone", "threads"])
def test_a_user_without_rights_leaves_the_network(threads):
    """Through a user namespace; with several threads in a child that ends as the process does. As another user, if root."""
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)
    shutil.copy(loopback.__file__, folder)
    as_user = other_users_python() if os.geteuid() == 0 else [sys.executable]
    done = subprocess.run([*as_user, "-c", NETWORK, folder, threads], capture_output=True, text=True, cwd="/")
    shutil.rmtree(folder)
    if "a network of its own cannot be made" in done.stderr:
        pytest.skip("this system does not let users make namespaces")
    assert (done.returncode, done.stdout) == (7, f"{os.getuid() or 65534} is alone\n"), done.stderr


def test_a_worker_that_cannot_leave_the_network_does_not_start(secret, monkeypatch):
    pytest.importorskip("tensorflow")

    def cannot():
        raise OSError("Operation not permitted")

    monkeypatch.setattr(server, "leave_network", cannot)
    with pytest.raises(bl.ExecutionError, match=r"other users of this machine cannot be kept .* with --trusted-users"):
        server.start("127.0.0.1", 0, secret=str(secret))
    with pytest.raises(bl.InvalidInput, match="--trusted-users is given without --secret"):
        server.start("127.0.0.1", 0, trusted_users=True)


@pytest.mark.slow
def test_a_local_cluster_says_who_reaches_it():
    pytest.importorskip("tensorflow")
    with pytest.warns(UserWarning, match="all users of this machine can run code as you; .* trusted_users=True"):
        bl.LocalCluster(1).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bl.LocalCluster(1, trusted_users=True).close()


def test_bad_secrets(secret, tmp_path, step, placement):
    with pytest.raises(bl.InvalidInput, match="exists; a secret is never written over another file"):
        bl.make_secret(secret)
    with pytest.raises(bl.InvalidInput, match="cannot be written: No such file"):
        bl.make_secret(tmp_path / "no" / "where.pem")
    readable = tmp_path / "readable.pem"
    shutil.copy(secret, readable)
    readable.chmod(0o644)
    text = tmp_path / "text.pem"
    text.write_text("not a key")
    text.chmod(0o600)
    for file, said in (
        (readable, "make it yours alone with: chmod 600"), (text, "holds no private key with its certificate"),
        (tmp_path / "none.pem", "cannot be read: No such file"), (tmp_path, "is a folder; give the file in it"),
    ):  # fmt: skip
        with pytest.raises(bl.InvalidInput, match=said):
            bl.execute(step, placement, workers=["127.0.0.1:1"] * 2, secret=file)
    with pytest.raises(bl.InvalidInput, match="secret is given without workers"):
        bl.execute(step, placement, secret=secret)
