"""Detect the end of a server by an idle connection to it.

The operating system closes the connection when the server's process ends; TCP keepalive closes it when the machine ends. A
server that closes an idle connection, as gRPC does, still accepts another one. Exported clusters contain a copy of this file.
"""

from __future__ import annotations

import contextlib
import socket
import ssl

_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""Seconds of silence, seconds between probes, and unanswered probes: the end of a machine is detected after about 11 s."""

_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Connection preface of an HTTP/2 client with empty settings (RFC 9113, 3.4). A server answers with short settings."""


def connect(address: str, seconds: float, tls: ssl.SSLContext | None = None) -> socket.socket:
    """Connects to `host:port`, through `tls` if given. Raises `OSError` if no server answers within `seconds`."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=seconds)
    if tls is not None:
        connection = tls.wrap_socket(connection)
        with contextlib.suppress(TimeoutError):  # in TLS 1.3 a refusal comes after the handshake
            if not connection.recv(1):  # a server that accepts the client sends its settings first
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
    """Whether the server at `address` is running. Reconnects if the connection was closed."""
    try:
        while connections[address].recv(1 << 12):
            continue
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        pass
    connections[address].close()
    try:
        connections[address] = connect(address, seconds, tls)
    except OSError:
        return False
    return True


def speaks_plainly(address: str, seconds: float) -> bool:
    """Whether the server at `address` speaks gRPC without TLS. True as well if it is busy for `seconds` or has just ended."""
    with connect(address, seconds) as connection:
        connection.settimeout(seconds)
        try:
            connection.sendall(_HELLO)
            answer = connection.recv(9)
        except TimeoutError:
            return True
        except ConnectionError:
            answer = b""
    return answer.startswith(b"\0") if answer else not _takes_connections(address, seconds)


def _takes_connections(address: str, seconds: float) -> bool:
    try:
        connect(address, seconds).close()
    except OSError:
        return False
    return True
