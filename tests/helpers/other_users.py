"""What other users of this machine reach."""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from baechi_lab.workers import network

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="networks and processes as Linux has them")


@functools.cache
def networks_can_be_made():
    """Does this system let the tests' user make network namespaces?"""
    command = [sys.executable, "-I", "-c", "import runpy, sys; runpy.run_path(sys.argv[1])['leave_network']()"]
    return not subprocess.run([*command, network.__file__], stderr=subprocess.DEVNULL).returncode


def needs_networks():
    """Skip where a `LocalCluster` cannot have a network of its own."""
    if not networks_can_be_made():
        pytest.skip("this system lets its users make no networks")


def listening_ports(pid, network_of="self"):
    """The ports on which process `pid` listens in the network of another, as the kernel's tables tell."""
    files = (os.path.join(f"/proc/{pid}/fd", name) for name in os.listdir(f"/proc/{pid}/fd"))
    inodes = {os.readlink(file).removeprefix("socket:[").removesuffix("]") for file in files}
    tables = (Path(f"/proc/{network_of}/net", table).read_text().splitlines()[1:] for table in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in table]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes}


def python_of_user(user=65534):
    """An interpreter that another user can run; skips where there is none, or where this user cannot become another."""
    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("only root can try what another user could do")
    for python in (sys.executable, "/usr/bin/python3"):
        command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", python]
        if shutil.which(python) and not subprocess.run([*command, "-c", ""], capture_output=True, cwd="/").returncode:
            return command
    pytest.skip("no interpreter that another user can run")


_GREETING = """
import socket, sys
for port in map(int, sys.argv[1:]):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as server:
            server.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            answer = server.recv(9)
    except ConnectionError:
        answer = b""
    print("speaks to anybody" if answer[3:4] == b"\\x04" else "does not answer")
"""  # the settings with which an HTTP/2 server begins (RFC 9113, 6.5)


def answers_to_another_user(ports):
    """What a gRPC client of another user gets from ports of the loopback device."""
    command = [*python_of_user(), "-c", _GREETING, *map(str, ports)]
    attack = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert attack.returncode == 0, attack.stderr
    return attack.stdout.splitlines()
