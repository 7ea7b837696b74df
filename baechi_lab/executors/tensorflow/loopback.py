"""Keep a server of this process to the loopback interface. Needs the standard library alone: exports take it along.

TensorFlow's server listens on every interface, whatever address it is given, and asks nobody who he is. It can be made
without being started: then it listens, but answers nothing yet. In between, its socket is bound to the loopback device,
so that the kernel lets in only what comes from this machine (Linux 5.7, or the right to use raw sockets).

The other users of the machine reach its loopback device as well. `network` keeps them out.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator

REFUSAL = (
    "TensorFlow's server would listen on every interface of this machine, and whoever reaches it runs code as you; give "
    "--secret FILE, which `baechi-lab secret FILE` makes, or, where the network is closed to everyone you do not trust, "
    "say so with --trusted-network"
)

USERS = (
    "TensorFlow's server asks nobody who he is, so all users of this machine could run code as you while it runs; give --secret "
    "FILE, which keeps them out, or, where you trust them all, say so with --trusted-users"
)


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
