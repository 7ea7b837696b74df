"""Watches the servers of a cluster: TensorFlow itself may wait forever for a server that has ended."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import ExecutionError, InvalidInput
from .keepalive import alive, connect, speaks_plainly
from .tunnel import context

if TYPE_CHECKING:
    from .cluster import LocalCluster

CHECK_SECONDS = 0.1
"""Seconds between two checks of the servers."""


class Peers(contextlib.AbstractContextManager["Peers"]):
    """Connections to the servers at `addresses` (host:port), through TLS if there is a `secret`. A context manager.

    For a `local` cluster the processes are watched instead, because this process cannot reach their network.

    Raises `ExecutionError` if a server does not answer within `seconds` or requires a secret that is not given, and
    `InvalidInput` if a server is named twice.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        seconds: float = 3.0,
        secret: str | None = None,
        local: LocalCluster | None = None,
    ) -> None:
        self._index = {address: i for i, address in enumerate(addresses)}
        if len(self._index) < len(addresses):
            repeated_address = next(a for i, a in enumerate(addresses) if self._index[a] != i)
            raise InvalidInput(
                f"workers names {repeated_address!r} more than once; every device has a worker of its own"
            )
        self._local = local
        self._tls = context(secret, server=False) if secret else None
        self._connections: dict[str, socket.socket] = {}
        self._checked_at, self._message = 0.0, ""
        for address in addresses if local is None else ():
            try:
                self._connections[address] = connect(address, seconds, self._tls)
                # A server with a secret accepts the connection and then waits for TLS: nothing but an answer tells it apart.
                if self._tls is None and not speaks_plainly(address, seconds):
                    self.close()
                    raise ExecutionError(
                        f"worker {address!r} is no TensorFlow server that is open to this machine; if it was started with "
                        "--secret FILE, give the same file as secret"
                    )
            except ssl.SSLError as error:
                self.close()
                raise ExecutionError(
                    f"worker {address!r} and this machine have no secret in common ({error.reason or error}); start it with: "
                    f"baechi-lab worker --bind {address} --secret FILE, with the file that is given here as secret"
                ) from error
            except (OSError, ValueError) as error:
                self.close()
                raise ExecutionError(
                    f"worker {address!r} does not answer ({error}); start it with: baechi-lab worker --bind {address} "
                    "--secret FILE"
                ) from error

    def ended_server(self) -> str | None:
        """Returns a sentence that names a server that has ended; None while all are running.

        The servers are checked at most every `CHECK_SECONDS`. Once one has ended, the sentence stays the same.
        """
        if not self._message and time.monotonic() - self._checked_at > CHECK_SECONDS:
            self._checked_at = time.monotonic()
            self._message = self._find_ended_server() or ""
        return self._message or None

    def _find_ended_server(self) -> str | None:
        if self._local is not None:
            return self._local.ended_worker()
        for address in self._connections:
            if not alive(self._connections, address, 1.0, self._tls):
                return f"worker {self._index[address]} of the cluster ({address}) has ended"
        return None

    def wait_for_ended_server(self, seconds: float) -> str | None:
        """Polls `ended_server` until it returns a sentence or `seconds` have passed."""
        deadline = time.monotonic() + seconds
        while (self._connections or self._local) and self.ended_server() is None and time.monotonic() < deadline:
            time.sleep(CHECK_SECONDS)
        return self.ended_server()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def __exit__(self, *_: object) -> None:
        self.close()
