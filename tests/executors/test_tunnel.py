"""Workers on the network let in who has the secret: through TLS, and nobody else, as a second machine would find."""

import contextlib
import re
import shutil
import socket
import ssl
import subprocess
import threading

import numpy as np
import pytest
from addresses import own_address
from forked_command import start_command
from other_users import answers_to_another_user, linux, listening_ports

import baechi_lab as bl
from baechi_lab.executors.tensorflow import server, tunnel
from baechi_lab.executors.tensorflow.peers import Peers
from baechi_lab.workers import forked
from baechi_lab.workers.client import worker_environment
from baechi_lab.workers.isolated import isolated_command

pytest.importorskip("cryptography")


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

    user, url_password, port = re.fullmatch(r"http://(\w+):(\S+)@127\.0\.0\.1:(\d+)", url).groups()
    connection = socket.create_connection(("127.0.0.1", int(port)), timeout=10)
    shown = base64.b64encode(f"{user}:{password or url_password}".encode()).decode()
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
        payload = bytes(range(256)) * 8192  # 2 MiB, more than any buffer
        threading.Thread(target=connection.sendall, args=(payload,)).start()
        assert line == "HTTP/1.1 200 Connection established"
        assert stream.read(1 + len(payload)) == b"!" + payload
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
            assert peers.ended_server() is None


def end(worker):
    worker.kill()
    worker.wait()
    for stream in filter(None, (worker.stdin, worker.stdout, worker.stderr)):
        stream.close()


@linux
def test_two_workers_on_an_address_of_the_network(secret, other_secret, step, placement, unplaced_losses):
    """As on two machines: addresses that are not loopback, and the servers behind them on the loopback device alone."""
    host = own_address()
    workers, addresses = [], []
    try:
        for _ in range(2):
            workers.append(start_command("worker", "--follow-stdin", "--bind", f"{host}:0", "--secret", str(secret)))
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
            end(worker)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("with_secret", [True, False])
def test_what_other_users_of_the_machine_reach(with_secret, secret):
    """Nothing of a worker with a secret; a worker whose users are said to be trusted."""
    if with_secret:
        command = isolated_command("baechi_lab", "worker", "--follow-stdin", "--secret", str(secret))
        worker = forked.run(command, worker_environment({"CUDA_VISIBLE_DEVICES": ""}), subprocess.DEVNULL)
    else:
        worker = start_command("worker", "--follow-stdin", "--trusted-users")
    try:
        gate = int(worker.stdout.readline().rpartition(b":")[2])
        assert listening_ports(worker.pid) == {gate}
        assert answers_to_another_user([gate]) == ["does not answer" if with_secret else "speaks to anybody"]
    finally:
        end(worker)


def test_a_worker_that_cannot_leave_the_network_does_not_start(secret, monkeypatch):
    pytest.importorskip("tensorflow")

    def cannot():
        raise OSError("Operation not permitted")

    monkeypatch.setattr(server, "leave_network", cannot)
    with pytest.raises(
        bl.ExecutionError, match=r"other users of this machine cannot be kept .* give .*--trusted-users"
    ):
        server.start("127.0.0.1", 0, secret=str(secret))


def test_bad_secrets_are_rejected(secret, tmp_path, step, placement):
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
    for file, message in (
        (readable, "make it yours alone with: chmod 600"),
        (text, "holds no private key with its certificate"),
        (tmp_path / "none.pem", "cannot be read: No such file"),
        (tmp_path, "is a folder; give the file in it"),
    ):
        with pytest.raises(bl.InvalidInput, match=message):
            bl.execute(step, placement, workers=["127.0.0.1:1"] * 2, secret=file)
    with pytest.raises(bl.InvalidInput, match="secret is given without workers"):
        bl.execute(step, placement, secret=secret)
