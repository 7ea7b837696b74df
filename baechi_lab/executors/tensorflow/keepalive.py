"""A connection to a server on which nothing is sent: the kernel ends it with the server's process.

Keepalive ends it with the machine. A server that closes it, as gRPC does with idle ones, still takes another. Exported clusters
take this file along.
"""

from __future__ import annotations

import contextlib
import socket
import ssl

_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""Seconds of silence, seconds between probes, and probes without answer: a machine is missed after about 11 s."""

_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How an HTTP/2 client begins, with empty settings (RFC 9113, 3.4); a server answers with short ones."""


def connected(address: str, seconds: float, tls: ssl.SSLContext | None = None) -> socket.socket:
    """A connection to `host:port`, through TLS where that is given; `OSError` when nobody answers within `seconds`."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=seconds)
    if tls is not None:
        connection = tls.wrap_socket(connection)
        with contextlib.suppress(TimeoutError):  # in TLS 1.3 a refusal comes after the handshake
            if not connection.recv(1):  # a server that lets us in greets
                raise ssl.SSLError("it closed the connection")
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def alive(
    connections: dict[str, socket.socket], address: str, seconds: float, tls: ssl.SSLContext | None = None
) -> bool:
    """Is the server at `address` there? Its connection is made anew where it was closed."""
    try:
        while connections[address].recv(1 << 12):
            continue
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        pass
    connections[address].close()
    try:
        connections[address] = connected(address, seconds, tls)
    except OSError:
        return False
    return True


def speaks_plainly(address: str, seconds: float) -> bool:
    """Does the server at `address` answer as gRPC without TLS? One that is busy for `seconds`, or has just ended: yes."""
    with connected(address, seconds) as asked:
        asked.settimeout(seconds)
        try:
            asked.sendall(_HELLO)
            answer = asked.recv(9)
        except TimeoutError:
            return True
        except ConnectionError:
            answer = b""
    return answer.startswith(b"\0") if answer else not _takes_connections(address, seconds)


def _takes_connections(address: str, seconds: float) -> bool:
    try:
        connected(address, seconds).close()
    except OSError:
        return False
    return True
