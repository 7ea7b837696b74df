"""Watch the servers of a cluster from outside: TensorFlow itself may wait for ever for one that has ended.

A connection to each server, on which nothing is sent: the kernel ends it with the server's process, and keepalive with
its machine. A server that closes it, as gRPC does with idle ones, still takes another.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Sequence
from types import TracebackType

from ...errors import ExecutionError
from .tunnel import context

ASK_SECONDS = 0.1
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""Seconds of silence, seconds between probes, and probes without answer: a machine is missed after about 11 s."""


class Peers:
    """Connections to the servers at `addresses` (host:port), through TLS with a `secret`; a context manager.

    Raises `ExecutionError` when a server does not answer within `seconds`.
    """

    def __init__(self, addresses: Sequence[str], seconds: float = 3.0, secret: str | None = None) -> None:
        self._tls = context(secret, server=False) if secret else None
        self._open: dict[str, socket.socket] = {}
        self._asked, self._said = 0.0, ""
        for address in dict.fromkeys(addresses):
            try:
                self._open[address] = _connected(address, seconds, self._tls)
            except ssl.SSLError as error:
                self.close()
                raise ExecutionError(
                    f"worker {address!r} and this machine have no secret in common ({error.reason or error}); start it with: "
                    f"baechi-lab worker --bind {address} --secret FILE, with the file that is given here as secret"
                ) from error
            except (OSError, ValueError) as error:
                self.close()
                raise ExecutionError(
                    f"worker {address!r} does not answer ({error}); start it with: baechi-lab worker --bind {address}"
                ) from error
        self._index = {address: i for i, address in reversed(list(enumerate(addresses)))}

    def lost(self) -> str | None:
        """A sentence that names a server that has ended; None while all are there."""
        if not self._said and time.monotonic() - self._asked > ASK_SECONDS:
            self._asked = time.monotonic()
            gone = next((address for address in self._open if not self._alive(address)), None)
            if gone is not None:
                self._said = f"worker {self._index[gone]} of the cluster ({gone}) has ended"
        return self._said or None

    def lost_within(self, seconds: float) -> str | None:
        """`lost`, asked until it says something or `seconds` are over."""
        until = time.monotonic() + seconds
        while self._open and self.lost() is None and time.monotonic() < until:
            time.sleep(ASK_SECONDS)
        return self.lost()

    def _alive(self, address: str) -> bool:
        try:
            while self._open[address].recv(1 << 12):
                continue
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        self._open[address].close()
        try:
            self._open[address] = _connected(address, 1.0, self._tls)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the connections."""
        for connection in self._open.values():
            connection.close()

    def __enter__(self) -> Peers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.close()


def _connected(address: str, seconds: float, tls: ssl.SSLContext | None) -> socket.socket:
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
