"""Networks of one's own: as this user, as a user without rights, and what a third user may do."""

import os
import shutil
import subprocess
import sys

import pytest
from other_users import linux, needs_networks, python_of_user

from baechi_lab.workers import network
from baechi_lab.workers.isolated import isolated_command

pytestmark = [linux, pytest.mark.subprocess]

LEAVE = """
import os, socket, sys, threading
sys.path.insert(0, sys.argv[1])
from network import leave_network
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

LISTEN = """
import os, socket, sys
sys.path.insert(0, sys.argv[1])
from network import CREATE_NETWORK, enter
enter(CREATE_NETWORK)
with socket.create_server(("127.0.0.1", 0)) as inside:
    print(os.getpid(), inside.getsockname()[1], flush=True)
    sys.stdin.read()
"""

JOIN = """
import ctypes, os, socket, sys
sys.path.insert(0, sys.argv[1])
from network import enter
libc = ctypes.CDLL(None)
libc.prctl(1, 9)
enter(int(sys.argv[2]))
socket.create_connection(("127.0.0.1", int(sys.argv[3])), timeout=5).close()
signal = ctypes.c_int()
libc.prctl(2, ctypes.byref(signal))
print(os.getuid(), "is there, to be ended by", signal.value)
"""


@pytest.fixture
def folder(tmp_path_factory):
    """A folder that all users can read, with the module."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        shutil.copy(network.__file__, name)
        yield name


def other_user():
    """An interpreter of a user without rights: another one, if this is root."""
    return python_of_user() if os.geteuid() == 0 else [sys.executable]


@pytest.mark.parametrize("threads", ["alone", "threads"])
def test_a_user_without_rights_leaves_the_network(folder, threads):
    """Through a user namespace; with several threads in a child that ends as the process does."""
    completed = subprocess.run([*other_user(), "-c", LEAVE, folder, threads], capture_output=True, text=True, cwd="/")
    if network.REFUSED in completed.stderr:
        pytest.skip("this system does not let users make namespaces")
    assert (completed.returncode, completed.stdout) == (7, f"{os.getuid() or 65534} is alone\n"), completed.stderr


@pytest.mark.parametrize("rights", ["this user", "a user without rights"])
def test_a_user_joins_a_network_of_his_own(folder, rights):
    """And no third user does. The kernel goes on to end the process with its parent."""
    python = [sys.executable] if rights == "this user" else other_user()
    with subprocess.Popen(
        [*python, "-c", LISTEN, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as listening:
        address = listening.stdout.readline().split()
        if not address and network.REFUSED in listening.stderr.read():
            pytest.skip("this system does not let users make namespaces")
        completed = subprocess.run([*python, "-c", JOIN, folder, *address], capture_output=True, text=True, cwd="/")
        user = os.getuid() if rights == "this user" else os.getuid() or 65534
        assert completed.stdout == f"{user} is there, to be ended by 9\n", completed.stderr
        if os.geteuid() == 0:
            third = [*python_of_user(65533), "-c", JOIN, folder, *address]
            refused = subprocess.run(third, capture_output=True, text=True, cwd="/")
            assert refused.returncode == 1 and "Permission denied" in refused.stderr


def test_a_program_starts_in_a_network_of_its_own():
    """Before the modules of the program are imported, which may start threads."""
    needs_networks()
    completed = subprocess.run(
        isolated_command("platform", network=network.CREATE_NETWORK), capture_output=True, text=True
    )
    assert completed.returncode == 0 and completed.stdout


@pytest.mark.parametrize(("pid", "message"), [(2**22 + 1, "No such file"), (None, "has no network of its own")])
def test_a_program_does_not_start_in_another_network_than_it_should(pid, message):
    pid = os.getpid() if pid is None else pid
    completed = subprocess.run(isolated_command("platform", network=pid), capture_output=True, text=True)
    assert completed.returncode == 1 and message in completed.stderr and not completed.stdout


def test_a_system_without_networks_says_so(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SystemExit, match=f"{network.REFUSED}: this system has no network namespaces"):
        network.enter(network.CREATE_NETWORK)


def test_a_system_that_allows_none_says_so():
    """As in a user namespace whose limit of networks is 0."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("only root makes a user namespace here")
    limited = ["unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"', "sh"]
    if subprocess.run([*limited, "true"], capture_output=True).returncode:
        pytest.skip("this system lets its users make no namespaces")
    completed = subprocess.run(
        [*limited, *isolated_command("platform", network=network.CREATE_NETWORK)], capture_output=True, text=True
    )
    assert completed.returncode == 1 and completed.stderr.startswith(f"{network.REFUSED}: "), completed.stderr
