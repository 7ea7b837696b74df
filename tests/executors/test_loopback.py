"""Servers are reached from this machine alone: as the kernel's table tells, and as connections from outside would find."""

import shutil
import socket
import subprocess

import pytest
from addresses import own_address
from forked_command import start_command
from other_users import linux

import baechi_lab as bl
from baechi_lab.executors.tensorflow import server
from baechi_lab.executors.tensorflow.loopback import is_local, is_loopback, keep_to_loopback


def interfaces(port):
    """The interface of every socket that listens on a port, as `ss` tells it; "*" is all of them."""
    if shutil.which("ss") is None:
        pytest.skip("ss is not installed")
    rows = subprocess.run(["ss", "-Hltn", f"sport = :{port}"], capture_output=True, text=True, check=True).stdout
    places = [row.split()[3].rpartition(":")[0] for row in rows.splitlines()]
    return [place.partition("%")[2] or place for place in places]


def reached(host, port):
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


@linux
def test_workers_whose_users_are_trusted_are_reached_from_this_machine_alone():
    pytest.importorskip("tensorflow")
    with bl.LocalCluster(1, trusted_users=True) as local:
        port = int(local.addresses[0].rpartition(":")[2])
        assert interfaces(port) == ["lo"]
        assert reached("127.0.0.1", port) and not reached(own_address(), port)


@linux
def test_a_wildcard_listener_is_kept_to_loopback():
    """Every address of the machine reaches it before; whoever did is a reason not to start."""
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((own_address(), port)), pytest.raises(OSError, match="somebody connected from"):
            keep_to_loopback(port)
        assert interfaces(port) == ["lo"]
        assert reached("127.0.0.1", port) and not reached(own_address(), port)


@linux
def test_a_port_without_a_listener_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(OSError, match=f"listens on port {port}"):
        keep_to_loopback(port)


def test_a_server_that_cannot_be_kept_does_not_start(monkeypatch):
    pytest.importorskip("tensorflow")

    def cannot(port):
        raise OSError("Operation not permitted")

    monkeypatch.setattr(server, "keep_to_loopback", cannot)
    with pytest.raises(bl.ExecutionError, match=r"cannot be kept to loopback .* say so with --trusted-network"):
        server.start("127.0.0.1", 0, trusted_users=True)


def test_a_worker_that_all_users_would_reach_does_not_start():
    with pytest.raises(
        bl.InvalidInput, match=r"all users of this machine could run .* --secret FILE, .* --trusted-users"
    ):
        server.main("127.0.0.1:0")


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0", "192.0.2.7:0", "myhost:0"])
def test_other_interfaces_are_refused(bind):
    with pytest.raises(bl.InvalidInput, match=r"whoever reaches it runs code as you; .* --trusted-network"):
        server.main(bind)


def test_a_trusted_network_is_said():
    pytest.importorskip("tensorflow")
    options = ("--bind", "0.0.0.0:0", "--trusted-network", "--follow-stdin")
    worker = start_command("worker", *options)
    with worker.stdout, worker.stderr:
        port = int(worker.stdout.readline().rpartition(b":")[2])
        assert interfaces(port) in (["*"], ["0.0.0.0"])
        worker.stdin.close()
        assert b"can run code as you" in worker.stderr.read()
    assert worker.wait(60) == 0


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("0100007F", True),
        ("0200A8C0", False),
        ("00000000000000000000000001000000", True),
        ("0000000000000000FFFF00000100007F", True),
        ("0000000000000000FFFF00000200A8C0", False),
    ],
)
def test_addresses_of_the_kernels_table(text, local):
    """127.0.0.1, 192.168.0.2, ::1, and the first two as IPv6 has them; each word of 32 bits with its bytes reversed."""
    assert is_local(text) == local


@pytest.mark.parametrize(("host", "local"), [("localhost", True), ("127.1.2.3", True), ("", False), ("::", False)])
def test_loopback_addresses_are_recognized(host, local):
    assert is_loopback(host) == local
