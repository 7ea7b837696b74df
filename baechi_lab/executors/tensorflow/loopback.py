"""Restrict a server of this process to the loopback interface. Uses the standard library only: exports contain a copy.

TensorFlow's server listens on every interface, whatever address it is given, and has no authentication. A server that is
created but not started already listens but answers nothing. At that point its socket is bound to the loopback device, so the
kernel only accepts connections from this machine (needs Linux 5.7, or the right to use raw sockets).

Other users of the machine can also reach its loopback device. `network` keeps them out.
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

USERS_REFUSAL = (
    "TensorFlow's server does not authenticate clients, so all users of this machine could run code as you while it runs; give "
    "--secret FILE, which keeps them out, or --trusted-users if you trust them all"
)


def refusal(host: str, has_secret: bool, trusted_network: bool, trusted_users: bool) -> str:
    """Returns the reason why a server at `host` could be reached by people who are not trusted; empty if it could not."""
    if has_secret or trusted_network:
        return ""
    if not is_loopback(host):
        return REFUSAL
    return "" if trusted_users else USERS_REFUSAL


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("10.0.0.1"), is_loopback("0.0.0.0")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def keep_to_loopback(port: int) -> None:
    """Restricts sockets of this process that listen on `port` to connections from this machine.

    Raises `OSError` if that is impossible, or if another machine has connected before.
    """
    listener_count = 0
    for listener in _listeners(port):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        listener_count += 1
    if not listener_count:
        raise OSError(f"no socket of this process listens on port {port}")
    if not any(state == "0A" for _, state in _connections(port)):
        raise OSError(f"the socket that listens on port {port} is in another network than this thread")
    addresses = (remote.rpartition(":")[0] for remote, state in _connections(port) if state != "0A")  # 0A: listening
    remote_addresses = [address for address in addresses if not is_local(address)]
    if remote_addresses:
        raise OSError(f"somebody connected from {remote_addresses[0]} while the server started")


def _listeners(port: int) -> Iterator[socket.socket]:
    """Yields copies of this process' sockets that listen on `port`."""
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


def _connections(port: int) -> Iterator[tuple[str, str]]:
    """Yields remote address and state of all sockets on a local port, in the network of this thread."""
    for table in ("/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"):
        if os.path.exists(table):
            with open(table) as rows:
                for row in list(rows)[1:]:
                    local, remote, state = row.split()[1:4]
                    if int(local.rpartition(":")[2], 16) == port:
                        yield remote, state


def is_local(address: str) -> bool:
    """Whether an address in the format of /proc/net/tcp (32-bit words in the machine's byte order) is a loopback address."""
    words = [int(address[i : i + 8], 16).to_bytes(4, "little") for i in range(0, len(address), 8)]
    ip_address = ipaddress.ip_address(b"".join(words))
    ipv4_address = getattr(ip_address, "ipv4_mapped", None)
    return (ipv4_address or ip_address).is_loopback
