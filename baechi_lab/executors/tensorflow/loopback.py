"""Keep a server of this process to the loopback interface. Needs the standard library alone: exports take it along.

TensorFlow's server listens on every interface, whatever address it is given, and asks nobody who he is. It can be made
without being started: then it listens, but answers nothing yet. In between, its socket is bound to the loopback device,
so that the kernel lets in only what comes from this machine (Linux 5.7, or the right to use raw sockets).

The other users of the machine reach its loopback device as well. `leave_network` keeps them out: the process moves to a network
of its own (network_namespaces(7)), whose loopback device nobody else has. Sockets that it made before stay where they were.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator

REFUSAL = (
    "TensorFlow's server would listen on every interface of this machine, and whoever reaches it runs code as you; give "
    "--secret FILE, which `baechi-lab secret FILE` makes, or, where the network is closed to everyone you do not trust, "
    "say so with --trusted-network"
)


USERS = (
    "TensorFlow's server asks nobody who he is, so all users of this machine can run code as you while it runs; where you do not "
    "trust them, start workers with --secret FILE"
)

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # sched.h
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1  # sockios.h, if.h
_PARENT_DEATH_SIGNAL = 1  # prctl.h


def leave_network() -> None:
    """Give this process a network of its own, which has a loopback device and nothing else.

    Call it before other threads make sockets: each thread has the network of the one that started it. Without the right to make
    networks the process goes on as a user of its own user namespace, who has that right; since only a process of one thread may
    become that, one with more goes on in a child, which ends with it.

    Raises `OSError` where the system allows neither.
    """
    if not sys.platform.startswith("linux"):
        raise OSError("this system has no network namespaces")
    if _call("unshare", _NEW_NETWORK):
        user, group = os.geteuid(), os.getegid()
        if len(os.listdir("/proc/self/task")) > 1:
            _go_on_in_child()
        failure = _call("unshare", _NEW_USER | _NEW_NETWORK)
        if failure:
            raise OSError(failure, f"a network of its own cannot be made: {os.strerror(failure)}")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _raise_loopback()


def _call(name: str, *arguments: int) -> int:
    """The error number of a function of the C library, 0 where it succeeds."""
    library = ctypes.CDLL(None, use_errno=True)
    return ctypes.get_errno() if getattr(library, name)(*arguments) else 0


def _raise_loopback() -> None:
    """Start the loopback device, which then has its addresses."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        found = fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack("16sh22x", b"lo", 0))
        flags = struct.unpack("16sh22x", found)[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", flags | _UP))


def _go_on_in_child() -> None:
    """Return in a child of one thread; this process waits for it, hands signals on, and ends as it ends."""
    parent, child = os.getpid(), os.fork()
    if not child:
        _call("prctl", _PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: os.kill(child, n))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def is_loopback(host: str) -> bool:
    """Is the address one that only this machine reaches?

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("10.0.0.1"), is_loopback("0.0.0.0")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def keep_to_loopback(port: int) -> None:
    """Let nobody but this machine reach what listens on `port` in this process.

    Raises `OSError` when that cannot be done, or when somebody was there before.
    """
    kept = 0
    for listener in _listeners(port):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        kept += 1
    if not kept:
        raise OSError(f"no socket of this process listens on port {port}")
    if not any(state == "0A" for _, state in _connections(port)):
        raise OSError(f"the socket that listens on port {port} is in another network than this thread")
    strange = [address for address in _connected_to(port) if not _local(address)]
    if strange:
        raise OSError(f"somebody connected from {strange[0]} while the server started")


def _listeners(port: int) -> Iterator[socket.socket]:
    """Copies of this process' sockets that listen on `port`."""
    if not hasattr(socket, "SO_BINDTODEVICE") or not os.path.isdir("/proc/self/fd"):
        raise OSError("this system cannot bind a socket to the loopback device")
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with contextlib.closing(copy):
            if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.type != socket.SOCK_STREAM:
                continue
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and copy.getsockname()[1] == port:
                yield copy


def _connected_to(port: int) -> Iterator[str]:
    """The remote addresses, as the kernel writes them, of the connections to a local port."""
    return (remote.rpartition(":")[0] for remote, state in _connections(port) if state != "0A")  # 0A: it listens


def _connections(port: int) -> Iterator[tuple[str, str]]:
    """Remote address and state of all sockets on a local port, in the network of this thread."""
    for table in ("/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"):
        if os.path.exists(table):
            with open(table) as rows:
                for row in list(rows)[1:]:
                    local, remote, state = row.split()[1:4]
                    if int(local.rpartition(":")[2], 16) == port:
                        yield remote, state


def _local(address: str) -> bool:
    """Is an address of /proc/net/tcp, words of 32 bits in the machine's order, this machine's own?"""
    words = [int(address[i : i + 8], 16).to_bytes(4, "little") for i in range(0, len(address), 8)]
    found = ipaddress.ip_address(b"".join(words))
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
